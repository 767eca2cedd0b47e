"""Integers go where a block takes indices, and nothing else does."""

from __future__ import annotations

from collections.abc import Mapping

from fusedsl.ir.block import Block, OperandType, TypeProblem
from fusedsl.ir.types import NUMBERS, TensorType


def check_indices(block: Block, operands: Mapping[str, OperandType]) -> None:
    """Hold the operands of a call against what they may be. Raises TypeProblem F0401."""
    for spec in block.operands:
        given = operands[spec.name]
        if not isinstance(given, TensorType) or given.dtype.is_index == spec.index:
            continue
        if spec.index:
            raise TypeProblem(
                "F0401",
                f"'{spec.name}' names columns, so it must hold integers",
                operand=spec.name,
                expected="i64[rows] or i32[rows]",
                got=str(given),
                fix=f"declare it as a parameter '{spec.name}: i64[{given.shape[0]}]'",
            )
        raise TypeProblem(
            "F0401",
            f"'{block.name}' computes with numbers, and '{spec.name}' holds indices",
            operand=spec.name,
            expected=" or ".join(NUMBERS),
            got=str(given),
            fix="indices only name columns: pass them as the index of pick or cross_entropy",
        )
