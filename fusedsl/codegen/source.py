"""What codegen hands to the run time: source text and each kernel's arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fusedsl.fuse import KernelPlan, Plan
from fusedsl.ir import Dim
from fusedsl.schedule import TileConfig

#: Roles whose values are compile-time constants of the kernel.
COMPILE_TIME_ROLES = frozenset({"dim", "tiles", "tiles_group", "tile_width", "config"})

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
        "pointer": data pointer of the stored value `value`;
        "stride": its row stride in elements;
        "descriptor": a tensor descriptor on it with the block shape `block` (BLOCK_M, BLOCK_N,
            BLOCK_K, WIDTH, HALF_N or integers; see `KernelSource.block_shape`); `view` reshapes
            it first: "" as stored, "stacked_rows" [2F, K] → [2, F, K], "stacked_cols" [K, 2F] →
            [K, 2, F];
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


def column_tiles(kernel: KernelPlan, config: TileConfig, env: Mapping[str, int]) -> int:
    """Per-tile statistics that a projection kernel leaves for each row."""
    return -(-kernel.cols.bind(env) // config.tile_width(kernel.paired))


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
