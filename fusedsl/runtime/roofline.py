"""What a device can do at best, as measured, and what a program needs at least."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from fusedsl.ir import Contracts, DType, Graph, Node
from fusedsl.rewrite import expand
from fusedsl.runtime.timing import best_seconds

#: Bytes of a copy, and the side of a square product, for measuring.
_COPY = {"cuda": 1 << 30, "cpu": 1 << 26}
_SIDE = {"cuda": 8192, "cpu": 512}


@functools.lru_cache
def copy_bandwidth(device: str) -> float:
    """Bytes read and written in a second by a large copy: the best of ten."""
    size = _COPY[torch.device(device).type]
    source = torch.ones(size // 4, device=device)
    target = torch.empty_like(source)
    return 2 * size / best_seconds(lambda: target.copy_(source), device)


@functools.lru_cache
def product_flops(device: str, dtype: torch.dtype) -> float:
    """Multiplications and additions in a second of a large product of torch: the best of ten."""
    side = _SIDE[torch.device(device).type]
    x = torch.randn(side, side, device=device).to(dtype)
    return 2 * side**3 / best_seconds(lambda: x @ x, device)


def projections(graph: Graph) -> list[tuple[Node, str, str]]:
    """The projections that run on every call: node, and the names of what it multiplies."""
    found: list[tuple[Node, str, str]] = []
    for node in graph.run_time_nodes():
        for law in node.block.laws_of(Contracts):
            operand, weight = node.operand(law.operand), node.operand(law.weight)
            assert isinstance(operand, str) and isinstance(weight, str)
            found.append((node, operand, weight))
    return found


def flops_by_dtype(graph: Graph, env: Mapping[str, int]) -> dict[DType, float]:
    """Multiplications and additions of the projections of a call, by the dtype of operands."""
    work: dict[DType, float] = {}
    for node, operand, weight in projections(graph):
        (law,) = node.block.laws_of(Contracts)
        type = graph.types[operand]
        k = graph.types[weight].shape[law.k_axis].bind(env)
        size = 2.0 * node.type.rows.bind(env) * node.type.cols.bind(env) * k
        work[type.dtype] = work.get(type.dtype, 0.0) + size
    return work


def flops_of(graph: Graph, env: Mapping[str, int]) -> float:
    """Multiplications and additions of all projections of a call."""
    return sum(flops_by_dtype(expand(graph), env).values())


def least_bytes(graph: Graph, env: Mapping[str, int]) -> int:
    """Bytes that a call must move: every parameter read once, every output written once."""
    names = [*(p.name for p in graph.params), *dict.fromkeys(graph.outputs)]
    return sum(graph.types[name].nbytes(env) for name in names)


@dataclass(frozen=True)
class Limit:
    """The least time of a call in milliseconds, and what decides it.

    `bandwidth` is in bytes and `flops` (by dtype) in operations a second.
    """

    memory_ms: float
    arithmetic_ms: float
    moved: int
    work: float

    @property
    def ms(self) -> float:
        """The longer of the two."""
        return max(self.memory_ms, self.arithmetic_ms)

    @property
    def by(self) -> str:
        """Which of the two it is."""
        return "memory" if self.memory_ms >= self.arithmetic_ms else "arithmetic"


def limit(graph: Graph, env: Mapping[str, int], device: str) -> Limit:
    """The roofline of a program on a device: bytes at the speed of a copy, projections at the
    speed of a large product of the same dtype."""
    moved = least_bytes(graph, env)
    work = flops_by_dtype(expand(graph), env)
    seconds = sum(size / product_flops(device, dtype.torch) for dtype, size in work.items())
    memory = moved / copy_bandwidth(device)
    return Limit(memory * 1e3, seconds * 1e3, moved, sum(work.values()))
