"""Per-tile sums, left by the GEMM that makes x: plain sums."""

from __future__ import annotations

from fusedsl.blocks.epilogue.statistics import partial_of
from fusedsl.blocks.row_reduction import row_mean

BLOCK = partial_of("partial_mean", row_mean.REDUCTION, ("sums",))
