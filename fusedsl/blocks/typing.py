"""Type inference shared by blocks: broadcasting, promotion, and the messages for both."""

from __future__ import annotations

from collections.abc import Mapping

from fusedsl.ir import ONE, AttrValue, Dim, OperandType, TensorType, TypeProblem, promote

Operands = Mapping[str, OperandType]
Attrs = Mapping[str, AttrValue]


def present(operands: Operands) -> dict[str, TensorType]:
    """The tensor operands, literals and omitted ones left out."""
    return {name: t for name, t in operands.items() if isinstance(t, TensorType)}


def elementwise(operands: Operands, attrs: Attrs) -> TensorType:
    """Broadcast and promote as torch does. Raises TypeProblem F0402 naming the dimension."""
    types = present(operands)
    for name in types:
        vector_or_tile(operands, name)
    rank = max(t.rank for t in types.values())
    shape: list[Dim] = []
    for axis in range(-rank, 0):
        sizes = {n: t.shape[axis] for n, t in types.items() if t.rank >= -axis}
        wide = {n: d for n, d in sizes.items() if d != ONE}
        if len(set(wide.values())) > 1:
            raise _mismatch(wide, types, axis)
        shape.append(next(iter(wide.values()), ONE))
    _no_outer_product(types, rank)
    return TensorType(promote(*(t.dtype for t in types.values())), tuple(shape))


def _mismatch(sizes: dict[str, Dim], types: Mapping[str, TensorType], axis: int) -> TypeProblem:
    (first, a), (second, b) = list(sizes.items())[:2]
    which = "columns" if axis == -1 else "rows"
    return TypeProblem(
        "F0402",
        f"'{first}' and '{second}' differ in their {which}: {a} and {b}",
        operand=second,
        expected=f"{which} {a} (or 1)",
        got=f"{types[second]}",
        fix=f"give '{second}' {a} {which}, or reduce it to one value",
    )


def _no_outer_product(types: Mapping[str, TensorType], rank: int) -> None:
    if rank != 2 or any(t.rank == 2 and t.cols != ONE for t in types.values()):
        return
    vector = next((n for n, t in types.items() if t.rank == 1 and t.cols != ONE), None)
    if vector is None:
        return
    raise TypeProblem(
        "F0402",
        "a column vector and a row vector do not make a tile",
        operand=vector,
        expected="at least one operand of shape [rows, columns]",
        got=str(types[vector]),
        fix="combine each vector with a tile instead",
    )


def tile(operands: Operands, name: str) -> TensorType:
    """The operand as a tile [rows, columns]. Raises TypeProblem F0403."""
    value = operands[name]
    if isinstance(value, TensorType) and value.rank == 2:
        return value
    raise TypeProblem(
        "F0403",
        f"'{name}' must have two dimensions",
        operand=name,
        expected="[rows, columns]",
        got=str(value),
        fix="flatten the leading dimensions first: x.view(-1, K)",
    )


def vector_or_tile(operands: Operands, name: str) -> TensorType:
    """The operand as a vector or a tile. Raises TypeProblem F0403."""
    value = operands[name]
    if isinstance(value, TensorType) and value.rank in (1, 2):
        return value
    raise TypeProblem(
        "F0403",
        f"'{name}' must have one or two dimensions",
        operand=name,
        expected="[columns] or [rows, columns]",
        got=str(value),
        fix="flatten the leading dimensions first: x.view(-1, K)",
    )


def row_vector(operands: Operands, name: str, cols: Dim, of: str) -> TensorType | None:
    """An optional row vector as wide as `of`. Raises TypeProblem F0402."""
    value = operands[name]
    if value is None:
        return None
    if isinstance(value, TensorType) and value.shape == (cols,):
        return value
    raise TypeProblem(
        "F0402",
        f"'{name}' must be a row vector as wide as '{of}'",
        operand=name,
        expected=f"[{cols}]",
        got=str(value),
        fix=f"give '{name}' the shape [{cols}]",
    )


def same_dtype(types: Mapping[str, TensorType]) -> None:
    """All operands in one dtype. Raises TypeProblem F0401."""
    (first, a), *rest = types.items()
    for name, t in rest:
        if t.dtype is not a.dtype:
            raise TypeProblem(
                "F0401",
                f"'{first}' is {a.dtype} and '{name}' is {t.dtype}",
                operand=name,
                expected=str(a.dtype),
                got=str(t.dtype),
                fix=f"declare '{name}' as {a.dtype}, or insert cast(..., dtype={a.dtype})",
            )


def halved_columns(operands: Operands, name: str) -> TensorType:
    """One half of a stacked operand: `[M, 2*F]` gives `[M, F]`. Raises TypeProblem F0406."""
    x = vector_or_tile(operands, name)
    half = x.cols.halved()
    if half is not None:
        return TensorType(x.dtype, (*x.shape[:-1], half))
    fix = f"give '{name}' an even number of columns"
    if not x.cols.is_static:
        fix = f"write the last dimension of '{name}' as {x.cols.doubled()} in the signature"
    raise TypeProblem(
        "F0406",
        f"the columns of '{name}' cannot be halved: {x.cols}",
        operand=name,
        expected="an even number of columns, two halves side by side",
        got=str(x),
        fix=fix,
    )


def not_negative(attrs: Attrs, name: str) -> None:
    """An attribute that may be zero but not less. Raises TypeProblem F0303."""
    value = attrs[name]
    assert isinstance(value, float)
    if value >= 0.0:
        return
    raise TypeProblem(
        "F0303",
        f"attribute '{name}' must not be negative",
        expected="a number >= 0",
        got=f"{value:g}",
        fix=f"write {name}= with a number >= 0",
    )


def needs_gain(operands: Operands, attrs: Attrs) -> None:
    """`offset` is added to the gain, so it needs one. Raises TypeProblem F0303."""
    if operands["gain"] is not None or attrs["offset"] == 0:
        return
    raise TypeProblem(
        "F0303",
        "attribute 'offset' is added to the gain, and there is none",
        operand="gain",
        expected="a gain, or offset=0",
        got=f"offset={attrs['offset']} and no gain",
        fix="pass the gain, or leave out offset=",
    )


def index_of(operands: Operands, name: str, rows: Dim, of: str) -> None:
    """An index vector with as many rows as `of`. Raises TypeProblem F0402."""
    value = operands[name]
    if isinstance(value, TensorType) and value.is_index_vector and value.rows == rows:
        return
    raise TypeProblem(
        "F0402",
        f"'{name}' must hold one index for each row of '{of}'",
        operand=name,
        expected=f"i64[{rows}] or i32[{rows}]",
        got=str(value),
        fix=f"give '{name}' the shape [{rows}]",
    )
