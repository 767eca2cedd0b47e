"""The clocks: what they count, and that a sleep is seen."""

from __future__ import annotations

import time

import pytest
import torch

from fusedsl.frontend import parse
from fusedsl.ir import DType
from fusedsl.runtime.roofline import flops_by_dtype, least_bytes, limit
from fusedsl.runtime.timing import best_seconds, host_us, in_turn, side_by_side, wall_ms


def _sleeper(seconds: float):
    return lambda: time.sleep(seconds)


def test_medians_are_of_the_counted_calls() -> None:
    naps = iter([0.2, 0.002, 0.03, 0.004])
    assert 3 < wall_ms(lambda: time.sleep(next(naps)), "cpu", 3, uncounted=1) < 25
    naps = iter([0.1, 0.02, 0.003])
    assert 0.002 < best_seconds(lambda: time.sleep(next(naps)), "cpu", 2) < 0.018


def test_the_host_is_timed_for_each_call() -> None:
    assert 900 < host_us(_sleeper(1e-3), "cpu", batches=3, queued=2) < 20_000


@pytest.mark.gpu
def test_no_call_is_timed_while_the_host_still_queues_it() -> None:
    x = torch.zeros(1 << 10, device="cuda")

    def slow_to_queue() -> None:
        time.sleep(5e-4)
        x.zero_()

    times = side_by_side({"slow": slow_to_queue, "quick": x.zero_}, rounds=20)
    assert times["slow"] < 0.1, "half a millisecond is the host's"


def test_contenders_are_timed_in_turn_over_every_set() -> None:
    seen: list[str] = []

    def call(name: str, index: int):
        def run() -> str:
            seen.append(f"{name}{index}")
            time.sleep(1e-3 if name == "a" else 5e-3)
            return f"{name}{index}"

        return run

    ticks: list[None] = []
    contenders = {n: [call(n, i) for i in range(3)] for n in "ab"}
    turns = in_turn(contenders, "cpu", rounds=2, tick=lambda: ticks.append(None))
    assert len(ticks) == 2 * (2 + 1)
    assert turns.results == {"a": ["a0", "a1", "a2"], "b": ["b0", "b1", "b2"]}
    rounds = seen[12:]
    assert rounds[:6] == ["a0", "a1", "a2", "a0", "a0", "a0"], "cold, then warm"
    assert rounds[6:12] == ["b0", "b1", "b2", "b0", "b0", "b0"]
    for kind in ("cold_ms", "warm_ms"):
        a, b = (getattr(turns.times[n], kind) for n in "ab")
        assert 0.9 < a < b and b > 4.5


def test_what_a_program_needs_at_least() -> None:
    graph = parse(
        """kernel k(x: bf16[M, 64], z: fp32[M, 8], w: weight bf16[32, 64], v: weight fp32[8, 16])
            -> (y: bf16[M, 32], u: fp32[M, 16]) { y = linear(x, w); u = matmul(z, v); }"""
    )
    work = flops_by_dtype(graph, {"M": 10})
    assert work == {DType.BF16: 2 * 10 * 32 * 64, DType.FP32: 2 * 10 * 16 * 8}
    inputs = 2 * 10 * 64 + 4 * 10 * 8 + 2 * 32 * 64 + 4 * 8 * 16
    assert least_bytes(graph, {"M": 10}) == inputs + 2 * 10 * 32 + 4 * 10 * 16
    least = limit(graph, {"M": 10}, "cpu")
    assert least.ms == max(least.memory_ms, least.arithmetic_ms) > 0
    assert least.work == sum(work.values())


def test_weights_that_are_folded_once_are_no_work() -> None:
    graph = parse(
        """kernel k(x: bf16[M, 8], a: weight bf16[8, 8], b: weight bf16[8, 8])
            -> (y: bf16[M, 8]) { c = linear(a, b); y = linear(x, c); }"""
    )
    assert sum(flops_by_dtype(graph, {"M": 3}).values()) == 2 * 3 * 8 * 8


@pytest.mark.gpu
def test_a_cold_read_is_slower_than_a_warm_one() -> None:
    """16 MB lie in the L2 cache of a data-centre GPU; the host is not seen in either."""
    sets = [torch.randn(4 << 20, device="cuda") for _ in range(4)]
    turns = in_turn({"max": [lambda t=t: t.max() for t in sets]}, "cuda", rounds=9)
    times = turns.times["max"]
    assert times.warm_ms < times.cold_ms < 1.0
    slow = in_turn(
        {"slow": [lambda t=t: (time.sleep(2e-4), t.max()) for t in sets]}, "cuda", rounds=9
    )
    assert slow.times["slow"].host_us > 200
    assert slow.times["slow"].cold_ms < 0.15
