"""Row kernels whose rows several programs share, each with a part of a row in registers.

The loads of the next row's part are issued first; it is reduced before the last wait for the other
parts of the row at hand, which hides that wait.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from fusedsl.codegen.body import Body
from fusedsl.codegen.helpers import title
from fusedsl.codegen.source import Arg, words_of
from fusedsl.codegen.statistics import (
    emit_columns,
    may_spread,
    merge_all,
    next_statistics,
    next_steps,
    recompute,
    reduction_of,
)
from fusedsl.codegen.templates import fragment
from fusedsl.fuse import KernelPlan
from fusedsl.ir import Node

#: What these kernels are configured by, besides the tile.
SHARED_CONFIG = ("PARTS", "PADDED_PARTS", "WAIT")


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
    loads = list(body.loads.values())
    slots = {
        "keep": [fragment("no_part", load.part, load.pointer) for load in loads],
        "load": [load.ahead(body.keep) for load in loads],
        "move": [fragment("alias", load.part, load.next) for load in loads],
    }
    states = sum(len(made.slots) for made in rounds)
    return {**slots, "opening": opening, "rounds": rounds, "states": states}


@dataclass
class _Round:
    """Statistics that parts of a row tell each other at a time."""

    nodes: list[Node]
    find: list[str] = field(default_factory=list[str])
    slots: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
    merge: list[str] = field(default_factory=list[str])
    after: list[str] = field(default_factory=list[str])

    def reduce(self, body: Body, before: int) -> None:
        """The states of the part at hand; `before` is how many slots others have."""
        for node in self.nodes:
            self.find.append(title(node))
            names = body.chunk(node, node.inputs[0], "held", self.find)
            self.slots += [(name, before + i) for i, name in enumerate(names, len(self.slots))]

    def join(self, body: Body) -> None:
        """The statistics of the row from the states of its parts."""
        names = [name for name, _ in self.slots]
        for node in self.nodes:
            count = len(reduction_of(node).identity)
            parts, names = [f"{name}_parts" for name in names[:count]], names[count:]
            self.merge.append(title(node))
            states = merge_all(body, node, parts, "shares", self.merge)
            body.finish(node, states, "N", self.merge)
