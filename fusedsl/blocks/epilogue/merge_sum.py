"""Sum of each row from per-tile sums."""

from __future__ import annotations

from fusedsl.blocks.epilogue.statistics import merge_of
from fusedsl.blocks.row_reduction import row_sum

BLOCK = merge_of("merge_sum", row_sum.REDUCTION, ("sums",), ("sum",))
