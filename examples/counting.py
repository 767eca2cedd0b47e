"""Launches and bytes of a program: one kernel per operator of torch, and fused.

By operator, every call in the program's text (a norm, a projection with its bias, an activation,
a sum) is one kernel that reads its operands and writes its result: what eager torch needs at
least. Views are free.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rich.table import Table

import fusedsl


@dataclass(frozen=True)
class Counts:
    """Kernel launches, and bytes read and written in device memory."""

    launches: int = 0
    fused_launches: int = 0
    bytes: int = 0
    fused_bytes: int = 0

    @staticmethod
    def of(program: fusedsl.Program, dims: Mapping[str, int]) -> Counts:
        """Of one call of a program at these sizes."""
        graph, fused = program.graph("source"), program.explain(dims)
        moved = 0
        for node in graph.nodes:
            names = {*node.inputs, *(r.name for r in node.results)}
            moved += sum(graph.types[name].nbytes(dims) for name in names)
        return Counts(len(graph.nodes), fused.fused_launches, moved, fused.fused_bytes)

    def plus(self, other: Counts, times: int) -> Counts:
        """The sum, `other` counted `times` times."""
        return Counts(
            self.launches + times * other.launches,
            self.fused_launches + times * other.fused_launches,
            self.bytes + times * other.bytes,
            self.fused_bytes + times * other.fused_bytes,
        )

    def cells(self) -> tuple[str, ...]:
        """The columns of `counting_table` after the first ones."""
        megabytes = (f"{size / 1e6:.2f}" for size in (self.bytes, self.fused_bytes))
        return (str(self.launches), str(self.fused_launches), *megabytes)


def counting_table(title: str, *more: str) -> Table:
    """An empty table: program, the columns in `more`, launches and megabytes."""
    table = Table(title=title, title_justify="left")
    table.add_column("program")
    for name in (*more, "kernels by operator", "fused", "MB by operator", "fused"):
        table.add_column(name, justify="right")
    return table
