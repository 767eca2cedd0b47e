"""The Triton functions of blocks, copied into the emitted file so that it stands alone."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Collection, Iterable
from typing import Any

from fusedsl.ir import FactorsOut, Node


def title(node: Node) -> str:
    """The comment over a node's lines: its block, and the statement it comes from."""
    return f"# {node.block.name}: {node.origin or node.name}"


def functions_of(node: Node) -> tuple[Any, ...]:
    """The Triton functions a node calls."""
    block = node.block
    found = [block.triton] if block.triton is not None else []
    found += [law.triton for law in block.laws_of(FactorsOut)]
    if block.reduction is not None:
        r = block.reduction
        optional = [f for f in (r.about_exact, r.owner) if f is not None]
        found += [r.chunk, r.merge, r.merge_all, r.finish, r.lift, *r.about, *optional]
    return tuple(found)


def function_name(function: Any) -> str:
    """The name a jitted function is called by."""
    return function.fn.__name__


def parameters(function: Any) -> tuple[str, ...]:
    """Parameter names of a jitted function."""
    return tuple(inspect.signature(function.fn).parameters)


def called_functions(
    text: str, functions: Iterable[Any], leaves: Collection[str] = ()
) -> tuple[Any, ...]:
    """Those of `functions` that `text` calls, with what they call, callees first; what `leaves`
    call is left out."""
    ordered: list[Any] = []
    for function in functions:
        if f"{function_name(function)}(" in text:
            _visit(function, ordered, leaves)
    _check_unique(ordered)
    return tuple(ordered)


def _visit(function: Any, ordered: list[Any], leaves: Collection[str]) -> None:
    if function in ordered:
        return
    called = function.fn.__code__.co_names if function_name(function) not in leaves else ()
    for name in called:
        callee = function.fn.__globals__.get(name)
        if hasattr(callee, "fn") and hasattr(callee.fn, "__code__"):
            _visit(callee, ordered, leaves)
    ordered.append(function)


def _check_unique(functions: list[Any]) -> None:
    names = [function_name(f) for f in functions]
    twice = {n for n in names if names.count(n) > 1}
    if twice:
        raise AssertionError(f"two Triton functions share a name: {sorted(twice)}")


def source_of(function: Any) -> str:
    """Source text of a jitted function, decorator included."""
    return textwrap.dedent(inspect.getsource(function.fn)).rstrip()
