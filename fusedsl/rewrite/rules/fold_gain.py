"""linear(x ⊙ g, W) → linear(x, W·diag g): a gain is folded into a weight, once."""

from __future__ import annotations

from fusedsl.ir import Node
from fusedsl.rewrite.editor import Editor
from fusedsl.rewrite.matcher import Step
from fusedsl.rewrite.moving import (
    DTYPE,
    NOT_NEEDED,
    NUMERICS,
    STORED,
    Chain,
    chain_of,
    gain_problem,
    needed_problem,
    producer_can_scale,
    rebuild,
    stored_problem,
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
    if chain is None or chain.shifts or chain.gain is None:
        return None
    gain = chain.gain
    problem = (
        gain_problem(context, chain)
        or needed_problem(context, chain)
        or stored_problem(context, chain)
    )
    if problem is None:
        return _fold(context, chain, gain)
    on_call = problem.precondition == "weights" and chain.row_scale is None
    if on_call and producer_can_scale(context, chain):
        return Fired(None, f"the kernel that makes '{chain.base}' also writes '{chain.operand}'")
    return problem


def _fold(context: Context, chain: Chain, gain: Step) -> Fired:
    node, weight = chain.projection.node, chain.projection.weight
    edit = Editor(context.graph, node)
    factor = gain.factor(edit)
    folded = edit.emit("fold_scale", weight, factor, axis=chain.projection.k_axis)
    operand = rebuild(edit, chain, gain, context.graph.types[weight].dtype)
    change = {chain.operand: operand, weight: folded}
    edit.again(node, change, name=node.name)
    what = f"'{factor}' is folded into a copy of '{weight}', '{folded}'"
    return Fired(edit.finish(), what)


RULE = Rule(
    name="fold_gain",
    before="linear(x ⊙ g, W)",
    after="linear(x, W·diag g)",
    doc="""Where gain and weight both stay put between calls, their product is made once, at bind
time, rounded once to the weight's dtype. The weight itself is left alone, so one that is tied to
another reader may be folded. Where the gain or the weight changes on every call and x comes from a
projection, x ⊙ g stays as it is: that projection's epilogue writes it.""",
    preconditions={
        "numerics": NUMERICS,
        "weights": "gain and weight are declared `weight`, or are made of such parameters alone",
        "dtype": DTYPE,
        "stored": STORED,
        "not_needed": NOT_NEEDED,
    },
    apply=_apply,
    example="""
kernel example(x: bf16[M, 64], gain: weight bf16[64], w: weight bf16[96, 64])
    -> (y: bf16[M, 96]) {
  y = linear(x * gain, w);
}""",
    counter_examples={
        "numerics": CounterExample(
            """
kernel counter(x: bf16[M, 64], gain: weight bf16[64], w: weight bf16[96, 64])
    -> (y: bf16[M, 96]) {
  y = linear(x * gain, w);
}""",
            RewriteOptions(numerics="as_written"),
        ),
        "weights": CounterExample("""
kernel counter(x: bf16[M, 64], gain: bf16[64], w: weight bf16[96, 64]) -> (y: bf16[M, 96]) {
  y = linear(x * gain, w);
}"""),
        "dtype": CounterExample("""
kernel counter(x: fp32[M, 64], gain: weight bf16[64], w: weight bf16[96, 64])
    -> (y: bf16[M, 96]) {
  y = linear(mul(x, gain, out_dtype=bf16), w);
}"""),
        "stored": CounterExample("""
kernel counter(x: bf16[M, 64], gain: weight bf16[64], w: weight bf16[96, 64])
    -> (y: bf16[M, 96]) {
  y = linear(gelu(x) * gain, w);
}"""),
        "not_needed": CounterExample("""
kernel counter(x: bf16[M, 64], gain: weight bf16[64], w: weight bf16[96, 64])
    -> (h: bf16[M, 64], y: bf16[M, 96]) {
  h = x * gain;
  y = linear(h, w);
}"""),
    },
)
