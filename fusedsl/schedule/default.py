"""The deterministic default configuration of every kind of kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from fusedsl.fuse import KernelPlan, Plan, anchor_operands, is_pick
from fusedsl.ir import DType, Kind, Layout
from fusedsl.schedule.classes import ROW_CLASSES, row_class
from fusedsl.schedule.cluster import choose_cluster
from fusedsl.schedule.config import TileConfig
from fusedsl.schedule.few_rows import choose_few_rows
from fusedsl.schedule.hopper import applies, choose_hopper
from fusedsl.schedule.in_turn import choose_in_turn
from fusedsl.schedule.legality import EXACT_STEP, epilogue_tiles, shared_bytes
from fusedsl.schedule.ring import choose_ring
from fusedsl.schedule.rows import choose_rows
from fusedsl.schedule.signature import Extent
from fusedsl.schedule.sizes import power_of_two
from fusedsl.schedule.specialised import choose_specialised
from fusedsl.schedule.target import Target


def _samples(top: int) -> tuple[int, ...]:
    """Numbers of rows that stand for a class: its ends and its middle."""
    below = max((end for end in ROW_CLASSES if end < top), default=0)
    return tuple(dict.fromkeys((top, (below + 1 + top) // 2, below + 1)))


def choose(
    plan: Plan, kernel: KernelPlan, env: Mapping[str, int], target: Target, main_loop: str
) -> TileConfig:
    """The default configuration of a kernel. Depends on its rows through `row_class` alone."""
    rows = row_class(kernel.rows.bind(env))
    cols = max(1, kernel.cols.bind(env))
    fast = target.backend == "cuda" and _narrow_outputs(plan, kernel)
    if kernel.ring:
        return replace(choose_ring(plan, kernel, rows, env, target), fast=fast)
    if kernel.few_rows:
        return replace(choose_few_rows(plan, kernel, rows, env, target, main_loop), fast=fast)
    if kernel.in_turn:
        return replace(choose_in_turn(plan, kernel, env, target), fast=fast)
    if kernel.cluster:
        return replace(choose_cluster(plan, kernel, target), fast=fast)
    if kernel.specialised:
        return replace(choose_specialised(plan, kernel, env, target), fast=fast)
    if kernel.kind is Kind.GEMM:
        return replace(_gemm(plan, kernel, rows, cols, env, target, main_loop), fast=fast)
    if kernel.kind is Kind.ROW_REDUCTION:
        loaded = [plan.type_of(name) for name in kernel.reads]
        column_bytes = sum(t.dtype.bytes for t in loaded if t.layout is Layout.TILE)
        return replace(choose_rows(kernel, rows, cols, target, column_bytes), fast=fast)
    return replace(_pointwise(kernel, rows, cols, target), fast=fast)


def _narrow_outputs(plan: Plan, kernel: KernelPlan) -> bool:
    """Whether every tile written or reduced is 16 bits wide: approximations then do not show."""
    reduced = [n.inputs[0] for n in kernel.steps if "tiles" in n.attr_map or is_pick(n)]
    written = [name for name in kernel.writes if name not in kernel.states_left]
    tiles = [plan.type_of(v) for v in (*written, *reduced)]
    return all(t.dtype is not DType.FP32 for t in tiles if t.layout is Layout.TILE)


# projections -----------------------------------------------------------------------------------
#: (block_m, block_n, block_k, warps, stages, relative speed of the inner loop)
_AMPERE_16BIT = (
    (128, 128, 32, 8, 3, 1.00),
    (128, 64, 32, 4, 3, 0.85),
    (64, 64, 32, 4, 4, 0.65),
)
_CDNA_16BIT = ((128, 128, 32, 4, 2, 1.00), (64, 64, 32, 4, 2, 0.6))
#: Where an epilogue moves so many tiles that nothing else fits.
_SMALLEST = TileConfig(16, 32, 16, stages=2)
_FP32 = ((64, 64, EXACT_STEP, 8, 3, 1.00), (32, 64, EXACT_STEP, 4, 3, 0.7))


def _gemm(
    plan: Plan,
    kernel: KernelPlan,
    rows: int,
    cols: int,
    env: Mapping[str, int],
    target: Target,
    main_loop: str,
) -> TileConfig:
    assert kernel.anchor is not None
    operand = plan.type_of(anchor_operands(kernel.anchor)[0])
    tiles = epilogue_tiles(plan, kernel, main_loop)
    depth = max(1, operand.cols.bind(env))
    exact = operand.dtype is DType.FP32
    precision = "exact" if exact else "ieee"
    if target.backend == "interpreter":
        config = _interpreted_gemm(rows, cols, depth, kernel.paired, exact)
        sides = 1 if kernel.paired or config.block_n <= 64 or exact else 2
        return replace(config, sides=sides, precision=precision)
    if applies(target, main_loop, operand.dtype.bytes):
        at = [Extent(sample, cols, depth) for sample in _samples(rows)]
        found = choose_hopper(plan, kernel, at, target, main_loop)
        if found is not None:
            return _short(found, rows, depth)
    table = _FP32 if exact else _table(target)
    programs = 0 if main_loop == "pointer" else target.sms
    options: list[tuple[float, TileConfig]] = []
    for block_m, block_n, block_k, warps, stages, speed in table:
        config = TileConfig(
            block_m,
            block_n,
            block_k,
            sides=1 if kernel.paired or block_n <= 64 or exact else 2,
            warps=warps,
            stages=stages,
            programs=programs,
            precision=precision,
        )
        fitted = _fitted(config, kernel.paired, operand.dtype.bytes, tiles, target.shared_limit)
        if fitted is not None:
            options.append((_time(fitted, speed, rows, cols, kernel.paired, target), fitted))
    if not options:
        smallest = replace(_SMALLEST, programs=programs, precision=precision)
        fitted = _fitted(smallest, kernel.paired, operand.dtype.bytes, tiles, target.shared_limit)
        if fitted is None:
            raise AssertionError(f"no legal tile configuration for {kernel.name}")
        return fitted
    return _short(min(options, key=lambda option: option[0])[1], rows, depth)


def _fitted(
    config: TileConfig, paired: bool, item: int, tiles: tuple[int, ...], limit: int
) -> TileConfig | None:
    """The configuration with as many stages as fit, or None where two do not."""
    while shared_bytes(config, paired, item, tiles) > limit:
        if config.stages == 2:
            return None
        config = replace(config, stages=config.stages - 1)
    return config


def _time(
    config: TileConfig, speed: float, rows: int, cols: int, paired: bool, target: Target
) -> float:
    """Relative time: waves of tiles, times the work of a tile, over the inner loop's speed."""
    width = config.block_n // 2 if paired else config.block_n
    tiles = -(-rows // config.block_m) * -(-cols // width)
    shallow = 1.0 if config.stages > 2 else 1.3
    return -(-tiles // target.sms) * config.block_m * config.block_n / speed * shallow


def _table(target: Target) -> tuple[tuple[int, int, int, int, int, float], ...]:
    return _CDNA_16BIT if target.backend == "hip" else _AMPERE_16BIT


def _short(config: TileConfig, rows: int, depth: int) -> TileConfig:
    """Few rows need no tall tile; a short K no long step."""
    block_m = min(config.block_m, max(16, power_of_two(rows)))
    block_k = min(config.block_k, max(16, power_of_two(depth)))
    shrunk = block_m < config.block_m or config.precision != "exact"
    warps = 4 if shrunk and block_m * config.block_n <= 64 * 128 else config.warps
    return replace(config, block_m=block_m, block_k=block_k, warps=warps)


def _interpreted_gemm(rows: int, cols: int, depth: int, paired: bool, exact: bool) -> TileConfig:
    width = min(256 if paired else 128, max(16, power_of_two(cols)))
    return TileConfig(
        block_m=min(128, max(16, power_of_two(rows))),
        block_n=2 * width if paired else width,
        block_k=min(EXACT_STEP if exact else 128, max(16, power_of_two(depth))),
    )


# elements --------------------------------------------------------------------------------------
#: Rows of a program that merges per-tile states and computes columns alone: one cache line each.
MERGED_ROWS = 32


def _pointwise(kernel: KernelPlan, rows: int, cols: int, target: Target) -> TileConfig:
    block_n = min(1024, power_of_two(cols))
    if target.backend == "interpreter":
        return TileConfig(min(128, power_of_two(rows)), block_n)
    block_m = max(1, min(4096 // block_n, power_of_two(rows)))
    if any(node.block.reduction is not None for node in kernel.steps):
        block_m = min(block_m, MERGED_ROWS)
    return TileConfig(block_m, block_n, warps=4)
