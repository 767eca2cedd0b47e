"""The process that a candidate runs in. It draws inputs from seeds, calls, and sends values back.

Nothing that decides the verdict happens here: the judge draws the same inputs itself, compares the
values, and times by its own clock. References to what is watched are taken as this module is
imported, before any candidate is.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import resource
import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor

from fusedsl.diagnostics import FusedslError
from fusedsl.judge import candidate
from fusedsl.judge.draw import ALLOCATED, bit_sum, digest, draw, poison, to_bytes
from fusedsl.judge.task import Task, load_task

_clock = time.perf_counter
_synchronize = torch.cuda.synchronize
_event = torch.cuda.Event
_sleep = getattr(torch.cuda, "_sleep", None)

#: What a candidate might replace to look faster or to hide unfinished work.
_WATCHED: list[tuple[Any, str]] = [
    *((time, name) for name in ("perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns")),
    *((time, name) for name in ("time", "time_ns", "process_time", "sleep")),
    *((torch.cuda, name) for name in ("synchronize", "Event", "current_stream", "Stream")),
    *((torch.cuda.Event, name) for name in ("record", "elapsed_time", "synchronize", "query")),
    *((torch.cuda.Stream, name) for name in ("synchronize", "wait_stream")),
    *((torch, name) for name in ("empty", "empty_like", "randn", "rand", "Generator")),
    *((torch.Tensor, name) for name in ("copy_", "clone", "cpu", "to", "fill_")),
]
_ORIGINAL = [getattr(owner, name) for owner, name in _WATCHED]

_OUT_OF_MEMORY = re.compile("out of memory|not enough memory|can't allocate|alloc.*memory", re.I)
_MALLOC_MMAP_THRESHOLD, _MALLOC_TRIM_THRESHOLD, _MALLOC_PERTURB = -3, -1, -6

#: Bytes below which an allocator keeps many blocks.
_SMALL = 1 << 20

#: Cycles that a stream is kept busy before late inputs arrive: some milliseconds.
_LATE = 10_000_000


class _Failed(Exception):
    """What the judge is told; `code` is one of its codes."""

    def __init__(self, code: str, message: str):
        self.code = code
        super().__init__(message)


class Session:
    """The state of one worker: a candidate, inputs by slot, results by name."""

    task: Task
    device: str
    call: Callable[..., Any]
    takes_out: bool

    def __init__(self) -> None:
        self.slots: dict[str, list[Tensor]] = {}
        self.live: dict[str, list[Tensor]] = {}
        self.kept: dict[str, list[Tensor]] = {}
        self.like: list[Tensor] = []
        self.sets: list[list[Tensor]] = []
        self.outs: list[Any] = []
        self.rounds: list[list[Tensor]] = []

    # requests ------------------------------------------------------------------------------
    def start(self, m: dict[str, Any]) -> dict[str, Any]:
        """Set the process up: threads, the device, limits. There is no candidate yet."""
        torch.set_num_threads(int(m["threads"]))
        torch.set_grad_enabled(False)
        self.task, self.device = load_task(m["task"]), m["device"]
        if self.device != "cpu":
            torch.cuda.set_device(self.device)
            draw(self.task, self.task.every_dim(self.task.timed), "normal", 0, self.device)
            _synchronize()
            torch.cuda.empty_cache()
        _keep_freed_memory()
        _limit_memory(m["memory"], self.device)
        return {}

    def load(self, m: dict[str, Any]) -> dict[str, Any]:
        """Load a candidate."""
        self.slots.clear()
        try:
            self.call, self.takes_out = candidate.load(m["candidate"], self.task)
        except FusedslError as error:
            raise _Failed("LOAD_FAILED", str(error)) from None
        except MemoryError:
            raise
        except BaseException as error:
            raise _Failed("LOAD_FAILED", f"{type(error).__name__}: {error}") from error
        return {"takes_out": self.takes_out}

    def fill(self, m: dict[str, Any]) -> dict[str, Any]:
        """New values for a slot: in new tensors, or in the tensors that are there."""
        drawn = draw(self.task, m["dims"], m["case"], m["seed"], self.device)
        if m["fresh"] or m["slot"] not in self.slots:
            self.slots[m["slot"]] = drawn
            return {}
        for tensor, values in zip(self.slots[m["slot"]], drawn, strict=True):
            tensor.copy_(values)
        return {}

    def expect(self, m: dict[str, Any]) -> dict[str, Any]:
        """What outputs look like, so that they can be allocated and memory poisoned."""
        self.like = [
            torch.empty(shape, dtype=getattr(torch, dtype), device=self.device)
            for shape, dtype in m["outputs"]
        ]
        return {}

    def run(self, m: dict[str, Any]) -> dict[str, Any]:
        """One call on a slot; the values are kept under a name."""
        inputs = self.slots[m["slot"]]
        outs = self._poisoned()
        if m["late"]:
            self._arrive_late(inputs)
        _fill_what_is_allocated(True)
        try:
            results = _flat(self._one(inputs, outs))
        finally:
            _fill_what_is_allocated(False)
        snapshot = [t.clone() if isinstance(t, Tensor) else t for t in results]
        if self.device != "cpu":
            event = _event()
            event.record()
            event.synchronize()
        self.live[m["keep"]], self.kept[m["keep"]] = results, snapshot
        return {
            "outputs": [_meta(t) for t in snapshot],
            "digest": digest(inputs),
            "patched": _patched(),
        }

    def send(self, m: dict[str, Any]) -> list[Tensor]:
        """The values of a call as they were when it returned, or as they are now (`live`)."""
        return (self.live if m["live"] else self.kept)[m["keep"]]

    def prepare(self, m: dict[str, Any]) -> dict[str, Any]:
        """Several sets of activations that share the weights, for timing."""
        first = draw(self.task, m["dims"], "normal", m["seed"], self.device)
        for held in (self.slots, self.live, self.kept):
            held.clear()
        self.sets = [first]
        for _ in range(1, m["sets"]):
            self.sets.append(
                [
                    t if item.weight else torch.empty_like(t)
                    for t, item in zip(first, self.task.inputs, strict=True)
                ]
            )
        self.outs = [self._allocate() if m["outs"] else None for _ in self.sets]
        return {}

    def refill(self, m: dict[str, Any]) -> dict[str, Any]:
        """New activations in every set; set i has the values of `seed + i`."""
        self.rounds = []
        for i, inputs in enumerate(self.sets):
            drawn = draw(self.task, m["dims"], "normal", m["seed"] + i, self.device)
            for tensor, values, item in zip(inputs, drawn, self.task.inputs, strict=True):
                if not item.weight:
                    tensor.copy_(values)
            for tensor in self.outs[i] or ():
                poison(tensor)
        self._poison_memory()
        self._finish()
        return {"patched": _patched()}

    def batch(self, m: dict[str, Any]) -> dict[str, Any]:
        """Call on the sets in the order given, which is empty to measure all but the calls.

        The answer holds sums of the bits of every result: it cannot come before all of them are
        computed, and any of them may be asked for afterwards.
        """
        cuda = self.device != "cpu"
        results: list[Any] = []
        self._finish()
        events = [_event(enable_timing=True) for _ in range(2)] if cuda else []
        started = _clock()
        if cuda:
            events[0].record()
        for i in m["order"]:
            results.append(self._one(self.sets[i], self.outs[i]))
        if cuda:
            events[1].record()
        self._finish()
        seconds = _clock() - started
        if m["order"]:
            self.rounds = [_flat(r) for r in results]
        sums = torch.stack([bit_sum(r) for r in self.rounds]).tolist()
        on_stream = events[0].elapsed_time(events[1]) / 1e3 if cuda else seconds
        return {"seconds": seconds, "stream_seconds": on_stream, "sums": sums}

    def fetch(self, m: dict[str, Any]) -> list[Tensor]:
        """The outputs of one call of the latest batch."""
        return self.rounds[m["pick"]]

    # parts ---------------------------------------------------------------------------------
    def _one(self, inputs: Sequence[Tensor], outs: Any) -> Any:
        if not self.takes_out:
            return self.call(*inputs)
        self.call(*inputs, out=outs[0] if len(outs) == 1 else tuple(outs))
        return outs

    def _allocate(self) -> list[Tensor]:
        outs = [torch.empty_like(t) for t in self.like]
        for tensor in outs:
            poison(tensor)
        return outs

    def _poisoned(self) -> list[Tensor] | None:
        self._poison_memory()
        outs = self._allocate() if self.takes_out else None
        self._finish()
        return outs

    def _poison_memory(self) -> None:
        """Leave poison in the memory that the allocator gives out next."""
        blocks: list[Tensor] = []
        for tensor in self.like:
            small = tensor.numel() * tensor.element_size() < _SMALL
            blocks += [torch.empty_like(tensor) for _ in range(64 if small else 3)]
            blocks.append(tensor.new_empty(3 * tensor.numel() + 4096))
        for block in blocks:
            poison(block)

    def _arrive_late(self, inputs: Sequence[Tensor]) -> None:
        """Queue the activations' values behind a delay: only work that waits sees them."""
        pairs: list[tuple[Tensor, Tensor]] = []
        for tensor, item in zip(inputs, self.task.inputs, strict=True):
            if item.weight:
                continue
            pairs.append((tensor, tensor.clone()))
            if item.is_index:  # poison is no index: whoever read it would end the process
                tensor.fill_(item.low)
            else:
                poison(tensor)
        self._finish()
        if _sleep is not None:
            _sleep(_LATE)
        for tensor, values in pairs:
            tensor.copy_(values)

    def _finish(self) -> None:
        if self.device != "cpu":
            _synchronize()


def _flat(result: Any) -> list[Any]:
    return list(result) if isinstance(result, (tuple, list)) else [result]


def _meta(result: Any) -> Any:
    if not isinstance(result, Tensor):
        return type(result).__name__
    return [list(result.shape), str(result.dtype).removeprefix("torch."), result.device.type]


def _patched() -> list[str]:
    """Watched functions that are not what they were."""
    return [
        f"{getattr(owner, '__name__', owner)}.{name}"
        for (owner, name), original in zip(_WATCHED, _ORIGINAL, strict=True)
        if getattr(owner, name, None) is not original
    ]


def _keep_freed_memory() -> None:
    """Let malloc keep what is freed, so that poison stays in it."""
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(_MALLOC_MMAP_THRESHOLD, 1 << 30)
        libc.mallopt(_MALLOC_TRIM_THRESHOLD, 1 << 30)


def _fill_what_is_allocated(on: bool) -> None:
    """Let malloc fill what it gives out with `ALLOCATED`; not while anything is timed."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_MALLOC_PERTURB, (ALLOCATED ^ 0xFF) if on else 0)


def _limit_memory(limit: int, device: str) -> None:
    if device != "cpu":
        total = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, limit / total), device)
        return
    with open("/proc/self/status", encoding="ascii") as file:
        used = next(int(line.split()[1]) for line in file if line.startswith("VmData")) * 1024
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    resource.setrlimit(resource.RLIMIT_DATA, (used + limit, hard))


def _failure(error: BaseException) -> dict[str, Any]:
    detail = "".join(traceback.format_exception(error))[-4000:]
    if isinstance(error, _Failed):
        code = error.code
        cause = error.__cause__
        if cause is not None and _is_memory(cause):
            code = "OUT_OF_MEMORY"
    else:
        code = "OUT_OF_MEMORY" if _is_memory(error) else "EXCEPTION"
    text = str(error) if isinstance(error, _Failed) else f"{type(error).__name__}: {error}"
    return {"failed": code, "message": text[:2000], "detail": detail}


def _is_memory(error: BaseException) -> bool:
    oom = isinstance(error, (MemoryError, torch.cuda.OutOfMemoryError))
    return oom or (isinstance(error, RuntimeError) and bool(_OUT_OF_MEMORY.search(str(error))))


def serve(connection: Connection) -> None:
    """Answer requests until the judge closes the connection."""
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    session = Session()
    while True:
        try:
            message = json.loads(connection.recv_bytes())
        except (EOFError, OSError):
            return
        try:
            answer = getattr(session, message["do"])(message)
        except BaseException as error:
            answer = _failure(error)
        if isinstance(answer, dict):
            connection.send_bytes(json.dumps(answer).encode())
            continue
        connection.send_bytes(b"{}")
        for tensor in answer:
            connection.send_bytes(to_bytes(tensor))
