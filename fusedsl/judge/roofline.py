"""The least time that a device needs for the bytes and the arithmetic of a call, as measured."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch

from fusedsl.judge.task import Dims, Task
from fusedsl.runtime.roofline import copy_bandwidth, product_flops
from fusedsl.runtime.roofline import flops_of as flops_of_graph
from fusedsl.runtime.timing import best_seconds

#: What is measured may be exceeded by a better copy or product than torch's, but not by this.
MARGIN = 1.25


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
    bandwidth = copy_bandwidth(device)
    if kind == "cpu":  # a small copy stays in the caches, and so may a small task
        for count in (1 << 12, 1 << 16, 1 << 20):
            a, b = torch.ones(count), torch.empty(count)
            once = best_seconds(lambda a=a, b=b: b.copy_(a), device)
            bandwidth = max(bandwidth, 2 * a.nbytes / once)
    flops = max(product_flops(device, dtype) for dtype in (torch.bfloat16, torch.float32))
    cache = torch.cuda.get_device_properties(device).L2_cache_size if kind == "cuda" else 1 << 25
    return Peak(bandwidth, flops, cache)


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
    return flops_of_graph(task.graph, dims) if task.graph is not None else 0.0
