"""The kernel of a projection of few rows: `gemm/decode.py.jinja` filled from a kernel plan."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from fusedsl.blocks.gemm.decode import admit_next, await_earlier, fetch_ahead, gather_parts
from fusedsl.codegen.body import Body
from fusedsl.codegen.kernels import (
    Emitted,
    epilogue,
    finish,
    operands,
    streamed,
)
from fusedsl.codegen.passes import lanes_pass, statistics_pass
from fusedsl.codegen.source import COUNTERS, Arg
from fusedsl.codegen.statistics import emit_columns, next_statistics
from fusedsl.codegen.templates import fragment, main_loop
from fusedsl.fuse import KernelPlan, Plan, anchor_operands, is_reduction
from fusedsl.ir import Contracts

_CONFIG = ("BLOCK_M", "BLOCK_N", "BLOCK_K", "PRECISION", "SPLIT", "PDL")

#: What the skeleton calls.
FEW_ROWS_FUNCTIONS = (admit_next, await_earlier, fetch_ahead, gather_parts)


def emit_few_rows(plan: Plan, kernel: KernelPlan, *, tma: bool, keep_roundings: bool) -> Emitted:
    """Emit a projection of few rows. `tma`: operands come through tensor descriptors; what the
    epilogue loads and stores goes through pointers."""
    assert kernel.anchor is not None
    body = Body(plan, kernel, False, keep_roundings, "WIDTH")
    slots = _operands(body, kernel, tma)
    slots["pointer_skip"] = "" if tma else main_loop("pointer_skip", _k_last(kernel))
    ahead = _ahead(body, kernel) if tma else ""
    partial = partial_sums(plan, body, kernel)
    stream, rest = streamed(body, kernel)
    # a kernel that sees all of K can take its statistics along the way
    whole = not partial["parts"]
    passes: list[dict[str, list[str]]] = []
    along = _along(body, kernel) if whole else {}
    if not along:
        passes = _passes(body, kernel)
    columns, side = epilogue(body, kernel, rest)
    return finish(
        kernel,
        body,
        "gemm/decode.py.jinja",
        (*_CONFIG, "AHEAD") if tma else _CONFIG,
        K="K",
        tma=tma,
        paired=kernel.paired,
        halves=kernel.paired and tma,
        tile_n="BLOCK_N // 2" if kernel.paired else "BLOCK_N",
        ahead=ahead,
        stream=stream,
        passes=passes,
        along=along,
        column_lines=columns,
        side_lines=side,
        **partial,
        **slots,
    )


def _operands(body: Body, kernel: KernelPlan, tma: bool) -> dict[str, object]:
    """The slots of the main loop. The halves of a pair come as tiles of their own: the tensor core
    would take a stacked tile from registers, which are loaded anew before it is done with them
    (triton 3.6 on sm_90)."""
    slots = operands(body, kernel, tma)
    if tma and kernel.paired:
        described = body.args["b_desc"]
        k_last = _k_last(kernel)
        block = ("HALF_N", "BLOCK_K") if k_last else ("BLOCK_K", "HALF_N")
        view = "" if k_last else "halved_cols"
        body.args["b_desc"] = replace(described, block=block, view=view)
        slots["main_loop"] = main_loop("tma_halves", _k_last(kernel), "N")
    return slots


def _k_last(kernel: KernelPlan) -> bool:
    assert kernel.anchor is not None
    return kernel.anchor.block.laws_of(Contracts)[0].k_axis == 1


def _ahead(body: Body, kernel: KernelPlan) -> str:
    """Lines that ask for the weights of the first steps."""
    assert kernel.anchor is not None
    weight = anchor_operands(kernel.anchor)[1]
    body.args.setdefault("b_ptr", Arg("b_ptr", "pointer", weight))
    body.args.setdefault("b_stride", Arg("b_stride", "stride", weight))
    item = body.type_of(weight).dtype.bytes
    return main_loop("ahead", kernel.paired, _k_last(kernel), "N", "K", item)


def partial_sums(plan: Plan, body: Body, kernel: KernelPlan) -> dict[str, object]:
    """Arguments of a projection whose K may be shared, and of one that clears another's counters.

    The counters must be zero before the kernel starts, so the projection before it in the program
    clears them; the first one has none before it, and is not split.
    """
    order = [k.name for k in plan.kernels if k.few_rows]
    at = order.index(kernel.name)
    names: dict[str, object] = {"parts": "", "arrived": "", "clears": "", "counters": COUNTERS}
    if at:
        body.args["parts_ptr"] = Arg("parts_ptr", "pointer", f"{kernel.name}.parts")
        body.args["arrived_ptr"] = Arg("arrived_ptr", "pointer", f"{kernel.name}.arrived")
        names |= {"parts": "parts_ptr", "arrived": "arrived_ptr"}
    if at + 1 < len(order):
        body.args["clear_ptr"] = Arg("clear_ptr", "pointer", f"{order[at + 1]}.arrived")
        names["clears"] = "clear_ptr"
    return names


def _along(body: Body, kernel: KernelPlan) -> dict[str, list[str]]:
    """Statistics taken in the main loop, if none depends on another: what is loaded (in its own
    dtype) for a step, and what is made of it a step later."""
    statistics = [n for n in kernel.recomputed if is_reduction(n)]
    if not statistics or next_statistics(list(kernel.recomputed)) != statistics:
        return {}
    with recomputing(body, kernel, "BLOCK_K"):
        held = body.namer.fresh("held")
        body.held = "next"
        made = lanes_pass(body, body.kernel, statistics, "BLOCK_K", "K", held)
        body.held = ""
        made["before"].append(fragment("segment_lanes", held, "BLOCK_K", "K"))
        remaining = [n for n in kernel.recomputed if n not in statistics]
        emit_columns(body, remaining, made["after"])
    loads = [load.line(load.next) for load in body.loads.values()]
    after = made["reduce"] + made["after"]
    return {"before": made["before"], "loads": loads, "inside": made["inside"], "after": after}


def _passes(body: Body, kernel: KernelPlan) -> list[dict[str, list[str]]]:
    """Passes over the streamed operand that take its statistics, the dependent ones later."""
    passes: list[dict[str, list[str]]] = []
    remaining = list(kernel.recomputed)
    with recomputing(body, kernel, "STREAM_K"):
        while any(is_reduction(node) for node in remaining):
            ready = next_statistics(remaining)
            passes.append(statistics_pass(body, body.kernel, ready, "STREAM_K", "K"))
            remaining = [n for n in remaining if n not in ready]
            remaining = emit_columns(body, remaining, passes[-1]["after"])
    return passes


@contextmanager
def recomputing(body: Body, kernel: KernelPlan, width: str) -> Iterator[None]:
    """The body as it emits what `kernel` recomputes, `width` columns at a time."""
    stored = body.kernel, body.width
    body.kernel, body.width = replace(kernel, steps=kernel.recomputed, writes=()), width
    yield
    body.kernel, body.width = stored
