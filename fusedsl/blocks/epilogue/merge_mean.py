"""Mean of each row from per-tile sums."""

from __future__ import annotations

from fusedsl.blocks.epilogue.statistics import merge_of
from fusedsl.blocks.row_reduction import row_mean

BLOCK = merge_of("merge_mean", row_mean.REDUCTION, ("sums",), ("mean",))
