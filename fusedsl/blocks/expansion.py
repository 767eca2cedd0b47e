"""What composites share when they expand: dtypes of the nodes, and the gain's offset."""

from __future__ import annotations

from typing import Any

import torch

from fusedsl.ir import DType, GraphBuilder, promote


def stored(attrs: dict[str, Any], otherwise: DType) -> DType:
    """The dtype a composite's result is stored in: `out_dtype`, or what its cast order gives."""
    out = attrs["out_dtype"]
    return otherwise if out == "auto" else DType(out)


def emit(
    b: GraphBuilder, block: str, x: str, y: str | float, *, dtype: DType, name: str | None = None
) -> str:
    """Add a two-operand node whose result is stored in `dtype`, naming it only where promotion
    would give another."""
    natural = promote(*(b.types[op].dtype for op in (x, y) if isinstance(op, str)))
    attrs = {} if natural is dtype else {"out_dtype": dtype.value}
    return b.call(block, x, y, name=name, **attrs)


def offset_gain(b: GraphBuilder, gain: str, offset: int) -> str:
    """`gain + offset` in fp32: 1 + w would lose w's low bits in bf16."""
    if offset == 0:
        return gain
    if b.types[gain].dtype is not DType.FP32:
        gain = b.call("cast", gain, dtype="fp32")
    return b.call("add", gain, float(offset))


def widened(x: torch.Tensor) -> torch.Tensor:
    """fp64 stays, everything narrower becomes fp32."""
    return x if x.dtype == torch.float64 else x.float()
