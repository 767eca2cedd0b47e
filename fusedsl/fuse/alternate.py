"""Which kernels take their rows from the last to the first.

A kernel ends with rows that the L2 cache still holds when the next one starts: what it wrote last,
and what it read last. So a kernel that reads the same tile begins with those. Where a tile is
larger than the cache, taking its rows in the same order again finds none of them: each is evicted
before its turn comes. From projection to projection, rows forwards and backwards:

    gate_up:  x -> h, forwards      down:  h -> y, backwards
"""

from __future__ import annotations

from dataclasses import replace

from fusedsl.fuse.plan import KernelPlan, Plan
from fusedsl.fuse.rowgroups import anchor_operands
from fusedsl.ir import Layout


def alternate(plan: Plan) -> Plan:
    """The same plan; those of its kernels turn round whose operand an earlier one went over.

    The operand is the one that a projection streams, or the first tile that a kernel reads. Which
    kernels there are decides it, so a plan that is made of another one is given here again.
    """
    turned: dict[str, bool] = {}  # by tile: whether it was gone over backwards, the last time
    made: list[KernelPlan] = []
    for kernel in plan.kernels:
        tiles = [n for n in _touched(kernel) if plan.type_of(n).layout is Layout.TILE]
        backwards = bool(tiles) and not turned.get(tiles[0], True)
        turned.update((name, backwards) for name in tiles)
        made.append(replace(kernel, backwards=backwards))
    return replace(plan, kernels=tuple(made))


def _touched(kernel: KernelPlan) -> list[str]:
    """What a kernel reads and writes row by row, its operand first."""
    if kernel.anchor is None:
        return [*kernel.reads, *kernel.writes]
    streamed, weights = anchor_operands(kernel.anchor)
    return [streamed, *(n for n in (*kernel.reads, *kernel.writes) if n not in (streamed, weights))]
