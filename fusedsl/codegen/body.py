"""Emitting the nodes of one kernel: loads, calls of block functions, stores.

A `Body` knows what every value is called and how it lies (scalar, row, column, tile); skeletons
decide in which scope its lines go.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from fusedsl.codegen.helpers import function_name, functions_of, parameters, title
from fusedsl.codegen.names import Namer
from fusedsl.codegen.scales import absorbed, unscaled
from fusedsl.codegen.source import ALIGNMENT, Arg
from fusedsl.codegen.templates import constant, fragment
from fusedsl.codegen.tiles import merge_states, store_pick, store_state
from fusedsl.codegen.values import Load, Var, halved, joined
from fusedsl.fuse import KernelPlan, Plan, is_pick, is_reduction
from fusedsl.ir import (
    ONE,
    Dim,
    DType,
    Gathers,
    HalvesOf,
    Kind,
    Layout,
    Node,
    Operand,
    TensorType,
    print_value,
)


@dataclass
class Body:
    """State of one kernel's emission.

    `descriptors`: tiles move through tensor descriptors. `keep`: the cache policy of tile loads
    where a row comes by again; row vectors stay then. `spread`: row vectors are loaded once for
    each row, in the layout of a tile: to bring them there would take a barrier each. `held`: where
    tiles are loaded ahead, the scope at hand, "next" or "part", or "head" where it is the first
    columns of the next rows; `loads` and `heads` collect what is.
    `staged`: tiles are stored in pieces through shared memory of the kernel's own; `brought`: the
    tile whose pieces are found in shared memory.
    """

    plan: Plan
    kernel: KernelPlan
    descriptors: bool
    keep_roundings: bool
    width: str
    namer: Namer = field(init=False)
    absorbed: frozenset[str] = field(init=False)
    args: dict[str, Arg] = field(default_factory=dict[str, Arg])
    values: dict[str, Var] = field(default_factory=dict[str, Var])
    keep: str = ""
    spread: bool = False
    held: str = ""
    staged: bool = False
    brought: str = ""
    loads: dict[tuple[str, str], Load] = field(default_factory=dict[tuple[str, str], "Load"])
    heads: dict[tuple[str, str], Load] = field(default_factory=dict[tuple[str, str], "Load"])

    def __post_init__(self) -> None:
        self.absorbed = frozenset() if self.keep_roundings else absorbed(self.plan, self.kernel)
        functions = {function_name(f) for n in self.kernel.nodes for f in functions_of(n)}
        self.namer = Namer(frozenset(functions))

    # arguments ---------------------------------------------------------------------------------
    def arg(self, suffix: str, role: str, value: str, **fields: object) -> str:
        """The name of an argument, declared at first use."""
        key = f"{role}:{value}"
        if key not in self.args:
            name = self.namer.fresh(f"{value}{suffix}")
            self.args[key] = Arg(name, role, value, **fields)  # type: ignore[arg-type]
        return self.args[key].name

    def pointer(self, value: str) -> str:
        """The pointer argument of a stored value."""
        return self.arg("_ptr", "pointer", value)

    def stride(self, value: str) -> str:
        """The row-stride argument of a stored value; a compile-time one where that tells the
        compiler how many columns it may move at a time (`Arg`)."""
        cols = self.type_of(value).cols
        tells = cols.symbol is None and cols.factor % 2 == 0 and cols.factor % ALIGNMENT != 0
        return self.arg("_stride", "fixed_stride" if tells else "stride", value)

    def tile_descriptor(self, value: str) -> str:
        """The descriptor of a stored tile that the epilogue loads or stores."""
        return self.arg("_desc", "descriptor", value, block=("BLOCK_M", "WIDTH"))

    def dim(self, dim: Dim) -> str:
        """A dimension as a compile-time number: a literal, or an argument bound at the call."""
        if dim.symbol is None:
            return str(dim.factor)
        return self.arg("_DIM", "dim", str(dim))

    # values ------------------------------------------------------------------------------------
    def type_of(self, value: str) -> TensorType:
        """The type of a value."""
        return self.plan.graph.types[value]

    def operand(self, operand: Operand, lines: list[str]) -> tuple[str, Layout]:
        """Source text and layout of an operand, loaded if need be."""
        if operand is None:
            return "None", Layout.SCALAR
        if not isinstance(operand, str):
            return print_value(float(operand)), Layout.SCALAR
        var = self.values.get(operand) or self.load(operand, lines)
        return var.name, var.layout

    def load(self, value: str, lines: list[str], half: tuple[str, Dim] | None = None) -> Var:
        """Load a stored value. `half` = (name of the half, column offset)."""
        kind = self.type_of(value)
        offset = f" + {self.dim(half[1])}" if half else ""
        name = self.namer.fresh(half[0] if half else value)
        layout = self._seen(kind if half is None else halved(kind))
        lines.append(self._load_line(value, name, layout, kind, offset))
        var = Var(name, layout)
        if half is None:
            self.values[value] = var
        return var

    def _seen(self, kind: TensorType) -> Layout:
        """How a stored value lies in this kernel: the one row of a value is that of every row."""
        if kind.rank == 2 and kind.rows == ONE and self.kernel.rows != ONE:
            return Layout.SCALAR if kind.cols == ONE else Layout.ROW
        return kind.layout

    def load_columns(self, nodes: list[Node], lines: list[str]) -> None:
        """Load the column vectors and scalars that `nodes` read, ahead of them."""
        self._load_lying(nodes, (Layout.COLUMN, Layout.SCALAR), lines)

    def load_rows(self, nodes: list[Node], lines: list[str]) -> None:
        """Load the row vectors that `nodes` read, ahead of them."""
        self._load_lying(nodes, (Layout.ROW,), lines)

    def _load_lying(self, nodes: list[Node], which: Sequence[Layout], lines: list[str]) -> None:
        for name in dict.fromkeys(n for node in nodes for n in node.inputs):
            known = name in self.values or name in self.kernel.computed
            if not known and self.type_of(name).layout in which:
                self.load(name, lines)

    def _load_line(
        self, value: str, name: str, layout: Layout, kind: TensorType, offset: str
    ) -> str:
        if layout is Layout.TILE and self.staged:
            assert value == self.brought and not offset
            return fragment("load_tile_brought", name)
        if layout is Layout.TILE and self.descriptors:
            return fragment("load_tile_tma", name, self.tile_descriptor(value), offset)
        pointer = self.pointer(value)
        if layout is Layout.TILE and self.held:
            load = self._load_ahead(value, offset)
            return fragment("widen", name, load.part if self.held == "part" else load.next)
        if layout is Layout.TILE:
            return fragment("load_tile", name, pointer, self.stride(value), offset, self.keep)
        if layout is Layout.ROW and self.spread:
            return fragment("load_row_spread", name, pointer, offset)
        if layout is Layout.ROW:
            return fragment("load_row", name, pointer, offset, self.keep)
        if layout is Layout.COLUMN:
            macro = "load_index" if kind.dtype.is_index else "load_column"
            return fragment(macro, name, f"{pointer}{offset}", self.stride(value))
        return fragment("load_scalar", name, f"{pointer}{offset}")

    def _load_ahead(self, value: str, offset: str) -> Load:
        """The variables of a tile that is loaded once, ahead of all that reads it."""
        head = self.held == "head"
        loads, stem = (self.heads, f"{value}_head") if head else (self.loads, value)
        if (value, offset) not in loads:
            ahead, next_, part = (
                self.namer.fresh(f"{stem}_{s}") for s in ("ahead", "next", "part")
            )
            place = self.pointer(value), self.stride(value), offset
            loads[value, offset] = Load(*place, ahead, next_, part, self.width)
        return loads[value, offset]

    def column_only(self, node: Node) -> bool:
        """Whether a node needs nothing but column vectors and scalars."""
        return all(self._is_column(name) for name in node.inputs) and not is_reduction(node)

    def _is_column(self, name: str) -> bool:
        if name in self.values:
            return self.values[name].layout in (Layout.COLUMN, Layout.SCALAR)
        node = self.plan.graph.producers.get(name)
        if node is not None and "tiles" in node.attr_map and name not in self.kernel.computed:
            return True
        return name not in self.kernel.computed and self.type_of(name).layout in (
            Layout.COLUMN,
            Layout.SCALAR,
        )

    # nodes -------------------------------------------------------------------------------------
    def emit(self, node: Node, lines: list[str]) -> None:
        """Emit one node that is no reduction, and its stores; nothing for one whose scale its
        reader applies."""
        if node.name in self.absorbed:
            return
        lines.append(title(node))
        if node.block.has_law(HalvesOf):
            self._half(node, lines)
        elif "tiles" in node.attr_map:
            store_state(self, node, lines)
        elif is_pick(node):
            store_pick(self, node, lines)
        elif node.block.kind is Kind.EPILOGUE:
            merge_states(self, node, lines)
        else:
            self._elementwise(node, lines)
        for result in node.results:
            stored_here = "tiles" in node.attr_map or is_pick(node)
            if result.name in self.kernel.writes and not stored_here:
                self.store(result.name, lines)

    def _elementwise(self, node: Node, lines: list[str]) -> None:
        texts: list[str] = []
        layouts: list[Layout] = []
        picked = [node.operand(law.weight) for law in node.block.laws_of(Gathers)]
        for operand in node.operands:
            if operand in picked:
                text, layout = self._picked(node, str(operand), lines), Layout.TILE
            else:
                text, layout = self.operand(operand, lines)
            texts.append(text)
            layouts.append(layout)
        name = self.namer.fresh(node.name)
        function = node.block.triton
        texts += self.attributes(node, function, len(node.operands))
        lines.append(fragment("call", [name], function_name(function), texts))
        dtype = node.type.dtype
        if self.keep_roundings and dtype is not DType.FP32:
            lines.append(fragment("round", name, name, dtype.triton))
        self.values[node.name] = Var(name, joined(layouts))

    def _picked(self, node: Node, weight: str, lines: list[str]) -> str:
        """The rows of a weight that an index names, one for each row; NaN where it names none."""
        index, name = self.index(node, lines), self.namer.fresh(f"{weight}_rows")
        rows = self.dim(self.type_of(weight).rows)
        slots = (name, self.pointer(weight), self.stride(weight), index, rows)
        lines += fragment("load_picked", *slots).split("\n")
        return name

    def attributes(self, node: Node, function: object, first: int) -> list[str]:
        """A node's attributes as arguments: what a function takes after `first` operands."""
        known = {n.upper(): v for n, v in node.attrs}
        texts: list[str] = []
        for parameter in parameters(function)[first:]:
            if parameter == "FAST":
                texts.append("FAST=FAST")
                continue
            value = known[parameter]
            text = repr(value) if isinstance(value, str) else constant(value)
            texts.append(f"{parameter}={text}")
        return texts

    def _half(self, node: Node, lines: list[str]) -> None:
        source = node.operand(node.block.laws_of(HalvesOf)[0].operand)
        assert isinstance(source, str)
        index = int(node.attr("index"))  # type: ignore[arg-type]
        anchor = self.kernel.anchor
        if anchor is not None and source == anchor.name:
            name = self.namer.fresh(node.name)
            self.start(name, ("first", "second")[index], anchor, lines)
            self.values[node.name] = Var(name, Layout.TILE)
            return
        offset = self.type_of(source).cols.halved()
        assert offset is not None
        half = (node.name, offset) if index else (node.name, Dim(0))
        self.values[node.name] = self.load(source, lines, half)

    def start(self, name: str, piece: str, anchor: Node, lines: list[str]) -> None:
        """Name a piece of the accumulator, rounded if the program is kept as written."""
        dtype = anchor.type.dtype
        if self.keep_roundings and dtype is not DType.FP32:
            lines.append(fragment("round", name, piece, dtype.triton))
        else:
            lines.append(fragment("alias", name, piece))

    # statistics --------------------------------------------------------------------------------
    def rounded(self, value: str, lines: list[str]) -> str:
        """A value as it is stored: statistics are of what the next reader will see."""
        text, layout = self.operand(value, lines)
        dtype = self.type_of(value).dtype
        if layout is not Layout.TILE:
            wide = self.namer.fresh(f"{value}_tile")
            lines.append(fragment("broadcast", wide, text, self.width))
            text = wide
        if dtype is DType.FP32 or value not in self.kernel.computed:
            return text
        if not self.keep_roundings and not self._seen_outside(value):
            return text
        name = self.namer.fresh(f"{value}_stored")
        lines.append(fragment("round", name, text, dtype.triton))
        if value in self.values:  # what is made of the statistic and of the value belongs together
            self.values[value] = Var(name, Layout.TILE)
        return name

    def _seen_outside(self, value: str) -> bool:
        """Whether another kernel may put a statistic of this one beside the stored value."""
        if value not in self.kernel.writes:
            return False
        columns = any(self.type_of(n).layout is Layout.COLUMN for n in self.kernel.writes)
        return self.kernel.kind is not Kind.ROW_REDUCTION or columns

    def masked(self, value: str, lines: list[str]) -> str:
        """A value as it is stored, zero past the row's end."""
        source = self.rounded(value, lines)
        if value not in self.kernel.computed:
            return source
        name = self.namer.fresh(f"{value}_live")
        lines.append(fragment("zero_dead", name, source))
        return name

    def chunk(self, node: Node, value: str, count: str, lines: list[str]) -> list[str]:
        """State of the columns at hand. Names of the state's variables, each [BLOCK_M]."""
        assert node.block.reduction is not None
        indexed = is_pick(node)
        scale = ""
        if value in self.absorbed:
            source, scale = unscaled(self, value, lines)
        else:
            source = self.rounded(value, lines) if indexed else self.masked(value, lines)
        states = self.state_names(node)
        arguments = [source, "col_live[None, :]", count, *([scale] if scale else [])]
        arguments += ["cols[None, :]", self.index(node, lines)] if indexed else []
        # rows wait for memory; an epilogue waits for its arithmetic
        quick = self.width == "WIDTH" and "FAST" in parameters(node.block.reduction.chunk)
        arguments += ["FAST=FAST"] if quick else []
        lines.append(fragment("call", states, function_name(node.block.reduction.chunk), arguments))
        return states

    def index(self, node: Node, lines: list[str]) -> str:
        """The index that a node picks by, loaded if need be."""
        (name,) = (n for n in node.inputs if self.type_of(n).dtype.is_index)
        return self.operand(name, lines)[0]

    def load_indices(self, nodes: Sequence[Node], lines: list[str]) -> None:
        """Load the indices that `nodes` read, ahead of any loop."""
        for name in dict.fromkeys(n for node in nodes for n in node.inputs):
            if self.type_of(name).dtype.is_index:
                self.operand(name, lines)

    def lift(self, node: Node, value: str, lines: list[str]) -> list[str]:
        """State of each element at hand, [BLOCK_M, columns]; of what is past the row, anything."""
        assert node.block.reduction is not None
        states = self.state_names(node)
        arguments = [self.rounded(value, lines)]
        arguments += ["cols[None, :]", self.index(node, lines)] if is_pick(node) else []
        lines.append(fragment("call", states, function_name(node.block.reduction.lift), arguments))
        return states

    def state_names(self, node: Node, suffix: str = "") -> list[str]:
        """Fresh names for a reduction's state."""
        assert node.block.reduction is not None
        count = len(node.block.reduction.identity)
        return [self.namer.fresh(f"{node.name}_state{i}{suffix}") for i in range(count)]

    def finish(self, node: Node, states: list[str], width: str, lines: list[str]) -> None:
        """Turn a final state into the statistic's columns, and store what is asked for."""
        assert node.block.reduction is not None
        names = [self.namer.fresh(r.name) for r in node.results]
        function = function_name(node.block.reduction.finish)
        arguments = [*states, *([self.index(node, lines)] if is_pick(node) else [])]
        lines.append(fragment("call", names, function, [*arguments, f"WIDTH={width}"]))
        for name, result in zip(names, node.results, strict=True):
            lines.append(fragment("as_column", name))
            if self.keep_roundings and result.type.dtype is not DType.FP32:
                lines.append(fragment("round", name, name, result.type.dtype.triton))
            self.values[result.name] = Var(name, Layout.COLUMN)
            if result.name in self.kernel.writes:
                self.store(result.name, lines)

    # stores ------------------------------------------------------------------------------------
    def store(self, value: str, lines: list[str]) -> None:
        """Store a value in its storage dtype."""
        var, kind = self.values[value], self.type_of(value)
        dtype = kind.dtype.triton
        if kind.rank == 1 and var.layout is Layout.TILE:  # a projection of a vector: one row
            self._store_tile(value, var, dtype, lines)
        elif kind.layout is Layout.SCALAR:
            lines.append(fragment("store_scalar", var.name, self.pointer(value), dtype))
        elif kind.layout is Layout.ROW:
            lines.append(fragment("store_row", var.name, self.pointer(value), dtype))
        elif var.layout in (Layout.COLUMN, Layout.SCALAR) and kind.layout is Layout.COLUMN:
            pointer, stride = self.pointer(value), self.stride(value)
            lines.append(fragment("store_column", var.name, pointer, stride, dtype))
        else:
            self._store_tile(value, var, dtype, lines)

    def _store_tile(self, value: str, var: Var, dtype: str, lines: list[str]) -> None:
        name = var.name
        if var.layout is not Layout.TILE:
            name = self.namer.fresh(f"{value}_tile")
            lines.append(fragment("broadcast", name, var.name, self.width))
        if self.staged:
            desc = self.arg("_desc", "descriptor", value, block=(64, 64))
            lines.append(fragment("store_tile_staged", name, desc, dtype))
        elif self.descriptors and self.type_of(value).layout is Layout.TILE:
            lines.append(fragment("store_tile_tma", name, self.tile_descriptor(value), dtype))
        else:
            pointer = self.pointer(value)
            lines.append(fragment("store_tile", name, pointer, self.stride(value), dtype))
