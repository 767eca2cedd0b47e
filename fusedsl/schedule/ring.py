"""Rows in a ring: where long rows are taken so, and how they are tiled.

Several programs share a row, as in `rows`, but each has its part of a row in shared memory, where
loads arrive without registers: so many more rows are under way (measured on an H200;
docs/performance.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from fusedsl.fuse import KernelPlan, Plan, is_reduction
from fusedsl.ir import Layout, Node
from fusedsl.schedule.classes import row_class
from fusedsl.schedule.config import TileConfig
from fusedsl.schedule.rows import MOST_PARTS, SHARED_COLUMNS, is_chained, is_shared
from fusedsl.schedule.sizes import PER_THREAD, REGISTERS, RESERVED
from fusedsl.schedule.specialised import may_specialise
from fusedsl.schedule.target import Target

#: Rows of so many columns or more are taken so, of more than so many where one statistic depends on
#: another, and in either case all that would be shared otherwise (`rows.is_shared`).
RING_COLUMNS = 65536

#: Columns of a part, over all tiles that are loaded, its warps, the parts of a ring, and programs
#: of a multiprocessor.
_PART, _WARPS, _STAGES, _PER_SM = 8192, 8, 6, 2

#: Fewest rows of each group of programs: fewer leave the ring empty most of the time.
_TURNS = 2

#: The most that parts may cover of a row.
_PADDED = 1.1

#: Columns that a thread loads at a time: 16 bytes.
_VECTOR = 8


def ring_lag(stages: int) -> int:
    """Turns from the reduction of a row to its store; as many loads, or one more, are under way.
    One part of the ring is left for the row that is reduced."""
    return (stages - 1) // 2


def ring_slots(stages: int) -> int:
    """Rows whose states have words of their own at a time (`codegen/ring.py` says why so many)."""
    return 2 * ring_lag(stages) + 2


def pays_in_ring(plan: Plan, kernel: KernelPlan, env: Mapping[str, int], target: Target) -> bool:
    """Whether rows had better be taken in a ring. Depends on the rows through their class alone."""
    cols = kernel.cols
    if cols.symbol is not None or cols.factor % _VECTOR or cols.factor > SHARED_COLUMNS:
        return False
    narrow = cols.factor < RING_COLUMNS or (cols.factor == RING_COLUMNS and is_chained(kernel))
    if narrow and not is_shared(kernel):
        return False
    config = choose_ring(plan, kernel, target)
    groups = config.programs // config.parts
    covered = config.parts * config.block_n <= _PADDED * cols.factor
    if config.parts > target.warp_size:  # more words than lanes of a warp that asks for them
        return False
    columns = config.block_n // (config.warps * target.warp_size)
    if columns * words_of_column(plan, kernel) > config.registers:
        return False
    return covered and row_class(kernel.rows.bind(env)) >= _TURNS * groups > 0


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


def choose_ring(plan: Plan, kernel: KernelPlan, target: Target) -> TileConfig:
    """Their configuration; `stages` are the parts of a ring."""
    width = _PART // len(plan.tiles_read(kernel))
    default = TileConfig(1, width, warps=_WARPS, stages=_STAGES)
    return _shared(default, kernel.cols.factor, _PER_SM, target)


def _shared(config: TileConfig, cols: int, per_sm: int, target: Target) -> TileConfig:
    """The configuration with so many programs of a multiprocessor, and registers for them."""
    parts = -(-cols // config.block_n)
    registers = min(PER_THREAD, REGISTERS // (per_sm * config.warps * target.warp_size))
    programs = per_sm * target.sms // parts * parts
    return replace(config, parts=parts, programs=programs, registers=registers // 8 * 8)


def ring_variants(
    plan: Plan, kernel: KernelPlan, default: TileConfig, target: Target
) -> list[TileConfig]:
    """Configurations worth timing."""
    width = _PART // len(plan.tiles_read(kernel))
    shapes = [(width, 8, 7, 2), (width, 8, 5, 2), (width // 2, 4, 6, 4), (width, 16, 12, 1)]
    found = [
        _shared(
            replace(default, block_n=part, warps=warps, stages=stages),
            kernel.cols.factor,
            per_sm,
            target,
        )
        for part, warps, stages, per_sm in shapes
    ]
    return [config for config in found if ring_problem(plan, kernel, config, target) is None]


def ring_problem(plan: Plan, kernel: KernelPlan, config: TileConfig, target: Target) -> str | None:
    """Why rows cannot be taken so, or None if they can."""
    cols = kernel.cols.factor
    if not may_specialise(target):
        return f"no rows in a ring on {target.name}"
    width = _VECTOR * target.warp_size * config.warps
    power = config.warps > 0 and not config.block_n & (config.block_n - 1)
    if config.block_m != 1 or not power or config.block_n % width or config.block_n < width:
        return f"parts of {config.block_m} x {config.block_n} for {config.warps} warps"
    if cols % _VECTOR or config.parts * config.block_n < cols or config.parts > MOST_PARTS:
        return f"{config.parts} parts of {config.block_n} columns for {cols}"
    if config.programs < 1 or config.programs % config.parts or config.parts > target.sms:
        return f"{config.programs} programs, {config.parts} to a row"
    per_sm = -(-config.programs // target.sms)
    used = per_sm * (ring_bytes(plan, kernel, config) + RESERVED)
    room = target.shared_limit + RESERVED
    if config.stages < 3 or used > room:
        return f"{used} of {room} bytes of shared memory"
    registers = per_sm * config.warps * target.warp_size * (config.registers or PER_THREAD)
    return f"{registers} registers" if registers > REGISTERS else None


def ring_bytes(plan: Plan, kernel: KernelPlan, config: TileConfig) -> int:
    """Shared memory in bytes: a ring of 16-bit values for each tile, and what a reduction takes."""
    tiles = len(plan.tiles_read(kernel))
    return tiles * config.stages * config.block_n * 2 + 256
