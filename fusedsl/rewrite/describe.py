"""The rules as a page of documentation: docs/rules.md is this text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fusedsl.rewrite.rule import Rule
from fusedsl.rewrite.rules import RULES

_HEAD = """# Rules

Each rule is one law, applied wherever its pattern is found and its preconditions hold. Patterns are
found by the laws that blocks declare, never by their names, so a block without laws is never moved.
`fusedsl explain` prints, for a program, which rules fired and which were refused and why.

The rules below stand in the order in which they are tried; after one has fired, the first is tried
again. Each has an example it fires on and one program per precondition it is refused on; tests hold
every rewrite against the unchanged program in fp64.
"""


def describe_rules(reasons: Mapping[tuple[str, str], str], rules: Sequence[Rule] = RULES) -> str:
    """The page, in Markdown.

    `reasons` gives for (rule, precondition) the words of a refusal: those of its counter-example.
    """
    return _HEAD + "".join(_section(rule, reasons) for rule in rules)


def _section(rule: Rule, reasons: Mapping[tuple[str, str], str]) -> str:
    lines = [
        f"\n## {rule.name}\n",
        f"```\n  {rule.before}\n→ {rule.after}\n```\n",
        f"{rule.doc}\n",
        "Fires on:\n",
        f"```\n{rule.example.strip()}\n```\n",
        "| precondition | what must be true | a refusal reads |",
        "|---|---|---|",
    ]
    for name, sentence in rule.preconditions.items():
        lines.append(f"| {name} | {sentence} | {reasons.get((rule.name, name), '')} |")
    return "\n".join(lines) + "\n"
