"""Type inference of row reductions."""

from __future__ import annotations

from fusedsl.blocks.typing import Attrs, Operands, tile
from fusedsl.ir import ONE, DType, TensorType


def column(operands: Operands, attrs: Attrs) -> TensorType:
    """[M, K] → [M, 1] in the dtype of x, as torch's reductions do."""
    x = tile(operands, "x")
    return TensorType(x.dtype, (x.rows, ONE))


def column_fp32(operands: Operands, attrs: Attrs) -> TensorType:
    """[M, K] → [M, 1] in fp32: statistics are never narrower."""
    return column(operands, attrs).with_dtype(DType.FP32)
