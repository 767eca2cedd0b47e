"""A row kernel that keeps the whole row in registers."""

from __future__ import annotations

from dataclasses import dataclass, field

from fusedsl.codegen.body import Body
from fusedsl.codegen.helpers import function_name, title
from fusedsl.codegen.statistics import (
    emit_columns,
    may_spread,
    merge_all,
    merge_lanes,
    next_statistics,
    next_steps,
    per_row,
    reduction_of,
    take_apart,
)
from fusedsl.codegen.templates import fragment
from fusedsl.codegen.values import Var
from fusedsl.fuse import KernelPlan
from fusedsl.ir import Node
from fusedsl.schedule import row_segments

#: Columns of 16 bits whose sum rounds in fp32 only where it does not show in the variance.
EXACT_COLUMNS = 4096


def resident(kernel: KernelPlan, body: Body) -> list[str]:
    """The whole row in registers, in segments of one width that cover it closely."""
    lines: list[str] = []
    body.load_indices(kernel.steps, lines)
    body.spread = may_spread(kernel, body)
    rows = _Segments(body, kernel.cols.factor, *row_segments(kernel.cols.factor))
    remaining = list(kernel.steps)
    while remaining:
        ready = next_steps(remaining)
        rest = emit_columns(body, ready, lines)
        rows.emit(rest, lines)
        remaining = [n for n in remaining if n not in ready]
        statistics = next_statistics(remaining)
        rows.reduce(statistics, lines)
        remaining = [n for n in remaining if n not in statistics]
    return lines


@dataclass
class _Segments:
    """The pieces of a row that is kept in registers; each has variables of its own."""

    body: Body
    columns: int
    count: int
    size: int
    values: dict[int, dict[str, Var]] = field(default_factory=dict[int, dict[str, Var]])
    opened: int = -1

    @property
    def width(self) -> str:
        """The width of a segment, in the source."""
        return "BLOCK_N" if self.count == 1 else str(self.size)

    def open(self, number: int, lines: list[str]) -> None:
        """Make a segment the one that lines are about."""
        self.body.width = self.width
        self.body.values = {**per_row(self.body), **self.values.get(number, {})}
        if self.opened != number:
            whole = (number + 1) * self.size <= self.columns
            text = fragment("segment", number * self.size, self.width, "N", whole)
            lines += text.split("\n")
        self.opened = number

    def close(self, number: int) -> None:
        """Keep the segment's variables."""
        shared = per_row(self.body)
        self.values[number] = {k: v for k, v in self.body.values.items() if k not in shared}
        self.body.values = shared

    def emit(self, nodes: list[Node], lines: list[str]) -> None:
        """Emit element-by-element nodes in every segment."""
        for number in range(self.count) if nodes else ():
            self.open(number, lines)
            for node in nodes:
                self.body.emit(node, lines)
            self.close(number)

    def reduce(self, nodes: list[Node], lines: list[str]) -> None:
        """Emit statistics over all segments."""
        states: dict[str, list[str]] = {}
        for node in nodes:
            lines.append(title(node))
            if reduction_of(node).about:
                states[node.name] = self._about(node, lines)
            elif self.count == 1:
                self.open(0, lines)
                states[node.name] = self.body.chunk(node, node.inputs[0], "N", lines)
                self.close(0)
            else:
                states[node.name] = self._lane_by_lane(node, lines)
        for node in nodes:
            self.body.finish(node, states[node.name], "N", lines)

    def _lane_by_lane(self, node: Node, lines: list[str]) -> list[str]:
        running: list[str] = []
        for number in range(self.count):
            self.open(number, lines)
            if number == 0:
                running = self.body.lift(node, node.inputs[0], lines)
            else:
                merge_lanes(self.body, node, str(number), running, lines)
            self.close(number)
        held = self.body.namer.fresh("held")
        lines.append(fragment("segment_lanes", held, self.width, "N"))
        return merge_all(self.body, node, running, held, lines)

    def _about(self, node: Node, lines: list[str]) -> list[str]:
        """A statistic about the mean, in two sweeps."""
        namer, reduction = self.body.namer, reduction_of(node)
        centre_of, apart_of, about = reduction.about
        if reduction.about_exact is not None and self._sums_exactly(node.inputs[0]):
            about = reduction.about_exact
        pieces: list[str] = []
        sums = namer.fresh(f"{node.name}_sums")
        for number in range(self.count):
            self.open(number, lines)
            pieces.append(self.body.masked(node.inputs[0], lines))
            add = fragment("add_to" if number else "alias", sums, pieces[-1])
            lines.append(add)
            self.close(number)
        centre = namer.fresh(f"{node.name}_centre")
        lines.append(fragment("call", [centre], function_name(centre_of), [sums, "N"]))
        totals: list[str] = []
        for number, piece in enumerate(pieces):
            self.open(number, lines)
            names = self.body.state_names(node, "_apart")
            take_apart(self.body, apart_of, piece, centre, names, lines)
            lines += [fragment("add_to", t, n) for t, n in zip(totals, names, strict=False)]
            totals = totals or names
            self.close(number)
        states = self.body.state_names(node)
        arguments = [centre, *totals, "N"]
        lines.append(fragment("call", states, function_name(about), arguments))
        return states

    def _sums_exactly(self, value: str) -> bool:
        """Whether a row's values are as few and as short as `Reduction.about_exact` asks for."""
        dtype = self.body.type_of(value).dtype
        loaded = value not in self.body.kernel.computed
        return loaded and dtype.bytes == 2 and self.columns <= EXACT_COLUMNS
