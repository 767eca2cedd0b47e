"""The configuration space: every legal configuration worth timing, best guess first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product

from fusedsl.fuse import KernelPlan, Plan
from fusedsl.ir import Kind
from fusedsl.schedule.cluster import cluster_variants
from fusedsl.schedule.config import TileConfig
from fusedsl.schedule.default import choose
from fusedsl.schedule.in_turn import in_turn_variants
from fusedsl.schedule.legality import (
    EXACT_STEP,
    epilogue_tiles,
    is_exact,
    operand_bytes,
    problem,
    resident,
    shared_bytes,
)
from fusedsl.schedule.model import Work, gemm_time
from fusedsl.schedule.ring import ring_variants
from fusedsl.schedule.signature import Extent
from fusedsl.schedule.sizes import power_of_two
from fusedsl.schedule.specialised import variants
from fusedsl.schedule.target import Target

#: Configurations of one tile shape among the candidates: a model that misjudges a shape must not
#: crowd out the others.
_PER_SHAPE = 3


def candidates(
    plan: Plan, kernel: KernelPlan, env: Mapping[str, int], target: Target, main_loop: str
) -> tuple[TileConfig, ...]:
    """Every configuration worth timing, without repetition, the best guess first.

    All of them are legal; the default is the first. The interpreter has the default alone.
    """
    default = choose(plan, kernel, env, target, main_loop)
    if target.backend == "interpreter":
        return (default,)
    extent = Extent.of(plan, kernel, env)
    if kernel.ring:
        every = ring_variants(plan, kernel, default, target)
    elif kernel.few_rows:
        every = _few_rows_space(plan, kernel, default, target, main_loop)
    elif kernel.in_turn:
        every = in_turn_variants(default)
    elif kernel.cluster:
        every = cluster_variants(plan, kernel, default, target)
    elif kernel.specialised:
        every = variants(default)
    elif kernel.kind is Kind.GEMM:
        work = Work.of(plan, kernel, extent)
        every = sorted(
            gemm_space(plan, kernel, work, target, main_loop),
            key=lambda config: gemm_time(config, work, target),
        )
        every = _varied(every)
    else:
        every = _row_space(plan, kernel, default, target)
    return tuple(dict.fromkeys([default, *(replace(c, fast=default.fast) for c in every)]))


def gemm_space(
    plan: Plan, kernel: KernelPlan, work: Work, target: Target, main_loop: str
) -> Iterator[TileConfig]:
    """Every legal configuration of a projection."""
    exact, item = is_exact(plan, kernel), operand_bytes(plan, kernel)
    tallest = max(16 if exact else 64, power_of_two(work.rows))
    heights = [m for m in (16, 32, 64, 128, 256) if m <= tallest]
    heights = [m for m in heights if m >= min(64, tallest)] or [tallest]
    depths = (EXACT_STEP,) if exact else tuple(64 * 2 // item * n for n in (1, 2))
    depths = depths if target.shared_limit > 100_000 and not exact else (depths[0],)
    tiles = epilogue_tiles(plan, kernel, main_loop)
    shapes = product(heights, (32, 64, 128, 256), depths, (4, 8), (2, 3, 4, 5), (4, 8, 16))
    for block_m, block_n, block_k, warps, stages, group in shapes:
        config = TileConfig(
            block_m,
            block_n,
            block_k,
            group_m=group,
            sides=1 if kernel.paired or block_n <= 64 or exact else 2,
            warps=warps,
            stages=stages,
            precision="exact" if exact else "ieee",
        )
        if main_loop == "pointer":
            if problem(plan, kernel, config, target, main_loop) is None:
                yield config
            continue
        most = resident(config, shared_bytes(config, kernel.paired, item, tiles), target)
        for share in range(1, min(most, 4) + 1):
            shared = replace(config, programs=share * target.sms)
            if problem(plan, kernel, shared, target, main_loop) is None:
                yield shared


def _varied(configs: list[TileConfig]) -> list[TileConfig]:
    """At most `_PER_SHAPE` of a tile shape first, the others behind them."""
    first: list[TileConfig] = []
    rest: list[TileConfig] = []
    seen: dict[tuple[int, int], int] = {}
    for config in configs:
        shape = (config.block_m, config.block_n)
        seen[shape] = seen.get(shape, 0) + 1
        (first if seen[shape] <= _PER_SHAPE else rest).append(config)
    return first + rest


def _row_space(
    plan: Plan, kernel: KernelPlan, default: TileConfig, target: Target
) -> list[TileConfig]:
    """Rows per program and warps around the default, nearest first."""
    found: list[tuple[int, TileConfig]] = []
    for rows, warps in product((-2, -1, 0, 1, 2), repeat=2):
        block_m, count = _scaled(default.block_m, rows), _scaled(default.warps, warps)
        config = replace(default, block_m=block_m, warps=count)
        if problem(plan, kernel, config, target, "pointer") is None:
            found.append((abs(rows) + abs(warps), config))
    return [config for _, config in sorted(found, key=lambda item: item[0])]


def _few_rows_space(
    plan: Plan, kernel: KernelPlan, default: TileConfig, target: Target, main_loop: str
) -> list[TileConfig]:
    """Widths, depths, programs that share K, stages and warps around the default, nearest first.

    A default whose K is not shared may have no room for partial sums: then it stays so.
    """
    splits = (-1, 0, 1) if default.split > 1 else (0,)
    widths = (-1, 0, 1) if default.split == 1 or kernel.cols.symbol is None else (0, 1)
    changes = product(widths, (-1, 0, 1), splits, (-1, 0, 1), (0, 1))
    found: list[tuple[int, TileConfig]] = []
    for wide, deep, split, more, warps in changes:
        config = replace(
            default,
            block_n=_scaled(default.block_n, wide),
            block_k=_scaled(default.block_k, deep),
            split=_scaled(default.split, split),
            stages=max(2, default.stages + more),
            warps=_scaled(default.warps, warps),
        )
        if problem(plan, kernel, config, target, main_loop) is None:
            found.append((sum(map(abs, (wide, deep, split, more, warps))), config))
    return [config for _, config in sorted(found, key=lambda item: item[0])]


def _scaled(value: int, doublings: int) -> int:
    return max(1, value << doublings if doublings >= 0 else value >> -doublings)
