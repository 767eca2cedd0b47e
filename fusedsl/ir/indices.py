"""Integers go where a block takes indices, and nothing else does; which ones they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fusedsl.ir.block import Block, Kind, OperandType, TypeProblem
from fusedsl.ir.graph import Graph
from fusedsl.ir.types import NUMBERS, ONE, Dim, TensorType


@dataclass(frozen=True)
class IndexRange:
    """What the values of a parameter of indices may be.

    Fields:
        columns: of each tile that it is used on: a value is less than all of them.
        special: values beside those, which blocks treat on their own (`ignore_index`).
    """

    columns: tuple[Dim, ...]
    special: tuple[int, ...]

    def stop(self, env: Mapping[str, int]) -> int:
        """The first value that is no index, at least 1."""
        return max(1, min(dim.bind(env) for dim in self.columns))


def index_range(graph: Graph, name: str) -> IndexRange:
    """What the readers of a parameter of indices take."""
    columns: list[Dim] = []
    special: list[int] = []
    for node in graph.readers[name]:
        values = (node.attr(a.name) for a in node.block.attrs if a.of_index)
        special += [value for value in values if isinstance(value, int)]
        if node.block.kind is not Kind.POINTWISE:  # which has the same index for all columns
            columns.append(graph.types[node.inputs[0]].cols)
    return IndexRange(tuple(dict.fromkeys(columns)) or (ONE,), tuple(dict.fromkeys(special)))


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
