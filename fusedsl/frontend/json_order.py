"""The order of a JSON graph's nodes: out of order and cyclic are told apart."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from fusedsl.diagnostics import Diagnostic, Diagnostics
from fusedsl.frontend.json_model import GraphModel, NodeModel


@dataclass(frozen=True)
class Order:
    """Indices of nodes, each after what it reads; the names that cycles leave undefined."""

    indices: tuple[int, ...]
    cyclic: frozenset[str]


def evaluation_order(model: GraphModel, bag: Diagnostics) -> Order:
    """Sort the nodes, so that later checks see them all. Reports F0104.

    Kahn's algorithm, the lowest index first: nodes in order stay in order.
    """
    nodes = model.nodes
    maker: dict[str, int] = {}
    for index, node in enumerate(nodes):
        for name in node.results:
            maker.setdefault(name, index)
    params = {p.name for p in model.params}
    reads = [_makers(node, maker, params) for node in nodes]
    order = _sorted(reads)
    cyclic = set(range(len(nodes))) - set(order)
    for cycle in _cycles(reads, cyclic):
        _report_cycle(nodes, cycle, bag)
    for index, node in enumerate(nodes):
        if index not in cyclic:
            _report_early_reads(index, node, maker, params, cyclic, bag)
    # What cannot be sorted is still checked, last; its names are excused.
    rest = sorted(cyclic)
    names = frozenset(name for index in rest for name in nodes[index].results)
    return Order((*order, *rest), names)


def _makers(node: NodeModel, maker: dict[str, int], params: set[str]) -> list[int]:
    names = (op for op in node.operands if isinstance(op, str) and op not in params)
    return sorted({maker[name] for name in names if name in maker})


def _sorted(reads: list[list[int]]) -> list[int]:
    """Repeatedly the first node, in index order, whose makers are all done."""
    waiting = [len(made) for made in reads]
    readers: list[list[int]] = [[] for _ in reads]
    for index, made in enumerate(reads):
        for other in made:
            readers[other].append(index)
    ready = [index for index, count in enumerate(waiting) if count == 0]
    order: list[int] = []
    while ready:
        index = heapq.heappop(ready)
        order.append(index)
        for reader in readers[index]:
            waiting[reader] -= 1
            if waiting[reader] == 0:
                heapq.heappush(ready, reader)
    return order


def _cycles(reads: list[list[int]], cyclic: set[int]) -> list[list[int]]:
    """One cycle in each strongly connected component."""
    out: list[list[int]] = []
    for component in _components(reads, cyclic):
        steps: dict[int, int] = {}
        index: int | None = min(component)
        while index is not None and index not in steps:
            steps[index] = len(steps)
            index = next((other for other in reads[index] if other in component), None)
        if index is not None:
            out.append(list(steps)[steps[index] :])
    return sorted(out, key=min)


def _components(reads: list[list[int]], nodes: set[int]) -> list[set[int]]:
    """Strongly connected components: Tarjan's algorithm with a stack of its own."""
    found: list[set[int]] = []
    number: dict[int, int] = {}
    low: dict[int, int] = {}
    open_nodes: list[int] = []
    closed: set[int] = set()
    for root in sorted(nodes):
        work = [root] if root not in number else []
        while work:
            node = work[-1]
            if node not in number:
                number[node] = low[node] = len(number)
                open_nodes.append(node)
            inner = [m for m in reads[node] if m in nodes and m not in closed]
            fresh = next((m for m in inner if m not in number), None)
            if fresh is not None:
                work.append(fresh)
                continue
            work.pop()
            low[node] = min([low[node], *(low[m] for m in inner)])
            if low[node] == number[node]:
                component: set[int] = set()
                while node not in component:
                    component.add(open_nodes.pop())
                found.append(component)
                closed |= component
    return found


def _report_cycle(nodes: list[NodeModel], cycle: list[int], bag: Diagnostics) -> None:
    first = min(cycle)
    at = cycle.index(first)
    turned = [*cycle[at:], *cycle[:at], first]
    names = [nodes[index].results[0] for index in turned]
    text = " <- ".join(names if len(names) <= 12 else [*names[:6], "...", *names[-5:]])
    operands = nodes[first].operands
    needed = set(nodes[turned[1]].results)
    position = next(i for i, op in enumerate(operands) if op in needed)
    bag.add(
        Diagnostic(
            "F0104",
            f"the nodes form a cycle: {text}",
            expected="a graph in which no value depends on itself",
            got=f"{len(cycle)} node{'s' if len(cycle) > 1 else ''} in a cycle",
            fix=f"let '{names[0]}' read something that does not depend on it",
            pointer=f"/nodes/{first}/operands/{position}",
        )
    )


def _report_early_reads(
    index: int,
    node: NodeModel,
    maker: dict[str, int],
    params: set[str],
    cyclic: set[int],
    bag: Diagnostics,
) -> None:
    for position, name in enumerate(node.operands):
        if not isinstance(name, str) or name in params or maker.get(name, -1) <= index:
            continue
        if maker[name] in cyclic:
            continue
        bag.add(
            Diagnostic(
                "F0104",
                f"the nodes are out of order: '{node.results[0]}' reads '{name}', made later",
                expected="each node after the nodes whose results it reads",
                got=f"'{name}' made by /nodes/{maker[name]}",
                fix=f"move /nodes/{maker[name]} before /nodes/{index}",
                pointer=f"/nodes/{index}/operands/{position}",
            )
        )
