"""The clocks of fusedsl: every time that it reports is taken here.

| function | measures | on a GPU |
|---|---|---|
| `wall_ms` | one call after another, each waited for | host and device |
| `side_by_side` | several calls in turns, one at a time, the L2 cache cleared before | device |
| `racing` | several calls in turns, the slow ones left out after the first | device |
| `graph_ms` | calls captured into a CUDA graph | device |
| `in_turn` | several programs over sets of inputs, cold and warm | device, and the host apart |
| `best_seconds` | the fastest of a few calls | device |
| `host_us` | what a call takes of the host, however long the device works | host |

On the CPU all of them are a wall clock. All but `best_seconds` give medians.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

Call = Callable[[], Any]

_clock = time.perf_counter

#: Bytes that are read to fill the L2 cache of a GPU with something else, and how often they are
#: before a race.
_FLUSH, _WARMING = 256 << 20, 100
#: Rounds that bring the device to the clock at which the others are timed.
_UNCOUNTED = 20
#: A device that sleeps while calls are queued: cycles a second at most, and seconds at most.
_CYCLES, _LONGEST = 2.2e9, 0.05
#: Times what the host needs, as it was found, that it may need.
_SPARE = 1.5
#: Calls that are queued at once where the host's time is taken: launch queues hold about 1000.
_QUEUED = 16


def wait(device: str) -> None:
    """Wait until the device is idle."""
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)


def wall_ms(call: Call, device: str, repeat: int, *, uncounted: int = 0) -> float:
    """The median of `repeat` calls in milliseconds, each waited for, after some that are not
    counted."""
    times: list[float] = []
    for _ in range(uncounted + repeat):
        wait(device)
        started = _clock()
        call()
        wait(device)
        times.append((_clock() - started) * 1e3)
    return statistics.median(times[uncounted:])


def side_by_side(calls: Mapping[str, Call], *, rounds: int = 60) -> dict[str, float]:
    """Median milliseconds of each call on the GPU, measured in turns in one process.

    Each round times every call once, in an order of its own, the L2 cache cleared before each. The
    device is never waited for: it goes from call to call, so that all find the same clock and the
    same temperature. A GPU at its power limit slows down within some tens of milliseconds, and a
    call that is repeated for so long is timed at another clock than the one before it. Where the
    host needs longer for a round than the device may take, the device sleeps between rounds, so
    that no call is timed while it is still being queued.
    """
    flush = torch.empty(_FLUSH // 4, dtype=torch.int32, device="cuda")
    lead = _lead(calls, flush)
    times: dict[str, list[tuple[Any, Any]]] = {name: [] for name in calls}
    order, draw = list(calls), random.Random(0)
    for number in range(rounds + _UNCOUNTED):
        draw.shuffle(order)
        if lead > 0:
            _sleep(lead, "cuda")
        for name in order:
            events = _recorded(calls[name], flush)
            if number >= _UNCOUNTED:
                times[name].append(events)
    torch.cuda.synchronize()
    taken = {name: [a.elapsed_time(b) for a, b in pairs] for name, pairs in times.items()}
    return {name: statistics.median(found) for name, found in taken.items()}


def _lead(calls: Mapping[str, Call], flush: torch.Tensor) -> float:
    """Seconds that the device has to sleep before a round: what the host may need for it beyond
    what the device takes to clear the cache. None are needed where it is 0 or less."""
    for call in calls.values():
        call()
    host = sum(min(_queued(call, flush) for _ in range(3)) for call in calls.values())
    device = len(calls) * best_seconds(flush.zero_, "cuda")
    return min(_LONGEST, _SPARE * host - device)


def _queued(call: Call, flush: torch.Tensor) -> float:
    """Seconds of the host that a call takes, timed as `_recorded` does it."""
    torch.cuda.synchronize()
    started = _clock()
    _recorded(call, flush)
    return _clock() - started


def racing(calls: Mapping[Any, Call], device: torch.device, rounds: int = 5) -> dict[Any, float]:
    """Median milliseconds of each call on the GPU, in turns, the L2 cache cleared before each.

    Those half as slow again as the fastest drop out after the first round, by their best time
    there: for choosing one. The device works for some milliseconds first, so that its clock is up.
    """
    times: dict[Any, list[float]] = {name: [] for name in calls}
    flush = torch.empty(_FLUSH // 4, dtype=torch.int32, device=device)
    left = dict(calls)
    for call in left.values():
        call()
    for _ in range(_WARMING):
        flush.zero_()
    for number in range(rounds):
        for name, call in left.items():
            known = times[name]
            count = max(3, min(20, int(4 / max(min(known), 1e-3)))) if known else 3
            times[name] = known + _cleared(call, count, flush)
        if number == 0:
            best = {name: min(found) for name, found in times.items()}
            left = {name: calls[name] for name in left if best[name] < 1.5 * min(best.values())}
    return {name: _middle(found) for name, found in times.items()}


def _cleared(call: Call, count: int, flush: torch.Tensor) -> list[float]:
    call()
    pairs = [_recorded(call, flush) for _ in range(count)]
    torch.cuda.synchronize()
    return [start.elapsed_time(end) for start, end in pairs]


def _recorded(call: Call, flush: torch.Tensor) -> tuple[Any, Any]:
    """Events before and after a call that is queued behind a write which clears the L2 cache."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    flush.zero_()
    start.record()
    call()
    end.record()
    return start, end


def _sleep(seconds: float, device: str) -> None:
    """Queue so long a rest of the device, where torch can."""
    sleep = getattr(torch.cuda, "_sleep", None)
    if sleep is not None:
        with torch.cuda.device(device):
            sleep(int(seconds * _CYCLES))


def _middle(values: Sequence[float]) -> float:
    """The median; of an even number, the larger of the two in the middle."""
    return sorted(values)[len(values) // 2]


def graph_ms(calls: Sequence[Call], replays: int = 30) -> tuple[float, list[Any]]:
    """Median milliseconds of one call among `calls`, captured together, and their last results.

    The device sleeps while a replay is queued: what the host takes to launch the graph is not
    timed, as it is hidden where something runs ahead of it.
    """
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for call in calls:
            call()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = [call() for call in calls]
    times: list[float] = []
    host = 0.0
    for _ in range(replays + _UNCOUNTED):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        _sleep(min(_LONGEST, _SPARE * host + 5e-5), "cuda")
        started = _clock()
        start.record()
        graph.replay()
        end.record()
        host = max(host, _clock() - started)
        end.synchronize()
        times.append(start.elapsed_time(end) / len(calls))
    return statistics.median(times[_UNCOUNTED:]), results


def best_seconds(call: Call, device: str, repeat: int = 10) -> float:
    """The fastest of some calls, in seconds of the device."""
    cuda = device.startswith("cuda")
    best = float("inf")
    call()
    for _ in range(repeat):
        if cuda:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize(device)
            start.record(torch.cuda.current_stream(device))
            call()
            end.record(torch.cuda.current_stream(device))
            end.synchronize()
            best = min(best, start.elapsed_time(end) / 1e3)
        else:
            started = _clock()
            call()
            best = min(best, _clock() - started)
    return max(best, 1e-9)


def host_us(call: Call, device: str, *, batches: int = 200, queued: int = _QUEUED) -> float:
    """Microseconds that the host spends in a call: the median over batches of `queued` calls.

    The device is waited for between batches and a batch is far shorter than the launch queue, so
    a launch never waits for the device.
    """
    times: list[float] = []
    for _ in range(batches + 10):
        wait(device)
        started = _clock()
        for _ in range(queued):
            call()
        times.append((_clock() - started) / queued)
    wait(device)
    return statistics.median(times[10:]) * 1e6


@dataclass
class Times:
    """Milliseconds of one call: `cold`, its inputs not in the cache; `warm`, the same inputs
    again; and the microseconds that the host needs for it."""

    cold: list[float] = field(default_factory=list[float])
    warm: list[float] = field(default_factory=list[float])
    host: list[float] = field(default_factory=list[float])

    @property
    def cold_ms(self) -> float:
        """Median over the rounds."""
        return statistics.median(self.cold)

    @property
    def warm_ms(self) -> float:
        """Median over the rounds."""
        return statistics.median(self.warm)

    @property
    def host_us(self) -> float:
        """Median over the rounds."""
        return statistics.median(self.host)


class Turns:
    """Times several contenders in turn, each over the same sets of inputs.

    A contender is one call for each set. A cold batch uses every set once, in turn, after the L2
    cache was filled with other data, so that no input lies in it however small the problem; a warm
    batch uses the first set again and again. On a GPU the device sleeps while a batch is queued:
    what is measured is a full queue, without the host.

    `results` holds, by contender, what the calls of its last cold batch returned.
    """

    def __init__(self, contenders: Mapping[str, Sequence[Call]], device: str):
        self.contenders, self.device = contenders, device
        self.cuda = device.startswith("cuda")
        self.times = {name: Times() for name in contenders}
        self.results: dict[str, list[Any]] = {n: [None] * len(c) for n, c in contenders.items()}
        self._spread: dict[str, float] = {}
        self._filler = torch.zeros(_FLUSH // 4, device=device) if self.cuda else None

    def warm_up(self, name: str) -> None:
        """Call a contender once on each set, and learn how long the host needs for that."""
        for call in self.contenders[name]:
            call()
        wait(self.device)
        started = _clock()
        for call in self.contenders[name]:
            call()
        self._spread[name] = _clock() - started
        wait(self.device)

    def round(self, name: str) -> None:
        """One cold batch and one warm batch of a contender."""
        calls, times = self.contenders[name], self.times[name]
        ms, us = self._batch(name, calls, self.results[name], flush=True)
        times.cold.append(ms)
        times.host.append(us)
        again = [calls[0]] * len(calls)
        times.warm.append(self._batch(name, again, [None] * len(calls), flush=False)[0])

    def _batch(
        self, name: str, calls: Sequence[Call], results: list[Any], *, flush: bool
    ) -> tuple[float, float]:
        """Milliseconds of the device and microseconds of the host, for one call."""
        if not self.cuda:
            started = _clock()
            for index, call in enumerate(calls):
                results[index] = call()
            one = (_clock() - started) / len(calls)
            return one * 1e3, one * 1e6
        stream = torch.cuda.current_stream(self.device)
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        if not flush:
            calls[0]()
        torch.cuda.synchronize(self.device)
        if flush and self._filler is not None:
            self._filler.max()
        _sleep(min(_LONGEST, _SPARE * self._spread[name] + 5e-5), self.device)
        start.record(stream)
        started = _clock()
        for index, call in enumerate(calls):
            results[index] = call()
        host = _clock() - started
        end.record(stream)
        end.synchronize()
        return start.elapsed_time(end) / len(calls), host / len(calls) * 1e6


def in_turn(
    contenders: Mapping[str, Sequence[Call]],
    device: str,
    *,
    rounds: int,
    tick: Call = lambda: None,
) -> Turns:
    """Time all contenders in turn, `rounds` times; `tick` is called after each step.

    There are `len(contenders) * (rounds + 1)` steps.
    """
    turns = Turns(contenders, device)
    for name in contenders:
        turns.warm_up(name)
        tick()
    for _ in range(rounds):
        for name in contenders:
            turns.round(name)
            tick()
    return turns
