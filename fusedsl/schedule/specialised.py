"""Specialised projections: where they are made, and how they are tiled.

They take the statistic of the rows that they stream, which costs them next to nothing, where a
kernel of its own would cost a launch and a read of the rows (measured on an H200;
docs/performance.md).
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import replace

from fusedsl.fuse import KernelPlan, Plan, anchor_operands
from fusedsl.schedule.classes import row_class
from fusedsl.schedule.config import TileConfig
from fusedsl.schedule.target import Target

#: The release of triton whose Gluon they are written in.
_RELEASE = "3.6."

#: Tile and step of K: two groups of warps multiply 64 rows each.
TILE_M, TILE_N, STEP = 128, 256, 64

#: Fewest rounds of tiles on every multiprocessor: fewer leave much of the last one idle.
ROUNDS = 2

#: The least share of the tiles' room, over all rounds, that the product fills.
_FILLED = 0.8

#: Rates of an H200 for the rule alone: bytes and operations in a microsecond; a launch in
#: microseconds.
_MEMORY, _FLOPS, _LAUNCH = 4.2e6, 700e6, 3.0

#: Rows of tiles that are taken together, and how much more than the fewest operands these may read.
_GROUPS, _ENOUGH = (8, 12, 16, 24), 1.03

#: The share of the projections' time that a kernel of statistics must cost to be taken along.
_WORTH = 0.012


@functools.cache
def has_gluon() -> bool:
    """Whether this process's triton has the Gluon that they are written in."""
    try:
        release = importlib.metadata.version("triton").startswith(_RELEASE)
        return release and importlib.util.find_spec("triton.experimental.gluon") is not None
    except (ImportError, importlib.metadata.PackageNotFoundError):
        return False


def may_specialise(target: Target) -> bool:
    """Whether kernels can be specialised on a target."""
    return target.name == "sm_90" and target.main_loop == "tma" and has_gluon()


def pays(
    plan: Plan,
    statistic: KernelPlan,
    readers: Sequence[KernelPlan],
    env: Mapping[str, int],
    target: Target,
) -> bool:
    """Whether its readers had better take a row kernel's statistic along. Depends on the rows
    through their class alone."""
    if not readers or not all(fills(plan, kernel, env, target) for kernel in readers):
        return False
    (read,) = statistic.reads
    kind = plan.type_of(read)
    rows = row_class(statistic.rows.bind(env))
    passed = _LAUNCH + kind.dtype.bytes * rows * kind.cols.bind(env) / _MEMORY
    return passed > _WORTH * sum(_multiplied(plan, kernel, env) for kernel in readers)


def extent_of(plan: Plan, kernel: KernelPlan, env: Mapping[str, int]) -> tuple[int, int, int]:
    """Rows of the class, columns of the product, and depth."""
    assert kernel.anchor is not None
    cols = max(1, kernel.cols.bind(env)) * (2 if kernel.paired else 1)
    depth = max(1, plan.type_of(anchor_operands(kernel.anchor)[0]).cols.bind(env))
    return row_class(kernel.rows.bind(env)), cols, depth


def _multiplied(plan: Plan, kernel: KernelPlan, env: Mapping[str, int]) -> float:
    """Microseconds of the product."""
    rows, cols, depth = extent_of(plan, kernel, env)
    return 2 * rows * cols * depth / _FLOPS


def tensor_maps_express(kernel: KernelPlan, cols: int, depth: int) -> bool:
    """Whether rows of the operands and of the result are of whole 16 bytes."""
    width = cols // 2 if kernel.paired else cols
    return width % 8 == 0 and depth % 8 == 0


def fills(plan: Plan, kernel: KernelPlan, env: Mapping[str, int], target: Target) -> bool:
    """Whether tiles keep all multiprocessors busy, and tensor maps express the rows."""
    rows, cols, depth = extent_of(plan, kernel, env)
    if not tensor_maps_express(kernel, cols, depth):
        return False
    tiles = -(-rows // TILE_M) * -(-cols // TILE_N)
    rounds = -(-tiles // target.sms)
    used = rows * cols / (rounds * target.sms * TILE_M * TILE_N)
    return tiles >= ROUNDS * target.sms and used > _FILLED


def choose_specialised(
    plan: Plan, kernel: KernelPlan, env: Mapping[str, int], target: Target
) -> TileConfig:
    """Their configuration; `warps` are those of a group."""
    _, cols, _ = extent_of(plan, kernel, env)
    group = group_of(cols, TILE_N, target.sms)
    return TileConfig(TILE_M, TILE_N, STEP, warps=4, stages=4, group_m=group, programs=target.sms)


def group_of(cols: int, block_n: int, tiles: int) -> int:
    """Rows of tiles taken together: the fewest with which `tiles` at a time read about as few
    operands as they can."""
    across = -(-cols // block_n)

    def read(group: int) -> float:
        """Rows of both operands."""
        return max(group, tiles / across) * TILE_M + min(across, tiles / group) * block_n

    least = min(map(read, _GROUPS))
    return next(group for group in _GROUPS if read(group) <= _ENOUGH * least)


def variants(default: TileConfig) -> list[TileConfig]:
    """Configurations worth timing."""
    return [replace(default, group_m=group) for group in (4, *_GROUPS)]


def specialised_problem(config: TileConfig, target: Target) -> str | None:
    """Why a specialised projection cannot have a configuration, or None if it can."""
    return misfit(config, target, TILE_N, specialised_bytes(config))


def misfit(config: TileConfig, target: Target, width: int, used: int) -> str | None:
    """Why groups of four warps cannot take tiles so, or None if they can: `width` is that of a
    tile, `used` is the shared memory in bytes."""
    if not may_specialise(target):
        return f"no specialised projections on {target.name}"
    shape = (config.block_m, config.block_k, config.warps, config.sides)
    if shape != (TILE_M, STEP, 4, 1) or config.block_n != width:
        return f"a tile of {config.block_n} columns and {shape}"
    if config.programs != target.sms or config.group_m < 1 or config.precision != "ieee":
        return f"{config.programs} programs, precision {config.precision}"
    if config.stages < 2 or used > target.shared_limit:
        return f"{used} of {target.shared_limit} bytes of shared memory"
    return None


def specialised_bytes(config: TileConfig) -> int:
    """Shared memory in bytes, all of 16-bit values: the stages and two barriers for each, and two
    buffers of 64 x 64 in which each group stages what it stores."""
    return ring_bytes(config) + 2 * 2 * 64 * 64 * 2 + 1024


def ring_bytes(config: TileConfig) -> int:
    """Bytes of the stages and of two barriers for each."""
    return config.stages * ((config.block_m + config.block_n) * config.block_k * 2 + 16)
