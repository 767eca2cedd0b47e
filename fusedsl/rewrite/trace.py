"""What happened: the rules that fired, and those that were refused and why."""

from __future__ import annotations

from dataclasses import dataclass

from fusedsl.diagnostics import Span
from fusedsl.ir import Graph


@dataclass(frozen=True)
class TraceEntry:
    """One rule at one place.

    Fields:
        rule: name of the rule.
        fired: whether it was applied; a refusal otherwise.
        where: name of the result it is about.
        origin: the statement of the program that result comes from ("" where unknown).
        precondition: name of the precondition that failed, None where the rule fired.
        reason: what was done, or why it was not, in plain words.
        span: place of the statement.
    """

    rule: str
    fired: bool
    where: str
    origin: str
    precondition: str | None
    reason: str
    span: Span | None = None

    def __str__(self) -> str:
        verdict = "fired" if self.fired else f"refused ({self.precondition})"
        place = f"'{self.where}'" + (f" of `{self.origin}`" if self.origin else "")
        return f"{self.rule} {verdict} at {place}: {self.reason}"


@dataclass(frozen=True)
class RewriteResult:
    """The rewritten graph and its trace: what fired, in order, then what was refused."""

    graph: Graph
    trace: tuple[TraceEntry, ...]

    @property
    def fired(self) -> tuple[TraceEntry, ...]:
        """The rules that were applied, in order."""
        return tuple(entry for entry in self.trace if entry.fired)

    @property
    def refused(self) -> tuple[TraceEntry, ...]:
        """The refusals that hold for the rewritten graph."""
        return tuple(entry for entry in self.trace if not entry.fired)
