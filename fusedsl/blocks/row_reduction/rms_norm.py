"""RMSNorm: x / sqrt(mean(x^2) + eps) * gain. The order of its roundings is an attribute.

| cast | what it rounds | result |
|---|---|---|
| llama | the normed row to x's dtype, then its product with the gain | promotion of x and gain |
| gemma | the product of the normed row and (offset + gain), both fp32 | x's dtype |
| olmo2 | the product of the gain and the normed row, both fp32 | x's dtype |
| t5 | the normed row to the gain's dtype, then its product with the gain | the gain's dtype |

`offset=1` says that the gain is stored as w with 1 + w meant (Gemma: `cast=gemma, offset=1`). The
sum is fp32 under every cast order; under llama and t5 the product with it is rounded once, to the
dtype in the table. A moved norm drops roundings and is closer to fp64 than any of these;
`numerics="as_written"` keeps them.
"""

from __future__ import annotations

from typing import Any

import torch

from fusedsl.blocks.expansion import emit, offset_gain, stored, widened
from fusedsl.blocks.typing import Attrs, Operands, needs_gain, not_negative, row_vector, tile
from fusedsl.ir import (
    Attr,
    Block,
    DType,
    GraphBuilder,
    Kind,
    OperandSpec,
    Rowwise,
    TensorType,
    promote,
)

CASTS = ("llama", "gemma", "olmo2", "t5")


def _infer(operands: Operands, attrs: Attrs) -> TensorType:
    x = tile(operands, "x")
    gain = row_vector(operands, "gain", x.cols, "x")
    not_negative(attrs, "eps")
    needs_gain(operands, attrs)
    return x if gain is None else x.with_dtype(_result(attrs["cast"], x.dtype, gain.dtype))


def _result(cast: object, x: DType, gain: DType) -> DType:
    return {"llama": promote(x, gain), "t5": gain}.get(str(cast), x)


def _normed(cast: object, x: DType, gain: DType) -> DType:
    return {"llama": x, "t5": gain}.get(str(cast), DType.FP32)


def _expand(b: GraphBuilder, operands: dict[str, Any], attrs: dict[str, Any], name: str) -> str:
    x, gain, cast = operands["x"], operands["gain"], attrs["cast"]
    own = b.types[x].dtype
    s = b.call("row_mean_square", x)
    r = b.call("inv_rms", s, eps=attrs["eps"])
    if gain is None:
        return emit(b, "mul", x, r, dtype=stored(attrs, own), name=name)
    other = b.types[gain].dtype
    n = emit(b, "mul", x, r, dtype=_normed(cast, own, other))
    g = offset_gain(b, gain, attrs["offset"])
    return emit(b, "mul", n, g, dtype=stored(attrs, _result(cast, own, other)), name=name)


def _reference(
    x: torch.Tensor, gain: torch.Tensor | None, *, eps: float, offset: int, cast: str
) -> torch.Tensor:
    normed = x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + eps)
    return normed if gain is None else normed * (gain + offset)


def _eager(
    x: torch.Tensor, gain: torch.Tensor | None, *, eps: float, offset: int, cast: str
) -> torch.Tensor:
    wide = widened(x)
    normed = wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)
    if gain is None:
        return normed.to(x.dtype)
    scale = gain if offset == 0 else widened(gain) + offset
    if cast == "llama":
        return (scale * normed.to(x.dtype)).to(torch.promote_types(x.dtype, gain.dtype))
    if cast == "t5":
        return (scale * normed.to(gain.dtype)).to(gain.dtype)
    return (widened(scale) * normed).to(x.dtype)


BLOCK = Block(
    name="rms_norm",
    kind=Kind.COMPOSITE,
    operands=(
        OperandSpec("x", doc="[M, K], normed along each row"),
        OperandSpec("gain", optional=True, doc="[K]"),
    ),
    infer=_infer,
    reference=_reference,
    eager=_eager,
    attrs=(
        Attr(
            "eps",
            "float",
            default=1.1920928955078125e-07,
            doc="added to the mean square, not negative; by default fp32's epsilon, as torch's",
        ),
        Attr("offset", "int", default=0, choices=(0, 1), doc="added to the gain, in fp32"),
        Attr("cast", "str", default="llama", choices=CASTS, doc="order of the roundings"),
    ),
    laws=(Rowwise(),),
    expand=_expand,
    doc="x / sqrt(mean(x^2) + eps) * gain",
)
