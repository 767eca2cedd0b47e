"""A whole program's file: header, the blocks' Triton functions, the kernels."""

from __future__ import annotations

from collections.abc import Sequence

from fusedsl.blocks.row_reduction.sharing import SHARING
from fusedsl.codegen.few_rows import FEW_ROWS_FUNCTIONS, emit_few_rows
from fusedsl.codegen.helpers import called_functions, functions_of, source_of
from fusedsl.codegen.kernels import emit_kernel
from fusedsl.codegen.source import KernelSource, ProgramSource
from fusedsl.codegen.templates import render
from fusedsl.fuse import Plan


def emit(
    plan: Plan, *, main_loop: str = "pointer", numerics: str = "moved", header: Sequence[str] = ()
) -> ProgramSource:
    """Emit every kernel of a plan into one readable file.

    `main_loop` is "tma" (tensor descriptors, sm_90 and later; rows that are multiples of 16 bytes),
    "mixed" (descriptors for the operands, pointers for the tiles of the epilogue, whose rows may
    have any length) or "pointer".
    `numerics="as_written"` rounds after every node to its dtype.
    """
    tma, tiles = main_loop in ("tma", "mixed"), main_loop == "tma"
    texts: list[str] = []
    kernels: list[KernelSource] = []
    for kernel in plan.kernels:
        keep = numerics == "as_written"
        if kernel.few_rows:
            out = emit_few_rows(plan, kernel, tma=tma, keep_roundings=keep)
        else:
            out = emit_kernel(plan, kernel, tma=tma, tiles=tiles, keep_roundings=keep)
        texts.append(out.text.rstrip())
        kernels.append(KernelSource(kernel.name, kernel, out.args))
    functions = [f for k in plan.kernels for n in k.nodes for f in functions_of(n)]
    functions += SHARING
    functions += FEW_ROWS_FUNCTIONS if any(k.few_rows for k in plan.kernels) else ()
    helpers = [source_of(f) for f in called_functions("\n".join(texts), functions)]
    text = render("program.py.jinja", header=list(header), helpers=helpers, kernels=texts)
    return ProgramSource(text.rstrip() + "\n", main_loop, tuple(kernels))
