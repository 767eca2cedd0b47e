"""A plan for calls with few rows (decoding): a projection then costs one read of its weights.

The operand that a projection streams is so small that every program can take its statistics
itself, which saves the launch that would take them. Before and after, for an RMSNorm that has been
moved past a projection:

    row kernel:  x -> inv_rms             gone
    projection:  x, w, inv_rms -> a       projection: x, w -> a     (recomputes inv_rms from x)

`along.can_go` says which row kernels go. All rows are in one tile, so nothing goes backwards.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from fusedsl.fuse.along import can_go, without
from fusedsl.fuse.plan import Form, Plan
from fusedsl.ir import Kind

#: The most rows for which a plan for few rows is used.
FEW_ROWS = 64


def for_few_rows(plan: Plan) -> Plan:
    """The same program planned for at most `FEW_ROWS` rows in every projection; a plan for few
    rows as it is."""
    if any(kernel.few_rows for kernel in plan.kernels):
        return plan
    gone = [kernel for kernel in plan.kernels if can_go(plan, kernel)]
    made = without(plan, gone, Form.FEW_ROWS, [k for k in plan.kernels if k.kind is Kind.GEMM])
    return replace(made, kernels=tuple(replace(k, backwards=False) for k in made.kernels))


def has_few_rows(plan: Plan, env: Mapping[str, int]) -> bool:
    """Whether no projection has more than `FEW_ROWS` rows (and there is one)."""
    rows = [k.rows.bind(env) for k in plan.kernels if k.kind is Kind.GEMM]
    return bool(rows) and max(rows) <= FEW_ROWS
