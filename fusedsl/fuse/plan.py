"""Kernel plans: which nodes run in which kernel, what each kernel reads and writes."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

from fusedsl.ir import Dim, Gathers, Graph, Kind, Layout, Node, TensorType


class Form(Enum):
    """Which way a kernel is made.

    TILED: as its kind says. FEW_ROWS: a projection of so few rows that its weights are what costs
    (see `few_rows.py`). SPECIALISED: a projection whose warps have different tasks, and which may
    take statistics of the operand that it streams (see `along.py`). IN_TURN: the same with two
    groups of warps on tiles of their own, so that one finishes its tile while the other multiplies.
    RING: one of few rows whose weights go through a ring of stages that a warp of its own fills.
    CLUSTER: a row kernel whose rows clusters of programs share, each with its part of a row in
    shared memory.
    """

    TILED = "tiled"
    FEW_ROWS = "few_rows"
    SPECIALISED = "specialised"
    IN_TURN = "in_turn"
    RING = "ring"
    CLUSTER = "cluster"


@dataclass(frozen=True)
class KernelPlan:
    """One kernel.

    Fields:
        name: unique in the program.
        kind: Kind.GEMM, Kind.ROW_REDUCTION or Kind.POINTWISE.
        rows, cols: the domain that is tiled. For a gated GEMM `cols` is half the projection.
        anchor: the projection of a GEMM kernel.
        paired: the projection's two halves are computed side by side in one dot.
        steps: nodes in order, after the anchor; nodes recomputed in several kernels appear in each.
        streamed: statistics of the anchor's operand, taken in the main loop as it streams by.
        reads, writes: names of stored values; `reads` does not repeat a name.
        form: which way it is made.
        recomputed: statistics of the anchor's operand, and the columns made of them, that every
            program of a projection that is not TILED computes for itself. They are not stored.
        backwards: it takes its rows from the last to the first (see `alternate.py`).
    """

    name: str
    kind: Kind
    rows: Dim
    cols: Dim
    anchor: Node | None
    paired: bool
    steps: tuple[Node, ...]
    streamed: tuple[Node, ...]
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    form: Form = Form.TILED
    recomputed: tuple[Node, ...] = ()
    backwards: bool = False

    @property
    def few_rows(self) -> bool:
        """Whether it is a projection of few rows."""
        return self.form in (Form.FEW_ROWS, Form.RING)

    @property
    def specialised(self) -> bool:
        """Whether it is made for Hopper alone, in Gluon."""
        return self.form in (Form.SPECIALISED, Form.IN_TURN, Form.RING, Form.CLUSTER)

    @property
    def cluster(self) -> bool:
        """Whether clusters of programs share its rows."""
        return self.form is Form.CLUSTER

    @property
    def ring(self) -> bool:
        """Whether its weights go through a ring of stages that a warp of its own fills."""
        return self.form is Form.RING

    @property
    def in_turn(self) -> bool:
        """Whether two groups of its warps take tiles in turn."""
        return self.form is Form.IN_TURN

    @property
    def nodes(self) -> tuple[Node, ...]:
        """Every node the kernel computes, anchor first."""
        first = (self.anchor,) if self.anchor else ()
        return (*first, *self.recomputed, *self.streamed, *self.steps)

    def needed(self, values: Iterable[str], known: Container[str] = ()) -> list[Node]:
        """The steps that make these values, and all that those need, in order; what is known is not
        made."""
        makers = {result.name: step for step in self.steps for result in step.results}
        order: list[Node] = []

        def visit(name: str) -> None:
            step = makers.get(name)
            if name in known or step is None or step in order:
                return
            for operand in step.inputs:
                visit(operand)
            order.append(step)

        for value in values:
            visit(value)
        return order

    @property
    def states_left(self) -> frozenset[str]:
        """What a projection leaves of each tile's part of the rows."""
        left = (node for node in self.steps if "tiles" in node.attr_map)
        return frozenset(result.name for node in left for result in node.results)

    @property
    def states_merged(self) -> frozenset[str]:
        """What it merges of what an earlier projection left of each tile's part of the rows."""
        kinds = (n for n in self.steps if n.block.kind is Kind.EPILOGUE and n.block.reduction)
        return frozenset(v for n in kinds if "tiles" not in n.attr_map for v in n.inputs)

    @property
    def blocks(self) -> tuple[str, ...]:
        """Names of the blocks, in order."""
        return tuple(node.block.name for node in self.nodes)

    @property
    def picked(self) -> frozenset[str]:
        """Weights of which the kernel reads the rows that an index names, and nothing else."""
        laws = [(n, law) for n in self.nodes for law in n.block.laws_of(Gathers)]
        gathers = {(n.name, n.operand(law.weight)) for n, law in laws}
        weights = {w for _, w in gathers if isinstance(w, str)}
        other = {v for n in self.nodes for v in n.inputs if (n.name, v) not in gathers}
        return frozenset(weights - other)

    @cached_property
    def computed(self) -> frozenset[str]:
        """Names this kernel computes."""
        return frozenset(r.name for node in self.nodes for r in node.results)


@dataclass(frozen=True)
class Plan:
    """A program as kernels: `bind` runs once per binding, `kernels` on every call, in order."""

    graph: Graph
    bind: tuple[Node, ...]
    kernels: tuple[KernelPlan, ...]
    decisions: tuple[str, ...] = ()

    @cached_property
    def stored(self) -> frozenset[str]:
        """Every value that exists in memory at run time."""
        params = {p.name for p in self.graph.params}
        bound = {r.name for node in self.bind for r in node.results}
        return frozenset(params | bound | {w for k in self.kernels for w in k.writes})

    def kernel_bytes(self, kernel: KernelPlan, env: Mapping[str, int]) -> int:
        """Bytes a kernel reads and writes in device memory, each stored value counted once; of a
        weight whose rows an index picks, one row for each row of the kernel."""
        picked = kernel.picked
        whole = (v for v in (*kernel.reads, *kernel.writes) if v not in picked)
        rows = kernel.rows.bind(env)
        kinds = (self.type_of(v) for v in picked)
        gathered = sum(rows * t.cols.bind(env) * t.dtype.bytes for t in kinds)
        return gathered + sum(self.type_of(v).nbytes(env) for v in whole)

    def type_of(self, value: str) -> TensorType:
        """The type of a stored value."""
        return self.graph.types[value]

    def tiles_read(self, kernel: KernelPlan) -> tuple[str, ...]:
        """The stored tiles that the steps of a kernel read: those of a projection's epilogue.
        States that it merges are none."""
        used = dict.fromkeys(name for node in kernel.steps for name in node.inputs)
        given = (name for name in used if name not in kernel.computed | kernel.states_merged)
        return tuple(name for name in given if self.type_of(name).layout is Layout.TILE)

    def writer(self, value: str) -> KernelPlan | None:
        """The kernel that writes a value, if one does."""
        return next((k for k in self.kernels if value in k.writes), None)

    def tile_symbols(self) -> Iterator[tuple[str, KernelPlan, Node]]:
        """(symbol, kernel, node) for every per-tile statistic: the symbol is that kernel's number
        of column tiles."""
        for kernel in self.kernels:
            for node in kernel.steps:
                tiles = node.attr_map.get("tiles")
                if isinstance(tiles, Dim) and tiles.symbol is not None:
                    yield tiles.symbol, kernel, node
