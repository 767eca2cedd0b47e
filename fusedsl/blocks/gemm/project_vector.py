"""W v: a row vector taken through a projection, in fp32 (the bias of a moved LayerNorm)."""

from __future__ import annotations

import torch

from fusedsl.blocks.gemm.packing import axis_attr, axis_of, summed, vector_along
from fusedsl.blocks.typing import Attrs, Operands, tile
from fusedsl.ir import Block, DType, Kind, OperandSpec, TensorType


def _infer(operands: Operands, attrs: Attrs) -> TensorType:
    w = tile(operands, "w")
    k_axis = axis_of(attrs, "k_axis", w)
    vector_along("v", operands["v"], w.shape[k_axis])
    return TensorType(DType.FP32, (w.shape[1 - k_axis],))


def _reference(v: torch.Tensor, w: torch.Tensor, *, k_axis: int) -> torch.Tensor:
    factor = v.double() if k_axis == 1 else v.double()[:, None]
    total = summed(w.double() * factor, k_axis)
    return total if w.dtype == torch.float64 else total.float()


BLOCK = Block(
    name="project_vector",
    kind=Kind.PACKING,
    operands=(OperandSpec("v", doc="[K]"), OperandSpec("w", doc="[N, K], or [K, N]")),
    infer=_infer,
    reference=_reference,
    attrs=(axis_attr("k_axis", "axis of w that is contracted"),),
    internal=True,
    doc="w applied to a row vector: fp32 [N], accumulated in fp64",
)
