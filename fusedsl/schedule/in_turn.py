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

#: Columns of a tile.
TILE_N = 128

#: Steps of K in flight.
_STAGES = 5

#: Operations of a heavy epilogue on an element: an activation by an exponential or a tanh.
_HEAVY = 12


def pays_in_turn(plan: Plan, kernel: KernelPlan, env: Mapping[str, int], target: Target) -> bool:
    """Whether two groups had better take the tiles of a projection in turn. Depends on the rows
    through their class alone."""
    rows, cols, depth = extent_of(plan, kernel, env)
    if not tensor_maps_express(kernel, cols, depth):
        return False
    tiles = -(-rows // TILE_M) * -(-cols // TILE_N)  # of which each group takes half
    return tiles >= 2 * ROUNDS * target.sms and _operations(kernel) >= _HEAVY


def _operations(kernel: KernelPlan) -> int:
    """Operations on an element that follow the products."""
    return sum(n.block.flops for n in kernel.steps if n.type.layout is Layout.TILE)


def choose_in_turn(
    plan: Plan, kernel: KernelPlan, env: Mapping[str, int], target: Target
) -> TileConfig:
    """Their configuration; `warps` are those of a group."""
    _, cols, _ = extent_of(plan, kernel, env)
    group = group_of(cols, TILE_N, 2 * target.sms)
    return TileConfig(
        TILE_M, TILE_N, STEP, warps=4, stages=_STAGES, group_m=group, programs=target.sms
    )


def in_turn_variants(default: TileConfig) -> list[TileConfig]:
    """Configurations worth timing."""
    return [replace(default, group_m=group) for group in (8, 16, 4)]


def in_turn_problem(config: TileConfig, target: Target) -> str | None:
    """Why such a projection cannot have a configuration, or None if it can."""
    return misfit(config, target, TILE_N, in_turn_bytes(config))


def in_turn_bytes(config: TileConfig) -> int:
    """Shared memory in bytes: the stages with two barriers each, for each group its buffers of
    64 x 64 for the stores and a barrier, all of 16-bit values."""
    return ring_bytes(config) + 2 * (2 * 64 * 64 * 2 + 8) + 1024
