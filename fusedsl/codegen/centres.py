"""Rough means of rows, about which statistics about a mean are sums: of the first few columns."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fusedsl.codegen.body import Body
from fusedsl.codegen.helpers import function_name
from fusedsl.codegen.statistics import per_row, recompute, reduction_of
from fusedsl.codegen.templates import fragment
from fusedsl.fuse import KernelPlan
from fusedsl.ir import Node

#: First columns of a row whose mean serves: one for each lane of a warp.
HEAD_COLUMNS = 32


def may_be_rough(kernel: KernelPlan, body: Body) -> bool:
    """Whether all that a kernel stores has 16 bits at most, which hide what sums about the mean of
    few columns may lose. An outlier beyond 6e17 among these columns of the widest rows overflows
    their squares; elsewhere, as in any form, that takes 1.8e19."""
    return all(body.type_of(name).dtype.bytes <= 2 for name in kernel.writes)


def head_centre(body: Body, kernel: KernelPlan, node: Node, name: str, lines: list[str]) -> None:
    """Name the mean of each row's first columns of what a statistic is taken of. What `cols` was
    must be set again."""
    with at_head(body):
        lines += fragment("segment", 0, body.width, "N", False).split("\n")
        centre_of_columns(body, kernel, node, name, lines)
        lines.append(unbound(name))


@contextmanager
def at_head(body: Body) -> Iterator[None]:
    """The body as it emits what becomes of the rows' first columns: of all that is at hand it has
    what there is of each row."""
    outer, body.values, width = body.values, per_row(body), body.width
    body.width = str(HEAD_COLUMNS)
    yield
    body.values, body.width = outer, width


def centre_of_columns(
    body: Body, kernel: KernelPlan, node: Node, name: str, lines: list[str]
) -> str:
    """Name the mean of the row's first `body.width` columns, which are at hand, of what a statistic
    is taken of; gives the variable of those columns."""
    recompute(body, kernel, node.inputs[0], lines)
    piece = body.masked(node.inputs[0], lines)
    centre_of = function_name(reduction_of(node).about[0])
    lines.append(fragment("call", [name], centre_of, [piece, f"min({body.width}, N)"]))
    return piece


def unbound(name: str, *layout: str) -> str:
    """The line that frees a value of one row from a layout (`sharing.unbound`), or brings it to
    another one (in Gluon, which must be told)."""
    return fragment("call", [name], "unbound", [name, *layout])
