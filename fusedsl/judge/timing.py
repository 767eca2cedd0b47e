"""How fast a program is: timed by the judge's clock, beside the baseline, its outputs checked.

A round is one batch of the baseline and one of the candidate, each in its own process; the other
process is stopped meanwhile. In a batch every set of inputs is used once, and has new values in
every round, so nothing that was computed before can be of use.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from fusedsl.judge.compare import check
from fusedsl.judge.process import Worker
from fusedsl.judge.roofline import Peak, least_seconds, measure, set_bytes
from fusedsl.judge.task import Dims, Task
from fusedsl.judge.trials import Truth, fresh_seed, refuse_patches, truth
from fusedsl.judge.verdict import Code, Rejection, Speed

#: The clock of the verdict, in a process that no candidate enters.
_clock = time.monotonic

#: Sets that are rotated, rounds, and values of an output that an answer has to hold.
_SETS = {"cuda": (4, 64), "cpu": (3, 3)}
_ROUNDS = {"cuda": 25, "cpu": 7}
_PLACES = 16

#: A worker's own clock may differ from the judge's by a share, and by seconds for each answer.
_SHARE, _PER_ANSWER = 0.3, 3e-3

#: A share of the time that may pass beside the current stream, and seconds for each batch.
_BESIDE, _PER_BATCH = 0.3, 3e-4

_SYSTEM = random.SystemRandom()


@dataclass
class _Side:
    """One process that is timed, and what its batches took; seconds are of a whole batch."""

    worker: Worker
    seconds: list[float] = field(default_factory=list[float])
    own: list[float] = field(default_factory=list[float])
    stream: list[float] = field(default_factory=list[float])
    empty: list[float] = field(default_factory=list[float])


class Timing:
    """Times a candidate at the task's timed dims. Raises Rejection."""

    def __init__(self, task: Task, device: str, peak: Peak | None = None):
        self.task, self.device = task, device
        self.dims: Dims = task.every_dim(task.timed)
        self.kind = torch.device(device).type
        self.peak = peak or measure(device)
        self.weights_seed = fresh_seed()
        self.like = truth(task, device, self.dims, "normal")
        self.sets = self._sets()

    def run(self, candidate: Worker, baseline: Worker) -> Speed:
        """Time both, in turn. `baseline` was loaded in a process of its own."""
        mine, theirs = _Side(candidate), _Side(baseline)
        for side in (theirs, mine):
            self._prepare(side.worker)
        candidate.stop()
        alone = min(self._round(theirs, check_values=False) for _ in range(3))
        theirs.seconds.clear()
        candidate.resume()
        self._round(mine, check_values=False)
        for times in (mine.seconds, mine.own, mine.stream):
            times.clear()
        rounds = 0
        started = _clock()
        while rounds < _ROUNDS[self.kind] and (rounds < 3 or _clock() - started < self._patience()):
            candidate.stop()
            self._round(theirs, check_values=False)
            candidate.resume()
            baseline.stop()
            self._round(mine, check_values=True)
            baseline.resume()
            rounds += 1
        return self._speed(mine, theirs, alone, rounds)

    def _patience(self) -> float:
        return min(30.0, self.task.seconds / 4)

    def _sets(self) -> int:
        """Enough sets to be larger than the cache together, but not too many."""
        low, high = _SETS[self.kind]
        one = set_bytes(self.task, self.dims)[0] + self._out_bytes()
        fits = max(low, int(self.task.memory / 4 / max(1, one)))
        return max(low, min(high, fits, -(-3 * self.peak.cache // max(1, one))))

    def _out_bytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in self.like.eager)

    def _prepare(self, worker: Worker) -> None:
        names = [[list(t.shape), str(t.dtype).removeprefix("torch.")] for t in self.like.eager]
        worker.ask({"do": "expect", "outputs": names})
        worker.ask(
            {"do": "prepare", "dims": self.dims, "sets": self.sets, "seed": self.weights_seed}
        )

    def _round(self, side: _Side, *, check_values: bool) -> float:
        """New values, one batch, its answer checked; the time of the batch by this clock."""
        seed = fresh_seed()
        side.worker.ask({"do": "refill", "dims": self.dims, "seed": seed})
        order = list(range(self.sets))
        _SYSTEM.shuffle(order)
        pick = _SYSTEM.randrange(self.sets)
        count = max(1, self.like.eager[0].numel())
        message = {
            "do": "batch",
            "order": order,
            "pick": pick,
            "places": [_SYSTEM.randrange(count) for _ in range(_PLACES)],
            "check": False,
        }
        started = _clock()
        answer = side.worker.ask(message)
        took = _clock() - started
        started = _clock()
        empty = side.worker.ask({**message, "order": [], "check": True})
        side.empty.append(_clock() - started)
        side.seconds.append(took)
        side.own.append(float(answer["seconds"]))
        side.stream.append(float(answer["stream_seconds"]))
        if check_values:
            refuse_patches(empty)
            self._verify(side.worker, pick, seed + order[pick], message["places"], answer["values"])
        return took

    def _verify(
        self, worker: Worker, pick: int, seed: int, places: Sequence[int], values: Sequence[str]
    ) -> None:
        """The outputs of one call of the batch, and that the timed answer held their values."""
        want = self._truth(seed)
        got = worker.tensors({"do": "fetch", "pick": pick}, list(want.eager))
        flat = got[0].reshape(-1)
        held = [repr(float(flat[p].double())) for p in places]
        if held != list(values):
            raise Rejection(
                Code.SIDE_STREAM, "the outputs changed after the timed answer", dims=self.dims
            )
        for number, parts in enumerate(zip(got, want.exact, want.eager, want.allowed, strict=True)):
            found = check(*parts, "normal")
            if found is not None:
                message = f"the timed output is wrong: {found.message}"
                raise Rejection(found.code, message, case="timed", dims=self.dims, output=number)

    def _truth(self, seed: int) -> Truth:
        """What a timed call has to give: its own activations, the weights that all sets share."""
        return truth(self.task, self.device, self.dims, "normal", seed, self.weights_seed)

    def _speed(self, mine: _Side, theirs: _Side, alone: float, rounds: int) -> Speed:
        self._clocks_agree(mine)
        self._nothing_beside(mine)
        seconds = self._per_call(mine.seconds, mine.empty)
        baseline = min(
            self._per_call(theirs.seconds, theirs.empty), self._per_call([alone], theirs.empty)
        )
        least = least_seconds(self.task, self.dims, self.peak, self.sets, self._out_bytes())
        speed = Speed(seconds, baseline, least, rounds, rounds * self.sets, self.dims)
        if seconds < least:
            raise Rejection(
                Code.ABOVE_ROOFLINE,
                f"{seconds * 1e6:.2f} us, but the device needs {least * 1e6:.2f} us",
                dims=self.dims,
            )
        wanted = self.task.min_speedup
        if wanted is not None and speed.speedup < wanted:
            message = f"{speed.speedup:.3f} times the baseline's speed, {wanted} wanted"
            raise Rejection(Code.TOO_SLOW, message, dims=self.dims)
        return speed

    def _per_call(self, batches: Sequence[float], empty: Sequence[float]) -> float:
        """Of one call: a batch, less the time of an answer without one."""
        took = statistics.median(batches)
        return max(took - min(statistics.median(empty), took / 2), 1e-9) / self.sets

    def _clocks_agree(self, side: _Side) -> None:
        """The candidate's process and this one measure the same, over all rounds."""
        here, there = sum(side.seconds), sum(side.own)
        room = _SHARE * here + _PER_ANSWER * len(side.seconds)
        if not abs(here - there) <= room:
            raise Rejection(
                Code.CLOCK_TAMPERED,
                f"{there:.4f} s by the clock in its process, {here:.4f} s by the judge's",
                dims=self.dims,
            )

    def _nothing_beside(self, side: _Side) -> None:
        """All work is ordered with the current stream: its events span the whole batch."""
        whole, stream = sum(side.own), sum(side.stream)
        if self.kind == "cuda" and whole - stream > _BESIDE * whole + _PER_BATCH * len(side.own):
            raise Rejection(
                Code.SIDE_STREAM,
                f"{whole:.4f} s until the device is idle, {stream:.4f} s on the current stream",
                dims=self.dims,
            )
