"""Rows that clusters of programs share: where long rows are taken so, and how they are tiled.

Each program of a cluster has its part of a row in shared memory, where loads arrive without
registers, and tells the others its statistics there (measured on an H200; docs/performance.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fusedsl.fuse import KernelPlan, Plan, is_reduction
from fusedsl.ir import Layout, Node
from fusedsl.schedule.config import TileConfig
from fusedsl.schedule.rows import is_shared
from fusedsl.schedule.sizes import PER_THREAD, REGISTERS, RESERVED
from fusedsl.schedule.specialised import may_specialise
from fusedsl.schedule.target import Target

#: Rows of so many columns or more are taken so, and all that would be shared otherwise
#: (`rows.is_shared`).
CLUSTER_COLUMNS = 65536

#: Programs of a large cluster are more than this: it is not portable, and needs so many
#: multiprocessors close together as a whole device has.
_LARGE, _WHOLE_DEVICE = 8, 100

#: The most programs of a cluster.
MOST_PROGRAMS = 16

#: Columns of a part, the widest first.
_PARTS = (16384, 8192, 4096)

#: A cluster lies on multiprocessors that lie together: so many at least, on most of a device.
#: Clusters that leave too many of them idle, or too many threads without a column, do not pay.
_TOGETHER, _FILLED = 16, 0.7

#: Columns of a thread, and threads of a multiprocessor, where a cluster takes one row, in any body
#: and in a light one whose parts are whole; and where it stays, with the parts of its ring, of one
#: tile and of two.
_COLUMNS, _THREADS, _THREADS_WHOLE = 64, 768, 1024
_COLUMNS_STAYS, _THREADS_STAY, _STAGES = 32, 512, {1: 4, 2: 3}

#: Columns of a thread at a time: as many as fit in its registers, and no more than this.
_PIECE = 32

#: A body that takes no more words of a column than this, and no more operations on it, takes all
#: columns at a time, if it has row vectors: they come ahead of the statistics then.
_LIGHT_WORDS, _LIGHT_OPERATIONS = 2, 4

#: Columns that a thread loads at a time: 16 bytes. Those that a warp loads: a copy of 512 bytes.
_VECTOR, _COPY = 8, 256

#: Bytes of a unit of shared memory: one state of all warps, 4 bytes each, or all barriers, 8 each.
_UNIT = 1024

#: Slots of states of a cluster that stays (`codegen/cluster.py` says why so many).
_SLOTS = 4


def pays_to_stay(plan: Plan, kernel: KernelPlan) -> bool:
    """Whether a cluster had better stay and take row after row: its row vectors, which it reads
    once then, are more than half of the bytes of a row, or it is a large one that has any and takes
    more registers than a light body."""
    moved = _bytes_of_column(plan, kernel, Layout.TILE)
    vectors = _bytes_of_column(plan, kernel, Layout.ROW)
    room = REGISTERS // _THREADS_STAY // _COLUMNS_STAYS
    parts = -(-kernel.cols.factor // _PARTS[0])
    large = parts > _LARGE and vectors > 0 and _filled(parts, 1) >= _FILLED
    fits = words_of_column(plan, kernel) <= room
    return fits and (2 * vectors > moved or (large and not _is_light(plan, kernel)))


def _is_light(plan: Plan, kernel: KernelPlan) -> bool:
    """Whether a body has row vectors, and registers for all columns of a thread at a time."""
    vectors = _bytes_of_column(plan, kernel, Layout.ROW)
    words = words_of_column(plan, kernel)
    return vectors > 0 and words <= _LIGHT_WORDS and _operations(kernel) <= _LIGHT_OPERATIONS


def _operations(kernel: KernelPlan) -> float:
    """Operations on each value of a tile."""
    return sum(n.block.flops for n in kernel.steps if n.type.layout is Layout.TILE)


def has_room_to_widen(plan: Plan, kernel: KernelPlan) -> bool:
    """Whether there are registers for a row vector of 16 bits in fp32, where a cluster stays: one
    tile is loaded, and little is done to it."""
    return len(plan.tiles_read(kernel)) == 1 and _operations(kernel) <= _LIGHT_OPERATIONS


def _bytes_of_column(plan: Plan, kernel: KernelPlan, layout: Layout) -> int:
    """Bytes that are read and written of each column of values that lie so."""
    types = [plan.type_of(name) for name in (*kernel.reads, *kernel.writes)]
    return sum(t.dtype.bytes for t in types if t.layout is layout)


def pays_in_cluster(plan: Plan, kernel: KernelPlan, target: Target) -> bool:
    """Whether clusters had better share rows."""
    cols = kernel.cols
    if cols.symbol is not None or cols.factor % _VECTOR:
        return False
    if cols.factor < CLUSTER_COLUMNS and not is_shared(kernel):
        return False
    config = choose_cluster(plan, kernel, target)
    used = _used(config, cols.factor, target)
    return used >= _FILLED and cluster_problem(plan, kernel, config, target) is None


def _used(config: TileConfig, cols: int, target: Target) -> float:
    """Which share of a device's threads has columns."""
    threads = _THREADS_STAY if config.programs else _THREADS
    per_sm = max(1, threads // (config.warps * target.warp_size))
    return cols / (config.parts * config.block_n) * _filled(config.parts, per_sm)


def _filled(parts: int, per_sm: int) -> float:
    """Which share of the programs of multiprocessors that lie together are in clusters."""
    slots = per_sm * _TOGETHER
    return slots // parts * parts / slots


def words_of_column(plan: Plan, kernel: KernelPlan) -> int:
    """Registers that a column takes, roughly: one for each value of a tile that is live at a time,
    and the bytes of each row vector, in whole registers, of each of the two passes over a row that
    read it (what a compiler loads ahead; measured on what it spilled)."""
    steps = [step for step in kernel.steps if not is_reduction(step)]
    statistics = (step.name for step in kernel.steps if is_reduction(step))
    passes = (kernel.needed(statistics), steps)
    live = max(_most_live(plan, made) for made in passes)
    total = 0
    for name in kernel.reads:
        if plan.type_of(name).layout is Layout.ROW:
            times = sum(any(name in step.inputs for step in made) for made in passes)
            total += -(-times * plan.type_of(name).dtype.bytes // 4)
    return live + total


def _most_live(plan: Plan, steps: Sequence[Node]) -> int:
    """The most values of tiles that are live at a time; those that a statistic sums among them."""
    last = {name: i for i, step in enumerate(steps) for name in step.inputs}
    live: set[str] = set()
    most = 0
    for i, step in enumerate(steps):
        live |= {name for name in step.inputs if plan.type_of(name).layout is Layout.TILE}
        most = max(most, len(live))
        live = {name for name in live if last[name] > i}
        reduction = step.block.reduction
        sums = len(reduction.identity) if reduction is not None else 0
        made = [r.name for r in step.results if r.type.layout is Layout.TILE]
        most = max(most, len(live) + sums + len(made))
        live |= {name for name in made if last.get(name, -1) > i}
    return most


def choose_cluster(plan: Plan, kernel: KernelPlan, target: Target) -> TileConfig:
    """Their configuration; `stages` are the parts of a ring, `programs` a persistent grid's."""
    found = [_config(plan, kernel, width, target) for width in _PARTS]
    fits = [c for c in found if c.parts <= MOST_PROGRAMS] or found[:1]
    return max(fits, key=lambda config: _used(config, kernel.cols.factor, target))


def _config(plan: Plan, kernel: KernelPlan, width: int, target: Target) -> TileConfig:
    stays, light = pays_to_stay(plan, kernel), _is_light(plan, kernel)
    columns = _COLUMNS_STAYS if stays else _COLUMNS
    warps = width // (columns * target.warp_size)
    whole = light and kernel.cols.factor % width == 0
    threads = _THREADS_STAY if stays else _THREADS_WHOLE if whole else _THREADS
    per_sm = max(1, threads // (warps * target.warp_size))
    config = TileConfig(1, width, warps=warps, parts=-(-kernel.cols.factor // width))
    if stays:
        stages = _STAGES[len(plan.tiles_read(kernel))]
        config = replace(config, stages=stages, programs=per_sm * target.sms)
    registers = REGISTERS // (per_sm * warps * target.warp_size) // 8 * 8
    registers = min(PER_THREAD // 8 * 8, registers)
    sides = 1
    if not stays and not light:
        sides, needed = columns // _PIECE, words_of_column(plan, kernel)
        while sides < columns // _VECTOR and columns // sides * needed > registers:
            sides *= 2
    programs = config.programs // config.parts * config.parts
    return replace(config, programs=programs, registers=registers, sides=sides)


def cluster_variants(
    plan: Plan, kernel: KernelPlan, default: TileConfig, target: Target
) -> list[TileConfig]:
    """Configurations worth timing."""
    found = [default, *(_config(plan, kernel, width, target) for width in _PARTS)]
    if default.programs:
        found += [replace(default, stages=default.stages + change) for change in (-1, 1)]
    else:
        found += [replace(default, sides=default.sides * 2)]
    return [config for config in found if cluster_problem(plan, kernel, config, target) is None]


def cluster_problem(
    plan: Plan, kernel: KernelPlan, config: TileConfig, target: Target
) -> str | None:
    """Why clusters cannot share rows so, or None if they can."""
    cols, stays = kernel.cols.factor, pays_to_stay(plan, kernel)
    if not may_specialise(target):
        return f"no clusters on {target.name}"
    width = _COPY * config.warps
    piece = config.block_n // max(1, config.sides)
    power = config.warps > 0 and not config.block_n & (config.block_n - 1)
    whole = config.sides > 0 and not config.sides & (config.sides - 1) and piece % width == 0
    if config.block_m != 1 or not power or not whole or piece < max(width, 512):
        return f"parts of {config.block_m} x {config.block_n} for {config.warps} warps"
    if config.block_n > target.warp_size * width or (stays and config.sides != 1):
        return f"{config.sides} pieces of {config.block_n} columns for {config.warps} warps"
    most = MOST_PROGRAMS if target.sms >= _WHOLE_DEVICE else _LARGE
    if cols % _VECTOR or config.parts * config.block_n < cols or not 1 < config.parts <= most:
        return f"{config.parts} parts of {config.block_n} columns for {cols}"
    if stays != (config.stages > 1) or stays != (config.programs > 0) or config.stages > 8:
        return f"{config.stages} stages for {config.programs} programs"
    if config.programs % config.parts:
        return f"{config.programs} programs, {config.parts} to a row"
    barriers, states = (config.stages + 1) * config.warps, config.warps * config.parts
    if barriers > _UNIT // 8 or states > _UNIT // 4:
        return f"{config.stages} stages of {config.warps} warps"
    per_sm = max(1, -(-config.programs // target.sms))
    used = per_sm * (cluster_bytes(plan, kernel, config) + RESERVED)
    room = target.shared_limit + RESERVED
    if used > room:
        return f"{used} of {room} bytes of shared memory"
    registers = per_sm * config.warps * target.warp_size * (config.registers or PER_THREAD)
    return f"{registers} registers" if registers > REGISTERS else None


def cluster_bytes(plan: Plan, kernel: KernelPlan, config: TileConfig) -> int:
    """Shared memory in bytes: a ring of 16-bit values for each tile, the states, the barriers."""
    rows = len(plan.tiles_read(kernel)) * config.stages * config.block_n * 2
    states = sum(len(n.block.reduction.identity) for n in kernel.steps if n.block.reduction)
    slots = _SLOTS if config.programs else 1
    return rows + (slots * states + 1) * _UNIT
