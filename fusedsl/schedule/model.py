"""A time model of projection kernels, fitted to measurements; see docs/performance.md."""

from __future__ import annotations

from dataclasses import dataclass

from fusedsl.fuse import KernelPlan, Plan
from fusedsl.schedule.config import TileConfig
from fusedsl.schedule.legality import moved_tiles, operand_bytes
from fusedsl.schedule.signature import Extent
from fusedsl.schedule.target import Target


@dataclass(frozen=True)
class Work:
    """What a projection kernel has to do. `cols` counts both halves of a paired one; `moved` is
    bytes per output element that the epilogue reads and writes."""

    rows: int
    cols: int
    depth: int
    item: int
    paired: bool
    moved: int

    @staticmethod
    def of(plan: Plan, kernel: KernelPlan, extent: Extent) -> Work:
        """The work of a kernel at an extent."""
        cols = 2 * extent.cols if kernel.paired else extent.cols
        moved = sum(moved_tiles(plan, kernel))
        item = operand_bytes(plan, kernel)
        return Work(extent.rows, cols, extent.depth, item, kernel.paired, moved)


def gemm_time(config: TileConfig, work: Work, target: Target) -> float:
    """Predicted seconds."""
    tiles = -(-work.rows // config.block_m) * -(-work.cols // config.block_n)
    share = max(1, config.programs // target.sms)
    waves = -(-tiles // (target.sms * share)) * share
    return waves * config.block_m * config.block_n * work.depth / config.stages**0.1
