"""Softmax of each row, in fp32 until one rounding; a row of -inf gives NaN, as torch."""

from __future__ import annotations

from typing import Any

import torch

from fusedsl.blocks.expansion import emit, stored
from fusedsl.blocks.typing import Attrs, Operands, tile
from fusedsl.ir import Block, GraphBuilder, Kind, OperandSpec, Rowwise, TensorType


def _infer(operands: Operands, attrs: Attrs) -> TensorType:
    return tile(operands, "x")


def _expand(b: GraphBuilder, operands: dict[str, Any], attrs: dict[str, Any], name: str) -> str:
    x = operands["x"]
    # the maximum is exact in any dtype; an fp32 one makes the difference fp32 as well
    m = b.call("row_max", x, out_dtype="fp32")
    e = b.call("exp", b.call("sub", x, m))
    s = b.call("row_sum", e)
    share = b.call("div", 1.0, s)  # one division a row; the sum is at least 1
    return emit(b, "mul", e, share, dtype=stored(attrs, b.types[x].dtype), name=name)


def _reference(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, dim=-1)


BLOCK = Block(
    name="softmax",
    kind=Kind.COMPOSITE,
    operands=(OperandSpec("x", doc="[M, K], normalised along each row"),),
    infer=_infer,
    reference=_reference,
    laws=(Rowwise(),),
    expand=_expand,
    doc="exp(x - max(x)) / sum(exp(x - max(x)))",
)
