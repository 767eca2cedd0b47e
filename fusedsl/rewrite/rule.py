"""What a rule is: one law, its preconditions by name, and examples that are tested."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from fusedsl.ir import Graph, Node


@dataclass(frozen=True)
class RewriteOptions:
    """What the caller allows.

    Fields:
        numerics: "moved" lets a rule drop a rounding; "as_written" keeps every one.
        fp32_shift: allow `layer_norm_shift` on fp32 operands, which costs digits where the mean
            of a row is large against its deviation.
        tf32: fp32 projections run in TF32; it words refusals only.
        verify_each: verify the graph after every firing and not only at the end.
    """

    numerics: str = "moved"
    fp32_shift: bool = False
    tf32: bool = False
    verify_each: bool = False

    def __post_init__(self) -> None:
        if self.numerics not in ("moved", "as_written"):
            raise ValueError(f"numerics is 'moved' or 'as_written', not {self.numerics!r}")


@dataclass(frozen=True)
class Context:
    """One state of the graph, under the caller's options."""

    graph: Graph
    options: RewriteOptions = RewriteOptions()

    @cached_property
    def index(self) -> Mapping[str, int]:
        """Position of the node that defines each name."""
        return {r.name: i for i, node in enumerate(self.graph.nodes) for r in node.results}

    @cached_property
    def _ancestors(self) -> Mapping[str, int]:
        """For each name, the nodes it depends on, as a set of bits by position."""
        table: dict[str, int] = {}
        for i, node in enumerate(self.graph.nodes):
            bits = 1 << i
            for name in node.inputs:
                bits |= table.get(name, 0)
            table.update({result.name: bits for result in node.results})
        return table

    def depends(self, name: str, on: Node) -> bool:
        """Whether the value `name` depends on a result of the node `on`."""
        return bool(self._ancestors.get(name, 0) >> self.index[on.name] & 1)


@dataclass(frozen=True)
class Fired:
    """A rule applied: the new graph and what was done, in words.

    `graph` is None where the law already holds as the graph stands, and nothing has to change.
    """

    graph: Graph | None
    what: str


@dataclass(frozen=True)
class Refusal:
    """A rule whose pattern is there and whose precondition is not."""

    precondition: str
    reason: str


@dataclass(frozen=True)
class CounterExample:
    """A program that fails exactly one precondition."""

    program: str
    options: RewriteOptions = RewriteOptions()


#: What `Rule.apply` gives: None where the pattern is not there.
Outcome = Fired | Refusal | None


@dataclass(frozen=True)
class Rule:
    """One law as a rewrite.

    Fields:
        name: as in the trace and in docs/rules.md.
        before, after: the rewrite in one line.
        doc: one paragraph: when it pays, and what it does to roundings.
        preconditions: name → the sentence that must be true.
        apply: `(context, node) -> Outcome`; `node` is the place the rule is tried at.
        example: a program it fires on.
        counter_examples: for each precondition a program it is refused on because of that alone.
    """

    name: str
    before: str
    after: str
    doc: str
    preconditions: Mapping[str, str]
    apply: Callable[[Context, Node], Outcome]
    example: str
    counter_examples: Mapping[str, CounterExample] = field(
        default_factory=dict[str, CounterExample]
    )
