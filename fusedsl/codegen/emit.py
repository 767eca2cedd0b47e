"""A whole program's file: header, the blocks' Triton functions, the kernels."""

from __future__ import annotations

from collections.abc import Sequence

from fusedsl.blocks.row_reduction.sharing import SHARING
from fusedsl.codegen.cluster import cluster_functions, emit_cluster
from fusedsl.codegen.few_rows import FEW_ROWS_FUNCTIONS, emit_few_rows
from fusedsl.codegen.helpers import called_functions, functions_of, source_of
from fusedsl.codegen.in_turn import emit_in_turn, in_turn_functions
from fusedsl.codegen.kernels import emit_kernel
from fusedsl.codegen.ring import emit_ring, ring_functions
from fusedsl.codegen.source import KernelSource, ProgramSource
from fusedsl.codegen.specialised import (
    OWN,
    emit_specialised,
    gluon_source,
    skeleton_functions,
)
from fusedsl.codegen.templates import render
from fusedsl.fuse import Form, Plan


def emit(
    plan: Plan, *, main_loop: str = "pointer", numerics: str = "moved", header: Sequence[str] = ()
) -> ProgramSource:
    """Emit every kernel of a plan into one readable file.

    `main_loop` is "tma" (tensor descriptors, sm_90 and later; rows that are multiples of 16 bytes),
    "mixed" (descriptors for the operands, pointers for the tiles of the epilogue, whose rows may
    have any length), "pointer", or "specialised": the plan's specialised kernels, in Gluon,
    which the other files are without.
    `numerics="as_written"` rounds after every node to its dtype.
    """
    if main_loop == "specialised":
        return _specialised(plan, numerics, header)
    tma, tiles = main_loop in ("tma", "mixed"), main_loop == "tma"
    texts: list[str] = []
    kernels: list[KernelSource] = []
    emitted = [kernel for kernel in plan.kernels if not kernel.specialised]
    for kernel in emitted:
        keep = numerics == "as_written"
        if kernel.few_rows:
            out = emit_few_rows(plan, kernel, tma=tma, keep_roundings=keep)
        else:
            out = emit_kernel(plan, kernel, tma=tma, tiles=tiles, keep_roundings=keep)
        texts.append(out.text.rstrip())
        kernels.append(KernelSource(kernel.name, kernel, out.args))
    functions = [f for k in emitted for n in k.nodes for f in functions_of(n)]
    functions += SHARING
    functions += FEW_ROWS_FUNCTIONS if any(k.few_rows for k in emitted) else ()
    helpers = [source_of(f) for f in called_functions("\n".join(texts), functions)]
    slots = {"gluon": False, "helpers": helpers, "kernels": texts}
    text = render("program.py.jinja", header=list(header), **slots)
    return ProgramSource(text.rstrip() + "\n", main_loop, tuple(kernels))


def _specialised(plan: Plan, numerics: str, header: Sequence[str]) -> ProgramSource:
    """The Gluon file of a plan's specialised kernels."""
    keep = numerics == "as_written"
    made = [k for k in plan.kernels if k.specialised]
    makers = {
        Form.IN_TURN: emit_in_turn,
        Form.CLUSTER: emit_cluster,
        Form.RING: emit_ring,
    }
    emitted = [
        makers.get(kernel.form, emit_specialised)(plan, kernel, keep_roundings=keep)
        for kernel in made
    ]
    texts = [out.text.strip("\n") for out in emitted]
    every = "\n".join(texts)
    functions = [f for kernel in made for node in kernel.nodes for f in functions_of(node)]
    found = called_functions(every, functions, OWN)
    helpers = [*map(gluon_source, found), *skeleton_functions(every)]
    helpers += [in_turn_functions()] if any(k.in_turn for k in made) else []
    helpers += ring_functions(every) if any(k.ring for k in made) else []
    helpers += cluster_functions(every) if any(k.cluster for k in made) else []
    slots = {"gluon": True, "helpers": helpers, "kernels": texts}
    text = render("program.py.jinja", header=list(header), **slots)
    sources = [KernelSource(k.name, k, out.args) for k, out in zip(made, emitted, strict=True)]
    return ProgramSource(text.rstrip() + "\n", "specialised", tuple(sources))
