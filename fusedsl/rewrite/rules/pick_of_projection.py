"""pick(f(linear(x, W)), t) → f(Σ_k x ⊙ W[t]): one logit of each row, without the others."""

from __future__ import annotations

from fusedsl.ir import DType, Graph, Layout, Node, Picks
from fusedsl.rewrite.editor import Editor
from fusedsl.rewrite.matcher import (
    Projection,
    is_elementwise_tile,
    projection,
    step,
    tile_operands,
)
from fusedsl.rewrite.rule import (
    Context,
    CounterExample,
    Fired,
    Outcome,
    Refusal,
    RewriteOptions,
    Rule,
)

#: Columns of the projection for each column of its operand. Beside its arithmetic, an element of
#: the epilogue costs about the time of a byte for its comparison with the index; a picked row reads
#: two rows of the operand's width, in 16 bits.
PAYS = 4


def _apply(context: Context, node: Node) -> Outcome:
    law = next(iter(node.block.laws_of(Picks)), None)
    value, index = (node.operand(law.operand), node.operand(law.index)) if law else (None, None)
    if not isinstance(value, str) or not isinstance(index, str):
        return None
    below = _below(context.graph, value)
    if below is None:
        return None
    found, steps = below
    problem = _problem(context, value, found, steps)
    return problem or _move(context, node, index, found, steps)


def _below(graph: Graph, value: str) -> tuple[Projection, list[Node]] | None:
    """The projection under a value, and the steps of one tile between them, outermost first."""
    steps: list[Node] = []
    while True:
        node = graph.producers.get(value)
        if node is None or value in graph.weights:
            return None
        found = projection(node)
        if found is not None:
            return (found, steps) if _by_rows(graph, found) else None
        tiles = tile_operands(graph, node)
        if not is_elementwise_tile(node) or len(tiles) != 1:
            return None
        steps.append(node)
        value = tiles[0]


def _by_rows(graph: Graph, found: Projection) -> bool:
    """Whether a column of the projection is one row of a weight in memory."""
    known = found.weight in graph.weights or found.weight in {p.name for p in graph.params}
    tiles = all(graph.types[n].layout is Layout.TILE for n in (found.operand, found.weight))
    return known and tiles and found.n_axis == 0


def _problem(context: Context, value: str, found: Projection, steps: list[Node]) -> Refusal | None:
    types = context.graph.types
    if context.options.numerics != "moved":
        reason = f"numerics=\"as_written\" keeps the rounding of '{found.node.name}'"
        return Refusal("numerics", reason)
    for one in steps:
        rows = [n for n in one.inputs if types[n].layout is Layout.ROW]
        if rows:
            return Refusal("same_columns", f"'{one.name}' has a value of '{rows[0]}' per column")
    if types[found.weight].dtype is DType.FP32:
        reason = f"'{found.weight}' is fp32: its products are what costs"
        return Refusal("sixteen_bit", reason)
    affine = all(step(context.graph, one.name) for one in steps)
    if types[value].dtype is DType.FP32 and not affine:
        reason = f"'{value}' is fp32, and the picked one of each row would be approximated"
        return Refusal("sixteen_bit", reason)
    rows, width = types[found.weight].rows, types[found.weight].cols
    if rows.is_static and width.is_static and rows.factor >= PAYS * width.factor:
        return None
    reason = f"'{found.node.name}' has {rows} columns of {width} products each"
    return Refusal("pays", reason)


def _move(context: Context, node: Node, index: str, found: Projection, steps: list[Node]) -> Fired:
    edit = Editor(context.graph, node)
    products = edit.emit("mul_picked", found.operand, found.weight, index)
    names = [node.name, *(None for _ in steps)]
    stored = [node.type.dtype, *(DType.FP32 for _ in steps)]
    picked = edit.emit("row_sum", products, stored=stored.pop(), name=names.pop())
    for one in reversed(steps):
        (tile,) = tile_operands(context.graph, one)
        picked = edit.again(one, {tile: picked}, stored=stored.pop(), name=names.pop())
    what = f"'{products}' reads the row of '{found.weight}' that '{index}' names"
    return Fired(edit.finish(), what)


def _program(
    logits: str = "softcap(linear(h, w), cap=30)",
    dtype: str = "bf16",
    columns: int = 512,
    bias: str = "",
) -> str:
    return f"""
kernel program(x: {dtype}[M, 64], w: weight {dtype}[{columns}, 64]{bias}, t: i64[M])
    -> (loss: fp32[M, 1]) {{
  h = rms_norm(x, eps=1e-6);
  loss = cross_entropy({logits}, t);
}}"""


RULE = Rule(
    name="pick_of_projection",
    before="pick(f(linear(x, W)), t)",
    after="f(Σ_k x ⊙ W[t])",
    doc="""The logit of a row's target needs one row of W. A row kernel reads it through the index
(often the kernel that takes the statistic of x, which reads x anyway), and the projection's
epilogue need not compare every column with it. f may be any elementwise steps of column vectors and
numbers; an index that names no column gives NaN as before. The picked logit is summed in another
order than the projection's: a loss is exact to a few fp32 roundings of its logits, not of itself.
Where the target is the row's largest but for that, cross_entropy takes it as the largest.""",
    preconditions={
        "numerics": 'numerics is "moved": the projection rounds its sum, and in another order',
        "same_columns": "nothing between the two differs from column to column",
        "sixteen_bit": "the operands have 16 bits, and so have the logits if f is not affine: the "
        "same approximations then serve both",
        "pays": f"the projection is at least {PAYS} times as wide as its operand, by integers",
    },
    apply=_apply,
    example=_program(),
    counter_examples={
        "numerics": CounterExample(_program(), RewriteOptions(numerics="as_written")),
        "same_columns": CounterExample(
            _program(logits="linear(h, w) + b", bias=", b: weight bf16[512]")
        ),
        "sixteen_bit": CounterExample(_program(dtype="fp32")),
        "pays": CounterExample(_program(columns=200)),
    },
)
