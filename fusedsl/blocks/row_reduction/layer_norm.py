"""LayerNorm: (x - mean) / sqrt(var + eps) * gain + bias, in fp32, rounded once to x's dtype.

The variance is the biased one, as in torch.nn.functional.layer_norm. A gain without a bias and a
bias without a gain (`bias=b`) are both legal; `offset=1` says that the gain is stored as w with
1 + w meant (Nemotron), and the sum is fp32.
"""

from __future__ import annotations

from typing import Any

import torch

from fusedsl.blocks.expansion import emit, offset_gain, stored
from fusedsl.blocks.typing import Attrs, Operands, needs_gain, not_negative, row_vector, tile
from fusedsl.ir import Attr, Block, DType, GraphBuilder, Kind, OperandSpec, Rowwise, TensorType


def _infer(operands: Operands, attrs: Attrs) -> TensorType:
    x = tile(operands, "x")
    row_vector(operands, "gain", x.cols, "x")
    row_vector(operands, "bias", x.cols, "x")
    not_negative(attrs, "eps")
    needs_gain(operands, attrs)
    return x


def _expand(b: GraphBuilder, operands: dict[str, Any], attrs: dict[str, Any], name: str) -> str:
    x, gain, bias = operands["x"], operands["gain"], operands["bias"]
    mean, var = b.call_all("row_moments", [x], {})
    r = b.call("inv_rms", var, eps=attrs["eps"])
    value = b.call("sub", x, mean)
    steps = [("mul", r)]
    if gain is not None:
        steps.append(("mul", offset_gain(b, gain, attrs["offset"])))
    if bias is not None:
        steps.append(("add", bias))
    for block, operand in steps[:-1]:
        value = emit(b, block, value, operand, dtype=DType.FP32)
    block, operand = steps[-1]
    return emit(b, block, value, operand, dtype=stored(attrs, b.types[x].dtype), name=name)


def _reference(
    x: torch.Tensor,
    gain: torch.Tensor | None,
    bias: torch.Tensor | None,
    *,
    eps: float,
    offset: int,
) -> torch.Tensor:
    scale = None if gain is None else gain + offset
    return torch.nn.functional.layer_norm(x, x.shape[-1:], scale, bias, eps)


def _eager(
    x: torch.Tensor,
    gain: torch.Tensor | None,
    bias: torch.Tensor | None,
    *,
    eps: float,
    offset: int,
) -> torch.Tensor:
    if all(v is None or v.dtype == x.dtype for v in (gain, bias)):
        return _reference(x, gain, bias, eps=eps, offset=offset)
    wide = [None if v is None else v.float() for v in (gain, bias)]
    return _reference(x.float(), *wide, eps=eps, offset=offset).to(x.dtype)


BLOCK = Block(
    name="layer_norm",
    kind=Kind.COMPOSITE,
    operands=(
        OperandSpec("x", doc="[M, K], normed along each row"),
        OperandSpec("gain", optional=True, doc="[K]"),
        OperandSpec("bias", optional=True, doc="[K]"),
    ),
    infer=_infer,
    reference=_reference,
    eager=_eager,
    attrs=(
        Attr("eps", "float", default=1e-5, doc="added to the variance, not negative"),
        Attr("offset", "int", default=0, choices=(0, 1), doc="added to the gain, in fp32"),
    ),
    laws=(Rowwise(),),
    expand=_expand,
    doc="(x - mean) / sqrt(var + eps) * gain + bias",
)
