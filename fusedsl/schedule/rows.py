"""Row kernels: in which form a row is taken, and the default configuration of each.

docs/performance.md has the figures behind the numbers.
"""

from __future__ import annotations

from fusedsl.fuse import KernelPlan, is_reduction
from fusedsl.schedule.config import TileConfig
from fusedsl.schedule.sizes import MAX_ELEMENTS, MAX_THREADS, power_of_two
from fusedsl.schedule.target import Target

#: Widest row kept in registers, in elements (the resident row skeleton): of kernels with one
#: statistic, and of those where one depends on another, which would pass over it three times.
RESIDENT_COLUMNS, CHAINED_COLUMNS = 3072, 16384

#: Widest row that a program takes alone, passing over it again: of kernels that store one tile, of
#: those that store several, of those of the first kind whose statistics are about a mean, and of
#: those where they depend on each other, which take longer to tell than a row takes to read again.
#: Wider rows are shared by several programs.
ALONE_COLUMNS, ALONE_OTHERS, ALONE_MOMENTS, ALONE_DEPENDENT = 65536, 16384, 32768, 1 << 31

#: Columns of a looped row that are in flight at a time: of sums, or of a row that its first read
#: leaves in the L1 cache, and of others.
LOOPED_COLUMNS, LOOPED_OTHERS = 8192, 16384

#: Bytes of rows that stay in the L1 cache, and the warps of an SM whose programs share it.
CACHED_BYTES, CACHED_WARPS = 144 << 10, 64

#: Widest row of which every lane of a program that passes over it keeps a mean of its own.
CENTRED_COLUMNS = 16384

#: Columns of the narrowest part of a shared row and columns of each of a part's threads (half as
#: many where rows start at any address: each column is then a load), and the most parts of a row:
#: every part reads the words of all.
PART_COLUMNS, PART_PER_THREAD, MOST_PARTS = 1024, 32, 128

#: Threads of an SM that such programs fill, of kernels that store one tile and take sums, and of
#: others: no more than its registers hold, or the last programs start when the first ones end.
SHARING_THREADS, SHARING_THREADS_OTHERS = 640, 512

#: Widest row that is shared: parts of four times the usual width. Wider ones are passed over.
SHARED_COLUMNS = MOST_PARTS * 4 * PART_COLUMNS

#: Most segments of a row that is kept in registers.
_SEGMENTS = 8

#: Columns of 16 bytes.
_VECTOR = 8


def is_resident(kernel: KernelPlan) -> bool:
    """Whether a row is kept in registers as a whole."""
    widest = CHAINED_COLUMNS if is_chained(kernel) else RESIDENT_COLUMNS
    return kernel.cols.symbol is None and kernel.cols.factor <= widest


def is_shared(kernel: KernelPlan) -> bool:
    """Whether several programs may share a row, each with a part of it in registers."""
    if len(kernel.writes) > 1:
        alone = ALONE_OTHERS
    elif is_chained(kernel):
        alone = ALONE_DEPENDENT
    else:
        alone = ALONE_MOMENTS if _has_moments(kernel) else ALONE_COLUMNS
    return kernel.cols.symbol is None and alone < kernel.cols.factor <= SHARED_COLUMNS


def _has_moments(kernel: KernelPlan) -> bool:
    """Whether a statistic of the kernel is about its mean."""
    return any(len(node.results) > 1 for node in kernel.steps)


def is_chained(kernel: KernelPlan) -> bool:
    """Whether a statistic depends on another of the kernel."""
    behind: set[str] = set()
    for node in kernel.steps:
        follows = any(name in behind for name in node.inputs)
        if follows and is_reduction(node):
            return True
        if follows or is_reduction(node):
            behind |= {result.name for result in node.results}
    return False


def row_segments(cols: int) -> tuple[int, int]:
    """(number, width) of the segments, of one power of two, that cover a row with little to spare.

    The widest that waste at most an eighth of the row, or at most eight that waste least:
    384 = 3 x 128.
    """
    cols = max(1, cols)
    whole = power_of_two(cols)
    options = [(-(-cols // w), w) for w in (whole >> i for i in range(4)) if w >= min(whole, 64)]
    options = [(count, width) for count, width in options if count <= _SEGMENTS]
    close = [o for o in options if (o[0] * o[1] - cols) * 8 <= cols]
    return close[0] if close else min(options, key=lambda o: o[0] * o[1])


def choose_rows(
    kernel: KernelPlan, rows: int, cols: int, target: Target, column_bytes: int
) -> TileConfig:
    """The default configuration of a kernel over whole rows; `column_bytes` are what it loads of
    each column of a row."""
    if target.backend == "interpreter":
        widest = cols if is_resident(kernel) or is_shared(kernel) else min(cols, 4096)
        block = power_of_two(widest)
        block_m = min(128, power_of_two(rows), max(1, MAX_ELEMENTS // block))
        return TileConfig(block_m, block, programs=1 if is_shared(kernel) else 0)
    moments = _has_moments(kernel)
    if is_resident(kernel):
        return _resident(rows, cols, moments, target)
    if is_shared(kernel):
        return _shared(kernel, cols, target)
    return _looped(cols, moments, is_chained(kernel), target, column_bytes)


def _resident(rows: int, cols: int, moments: bool, target: Target) -> TileConfig:
    """Elements per thread decide: 16 to 32 in flight hide memory latency, and a row over few warps
    has few barriers in its reductions. Four short rows without moments are one warp's."""
    most = MAX_THREADS // target.warp_size
    count, size = row_segments(cols)
    width = count * size
    per_warp = 512 if width <= RESIDENT_COLUMNS else 2048 if moments and width > 4096 else 1024
    if 128 < width <= 256 and not moments:
        per_warp = 1024
    block_m = max(1, min(32, power_of_two(rows), power_of_two(-(-1024 // width))))
    warps = max(1, min(most, block_m * width // per_warp))
    return TileConfig(block_m, power_of_two(cols), warps=1 << (warps.bit_length() - 1))


def _looped(
    cols: int, moments: bool, chained: bool, target: Target, column_bytes: int
) -> TileConfig:
    """The second read comes from the L1 cache, where few programs of many warps share an SM: so
    many warps that the rows of those that fill it stay there."""
    whole = power_of_two(cols)
    widest = whole if whole == cols else whole // 2
    most = LOOPED_OTHERS if (moments or chained) and cols > ALONE_OTHERS else LOOPED_COLUMNS
    block = min(widest // 2 if moments and cols <= 8192 else widest // 4, most)
    while block > 1024 and (-cols % block) * 8 > cols:
        block //= 2
    block = max(1, min(max(block, 1024), whole))
    per_warp = 128
    if moments:
        per_warp = 512 if cols <= 8192 and block > 1024 else 256 if block > 1024 else 128
    most = MAX_THREADS // target.warp_size
    warps = max(4, min(most, block // per_warp))
    while warps < most and CACHED_WARPS // warps * cols * column_bytes > CACHED_BYTES:
        warps *= 2
    return TileConfig(1, block, warps=warps)


def _shared(kernel: KernelPlan, cols: int, target: Target) -> TileConfig:
    """Parts that stay in registers, each of one warp as long as its words are few beside it: then
    no reduction is a barrier, and there are many programs of which one may wait."""
    sums = len(kernel.writes) == 1 and not _has_moments(kernel) and not is_chained(kernel)
    per_sm = SHARING_THREADS if sums else SHARING_THREADS_OTHERS
    per_thread = PART_PER_THREAD if cols % _VECTOR == 0 else PART_PER_THREAD // 2
    most = min(MOST_PARTS, target.sms)  # the parts of a row must all be able to run
    block = PART_COLUMNS
    while -(-cols // block) > most:
        block *= 2
    parts = -(-cols // block)
    warps = max(1, min(block // per_thread, MAX_THREADS) // target.warp_size)
    programs = max(1, per_sm // (warps * target.warp_size)) * target.sms
    return TileConfig(1, block, warps=warps, parts=parts, programs=programs // parts * parts)
