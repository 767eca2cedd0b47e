"""What a task pins: the reference, its inputs, dims with hidden ones, and the budget."""

from __future__ import annotations

import importlib.util
import random
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fusedsl import pipeline
from fusedsl.diagnostics import FusedslError
from fusedsl.ir import Graph, Param, evaluate, evaluate_eager, index_range

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
INDEX_DTYPES = {"i32": torch.int32, "i64": torch.int64}

#: Hard values of indices: the ends of their range and what lies beside it; one for all rows.
INDEX_CASES = ("edge_indices", "equal_indices")

#: Inputs that hold finite values, and those that do not.
FINITE_CASES = ("normal", "outliers", "zeros", "large_means", "small", *INDEX_CASES)
CASES = (*FINITE_CASES, "nan_rows", "inf_rows")

#: A size, or a range (low, high) or (low, high, multiple) that hidden shapes are drawn from.
Range = int | tuple[int, int] | tuple[int, int, int]
Dims = dict[str, int]
Fill = str | Callable[[tuple[int, ...], torch.Generator], Tensor]
FILLS = ("auto", "normal", "uniform", "matrix", "gain")


class BadTask(Exception):
    """A task or a program that cannot be judged at all: exit code 2."""


@dataclass(frozen=True)
class Input:
    """One tensor of the signature.

    `shape` holds integers, names of dims, or `2*F`. A `weight` keeps its values while the program
    is timed. `fill`: normal; uniform in [0, 1); matrix (normal over the root of the last axis);
    gain (1 + normal / 10); auto (matrix and gain for weights, else normal); or a function of a
    shape and a `torch.Generator` (whose device it must use).

    Indices have the dtype i32 or i64 and a range: they are drawn uniformly from [`low`, `high`),
    or made by the function. `high` is an integer, a dim, `2*F`, or several, of which the least
    counts. `special` holds values beside the range that the reference takes too, such as the
    target of ignored rows: they come in the case `edge_indices`.
    """

    name: str
    shape: tuple[int | str, ...]
    dtype: str | None = None
    weight: bool = False
    fill: Fill = "auto"
    low: int = 0
    high: int | str | Sequence[int | str] | None = None
    special: Sequence[int] = ()

    @property
    def is_index(self) -> bool:
        """Whether it holds integers."""
        return self.dtype in INDEX_DTYPES

    @property
    def highs(self) -> tuple[int | str, ...]:
        """What the indices are less than."""
        if self.high is None:
            return ()
        alone = isinstance(self.high, str) or not isinstance(self.high, Sequence)
        return (self.high,) if alone else tuple(self.high)  # type: ignore[arg-type]

    def span(self, dims: Mapping[str, int]) -> tuple[int, int]:
        """The range [low, high) of indices at these dims. Raises BadTask where it is empty."""
        high = min(_size(entry, dims) for entry in self.highs)
        if high <= self.low:
            raise BadTask(f"'{self.name}' has no values: [{self.low}, {high}) at {dict(dims)}")
        return self.low, high

    def sizes(self, dims: Mapping[str, int]) -> tuple[int, ...]:
        """The shape at these dims."""
        return tuple(_size(entry, dims) for entry in self.shape)


@dataclass(frozen=True)
class Task:
    """What a program has to compute, on which inputs, within which budget.

    `reference` is a torch function that computes in the dtype of its inputs (it is called in fp64
    too), or a program in the language: text, or a path beside the task's file; `inputs` come from
    its signature then. Dims that are ranges are drawn at judging time, `hidden` times; `shapes`
    are tried as well, and `timed` is the one that counts for speed. `flops` gives the arithmetic
    of one call from the dims. `seconds` is for everything, `call_seconds` for one request,
    `memory` bytes for what a program may take.
    """

    name: str
    reference: Callable[..., Any] | str
    dims: Mapping[str, Range]
    timed: Mapping[str, int]
    inputs: Sequence[Input] = ()
    dtype: str = "fp32"
    shapes: Sequence[Mapping[str, int]] = ()
    hidden: int = 2
    cases: Sequence[str] = CASES
    baseline: Callable[..., Any] | None = None
    flops: Callable[[Mapping[str, int]], float] | None = None
    deterministic: bool = True
    min_speedup: float | None = None
    seconds: float = 300.0
    call_seconds: float = 60.0
    memory: int = 4 << 30
    file: Path | None = None
    graph: Graph | None = None

    def eager(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The reference in the task's dtypes."""
        if self.graph is None:
            return _tuple(self._function(*inputs))
        return tuple(evaluate_eager(self.graph, self._named(inputs)).values())

    def exact(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The reference in fp64."""
        if self.graph is None:
            wide = [t.double() if t.is_floating_point() else t for t in inputs]
            return _tuple(self._function(*wide))
        return tuple(evaluate(self.graph, self._named(inputs)).values())

    def run_baseline(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """What the program's speed is held against."""
        return _tuple(self.baseline(*inputs)) if self.baseline else self.eager(inputs)

    def dtype_of(self, item: Input) -> torch.dtype:
        """The dtype of an input."""
        return {**DTYPES, **INDEX_DTYPES}[item.dtype or self.dtype]

    def every_dim(self, given: Mapping[str, int]) -> Dims:
        """`given`, completed by the fixed dims. Raises BadTask where one has no value."""
        fixed = {k: v for k, v in self.dims.items() if isinstance(v, int)}
        both = {**fixed, **given}
        missing = [k for k in self.dims if k not in both]
        if missing:
            raise BadTask(f"{self.name}: no value for {', '.join(missing)} in {dict(given)}")
        return both

    def draw_dims(self, rng: random.Random) -> Dims:
        """Dims drawn from their ranges."""
        drawn: Dims = {}
        for name, span in self.dims.items():
            if isinstance(span, int):
                drawn[name] = span
                continue
            low, high, step = (*span, 1)[:3]
            drawn[name] = step * rng.randint(-(-low // step), high // step)
        return drawn

    def all_shapes(self, rng: random.Random) -> list[Dims]:
        """The shapes to try: those pinned, hidden ones drawn now, the timed one."""
        known = [self.every_dim(s) for s in self.shapes]
        ranged = any(not isinstance(v, int) for v in self.dims.values())
        hidden = [self.draw_dims(rng) for _ in range(self.hidden if ranged else 0)]
        found = [*known, *hidden, self.every_dim(self.timed)]
        return [shape for i, shape in enumerate(found) if shape not in found[:i]]

    @property
    def _function(self) -> Callable[..., Any]:
        assert callable(self.reference)
        return self.reference

    def _named(self, inputs: Sequence[Tensor]) -> dict[str, Tensor]:
        return {item.name: t for item, t in zip(self.inputs, inputs, strict=True)}


def load_task(path: str | Path) -> Task:
    """The object `task` of a Python file, checked. Raises BadTask."""
    file = Path(path).resolve()
    if not file.is_file() or file.suffix != ".py":
        raise BadTask(f"no task at '{path}': a Python file with an object `task`")
    try:
        module = import_file(file)
    except Exception as error:
        raise BadTask(f"{path} cannot be loaded: {type(error).__name__}: {error}") from error
    task = getattr(module, "task", None)
    if not isinstance(task, Task):
        raise BadTask(f"{path} has no object `task` of type fusedsl.judge.Task")
    return _checked(_with_graph(replace(task, file=file)))


def import_file(file: Path) -> Any:
    """Import a Python file under a name of its own."""
    name = f"_judged_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _with_graph(task: Task) -> Task:
    if callable(task.reference):
        return task
    assert task.file is not None
    text = task.reference
    inline = "\n" in text or "kernel " in text
    try:
        graph = pipeline.read(text if inline else task.file.parent / text)
    except FusedslError as error:
        raise BadTask(f"{task.name}: the reference is no program\n{error}") from error
    return replace(task, graph=graph, inputs=tuple(_input(graph, p) for p in graph.params))


def _input(graph: Graph, param: Param) -> Input:
    """A parameter of a program; indices are of what the program uses them on."""
    shape = tuple(map(_entry, param.type.shape))
    made = Input(param.name, shape, param.type.dtype.value, param.weight)
    if not param.type.dtype.is_index:
        return made
    found = index_range(graph, param.name)
    return replace(made, high=tuple(map(_entry, found.columns)), special=found.special)


def _entry(dim: Any) -> int | str:
    if dim.symbol is None:
        return dim.factor
    return dim.symbol if dim.factor == 1 else f"{dim.factor}*{dim.symbol}"


def _checked(task: Task) -> Task:
    if not task.inputs:
        raise BadTask(f"{task.name}: no inputs")
    unknown = [c for c in task.cases if c not in CASES]
    if unknown or "normal" not in task.cases:
        raise BadTask(f"{task.name}: cases are {', '.join(CASES)}, and normal is needed")
    for item in task.inputs:
        _check_input(task, item)
    for shape in (*task.shapes, task.timed):
        task.every_dim(shape)
    if any(item.is_index for item in task.inputs):
        return task
    return replace(task, cases=tuple(c for c in task.cases if c not in INDEX_CASES))


def _check_input(task: Task, item: Input) -> None:
    dtypes = {**DTYPES, **INDEX_DTYPES} if item.dtype else DTYPES
    if (item.dtype or task.dtype) not in dtypes:
        raise BadTask(f"{task.name}: '{item.name}' has a dtype beyond {', '.join(dtypes)}")
    if isinstance(item.fill, str) and item.fill not in FILLS:
        raise BadTask(f"{task.name}: fills are {', '.join(FILLS)}, or a function")
    if item.is_index and not item.highs:
        example = f"Input('{item.name}', {item.shape}, dtype='{item.dtype}', high='V')"
        raise BadTask(
            f"{task.name}: '{item.name}' holds indices and has no range: say what they are less "
            f"than, as in {example}"
        )
    if item.is_index and item.fill != "auto" and isinstance(item.fill, str):
        raise BadTask(f"{task.name}: '{item.name}' holds indices: its fill is auto or a function")
    if not item.is_index and (item.highs or item.low or item.special):
        raise BadTask(f"{task.name}: '{item.name}' has a range, and its dtype is not i32 or i64")
    if item.is_index:
        _check_range(task, item)
    for entry in (*item.shape, *item.highs):
        if isinstance(entry, str) and entry.split("*")[-1] not in task.dims:
            raise BadTask(f"{task.name}: '{item.name}' has the unknown dim '{entry}'")


def _check_range(task: Task, item: Input) -> None:
    """Raise BadTask where the range of indices is no range of integers of their dtype."""
    most = torch.iinfo(INDEX_DTYPES[item.dtype or ""]).max
    special: object = item.special
    if not isinstance(special, (tuple, list)):
        raise BadTask(f"{task.name}: special of '{item.name}' is no sequence: ({special},)?")
    numbers: list[object] = [item.low, *special]
    numbers += [high for high in item.highs if not isinstance(high, str)]
    for number in numbers:
        if type(number) is not int or not -most <= number <= most:
            raise BadTask(f"{task.name}: '{item.name}' has {number!r} beside {item.dtype} indices")
    dims = {k: v if isinstance(v, int) else v[0] for k, v in task.dims.items()}
    known = [h for h in item.highs if isinstance(h, int) or h.split("*")[-1] in dims]
    if any(_size(high, dims) <= item.low for high in known):
        raise BadTask(
            f"{task.name}: '{item.name}' has no values where dims are least: low is {item.low}"
        )


def _size(entry: int | str, dims: Mapping[str, int]) -> int:
    if isinstance(entry, int):
        return entry
    match = re.fullmatch(r"(?:(\d+)\*)?([A-Za-z_]\w*)", entry)
    if match is None:
        raise BadTask(f"'{entry}' is no size: an integer, a dim, or 2*DIM")
    return int(match[1] or 1) * dims[match[2]]


def _tuple(value: Any) -> tuple[Tensor, ...]:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)
