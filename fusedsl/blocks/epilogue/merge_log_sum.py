"""The parts of a row's log-sum-exp from per-tile maxima and sums."""

from __future__ import annotations

from fusedsl.blocks.epilogue.statistics import merge_of
from fusedsl.blocks.row_reduction import row_log_sum

BLOCK = merge_of("merge_log_sum", row_log_sum.REDUCTION, ("maxima", "sums"), ("max", "log_sum"))
