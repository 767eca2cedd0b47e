"""act(linear(x, Wg)) ⊙ linear(x, Wu) → one projection on stacked weights, split in halves."""

from __future__ import annotations

from collections.abc import Iterator

from fusedsl.ir import Elementwise, Graph, HalvesOf, Layout, Node
from fusedsl.rewrite.editor import Editor
from fusedsl.rewrite.matcher import (
    Projection,
    halved,
    is_elementwise_tile,
    projection,
    tile_operands,
)
from fusedsl.rewrite.rule import Context, CounterExample, Fired, Outcome, Refusal, Rule


def _apply(context: Context, node: Node) -> Outcome:
    if halved(node) is not None:
        return _push_half(context, node)
    if not is_elementwise_tile(node) or node.name in context.graph.weights:
        return None
    pair = next(_pairs(context, node), None)
    if pair is None:
        return None
    gate, up = pair
    return _problem(context.graph, gate, up) or _stack(context, gate, up)


def _pairs(context: Context, node: Node) -> Iterator[tuple[Projection, Projection]]:
    """Projections of one value that meet in this node, coming from different operands."""
    sides = [_sources(context, op) for op in tile_operands(context.graph, node)]
    for position, side in enumerate(sides):
        for other in sides[position + 1 :]:
            for one in side:
                for two in other:
                    if one.operand == two.operand and one.node.name != two.node.name:
                        yield one, two


def _sources(context: Context, name: str) -> list[Projection]:
    """The projections that `name` is made of, through values that nothing else reads."""
    graph = context.graph
    sources: list[Projection] = []
    stack = [name]
    while stack:
        current = stack.pop()
        node = graph.producers.get(current)
        if node is None:
            continue
        found = projection(node)
        if found is not None:
            sources.append(found)
        elif is_elementwise_tile(node) and graph.is_read_once(current):
            stack += reversed(tile_operands(graph, node))
    return sources


def _problem(graph: Graph, gate: Projection, up: Projection) -> Refusal | None:
    for one in (gate, up):
        if one.weight not in graph.weights:
            reason = f"'{one.weight}' is no weight: stacking it would cost a copy on every call"
            return Refusal("weights", reason)
    first, second = graph.types[gate.weight], graph.types[up.weight]
    alike = gate.node.block == up.node.block and gate.node.attrs == up.node.attrs
    if first != second or not alike:
        reason = f"'{gate.weight}' is {first} and '{up.weight}' is {second}"
        if first == second:
            reason = f"'{gate.node.name}' and '{up.node.name}' are not the same kind of projection"
        return Refusal("same_shape", reason)
    for one in (gate, up):
        if not graph.is_read_once(one.node.name):
            reason = f"'{one.node.name}' is read elsewhere too, so it is stored in full anyway"
            return Refusal("read_once", reason)
    return None


def _stack(context: Context, gate: Projection, up: Projection) -> Fired:
    edit = Editor(context.graph, gate.node, up.node)
    both = edit.emit("stack", gate.weight, up.weight, axis=gate.n_axis)
    pair = edit.again(gate.node, {gate.weight: both})
    for index, one in enumerate((gate, up)):
        edit.at(one.node)
        edit.emit("half", pair, index=index, name=one.node.name)
    what = f"'{gate.weight}' and '{up.weight}' are one projection of '{gate.operand}', '{pair}'"
    return Fired(edit.finish(), what)


def _push_half(context: Context, node: Node) -> Outcome:
    """half(f(z)) → f(half(z)), where z leads to a projection."""
    graph, value = context.graph, halved(node)
    assert value is not None
    inner = graph.producers.get(value)
    if inner is None or not is_elementwise_tile(inner) or not _leads_to_projection(graph, value):
        return None
    for reader in graph.readers[value]:
        if not reader.block.has_law(HalvesOf):
            reason = f"'{reader.name}' reads all of '{value}', of which '{node.name}' is a half"
            return Refusal("read_by_halves", reason)
    if value in graph.outputs:
        reason = f"'{value}', of which '{node.name}' is a half, is an output"
        return Refusal("read_by_halves", reason)
    wide = [op for op in inner.inputs if graph.types[op].layout in (Layout.TILE, Layout.ROW)]
    for operand in wide:
        if graph.types[operand].layout is Layout.ROW and operand not in graph.weights:
            reason = f"'{operand}' is no weight, and its halves would be cut on every call"
            return Refusal("weights", reason)
    edit = Editor(graph, node)
    index = node.attr("index")
    change = {operand: edit.emit(node.block, operand, index=index) for operand in wide}
    edit.again(inner, change, stored=node.type.dtype, name=node.name)
    what = f"'{node.name}' takes its half under '{value}' ({inner.block.name})"
    return Fired(edit.finish(), what)


def _leads_to_projection(graph: Graph, name: str) -> bool:
    node = graph.producers.get(name)
    while node is not None and projection(node) is None:
        tiles = tile_operands(graph, node)
        if not node.block.has_law(Elementwise) or len(tiles) != 1:
            return False
        node = graph.producers.get(tiles[0])
    return node is not None


_SIGNATURE = """h: bf16[M, 64], w_gate: weight bf16[96, 64], w_up: weight bf16[96, 64]"""

RULE = Rule(
    name="gated_pair",
    before="act(linear(x, Wg)) ⊙ linear(x, Wu)",
    after="act(half(z, 0)) ⊙ half(z, 1), with z = linear(x, stack(Wg, Wu))",
    doc="""Two projections of one value that meet in one elementwise value become one projection
of twice the width, whose kernel holds both halves of the same columns in one dot. Halves are then
taken as early as possible: half(f(z)) = f(half(z)) for every elementwise f, so biases and scales
are applied to halves and the halves sit on the accumulator. No rounding changes.""",
    preconditions={
        "weights": "both weights, and vectors that have to be halved, are known at bind time",
        "same_shape": "both projections are of one kind, with weights of one shape and dtype",
        "read_once": "nothing else reads the projections, and they are no outputs",
        "read_by_halves": "only halves are read of a value under a half",
    },
    apply=_apply,
    example=f"""
kernel example({_SIGNATURE}) -> (y: bf16[M, 96]) {{
  y = swiglu(linear(h, w_gate), linear(h, w_up));
}}""",
    counter_examples={
        "weights": CounterExample(f"""
kernel counter({_SIGNATURE.replace("w_up: weight", "w_up:")}) -> (y: bf16[M, 96]) {{
  y = swiglu(linear(h, w_gate), linear(h, w_up));
}}"""),
        "same_shape": CounterExample("""
kernel counter(h: bf16[M, 64], w_gate: weight bf16[96, 64], w_up: weight bf16[64, 96])
    -> (y: bf16[M, 96]) {
  y = swiglu(linear(h, w_gate), matmul(h, w_up));
}"""),
        "read_once": CounterExample(f"""
kernel counter({_SIGNATURE}) -> (u: bf16[M, 96], y: bf16[M, 96]) {{
  u = linear(h, w_up);
  y = swiglu(linear(h, w_gate), u);
}}"""),
        "read_by_halves": CounterExample("""
kernel counter(h: bf16[M, 64], w: weight bf16[192, 64], b: weight bf16[192])
    -> (z: bf16[M, 192], y: bf16[M, 96]) {
  z = linear(h, w, b);
  y = swiglu(z);
}"""),
    },
)
