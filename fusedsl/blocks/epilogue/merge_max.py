"""Maximum of each row from per-tile maxima."""

from __future__ import annotations

from fusedsl.blocks.epilogue.statistics import merge_of
from fusedsl.blocks.row_reduction import row_max

BLOCK = merge_of("merge_max", row_max.REDUCTION, ("maxima",), ("max",))
