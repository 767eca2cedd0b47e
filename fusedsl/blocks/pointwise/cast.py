"""Round to another storage dtype; between registers of one kernel it is the identity."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from fusedsl.blocks.pointwise.common import Cotangents, Names, NodeAttrs, NodeOperands
from fusedsl.blocks.typing import Attrs, Operands, elementwise
from fusedsl.ir import (
    Attr,
    Block,
    DType,
    Elementwise,
    GraphBuilder,
    Kind,
    LinearIn,
    OperandSpec,
    Rowwise,
    TensorType,
)


def _infer(operands: Operands, attrs: Attrs) -> TensorType:
    return elementwise(operands, attrs).with_dtype(DType(attrs["dtype"]))


@triton.jit
def cast(x, DTYPE: tl.constexpr):
    """x itself: it is rounded where it is stored, in fp32 registers."""
    return x


def _reference(x: torch.Tensor, *, dtype: str) -> torch.Tensor:
    return x


def _eager(x: torch.Tensor, *, dtype: str) -> torch.Tensor:
    return x.to(DType(dtype).torch)


def _vjp(
    b: GraphBuilder, operands: NodeOperands, attrs: NodeAttrs, results: Names, cotangents: Names
) -> Cotangents:
    dtype = b.types[operands["x"]].dtype.value
    return {"x": b.call("cast", cotangents[0], dtype=dtype)}


BLOCK = Block(
    name="cast",
    kind=Kind.POINTWISE,
    operands=(OperandSpec("x", doc="any shape"),),
    infer=_infer,
    reference=_reference,
    eager=_eager,
    attrs=(Attr("dtype", "str", choices=("bf16", "fp16", "fp32"), doc="dtype of the result"),),
    laws=(Elementwise(), Rowwise(), LinearIn("x")),
    triton=cast,
    vjp=_vjp,
    doc="x in another dtype",
)
