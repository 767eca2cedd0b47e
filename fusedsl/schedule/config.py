"""A tile configuration: every compile-time number of a kernel that is not a dimension."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TileConfig:
    """Tile sizes in elements. For a paired GEMM `block_n` counts both halves.

    `sides` is the number of column pieces the epilogue handles one after the other (1 for a paired
    GEMM, whose two halves meet element by element). `programs` is the persistent grid's size, 0
    for one program per tile. `fast` allows the hardware's approximate special functions.
    """

    block_m: int
    block_n: int
    block_k: int = 0
    group_m: int = 8
    sides: int = 1
    warps: int = 4
    stages: int = 1
    programs: int = 0
    fast: bool = False
    precision: str = "ieee"

    def piece_width(self, paired: bool) -> int:
        """Output columns the epilogue handles at a time."""
        return self.block_n // 2 if paired else self.block_n // self.sides

    def tile_width(self, paired: bool) -> int:
        """Output columns of a tile: what a per-tile statistic is taken over."""
        return self.block_n // 2 if paired else self.block_n

    def constants(self) -> dict[str, int | bool | str]:
        """The fields that kernels take as compile-time arguments, by upper-case name."""
        return {
            "BLOCK_M": self.block_m,
            "BLOCK_N": self.block_n,
            "BLOCK_K": self.block_k,
            "GROUP_M": self.group_m,
            "SIDES": self.sides,
            "FAST": self.fast,
            "PRECISION": self.precision,
        }
