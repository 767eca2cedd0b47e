"""Per-tile means and M2, left by the GEMM that makes x: merged pairwise (LayerNorm)."""

from __future__ import annotations

from fusedsl.blocks.epilogue.statistics import partial_of
from fusedsl.blocks.row_reduction import row_moments

BLOCK = partial_of("partial_moments", row_moments.REDUCTION, ("mean", "m2"))
