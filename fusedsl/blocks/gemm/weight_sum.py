"""Sum of a weight over one axis: of the values AS GIVEN, so of a folded weight as rounded.

It multiplies the row mean in a LayerNorm that has moved past its projection. The accumulator
holds exact products of the rounded weight, so the sum must be of that weight too.
"""

from __future__ import annotations

import torch

from fusedsl.blocks.gemm.packing import axis_attr, axis_of, summed
from fusedsl.blocks.typing import Attrs, Operands, tile
from fusedsl.ir import Block, DType, Kind, OperandSpec, TensorType


def _infer(operands: Operands, attrs: Attrs) -> TensorType:
    w = tile(operands, "w")
    return TensorType(DType.FP32, (w.shape[1 - axis_of(attrs, "axis", w)],))


def _reference(w: torch.Tensor, *, axis: int) -> torch.Tensor:
    return summed(w, axis)


BLOCK = Block(
    name="weight_sum",
    kind=Kind.PACKING,
    operands=(OperandSpec("w", doc="a matrix"),),
    infer=_infer,
    reference=_reference,
    attrs=(axis_attr("axis", "axis that is summed away"),),
    internal=True,
    doc="sum of w over one axis, fp32, accumulated in fp64",
)
