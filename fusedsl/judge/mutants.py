"""Wrong versions of a reference, which a task has to tell from the right one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from fusedsl.judge.draw import draw, packed
from fusedsl.judge.task import Dims, Input, Task

#: What an operation may do that changes no value.
_VOID = {"contiguous", "clone", "detach", "to", "view", "reshape", "expand", "flatten", "float"}

#: Precisions that a mutant of each dtype computes in.
LOWER = {
    torch.float32: ("tf32", "fp16", "bf16"),
    torch.float16: ("bf16", "fp8"),
    torch.bfloat16: ("fp8",),
}

#: An operation is void if leaving it out changes nothing at any of these scales.
_SCALES = (0.0, 1e-3, 1.0, 1e3, 1e8)

Run = Callable[..., tuple[Tensor, ...]]


class _Dropping(TorchFunctionMode):
    """Counts torch calls; call number `index` gives its argument number `position` instead.
    `places` lists what can be left out, with `floating` only among results that are numbers."""

    def __init__(self, index: int = -1, position: int = 0, *, floating: bool = False):
        super().__init__()
        self.floating = floating
        self.index, self.position = index, position
        self.count = 0
        self.places: list[tuple[int, int, str]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not isinstance(result, Tensor):
            return result
        index, self.count = self.count, self.count + 1
        alike = [
            a
            for a in args
            if isinstance(a, Tensor) and a.shape == result.shape and a.dtype == result.dtype
        ]
        name = getattr(func, "__name__", "")
        if name not in _VOID and (result.is_floating_point() or not self.floating):
            self.places += [(index, position, name) for position in range(len(alike))]
        return alike[self.position] if index == self.index and alike else result


def names(task: Task, dims: Dims, device: str) -> list[str]:
    """The mutants of a task, by name: `zero`, `ignores:x`, `drops:3:0:mul`, ..."""
    dtypes = {task.dtype_of(item) for item in task.inputs}
    low = [f"precision:{p}" for d in LOWER if d in dtypes for p in LOWER[d]]
    found = ["zero", "mean", "constant", "stale", "half_written"]
    found += [f"ignores:{item.name}" for item in task.inputs]
    found += [f"drops:{i}:{p}:{name}" for i, p, name in _droppable(task, dims, device)]
    found += list(dict.fromkeys(low))
    return found + (["nan_blind"] if "nan_rows" in task.cases else [])


def _droppable(task: Task, dims: Dims, device: str) -> list[tuple[int, int, str]]:
    """Operations whose result looks like one of their operands and differs from it."""
    base = draw(task, dims, "normal", 1, device)
    edges = draw(task, dims, "edge_indices", 1, device) if "edge_indices" in task.cases else base
    # A wrong index may end the process instead of giving wrong values.
    floating = any(item.is_index for item in task.inputs)
    with torch.no_grad(), _Dropping(floating=floating) as seen:
        task.eager(base)
    return [place for place in seen.places if not _is_void(task, base, edges, place)]


def _is_void(
    task: Task, base: Sequence[Tensor], edges: Sequence[Tensor], place: tuple[int, int, str]
) -> bool:
    for inputs in (*(_scaled(task, base, scale) for scale in _SCALES), edges):
        with torch.no_grad():
            right = task.eager(inputs)
            with _Dropping(place[0], place[1]):
                wrong = task.eager(inputs)
        same = zip(right, wrong, strict=True)
        if not all(torch.equal(a.nan_to_num(1.5), b.nan_to_num(1.5)) for a, b in same):
            return False
    return True


def _scaled(task: Task, base: Sequence[Tensor], scale: float) -> list[Tensor]:
    """The activations times a number; indices as they are."""
    return [
        t if item.weight or item.is_index else (t * scale).to(t.dtype)
        for t, item in zip(base, task.inputs, strict=True)
    ]


def make(task: Task, name: str) -> Run:
    """The mutant of this name."""
    kind, _, rest = name.partition(":")
    if kind == "drops":
        index, position, _ = rest.split(":")
        return _drops(task, int(index), int(position))
    if kind == "ignores":
        return _ignores(task, [rest])
    if kind == "precision":
        return _precision(task, rest)
    if kind == "constant":
        return _ignores(task, [item.name for item in task.inputs if not item.weight])
    return {
        "zero": lambda *x: tuple(torch.zeros_like(t) for t in task.eager(x)),
        "mean": lambda *x: tuple(t.mean().expand(t.shape) for t in task.eager(x)),
        "stale": lambda *x: tuple(torch.empty_like(t) for t in task.eager(x)),
        "half_written": lambda *x: tuple(_half(t) for t in task.eager(x)),
        "nan_blind": lambda *x: task.eager([t.nan_to_num() for t in x]),
    }[kind]


def _drops(task: Task, index: int, position: int) -> Run:
    def run(*inputs: Tensor) -> tuple[Tensor, ...]:
        with _Dropping(index, position):
            return task.eager(inputs)

    return run


def _ignores(task: Task, names: Sequence[str]) -> Run:
    """Computes with other values of these inputs: the same ones on every call."""

    def run(*inputs: Tensor) -> tuple[Tensor, ...]:
        generator = torch.Generator().manual_seed(0)
        other = [
            _other(t, item, generator) if item.name in names else t
            for t, item in zip(inputs, task.inputs, strict=True)
        ]
        return task.eager(other)

    return run


def _other(tensor: Tensor, item: Input, generator: torch.Generator) -> Tensor:
    if item.is_index:
        return torch.full_like(tensor, item.low)
    return torch.randn(tensor.shape, generator=generator).to(tensor)


def _precision(task: Task, name: str) -> Run:
    """Computes in a lower precision, or from operands rounded to it."""

    def run(*inputs: Tensor) -> tuple[Tensor, ...]:
        like = task.eager(inputs)
        if name in ("fp16", "bf16") and task.graph is None:
            low = torch.float16 if name == "fp16" else torch.bfloat16
            lowered = [t.to(low) if t.is_floating_point() else t for t in inputs]
        else:
            lowered = [_rounded(t, name) for t in inputs]
        got = task.eager(lowered)
        return tuple(t.to(right.dtype) for t, right in zip(got, like, strict=True))

    return run


def _rounded(tensor: Tensor, name: str) -> Tensor:
    if not tensor.is_floating_point():
        return tensor
    if name == "tf32":
        bits = (packed(tensor).view(torch.int32) + 0x1000) & ~0x1FFF
        return bits.view(torch.float32).reshape(tensor.shape)
    low = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp8": torch.float8_e4m3fn}[name]
    return tensor.to(low).to(tensor.dtype)


def _half(tensor: Tensor) -> Tensor:
    """The first half of the values; the rest is what the memory held."""
    made = torch.empty_like(tensor)
    half = tensor.numel() // 2
    made.view(-1)[:half] = tensor.reshape(-1)[:half]
    return made
