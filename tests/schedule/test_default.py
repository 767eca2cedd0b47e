"""The default configuration of every kernel of every example, on every target."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest

from examples import SMALL, read, resized
from fusedsl.fuse import KernelPlan, Plan, anchor_operands
from fusedsl.ir import Kind
from fusedsl.schedule import (
    ALONE_COLUMNS,
    CHAINED_COLUMNS,
    LOOPED_OTHERS,
    MAX_THREADS,
    RESIDENT_COLUMNS,
    ROW_CLASSES,
    SHARED_COLUMNS,
    Target,
    TileConfig,
    choose,
    row_class,
)
from fusedsl.schedule.default import power_of_two
from fusedsl.schedule.legality import EXACT_STEP, epilogue_tiles, shared_bytes
from tests.fuse.harness import plan_of

TARGETS = [*map(Target.parse, Target.names()), Target.interpreter()]
ON_EACH = pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)


def loops(target: Target) -> tuple[str, ...]:
    """The main loops a target may be asked for."""
    return ("tma", "mixed", "pointer") if target.main_loop == "tma" else ("pointer",)


def environment(plan: Plan, rows: int) -> dict[str, int]:
    """Every symbol of the parameters is the number of rows."""
    return {s: rows for p in plan.graph.params for s in p.type.symbols}


def assert_legal(
    plan: Plan, kernel: KernelPlan, config: TileConfig, target: Target, main_loop: str
) -> None:
    """What Triton, the hardware and the skeletons ask of a configuration."""
    sizes = [config.block_m, config.block_n, config.warps]
    if kernel.kind is Kind.GEMM:
        sizes += [config.block_k, config.sides]
    assert all(size > 0 and size & (size - 1) == 0 for size in sizes), config
    assert config.warps * target.warp_size <= 1024
    if target.backend == "interpreter":
        assert not config.fast
    if kernel.kind is not Kind.GEMM:
        return
    assert kernel.anchor is not None
    assert min(config.block_m, config.block_n, config.block_k) >= 16, "tl.dot"
    assert config.block_n // config.sides >= 16
    if kernel.paired:
        assert config.block_n >= 32 and config.sides == 1
    operand = plan.type_of(anchor_operands(kernel.anchor)[0])
    tiles = epilogue_tiles(plan, kernel) if main_loop != "pointer" else ()
    used = shared_bytes(config, kernel.paired, operand.dtype.bytes, tiles)
    assert used <= target.shared_limit
    assert (config.precision == "exact") == (operand.dtype.bytes == 4)
    if config.precision == "exact":
        assert config.block_k <= EXACT_STEP
    if target.backend != "interpreter":
        persistent = main_loop != "pointer"
        assert config.programs % target.sms == 0
        assert (config.programs > 0) == persistent
        assert config.stages >= 2
    if main_loop != "pointer" and target.backend == "cuda":
        assert max(config.block_m, config.piece_width(kernel.paired)) <= 256, "box of a descriptor"
        assert config.block_k * operand.dtype.bytes >= 16
        assert all(config.piece_width(kernel.paired) * item >= 16 for item in tiles)


def every_config(
    plan: Plan, rows: int, target: Target
) -> Iterator[tuple[KernelPlan, str, TileConfig]]:
    """All kernels in all main loops."""
    for kernel in plan.kernels:
        for main_loop in loops(target) if kernel.kind is Kind.GEMM else ("pointer",):
            env = environment(plan, rows)
            yield kernel, main_loop, choose(plan, kernel, env, target, main_loop)


@pytest.fixture(scope="module")
def plans() -> dict[tuple[str, str], Plan]:
    return {
        (name, dtype): plan_of(read(name, dtype=dtype))
        for name in SMALL
        for dtype in ("bf16", "fp16", "fp32")
    }


@ON_EACH
def test_examples_are_legal_everywhere(plans: dict[tuple[str, str], Plan], target: Target) -> None:
    for plan in plans.values():
        for rows in (1, *ROW_CLASSES, 10**6):
            for kernel, main_loop, config in every_config(plan, rows, target):
                assert_legal(plan, kernel, config, target, main_loop)


@ON_EACH
def test_constant_within_a_row_class_and_deterministic(
    plans: dict[tuple[str, str], Plan], target: Target
) -> None:
    for plan in plans.values():
        bottom = 1
        for top in ROW_CLASSES:
            low = [c for _, _, c in every_config(plan, bottom, target)]
            high = [c for _, _, c in every_config(plan, top, target)]
            assert low == high
            bottom = top + 1


def test_row_classes() -> None:
    bottom = 1
    for top in ROW_CLASSES:
        assert row_class(bottom) == row_class(top) == top
        bottom = top + 1
    assert row_class(0) == ROW_CLASSES[0]
    assert row_class(ROW_CLASSES[-1] + 1) == row_class(2**31 - 1) == ROW_CLASSES[-1]


def test_power_of_two() -> None:
    assert [power_of_two(n) for n in (0, 1, 2, 3, 4, 5, 1023, 1025)] == [
        1, 1, 2, 4, 4, 8, 1024, 2048,
    ]  # fmt: skip


# odd shapes ------------------------------------------------------------------------------------
CHAIN = """
kernel chain(x: bf16[M, {k}], w: weight bf16[{n}, {k}], v: weight bf16[{k}, {n}])
    -> (y: bf16[M, {k}]) {{
  a = gelu(linear(rms_norm(x, eps=1e-6), w));
  y = linear(a, v) + x;
}}
"""
GATED = """
kernel gated(x: bf16[M, {k}], w: weight bf16[{n2}, {k}]) -> (y: bf16[M, {n}]) {{
  y = swiglu(linear(rms_norm(x, eps=1e-6), w));
}}
"""
ODD = [(1, 64), (64, 1), (50257, 768), (2880, 2880), (3584, 16384), (7, 5), (1, 1)]


@ON_EACH
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_odd_widths_are_legal(target: Target, dtype: str) -> None:
    for n, k in ODD:
        for text in (CHAIN, GATED):
            plan = plan_of(resized(text.format(n=n, k=k, n2=2 * n), {}, dtype=dtype))
            for rows in (1, 3, 4096):
                for kernel, main_loop, config in every_config(plan, rows, target):
                    assert_legal(plan, kernel, config, target, main_loop)


@ON_EACH
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("tiles", [1, 4, 8, 24])
def test_wide_epilogues_are_legal(target: Target, dtype: str, tiles: int) -> None:
    """Several residual tiles pass through shared memory beside the operands."""
    names = [f"r{i}" for i in range(tiles)]
    params = ", ".join(f"{n}: fp32[M, 4096]" for n in names)
    sums = " + ".join(["linear(x, w, out_dtype=fp32)", *names])
    plan = plan_of(f"""
kernel wide(x: {dtype}[M, 4096], w: weight {dtype}[4096, 4096], {params})
    -> (y: fp32[M, 4096]) {{
  y = {sums};
}}""")
    (kernel,) = plan.kernels
    assert epilogue_tiles(plan, kernel) == (4,) * (tiles + 1)
    for rows in ROW_CLASSES:
        for _, main_loop, config in every_config(plan, rows, target):
            assert_legal(plan, kernel, config, target, main_loop)


def test_the_streamed_operand_counts_where_the_epilogue_reads_it_too() -> None:
    plan = plan_of("""
kernel k(x: bf16[M, 64], w: weight bf16[64, 64]) -> (y: bf16[M, 64]) { y = linear(x, w) + x; }""")
    assert epilogue_tiles(plan, plan.kernels[0]) == (2, 2)
    plan = plan_of("""
kernel k(x: bf16[M, 64], w: weight bf16[64, 64]) -> (y: bf16[M, 64]) { y = linear(x, w); }""")
    assert epilogue_tiles(plan, plan.kernels[0]) == (2,)


@ON_EACH
def test_rows_beyond_the_resident_width_are_looped_or_shared(target: Target) -> None:
    text = "kernel k(x: bf16[M, {n}], g: bf16[{n}]) -> (y: bf16[M, {n}]) {{ y = {call}; }}"
    alone = target.backend == "interpreter"
    ends = (RESIDENT_COLUMNS, CHAINED_COLUMNS, ALONE_COLUMNS, SHARED_COLUMNS)
    resident = {"softmax(x * g)": CHAINED_COLUMNS, "rms_norm(x, g)": RESIDENT_COLUMNS}
    for n, call in product((*ends, *(end + 1 for end in ends), 100_003), resident):
        plan = plan_of(text.format(n=n, call=call))
        for rows in ROW_CLASSES:
            for kernel, main_loop, config in every_config(plan, rows, target):
                assert_legal(plan, kernel, config, target, main_loop)
                shared = call == "rms_norm(x, g)" and ALONE_COLUMNS < n <= SHARED_COLUMNS
                assert (config.parts > 1) == (shared and not alone)
                if n <= resident[call] or shared:
                    assert config.block_n * config.parts >= n, "the whole row"
                else:
                    assert config.block_n <= LOOPED_OTHERS


@pytest.mark.parametrize(
    ("call", "n", "warps"),
    [("rms_norm(x, g)", 256, 1), ("rms_norm(x, g)", 384, 2), ("layer_norm(x, g)", 256, 2)],
)
def test_four_short_rows_without_moments_are_one_warps(call: str, n: int, warps: int) -> None:
    text = f"kernel k(x: bf16[M, {n}], g: bf16[{n}]) -> (y: bf16[M, {n}]) {{ y = {call}; }}"
    plan = plan_of(text)
    config = choose(plan, plan.kernels[0], {"M": 4096}, Target.parse("sm_90"), "tma")
    assert (config.block_m, config.warps) == (4, warps)


@ON_EACH
def test_symbolic_columns(target: Target) -> None:
    plan = plan_of("kernel k(x: bf16[M, N]) -> (y: bf16[M, N]) { y = softmax(x); }")
    (kernel,) = plan.kernels
    for columns in (1, 33, 10**6):
        config = choose(plan, kernel, {"M": 5, "N": columns}, target, "pointer")
        assert config.block_n <= LOOPED_OTHERS
        assert config.warps * target.warp_size <= MAX_THREADS
        assert_legal(plan, kernel, config, target, "pointer")


def test_approximate_functions_only_where_they_do_not_show() -> None:
    target = Target.parse("sm_90")
    for dtype, fast in (("bf16", True), ("fp16", True), ("fp32", False)):
        plan = plan_of(read("llama_mlp", dtype=dtype))
        for kernel in plan.kernels[1:]:
            assert choose(plan, kernel, {"M": 64}, target, "tma").fast is fast
    plan = plan_of(read("llama_mlp"))
    assert not choose(plan, plan.kernels[1], {"M": 64}, Target.parse("gfx942"), "pointer").fast


def test_constants_are_what_the_skeletons_take() -> None:
    config = TileConfig(64, 256, 32, sides=2)
    assert config.constants()["BLOCK_N"] == 256 and config.constants()["PRECISION"] == "ieee"
    assert config.piece_width(paired=False) == 128
    assert TileConfig(64, 256, 32).piece_width(paired=True) == 128


@ON_EACH
def test_dependent_launches_are_dropped_where_the_target_has_none(target: Target) -> None:
    config = TileConfig(64, 64, warps=8, pdl=True)
    kept = config.on(target)
    has = target.name in ("sm_90", "sm_100", "sm_120")
    assert kept.pdl is has and kept.constants()["PDL"] is has
    assert kept.options == {"num_warps": 8, "num_stages": 1} | ({"launch_pdl": True} if has else {})
    assert "launch_pdl" not in TileConfig(64, 64).on(target).options


def test_few_rows_take_short_tiles() -> None:
    plan = plan_of(read("llama_mlp"))
    config = choose(plan, plan.kernels[2], {"M": 1}, Target.parse("sm_90"), "tma")
    assert config.block_m == 16
