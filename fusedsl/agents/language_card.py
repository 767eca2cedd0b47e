"""The language on one page, for the prompt of a model: generated, at most `MAX_TOKENS` long.

| text | where it is |
|---|---|
| `card()` | `fusedsl card`, `fusedsl.card()` |
| `llms_txt()` | `docs/llms.txt` |
| `skill()` | `fusedsl/.agents/skills/fusedsl/SKILL.md`, in the wheel |

Tests hold the files against the generator; `make golden` writes them anew.
"""

from __future__ import annotations

from collections import Counter
from importlib import resources

from fusedsl.agents.card_content import FRAME, MISTAKES, PROGRAMS
from fusedsl.agents.card_shapes import table
from fusedsl.agents.grammar_tree import (
    Item,
    Literal,
    Pattern,
    Ref,
    Repeat,
    Sequence,
    mapped,
    read_grammar,
    without_left_recursion,
)
from fusedsl.blocks import library as standard_library
from fusedsl.frontend import grammar as grammar_text
from fusedsl.ir import BlockLibrary

#: Length of the card, in tokens of a current vocabulary (o200k_base).
MAX_TOKENS = 1500

_INTRODUCTION = """\
One kernel a text. Say what is computed; the compiler fuses. No control flow, indexing, host code.
"""

_RULES = """\
- Assign each name once, before use; use every parameter and value.
- Dimension names are bound at the call; `[N]` is a value per column, `[M,1]` one per row. Values
  and dimensions share no names.
- Mark what stays put between calls `weight`. Integers are indices.
- Attributes by name, operands by place or name; any call with one result takes `out_dtype=fp32`.
  Mixed dtypes become fp32; declare outputs as computed.
"""

_LAWS = """\
`x?` may be left out, `a!` must be given; the first choice is default. [lin x]: linear in x.
[homP]: f(s x) = s^P f(x), s > 0. A norm's scale moves past projections and through such blocks.
"""


def card(library: BlockLibrary | None = None) -> str:
    """The language card, in Markdown."""
    blocks = library or standard_library()
    programs = "\n".join(PROGRAMS)
    errors = "\n".join(f"{m.code}: {m.wrong} => {m.right}" for m in MISTAKES)
    return f"""\
# fusedsl language card

{_INTRODUCTION}
## Grammar

```text
{brief_grammar()}```
{_RULES}
## Blocks

{_LAWS}{chr(10).join(table(blocks))}

## Programs, one a text

```fdsl
{programs}```

## Mistakes in `{FRAME % "..."}`

```text
{errors}
```
"""


def brief_grammar() -> str:
    """The rules of the grammar in EBNF: tokens by their text, rules used once where they are."""
    grammar = without_left_recursion(read_grammar(grammar_text()))
    kept = {n: b for n, b in grammar.terminals.items() if n not in grammar.ignored}
    known: dict[str, Item] = {n: b for n, b in kept.items() if not isinstance(b, Pattern)}
    uses = Counter(name for body in grammar.rules.values() for name in _names(body))
    known |= {n: b for n, b in grammar.rules.items() if uses[n] == 1 and n not in _ROOTS}

    def inlined(item: Item) -> Item:
        if isinstance(item, Ref) and item.name in known:
            return mapped(known[item.name], inlined)
        return item

    shown = {n: mapped(b, inlined) for n, b in grammar.rules.items() if n not in known}
    return "".join(f"{name}: {_brief(body)}\n" for name, body in shown.items())


#: Rules that keep a line of their own.
_ROOTS = ("start", "statement")


def _names(item: Item) -> list[str]:
    """Rules and terminals that an item names."""
    if isinstance(item, Ref):
        return [item.name]
    if isinstance(item, Repeat):
        return _names(item.item)
    return [n for part in getattr(item, "items", ()) for n in _names(part)]


def _brief(item: Item, inner: bool = False) -> str:
    if isinstance(item, Literal):
        return f'"{item.text}"'
    if isinstance(item, Pattern):
        return f"/{item.regex}/"
    if isinstance(item, Ref):
        return item.name
    if isinstance(item, Repeat):
        return _brief(item.item, inner=True) + item.operator
    grouped = isinstance(item, Sequence)  # a choice in a sequence needs its parentheses
    parts = [_brief(part, inner=grouped) for part in item.items]
    text = (" " if grouped else " | ").join(parts)
    return f"({text})" if inner else text


def llms_txt() -> str:
    """The card under the heading of an llms.txt file, with links to the other pages."""
    pages = {
        "language.md": "the language, its JSON form, building from Python",
        "agents.md": "grammar-constrained text, strict tool calls, MCP",
        "diagnostics.md": "every error code",
        "cli.md": "the command line and its JSON",
        "rules.md": "the laws that move norms past projections",
        "runtime.md": "compiling, binding, calling, verifying",
    }
    links = "\n".join(f"- [{name}]({name}): {what}" for name, what in pages.items())
    body = card().removeprefix("# fusedsl language card\n")
    return f"""\
# fusedsl

> A compiler from a small language of GPU blocks to fused Triton kernels.
{body}
## Docs

{links}
"""


def skill() -> str:
    """The card as a skill: front matter, what to run, the card."""
    body = card().removeprefix("# fusedsl language card\n")
    return f"""\
---
name: fusedsl
description: >-
  Write, check and run fusedsl programs: fused GPU kernels for transformer blocks (norms,
  projections, activations, residuals, softmax) from a small language that compiles to Triton. Use
  when a chain of such operations has to be fused or a .fdsl file is written or repaired.
---

# fusedsl

1. Write `NAME.fdsl` in the language below.
2. `fusedsl check NAME.fdsl --json`: every mistake with code, place and fix. Repeat until it is ok.
3. `fusedsl explain NAME.fdsl`: the kernels, which norms moved, and why others did not.
4. `fusedsl run NAME.fdsl --shrink 64`: error against fp64 and eager torch, also without a GPU.
5. From Python: `fusedsl.compile(text).bind(weights)(x)`.
{body}"""


def installed_skill() -> str:
    """The skill as the package carries it."""
    file = resources.files("fusedsl").joinpath(".agents/skills/fusedsl/SKILL.md")
    return file.read_text(encoding="utf-8")
