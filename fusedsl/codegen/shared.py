"""Row kernels whose rows several programs share, each with a part of a row in registers.

Three rows are under way. Of the one after next, the loads are issued first in a turn; the next one,
whose loads were issued a turn ago, is reduced and told; of the row at hand the states were told a
turn ago and asked for beside the loads, and it is stored last. Where so much does not fit, two rows
are: the next one is loaded and reduced in one turn.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from fusedsl.codegen.body import Body
from fusedsl.codegen.centres import head_centre, may_be_rough, unbound
from fusedsl.codegen.helpers import function_name, title
from fusedsl.codegen.source import Arg, words_of
from fusedsl.codegen.statistics import (
    emit_columns,
    may_spread,
    merge_all,
    next_statistics,
    next_steps,
    recompute,
    reduction_of,
    take_apart,
)
from fusedsl.codegen.templates import fragment
from fusedsl.codegen.values import Load
from fusedsl.fuse import KernelPlan
from fusedsl.ir import Node

#: What these kernels are configured by, besides the tile.
SHARED_CONFIG = ("PARTS", "PADDED_PARTS", "WAIT")

#: The most tiles of which a row is loaded two turns ahead, in a kernel that loads so many; of more,
#: one turn.
AHEAD_TILES = 1


def shared(kernel: KernelPlan, body: Body) -> dict[str, object]:
    """Rows in parts: what is taken of the next row's part, and what of the one that is kept.

    A round is a level of dependent statistics: the slots of its states, the lines that find those
    of this part (of the next row, in the first round), that merge all parts', and what follows.
    """
    body.args["words_ptr"] = Arg("words_ptr", "pointer", words_of(kernel.name))
    body.keep, body.spread = "evict_first", may_spread(kernel, body)
    remaining = list(kernel.steps)
    rounds = [_Round(next_statistics(remaining))]
    body.held = "next"
    body.load_indices(rounds[0].nodes, rounds[0].find)
    if may_be_rough(kernel, body):
        _find_centres(kernel, body, rounds[0])
    for node in rounds[0].nodes:
        recompute(body, kernel, node.inputs[0], rounds[0].find)
    rounds[0].reduce(body, 0)
    body.values, body.held = {}, "part"
    opening: list[str] = []
    body.load_indices(kernel.steps, opening)
    remaining = emit_columns(body, remaining, opening)
    while True:
        rounds[-1].join(body)
        remaining = [n for n in remaining if n not in rounds[-1].nodes]
        ready = next_steps(remaining)
        rest = emit_columns(body, ready, rounds[-1].after)
        for node in rest:
            body.emit(node, rounds[-1].after)
        remaining = [n for n in remaining if n not in ready]
        if not remaining:
            break
        rounds.append(_Round(next_statistics(remaining)))
        rounds[-1].reduce(body, sum(len(made.slots) for made in rounds))
    states = sum(len(made.slots) for made in rounds)
    stages = _stages(body, rounds[0])
    return {**stages, "opening": opening, "rounds": rounds, "states": states}


def _stages(body: Body, first: _Round) -> dict[str, object]:
    """Lines that begin, load and hand on what is known of the rows under way."""
    loads, heads = list(body.loads.values()), list(body.heads.values())
    ahead = len(loads) <= AHEAD_TILES
    keep = [fragment("no_part", load.part, load.pointer, load.width) for load in loads]
    keep += [fragment("state", part, 0.0, "BLOCK_M") for _, part in first.centres.values()]
    # what is reduced next is done with once it is kept, and what was loaded comes after it
    move = [fragment("alias", load.part, load.next) for load in loads]
    move += [fragment("alias", part, found) for found, part in first.centres.values()]
    if ahead:
        move += [fragment("alias", load.next, load.ahead) for load in [*loads, *heads]]
    return {
        "ahead": ahead,
        "keep": keep,
        "load": _load_lines(loads, heads, body.keep, ahead),
        "load_first": _load_lines(loads, heads, body.keep, False),
        "move": move,
    }


def _load_lines(loads: list[Load], heads: list[Load], keep: str, ahead: bool) -> list[str]:
    """The loads of a row's part and of its first columns."""
    lines = [load.line(load.ahead if ahead else load.next, keep) for load in loads]
    if heads:
        lines += fragment("segment", 0, heads[0].width, "N", False).split("\n")
        lines += [load.line(load.ahead if ahead else load.next) for load in heads]
        lines += fragment("part_columns").split("\n")
    return lines


def _find_centres(kernel: KernelPlan, body: Body, first: _Round) -> None:
    """The mean of the next rows' first columns, for statistics about a mean: every part of a row
    computes it from the same elements in the same way."""
    nodes = [node for node in first.nodes if reduction_of(node).about]
    body.held = "head"
    for node in nodes:
        names = [body.namer.fresh(f"{node.name}_centre_{stage}") for stage in ("next", "part")]
        first.centres[node.name] = (names[0], names[1])
        head_centre(body, kernel, node, names[0], first.find)
    if nodes:
        first.find += fragment("part_columns").split("\n")
    body.held = "next"


@dataclass
class _Round:
    """Statistics that parts of a row tell each other at a time.

    `centres`: of those that are sums about the mean of the row's first columns, the variables that
    hold it for the next row and for the one that is kept.
    """

    nodes: list[Node]
    find: list[str] = field(default_factory=list[str])
    slots: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
    merge: list[str] = field(default_factory=list[str])
    after: list[str] = field(default_factory=list[str])
    centres: dict[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])

    @property
    def awaited(self) -> list[str]:
        """Which words are not there yet, for each state."""
        return [f"missing({name}_words, mark)" for name, _ in self.slots]

    def reduce(self, body: Body, before: int) -> None:
        """The states of the part at hand; `before` is how many slots others have."""
        for node in self.nodes:
            self.find.append(title(node))
            if node.name in self.centres:
                names = self._sums_about(body, node)
            else:
                names = body.chunk(node, node.inputs[0], "held", self.find)
            self.slots += [(name, before + i) for i, name in enumerate(names, len(self.slots))]

    def _sums_about(self, body: Body, node: Node) -> list[str]:
        """Sums over the part of what lies apart from the row's centre."""
        piece = body.rounded(node.inputs[0], self.find)
        apart = body.state_names(node, "_apart")
        apart_of = reduction_of(node).about[1]
        take_apart(body, apart_of, piece, self.centres[node.name][0], apart, self.find)
        names = body.state_names(node)
        for name, lanes in zip(names, apart, strict=True):
            self.find.append(fragment("call", [name], "tl.sum", [lanes, "axis=1"]))
        return names

    def join(self, body: Body) -> None:
        """The statistics of the row from the states of its parts."""
        names = [name for name, _ in self.slots]
        for node in self.nodes:
            count = len(reduction_of(node).identity)
            parts, names = [f"{name}_parts" for name in names[:count]], names[count:]
            self.merge.append(title(node))
            if node.name in self.centres:
                states = body.state_names(node, "_all")
                about = function_name(reduction_of(node).about[2])
                arguments = [self.centres[node.name][1], *parts, "N"]
                self.merge.append(unbound(arguments[0]))
                self.merge.append(fragment("call", states, about, arguments))
            else:
                states = merge_all(body, node, parts, "shares", self.merge)
            self.merge += [unbound(state) for state in states]
            body.finish(node, states, "N", self.merge)
