"""Projections by two groups of warps in turn: where they are made, and how they are tiled.

While one group finishes its tile, the other multiplies: what an epilogue costs is hidden where it
takes no longer than the products of a tile (measured on an H200; docs/performance.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from fusedsl.fuse import KernelPlan, Plan
from fusedsl.ir import Layout
from fusedsl.schedule.config import TileConfig
from fusedsl.schedule.specialised import (
    ROUNDS,
    STEP,
    TILE_M,
    extent_of,
    group_of,
    misfit,
    ring_bytes,
    tensor_maps_express,
)
from fusedsl.schedule.target import Target

#: Widths of a tile: one with two buffers for the stores of each group, one with a single one.
NARROW, WIDE = 128, 192

#: Steps of K in flight.
_STAGES = 5

#: From which K on a tile is wide: it reads its operands less often and hides its epilogue anyway.
_DEEP = 3072

#: How much more of a row wide tiles may cover than narrow ones.
_PADDED = 1.03

#: Beside wide tiles registers hold no masks of single columns, and so many values of each row.
_PIECE, _WIDE_COLUMNS = 64, 1

#: Operations of a heavy epilogue on an element: an activation by an exponential or a tanh.
_HEAVY = 12


def pays_in_turn(plan: Plan, kernel: KernelPlan, env: Mapping[str, int], target: Target) -> bool:
    """Whether two groups had better take the tiles of a projection in turn. Depends on the rows
    through their class alone."""
    rows, cols, depth = extent_of(plan, kernel, env)
    if not tensor_maps_express(kernel, cols, depth):
        return False
    tiles = -(-rows // TILE_M) * -(-cols // NARROW)  # of which each group takes half
    return tiles >= 2 * ROUNDS * target.sms and _operations(kernel) >= _HEAVY


def _columns(plan: Plan, kernel: KernelPlan) -> list[str]:
    """What an epilogue reads of each row."""
    return [name for name in kernel.reads if plan.type_of(name).layout is Layout.COLUMN]


def _operations(kernel: KernelPlan) -> int:
    """Operations on an element that follow the products."""
    return sum(n.block.flops for n in kernel.steps if n.type.layout is Layout.TILE)


def choose_in_turn(
    plan: Plan, kernel: KernelPlan, env: Mapping[str, int], target: Target
) -> TileConfig:
    """Their configuration; `warps` are those of a group."""
    _, cols, depth = extent_of(plan, kernel, env)
    padded = {width: -(-cols // width) * width for width in (NARROW, WIDE)}
    wide = depth >= _DEEP and padded[WIDE] <= _PADDED * padded[NARROW] and cols % _PIECE == 0
    wide = wide and len(_columns(plan, kernel)) <= _WIDE_COLUMNS
    width = WIDE if wide else NARROW
    group = group_of(cols, width, 2 * target.sms)
    return TileConfig(
        TILE_M, width, STEP, warps=4, stages=_STAGES, group_m=group, programs=target.sms
    )


def in_turn_variants(default: TileConfig) -> list[TileConfig]:
    """Configurations worth timing."""
    changes = [(NARROW, 8), (WIDE, 8), (NARROW, 16), (WIDE, 16), (NARROW, 4), (WIDE, 4)]
    return [replace(default, block_n=width, group_m=group) for width, group in changes]


def in_turn_problem(config: TileConfig, target: Target) -> str | None:
    """Why such a projection cannot have a configuration, or None if it can."""
    return misfit(config, target, (NARROW, WIDE), in_turn_bytes(config))


def in_turn_bytes(config: TileConfig) -> int:
    """Shared memory in bytes: the stages with two barriers each, for each group its buffers of
    64 x 64 for the stores and a barrier, all of 16-bit values."""
    buffers = 1 if config.block_n == WIDE else 2
    return ring_bytes(config) + 2 * (buffers * 64 * 64 * 2 + 8) + 1024
