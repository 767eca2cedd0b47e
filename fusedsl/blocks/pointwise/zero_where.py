"""x, and 0 in rows whose index has a given value: what ignored targets do to a loss."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from fusedsl.blocks.pointwise.common import Cotangents, Names, NodeAttrs, NodeOperands
from fusedsl.blocks.typing import Attrs, Operands, index_of, vector_or_tile
from fusedsl.ir import Attr, Block, GraphBuilder, Kind, OperandSpec, Rowwise, TensorType


@triton.jit
def zero_where(x, index, EQUALS: tl.constexpr):
    """0 where the index is EQUALS, whatever x holds there."""
    return tl.where(index == EQUALS, 0.0, x)


def _infer(operands: Operands, attrs: Attrs) -> TensorType:
    x = vector_or_tile(operands, "x")
    index_of(operands, "index", x.rows, "x")
    return x


def _reference(x: torch.Tensor, index: torch.Tensor, *, equals: int) -> torch.Tensor:
    return torch.where(index.reshape(-1, 1) == equals, 0.0, x)


def _vjp(
    b: GraphBuilder, operands: NodeOperands, attrs: NodeAttrs, results: Names, cotangents: Names
) -> Cotangents:
    (dy,) = cotangents
    return {"x": b.call("zero_where", dy, operands["index"], equals=attrs["equals"])}


BLOCK = Block(
    name="zero_where",
    kind=Kind.POINTWISE,
    operands=(
        OperandSpec("x", doc="[M, N]"),
        OperandSpec("index", index=True, doc="i32[M] or i64[M], one for each row"),
    ),
    infer=_infer,
    reference=_reference,
    attrs=(Attr("equals", "int", of_index=True, doc="index of the rows that become 0"),),
    laws=(Rowwise(),),
    triton=zero_where,
    vjp=_vjp,
    on_card=False,
    doc="x, and 0 in the rows where index == equals",
)
