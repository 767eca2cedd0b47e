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

#: Columns of each half of a pair: the rows that the tensor core takes at a time from sm_90 on.
HALF_COLUMNS = 64

#: Most steps of K in flight.
_DEEPEST = 8

#: Bytes of weights up to which a kernel is launched ahead of its predecessor's end: the microsecond
#: that this saves is lost again where programs of two large kernels are there at a time.
_EARLY_BYTES = 64 << 20

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


def takes_halves(target: Target, main_loop: str, item: int) -> bool:
    """Whether the halves of a pair are operands of their own of the tensor core."""
    return target.has_pdl and main_loop != "pointer" and item == 2


def choose_few_rows(
    plan: Plan,
    kernel: KernelPlan,
    rows: int,
    env: Mapping[str, int],
    target: Target,
    main_loop: str,
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
    if target.backend == "interpreter":
        config = _interpreted(shape, exact)
    else:
        config = _base(shape, target, main_loop)
    if exact:
        config = replace(config, block_k=min(config.block_k, 16), precision="exact")
    config = replace(config, block_k=min(config.block_k, max(16, power_of_two(shape.depth))))
    return _shared(config, shape, target)


def _base(shape: _Shape, target: Target, main_loop: str) -> TileConfig:
    block_m = max(16, power_of_two(shape.rows))
    if target.backend == "hip":
        return TileConfig(block_m, 64, 64, warps=4, stages=2)
    config = TileConfig(block_m, 64, 128, warps=4, stages=4)
    weight = shape.cols * (1 + shape.paired) * shape.depth * shape.item
    if target.has_pdl and weight <= _EARLY_BYTES:
        config = replace(config, pdl=True, ahead=256)
    if shape.item == 4:
        return replace(config, block_n=32 if not shape.paired else 64, block_k=16, stages=4)
    if not target.has_pdl:
        return _fitted(config, shape.item, target.shared_limit // 2)
    return _fitted(_streaming(config, shape, target, main_loop), shape.item, target.shared_limit)


def _streaming(config: TileConfig, shape: _Shape, target: Target, main_loop: str) -> TileConfig:
    """Tiles for 16-bit operands from sm_90 on (measured on an H200; docs/performance.md).

    Where K is not shared all programs are there at a time, two on a multiprocessor at most, so that
    no few tiles come last: wider tiles where there are many of them, or where x is so tall that two
    narrow ones would have few steps in flight. A multiprocessor that few programs reach has more
    steps in flight for each. One program shares a tile's K on each multiprocessor: two of them on
    one would leave another idle, so it takes more room than half.
    """
    tiles = -(-shape.cols // 64)
    wide = tiles > 2 * target.sms or (tiles > target.sms and config.block_m > 16)
    if main_loop == "pointer":  # rows that nothing asynchronous can load
        if config.block_m == 16:
            return replace(config, block_k=256 if tiles <= target.sms else 128)
        return replace(config, block_n=128) if wide and not shape.paired else config
    if shape.paired:
        config, programs = replace(config, block_n=2 * HALF_COLUMNS), tiles
    else:
        config, programs = (replace(config, block_n=128), tiles // 2) if wide else (config, tiles)
    if _shares(shape, tiles):
        return replace(config, stages=6 if config.block_m == 16 else 4)
    room = target.shared_limit // min(2, -(-programs // target.sms)) - 2048
    if 3 * _stage_bytes(config, shape.item) > room:
        config = replace(config, block_k=config.block_k // 2)
    most = 4 if 2 * programs > target.sms else _DEEPEST
    return replace(config, stages=min(most, room // _stage_bytes(config, shape.item)))


def _fitted(config: TileConfig, item: int, limit: int) -> TileConfig:
    """The configuration with as many stages, then as deep a step, as shared memory holds."""
    while config.stages * _stage_bytes(config, item) > limit - 2048:
        if config.stages > 2:
            config = replace(config, stages=config.stages - 1)
        elif config.block_k > 32:
            config = replace(config, block_k=config.block_k // 2)
        else:
            return config
    return config


def _shares(shape: _Shape, tiles: int) -> bool:
    """Whether K is shared: one program for each multiprocessor, with more in flight."""
    return shape.may_share and tiles <= MOST_SHARED_TILES


def _stage_bytes(config: TileConfig, item: int) -> int:
    """Shared memory of one step of K in flight."""
    return (config.block_m + config.block_n) * config.block_k * item


def _interpreted(shape: _Shape, exact: bool) -> TileConfig:
    width = min(128, max(16, power_of_two(shape.cols)))
    block_n = 2 * width if shape.paired else width
    return TileConfig(max(16, power_of_two(shape.rows)), block_n, 16 if exact else 64)


def _shared(config: TileConfig, shape: _Shape, target: Target) -> TileConfig:
    """The configuration with K shared by as many programs as the machine has room for."""
    width = config.block_n // 2 if shape.paired else config.block_n
    tiles = -(-shape.cols // width)
    steps = -(-shape.depth // config.block_k)
    if not _shares(shape, tiles):
        return config
    interpreted = target.backend == "interpreter"
    room = 2 * tiles if interpreted else target.sms
    fewest = 1 if interpreted else FEWEST_STEPS
    return replace(config, split=max(1, min(room // tiles, steps // fewest, 16)))
