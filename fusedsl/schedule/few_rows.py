"""The default configuration of a projection of few rows: how its weights stream by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from fusedsl.fuse import KernelPlan, Plan, anchor_operands
from fusedsl.ir import DType
from fusedsl.schedule.config import TileConfig
from fusedsl.schedule.sizes import power_of_two
from fusedsl.schedule.target import Target

#: The most tiles of a kernel whose K is shared: each has a counter (`codegen.COUNTERS`).
MOST_SHARED_TILES = 1024

#: Fewest steps of K that are worth a program of their own.
FEWEST_STEPS = 4


@dataclass(frozen=True)
class _Shape:
    """What a configuration depends on. `depth` is K, `item` the operands' bytes per element."""

    rows: int
    cols: int
    depth: int
    item: int
    paired: bool
    may_share: bool


def choose_few_rows(
    plan: Plan, kernel: KernelPlan, rows: int, env: Mapping[str, int], target: Target
) -> TileConfig:
    """The configuration of a projection of at most `rows` rows (a row class).

    Enough programs to keep every multiprocessor's share of the memory bandwidth in flight: where
    there are fewer tiles of columns than that, several programs share a tile's K.
    """
    assert kernel.anchor is not None
    operand = plan.type_of(anchor_operands(kernel.anchor)[0])
    first = next(k for k in plan.kernels if k.few_rows)
    shape = _Shape(
        rows,
        max(1, kernel.cols.bind(env)),
        max(1, operand.cols.bind(env)),
        operand.dtype.bytes,
        kernel.paired,
        kernel.name != first.name,
    )
    exact = operand.dtype is DType.FP32
    config = _interpreted(shape, exact) if target.backend == "interpreter" else _base(shape, target)
    if exact:
        config = replace(config, block_k=min(config.block_k, 16), precision="exact")
    config = replace(config, block_k=min(config.block_k, max(16, power_of_two(shape.depth))))
    return _shared(config, shape, target)


def _base(shape: _Shape, target: Target) -> TileConfig:
    block_m = max(16, power_of_two(shape.rows))
    if target.backend == "hip":
        return TileConfig(block_m, 64, 64, warps=4, stages=2)
    config = TileConfig(block_m, 64, 128, warps=4, stages=4, pdl=True)
    if target.has_pdl:
        config = replace(config, ahead=256)
    if shape.item == 4:
        return replace(config, block_n=32 if not shape.paired else 64, block_k=16, stages=4)
    while _shared_bytes(config, shape.item) > target.shared_limit // 2 and config.stages > 2:
        config = replace(config, stages=config.stages - 1)
    return config


def _shared_bytes(config: TileConfig, item: int) -> int:
    return config.stages * (config.block_m + config.block_n) * config.block_k * item


def _interpreted(shape: _Shape, exact: bool) -> TileConfig:
    width = min(128, max(16, power_of_two(shape.cols)))
    block_n = 2 * width if shape.paired else width
    return TileConfig(max(16, power_of_two(shape.rows)), block_n, 16 if exact else 64)


def _shared(config: TileConfig, shape: _Shape, target: Target) -> TileConfig:
    """The configuration with K shared by as many programs as the machine has room for."""
    width = config.block_n // 2 if shape.paired else config.block_n
    tiles = -(-shape.cols // width)
    steps = -(-shape.depth // config.block_k)
    if not shape.may_share or tiles > MOST_SHARED_TILES:
        return config
    interpreted = target.backend == "interpreter"
    room = 2 * tiles if interpreted else 2 * target.sms
    fewest = 1 if interpreted else FEWEST_STEPS
    return replace(config, split=max(1, min(room // tiles, steps // fewest, 16)))
