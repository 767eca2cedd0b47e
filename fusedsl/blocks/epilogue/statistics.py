"""The two halves of a row statistic that a GEMM leaves behind for the next kernel.

`partial_*` reduces each column tile on its own, in the epilogue that makes the tile; `merge_*`
joins the pieces where the statistic is used. merge(partial(x)) = statistic(x).
"""

from __future__ import annotations

from typing import Any

import torch

from fusedsl.blocks.typing import Attrs, Operands, tile
from fusedsl.ir import (
    ONE,
    Attr,
    Block,
    Dim,
    DType,
    Kind,
    OperandSpec,
    Reduction,
    Rowwise,
    TensorType,
)

#: Pieces the torch reference cuts a row into; any number gives the same statistic.
REFERENCE_PIECES = 3


def partial_of(name: str, reduction: Reduction, results: tuple[str, ...]) -> Block:
    """The block that reduces each column tile of x to one state: fp32 [M, tiles] per result."""

    def infer(operands: Operands, attrs: Attrs) -> Any:
        x, tiles = tile(operands, "x"), attrs["tiles"]
        assert isinstance(tiles, Dim)
        shape = TensorType(DType.FP32, (x.rows, tiles))
        return (shape,) * len(results) if len(results) > 1 else shape

    def reference(x: torch.Tensor, *, tiles: int | None = None) -> Any:
        pieces = [reduction.chunk_reference(piece) for piece in _pieces(x)]
        states = [torch.cat(state, dim=-1) for state in zip(*pieces, strict=True)]
        return tuple(states) if len(states) > 1 else states[0]

    return Block(
        name=name,
        kind=Kind.EPILOGUE,
        operands=(OperandSpec("x", doc="[M, K]"),),
        infer=infer,
        reference=reference,
        attrs=(Attr("tiles", "dim", doc="column tiles of the kernel that makes x"),),
        laws=(Rowwise(),),
        reduction=reduction,
        results=results if len(results) > 1 else (),
        internal=True,
        flops=2,
        doc="per-tile state of a row statistic",
    )


def merge_of(
    name: str, reduction: Reduction, operands: tuple[str, ...], results: tuple[str, ...]
) -> Block:
    """The block that joins per-tile states [M, tiles] to the statistic: fp32 [M, 1] per result."""

    def infer(types: Operands, attrs: Attrs) -> Any:
        rows = tile(types, operands[0]).rows
        column = TensorType(DType.FP32, (rows, ONE))
        return (column,) * len(results) if len(results) > 1 else column

    def reference(*states: torch.Tensor, width: int) -> Any:
        size = -(-width // REFERENCE_PIECES)
        starts = range(0, max(width, 1), max(size, 1))
        counts = torch.tensor([min(size, width - s) for s in starts], dtype=states[0].dtype)
        merged = reduction.merge_reference(*states, counts.to(states[0].device), width)
        return merged

    return Block(
        name=name,
        kind=Kind.EPILOGUE,
        operands=tuple(OperandSpec(op, doc="[M, tiles]") for op in operands),
        infer=infer,
        reference=reference,
        attrs=(Attr("width", "dim", doc="columns of the row the statistic is of"),),
        laws=(Rowwise(),),
        reduction=reduction,
        results=results if len(results) > 1 else (),
        internal=True,
        flops=2,
        doc="joins per-tile states to the row statistic",
    )


def _pieces(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    width = x.shape[-1]
    size = max(1, -(-width // REFERENCE_PIECES))
    return x.split(size, dim=-1) if width else (x,)
