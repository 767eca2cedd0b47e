"""What the projections share: types, and a bias that is added to the raw accumulator."""

from __future__ import annotations

from typing import Any

from fusedsl.blocks.expansion import emit, stored
from fusedsl.blocks.typing import Operands, row_vector, same_dtype, tile, vector_or_tile
from fusedsl.ir import GraphBuilder, TensorType, TypeProblem


def projection(operands: Operands, *, block: str, other: str, k_axis: int) -> TensorType:
    """x [M, K] against a weight that holds K on `k_axis`: [M, N] in the dtype of x.

    Raises TypeProblem F0401, F0402, F0403; a weight that fits the other layout is named as such.
    """
    x, w = vector_or_tile(operands, "x"), tile(operands, "w")
    n = w.shape[1 - k_axis]
    if x.cols != w.shape[k_axis]:
        shapes = [f"[N, {x.cols}]", f"[{x.cols}, N]"]
        layouts = ["[N, K]", "[K, N]"]
        fits_other = x.cols == n
        raise TypeProblem(
            "F0402",
            f"'x' has {x.cols} columns and 'w' contracts {w.shape[k_axis]}",
            operand="w",
            expected=f"{shapes[1 - k_axis]} ({block} takes the weight as {layouts[1 - k_axis]})",
            got=str(w),
            fix=f"this weight is {layouts[k_axis]}: use {other}(x, w)"
            if fits_other
            else f"give 'w' the shape {shapes[1 - k_axis]}",
        )
    same_dtype({"x": x, "w": w})
    row_vector(operands, "bias", n, "w")
    return TensorType(x.dtype, (*x.shape[:-1], n))


def expand_projection(
    b: GraphBuilder, block: str, operands: dict[str, Any], attrs: dict[str, Any], name: str
) -> str:
    """The raw projection in fp32, then the bias, then one rounding."""
    x, w, bias = operands["x"], operands["w"], operands["bias"]
    if bias is None:
        return b.call(block, x, w, name=name, **attrs)
    raw = b.call(block, x, w, out_dtype="fp32")
    return emit(b, "add", raw, bias, dtype=stored(attrs, b.types[x].dtype), name=name)
