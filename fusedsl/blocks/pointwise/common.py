"""What pointwise blocks share: the signature of a VJP, and gradients that are one product.

A VJP gives cotangents in the broadcast shape of the result: whoever accumulates them sums over the
axes that the operand was broadcast along, once, in fp32.
"""

from __future__ import annotations

from typing import Any

from fusedsl.ir import GraphBuilder

Names = tuple[str, ...]
NodeOperands = dict[str, Any]
NodeAttrs = dict[str, Any]
Cotangents = dict[str, str]


def of_tensors(operands: NodeOperands, gradients: dict[str, Any]) -> Cotangents:
    """Build the gradient of each tensor operand; literals have none.

    `gradients` maps an operand to a function of no arguments that adds its nodes.
    """
    return {name: make() for name, make in gradients.items() if isinstance(operands[name], str)}


def times(b: GraphBuilder, cotangents: Names, factor: str | float) -> Cotangents:
    """The VJP of a unary block: dx = dy * factor."""
    return {"x": b.call("mul", cotangents[0], factor)}
