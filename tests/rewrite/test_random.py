"""Random programs keep their meaning; rewriting is deterministic and comes to an end."""

from __future__ import annotations

from collections import Counter

import pytest

from fusedsl.rewrite import RULES, RewriteOptions, expand, rewrite
from tests.rewrite.harness import assert_same_meaning, fired
from tests.rewrite.random_graphs import Programs

BATCHES, EACH = 12, 30


@pytest.mark.parametrize("batch", range(BATCHES))
def test_random_programs(batch: int) -> None:
    for seed in range(batch * EACH, (batch + 1) * EACH):
        source = Programs(seed).graph()
        graph = expand(source)
        assert_same_meaning(source, graph, seed)
        options = RewriteOptions(verify_each=True, fp32_shift=seed % 2 == 0)
        result = rewrite(graph, options)
        assert_same_meaning(graph, result.graph, seed)
        again = rewrite(result.graph, options)
        assert again.graph == result.graph, f"seed {seed}: a second rewrite changes the graph"
        assert again.refused == result.refused


@pytest.mark.parametrize("batch", range(4))
def test_as_written_on_random_programs(batch: int) -> None:
    for seed in range(batch * EACH, (batch + 1) * EACH):
        graph = expand(Programs(seed).graph())
        result = rewrite(graph, RewriteOptions(numerics="as_written", verify_each=True))
        assert set(fired(result)) <= {"gated_pair", "statistics_in_producer"}
        assert_same_meaning(graph, result.graph, seed)


def test_deterministic() -> None:
    for seed in range(10):
        first = rewrite(expand(Programs(seed).graph()))
        second = rewrite(expand(Programs(seed).graph()))
        assert str(first.graph) == str(second.graph)
        assert first.trace == second.trace


def test_random_programs_reach_every_rule() -> None:
    count: Counter[str] = Counter()
    for seed in range(BATCHES * EACH // 2):
        count.update(fired(rewrite(expand(Programs(seed).graph()))))
    assert all(count[rule.name] >= 3 for rule in RULES), count
