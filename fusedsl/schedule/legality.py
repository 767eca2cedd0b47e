"""What makes a tile configuration legal: Triton's rules, the skeletons' rules, shared memory."""

from __future__ import annotations

from fusedsl.fuse import KernelPlan, Plan, anchor_operands
from fusedsl.ir import DType, Kind, Layout
from fusedsl.schedule.cluster import cluster_problem
from fusedsl.schedule.config import TileConfig
from fusedsl.schedule.few_rows import HALF_COLUMNS, MOST_SHARED_TILES, takes_halves
from fusedsl.schedule.in_turn import in_turn_problem
from fusedsl.schedule.ring import ring_problem
from fusedsl.schedule.rows import is_shared
from fusedsl.schedule.sizes import MAX_ELEMENTS, MAX_THREADS, PER_THREAD, REGISTERS, RESERVED
from fusedsl.schedule.specialised import specialised_problem
from fusedsl.schedule.target import Target

#: Products that an fp32 projection sums before it carries errors along: fewer lose fewer digits.
EXACT_STEP = 16

#: Programs that share the K of one tile of a projection of few rows.
MOST_SPLIT = 16

#: Largest side of the box that a tensor map describes (CUDA driver API, cuTensorMapEncodeTiled).
MAX_BOX = 256

#: Bytes by which `shared_bytes` may fall short: barriers beside buffers that leave no gap.
_SLACK = 64

#: Rows of the accumulator that a warp holds (wgmma). Where warps lie side by side, splitting it in
#: pieces takes shared memory for the whole of it.
_WARP_ROWS = 16


def problem(
    plan: Plan, kernel: KernelPlan, config: TileConfig, target: Target, main_loop: str
) -> str | None:
    """Why a kernel cannot have this configuration on this target, or None if it can."""
    if kernel.in_turn:
        return in_turn_problem(config, target)
    if kernel.ring:
        return ring_problem(plan, kernel, config, target)
    if kernel.cluster:
        return cluster_problem(plan, kernel, config, target)
    sizes = {"BLOCK_M": config.block_m, "BLOCK_N": config.block_n, "warps": config.warps}
    if kernel.kind is Kind.GEMM:
        sizes |= {"BLOCK_K": config.block_k, "SIDES": config.sides}
    for name, size in sizes.items():
        if size < 1 or size & (size - 1):
            return f"{name} = {size} is no power of two"
    if config.warps * target.warp_size > MAX_THREADS:
        return f"{config.warps} warps are more than {MAX_THREADS} threads"
    if config.block_m * config.block_n > MAX_ELEMENTS:
        return f"a tile of {config.block_m} x {config.block_n} is too large"
    if config.fast and target.backend != "cuda":
        return "approximate functions are those of NVIDIA"
    if kernel.kind is not Kind.GEMM:
        return _rows_problem(kernel, config)
    if kernel.specialised:
        return specialised_problem(config, target)
    return _gemm_problem(plan, kernel, config, target, main_loop)


def _rows_problem(kernel: KernelPlan, config: TileConfig) -> str | None:
    """Rows that programs share are taken by whole groups of them, a tile each; others by one."""
    grouped = config.programs > 0 and config.programs % config.parts == 0
    if is_shared(kernel) if not grouped else config.parts > 1 and not is_shared(kernel):
        return f"{config.programs} programs, {config.parts} to a row"
    if is_shared(kernel) and config.parts * config.block_n < kernel.cols.factor:
        return f"{config.parts} parts of {config.block_n} columns are less than a row"
    return None


def _gemm_problem(
    plan: Plan, kernel: KernelPlan, config: TileConfig, target: Target, main_loop: str
) -> str | None:
    item = operand_bytes(plan, kernel)
    piece = config.piece_width(kernel.paired)
    if min(config.block_m, config.block_n, config.block_k, piece) < 16:
        return "a side is below the 16 of tl.dot"
    if config.sides not in (1, 2) or (kernel.paired and config.sides != 1):
        return f"{config.sides} pieces"
    if kernel.few_rows:
        width = config.block_n // 2 if kernel.paired else config.block_n
        tiles = -(-kernel.cols.factor // width) if kernel.cols.symbol is None else 1
        if kernel.paired and takes_halves(target, main_loop, item) and width < HALF_COLUMNS:
            return f"halves of {width} columns, of which the tensor core takes {HALF_COLUMNS}"
        return _few_rows_problem(config, target, item, tiles)
    if config.group_m < 1 or config.programs < 0:
        return "GROUP_M and programs are counts"
    if not _precision_fits(config, item):
        return f"precision {config.precision} with steps of {config.block_k}"
    if target.backend == "interpreter":
        return None
    spread = config.block_m >= 64 and config.warps * _WARP_ROWS > config.block_m
    if spread and item < 4 and main_loop != "pointer":
        return f"{config.warps} warps lie side by side in {config.block_m} rows"
    if config.stages < 1 or (main_loop != "pointer") != (config.programs > 0):
        return f"{config.stages} stages, {config.programs} programs"
    tiles = epilogue_tiles(plan, kernel, main_loop)
    used = shared_bytes(config, kernel.paired, item, tiles)
    if used + _SLACK > target.shared_limit:
        return f"{used} of {target.shared_limit} bytes of shared memory"
    if target.backend == "cuda":
        return _registers_problem(config) or _descriptor_problem(config, piece, item, tiles)
    return None


def _few_rows_problem(config: TileConfig, target: Target, item: int, tiles: int) -> str | None:
    """What a projection of few rows asks for: a kernel of its own, whose K several may share."""
    if not _precision_fits(config, item):
        return f"precision {config.precision} with steps of {config.block_k}"
    whole = config.ahead >= 0 and not config.ahead & (config.ahead - 1)
    if not 1 <= config.split <= MOST_SPLIT or not whole or config.programs:
        return f"K shared by {config.split} programs, {config.ahead} columns asked for ahead"
    if config.split > 1 and tiles > MOST_SHARED_TILES:
        return f"{tiles} tiles whose K is shared"
    if target.backend == "interpreter":
        return None
    used = config.stages * (config.block_m + config.block_n) * config.block_k * item + 1024
    if config.stages < 1 or used > target.shared_limit:
        return f"{used} of {target.shared_limit} bytes of shared memory"
    return _registers_problem(config) if target.backend == "cuda" else None


def _precision_fits(config: TileConfig, item: int) -> bool:
    """Exact sums are for fp32 operands alone, in short steps."""
    if config.precision == "exact":
        return item == 4 and config.block_k <= EXACT_STEP
    return (config.precision == "ieee" and item < 4) or (config.precision == "tf32" and item == 4)


def _registers_problem(config: TileConfig) -> str | None:
    """The fp32 accumulator lies in registers; a third of them is left to the rest."""
    room = min(PER_THREAD, REGISTERS // (config.warps * 32))
    accumulator = config.block_m * config.block_n // (config.warps * 32)
    return f"{accumulator} registers of sums per thread" if accumulator * 3 > room * 2 else None


def _descriptor_problem(
    config: TileConfig, piece: int, item: int, tiles: tuple[int, ...]
) -> str | None:
    if max(config.block_m, config.block_k, piece) > MAX_BOX or config.block_n > MAX_BOX:
        return f"a box of a descriptor has at most {MAX_BOX} elements a side"
    if config.block_k * item < 16 or any(piece * size < 16 for size in tiles):
        return "a row of a box has at least 16 bytes"
    return None


def operand_bytes(plan: Plan, kernel: KernelPlan) -> int:
    """Bytes of an element of the streamed operands."""
    assert kernel.anchor is not None
    return plan.type_of(anchor_operands(kernel.anchor)[0]).dtype.bytes


def is_exact(plan: Plan, kernel: KernelPlan) -> bool:
    """Whether the operands are fp32: off the tensor cores, unless TF32 is asked for."""
    assert kernel.anchor is not None
    return plan.type_of(anchor_operands(kernel.anchor)[0]).dtype is DType.FP32


def moved_tiles(plan: Plan, kernel: KernelPlan) -> tuple[int, ...]:
    """Bytes per element of each tile that the epilogue reads or writes.

    Beside such tiles per-tile states count as well: they are columns, but the registers of the
    largest tile do not hold both.
    """
    assert kernel.anchor is not None
    streamed = anchor_operands(kernel.anchor)
    used = {name for node in kernel.steps for name in node.inputs}
    moved = [n for n in kernel.reads if n in used] + list(kernel.writes)
    tiles = [n for n in moved if n not in streamed or n in used]
    tiles = [n for n in tiles if plan.type_of(n).layout is Layout.TILE]
    if set(tiles) <= kernel.states_left | kernel.states_merged:  # these are in registers alone
        return ()
    return tuple(plan.type_of(n).dtype.bytes for n in tiles)


def epilogue_tiles(plan: Plan, kernel: KernelPlan, main_loop: str = "tma") -> tuple[int, ...]:
    """Bytes per element of each tile that the epilogue moves through shared memory beside the
    operands: by descriptor ("tma"), or to change its layout ahead of a pointer store ("mixed").
    The pointer loop takes the operands' room for that.
    """
    return () if main_loop == "pointer" else moved_tiles(plan, kernel)


def shared_bytes(config: TileConfig, paired: bool, item: int, tiles: tuple[int, ...]) -> int:
    """Shared memory of a projection kernel in bytes: the pipelined operands, and one buffer for
    each tile that the epilogue moves through a descriptor. Barriers take less than 1 KiB."""
    operands = config.stages * (config.block_m + config.block_n) * config.block_k * item
    return operands + config.block_m * config.piece_width(paired) * sum(tiles) + 1024


def resident(config: TileConfig, used: int, target: Target) -> int:
    """Programs that a multiprocessor holds at a time, by shared memory and registers."""
    by_memory = (target.shared_limit + RESERVED) // (used + RESERVED)
    accumulator = config.block_m * config.block_n // (config.warps * 32)
    per_thread = min(PER_THREAD, accumulator + 80)
    by_registers = REGISTERS // (per_thread * config.warps * 32)
    return max(1, min(by_memory, by_registers))
