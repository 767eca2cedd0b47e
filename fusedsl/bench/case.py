"""What is measured: one program at one size, over several sets of inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fusedsl.ir import Graph, evaluate, evaluate_eager, random_inputs
from fusedsl.runtime.report import Check, check
from fusedsl.runtime.roofline import least_bytes

#: Sets at least and at most; few where one set is large.
_FEW, _SOME, _MANY = 2, 4, 16
#: Bytes of a set from which few are enough.
_LARGE = 128 << 20
#: The share of free memory that the sets may take; folded weights may double theirs.
_SHARE = 0.25


@dataclass(frozen=True)
class Truth:
    """The outputs of one set in fp64 and in eager torch."""

    exact: dict[str, Tensor]
    eager: dict[str, Tensor]


@dataclass(eq=False)
class Case:
    """A graph at given sizes on a device, and the inputs of each set by name."""

    graph: Graph
    env: dict[str, int]
    device: str
    sets: list[dict[str, Tensor]] = field(default_factory=list[dict[str, Tensor]])

    @staticmethod
    def make(graph: Graph, env: Mapping[str, int], device: str, *, seed: int = 0) -> Case:
        """Random inputs, in as many sets as are worth rotating and fit in memory.

        The first set is drawn; in the others every tensor is the first one's, rolled along its
        first axis by a distance of its own: other values everywhere, at other addresses.
        """
        first = random_inputs(graph, env, seed=seed, device=device)
        sets = [first]
        for index in range(1, _count(graph, env, device)):
            far = enumerate(first.items(), start=1)
            sets.append({name: t.roll(index * (2 * i + 1), 0) for i, (name, t) in far})
        return Case(graph, dict(env), device, sets)

    def tensors(self, index: int) -> tuple[Tensor, ...]:
        """The inputs of a set, in the order of the signature."""
        return tuple(self.sets[index][p.name] for p in self.graph.params)

    def truth(self, index: int) -> Truth:
        """What the outputs of a set are."""
        with torch.no_grad():
            inputs = self.sets[index]
            return Truth(evaluate(self.graph, inputs), evaluate_eager(self.graph, inputs))

    def checks(self, outputs: tuple[Tensor, ...], truth: Truth, index: int) -> list[Check]:
        """Hold the outputs of a set against it, by the measure and the bar of `Program.verify`."""
        return [
            check(got, truth.exact[name], truth.eager[name], name=name, case="normal", seed=index)
            for name, got in zip(self.graph.outputs, outputs, strict=True)
        ]


def _count(graph: Graph, env: Mapping[str, int], device: str) -> int:
    if not device.startswith("cuda"):
        return _FEW
    one = max(1, least_bytes(graph, env))
    wanted = _FEW if one >= _LARGE else _SOME if 4 * one >= _LARGE else _MANY
    free = torch.cuda.mem_get_info(device)[0]
    return max(1, min(wanted, int(_SHARE * free / one)))
