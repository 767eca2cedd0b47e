"""A repair loop: an agent is shown a program's mistakes, answers with another text, repeat.

`FixAgent` needs no model: it applies the machine-applicable fixes. `ModelAgent` is any function
from a prompt to a text.

    outcome = run(ModelAgent(complete), broken_text)
    outcome.ok, outcome.rounds, outcome.text
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from fusedsl.diagnostics import Diagnostic
from fusedsl.frontend.repair import apply, is_json, mistakes

#: Rounds before a loop gives up.
ROUNDS = 5


class Agent(Protocol):
    """Something that mends a program."""

    def repair(self, text: str, diagnostics: Sequence[Diagnostic]) -> str:
        """The program after one attempt; the same text means that it gives up."""
        ...


class FixAgent:
    """Applies the machine-applicable fixes, and nothing else."""

    def repair(self, text: str, diagnostics: Sequence[Diagnostic]) -> str:
        """The text with every certain fix applied."""
        return apply(text, diagnostics)


class ModelAgent:
    """Any model behind `complete`: a prompt in, a text out.

    The prompt holds the program and its diagnostics as JSON, fixes included. With `fixes_first`
    the model is asked only where no fix is machine-applicable.
    """

    def __init__(self, complete: Callable[[str], str], *, fixes_first: bool = False):
        self.complete = complete
        self.fixes_first = fixes_first

    def repair(self, text: str, diagnostics: Sequence[Diagnostic]) -> str:
        """The program in the model's answer."""
        if self.fixes_first:
            fixed = apply(text, diagnostics)
            if fixed != text:
                return fixed
        return program_in(self.complete(prompt(text, diagnostics)))


@dataclass(frozen=True)
class Step:
    """One round: the text that was checked and what was wrong with it."""

    text: str
    diagnostics: tuple[Diagnostic, ...]


@dataclass(frozen=True)
class Outcome:
    """How a loop ended. `rounds` are attempts of the agent; `steps` the texts that were checked."""

    text: str
    diagnostics: tuple[Diagnostic, ...]
    rounds: int
    steps: tuple[Step, ...]

    @property
    def ok(self) -> bool:
        """Whether the last text is a program."""
        return not self.diagnostics


def run(agent: Agent, text: str, *, rounds: int = ROUNDS) -> Outcome:
    """Check, let the agent repair, repeat: until it is a program, or the agent changes nothing."""
    found = mistakes(text)
    steps = [Step(text, found)]
    done = 0
    while found and done < rounds:
        new = agent.repair(text, found)
        if new == text:
            break
        done += 1
        text, found = new, mistakes(new)
        steps.append(Step(text, found))
    return Outcome(text, found, done, tuple(steps))


def prompt(text: str, diagnostics: Sequence[Diagnostic]) -> str:
    """What a model is asked: the program, its mistakes, and to answer with the program alone."""
    form = "json" if is_json(text) else ""
    listed = json.dumps([item.to_json() for item in diagnostics], indent=1)
    return (
        "This fusedsl program has mistakes.\n\n"
        f"```{form}\n{text.rstrip()}\n```\n\n"
        "Its diagnostics; lines and columns count from 1, 'fixes' are exact edits:\n\n"
        f"```json\n{listed}\n```\n\n"
        "Answer with the whole corrected program in one fenced block, and nothing else.\n"
    )


_FENCE = re.compile(r"^```[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)


def program_in(answer: str) -> str:
    """The program in a model's answer: its last fenced block, or all of it."""
    fenced = _FENCE.findall(answer)
    return fenced[-1] if fenced else answer
