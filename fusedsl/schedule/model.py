"""A time model of persistent projection kernels; docs/performance.md says how well it holds.

A multiprocessor with `share` programs is busy for the longer of two times. It multiplies at the
rate of the tensor cores (or of the L2 cache, if tiles are small) through all tiles that fall to it.
And each program works through its own tiles: K in steps that wait for loads in flight, then the
epilogue, of which the next tile's loads hide a part. Device memory bounds the whole.
"""

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
    bytes per element of the product that the epilogue reads and writes; `steps` is how many nodes
    it computes."""

    rows: int
    cols: int
    depth: int
    item: int
    moved: float
    steps: int

    @staticmethod
    def of(plan: Plan, kernel: KernelPlan, extent: Extent) -> Work:
        """The work of a kernel at an extent."""
        halves = 2 if kernel.paired else 1
        moved = sum(moved_tiles(plan, kernel)) / halves
        item = operand_bytes(plan, kernel)
        return Work(extent.rows, halves * extent.cols, extent.depth, item, moved, len(kernel.steps))


@dataclass(frozen=True)
class Machine:
    """Coefficients of an architecture; times in microseconds, rates in bytes per microsecond.

    Fields:
        flops: multiplications and additions of a multiprocessor in a microsecond, 16-bit operands.
        cached: what a multiprocessor loads from the L2 cache.
        memory: device memory.
        latency, slack: a step waits `latency / (stages - 1 + slack)` for its loads.
        epilogue: of every tile; per_byte: of every byte it moves; per_value: of every value where
            it computes something.
        exposed, exposed_shared: the share of an epilogue that no main loop hides, with one program
            on a multiprocessor and with several.
        launch: of every kernel.
        efficiency: share of `flops` that a main loop reaches, by (block_m, block_n, warps).
        other: the same for shapes that are not listed.
    """

    flops: float
    cached: float
    memory: float
    latency: float
    slack: float
    epilogue: float
    per_byte: float
    per_value: float
    exposed: float
    exposed_shared: float
    launch: float
    efficiency: dict[tuple[int, int, int], float]
    other: float


#: Fitted to measurements on an H200 (`benchmarks/results/tiles.json`).
H200 = Machine(
    flops=6.55e6,
    cached=90e3,
    memory=2.5e6,
    latency=0.31,
    slack=0.3,
    epilogue=1.9,
    per_byte=2e-5,
    per_value=0.0,
    exposed=1.0,
    exposed_shared=1.0,
    launch=3.1,
    efficiency={
        (128, 256, 8): 0.82,
        (256, 128, 8): 0.80,
        (128, 128, 8): 0.78,
        (128, 128, 4): 0.80,
        (64, 256, 4): 0.78,
        (64, 128, 4): 0.75,
        (128, 64, 4): 0.72,
        (64, 64, 4): 0.68,
        (64, 32, 4): 0.50,
    },
    other=0.4,
)


def gemm_time(config: TileConfig, work: Work, target: Target, machine: Machine = H200) -> float:
    """Predicted microseconds. A pointer loop counts as one that keeps every program resident."""
    share = max(1, -(-config.programs // target.sms))
    tiles = -(-work.rows // config.block_m) * -(-work.cols // config.block_n)
    busiest = -(-tiles // target.sms)
    own = -(-tiles // (target.sms * share))
    size = config.block_m * config.block_n
    speed = machine.efficiency.get((config.block_m, config.block_n, config.warps), machine.other)
    multiply = 2 * size * config.block_k * work.item / 2 / (machine.flops * speed)
    load = (config.block_m + config.block_n) * config.block_k * work.item / machine.cached
    wait = machine.latency / (config.stages - 1 + machine.slack)
    steps = -(-work.depth // config.block_k)
    epilogue = machine.epilogue + size * work.moved * machine.per_byte
    epilogue += size * machine.per_value if work.steps > 1 else 0.0
    exposed = machine.exposed if share == 1 else machine.exposed_shared
    rate = max(multiply, load)
    together = busiest * steps * rate + ((busiest - 1) * exposed + 1) * epilogue
    alone = own * steps * max(rate, wait)
    alone += ((own - 1) * (exposed if share == 1 else 1.0) + 1) * epilogue
    bytes_moved = work.depth * (work.rows + work.cols) * work.item
    bytes_moved += work.rows * work.cols * work.moved
    computed = machine.launch + machine.latency + max(together, alone)
    streamed = machine.launch + bytes_moved / machine.memory
    return (computed**4 + streamed**4) ** 0.25
