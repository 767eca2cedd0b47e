"""Gated units: activation(gate) * up, of one stacked projection or of two."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fusedsl.blocks.expansion import emit, stored
from fusedsl.blocks.typing import Attrs, Operands, elementwise, halved_columns
from fusedsl.ir import (
    Attr,
    Block,
    GraphBuilder,
    Kind,
    OperandSpec,
    Rowwise,
    TensorType,
    promote,
)


def gated_unit(
    name: str, activation: str, function: Callable[..., torch.Tensor], attrs: tuple[Attr, ...] = ()
) -> Block:
    """The block activation(gate) * up.

    A single operand [M, 2*F] holds the gate in its first F columns and up in the rest. Interleaved
    columns look the same and are never guessed: put such a weight in halves first.
    `function` is the activation in torch; `attrs` are handed on to it and to its block.
    """

    def infer(operands: Operands, attrs: Attrs) -> TensorType:
        if operands["up"] is None:
            return halved_columns(operands, "gate")
        return elementwise(operands, attrs)

    def expand(b: GraphBuilder, operands: dict[str, Any], attrs: dict[str, Any], name: str) -> str:
        gate, up = operands["gate"], operands["up"]
        passed = {key: value for key, value in attrs.items() if key != "out_dtype"}
        if up is None:
            gate, up = (b.call("half", operands["gate"], index=index) for index in (0, 1))
        natural = promote(b.types[gate].dtype, b.types[up].dtype)
        active = b.call(activation, gate, **passed)
        return emit(b, "mul", active, up, dtype=stored(attrs, natural), name=name)

    def reference(gate: torch.Tensor, up: torch.Tensor | None, **attrs: Any) -> torch.Tensor:
        if up is None:
            gate, up = gate.chunk(2, dim=-1)
        return function(gate, **attrs) * up

    return Block(
        name=name,
        kind=Kind.COMPOSITE,
        operands=(
            OperandSpec("gate", doc="[M, 2*F], the gate's columns first, then up's; or [M, F]"),
            OperandSpec("up", optional=True, doc="[M, F], where gate holds the gate alone"),
        ),
        infer=infer,
        reference=reference,
        attrs=attrs,
        laws=(Rowwise(),),
        expand=expand,
        doc=f"{activation}(gate) * up",
    )
