"""One program at one size: verify, time everything in turn, verify what was timed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from fusedsl.bench.case import Case, Truth
from fusedsl.bench.peers import PEERS, Contender
from fusedsl.bench.record import rounded, row
from fusedsl.ir import as_tuple
from fusedsl.runtime.program import Program
from fusedsl.runtime.report import Check
from fusedsl.runtime.roofline import Limit, limit
from fusedsl.runtime.timing import Times, Turns, in_turn

#: Rounds where nobody says how many.
ROUNDS = {"cuda": 20, "cpu": 2}
#: A time below the roofline by more than this is no speed but a mistake of the measurement.
_BELIEVED = 0.8

#: What a run tells of its progress: words for the step that is next, and steps in all.
Progress = Callable[[str, int], None]

OURS = "ours"


@dataclass
class Measured:
    """One program at one size.

    `checks` holds, by contender, its outputs against fp64: before the timing (of ours, into
    buffers full of NaN), and those of the timed calls of the first and the last set. `bare` are
    the error and the verdict of contenders whose outputs are not the program's.
    """

    name: str
    dims: dict[str, int]
    device: str
    limit: Limit | None
    times: dict[str, Times]
    checks: dict[str, list[Check]]
    bare: dict[str, tuple[float, bool]]
    absent: dict[str, str]
    sets: int
    flags: list[str] = field(default_factory=list[str])

    @property
    def ok(self) -> bool:
        """Whether every output of ours passed."""
        return self.passed(OURS)

    def passed(self, name: str) -> bool:
        """Whether everything that was checked of a contender passed."""
        alone = self.bare.get(name, (0.0, True))[1]
        return alone and all(c.ok for c in self.checks.get(name, ()))

    def verdict(self, name: str) -> dict[str, Any]:
        """The worst error of a contender, eager's beside it, and whether all of it passed."""
        if name in self.bare:
            return {"error": self.bare[name][0], "eager_error": None, "ok": self.passed(name)}
        worst = max(self.checks[name], key=lambda c: (not c.ok, c.error))
        return {
            "error": worst.error,
            "eager_error": worst.eager_error,
            "ok": self.passed(name),
        }

    def to_json(self) -> dict[str, Any]:
        """The row of the record; its keys are described in docs/cli.md."""
        assert self.limit is not None
        peers = {n: t for n, t in self.times.items() if n != OURS}
        ours = self.times[OURS]
        at = " ".join(f"{k}={v}" for k, v in self.dims.items())
        return row(
            f"{self.name} {at}".strip(),
            ours.cold_ms,
            self.limit.ms,
            {name: t.cold_ms for name, t in peers.items()},
            dims=self.dims,
            warm_ms=rounded(ours.warm_ms),
            peers_warm={name: rounded(t.warm_ms) for name, t in peers.items()},
            host_us={name: round(t.host_us, 2) for name, t in self.times.items()},
            limit_by=self.limit.by,
            flops=self.limit.work,
            bytes=self.limit.moved,
            sets=self.sets,
            verified={name: self.verdict(name) for name in self.times},
            absent=self.absent,
            flags=self.flags,
        )


def measure(
    program: Program,
    dims: dict[str, int],
    device: str,
    against: Sequence[str],
    *,
    rounds: int,
    roofline: bool = True,
    progress: Progress = lambda what, steps: None,
) -> Measured:
    """Measure a program at the sizes `dims` beside the peers that `against` names.

    Raises FusedslError as a call does; a peer that cannot do the work is absent, with the reason.
    """
    graph = program.stages.source
    with torch.no_grad():
        progress("inputs", 0)
        case = Case.make(graph, dims, device)
        contenders = [_ours(program, case)]
        absent: dict[str, str] = {}
        for name in against:
            progress(f"preparing {name}", 0)
            found = PEERS[name](case)
            contenders += found.contenders
            absent |= found.absent
        progress("checking", 0)
        checks, bare = _check_before(program, case, contenders)
        steps = len(contenders) * (rounds + 1)
        turns = in_turn(
            {c.name: c.calls for c in contenders},
            device,
            rounds=rounds,
            tick=lambda: progress("timing", steps),
        )
        progress("checking what was timed", 0)
        _check_after(case, contenders, turns, checks, bare)
        least = limit(graph, dims, device) if roofline else None
    made = Measured(
        graph.name, dims, device, least, turns.times, checks, bare, absent, len(case.sets)
    )
    if least is not None:
        made.flags += _flags(made, least)
    return made


def _ours(program: Program, case: Case) -> Contender:
    """The program, its weights bound where it has any."""
    params = case.graph.params
    calls: list[Callable[[], Any]] = []
    for inputs in case.sets:
        given = [inputs[p.name] for p in params if not p.weight]
        run: Callable[..., Any] = program
        if given and len(given) < len(params):
            run = program.bind({p.name: inputs[p.name] for p in params if p.weight})
        else:
            given = [inputs[p.name] for p in params]
        calls.append(lambda run=run, given=given: run(*given))
    return Contender(OURS, calls)


def _check_before(
    program: Program, case: Case, contenders: Sequence[Contender]
) -> tuple[dict[str, list[Check]], dict[str, tuple[float, bool]]]:
    """The first set, through every contender; ours in buffers that hold NaN as well."""
    truth = case.truth(0)
    checks: dict[str, list[Check]] = {}
    bare: dict[str, tuple[float, bool]] = {}
    for contender in contenders:
        _hold(case, contender, contender.calls[0](), truth, 0, checks, bare)
    checks[OURS] += case.checks(program.run_poisoned(*case.tensors(0)), truth, 0)
    return checks, bare


def _check_after(
    case: Case,
    contenders: Sequence[Contender],
    turns: Turns,
    checks: dict[str, list[Check]],
    bare: dict[str, tuple[float, bool]],
) -> None:
    """What the timed calls of the first and the last set returned."""
    for index in sorted({0, len(case.sets) - 1}):
        truth = case.truth(index)
        for contender in contenders:
            result = turns.results[contender.name][index]
            _hold(case, contender, result, truth, index, checks, bare)


def _hold(
    case: Case,
    contender: Contender,
    result: Any,
    truth: Truth,
    index: int,
    checks: dict[str, list[Check]],
    bare: dict[str, tuple[float, bool]],
) -> None:
    name = contender.name
    if contender.check is None:
        checks.setdefault(name, []).extend(case.checks(as_tuple(result), truth, index))
        return
    error, ok = contender.check(index, result)
    before = bare.get(name, (0.0, True))
    bare[name] = (max(error, before[0]), ok and before[1])


def _flags(made: Measured, least: Limit) -> list[str]:
    """What makes a time hard to believe."""
    if made.device.startswith("cpu"):
        return []
    return [
        f"{name} is faster than the roofline allows"
        for name, times in made.times.items()
        if times.cold_ms < _BELIEVED * (least.ms if name != "bare" else least.arithmetic_ms)
    ]
