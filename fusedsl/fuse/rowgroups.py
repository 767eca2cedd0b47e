"""Row kernels: what must be computed over whole rows or stored, outside any projection kernel."""

from __future__ import annotations

from dataclasses import dataclass, field

from fusedsl.fuse.cost import CostModel
from fusedsl.fuse.placement import Placement
from fusedsl.ir import ONE, Contracts, Dim, HalvesOf, Kind, Layout, Node, TensorType


@dataclass(eq=False)
class RowGroup:
    """A row kernel under construction: `targets` are the values it must leave in memory."""

    rows: Dim
    cols: Dim
    targets: list[str] = field(default_factory=list[str])


@dataclass
class Demand:
    """Floating values that must exist in memory, and why."""

    stored: set[str] = field(default_factory=set[str])
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
        if is_reduction(node) and node.name not in state.streamed:
            demand.stored |= {r.name for r in node.results if graph.readers[r.name]}
    _store_where_cheaper(state, demand, cost)
    return demand


def _stream_statistics(state: Placement, demand: Demand) -> None:
    """Take a statistic in the main loop of a projection of the same x that does not need it."""
    for node in state.floating:
        if not is_reduction(node) or len(node.inputs) != 1:
            continue
        x = node.inputs[0]
        if state.graph.types[x].layout is not Layout.TILE:
            continue
        if state.is_floating(x) or any(r.name in state.graph.outputs for r in node.results):
            continue
        for index, slot in enumerate(state.slots):
            if anchor_operands(slot.anchor)[0] != x:
                continue
            if _needed_by(state, node, index):
                continue
            state.stream(node, index)
            demand.decisions.append(
                f"{node.name}: taken in the kernel of {slot.anchor.name}, which streams {x}"
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
    return {leaf for name in node.inputs for leaf in _tile_leaves(state, demand, name)}


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
            rows, cols = _domain(state, node)
            for group in groups:
                same = (group.rows, group.cols) == (rows, cols)
                if same and _can_join(state, groups, group, result.name):
                    group.targets.append(result.name)
                    break
            else:
                if node.type.layout is Layout.COLUMN and not is_reduction(node):
                    cols = ONE  # its statistic is made elsewhere, and read
                groups.append(RowGroup(rows, cols, [result.name]))
    return groups


def _domain(state: Placement, node: Node) -> tuple[Dim, Dim]:
    """Rows and columns a node is computed over."""
    source = node.type
    if is_reduction(node):
        source = state.graph.types[node.inputs[0]]
    elif node.type.layout is Layout.COLUMN:
        source = _widest(state, node)
    return (source.rows, source.cols) if source.rank == 2 else (ONE, source.cols)


def _widest(state: Placement, node: Node) -> TensorType:
    """The row a column value was reduced from, so that it can be made beside its statistic."""
    graph = state.graph
    for name in node.inputs:
        producer = graph.producers.get(name)
        if producer is None or not state.is_floating(name):
            continue
        if graph.types[name].rows != node.type.rows:  # one row, shared by all of this value's
            continue
        if is_reduction(producer):
            return graph.types[producer.inputs[0]]
        if producer.type.layout is Layout.COLUMN and producer.block.kind is Kind.POINTWISE:
            return _widest(state, producer)
    return node.type


def _can_join(state: Placement, groups: list[RowGroup], group: RowGroup, value: str) -> bool:
    """Whether the kernels still have an order if `value` is made in `group`."""
    group.targets.append(value)
    ordered = _have_an_order(state, groups)
    group.targets.pop()
    return ordered


def _have_an_order(state: Placement, groups: list[RowGroup]) -> bool:
    """Whether no kernel waits for itself. Kernels are numbered: projections, then row groups."""
    owner = {**state.home, **state.streamed}
    for number, group in enumerate(groups, start=len(state.slots)):
        owner.update(dict.fromkeys(group.targets, number))
    roots = [[n for m in (slot.anchor, *slot.members) for n in m.inputs] for slot in state.slots]
    producers = state.graph.producers
    roots += [[n for t in group.targets for n in producers[t].inputs] for group in groups]
    waits = [_owners(state, owner, number, names) for number, names in enumerate(roots)]
    pending = dict(enumerate(waits))
    while pending:
        free = [number for number, before in pending.items() if not before & pending.keys()]
        if not free:
            return False
        for number in free:
            del pending[number]
    return True


def _owners(state: Placement, owner: dict[str, int], number: int, names: list[str]) -> set[int]:
    """The other kernels whose results are read to compute `names` in kernel `number`."""
    found: set[int] = set()
    seen: set[str] = set()
    queue = list(names)
    while queue:
        name = queue.pop()
        if name in seen or name in state.memory:
            continue
        seen.add(name)
        holder = owner.get(name)
        if holder is not None and holder != number:
            found.add(holder)
        elif name not in state.home:
            queue += state.graph.producers[name].inputs
    return found
