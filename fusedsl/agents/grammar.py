"""The grammar that parses, exported for decoders that constrain a model's output.

| engine | form |
|---|---|
| `lark` | `frontend/grammar.lark` as it is |
| `llguidance`, `openai` | Lark with explicit blanks and comments: no `%ignore`, no aliases |
| `xgrammar`, `gbnf` | EBNF as llama.cpp reads it: root `root`, no left recursion, no lexer |

Every form is made from the file by the transformations in `grammar_tree`, and accepts the same
programs, from the word `kernel` to the closing brace.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from fusedsl.agents.grammar_tree import (
    Choice,
    Grammar,
    Item,
    Literal,
    Pattern,
    Ref,
    Repeat,
    Sequence,
    read_grammar,
    with_gaps,
    without_left_recursion,
)
from fusedsl.diagnostics import Diagnostic, FusedslError, did_you_mean
from fusedsl.frontend import grammar as grammar_text

#: What the grammar can be exported for.
ENGINES = ("lark", "llguidance", "openai", "xgrammar", "gbnf")

#: How much may stand between two tokens: as in the language, or at most one line break and eight
#: blanks, without comments. The second is for models that would go on writing blanks.
LAYOUTS = ("free", "compact")

_COMPACT = Pattern(r" |\n[ ]?[ ]?[ ]?[ ]?[ ]?[ ]?[ ]?[ ]?")


def export_grammar(engine: str, *, layout: str = "free") -> str:
    """The grammar in the form that an engine reads.

    `layout="compact"` keeps the blanks of the printer and refuses comments and long runs of
    blanks; it leaves out programs, and never lets one in that `parse` refuses. It is not to be
    had for `lark`. Raises FusedslError (F0507) for an unknown engine or layout.
    """
    if engine not in ENGINES:
        raise FusedslError(_unknown("grammar engine", engine, ENGINES))
    layouts = LAYOUTS[:1] if engine == "lark" else LAYOUTS
    if layout not in layouts:
        raise FusedslError(_unknown("layout", layout, layouts))
    if engine == "lark":
        return grammar_text()
    grammar = read_grammar(grammar_text())
    if engine in ("xgrammar", "gbnf"):
        return _ebnf(grammar, layout)
    return _explicit_lark(grammar, layout)


def _unknown(kind: str, got: str, choices: tuple[str, ...]) -> Diagnostic:
    return Diagnostic(
        "F0507",
        f"unknown {kind} '{got}'",
        expected=", ".join(choices),
        got=got,
        fix=did_you_mean(got, choices, f"{kind}s"),
    )


# Lark without %ignore


def _explicit_lark(grammar: Grammar, layout: str) -> str:
    explicit = with_gaps(grammar, "GAP")
    gap = _COMPACT.regex if layout == "compact" else _gap_pattern(grammar)
    lines = [f"{name}: {_lark(body)}" for name, body in explicit.rules.items()]
    kept = {n: t for n, t in grammar.terminals.items() if n not in grammar.ignored}
    lines += ["", *(f"{name}: {_lark(body)}" for name, body in kept.items())]
    lines.append(f"GAP: {_lark(Pattern(gap))}")
    return "\n".join(lines) + "\n"


def _gap_pattern(grammar: Grammar) -> str:
    """Everything ignored, in any order, as one pattern: one terminal for each gap."""
    return f"({'|'.join(_ignored(grammar))})+"


def _ignored(grammar: Grammar) -> list[str]:
    """The ignored patterns; `[ ]+` as `[ ]`, so that a repetition of them is not ambiguous."""
    parts: list[str] = []
    for name in grammar.ignored:
        body = grammar.terminals[name]
        if not isinstance(body, Pattern):
            raise ValueError(f"the ignored terminal {name} is no pattern")
        one = re.fullmatch(r"(\[[^\]]+\])\+", body.regex)
        parts.append(one[1] if one else body.regex)
    return parts


def _lark(item: Item, inner: bool = False) -> str:
    if isinstance(item, Literal):
        escaped = item.text.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    if isinstance(item, Pattern):
        return "/" + item.regex.replace("/", "\\/") + "/"
    if isinstance(item, Ref):
        return item.name
    if isinstance(item, Repeat):
        return _lark(item.item, inner=True) + item.operator
    text = _joined(item, _lark)
    return f"({text})" if inner else text


def _joined(item: Sequence | Choice, render: Callable[[Item, bool], str]) -> str:
    if isinstance(item, Sequence):
        parts = [render(p, isinstance(p, Sequence | Choice)) for p in item.items]
        return " ".join(parts)
    return " | ".join(render(part, False) for part in item.items)


# EBNF


def _ebnf(grammar: Grammar, layout: str) -> str:
    explicit = without_left_recursion(with_gaps(grammar, "gap"))
    lines: list[str] = []
    for name, body in explicit.rules.items():
        lines.append(f"{_ebnf_name(name)} ::= {_gbnf(body)}")
    for name, body in grammar.terminals.items():
        if name not in grammar.ignored:
            lines.append(f"{_ebnf_name(name)} ::= {_gbnf(body)}")
    gap = _COMPACT.regex if layout == "compact" else _gap_pattern(grammar)
    lines.append(f"gap ::= {_gbnf(Pattern(gap))}")
    return "\n".join(lines) + "\n"


def _ebnf_name(name: str) -> str:
    """Lower case with dashes; terminals keep apart from rules of the same name."""
    plain = name.lower().replace("_", "-")
    if name == "start":
        return "root"
    return f"t-{plain}" if name.isupper() else plain


def _gbnf(item: Item, inner: bool = False) -> str:
    if isinstance(item, Literal):
        return _quoted(item.text)
    if isinstance(item, Pattern):
        text = _regex_as_ebnf(item.regex)
        return f"({text})" if inner else text
    if isinstance(item, Ref):
        return _ebnf_name(item.name)
    if isinstance(item, Repeat):
        return _gbnf(item.item, inner=True) + item.operator
    text = _joined(item, _gbnf)
    return f"({text})" if inner else text


def _quoted(text: str) -> str:
    shown = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{shown}"'


_REGEX_PART = re.compile(
    r"(?P<set>\[(?:\\.|[^\]\\])+\])|(?P<syntax>\((?!\?)|\)|\||(?<!\\)[*+?])|\\(?P<escape>[.ntr\\*+/-])"
    r"|(?P<plain>[^\\\[\](){}|*+?.^$])"
)


def _regex_as_ebnf(regex: str) -> str:
    """A regular expression of sets, groups, choices and `* + ?`, in EBNF."""
    out: list[str] = []
    position = 0
    while position < len(regex):
        match = _REGEX_PART.match(regex, position)
        if match is None:
            raise ValueError(f"not exported: {regex[position:]!r} of the pattern {regex!r}")
        position = match.end()
        if match["set"]:
            out.append(match["set"])
        elif match["syntax"]:
            repeats = match["syntax"] in "*+?"
            out.append(out.pop() + match["syntax"] if repeats else match["syntax"])
        elif match["escape"]:
            escape = match["escape"]
            out.append(f'"\\{escape}"' if escape in "ntr\\" else f'"{escape}"')
        else:
            out.append(_quoted(match["plain"]))
    return " ".join(out)
