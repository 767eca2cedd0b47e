"""log(sum(exp(x))) of each row, in fp32 and without overflow; a row of -inf gives -inf."""

from __future__ import annotations

from typing import Any

import torch

from fusedsl.blocks.expansion import emit, stored, widened
from fusedsl.blocks.row_reduction.common import column_fp32
from fusedsl.ir import Block, DType, GraphBuilder, Kind, OperandSpec, Rowwise


def _expand(b: GraphBuilder, operands: dict[str, Any], attrs: dict[str, Any], name: str) -> str:
    largest, log_sum = b.call_all("row_log_sum", [operands["x"]], {})
    return emit(b, "add", largest, log_sum, dtype=stored(attrs, DType.FP32), name=name)


def _reference(x: torch.Tensor) -> torch.Tensor:
    return torch.logsumexp(widened(x), dim=-1, keepdim=True)


BLOCK = Block(
    name="log_sum_exp",
    kind=Kind.COMPOSITE,
    operands=(OperandSpec("x", doc="[M, K]"),),
    infer=column_fp32,
    reference=_reference,
    laws=(Rowwise(),),
    expand=_expand,
    doc="log(sum(exp(x))) of each row, fp32 [M, 1]",
)
