"""Cross-entropy of each row of logits, fp32: log(sum(exp(logits))) - logits[target].

It is computed as (max - logits[target]) + log(sum(exp(logits - max))), which cancels nothing where
logits are large; a logit that is the maximum but for its rounding counts as it (`below_max`). Rows
whose target is `ignore_index` give 0. A target that is neither that nor a column gives NaN: torch
raises (or, on a GPU, ends the process), which a kernel cannot do without a synchronisation. The
mean over rows is left to the caller: `loss.sum() / (target != ignore_index).sum()` is torch's.
"""

from __future__ import annotations

from typing import Any

import torch

from fusedsl.blocks.expansion import stored, widened
from fusedsl.blocks.row_reduction.pick import picked
from fusedsl.blocks.typing import Attrs, Operands, index_of, tile
from fusedsl.ir import ONE, Attr, Block, DType, GraphBuilder, Kind, OperandSpec, Rowwise, TensorType


def _infer(operands: Operands, attrs: Attrs) -> TensorType:
    rows = tile(operands, "logits").rows
    index_of(operands, "target", rows, "logits")
    return TensorType(DType.FP32, (rows, ONE))


def _expand(b: GraphBuilder, operands: dict[str, Any], attrs: dict[str, Any], name: str) -> str:
    logits, target = operands["logits"], operands["target"]
    largest, log_sum = b.call_all("row_log_sum", [logits], {})
    chosen = b.call("pick", logits, target, out_dtype="fp32")
    loss = b.call("add", b.call("below_max", largest, chosen), log_sum)
    out = {} if stored(attrs, DType.FP32) is DType.FP32 else {"out_dtype": attrs["out_dtype"]}
    return b.call("zero_where", loss, target, equals=attrs["ignore_index"], name=name, **out)


def _reference(logits: torch.Tensor, target: torch.Tensor, *, ignore_index: int) -> torch.Tensor:
    logits = widened(logits)
    if logits.shape[-1] == 0:
        loss = logits.new_full((len(logits), 1), torch.nan)
    else:
        loss = -picked(torch.log_softmax(logits, dim=-1), target)
    return torch.where(target.reshape(-1, 1) == ignore_index, 0.0, loss)


BLOCK = Block(
    name="cross_entropy",
    kind=Kind.COMPOSITE,
    operands=(
        OperandSpec("logits", doc="[M, V]"),
        OperandSpec("target", index=True, doc="i32[M] or i64[M]: the right column of each row"),
    ),
    infer=_infer,
    reference=_reference,
    attrs=(
        Attr(
            "ignore_index",
            "int",
            default=-100,
            of_index=True,
            doc="target of the rows whose loss is 0",
        ),
    ),
    laws=(Rowwise(),),
    expand=_expand,
    doc="log_sum_exp(logits) - logits[target], fp32 [M, 1]",
)
