"""The default configuration of row kernels; docs/performance.md has the figures behind it."""

from __future__ import annotations

from fusedsl.fuse import KernelPlan
from fusedsl.schedule.config import TileConfig
from fusedsl.schedule.target import Target

#: Widest row kept in registers, in elements (the resident row skeleton).
RESIDENT_COLUMNS = 16384

#: Columns of a wider row that are in flight at a time.
LOOPED_COLUMNS = 4096

#: Columns of a program's part of a row that several programs share.
PART_COLUMNS = 8192

#: Most programs that share a row, and the programs of an SM that run at the same time.
MOST_PARTS, SHARING_PROGRAMS = 64, 4

#: Most segments of a row that is kept in registers.
_SEGMENTS = 8

_MAX_THREADS = 1024


def _power_of_two(value: int) -> int:
    return 1 << max(0, value - 1).bit_length()


def row_segments(cols: int) -> tuple[int, int]:
    """(number, width) of the segments, of one power of two, that cover a row with little to spare.

    The widest that waste at most an eighth of the row, or at most eight that waste least:
    5120 = 5 x 1024.
    """
    cols = max(1, cols)
    whole = _power_of_two(cols)
    options = [(-(-cols // w), w) for w in (whole >> i for i in range(4)) if w >= min(whole, 64)]
    options = [(count, width) for count, width in options if count <= _SEGMENTS]
    close = [o for o in options if (o[0] * o[1] - cols) * 8 <= cols]
    return close[0] if close else min(options, key=lambda o: o[0] * o[1])


def choose_rows(kernel: KernelPlan, rows: int, cols: int, target: Target) -> TileConfig:
    """The configuration of a kernel over whole rows.

    Elements per thread decide: 32 in flight hide memory latency, and a row over few warps has
    few barriers in its reductions, which count most where two depend on each other (moments).
    """
    resident = kernel.cols.symbol is None and kernel.cols.factor <= RESIDENT_COLUMNS
    if target.backend == "interpreter":
        widest = cols if resident else min(cols, LOOPED_COLUMNS)
        return TileConfig(min(128, _power_of_two(rows)), _power_of_two(widest))
    if not resident:
        return _looped(rows, cols, target)
    most = _MAX_THREADS // target.warp_size
    count, size = row_segments(cols)
    width = count * size
    chained = any(len(node.results) > 1 for node in kernel.steps)
    per_warp = 2048 if chained and width > 4096 else 1024
    block_m = max(1, min(32, _power_of_two(rows), _power_of_two(2048 // max(width, 64))))
    block_m = 1 if width >= 1024 else block_m
    warps = max(1, min(most, block_m * width // (per_warp if width >= 1024 else 512)))
    return TileConfig(block_m, _power_of_two(cols), warps=1 << (warps.bit_length() - 1))


def _looped(rows: int, cols: int, target: Target) -> TileConfig:
    """A row that is passed over: by one program, or shared where its parts stay near."""
    block_n = min(2048, _power_of_two(cols))
    warps = max(1, min(8, block_n // 256))
    chunks = -(-cols // block_n)
    programs = SHARING_PROGRAMS * target.sms
    wanted = max(-(-cols // PART_COLUMNS), min(programs // rows, chunks))
    parts = min(wanted, MOST_PARTS, chunks, programs)
    parts = -(-chunks // -(-chunks // parts))  # none of them without columns
    if parts == 1:
        return TileConfig(1, block_n, warps=warps)
    return TileConfig(1, block_n, warps=warps, parts=parts, programs=programs // parts * parts)
