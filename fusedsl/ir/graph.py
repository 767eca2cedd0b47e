"""What a program is: parameters, nodes in order, outputs. Frozen; one screen.

A graph is in SSA form: every name is defined once, before its uses. A value's dtype is the type
it has wherever it is stored; inside one kernel values stay in fp32 registers unless the program
is compiled with `numerics="as_written"`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from fusedsl.diagnostics import Span
from fusedsl.ir.block import AttrValue, Block, Kind
from fusedsl.ir.types import TensorType

#: A name, a number literal, or None for an operand that was left out.
Operand = str | float | None


@dataclass(frozen=True)
class Param:
    """A parameter. `weight`: it stays put between calls and may be folded or repacked once."""

    name: str
    type: TensorType
    weight: bool = False
    span: Span | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Result:
    """One named result of a node."""

    name: str
    type: TensorType


@dataclass(frozen=True)
class Node:
    """One application of a block. `operands` align with `block.operands`.

    `origin` is the statement it came from and `span` its place; neither is part of its identity.
    """

    block: Block
    operands: tuple[Operand, ...]
    attrs: tuple[tuple[str, AttrValue], ...]
    results: tuple[Result, ...]
    origin: str = field(default="", compare=False)
    span: Span | None = field(default=None, compare=False)

    @property
    def name(self) -> str:
        """Name of the (first) result."""
        return self.results[0].name

    @property
    def type(self) -> TensorType:
        """Type of the (first) result."""
        return self.results[0].type

    @property
    def inputs(self) -> tuple[str, ...]:
        """Operand names, literals and omitted operands left out."""
        return tuple(op for op in self.operands if isinstance(op, str))

    def operand(self, name: str) -> Operand:
        """The operand called `name` in the block's spec."""
        return self.operands[self.block.operand_index(name)]

    def attr(self, name: str) -> AttrValue:
        """One attribute. Raises KeyError if the block has none of that name."""
        return self.attr_map[name]

    @cached_property
    def attr_map(self) -> dict[str, AttrValue]:
        """Attributes by name, defaults filled in."""
        return dict(self.attrs)


@dataclass(frozen=True)
class Graph:
    """A program. `outputs` names the values the caller receives, in order."""

    name: str
    params: tuple[Param, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[str, ...]

    @cached_property
    def types(self) -> Mapping[str, TensorType]:
        """The type of every name."""
        table = {p.name: p.type for p in self.params}
        table.update({r.name: r.type for node in self.nodes for r in node.results})
        return table

    @cached_property
    def producers(self) -> Mapping[str, Node]:
        """The node that defines each name; parameters have none."""
        return {r.name: node for node in self.nodes for r in node.results}

    @cached_property
    def readers(self) -> Mapping[str, tuple[Node, ...]]:
        """The nodes that read each name, in order; empty for unread names."""
        table: dict[str, list[Node]] = {name: [] for name in self.types}
        for node in self.nodes:
            for name in dict.fromkeys(node.inputs):
                table[name].append(node)
        return {name: tuple(nodes) for name, nodes in table.items()}

    @cached_property
    def weights(self) -> frozenset[str]:
        """Names known at bind time: weight parameters, and all that depends on nothing else."""
        known = {p.name for p in self.params if p.weight}
        for node in self.nodes:
            if node.inputs and all(name in known for name in node.inputs):
                known.update(r.name for r in node.results)
        return frozenset(known)

    def param(self, name: str) -> Param | None:
        """The parameter of that name, if there is one."""
        return next((p for p in self.params if p.name == name), None)

    def is_read_once(self, name: str) -> bool:
        """Whether exactly one node reads it and it is no output."""
        return len(self.readers[name]) == 1 and name not in self.outputs

    def run_time_nodes(self) -> Iterator[Node]:
        """The nodes that run on every call."""
        return (n for n in self.nodes if not self.is_bind_time(n))

    def bind_time_nodes(self) -> Iterator[Node]:
        """The nodes that run once per binding of the weights."""
        return (n for n in self.nodes if self.is_bind_time(n))

    def is_bind_time(self, node: Node) -> bool:
        """Whether everything the node reads is known at bind time."""
        return node.block.kind is Kind.PACKING or node.name in self.weights

    def __str__(self) -> str:
        from fusedsl.ir.printer import print_graph

        return print_graph(self)
