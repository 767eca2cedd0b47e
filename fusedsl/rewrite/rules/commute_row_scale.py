"""linear(r ⊙ x, W) → r ⊙ linear(x, W): a row scale moves past a projection."""

from __future__ import annotations

from fusedsl.ir import DType, Graph, Node, Scales
from fusedsl.rewrite.editor import Editor
from fusedsl.rewrite.matcher import projection, steps_below, tile_operands
from fusedsl.rewrite.moving import (
    DTYPE,
    NOT_NEEDED,
    NUMERICS,
    STORED,
    Chain,
    chain_of,
    problem_of,
    producer_can_scale,
    rebuild,
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


def _apply(context: Context, node: Node) -> Outcome:
    found = projection(node)
    if found is None:
        return None
    chain = chain_of(context, node)
    if chain is None or (chain.row_scale is None and chain.gain is None and not chain.shifts):
        return _product_of_tiles(context.graph, found.operand)
    if chain.shifts:
        return None
    scale = chain.row_scale
    if scale is None:
        return _row_vector(context, chain)
    problem = problem_of(context, chain)
    if problem:
        return problem
    edit = Editor(context.graph, node)
    operand = rebuild(edit, chain, scale, context.graph.types[found.weight].dtype)
    raw = edit.again(node, {found.operand: operand}, stored=DType.FP32)
    factor = scale.factor(edit)
    edit.emit("mul", raw, factor, stored=node.type.dtype, name=node.name)
    what = f"'{factor}' scales the accumulator of '{found.weight}', which reads '{operand}'"
    return Fired(edit.finish(), what)


def _row_vector(context: Context, chain: Chain) -> Outcome:
    """A gain is `fold_gain`'s; left here only where neither weight nor producer takes it."""
    assert chain.gain is not None
    if producer_can_scale(context, chain):
        return None
    reason = f"'{chain.gain.vector}' is a row vector: it varies along K"
    return Refusal("constant_along_k", reason)


def _product_of_tiles(graph: Graph, operand: str) -> Outcome:
    """A row scale under a product of two tiles stays there."""
    node = graph.producers.get(operand)
    if node is None or not node.block.has_law(Scales):
        return None
    tiles = tile_operands(graph, node)
    if len(tiles) != 2:
        return None
    scales = [s.vector for t in tiles for s in steps_below(graph, t) if s.scales_rows]
    if not scales:
        return None
    reason = (
        f"'{operand}' is '{tiles[0]}' times '{tiles[1]}', which both vary along K: "
        f"'{scales[0]}' stays under the product"
    )
    return Refusal("constant_along_k", reason)


_SIGNATURE = "x: bf16[M, 64], r: fp32[M, 1], w: weight bf16[96, 64]"

RULE = Rule(
    name="commute_row_scale",
    before="linear(r ⊙ x, W)",
    after="r ⊙ linear(x, W)",
    doc="""A projection is linear, so a factor that is constant along each row may be applied to
its accumulator. The normed tile is then never stored. The scale is found under gains, casts and
negations, by their laws; it may be any column vector or number, of a norm or not. The product is
taken in fp32, before the accumulator is rounded, so roundings of the chain are dropped and none
is added.""",
    preconditions={
        "constant_along_k": "the factor is constant along the contracted axis: a column vector or "
        "a number, neither a row vector nor a tile",
        "numerics": NUMERICS,
        "dtype": DTYPE,
        "stored": STORED,
        "not_needed": NOT_NEEDED,
    },
    apply=_apply,
    example=f"""
kernel example({_SIGNATURE}) -> (y: bf16[M, 96]) {{
  h = mul(x, r, out_dtype=bf16);
  y = linear(h, w);
}}""",
    counter_examples={
        "constant_along_k": CounterExample("""
kernel counter(x: bf16[M, 64], z: bf16[M, 64], w: weight bf16[96, 64]) -> (y: bf16[M, 96]) {
  y = linear(rms_norm(x, eps=1e-6) * z, w);
}"""),
        "numerics": CounterExample(
            f"""
kernel counter({_SIGNATURE}) -> (y: bf16[M, 96]) {{
  y = linear(mul(x, r, out_dtype=bf16), w);
}}""",
            RewriteOptions(numerics="as_written"),
        ),
        "dtype": CounterExample("""
kernel counter(x: fp32[M, 64], r: fp32[M, 1], w: weight bf16[96, 64]) -> (y: bf16[M, 96]) {
  y = linear(mul(x, r, out_dtype=bf16), w);
}"""),
        "stored": CounterExample("""
kernel counter(x: bf16[M, 64], z: bf16[M, 64], w: weight bf16[96, 64]) -> (y: bf16[M, 96]) {
  y = linear(rms_norm(x + z, eps=1e-6), w);
}"""),
        "not_needed": CounterExample(f"""
kernel counter({_SIGNATURE}) -> (h: bf16[M, 64], y: bf16[M, 96]) {{
  h = mul(x, r, out_dtype=bf16);
  y = linear(h, w);
}}"""),
    },
)
