"""The configuration space: every candidate is legal, and legality says no where it must."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fusedsl.fuse import Plan, for_few_rows, has_few_rows
from fusedsl.ir import Kind
from fusedsl.schedule import Target, TileConfig, candidates, choose, family, problem, signature
from fusedsl.schedule.legality import resident, shared_bytes
from tests.fuse.harness import plan_of
from tests.schedule.test_default import TARGETS, assert_legal, environment, every_config

PROGRAM = """
kernel k(x: {dtype}[M, {k}], w: weight {dtype}[{n}, {k}], g: weight {dtype}[{n2}, {k}],
         r: {dtype}[M, {n}]) -> (a: {dtype}[M, {n}], b: {dtype}[M, {n}], c: {dtype}[M, {n}]) {{
  a = gelu(linear(x, w), approximate=tanh);
  b = linear(x, w) + r;
  c = swiglu(linear(x, g));
}}
"""
SIZES = st.one_of(st.integers(1, 300), st.integers(256, 40000), st.sampled_from([50257, 151936]))


def program(dtype: str, n: int, k: int) -> Plan:
    return plan_of(PROGRAM.format(dtype=dtype, n=n, n2=2 * n, k=k))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sampled_from(["bf16", "fp16", "fp32"]),
    SIZES,
    SIZES,
    st.one_of(st.integers(1, 64), st.integers(1, 40000)),
    st.sampled_from(TARGETS),
    st.sampled_from(["tma", "mixed", "pointer"]),
)
def test_every_candidate_is_legal(
    dtype: str, n: int, k: int, rows: int, target: Target, main_loop: str
) -> None:
    if target.main_loop == "pointer":
        main_loop = "pointer"
    plan = program(dtype, n, k)
    plan = (
        for_few_rows(plan) if rows <= 64 and has_few_rows(plan, environment(plan, rows)) else plan
    )
    for kernel in plan.kernels:
        loop = main_loop if kernel.kind is Kind.GEMM else "pointer"
        env = environment(plan, rows)
        found = candidates(plan, kernel, env, target, loop)
        assert found[0] == choose(plan, kernel, env, target, loop)
        assert len(set(found)) == len(found)
        assert found == candidates(plan, kernel, env, target, loop), "deterministic"
        for config in found:
            assert problem(plan, kernel, config, target, loop) is None
            if kernel.few_rows:
                assert config.programs == 0 and 1 <= config.split <= 16
                continue
            assert_legal(plan, kernel, config, target, loop)


def test_there_is_a_choice_on_every_gpu() -> None:
    plan = program("bf16", 4096, 4096)
    for target in TARGETS:
        for kernel in plan.kernels:
            found = candidates(plan, kernel, {"M": 4096}, target, target.main_loop)
            tiles = {(c.block_m, c.block_n) for c in found[:14]}
            assert (len(tiles) >= 3) == (target.backend != "interpreter"), (target, tiles)


def test_two_programs_share_a_multiprocessor_only_where_both_fit() -> None:
    target = Target.parse("sm_90")
    plan = program("bf16", 4096, 4096)
    kernel = next(k for k in plan.kernels if k.kind is Kind.GEMM and not k.paired)
    shared = [
        c for c in candidates(plan, kernel, {"M": 4096}, target, "tma") if c.programs > target.sms
    ]
    assert shared
    for config in shared:
        used = shared_bytes(config, False, 2, (2,))
        count = config.programs // target.sms
        # 228 KiB of a multiprocessor, 1 KiB of each program's share is the system's
        assert count * (used + 1024) <= 228 * 1024
        assert count <= resident(config, used, target)
        assert count * config.warps <= 64


GOOD = TileConfig(128, 128, 64, sides=2, warps=8, stages=3, programs=132)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"block_m": 96}, "power of two"),
        ({"warps": 3}, "power of two"),
        ({"warps": 64}, "threads"),
        ({"block_k": 8}, "below the 16"),
        ({"sides": 4}, "pieces"),
        ({"group_m": 0}, "counts"),
        ({"precision": "exact"}, "precision"),
        ({"precision": "tf32"}, "precision"),
        ({"stages": 0}, "stages"),
        ({"programs": 0}, "programs"),
        ({"stages": 7}, "shared memory"),
        ({"block_n": 256, "warps": 4}, "registers"),
        ({"block_m": 16, "block_n": 512, "block_k": 16}, "box"),
        ({"block_m": 2048, "block_n": 1024}, "too large"),
    ],
)
def test_what_is_not_legal(change: dict[str, object], word: str) -> None:
    plan = plan_of("""
kernel k(x: bf16[M, 64], w: weight bf16[64, 64]) -> (y: bf16[M, 64]) { y = linear(x, w); }""")
    target = Target.parse("sm_90")
    (kernel,) = plan.kernels
    assert problem(plan, kernel, GOOD, target, "tma") is None
    found = problem(plan, kernel, replace(GOOD, **change), target, "tma")  # type: ignore[arg-type]
    assert found is not None and word in found


def test_the_pointer_loop_has_one_program_per_tile() -> None:
    plan = program("bf16", 64, 64)
    target = Target.parse("sm_90")
    for kernel, main_loop, config in every_config(plan, 100, target):
        if kernel.kind is not Kind.GEMM:
            continue
        other = "tma" if main_loop == "pointer" else "pointer"
        assert problem(plan, kernel, config, target, other) is not None


def test_signatures_ignore_names_and_sizes_and_nothing_else() -> None:
    def of(text: str) -> list[str]:
        plan = plan_of(text)
        return [signature(plan, kernel) for kernel in plan.kernels]

    base = of("kernel a(x: bf16[M, 64], w: weight bf16[32, 64]) -> (y: bf16[M, 32]) "
              "{ y = leaky_relu(linear(x, w), slope=0.1); }")  # fmt: skip
    renamed = of("kernel b(h: bf16[T, 96], v: weight bf16[48, 96]) -> (out: bf16[T, 48]) "
                 "{ p = linear(h, v); out = leaky_relu(p, slope=0.1); }")  # fmt: skip
    assert base == renamed
    for change in (("0.1", "0.2"), ("bf16", "fp16"), ("leaky_relu(linear(x, w), slope=0.1)",
                                                     "linear(x, w)")):  # fmt: skip
        other = of("kernel a(x: bf16[M, 64], w: weight bf16[32, 64]) -> (y: bf16[M, 32]) "
                   "{ y = leaky_relu(linear(x, w), slope=0.1); }".replace(*change))  # fmt: skip
        assert other != base


def test_families() -> None:
    plan = program("bf16", 64, 64)
    names = {family(plan, kernel) for kernel in plan.kernels}
    assert "gemm bf16 paired tiles=2" in names
    assert {n for n in names if "tiles=2,2" in n}
