"""What a caller passed, held against the signature; every problem in one report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fusedsl.diagnostics import Diagnostic, FusedslError, did_you_mean
from fusedsl.ir import Param, dtype_from_torch


@dataclass
class Dims:
    """The symbols bound so far: value, and the words for who bound it."""

    values: dict[str, int] = field(default_factory=dict[str, int])
    bound_by: dict[str, str] = field(default_factory=dict[str, str])

    def copy(self) -> Dims:
        """An independent table with the same content."""
        return Dims(dict(self.values), dict(self.bound_by))


def arrange(
    expected: Sequence[Param],
    positional: Sequence[Any],
    named: Mapping[str, Any],
    *,
    bound: frozenset[str] = frozenset(),
    consumed: frozenset[str] = frozenset(),
) -> tuple[Any, ...]:
    """The arguments in the order of `expected`.

    Raises FusedslError: F0501 for a missing, unexpected or doubled tensor, F0505 for a weight that
    was consumed when it was bound. Types are not looked at here.
    """
    names = [param.name for param in expected]
    problems: list[Diagnostic] = []
    found = dict(zip(names, positional, strict=False))
    if len(positional) > len(names):
        problems.append(_too_many(names, len(positional), bound))
    for name, value in named.items():
        if name in consumed:
            problems.append(_was_consumed(name))
        elif name in bound:
            problems.append(_is_bound(name))
        elif name not in names:
            problems.append(_unexpected(name, names))
        elif name in found:
            problems.append(_given_twice(name))
        else:
            found[name] = value
    missing = [p for p in expected if p.name not in found]
    problems += [_missing(param, names) for param in missing]
    if problems:
        raise FusedslError(problems)
    return tuple(found[name] for name in names)


def check_tensors(
    params: Sequence[Param],
    values: Sequence[Any],
    dims: Dims,
    *,
    device: torch.device | None = None,
) -> Dims:
    """Check kind, dtype, shape, device and gradients; returns `dims` with the new symbols.

    `device` is where bound weights live, None if nothing is bound. Raises FusedslError with F0502,
    F0503, F0504, F0506 and F0508 together.
    """
    dims = dims.copy()
    problems: list[Diagnostic] = []
    for param, value in zip(params, values, strict=True):
        problem = _not_a_dense_tensor(param, value)
        if problem:
            problems.append(problem)
            continue
        problems += _dtype(param, value)
        problems += _shape(param, tuple(value.shape), dims)
    tensors = [(p, v) for p, v in zip(params, values, strict=True) if isinstance(v, Tensor)]
    problems += _devices(tensors, device)
    problems += _gradients(tensors)
    if problems:
        raise FusedslError(problems)
    return dims


def _not_a_dense_tensor(param: Param, value: Any) -> Diagnostic | None:
    if isinstance(value, Tensor):
        if value.layout == torch.strided:
            return None
        got, fix = f"a tensor of layout {value.layout}", f"pass {param.name}.to_dense()"
    else:
        got = type(value).__name__
        fix = f"pass a torch.Tensor for '{param.name}', for example torch.as_tensor(...)"
    return Diagnostic(
        "F0506",
        f"'{param.name}' is not a dense tensor",
        expected=f"torch.Tensor {param.type}",
        got=got,
        where=f"argument '{param.name}'",
        fix=fix,
    )


def _dtype(param: Param, value: Tensor) -> list[Diagnostic]:
    expected = param.type.dtype
    if value.dtype == expected.torch:
        return []
    got = dtype_from_torch(value.dtype)
    fix = f"pass {param.name}.to({expected.torch})"
    if got is not None and got.is_index == expected.is_index:
        fix += f", or declare '{param.name}: {got}[...]'"
    return [
        Diagnostic(
            "F0502",
            f"'{param.name}' has the wrong dtype",
            expected=str(expected),
            got=str(got or value.dtype),
            where=f"argument '{param.name}'",
            fix=fix,
        )
    ]


def _shape(param: Param, shape: tuple[int, ...], dims: Dims) -> list[Diagnostic]:
    if len(shape) != param.type.rank:
        return [_rank(param, shape)]
    problems: list[Diagnostic] = []
    for axis, (dim, size) in enumerate(zip(param.type.shape, shape, strict=True)):
        if dim.symbol is None:
            if size != dim.factor:
                problems.append(_axis(param, axis, str(dim.factor), size, "the signature says so"))
            continue
        if size % dim.factor:
            problems.append(
                _axis(param, axis, f"a multiple of {dim.factor} ({dim})", size, "the signature")
            )
            continue
        value = size // dim.factor
        known = dims.values.setdefault(dim.symbol, value)
        if known == value:
            dims.bound_by.setdefault(dim.symbol, f"axis {axis} of '{param.name}'")
            continue
        by = f"{dim.symbol} = {known} was bound by {dims.bound_by.get(dim.symbol, 'the caller')}"
        problems.append(_axis(param, axis, f"{dim.factor * known} ({dim})", size, by))
    return problems


def _rank(param: Param, shape: tuple[int, ...]) -> Diagnostic:
    batched = len(shape) > param.type.rank == 2
    return Diagnostic(
        "F0503",
        f"'{param.name}' has {len(shape)} dimensions",
        expected=str(param.type),
        got=_show(shape),
        where=f"argument '{param.name}'",
        fix=f"pass {param.name}.flatten(0, -2)"
        if batched
        else f"pass a tensor with {param.type.rank} dimensions",
    )


def _axis(param: Param, axis: int, expected: str, got: int, why: str) -> Diagnostic:
    return Diagnostic(
        "F0503",
        f"axis {axis} of '{param.name}' has the wrong size",
        expected=expected,
        got=str(got),
        where=f"argument '{param.name}': {param.type}; {why}",
        fix=f"pass '{param.name}' with {expected} on axis {axis}",
    )


def _devices(
    tensors: Sequence[tuple[Param, Tensor]], device: torch.device | None
) -> list[Diagnostic]:
    """Everything on one device; the odd ones out are named."""
    if not tensors:
        return []
    first = device or tensors[0][1].device
    whose = "the bound weights are" if device else f"'{tensors[0][0].name}' is"
    return [
        Diagnostic(
            "F0504",
            f"'{param.name}' is on another device",
            expected=f"{first}, where {whose}",
            got=str(value.device),
            where=f"argument '{param.name}'",
            fix=f"pass {param.name}.to('{first}')",
        )
        for param, value in tensors
        if value.device != first
    ]


def _gradients(tensors: Sequence[tuple[Param, Tensor]]) -> list[Diagnostic]:
    if not torch.is_grad_enabled():
        return []
    names = [param.name for param, value in tensors if value.requires_grad]
    return [no_gradients(names)] if names else []


def no_gradients(names: Sequence[str]) -> Diagnostic:
    """The diagnostic for tensors whose gradient would silently be lost."""
    listed = ", ".join(f"'{name}'" for name in names)
    return Diagnostic(
        "F0508",
        "a compiled program computes no gradients",
        expected="tensors that do not require a gradient, or gradients turned off",
        got=f"{listed} require{'s' if len(names) == 1 else ''} a gradient",
        fix="call it under torch.no_grad() or torch.inference_mode(), or pass detached tensors",
    )


def _too_many(names: Sequence[str], got: int, bound: frozenset[str]) -> Diagnostic:
    listed = ", ".join(names)
    return Diagnostic(
        "F0501",
        f"{got} tensors for {len(names)} parameters",
        expected=f"({listed})",
        got=f"{got} by position",
        fix=f"the weights are bound: pass only ({listed})" if bound else f"pass ({listed})",
    )


def _is_bound(name: str) -> Diagnostic:
    return Diagnostic(
        "F0501",
        f"'{name}' is bound already",
        expected="activations only",
        got=f"a value for the weight '{name}'",
        fix=f"leave '{name}' out, or bind the program anew",
    )


def _was_consumed(name: str) -> Diagnostic:
    return Diagnostic(
        "F0505",
        f"'{name}' was consumed when it was bound",
        expected="activations only",
        got=f"a value for the weight '{name}'",
        fix="bind the program anew with the full set of weights",
    )


def _unexpected(name: str, names: Sequence[str]) -> Diagnostic:
    return Diagnostic(
        "F0501",
        f"there is no parameter '{name}'",
        expected=", ".join(names),
        got=name,
        fix=did_you_mean(name, names, "parameters"),
    )


def _given_twice(name: str) -> Diagnostic:
    return Diagnostic(
        "F0501",
        f"'{name}' is given twice",
        expected="each tensor once",
        got=f"'{name}' by position and by name",
        fix=f"leave out {name}=",
    )


def _missing(param: Param, names: Sequence[str]) -> Diagnostic:
    return Diagnostic(
        "F0501",
        f"'{param.name}' is missing",
        expected=f"{param.name}: {param.type}",
        got="nothing",
        fix=f"pass ({', '.join(names)})",
    )


def _show(shape: Sequence[int]) -> str:
    return f"[{', '.join(map(str, shape))}]"
