"""What the packing blocks share. They read weights only and run once, in torch, at bind time."""

from __future__ import annotations

import torch

from fusedsl.blocks.typing import Attrs
from fusedsl.ir import Attr, Dim, TensorType, TypeProblem


def axis_attr(name: str, doc: str) -> Attr:
    """An attribute that names an axis of a matrix."""
    return Attr(name, "int", choices=(0, 1), doc=doc)


def axis_of(attrs: Attrs, name: str, w: TensorType) -> int:
    """The axis as an index of `w`. Raises TypeProblem F0303."""
    axis = attrs[name]
    assert isinstance(axis, int)
    if axis < w.rank:
        return axis
    raise TypeProblem(
        "F0303",
        f"attribute '{name}' names an axis that the operand does not have",
        expected=f"an axis below {w.rank}",
        got=str(axis),
        fix=f"write {name}=0",
    )


def vector_along(name: str, value: object, cols: Dim) -> None:
    """Check a row vector against the axis it goes along. Raises TypeProblem F0402."""
    if isinstance(value, TensorType) and value.shape == (cols,):
        return
    raise TypeProblem(
        "F0402",
        f"'{name}' must be a row vector along that axis of 'w'",
        operand=name,
        expected=f"[{cols}]",
        got=str(value),
        fix=f"give '{name}' the shape [{cols}], or name the other axis",
    )


def summed(x: torch.Tensor, axis: int) -> torch.Tensor:
    """Sum accumulated in fp64; fp32 out, or fp64 for an fp64 operand."""
    total = x.double().sum(dim=axis)
    return total if x.dtype == torch.float64 else total.float()
