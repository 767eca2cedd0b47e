"""What a program is timed against: the same work done by others, or the bare part of it.

A peer gives contenders, each with one call for every set of inputs, or says why it gives none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fusedsl.bench import quack
from fusedsl.bench.case import Case
from fusedsl.ir import DType, Graph, Node, call_reference, evaluate_eager
from fusedsl.rewrite import expand
from fusedsl.runtime.roofline import projections
from fusedsl.runtime.timing import Call

#: Modes of torch.compile that are tried; the second only on a GPU, where it has something to tune.
COMPILE_MODES = ("default", "max-autotune-no-cudagraphs")

#: Rows of a bare product that are held against fp64.
_ROWS = 64


@dataclass
class Contender:
    """One that is timed.

    `check` holds what a call of a set returned against the truth where it is not the program's
    outputs: `(index, result) -> (error, whether that is right)`; None where it is the outputs.
    """

    name: str
    calls: list[Call]
    check: Callable[[int, Any], tuple[float, bool]] | None = None


@dataclass
class Found:
    """The contenders of a peer, and by name why there are not more."""

    contenders: list[Contender] = field(default_factory=list[Contender])
    absent: dict[str, str] = field(default_factory=dict[str, str])


def eager(case: Case) -> Found:
    """The statements in torch, each in its dtype."""
    names = [p.name for p in case.graph.params]
    run = _in_torch(case.graph, names)
    calls = [partial(run, *case.tensors(i)) for i in range(len(case.sets))]
    return Found([Contender("eager", calls)])


def compile(case: Case) -> Found:
    """The same function under torch.compile, for each mode; one that fails is absent."""
    names = [p.name for p in case.graph.params]
    modes = COMPILE_MODES if case.device.startswith("cuda") else COMPILE_MODES[:1]
    found = Found()
    for mode in modes:
        torch.compiler.reset()
        name = f"torch.compile {mode}"
        function = torch.compile(
            _in_torch(case.graph, names), mode=mode, dynamic=False, fullgraph=True
        )
        try:
            function(*case.tensors(0))
        except Exception as error:
            found.absent[name] = _first_line(error)
            continue
        calls = [partial(function, *case.tensors(i)) for i in range(len(case.sets))]
        found.contenders.append(Contender(name, calls))
    return found


def bare(case: Case) -> Found:
    """The projections alone, on random operands of their shapes; a copy where there are none.

    The copy reads and writes as many bytes as the program must, half each.
    """
    graph = expand(case.graph)
    products = projections(graph)
    if not products:
        return Found([_copy(case)])
    operands = [_operands(case, graph, i) for i in range(len(case.sets))]

    def call(index: int) -> list[Tensor]:
        values = operands[index]
        return [call_reference(n, values, case.env, n.block.reference) for n, _, _ in products]

    def check(index: int, results: Sequence[Tensor]) -> tuple[float, bool]:
        values = operands[index]
        found = [
            _product_error(node, values[x], values[w], got)
            for (node, x, w), got in zip(products, results, strict=True)
        ]
        return max(error for error, _ in found), all(ok for _, ok in found)

    calls = [lambda i=i: call(i) for i in range(len(case.sets))]
    return Found([Contender("bare", calls, check)])


def _operands(case: Case, graph: Graph, index: int) -> dict[str, Tensor]:
    """What the projections of one set multiply: parameters as they are, the rest random."""
    values: dict[str, Tensor] = {}
    device = torch.device(case.device)
    generator = torch.Generator(device=device).manual_seed(1000 + index)
    for _, *names in projections(graph):
        for name in names:
            if name in case.sets[index]:
                values[name] = case.sets[index][name]
            elif name not in values:
                type = graph.types[name]
                shape = type.concrete(case.env)
                drawn = torch.randn(shape, generator=generator, device=device)
                values[name] = drawn.to(type.dtype.torch)
    return values


def _product_error(node: Node, x: Tensor, w: Tensor, got: Tensor) -> tuple[float, bool]:
    """The error of some rows of a product, and whether it is one rounding and fp32 sums."""
    rows = slice(None) if x.dim() == 1 else slice(_ROWS)
    exact = node.block.reference(x[rows].double(), w.double(), None)
    scale = float(exact.norm()) or 1.0
    error = float((got[rows].double() - exact).norm()) / scale
    sums = torch.finfo(torch.float32).eps * x.shape[-1] ** 0.5
    return error, error <= max(torch.finfo(got.dtype).eps, sums)


def _copy(case: Case) -> Contender:
    graph, env = case.graph, case.env
    read = sum(p.type.nbytes(env) for p in graph.params)
    written = sum(graph.types[name].nbytes(env) for name in dict.fromkeys(graph.outputs))
    count = max(1, (read + written) // 2 // DType.BF16.bytes)
    sources = [torch.randn(count, device=case.device, dtype=torch.bfloat16) for _ in case.sets]

    def check(index: int, result: Tensor) -> tuple[float, bool]:
        same = torch.equal(result, sources[index])
        return float(not same), same

    return Contender("bare copy", [lambda s=s: s.clone() for s in sources], check)


def with_quack(case: Case) -> Found:
    """Quack's kernels, where they are installed and have a function for the program."""
    match = quack.match(case.graph)
    if isinstance(match, str):
        return Found(absent={"quack": match})
    try:
        prepared = [match(inputs) for inputs in case.sets]
        prepared[0]()
    except Exception as error:
        return Found(absent={"quack": _first_line(error)})
    return Found([Contender("quack", prepared)])


#: The peers by the name that `--against` takes.
PEERS: dict[str, Callable[[Case], Found]] = {
    "eager": eager,
    "compile": compile,
    "bare": bare,
    "quack": with_quack,
}


def _in_torch(graph: Graph, names: Sequence[str]) -> Callable[..., tuple[Tensor, ...]]:
    """The statements as one function of torch, in the order of the signature."""

    def run(*tensors: Tensor) -> tuple[Tensor, ...]:
        outputs = evaluate_eager(graph, dict(zip(names, tensors, strict=True)))
        return tuple(outputs[name] for name in graph.outputs)

    return run


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"[:300]
