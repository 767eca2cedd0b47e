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
from typing import Any

import torch

from fusedsl.judge.compare import check
from fusedsl.judge.draw import bit_sum
from fusedsl.judge.process import Worker, number
from fusedsl.judge.roofline import Peak, least_seconds, measure, set_bytes
from fusedsl.judge.task import Dims, Task
from fusedsl.judge.trials import Truth, fresh_seed, refuse_patches, truth
from fusedsl.judge.verdict import Code, Rejection, Speed

#: The clock of the verdict, in a process that no candidate enters.
_clock = time.monotonic

#: Sets that are rotated (at least, at most), and rounds.
_SETS = {"cuda": (4, 64), "cpu": (3, 32)}
_ROUNDS = {"cuda": 25, "cpu": 7}

#: Times that the rounds are done before clocks that disagree are no accident. A wrong value is
#: final at once.
_ATTEMPTS = 3

#: Seconds that a batch takes on a CPU, where sets allow it.
_BATCH = 0.03

#: A worker's own clock may differ from the judge's by a share, and by seconds for each answer.
_SHARE, _PER_ANSWER = 0.3, 3e-3

#: New values may take longer in the candidate's process than in the baseline's by so many mean
#: deviations, by a share, and by seconds: the two are seldom alike on a CPU.
_EARLIER = {"cuda": (5.0, 0.05, 1e-4), "cpu": (10.0, 0.3, 3e-3)}

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
    refill: list[float] = field(default_factory=list[float])

    def forget(self) -> None:
        """Drop what was measured."""
        for times in (self.seconds, self.own, self.stream, self.empty, self.refill):
            times.clear()


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
        if self.kind == "cpu":
            self._choose_sets(mine, theirs)
        alone = self._warm_up(mine, theirs)
        for attempt in range(_ATTEMPTS):
            rounds = self._rounds(mine, theirs)
            try:
                return self._speed(mine, theirs, alone, rounds)
            except Rejection:
                if attempt == _ATTEMPTS - 1:
                    raise
            for side in (theirs, mine):
                side.forget()
        raise AssertionError("unreachable")

    def _rounds(self, mine: _Side, theirs: _Side) -> int:
        """Time both in turn until there are enough rounds, or time is up; how many there were."""
        rounds, started = 0, _clock()
        while rounds < _ROUNDS[self.kind] and (rounds < 3 or _clock() - started < self._patience()):
            mine.worker.stop()
            self._round(theirs, trusted=True)
            mine.worker.resume()
            theirs.worker.stop()
            self._round(mine, trusted=False)
            theirs.worker.resume()
            rounds += 1
        return rounds

    def _warm_up(self, mine: _Side, theirs: _Side) -> float:
        """Fill the sets, and use each once; the best time of the baseline, which is alone."""
        for side in (theirs, mine):
            self._prepare(side.worker, outs=mine.worker.takes_out)
        mine.worker.stop()
        alone = min(self._round(theirs, trusted=True) for _ in range(3))
        mine.worker.resume()
        self._round(mine, trusted=False)
        for side in (theirs, mine):
            side.forget()
        return alone

    def _choose_sets(self, mine: _Side, theirs: _Side) -> None:
        """On a CPU: as many sets as make the slower of the two take a while."""
        alone = self._warm_up(mine, theirs)
        one = max(alone, self._round(mine, trusted=False)) / self.sets
        low, high = _SETS["cpu"]
        self.sets = max(low, min(high, int(_BATCH / one)))
        for side in (theirs, mine):
            side.forget()

    def _patience(self) -> float:
        return min(30.0, self.task.seconds / 4)

    def _sets(self) -> int:
        """Enough sets to be larger than the cache together, but not too many."""
        low, high = _SETS[self.kind]
        if self.kind == "cpu":
            return low
        one = set_bytes(self.task, self.dims)[0] + self._out_bytes()
        fits = max(low, int(self.task.memory / 4 / max(1, one)))
        return max(low, min(high, fits, -(-3 * self.peak.cache // max(1, one))))

    def _out_bytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in self.like.eager)

    def _prepare(self, worker: Worker, *, outs: bool) -> None:
        names = [[list(t.shape), str(t.dtype).removeprefix("torch.")] for t in self.like.eager]
        worker.ask({"do": "expect", "outputs": names})
        worker.ask(
            {
                "do": "prepare",
                "dims": self.dims,
                "sets": self.sets,
                "seed": self.weights_seed,
                "outs": outs,
            }
        )

    def _round(self, side: _Side, *, trusted: bool) -> float:
        """New values, one batch; its results are checked, or what is not the calls is timed.

        Only the baseline's process is trusted to measure the latter, for both.
        """
        seed = fresh_seed()
        started = _clock()
        refuse_patches(side.worker.ask({"do": "refill", "dims": self.dims, "seed": seed}))
        side.refill.append(_clock() - started)
        order = list(range(self.sets))
        _SYSTEM.shuffle(order)
        started = _clock()
        answer = side.worker.ask({"do": "batch", "order": order})
        took = _clock() - started
        side.seconds.append(took)
        side.own.append(number(answer, "seconds"))
        side.stream.append(number(answer, "stream_seconds"))
        if trusted:
            started = _clock()
            side.worker.ask({"do": "batch", "order": []})
            side.empty.append(_clock() - started)
            return took
        pick = _SYSTEM.randrange(self.sets)
        self._verify(side.worker, pick, seed + order[pick], answer.get("sums"))
        return took

    def _verify(self, worker: Worker, pick: int, seed: int, sums: Any) -> None:
        """The results of one call of the batch, and that they were there when it was answered."""
        want = self._truth(seed)
        got = worker.tensors({"do": "fetch", "pick": pick}, list(want.eager))
        for output, parts in enumerate(zip(got, want.exact, want.eager, want.allowed, strict=True)):
            found = check(*parts, "normal")
            if found is not None:
                message = f"the timed output is wrong: {found.message}"
                raise Rejection(found.code, message, case="timed", dims=self.dims, output=output)
        whole = isinstance(sums, list) and len(sums) == self.sets
        if not whole or sums[pick] != int(bit_sum(got)):
            raise Rejection(
                Code.SIDE_STREAM, "the outputs changed after the timed answer", dims=self.dims
            )

    def _truth(self, seed: int) -> Truth:
        """What a timed call has to give: its own activations, the weights that all sets share."""
        return truth(self.task, self.device, self.dims, "normal", seed, self.weights_seed)

    def _speed(self, mine: _Side, theirs: _Side, alone: float, rounds: int) -> Speed:
        self._clocks_agree(mine, statistics.median(theirs.empty))
        self._nothing_beside(mine)
        self._nothing_earlier(mine, theirs)
        seconds = self._per_call(mine.seconds, theirs.empty)
        baseline = min(
            self._per_call(theirs.seconds, theirs.empty), self._per_call([alone], theirs.empty)
        )
        least = least_seconds(self.task, self.dims, self.peak, self.sets, self._out_bytes())
        speed = Speed(seconds, baseline, least, rounds, rounds * self.sets, self.dims)
        if seconds + self._resolution(theirs.empty) < least:
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
        """Of one call: a batch, less the time of an answer without the calls.

        On a CPU, which others use too, the best; on a GPU, the median.
        """
        typical = min if self.kind == "cpu" else statistics.median
        took = (typical(batches) - typical(empty)) / self.sets
        return max(took, self._resolution(empty))

    def _resolution(self, empty: Sequence[float]) -> float:
        """What can be told of one call: the spread of the answers without calls, shared by all."""
        middle = statistics.median(empty)
        return max(1e-8, statistics.median(abs(t - middle) for t in empty) / self.sets)

    def _clocks_agree(self, side: _Side, empty: float) -> None:
        """The candidate's process and this one measure the same, over all rounds."""
        here, there = statistics.median(side.seconds) - empty, statistics.median(side.own)
        room = _SHARE * abs(here) + _PER_ANSWER
        if not abs(here - there) <= room:
            raise Rejection(
                Code.CLOCK_TAMPERED,
                f"a batch took {there:.2e} s by its process's clock, {here:.2e} s by the judge's",
                dims=self.dims,
            )

    def _nothing_earlier(self, mine: _Side, theirs: _Side) -> None:
        """No work is done as new values arrive, before the request that is timed."""
        here, there = statistics.median(mine.refill), statistics.median(theirs.refill)
        spread = statistics.median(abs(t - there) for t in theirs.refill)
        deviations, share, seconds = _EARLIER[self.kind]
        if here - there > deviations * spread + share * there + seconds:
            raise Rejection(
                Code.CLOCK_TAMPERED,
                f"its process takes {here:.2e} s for new values, the baseline's {there:.2e} s",
                dims=self.dims,
            )

    def _nothing_beside(self, side: _Side) -> None:
        """All work is ordered with the current stream: its events span the whole batch."""
        whole, stream = statistics.median(side.own), statistics.median(side.stream)
        if self.kind == "cuda" and whole - stream > _BESIDE * whole + _PER_BATCH:
            raise Rejection(
                Code.SIDE_STREAM,
                f"{whole:.2e} s until the device is idle, {stream:.2e} s on the current stream",
                dims=self.dims,
            )
