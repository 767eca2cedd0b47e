"""Row kernels: what must be computed over whole rows or stored, outside any projection kernel."""

from __future__ import annotations

from dataclasses import dataclass, field

from fusedsl.fuse.cost import CostModel
from fusedsl.fuse.placement import Placement
from fusedsl.ir import ONE, Contracts, Dim, Graph, HalvesOf, Kind, Layout, Node


@dataclass(eq=False)
class RowGroup:
    """A row kernel under construction: `targets` are the values it must leave in memory."""

    rows: Dim
    cols: Dim
    targets: list[str] = field(default_factory=list[str])


@dataclass
class Demand:
    """Floating values that must exist in memory, and statistics taken while a projection streams.

    `streamed` maps a statistic's node to the projection kernel whose main loop takes it.
    """

    stored: set[str] = field(default_factory=set[str])
    streamed: dict[str, int] = field(default_factory=dict[str, int])
    decisions: list[str] = field(default_factory=list[str])


def is_reduction(node: Node) -> bool:
    """Whether the node reduces whole rows (a merge of per-tile states does not)."""
    return node.block.kind is Kind.ROW_REDUCTION


def anchor_operands(node: Node) -> tuple[str, str]:
    """(streamed operand, weight) of a projection."""
    law = node.block.laws_of(Contracts)[0]
    x, w = node.operand(law.operand), node.operand(law.weight)
    assert isinstance(x, str) and isinstance(w, str)
    return x, w


def collect_demand(state: Placement, cost: CostModel) -> Demand:
    """Decide which floating values are stored."""
    graph = state.graph
    demand = Demand()
    for node in graph.run_time_nodes():
        if node.block.kind is Kind.GEMM or node.block.has_law(HalvesOf):
            demand.stored |= {n for n in node.inputs if state.is_floating(n)}
    demand.stored |= {name for name in graph.outputs if state.is_floating(name)}
    demand.stored -= state.memory
    _stream_statistics(state, demand)
    for node in state.floating:
        if is_reduction(node) and node.name not in demand.streamed:
            demand.stored |= {r.name for r in node.results if graph.readers[r.name]}
    _store_where_cheaper(state, demand, cost)
    return demand


def _stream_statistics(state: Placement, demand: Demand) -> None:
    """Take a statistic in the main loop of a projection of the same x that does not need it."""
    for node in state.floating:
        if not is_reduction(node) or len(node.inputs) != 1:
            continue
        x = node.inputs[0]
        if state.is_floating(x) or any(r.name in state.graph.outputs for r in node.results):
            continue
        for index, slot in enumerate(state.slots):
            if anchor_operands(slot.anchor)[0] != x:
                continue
            if _needed_by(state, node, index):
                continue
            demand.streamed[node.name] = index
            demand.decisions.append(
                f"{node.name}: taken in the main loop of {slot.anchor.name}, which streams {x}"
            )
            break


def _needed_by(state: Placement, statistic: Node, index: int) -> bool:
    """Whether a kernel, or one that runs before it, depends on a statistic."""
    names = {r.name for r in statistic.results}
    kernels = [i for i in range(len(state.slots)) if i == index or state.runs_after(index, i)]
    roots = [n for i in kernels for n in (state.slots[i].anchor, *state.slots[i].members)]
    seen: set[str] = set()
    queue = [name for node in roots for name in node.inputs]
    while queue:
        name = queue.pop()
        if name in names:
            return True
        if name in seen or name in state.memory:
            continue
        seen.add(name)
        queue += state.graph.producers[name].inputs
    return False


def _store_where_cheaper(state: Placement, demand: Demand, cost: CostModel) -> None:
    """A floating tile read by epilogues is recomputed there unless storing it is cheaper."""
    graph = state.graph
    for node in state.floating:
        value = node.name
        if value in demand.stored or node.type.layout is not Layout.TILE or is_reduction(node):
            continue
        kernels = sorted({state.home[r.name] for r in graph.readers[value] if r.name in state.home})
        if not kernels:
            continue
        leaves = _tile_leaves(state, demand, value)
        missing = [sorted(leaves - _tiles_read(state, k)) for k in kernels]
        kinds = [[graph.types[n] for n in names] for names in missing]
        if not cost.recompute_pays(graph.types[value], [graph.types[n] for n in leaves], kinds):
            demand.stored.add(value)
            demand.decisions.append(f"{value}: stored once, cheaper than computing it again")
        else:
            demand.decisions.append(f"{value}: computed again by its readers, never stored")


def _tile_leaves(state: Placement, demand: Demand, value: str) -> set[str]:
    if not state.is_floating(value) or value in demand.stored:
        return {value} if state.graph.types[value].layout is Layout.TILE else set()
    node = state.graph.producers[value]
    return set().union(*(_tile_leaves(state, demand, name) for name in node.inputs))


def _tiles_read(state: Placement, index: int) -> set[str]:
    slot = state.slots[index]
    return {name for node in slot.members for name in node.inputs if state.home.get(name) != index}


def group_rows(state: Placement, demand: Demand) -> list[RowGroup]:
    """Gather stored floating values into row kernels that share their domain."""
    groups: list[RowGroup] = []
    for node in state.floating:
        for result in node.results:
            if result.name not in demand.stored:
                continue
            rows, cols = _domain(state.graph, node)
            for group in groups:
                same = (group.rows, group.cols) == (rows, cols)
                if same and _can_join(state, demand, groups, group, result.name):
                    group.targets.append(result.name)
                    break
            else:
                groups.append(RowGroup(rows, cols, [result.name]))
    return groups


def _domain(graph: Graph, node: Node) -> tuple[Dim, Dim]:
    """Rows and columns a node is computed over."""
    source = node.type
    if is_reduction(node):
        source = graph.types[node.inputs[0]]
    elif node.type.layout is Layout.COLUMN:
        source = _widest(graph, node)
    return (source.rows, source.cols) if source.rank == 2 else (ONE, source.cols)


def _widest(graph: Graph, node: Node):
    """The row a column value was reduced from, so that it can be made beside its statistic."""
    for name in node.inputs:
        producer = graph.producers.get(name)
        if producer is None or graph.is_bind_time(producer):
            continue
        if is_reduction(producer):
            return graph.types[producer.inputs[0]]
        if producer.type.layout is Layout.COLUMN and producer.block.kind is Kind.POINTWISE:
            return _widest(graph, producer)
    return node.type


def _can_join(
    state: Placement, demand: Demand, groups: list[RowGroup], group: RowGroup, value: str
) -> bool:
    """Whether `value` can be made in `group`: nothing it needs waits for what the group makes."""
    made = set(group.targets)
    seen: set[str] = set()
    queue = [value]
    while queue:
        name = queue.pop()
        if name in seen or name in state.memory:
            continue
        seen.add(name)
        if name in made:
            continue
        if name in state.home:
            index = state.home[name]
            kernels = [
                i for i in range(len(state.slots)) if i == index or state.runs_after(index, i)
            ]
            if any(_slot_reads(state, i, made) for i in kernels):
                return False
            continue
        owner = next((g for g in groups if name in g.targets), None)
        if owner is not None and owner is not group and _group_reads(state, owner, made):
            return False
        queue += state.graph.producers[name].inputs
    return True


def _slot_reads(state: Placement, index: int, made: set[str]) -> bool:
    slot = state.slots[index]
    return _reaches(state, [n for m in (slot.anchor, *slot.members) for n in m.inputs], made)


def _group_reads(state: Placement, group: RowGroup, made: set[str]) -> bool:
    return _reaches(state, list(group.targets), made)


def _reaches(state: Placement, names: list[str], made: set[str]) -> bool:
    seen: set[str] = set()
    queue = list(names)
    while queue:
        name = queue.pop()
        if name in made:
            return True
        if name in seen or name in state.memory:
            continue
        seen.add(name)
        queue += state.graph.producers[name].inputs
    return False
