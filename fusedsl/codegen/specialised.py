"""The kernel of a specialised projection: `gemm/specialised.py.jinja` filled from a kernel plan.

Its file is Gluon, in which `tl` is Gluon's language: block functions stand in it as they are, if
all they call exists there.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Sequence
from functools import cache
from typing import Any

from fusedsl.codegen.body import Body
from fusedsl.codegen.few_rows import recomputing
from fusedsl.codegen.helpers import called_functions, source_of, title
from fusedsl.codegen.kernels import COLUMNS, Emitted, arguments, declared, epilogue, wrapped
from fusedsl.codegen.source import Arg
from fusedsl.codegen.statistics import emit_columns
from fusedsl.codegen.templates import expanded, render
from fusedsl.codegen.tiles import merges_one_row
from fusedsl.codegen.values import Var
from fusedsl.fuse import KernelPlan, Plan, anchor_operands, is_pick, is_reduction
from fusedsl.ir import Contracts, DType, Gathers, HalvesOf, Kind, Layout, Node

_CONFIG = ("BLOCK_N", "BLOCK_K", "GROUP_M", "STAGES")

_FUNCTIONS = "gemm/specialised_functions.jinja"

#: What block functions may take of `tl`: names that mean the same in Gluon (triton 3.6).
LANGUAGE = frozenset(
    ["abs", "constexpr", "erf", "exp", "exp2", "float32", "floor", "fma", "inline_asm_elementwise",
     "int32", "log", "log2", "max", "maximum", "minimum", "PropagateNan", "rsqrt", "sqrt", "sum",
     "where"]
)  # fmt: skip

#: Block functions that mean the same in Gluon but are written otherwise (`_FUNCTIONS`): a layout
#: does not survive the reshaping that keeps Triton's reductions short.
OWN = ("max_of_rows", "sum_of_rows", "as_vector")

#: Arguments of the kernel that the multiplying warps do not take.
_LOADED = ("a_desc", "b_desc")

#: What lies between the loading and the multiplying warps.
_RINGS = ("a_stages", "b_stages", "full", "empty")


def can_specialise(plan: Plan, kernel: KernelPlan) -> bool:
    """Whether a projection can be made so: 16-bit operands, weights [N, K], an epilogue that loads
    columns, rows, numbers and at most one tile of the operands' type and stores one of 16 bits, or
    states of each tile's part of the rows, or both."""
    if not streams_16_bits(plan, kernel):
        return False
    tiles = (name for name in kernel.writes if name not in kernel.states_left)
    written = [plan.type_of(name) for name in tiles]
    if len(written) > 1 or not kernel.writes:
        return False
    if any(kind.layout is not Layout.TILE or kind.dtype.bytes != 2 for kind in written):
        return False
    brought = [plan.type_of(name) for name in plan.tiles_read(kernel)]
    assert kernel.anchor is not None
    dtype = plan.type_of(anchor_operands(kernel.anchor)[0]).dtype
    if brought and (brought != written or brought[0].dtype is not dtype):
        return False
    return all(is_plain(node, kernel) for node in kernel.steps) and speaks(kernel)


def streams_16_bits(plan: Plan, kernel: KernelPlan) -> bool:
    """Whether a kernel is a projection of matrices of one 16-bit type, the weights [N, K]."""
    if kernel.anchor is None or kernel.kind is not Kind.GEMM or kernel.streamed:
        return False
    kinds = [plan.type_of(name) for name in anchor_operands(kernel.anchor)]
    if any(t.dtype not in (DType.BF16, DType.FP16) or t.layout is not Layout.TILE for t in kinds):
        return False
    same = kinds[0].dtype is kinds[1].dtype
    return same and kernel.anchor.block.laws_of(Contracts)[0].k_axis == 1


def speaks(kernel: KernelPlan) -> bool:
    """Whether all functions that are called of its nodes mean the same in Gluon."""
    return all(speaks_gluon(function) for node in kernel.nodes for function in _called(node))


def is_plain(node: Node, kernel: KernelPlan) -> bool:
    """Whether a step is elementwise, a half of the projection, the state of a tile, or merges the
    states that an earlier projection left of the rows."""
    assert kernel.anchor is not None
    if node.block.reduction is not None:
        states = node.block.kind is Kind.EPILOGUE and not is_pick(node)
        return states and not merges_one_row(kernel, node)
    for law in node.block.laws_of(HalvesOf):
        return node.operand(law.operand) == kernel.anchor.name
    indexed = any(t.dtype.is_index for t in (r.type for r in node.results))
    return node.block.kind is Kind.POINTWISE and not node.block.laws_of(Gathers) and not indexed


def _called(node: Node) -> tuple[Any, ...]:
    """The functions that are called of a node here."""
    reduction = node.block.reduction
    if reduction is None:
        return (node.block.triton,) if node.block.triton is not None else ()
    if "tiles" in node.attr_map:
        return (reduction.chunk, reduction.merge)
    if node.block.kind is Kind.EPILOGUE:
        return (reduction.merge_all, reduction.merge, reduction.finish)
    return (reduction.lift, reduction.finish)


@cache
def speaks_gluon(function: Any, language: frozenset[str] = LANGUAGE) -> bool:
    """Whether a function and what it calls take nothing of `tl` but what Gluon has as well."""
    for one in called_functions(f"{function.fn.__name__}(", [function], OWN):
        if one.fn.__name__ in OWN:
            continue
        for found in ast.walk(ast.parse(source_of(one))):
            match found:
                case ast.Attribute(ast.Name("tl"), name) if name not in language:
                    return False
                case _:
                    pass
    return True


def emit_specialised(plan: Plan, kernel: KernelPlan, *, keep_roundings: bool) -> Emitted:
    """Emit a specialised projection: the functions of its warps, and the kernel."""
    assert kernel.anchor is not None
    x, w = anchor_operands(kernel.anchor)
    body = Body(plan, kernel, False, keep_roundings, "WIDTH", staged=True)
    height = "HALF_N" if kernel.paired else "BLOCK_N"
    body.args["a_desc"] = Arg("a_desc", "descriptor", x, (64, "BLOCK_K"))
    body.args["b_desc"] = Arg("b_desc", "descriptor", w, (height, "BLOCK_K"))
    (body.brought,) = plan.tiles_read(kernel) or ("",)
    if body.brought:
        body.arg("_desc", "descriptor", body.brought, block=(64, 64))
    slots, recomputed = statistics(body, kernel)
    columns, side = epilogue(body, kernel, list(kernel.steps))
    waits = ", ".join(v.name for v in body.values.values() if v.layout is Layout.COLUMN)
    slots |= {"column_lines": recomputed + columns, "waits": waits, "side_lines": side}
    return rendered(body, kernel, "gemm/specialised.py.jinja", _RINGS, slots)


def statistics(body: Body, kernel: KernelPlan) -> tuple[dict[str, object], list[str]]:
    """Slots that add a step of K to a row's sum, and the lines that make columns of the sum."""
    take: list[str] = []
    after: list[str] = []
    if not kernel.recomputed:
        return {"take": take, "taken": "", "total": ""}, after
    (node,) = (n for n in kernel.recomputed if is_reduction(n))
    with recomputing(body, kernel, "BLOCK_K"):
        body.values[node.inputs[0]] = Var("x_tile", Layout.TILE)
        take.append(title(node))
        (taken,) = body.lift(node, node.inputs[0], take)
        del body.values[node.inputs[0]]
        (total,) = body.state_names(node, "_all")
        after.append(title(node))
        body.finish(node, [total], "K", after)
        emit_columns(body, [n for n in kernel.recomputed if n is not node], after)
    return {"take": take, "taken": taken, "total": total}, after


def rendered(
    body: Body, kernel: KernelPlan, template: str, rings: Sequence[str], slots: dict[str, object]
) -> Emitted:
    """A skeleton whose multiplying warps take `rings` as well, filled."""
    args = arguments(kernel, body, _CONFIG, str(slots))
    brings = body.args[f"descriptor:{body.brought}"].name if body.brought else ""
    inner = [arg for arg in args if arg.name not in (*_LOADED, brings)]
    params = declared(inner)
    at = next(i for i, arg in enumerate(inner) if arg.name == "M")
    keys = (f"descriptor:{name}" for name in kernel.writes)
    out = next((body.args[key].name for key in keys if key in body.args), "")
    staged = ["staged"] if out else []
    params = [*params[:at], *rings, *params[at:], *staged, "PART: tl.constexpr"]
    names = [arg.name for arg in inner]
    passed = textwrap.wrap(", ".join([*names[:at], *rings, *names[at:]]) + ",", COLUMNS - 16)
    text = render(
        template,
        name=kernel.name,
        doc=f'"""{kernel.name}: {", ".join(kernel.blocks)}."""',
        params=wrapped(params, len(f"def {kernel.name}_multiply():")),
        kernel_params=wrapped(declared(args), len(f"def {kernel.name}():")),
        passed=passed,
        out=out,
        brings=brings,
        paired=kernel.paired,
        backwards=kernel.backwards,
        **slots,
    )
    return Emitted(text, args)


def gluon_source(function: Any) -> str:
    """Source text of a block's function, for a Gluon file."""
    if function.fn.__name__ in OWN:
        return expanded(_FUNCTIONS, function.fn.__name__)
    text = source_of(function).replace("@triton.jit", "@gluon.jit", 1)
    return text.replace("tl.PropagateNan", "core.PropagateNan")  # Gluon's language has none


def skeleton_functions(text: str) -> list[str]:
    """The functions that the kernels of a Gluon file share, those of projections if it has any."""
    found = [expanded(_FUNCTIONS, "widening")]
    if "tile_at(" in text:
        found.append(expanded(_FUNCTIONS, "functions"))
    if "next_stage(" in text:
        found.append(expanded(_FUNCTIONS, "stages"))
    for name, brings in (("load_stages", False), ("load_stages_and_tile", True)):
        if f"({name}," in text:
            found.append(expanded(_FUNCTIONS, "loader", name, brings))
    return found
