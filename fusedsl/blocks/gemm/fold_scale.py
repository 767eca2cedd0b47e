"""A weight scaled along one axis by a row vector, in the weight's dtype: one rounding."""

from __future__ import annotations

import torch

from fusedsl.blocks.expansion import widened
from fusedsl.blocks.gemm.packing import axis_attr, axis_of, vector_along
from fusedsl.blocks.typing import Attrs, Operands, tile
from fusedsl.ir import Block, Kind, OperandSpec, TensorType


def _infer(operands: Operands, attrs: Attrs) -> TensorType:
    w = tile(operands, "w")
    vector_along("scale", operands["scale"], w.shape[axis_of(attrs, "axis", w)])
    return w


def _reference(w: torch.Tensor, scale: torch.Tensor, *, axis: int) -> torch.Tensor:
    factor = widened(scale) if axis == 1 else widened(scale)[:, None]
    return (widened(w) * factor).to(w.dtype)


BLOCK = Block(
    name="fold_scale",
    kind=Kind.PACKING,
    operands=(
        OperandSpec("w", doc="a matrix"),
        OperandSpec("scale", doc="one factor for each index of the axis"),
    ),
    infer=_infer,
    reference=_reference,
    attrs=(axis_attr("axis", "axis of w that the scale goes along"),),
    internal=True,
    doc="w scaled along one axis, in w's dtype",
)
