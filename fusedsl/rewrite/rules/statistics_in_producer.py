"""statistic(x) → merge(partial(x)): row statistics start in the epilogue that makes x."""

from __future__ import annotations

from fusedsl.ir import Dim, Graph, Node, StatisticOf
from fusedsl.rewrite.editor import Editor
from fusedsl.rewrite.matcher import epilogue
from fusedsl.rewrite.rule import Context, CounterExample, Fired, Outcome, Refusal, Rule


def _apply(context: Context, node: Node) -> Outcome:
    graph = context.graph
    law = next(iter(node.block.laws_of(StatisticOf)), None)
    value = node.operand(law.operand) if law else None
    if law is None or not isinstance(value, str) or value in graph.weights:
        return None
    made = epilogue(context, value, paired=True)
    if isinstance(made, Refusal):
        return made
    edit = Editor(graph, node)
    tiles = Dim(1, _tiles_symbol(graph, value))
    partials = edit.emit_all(law.partial, [value], (), tiles=tiles)
    width = graph.types[value].cols
    names = tuple(result.name for result in node.results)
    if len(names) == 1:
        dtype = node.type.dtype
        edit.emit(law.merge, *partials, stored=dtype, name=names[0], width=width)
    else:
        edit.emit_all(law.merge, partials, names, width=width)
    what = f"the kernel of '{made.anchor.name}' leaves {law.partial} of '{value}' for each tile"
    return Fired(edit.finish(), what)


def _tiles_symbol(graph: Graph, value: str) -> str:
    """`tiles_<value>`; another statistic of the same value shares it, nothing else does."""
    taken = {symbol for type in graph.types.values() for symbol in type.symbols}
    shared = {
        dim.symbol
        for reader in graph.readers[value]
        for dim in (reader.attr_map.get("tiles"),)
        if isinstance(dim, Dim) and dim.symbol is not None
    }
    if shared:
        return min(shared)
    symbol, number = f"tiles_{value}", 1
    while symbol in taken:
        number += 1
        symbol = f"tiles_{value}_{number}"
    return symbol


RULE = Rule(
    name="statistics_in_producer",
    before="statistic(x), with x = linear(..) and what follows it element by element",
    after="merge(partial(x)), with partial(x) in the epilogue that makes x",
    doc="""Each column tile of the kernel that makes x reduces its own part of the row; whoever uses
the statistic merges the parts (means and M2 pairwise, for a variance). x is not read again. The
partial is taken of x as rounded to its storage dtype, as eager takes it of the stored x: code
generation rounds before it reduces, so only the order of the sum changes. The statistic is
therefore one of the values that the next kernel reads.""",
    preconditions={
        "producer": "x is computed from a projection element by element",
        "paired": "if x is made of halves, then of the projection itself, which nothing else "
        "reads: its kernel then has both halves side by side",
        "known_in_kernel": "all else that x needs is known before that kernel ends: no statistic "
        "of a value that the same kernel makes",
    },
    apply=_apply,
    example="""
kernel example(a: bf16[M, 128], x: bf16[M, 64], w: weight bf16[64, 128])
    -> (s: bf16[M, 64], h: bf16[M, 64]) {
  s = linear(a, w) + x;
  h = rms_norm(s, eps=1e-6);
}""",
    counter_examples={
        "producer": CounterExample("""
kernel counter(x: bf16[M, 64], z: bf16[M, 64]) -> (h: bf16[M, 64]) {
  h = rms_norm(x + z, eps=1e-6);
}"""),
        "paired": CounterExample("""
kernel counter(x: bf16[M, 64], w: weight bf16[192, 64]) -> (z: bf16[M, 192], h: bf16[M, 96]) {
  z = linear(x, w);
  h = rms_norm(swiglu(z), eps=1e-6);
}"""),
        "known_in_kernel": CounterExample("""
kernel counter(a: bf16[M, 128], x: bf16[M, 64], w: weight bf16[64, 128])
    -> (s: bf16[M, 64], h: bf16[M, 64]) {
  s = x + rms_norm(linear(a, w), eps=1e-6);
  h = rms_norm(s, eps=1e-6);
}"""),
    },
)
