"""A small library of its own, so that these tests know no block of the product."""

from __future__ import annotations

from typing import Any

import torch

from fusedsl.ir import (
    ONE,
    Attr,
    Block,
    BlockLibrary,
    DType,
    Elementwise,
    Kind,
    LinearIn,
    OperandSpec,
    Scales,
    TensorType,
    TypeProblem,
)


def _like_first(operands: Any, attrs: Any) -> TensorType:
    types = [t for t in operands.values() if isinstance(t, TensorType)]
    for name, t in operands.items():
        if isinstance(t, TensorType) and t.cols not in (types[0].cols, ONE):
            raise TypeProblem(
                "F0402",
                "columns differ",
                operand=name,
                expected=str(types[0].cols),
                got=str(t.cols),
                fix="make them equal",
            )
    return types[0]


def _two(operands: Any, attrs: Any) -> tuple[TensorType, TensorType]:
    column = TensorType(DType.FP32, (operands["x"].rows, ONE))
    return column, column


SCALE = Block(
    name="scale",
    kind=Kind.POINTWISE,
    operands=(OperandSpec("x"), OperandSpec("shift", optional=True, scalar=True)),
    infer=_like_first,
    reference=lambda x, shift, *, by, times, kind, on, size: (
        x * by * times + (0 if shift is None else shift)
    ),
    attrs=(
        Attr("by", "float", minimum=0.0),
        Attr("times", "int", default=1, choices=(1, 2)),
        Attr("kind", "str", default="plain", choices=("plain", "fancy")),
        Attr("on", "bool", default=True),
        Attr("size", "dim", default=1),
    ),
    laws=(Elementwise(), LinearIn("x")),
    doc="x * by",
)
TIMES = Block(
    name="times",
    kind=Kind.POINTWISE,
    operands=(OperandSpec("a", scalar=True), OperandSpec("b", scalar=True)),
    infer=_like_first,
    reference=lambda a, b: a * b,
    eager=lambda a, b: (a * b).float(),
    laws=(Elementwise(), LinearIn("a"), LinearIn("b"), Scales("a", "b")),
    infix="*",
)
MINUS = Block(
    name="minus",
    kind=Kind.POINTWISE,
    operands=(OperandSpec("x"),),
    infer=_like_first,
    reference=lambda x: -x,
    prefix="-",
)
SPREAD = Block(
    name="spread",
    kind=Kind.ROW_REDUCTION,
    operands=(OperandSpec("x"),),
    infer=_two,
    reference=lambda x: (x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)),
    results=("low", "high"),
)
PACK = Block(
    name="pack",
    kind=Kind.PACKING,
    operands=(OperandSpec("w"),),
    infer=_like_first,
    reference=torch.clone,
    internal=True,
)
LIBRARY = BlockLibrary((SCALE, TIMES, MINUS, SPREAD, PACK))
