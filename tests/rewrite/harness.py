"""What the rewrite tests share: reading programs, rewriting them, holding two graphs together."""

from __future__ import annotations

import torch

from fusedsl.frontend import parse
from fusedsl.ir import Graph, evaluate, random_inputs
from fusedsl.rewrite import RewriteOptions, RewriteResult, expand, rewrite

M = 5

#: Observed: at most 2e-13 over all tests (fp64 sums in another order).
TOLERANCE = 2e-11


def rewritten(text: str, **options: object) -> tuple[Graph, RewriteResult]:
    """The expanded program, and what rewriting gives; verified after every firing."""
    graph = expand(parse(text))
    return graph, rewrite(graph, RewriteOptions(verify_each=True, **options))  # type: ignore[arg-type]


def assert_same_meaning(before: Graph, after: Graph, seed: int = 0) -> None:
    """Outputs, their types, and their fp64 values are the same."""
    assert before.outputs == after.outputs
    assert [before.types[n] for n in before.outputs] == [after.types[n] for n in after.outputs]
    symbols = {s for p in before.params for s in p.type.symbols}
    inputs = random_inputs(before, dict.fromkeys(symbols, M), seed=seed)
    old, new = evaluate(before, inputs), evaluate(after, inputs)
    for name in before.outputs:
        scale = old[name].abs().max().clamp_min(1e-30)
        error = ((old[name] - new[name]).abs().max() / scale).item()
        assert torch.isfinite(new[name]).all() and error < TOLERANCE, (name, error)


def fired(result: RewriteResult) -> list[str]:
    """Names of the rules that fired, in order."""
    return [entry.rule for entry in result.fired]


def refusals(result: RewriteResult, rule: str) -> set[str | None]:
    """The preconditions on which a rule was refused."""
    return {entry.precondition for entry in result.refused if entry.rule == rule}


def blocks(graph: Graph) -> list[str]:
    """Block names in order."""
    return [node.block.name for node in graph.nodes]


def reason(result: RewriteResult, rule: str, precondition: str) -> str:
    """The reason of the one refusal of a rule on a precondition."""
    found = [e for e in result.refused if (e.rule, e.precondition) == (rule, precondition)]
    assert len(found) == 1, result.trace
    return found[0].reason
