"""A norm with several readers: one set of statistics, and a copy of the scaling for each reader."""

from __future__ import annotations

from fusedsl.ir import Node
from fusedsl.rewrite.editor import Editor
from fusedsl.rewrite.matcher import Form, contracts, is_elementwise_tile
from fusedsl.rewrite.moving import Chain, chain_of, problem_of_move
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
    graph, value = context.graph, node.name
    readers = graph.readers[value]
    projections = [reader for reader in readers if contracts(reader, value)]
    if not projections or (len(readers) < 2 and value not in graph.outputs):
        return None
    chain = chain_of(context, projections[0])
    if chain is None or chain.law is None or not _is_norm(chain):
        return None
    return _problem(context, node, readers) or _copy(context, chain, node, readers)


def _is_norm(chain: Chain) -> bool:
    return any(s.form is Form.SCALE_ROWS and isinstance(s.vector, str) for s in chain.steps) or any(
        s.form is Form.SHIFT_ROWS for s in chain.steps
    )


def _problem(context: Context, node: Node, readers: tuple[Node, ...]) -> Refusal | None:
    value = node.name
    if value in context.graph.outputs:
        return Refusal("not_output", f"'{value}' is an output, so it is stored once for all")
    for reader in readers:
        if contracts(reader, value):
            continue
        if not is_elementwise_tile(reader) or reader.type.shape != node.type.shape:
            reason = f"'{reader.name}' ({reader.block.name}) can not apply the norm on the fly"
            return Refusal("readers", reason)
    for reader in readers:
        if not contracts(reader, value):
            continue
        chain = chain_of(context, reader)
        problem = problem_of_move(context, chain) if chain and chain.law else None
        if problem:
            reason = f"'{value}' stays whole, as it can not move past '{reader.name}': "
            return Refusal("projections", reason + problem.reason)
    return None


def _copy(context: Context, chain: Chain, node: Node, readers: tuple[Node, ...]) -> Fired:
    """Copies of the chain; the first elementwise reader, if any, keeps the original."""
    elementwise = [reader for reader in readers if not contracts(reader, node.name)]
    keeper = (elementwise or list(readers))[0]
    others = [reader for reader in readers if reader.name != keeper.name]
    edit = Editor(context.graph, *others)
    for reader in others:
        edit.at(reader)
        value = chain.base
        for one in reversed(chain.steps):
            value = edit.again(one.node, {one.data: value})
        edit.reread(reader, {node.name: value})
    names = ", ".join(f"'{reader.name}'" for reader in readers)
    what = f"{names} apply '{node.name}' on their own, from '{chain.base}' and its statistics"
    return Fired(edit.finish(), what)


_SIGNATURE = """x: bf16[M, 64], gain: weight bf16[64], w: weight bf16[64, 64],
               v: weight bf16[96, 64]"""

RULE = Rule(
    name="shared_norm",
    before="h = norm(x); linear(h, W); linear(h, V); h + z",
    after="linear(norm(x), W); linear(norm(x), V); norm(x) + z, with the statistics shared",
    doc="""A norm that several values read is given to each of them apart, the statistics shared.
Every projection can then move it past itself, and an elementwise reader (the residual of a
post-norm layer) applies it to x as it loads x; the normed tile is never stored. It does so only
where every reader can, or the tile would have to be stored all the same.""",
    preconditions={
        "not_output": "the norm's value is no output",
        "readers": "every reader is a projection of it, or elementwise of its rows and columns",
        "projections": "the norm can move past each of the projections",
    },
    apply=_apply,
    example=f"""
kernel example({_SIGNATURE}) -> (y: bf16[M, 64], z: bf16[M, 96]) {{
  h = rms_norm(x, gain, eps=1e-6);
  y = gelu(linear(h, w)) + h;
  z = linear(h, v);
}}""",
    counter_examples={
        "not_output": CounterExample(f"""
kernel counter({_SIGNATURE}) -> (h: bf16[M, 64], y: bf16[M, 64], z: bf16[M, 96]) {{
  h = rms_norm(x, gain, eps=1e-6);
  y = linear(h, w);
  z = linear(h, v);
}}"""),
        "readers": CounterExample(f"""
kernel counter({_SIGNATURE}) -> (s: fp32[M, 1], y: bf16[M, 64], z: bf16[M, 96]) {{
  h = rms_norm(x, gain, eps=1e-6);
  s = row_mean_square(h);
  y = linear(h, w);
  z = linear(h, v);
}}"""),
        "projections": CounterExample(
            f"""
kernel counter({_SIGNATURE}) -> (y: bf16[M, 64], z: bf16[M, 96]) {{
  h = rms_norm(x, gain, eps=1e-6);
  y = gelu(linear(h, w)) + h;
  z = linear(h, v);
}}""",
            RewriteOptions(numerics="as_written"),
        ),
    },
)
