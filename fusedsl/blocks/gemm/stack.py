"""Two weights or biases as one, side by side along the projection's output columns."""

from __future__ import annotations

import torch

from fusedsl.blocks.gemm.packing import axis_attr, axis_of
from fusedsl.blocks.typing import Attrs, Operands, same_dtype, vector_or_tile
from fusedsl.ir import Block, Dim, Kind, OperandSpec, TensorType, TypeProblem


def _infer(operands: Operands, attrs: Attrs) -> TensorType:
    x, y = vector_or_tile(operands, "a"), vector_or_tile(operands, "b")
    same_dtype({"a": x, "b": y})
    axis = axis_of(attrs, "axis", x)
    if x.rank != y.rank:
        raise _mismatch(f"'a' has {x.rank} dimensions and 'b' has {y.rank}", x, y)
    for index, (m, n) in enumerate(zip(x.shape, y.shape, strict=True)):
        if index != axis and m != n:
            raise _mismatch(f"'a' and 'b' differ on axis {index}: {m} and {n}", x, y)
    first, second = x.shape[axis], y.shape[axis]
    if first.symbol != second.symbol:
        raise _mismatch(f"{first} + {second} is not one dimension", x, y)
    total = Dim(first.factor + second.factor, first.symbol)
    return TensorType(x.dtype, (*x.shape[:axis], total, *x.shape[axis + 1 :]))


def _mismatch(message: str, x: TensorType, y: TensorType) -> TypeProblem:
    return TypeProblem(
        "F0402",
        message,
        operand="b",
        expected=f"the shape of 'a', {x}, but for the stacked axis",
        got=str(y),
        fix="stack two weights of the same layout",
    )


def _reference(a: torch.Tensor, b: torch.Tensor, *, axis: int) -> torch.Tensor:
    return torch.cat((a, b), dim=axis)


BLOCK = Block(
    name="stack",
    kind=Kind.PACKING,
    operands=(
        OperandSpec("a", doc="a matrix, or a row vector: the first columns"),
        OperandSpec("b", doc="the columns after them"),
    ),
    infer=_infer,
    reference=_reference,
    attrs=(axis_attr("axis", "axis that holds the output columns"),),
    internal=True,
    doc="a, then b, along one axis",
)
