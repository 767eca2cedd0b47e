"""Mean and variance of each row from per-tile means and M2."""

from __future__ import annotations

from fusedsl.blocks.epilogue.statistics import merge_of
from fusedsl.blocks.row_reduction import row_moments

BLOCK = merge_of("merge_moments", row_moments.REDUCTION, ("mean", "m2"), ("mean", "var"))
