"""Per-tile sums of squares, left by the GEMM that makes x: plain sums (RMSNorm)."""

from __future__ import annotations

from fusedsl.blocks.epilogue.statistics import partial_of
from fusedsl.blocks.row_reduction import row_mean_square

BLOCK = partial_of("partial_mean_square", row_mean_square.REDUCTION, ("sums",))
