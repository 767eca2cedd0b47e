"""Reading a graph by laws: projections, affine steps of a chain, epilogues, signs.

Nothing here looks at a block's name. A block that declares no law ends every walk.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import torch

from fusedsl.ir import (
    Contracts,
    Elementwise,
    Graph,
    HalvesOf,
    Layout,
    LinearIn,
    Node,
    Operand,
    Positive,
    Scales,
    Shifts,
    TensorType,
    as_tuple,
)
from fusedsl.rewrite.editor import Editor
from fusedsl.rewrite.rule import Context, Refusal


@dataclass(frozen=True)
class Projection:
    """A node f = Σ_k operand[i, k] · weight[.., k, ..], and nothing else added to it."""

    node: Node
    operand: str
    weight: str
    k_axis: int
    n_axis: int


def projection(node: Node) -> Projection | None:
    """The node as a projection, or None; one that still holds a bias is none."""
    for law in node.block.laws_of(Contracts):
        operand, weight = node.operand(law.operand), node.operand(law.weight)
        others = sum(op is not None for op in node.operands) - 2
        if isinstance(operand, str) and isinstance(weight, str) and not others:
            return Projection(node, operand, weight, law.k_axis, law.n_axis)
    return None


def contracts(node: Node, value: str) -> Projection | None:
    """The node as a projection of `value`, or None."""
    found = projection(node)
    return found if found and found.operand == value and found.weight != value else None


class Form(Enum):
    """What one step of a chain does to the value under it."""

    SCALE_ROWS = "scale by a column vector"
    SCALE_COLUMNS = "scale by a row vector"
    SHIFT_ROWS = "shift by a column vector"
    SHIFT_COLUMNS = "shift by a row vector"
    SAME = "cast"


@dataclass(frozen=True)
class Step:
    """node = data ⊙ vector, or data + sign · vector.

    Fields:
        node: the elementwise node.
        data: name of the tile it works on.
        form: what it does.
        vector: the factor or the shift: a name or a number.
        inverse: operand name of `data` where the factor is the node's block applied to 1 (a
            quotient has the factor 1 / vector).
        sign: of a shift.
    """

    node: Node
    data: str
    form: Form
    vector: str | float = 1.0
    inverse: bool = False
    sign: int = 1

    @property
    def scales_rows(self) -> bool:
        """Whether it is a scale that is constant along each row."""
        return self.form is Form.SCALE_ROWS

    @property
    def shifts(self) -> bool:
        """Whether it is a shift."""
        return self.form in (Form.SHIFT_ROWS, Form.SHIFT_COLUMNS)

    def factor(self, edit: Editor) -> str | float:
        """The factor of a scale as a value; adds a node where it is an inverse."""
        if not self.inverse:
            return self.vector
        operands = [1.0 if op == self.data else op for op in self.node.operands]
        return edit.emit(self.node.block, *operands)


def step(graph: Graph, name: str) -> Step | None:
    """The node that makes `name` as a step of a chain, or None."""
    node = graph.producers.get(name)
    if node is None or len(node.results) != 1 or not node.block.has_law(Elementwise):
        return None
    if node.type.layout is not Layout.TILE or name in graph.weights:
        return None
    return _scale(graph, node) or _linear(graph, node) or _shift(graph, node)


def _scale(graph: Graph, node: Node) -> Step | None:
    for law in node.block.laws_of(Scales):
        data, factor = node.operand(law.operand), node.operand(law.factor)
        form = _form(graph, node, data, factor, Form.SCALE_ROWS, Form.SCALE_COLUMNS)
        if form and isinstance(data, str) and factor is not None:
            return Step(node, data, form, factor)
    return None


def _shift(graph: Graph, node: Node) -> Step | None:
    for law in node.block.laws_of(Shifts):
        data, shift = node.operand(law.operand), node.operand(law.shift)
        form = _form(graph, node, data, shift, Form.SHIFT_ROWS, Form.SHIFT_COLUMNS)
        if form and isinstance(data, str) and isinstance(shift, str):
            return Step(node, data, form, shift, sign=law.sign)
    return None


def _linear(graph: Graph, node: Node) -> Step | None:
    """A block that is linear in one operand, element by element, multiplies it: by f(1, others)."""
    for law in node.block.laws_of(LinearIn):
        data = node.operand(law.operand)
        others = [op for op in node.operands if op is not None and op != data]
        if not isinstance(data, str) or node.operands.count(data) != 1:
            continue
        if not others and _is_tile(graph, data, node.type):
            factor = _at_one(node)
            form = Form.SAME if factor == 1.0 else Form.SCALE_ROWS
            return Step(node, data, form, factor)
        takes_numbers = node.block.operands[node.block.operand_index(law.operand)].scalar
        if len(others) != 1 or not takes_numbers:
            continue
        form = _form(graph, node, data, others[0], Form.SCALE_ROWS, Form.SCALE_COLUMNS)
        if form:
            return Step(node, data, form, others[0], inverse=True)
    return None


def _at_one(node: Node) -> float:
    """f(1) of a unary linear block: 1 for a cast, -1 for a negation."""
    attrs = {name: value for name, value in node.attrs if name != "out_dtype"}
    one = torch.ones(1, 1, dtype=torch.float64)
    return as_tuple(node.block.reference(one, **attrs))[0].item()


def _form(
    graph: Graph, node: Node, data: Operand, vector: Operand, rows: Form, columns: Form
) -> Form | None:
    if not isinstance(data, str) or data == vector or not _is_tile(graph, data, node.type):
        return None
    if sum(op is not None for op in node.operands) != 2:
        return None
    if vector is None:
        return None
    if not isinstance(vector, str):
        return rows if rows is Form.SCALE_ROWS else None
    layout = graph.types[vector].layout
    if layout is Layout.COLUMN or (layout is Layout.SCALAR and rows is Form.SCALE_ROWS):
        return rows
    return columns if layout is Layout.ROW else None


def _is_tile(graph: Graph, name: str, like: TensorType) -> bool:
    type = graph.types[name]
    return type.layout is Layout.TILE and type.shape == like.shape


def steps_below(graph: Graph, name: str) -> tuple[Step, ...]:
    """Every step under `name`, outermost first, as far as laws reach."""
    found: list[Step] = []
    current = step(graph, name)
    while current is not None:
        found.append(current)
        current = step(graph, current.data)
    return tuple(found)


def tile_operands(graph: Graph, node: Node) -> tuple[str, ...]:
    """Operands of the node's own rows and columns, weights left out."""
    return tuple(
        dict.fromkeys(
            name
            for name in node.inputs
            if name not in graph.weights and _is_tile(graph, name, node.type)
        )
    )


def is_elementwise_tile(node: Node) -> bool:
    """Whether the node makes one tile, element by element."""
    return (
        len(node.results) == 1
        and node.block.has_law(Elementwise)
        and node.type.layout is Layout.TILE
    )


def halved(node: Node) -> str | None:
    """The value the node takes one half of, or None."""
    for law in node.block.laws_of(HalvesOf):
        value = node.operand(law.operand)
        return value if isinstance(value, str) else None
    return None


@dataclass(frozen=True)
class Epilogue:
    """A value that a projection's kernel makes in registers, and the nodes between the two."""

    anchor: Node
    nodes: frozenset[str]


def epilogue(context: Context, value: str, *, paired: bool = False) -> Epilogue | Refusal:
    """The projection whose kernel can make `value`: elementwise nodes only, all else known before.

    Refusals: "producer" (no projection under it), "paired" (a half lies between that the kernel
    does not have beside the other one, where that is asked for), "known_in_kernel" (it needs what
    that very kernel has to finish first).
    """
    graph = context.graph
    seen: set[str] = set()
    anchors: list[Node] = []
    stack = [value]
    while stack:
        name = stack.pop()
        node = graph.producers.get(name)
        if name in seen or node is None or name in graph.weights:
            continue
        if projection(node):
            anchors.append(node)
        elif is_elementwise_tile(node):
            seen.add(name)
            stack += tile_operands(graph, node)
        elif (below := halved(node)) is not None:
            seen.add(name)
            stack.append(below)
    if not anchors:
        return Refusal("producer", _no_producer(graph, value))
    anchor = max(anchors, key=lambda n: context.index[n.name])
    nodes = {name for name in seen if context.depends(name, anchor)}
    alone = _half_alone(graph, nodes, anchor) if paired else None
    if alone is not None:
        return Refusal("paired", alone)
    late = _late_operand(context, nodes, anchor)
    if late:
        user, operand = late
        reason = f"'{user}' needs '{operand}', known only when '{anchor.name}' is complete"
        return Refusal("known_in_kernel", reason)
    return Epilogue(anchor, frozenset(nodes | {anchor.name}))


def _half_alone(graph: Graph, nodes: set[str], anchor: Node) -> str | None:
    """Why halves among `nodes` are not split in the registers of the kernel of `anchor`."""
    sources = {below for name in nodes if (below := halved(graph.producers[name])) is not None}
    for below in sorted(sources):
        if below != anchor.name:
            return f"a half of '{below}' is taken, which is no projection"
        if below in graph.outputs:
            return f"halves of '{below}' are taken, and it is an output as a whole"
        whole = next((r for r in graph.readers[below] if halved(r) is None), None)
        if whole is not None:
            return f"halves of '{below}' are taken, and '{whole.name}' reads it as a whole"
    return None


def _no_producer(graph: Graph, value: str) -> str:
    node = graph.producers.get(value)
    if node is None:
        return f"'{value}' is a parameter: no projection comes before it"
    return f"'{value}' ({node.block.name}) comes from a row or pointwise kernel, not a projection's"


def _late_operand(context: Context, nodes: set[str], anchor: Node) -> tuple[str, str] | None:
    for name in sorted(nodes, key=lambda n: context.index[n]):
        for operand in context.graph.producers[name].inputs:
            if operand == anchor.name or operand in nodes:
                continue
            if context.depends(operand, anchor):
                return name, operand
    return None


def is_positive(graph: Graph, value: str | float) -> bool:
    """Whether every element is > 0: by law, or as a product of positive values."""
    if not isinstance(value, str):
        return value > 0
    node = graph.producers.get(value)
    if node is None:
        return False
    if node.block.has_law(Positive):
        return True
    for law in node.block.laws_of(Scales):
        pair = (node.operand(law.operand), node.operand(law.factor))
        if all(op is not None and is_positive(graph, op) for op in pair):
            return True
    return False
