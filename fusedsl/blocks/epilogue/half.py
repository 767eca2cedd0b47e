"""One half of the columns of a stacked projection: gate (0), then up (1)."""

from __future__ import annotations

import torch

from fusedsl.blocks.typing import Attrs, Operands, halved_columns
from fusedsl.ir import (
    Attr,
    Block,
    HalvesOf,
    HomogeneousIn,
    Kind,
    LinearIn,
    OperandSpec,
    Rowwise,
    TensorType,
)


def _infer(operands: Operands, attrs: Attrs) -> TensorType:
    return halved_columns(operands, "x")


def _reference(x: torch.Tensor, *, index: int) -> torch.Tensor:
    return x.chunk(2, dim=-1)[index]


BLOCK = Block(
    name="half",
    kind=Kind.EPILOGUE,
    operands=(OperandSpec("x", doc="[M, 2*F], or [2*F]: two halves side by side"),),
    infer=_infer,
    reference=_reference,
    attrs=(Attr("index", "int", choices=(0, 1), doc="0: the first half; 1: the second"),),
    laws=(Rowwise(), LinearIn("x"), HomogeneousIn("x", 1), HalvesOf("x")),
    doc="one half of the columns of x",
)
