"""What a kernel is to a schedule: keys that kernels doing the same work share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fusedsl.fuse import KernelPlan, Plan, anchor_operands
from fusedsl.ir import Kind, Operand, TensorType, print_value
from fusedsl.schedule.legality import moved_tiles


@dataclass(frozen=True)
class Extent:
    """The size of a kernel's work: rows, columns (of one half if paired), products per element."""

    rows: int
    cols: int
    depth: int = 0

    @staticmethod
    def of(plan: Plan, kernel: KernelPlan, env: Mapping[str, int]) -> Extent:
        """The extent of a call."""
        rows, cols = kernel.rows.bind(env), max(1, kernel.cols.bind(env))
        if kernel.anchor is None:
            return Extent(rows, cols)
        operand = plan.type_of(anchor_operands(kernel.anchor)[0])
        return Extent(rows, cols, max(1, operand.cols.bind(env)))


def family(plan: Plan, kernel: KernelPlan) -> str:
    """Kind, pairing, operand dtype and tiles moved: kernels of a family like the same tiles.

    For example `gemm bf16 tiles=2,2` or `gemm bf16 paired tiles=2`; rows: `row_reduction bf16`.
    """
    words = [kernel.kind.value, *([kernel.form.value] if kernel.cluster else [])]
    if kernel.kind is not Kind.GEMM:
        first = next(iter((*kernel.reads, *kernel.writes)), None)
        return " ".join([*words, plan.type_of(first).dtype.value] if first else words)
    assert kernel.anchor is not None
    words.append(plan.type_of(anchor_operands(kernel.anchor)[0]).dtype.value)
    words += ["paired"] if kernel.paired else []
    words += [kernel.form.value] if kernel.specialised else []
    return " ".join([*words, f"tiles={','.join(map(str, moved_tiles(plan, kernel)))}"])


def signature(plan: Plan, kernel: KernelPlan) -> str:
    """All that decides a kernel's code but its sizes; values are renamed in order of appearance."""
    names: dict[str, str] = {}

    def name_of(value: str) -> str:
        return names.setdefault(value, f"v{len(names)}")

    def operand(value: Operand) -> str:
        if not isinstance(value, str):
            return str(value)
        return f"{name_of(value)}: {_type(plan.graph.types[value])}"

    lines = [family(plan, kernel)]
    for node in kernel.nodes:
        given = [operand(value) for value in node.operands]
        attrs = [f"{name}={print_value(value)}" for name, value in node.attrs if name != "tiles"]
        made = [f"{name_of(r.name)}: {_type(r.type)}" for r in node.results]
        lines.append(f"{', '.join(made)} = {node.block.name}({', '.join([*given, *attrs])})")
    stored = [name_of(n) for n in kernel.writes]
    return "\n".join([*lines, f"-> {', '.join(stored)}"])


def _type(kind: TensorType) -> str:
    return f"{kind.dtype.value} {kind.layout.name.lower()}"
