"""A tile configuration: every compile-time number of a kernel that is not a dimension."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from fusedsl.schedule.target import Target


@dataclass(frozen=True)
class TileConfig:
    """Tile sizes in elements. For a paired GEMM `block_n` counts both halves.

    `sides` is the number of column pieces the epilogue handles one after the other (1 for a paired
    GEMM, whose two halves meet element by element). `programs` is the persistent grid's size, 0
    for one program per tile. `fast` allows the hardware's approximate special functions.

    `parts` programs share a row, each group of them one row after another; `programs` is then a
    multiple of `parts`.

    `pdl` launches the kernel before the one ahead of it on the stream has ended (programmatic
    dependent launch): its text must wait (`gdc_wait`) before it first reads what another kernel
    writes, and before it writes anything that another may still read.

    `registers` are the most that a thread has, 0 where the compiler decides.

    For projections of few rows: `split` programs share the K of one tile of columns; `ahead` is
    the columns of each weight row that a program asks into the L2 cache before it waits; `early`
    lets it load its first weights before it waits.
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
    parts: int = 1
    pdl: bool = False
    split: int = 1
    ahead: int = 0
    early: bool = False
    registers: int = 0

    def piece_width(self, paired: bool) -> int:
        """Output columns the epilogue handles at a time."""
        return self.block_n // 2 if paired else self.block_n // self.sides

    def tile_width(self, paired: bool) -> int:
        """Output columns of a tile: what a per-tile statistic is taken over."""
        return self.block_n // 2 if paired else self.block_n

    @property
    def options(self) -> dict[str, Any]:
        """Triton's own compile options, the same for calls and ahead-of-time builds."""
        options: dict[str, Any] = {"num_warps": self.warps, "num_stages": self.stages}
        if self.pdl:
            options["launch_pdl"] = True
        if self.registers:
            options["maxnreg"] = self.registers
        return options

    def on(self, target: Target) -> TileConfig:
        """The configuration without what the target does not have."""
        return replace(self, pdl=False) if self.pdl and not target.has_pdl else self

    def _padded_parts(self) -> int:
        """Words of a row's parts that are read at a time, a power of two: one for each thread at
        least. Of fewer, several threads hold a word, which they read at times of their own, and
        triton 3.6 takes their load for a cheap one and does it twice, in two layouts: one may be
        found to be there and the other used. A warp has 64 threads at most."""
        return max(1 << (self.parts - 1).bit_length(), 64 * self.warps)

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
            "PARTS": self.parts,
            "PADDED_PARTS": self._padded_parts(),
            "WAIT": True,
            "PDL": self.pdl,
            "SPLIT": self.split,
            "AHEAD": self.ahead,
            "EARLY": self.early,
            "STAGES": self.stages,
            "READ": max(32, 1 << (self.parts * self.warps - 1).bit_length()),
        }
