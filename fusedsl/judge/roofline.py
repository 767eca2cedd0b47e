"""The least time that a device needs for the bytes and the arithmetic of a call, as measured."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from fusedsl.ir import Graph
from fusedsl.ir.laws import Contracts
from fusedsl.judge.task import Dims, Task
from fusedsl.rewrite import expand

_clock = time.perf_counter

#: What is measured may be exceeded by a better copy or product than torch's, but not by this.
MARGIN = 1.25

#: Bytes of a copy, and the side of a square product, for measuring.
_COPY = {"cuda": 1 << 30, "cpu": 1 << 26}
_SIDE = {"cuda": 8192, "cpu": 512}


@dataclass(frozen=True)
class Peak:
    """Bytes (read and written) and arithmetic operations per second; bytes of the cache."""

    bandwidth: float
    flops: float
    cache: int

    def seconds(self, moved: float, flops: float) -> float:
        """The least time; 0 where nothing is known."""
        return max(moved / self.bandwidth, flops / self.flops) / MARGIN


@functools.lru_cache
def measure(device: str) -> Peak:
    """Measure a device: the best of several copies, and of several products.

    The products are of the fastest dtype that can serve at all: a program may make products of
    fp32 from several in 16 bits (on the CPU, the other way round).
    """
    kind = torch.device(device).type
    size = _COPY[kind]
    source = torch.ones(size // 4, device=device)
    target = torch.empty_like(source)
    copies = [_seconds(lambda: target.copy_(source), device)]
    if kind == "cpu":  # a small copy stays in the caches, and so may a small task
        for part in (1 << 12, 1 << 16, 1 << 20):
            a, b = source[:part], target[:part]
            copies.append(_seconds(lambda a=a, b=b: b.copy_(a), device) * source.numel() / part)
    side = _SIDE[kind]
    products: list[float] = []
    for dtype in (torch.bfloat16, torch.float32):
        x = torch.randn(side, side, device=device).to(dtype)
        products.append(_seconds(lambda x=x: x @ x, device))
    cache = torch.cuda.get_device_properties(device).L2_cache_size if kind == "cuda" else 1 << 25
    return Peak(2 * size / min(copies), 2 * side**3 / min(products), cache)


def _seconds(work: Callable[[], object], device: str) -> float:
    """The best of ten."""
    kind = torch.device(device).type
    best = float("inf")
    for _ in range(10):
        if kind == "cuda":
            torch.cuda.synchronize(device)
        started = _clock()
        work()
        if kind == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, _clock() - started)
    return max(best, 1e-9)


def set_bytes(task: Task, dims: Dims) -> tuple[int, int]:
    """Bytes of the activations of one call, and of the weights."""
    sizes = [0, 0]
    for item in task.inputs:
        count = torch.Size(item.sizes(dims)).numel()
        sizes[item.weight] += count * task.dtype_of(item).itemsize
    return sizes[0], sizes[1]


def least_seconds(task: Task, dims: Dims, peak: Peak, sets: int, out_bytes: int) -> float:
    """The least time of one call where `sets` sets of inputs are rotated.

    Only bytes that cannot lie in the cache count: those of all sets together, if they exceed it
    twice over, and those of the weights, if they do.
    """
    activations, weights = set_bytes(task, dims)
    moved = activations + out_bytes
    cold = moved if moved * sets >= 2 * peak.cache else 0
    cold += weights if weights >= 2 * peak.cache else 0
    return peak.seconds(cold, flops_of(task, dims))


def flops_of(task: Task, dims: Dims) -> float:
    """Multiplications and additions: as the task says, or those of a program's projections."""
    if task.flops is not None:
        return float(task.flops(dims))
    return _graph_flops(task.graph, dims) if task.graph is not None else 0.0


def _graph_flops(graph: Graph, dims: Mapping[str, int]) -> float:
    work = 0.0
    expanded = expand(graph)
    for node in expanded.nodes:
        for law in node.block.laws_of(Contracts):
            rows, cols = (d.bind(dims) for d in node.type.shape[-2:])
            weight = node.operand(law.weight)
            assert isinstance(weight, str)
            work += 2 * rows * cols * expanded.types[weight].shape[law.k_axis].bind(dims)
    return work
