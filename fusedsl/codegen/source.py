"""What codegen hands to the run time: source text and each kernel's arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fusedsl.fuse import KernelPlan, Plan
from fusedsl.ir import Dim
from fusedsl.schedule import TileConfig

#: Roles whose values are compile-time constants of the kernel.
COMPILE_TIME_ROLES = frozenset(
    {"dim", "tiles", "tiles_group", "tile_width", "config", "fixed_stride"}
)

#: The divisibility and alignment that Triton specialises on, of integers and of pointers in bytes.
ALIGNMENT = 16

#: Counters of programs that have left their part of a sum, one for each tile: 32-bit integers.
COUNTERS = 1024

#: Per-tile states held in registers at a time; more would spill where rows are long.
TILE_GROUP = 32
#: The same in a kernel that computes columns alone: more loads are in flight at a time.
COLUMN_TILE_GROUP = 128


def tile_group(tiles: int, reader: TileConfig) -> int:
    """How many of so many per-tile states are merged at a time by a kernel so configured."""
    most = COLUMN_TILE_GROUP if reader.block_n == 1 else TILE_GROUP
    return min(most, 1 << max(0, tiles - 1).bit_length())


@dataclass(frozen=True)
class Arg:
    """One argument of an emitted kernel, in order.

    `role` is
        "pointer": data pointer of the stored value `value`, or of a kernel's workspace:
            "<kernel>.parts" (partial sums in fp32), "<kernel>.arrived" (`COUNTERS` integers) and
            "<kernel>.words" (`words_of`: 64-bit integers that are zero when it starts);
        "stride": its row stride in elements;
        "fixed_stride": the same as a compile-time integer, of rows of an even number of columns
            that is no multiple of `ALIGNMENT`: as a run-time integer it might be odd, for all that
            Triton knows, and every column would be moved by itself;
        "descriptor": a tensor descriptor on it with the block shape `block` (BLOCK_M, BLOCK_N,
            BLOCK_K, WIDTH, HALF_N or integers; see `KernelSource.block_shape`); `view` reshapes
            it first: "" as stored, "stacked_rows" [2F, K] → [2, F, K], "stacked_cols" [K, 2F] →
            [K, 2, F], "halved_cols" [K, 2F] as stored, whose second half starts on a boundary of
            16 bytes;
        "rows": number of rows of the kernel's domain (run-time integer);
        "dim": a compile-time integer: the dimension `value` bound at the call;
        "tiles": a compile-time integer: the column tiles of the kernel that wrote `value`;
        "tiles_group": how many of them are merged at a time, a power of two (`tile_group`);
        "tile_width": a compile-time integer: columns per tile (`TileConfig.tile_width`) of the
            kernel that wrote `value`;
        "config": a compile-time field of the tile configuration, by upper-case name.
    """

    name: str
    role: str
    value: str = ""
    block: tuple[str | int, ...] = ()
    view: str = ""

    def steps(self, row_stride: int, columns: int) -> tuple[int, ...]:
        """What a descriptor steps by from row to row and from half to half, in elements: each a
        multiple of 16 bytes, or there is none."""
        halves = self.view in ("stacked_cols", "halved_cols")
        return (row_stride, columns // 2) if halves else (row_stride,)


@dataclass(frozen=True)
class KernelSource:
    """One emitted kernel: the function `name` in the program's file."""

    name: str
    plan: KernelPlan
    args: tuple[Arg, ...]

    def block_shape(self, arg: Arg, config: TileConfig) -> tuple[int, ...]:
        """The block shape of a descriptor argument in elements."""
        sizes = {
            "BLOCK_M": config.block_m,
            "BLOCK_N": config.block_n,
            "BLOCK_K": config.block_k,
            "WIDTH": config.piece_width(self.plan.paired),
            "HALF_N": config.block_n // 2,
        }
        return tuple(sizes[size] if isinstance(size, str) else size for size in arg.block)


@dataclass(frozen=True)
class ProgramSource:
    """An emitted file. `main_loop` is "tma" or "pointer"."""

    text: str
    main_loop: str
    kernels: tuple[KernelSource, ...]


def words_of(kernel: str) -> str:
    """The name of a kernel's workspace for states that its programs tell each other."""
    return f"{kernel}.words"


def words(kernel: KernelPlan, config: TileConfig) -> int:
    """Size of that workspace: a counter, and for each group of programs the slots of four turns,
    for every state of every part of their rows."""
    states = sum(len(n.block.reduction.identity) for n in kernel.steps if n.block.reduction)
    return 16 + config.programs * 4 * states * config.block_m


def column_tiles(kernel: KernelPlan, config: TileConfig, env: Mapping[str, int]) -> int:
    """Per-tile statistics that a projection kernel leaves for each row."""
    return -(-kernel.cols.bind(env) // config.tile_width(kernel.paired))


def parts(kernel: KernelPlan, config: TileConfig, env: Mapping[str, int]) -> int:
    """Partial sums, in elements, that the programs of a projection leave for the last of them."""
    if config.split == 1:
        return 1
    width = config.block_n // 2 if kernel.paired else config.block_n
    tiles = -(-kernel.cols.bind(env) // width)
    return tiles * config.split * config.block_n * config.block_m


def compile_time_value(
    arg: Arg, kernel: str, plan: Plan, configs: Mapping[str, TileConfig], env: Mapping[str, int]
) -> int | bool | str:
    """The value of an argument of `kernel` whose role is one of `COMPILE_TIME_ROLES`."""
    if arg.role == "dim":
        return Dim.parse(arg.value).bind(env)
    if arg.role == "config":
        return configs[kernel].constants()[arg.name]
    writer = plan.writer(arg.value)
    assert writer is not None, f"no kernel writes '{arg.value}'"
    config = configs[writer.name]
    if arg.role == "tile_width":
        return config.tile_width(writer.paired)
    tiles = column_tiles(writer, config, env)
    return tiles if arg.role == "tiles" else tile_group(tiles, configs[kernel])
