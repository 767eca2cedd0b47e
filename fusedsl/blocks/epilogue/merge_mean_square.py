"""Mean square of each row from per-tile sums of squares."""

from __future__ import annotations

from fusedsl.blocks.epilogue.statistics import merge_of
from fusedsl.blocks.row_reduction import row_mean_square

BLOCK = merge_of("merge_mean_square", row_mean_square.REDUCTION, ("sums",), ("mean_square",))
