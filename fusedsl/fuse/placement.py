"""Where each node runs: in the kernel of a projection, or floating until somebody needs it.

A pointwise node joins the latest projection kernel that computes one of its operands, if all its
other operands can be there in time. What joins none is *floating*: it is recomputed by its readers
or, where it must exist in memory, made by a row kernel (see `assemble`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from fusedsl.ir import Dim, Gathers, Graph, HalvesOf, Kind, Node


@dataclass(eq=False)
class GemmSlot:
    """A projection kernel under construction."""

    anchor: Node
    rows: Dim
    cols: Dim
    paired: bool = False
    members: list[Node] = field(default_factory=list[Node])
    after: set[int] = field(default_factory=set[int])


@dataclass
class Placement:
    """Homes of all values.

    `home[value]` is the index of the projection kernel that has it in registers; values of
    parameters and bind-time nodes are in `memory`; the rest floats. `streamed[value]` is the
    projection kernel that takes a statistic of the operand it streams.
    """

    graph: Graph
    memory: frozenset[str]
    slots: list[GemmSlot] = field(default_factory=list[GemmSlot])
    home: dict[str, int] = field(default_factory=dict[str, int])
    floating: list[Node] = field(default_factory=list[Node])
    streamed: dict[str, int] = field(default_factory=dict[str, int])

    def is_floating(self, value: str) -> bool:
        """Whether a value is neither in memory nor in a projection kernel."""
        return value not in self.memory and value not in self.home

    def needs(self, value: str) -> set[int]:
        """Projection kernels that must have run before `value` can be computed outside them."""
        if value in self.memory:
            return set()
        if value in self.home:
            return {self.home[value]}
        if value in self.streamed:
            return {self.streamed[value]}
        node = self.graph.producers[value]
        return {index for name in node.inputs for index in self.needs(name)}

    def stream(self, statistic: Node, index: int) -> None:
        """Let projection kernel `index` take a statistic; its readers wait for that kernel."""
        self.streamed.update({result.name: index for result in statistic.results})
        for number, slot in enumerate(self.slots):
            names = [n for node in (slot.anchor, *slot.members) for n in node.inputs]
            slot.after = {i for n in names for i in self.needs(n)} - {number}

    def runs_after(self, slot: int, other: int) -> bool:
        """Whether kernel `slot` waits for kernel `other`, directly or not."""
        seen: set[int] = set()
        queue = [slot]
        while queue:
            for before in self.slots[queue.pop()].after - seen:
                if before == other:
                    return True
                seen.add(before)
                queue.append(before)
        return False


def place(graph: Graph) -> Placement:
    """Place every run-time node, in order."""
    bound = {r.name for node in graph.bind_time_nodes() for r in node.results}
    state = Placement(graph, frozenset({p.name for p in graph.params} | bound))
    for node in graph.run_time_nodes():
        if node.block.kind is Kind.GEMM:
            _open_slot(state, node)
        elif not (_joins_as_half(state, node) or _joins_epilogue(state, node)):
            state.floating.append(node)
    return state


def _open_slot(state: Placement, node: Node) -> None:
    slot = GemmSlot(node, node.type.rows, node.type.cols)
    slot.after = {index for name in node.inputs for index in state.needs(name)}
    state.home[node.name] = len(state.slots)
    state.slots.append(slot)


def _joins_as_half(state: Placement, node: Node) -> bool:
    laws = node.block.laws_of(HalvesOf)
    if not laws:
        return False
    source = node.operand(laws[0].operand)
    if not isinstance(source, str):
        return False
    index = state.home.get(source)
    if index is None or state.slots[index].anchor.name != source:
        return False
    readers = state.graph.readers[source]
    if source in state.graph.outputs or not all(r.block.has_law(HalvesOf) for r in readers):
        return False
    slot = state.slots[index]
    slot.paired = True
    slot.cols = node.type.cols
    _join(state, index, node)
    return True


def _joins_epilogue(state: Placement, node: Node) -> bool:
    # what reduces each tile on its own: per-tile states, and picks by index
    is_partial = node.block.kind is Kind.EPILOGUE and "tiles" in node.attr_map
    is_partial |= is_pick(node)
    if node.block.kind is not Kind.POINTWISE and not is_partial:
        return False
    if node.block.has_law(Gathers):  # its rows of the weight are loaded as whole rows
        return False
    homes = sorted({state.home[n] for n in node.inputs if n in state.home}, reverse=True)
    for index in homes:
        slot = state.slots[index]
        shape = state.graph.types[node.inputs[0]].shape if is_partial else node.type.shape
        if shape != (slot.rows, slot.cols) or not _in_time(state, node, index):
            continue
        if is_partial and state.home.get(node.inputs[0]) != index:
            continue
        if slot.paired is False and _will_be_paired(state, slot):
            continue
        _join(state, index, node)
        return True
    return False


def _will_be_paired(state: Placement, slot: GemmSlot) -> bool:
    readers = state.graph.readers[slot.anchor.name]
    return slot.anchor.name not in state.graph.outputs and all(
        r.block.has_law(HalvesOf) for r in readers
    )


def _in_time(state: Placement, node: Node, index: int) -> bool:
    """Every operand that this kernel does not compute exists before it starts."""
    for name in node.inputs:
        if state.home.get(name) == index:
            if is_pick(state.graph.producers[name]):
                return False  # known in one tile of a row alone
            continue
        needed = state.needs(name)
        if index in needed or any(state.runs_after(other, index) for other in needed):
            return False
    return True


def is_pick(node: Node) -> bool:
    """Whether one piece of a row gives the node's value on its own: a reduction by index."""
    return node.block.reduction is not None and node.block.reduction.owner is not None


def _join(state: Placement, index: int, node: Node) -> None:
    slot = state.slots[index]
    slot.members.append(node)
    for result in node.results:
        state.home[result.name] = index
    for name in node.inputs:
        if state.home.get(name) != index:
            slot.after |= state.needs(name)
