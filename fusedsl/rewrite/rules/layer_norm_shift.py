"""linear((x - mean) ⊙ r ⊙ g + s, W) → r ⊙ (linear(x, W') - mean ⊗ u) + v.

LayerNorm moves past a projection.
"""

from __future__ import annotations

from dataclasses import dataclass

from fusedsl.ir import DType, Node
from fusedsl.rewrite.editor import Editor
from fusedsl.rewrite.matcher import Form, Step, step
from fusedsl.rewrite.moving import (
    DTYPE,
    NOT_NEEDED,
    NUMERICS,
    STORED,
    Chain,
    chain_of,
    problem_of,
    shift_problem,
)
from fusedsl.rewrite.rule import (
    Context,
    CounterExample,
    Fired,
    Outcome,
    RewriteOptions,
    Rule,
)


def _apply(context: Context, node: Node) -> Outcome:
    chain = chain_of(context, node)
    if chain is None or chain.law is not shift_problem:
        return None
    problem = problem_of(context, chain)
    if problem:
        return problem
    bias = _bias_after(context, chain)
    replaced = [node] if bias is None else [node, bias.node]
    edit = Editor(context.graph, *replaced)
    vectors = _Vectors(edit, chain)
    raw = edit.again(
        node,
        {chain.operand: chain.base, chain.projection.weight: vectors.weight(chain.steps)},
        stored=DType.FP32,
    )
    calls = _epilogue(edit, chain, vectors)
    if bias is not None:
        block, operands = calls[-1]
        calls[-1] = block, (edit.emit("add", operands[0], bias.vector, stored=DType.FP32),)
    value, last = raw, replaced[-1]
    for block, operands in calls[:-1]:
        value = edit.emit(block, value, *operands, stored=DType.FP32)
    block, operands = calls[-1]
    edit.emit(block, value, *operands, stored=last.type.dtype, name=last.name)
    weight = chain.projection.weight
    what = f"'{weight}' reads '{chain.base}'; the norm is applied to its accumulator"
    return Fired(edit.finish(), what)


def _bias_after(context: Context, chain: Chain) -> Step | None:
    """The bias after the projection, where the norm's own shift comes last: one vector for both."""
    graph, name = context.graph, chain.projection.node.name
    outermost = next(s for s in chain.steps if s.form not in (Form.SAME, Form.SCALE_COLUMNS))
    if outermost.form is not Form.SHIFT_COLUMNS or outermost.sign < 0:
        return None
    if not graph.is_read_once(name):
        return None
    after = step(graph, graph.readers[name][0].name)
    if after is None or after.data != name or after.form is not Form.SHIFT_COLUMNS:
        return None
    return after if after.sign > 0 and after.vector in graph.weights else None


@dataclass
class _Vectors:
    """Bind-time values made of the weight: folded by gains, summed, applied to a vector."""

    edit: Editor
    chain: Chain

    def weight(self, steps: tuple[Step, ...]) -> str:
        """The weight folded with the gains among these steps."""
        weight, axis = self.chain.projection.weight, self.chain.projection.k_axis
        gain = self._product(steps)
        return self.edit.emit("fold_scale", weight, gain, axis=axis) if gain else weight

    def summed(self, steps: tuple[Step, ...], sign: int) -> str:
        """u = Σ_k of the folded weight, as rounded."""
        u = self.edit.emit("weight_sum", self.weight(steps), axis=self.chain.projection.k_axis)
        return u if sign < 0 else self.edit.emit("mul", u, -1.0)

    def projected(self, vector: str, steps: tuple[Step, ...]) -> str:
        """v = W (vector ⊙ gains), of the weight before folding."""
        gain = self._product(steps)
        if gain:
            vector = self.edit.emit("mul", vector, gain, stored=DType.FP32)
        projection = self.chain.projection
        return self.edit.emit("project_vector", vector, projection.weight, k_axis=projection.k_axis)

    def _product(self, steps: tuple[Step, ...]) -> str | None:
        product: str | None = None
        for one in steps:
            if one.form is Form.SCALE_COLUMNS:
                factor = str(one.factor(self.edit))
                product = (
                    self.edit.emit("mul", product, factor, stored=DType.FP32) if product else factor
                )
        return product


_Call = tuple[str, tuple[str | float, ...]]


def _epilogue(edit: Editor, chain: Chain, vectors: _Vectors) -> list[_Call]:
    """The steps as calls on the accumulator, innermost first."""
    calls: list[_Call] = []
    for position in reversed(range(len(chain.steps))):
        one, outer = chain.steps[position], chain.steps[:position]
        if one.form is Form.SCALE_ROWS:
            calls.append(("mul", (one.factor(edit),)))
        elif one.form is Form.SHIFT_ROWS:
            calls.append(("sub_outer", (one.vector, vectors.summed(outer, one.sign))))
        elif one.form is Form.SHIFT_COLUMNS:
            v = vectors.projected(str(one.vector), outer)
            calls.append(("add" if one.sign > 0 else "sub", (v,)))
    return calls


_SIGNATURE = """x: {d}[M, 64], gain: weight {d}[64], shift: weight {d}[64],
               w: weight {d}[96, 64], b: weight {d}[96]"""
_BODY = """{{
  h = layer_norm(x, gain, shift, eps=1e-5);
  y = linear(h, w, b);
}}"""
_PROGRAM = f"""
kernel program({_SIGNATURE})
    -> (y: {{d}}[M, 96]) {_BODY}"""

RULE = Rule(
    name="layer_norm_shift",
    before="linear((x - mean) ⊙ r ⊙ g + s, W) + b",
    after="r ⊙ (linear(x, W') - mean ⊗ u) + v, with W' = W·diag g, u = Σ_k W', v = W s + b",
    doc="""The row mean leaves the projection as a rank-one term, the scale and the shift as
vectors, all in fp32 on the accumulator. u is the sum of W' as rounded, because the accumulator
holds exact products of that W'; v is made of W before folding. Any part may be absent: only
centred, no gain, no bias, or a norm written by hand. Each is found by the laws of scales and
shifts.""",
    preconditions={
        "numerics": NUMERICS,
        "sixteen_bit": "operands are bf16 or fp16, whose products are exact in fp32, or nothing is "
        "centred, or fp32_shift allows the loss of digits",
        "weights": "the projection's weight, gains and shifts are known at bind time",
        "dtype": DTYPE,
        "stored": STORED,
        "not_needed": NOT_NEEDED,
    },
    apply=_apply,
    example=_PROGRAM.format(d="bf16"),
    counter_examples={
        "numerics": CounterExample(
            _PROGRAM.format(d="bf16"), RewriteOptions(numerics="as_written")
        ),
        "sixteen_bit": CounterExample(_PROGRAM.format(d="fp32")),
        "weights": CounterExample(_PROGRAM.format(d="bf16").replace("gain: weight", "gain:")),
        "dtype": CounterExample("""
kernel counter(x: fp32[M, 64], w: weight bf16[96, 64]) -> (y: bf16[M, 96]) {
  y = linear(layer_norm(x, eps=1e-5, out_dtype=bf16), w);
}"""),
        "stored": CounterExample("""
kernel counter(x: bf16[M, 64], z: bf16[M, 64], w: weight bf16[96, 64]) -> (y: bf16[M, 96]) {
  y = linear(layer_norm(x + z, eps=1e-5), w);
}"""),
        "not_needed": CounterExample("""
kernel counter(x: bf16[M, 64], w: weight bf16[96, 64]) -> (h: bf16[M, 64], y: bf16[M, 96]) {
  h = layer_norm(x, eps=1e-5);
  y = linear(h, w);
}"""),
    },
)
