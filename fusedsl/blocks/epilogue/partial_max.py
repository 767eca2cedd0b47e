"""Per-tile maxima, left by the GEMM that makes x: a maximum of maxima."""

from __future__ import annotations

from fusedsl.blocks.epilogue.statistics import partial_of
from fusedsl.blocks.row_reduction import row_max

BLOCK = partial_of("partial_max", row_max.REDUCTION, ("maxima",))
