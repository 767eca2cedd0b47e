"""Per-tile sums, left by the GEMM that makes x: plain sums."""

from __future__ import annotations

from fusedsl.blocks.epilogue.statistics import partial_of
from fusedsl.blocks.row_reduction import row_sum

BLOCK = partial_of("partial_sum", row_sum.REDUCTION, ("sums",))
