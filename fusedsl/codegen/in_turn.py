"""The kernel of a projection by two groups of warps in turn: `gemm/in_turn.py.jinja` filled from a
kernel plan. Gluon, as `specialised`."""

from __future__ import annotations

from fusedsl.codegen.body import Body
from fusedsl.codegen.kernels import Emitted, epilogue
from fusedsl.codegen.source import Arg
from fusedsl.codegen.specialised import can_specialise, rendered
from fusedsl.codegen.templates import expanded
from fusedsl.fuse import KernelPlan, Plan, anchor_operands
from fusedsl.ir import Layout

#: What lies between the loading and the multiplying warps.
_RINGS = ("a_stages", "b_stages", "full", "empty", "turn")


def can_take_turns(plan: Plan, kernel: KernelPlan) -> bool:
    """Whether a projection can be made so: what specialised ones ask for, one tile of sums, no
    tile loaded, no states left, and nothing of the streamed operand but its products."""
    statistics = kernel.recomputed or kernel.streamed or kernel.states_left
    if kernel.paired or statistics or plan.tiles_read(kernel):
        return False
    return can_specialise(plan, kernel)


def emit_in_turn(plan: Plan, kernel: KernelPlan, *, keep_roundings: bool) -> Emitted:
    """Emit a projection by two groups in turn: the function of a group, and the kernel."""
    assert kernel.anchor is not None
    x, w = anchor_operands(kernel.anchor)
    body = Body(plan, kernel, False, keep_roundings, "WIDTH", staged=True)
    body.args["a_desc"] = Arg("a_desc", "descriptor", x, (64, "BLOCK_K"))
    body.args["b_desc"] = Arg("b_desc", "descriptor", w, (64, "BLOCK_K"))
    rows: list[str] = []
    columns, side = epilogue(body, kernel, list(kernel.steps), rows)
    lying = [v.name for v in body.values.values() if v.layout is Layout.COLUMN]
    slots: dict[str, object] = {"columns": lying, "column_lines": columns}
    slots |= {"row_lines": rows, "side_lines": side}
    return rendered(body, kernel, "gemm/in_turn.py.jinja", _RINGS, slots)


def in_turn_functions() -> str:
    """The functions that all such projections of a file share, beside those of specialised ones."""
    return expanded("gemm/in_turn_functions.jinja", "functions")
