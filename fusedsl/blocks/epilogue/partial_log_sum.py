"""Per-tile (maximum, sum of exp(x - maximum)), left by the GEMM that makes x."""

from __future__ import annotations

from fusedsl.blocks.epilogue.statistics import partial_of
from fusedsl.blocks.row_reduction import row_log_sum

BLOCK = partial_of("partial_log_sum", row_log_sum.REDUCTION, ("maxima", "sums"))
