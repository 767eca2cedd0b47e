"""From placement and demand to kernel plans in launch order."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fusedsl.fuse.alternate import alternate
from fusedsl.fuse.cost import CostModel
from fusedsl.fuse.placement import Placement, place
from fusedsl.fuse.plan import KernelPlan, Plan
from fusedsl.fuse.rowgroups import (
    Demand,
    RowGroup,
    anchor_operands,
    collect_demand,
    group_rows,
    is_reduction,
)
from fusedsl.ir import Graph, Kind, Layout, Node, verify


def fuse(graph: Graph, cost: CostModel | None = None) -> Plan:
    """Plan the kernels of a rewritten graph. Deterministic.

    Every run-time node is computed by at least one kernel; every value a kernel reads is a
    parameter, a bind-time value, or written by an earlier kernel.
    """
    verify(graph)
    state = place(graph)
    demand = collect_demand(state, cost or CostModel())
    groups = group_rows(state, demand)
    _promote_columns(state, demand, groups)
    builder = _Assembler(state, demand, groups)
    kernels = _in_order(_read_later(graph, [*builder.row_kernels(), *builder.gemm_kernels()]))
    bind = tuple(graph.bind_time_nodes())
    return alternate(Plan(graph, bind, kernels, tuple(demand.decisions)))


def _promote_columns(state: Placement, demand: Demand, groups: list[RowGroup]) -> None:
    """Where a statistic feeds one column value only, leave that value instead of the statistic."""
    graph = state.graph
    for node in state.floating:
        if node.type.layout is not Layout.COLUMN or node.block.kind is not Kind.POINTWISE:
            continue
        if node.name in demand.stored or not node.inputs:
            continue
        group = next((g for g in groups if all(n in g.targets for n in node.inputs)), None)
        if group is None or not all(graph.is_read_once(n) for n in node.inputs):
            continue
        demand.stored.add(node.name)
        group.targets = [t for t in group.targets if t not in node.inputs] + [node.name]
        demand.stored -= set(node.inputs)


@dataclass
class _Assembler:
    state: Placement
    demand: Demand
    groups: list[RowGroup]

    def row_kernels(self) -> list[KernelPlan]:
        kernels: list[KernelPlan] = []
        for group in self.groups:
            made = set(group.targets)
            steps = self._steps(list(group.targets), self._in_memory() - made)
            kind = Kind.ROW_REDUCTION if any(map(is_reduction, steps)) else Kind.POINTWISE
            reads = _reads(steps, ())
            kernels.append(
                KernelPlan(
                    steps[-1].block.name, kind, group.rows, group.cols, None, False,
                    steps, (), reads, tuple(group.targets),
                )
            )  # fmt: skip
        return kernels

    def gemm_kernels(self) -> list[KernelPlan]:
        kernels: list[KernelPlan] = []
        for index, slot in enumerate(self.state.slots):
            streamed = self._streamed(index)
            columns = self._streamed_columns(streamed)
            passing = {r.name for n in streamed for r in n.results}
            own = {r.name for n in (slot.anchor, *slot.members) for r in n.results} | passing
            memory = self._in_memory() | passing
            names = [m.name for m in slot.members] + columns
            ordered = self._steps(names, memory)
            writes = self._writes(index, own, columns, streamed)
            reads = _reads(ordered, anchor_operands(slot.anchor), own)
            kernels.append(
                KernelPlan(
                    slot.anchor.block.name, Kind.GEMM, slot.rows, slot.cols, slot.anchor,
                    slot.paired, ordered, streamed, reads, writes,
                )
            )  # fmt: skip
        return kernels

    def _streamed_columns(self, streamed: tuple[Node, ...]) -> list[str]:
        """Column values made of streamed statistics alone, as far as they are read once."""
        graph = self.state.graph
        columns: list[str] = []
        known = {r.name for n in streamed for r in n.results}
        for node in self.state.floating:
            if not streamed or node.block.kind is not Kind.POINTWISE or not node.inputs:
                continue
            if node.type.layout is not Layout.COLUMN or node.name in self.demand.stored:
                continue
            if all(n in known and graph.is_read_once(n) for n in node.inputs):
                known |= {node.name}
                columns.append(node.name)
        return columns

    def _writes(
        self, index: int, own: set[str], columns: list[str], streamed: tuple[Node, ...]
    ) -> tuple[str, ...]:
        graph = self.state.graph
        slot = self.state.slots[index]
        writes: list[str] = []
        for node in (slot.anchor, *slot.members):
            for result in node.results:
                outside = any(
                    self.state.home.get(r.name) != index for r in graph.readers[result.name]
                )
                if result.name in graph.outputs or outside:
                    writes.append(result.name)
        replaced = {n for c in columns for n in graph.producers[c].inputs}
        candidates = [r.name for n in streamed for r in n.results] + columns
        writes += [n for n in candidates if n not in replaced and graph.readers[n]]
        return tuple(writes)

    def _in_memory(self) -> set[str]:
        """Every value some kernel finds in memory."""
        stored = set(self.state.memory) | self.demand.stored | set(self.state.home)
        for index in range(len(self.state.slots)):
            streamed = self._streamed(index)
            columns = self._streamed_columns(streamed)
            replaced = {n for c in columns for n in self.state.graph.producers[c].inputs}
            found = [r.name for n in streamed for r in n.results] + columns
            stored |= {n for n in found if n not in replaced}
        return stored

    def _streamed(self, index: int) -> tuple[Node, ...]:
        """Statistics that projection kernel `index` takes in its main loop."""
        return tuple(n for n in self.state.floating if self.state.streamed.get(n.name) == index)

    def _steps(self, names: list[str], leaves: set[str]) -> tuple[Node, ...]:
        """The nodes that compute `names` from `leaves`, in program order."""
        graph = self.state.graph
        needed: set[str] = set()
        queue = list(names)
        roots = set(names)
        while queue:
            name = queue.pop()
            if name in needed or (name not in roots and name in leaves):
                continue
            if name in self.state.memory:
                continue
            needed.add(name)
            queue += graph.producers[name].inputs
        return tuple(n for n in graph.nodes if any(r.name in needed for r in n.results))


def _reads(
    steps: tuple[Node, ...], first: tuple[str, ...], own: set[str] | None = None
) -> tuple[str, ...]:
    computed = {r.name for node in steps for r in node.results} | (own or set())
    names = [*first, *(n for node in steps for n in node.inputs)]
    return tuple(dict.fromkeys(n for n in names if n not in computed))


def _read_later(graph: Graph, kernels: list[KernelPlan]) -> list[KernelPlan]:
    """The kernels without stores that nobody reads: a statistic used where it is made alone."""
    wanted = {name for kernel in kernels for name in kernel.reads} | set(graph.outputs)
    kept = [replace(k, writes=tuple(w for w in k.writes if w in wanted)) for k in kernels]
    return [kernel for kernel in kept if kernel.writes]


def _in_order(kernels: list[KernelPlan]) -> tuple[KernelPlan, ...]:
    """Launch order: a kernel after those whose values it reads; unique, readable names."""
    waiting = list(kernels)
    written = {w for k in kernels for w in k.writes}
    done: list[KernelPlan] = []
    available: set[str] = set()
    while waiting:
        ready = next(
            (k for k in waiting if all(r in available or r not in written for r in k.reads)), None
        )
        if ready is None:
            raise AssertionError("kernel plans wait for each other")
        waiting.remove(ready)
        available |= set(ready.writes)
        done.append(replace(ready, name=f"k{len(done)}_{ready.name}"))
    return tuple(done)
