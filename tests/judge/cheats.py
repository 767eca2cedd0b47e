"""Programs for tests/judge/small_task.py that are wrong, or right in an unusual way."""

from __future__ import annotations

import ctypes
import os
import sys
import time
from typing import Any

import torch
from torch import Tensor


def right(x: Tensor, gain: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * gain


def right_into_out(x: Tensor, gain: Tensor, out: Tensor) -> None:
    out.copy_(right(x, gain))


def right_as_tuple(x: Tensor, gain: Tensor) -> tuple[Tensor]:
    return (right(x, gain),)


def more_exact(x: Tensor, gain: Tensor) -> Tensor:
    return right(x.double(), gain.double()).float()


def zero(x: Tensor, gain: Tensor) -> Tensor:
    return torch.zeros_like(x)


def constant(x: Tensor, gain: Tensor) -> Tensor:
    return torch.ones_like(x)


def identity(x: Tensor, gain: Tensor) -> Tensor:
    return x


def no_gain(x: Tensor, gain: Tensor) -> Tensor:
    return right(x, torch.ones_like(gain))


def no_eps(x: Tensor, gain: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True).clamp(min=1e-30)) * gain


def stale(x: Tensor, gain: Tensor) -> Tensor:
    return torch.empty_like(x)


def stale_tail(x: Tensor, gain: Tensor) -> Tensor:
    y = torch.empty_like(x)
    y[:-1] = right(x, gain)[:-1]
    return y


def stale_out(x: Tensor, gain: Tensor, out: Tensor) -> None:
    right(x, gain)


def one_value_off(x: Tensor, gain: Tensor) -> Tensor:
    y = right(x, gain)
    y[-1, -1] *= 1.001
    return y


def mutates(x: Tensor, gain: Tensor) -> Tensor:
    y = right(x, gain)
    x += 1
    return y


def mutates_weight(x: Tensor, gain: Tensor) -> Tensor:
    y = right(x, gain)
    gain *= 2
    return y


def nan_blind(x: Tensor, gain: Tensor) -> Tensor:
    return right(x.nan_to_num(), gain)


def half(x: Tensor, gain: Tensor) -> Tensor:
    return right(x.half(), gain.half()).float()


def bfloat(x: Tensor, gain: Tensor) -> Tensor:
    return right(x.bfloat16(), gain.bfloat16()).float()


def half_gain(x: Tensor, gain: Tensor) -> Tensor:
    return right(x, gain.half().float())


_by_pointer: dict[Any, Tensor] = {}


def cached_by_pointer(x: Tensor, gain: Tensor) -> Tensor:
    key = (x.data_ptr(), x.shape)
    if key not in _by_pointer:
        _by_pointer[key] = right(x, gain)
    return _by_pointer[key].clone()


def cached_by_object(x: Tensor, gain: Tensor) -> Tensor:
    if id(x) not in _by_pointer:
        _by_pointer[id(x)] = (x, right(x, gain))  # type: ignore[assignment]
    return _by_pointer[id(x)][1].clone()


_calls = [0]


def cached_later(x: Tensor, gain: Tensor) -> Tensor:
    """Right until the values were checked, then the same result for ever."""
    if x.shape != (16, 32):
        return right(x, gain)
    _calls[0] += 1
    if _calls[0] <= 12 or "y" not in _by_pointer:
        _by_pointer["y"] = right(x, gain)
    return _by_pointer["y"].clone()


_buffers: dict[Any, Tensor] = {}


def one_buffer(x: Tensor, gain: Tensor) -> Tensor:
    y = _buffers.setdefault(x.shape, torch.empty_like(x))
    return y.copy_(right(x, gain))


def random(x: Tensor, gain: Tensor) -> Tensor:
    return right(x, gain) * (1 + 1e-7 * torch.randn_like(x).clamp(-1, 1))


def raises(x: Tensor, gain: Tensor) -> Tensor:
    raise ValueError("no such thing")


def leaves(x: Tensor, gain: Tensor) -> Tensor:
    sys.exit(0)


def ends(x: Tensor, gain: Tensor) -> Tensor:
    os._exit(0)


def crashes(x: Tensor, gain: Tensor) -> Tensor:
    ctypes.string_at(0)
    return x


def hangs(x: Tensor, gain: Tensor) -> Tensor:
    while True:
        time.sleep(1)


def spins(x: Tensor, gain: Tensor) -> Tensor:
    while True:
        pass


def allocates_much(x: Tensor, gain: Tensor) -> Tensor:
    torch.empty(1 << 42, dtype=torch.uint8)
    return right(x, gain)


def allocates_more_and_more(x: Tensor, gain: Tensor) -> Tensor:
    held = []
    while True:
        held.append(torch.ones(1 << 22))


def wrong_shape(x: Tensor, gain: Tensor) -> Tensor:
    return right(x, gain)[:-1]


def transposed(x: Tensor, gain: Tensor) -> Tensor:
    return right(x, gain).T


def wrong_dtype(x: Tensor, gain: Tensor) -> Tensor:
    return right(x, gain).double()


def too_many(x: Tensor, gain: Tensor) -> tuple[Tensor, Tensor]:
    y = right(x, gain)
    return y, y


def none(x: Tensor, gain: Tensor) -> None:
    return None


def patches_clock(x: Tensor, gain: Tensor) -> Tensor:
    time.perf_counter = lambda: 0.0
    return right(x, gain)


def patches_event(x: Tensor, gain: Tensor) -> Tensor:
    torch.cuda.Event = object  # type: ignore[assignment, misc]
    return right(x, gain)


def patches_the_worker(x: Tensor, gain: Tensor) -> Tensor:
    sys.modules["fusedsl.judge.worker"]._clock = lambda: 0.0  # type: ignore[attr-defined]
    time.sleep(0.01)
    return right(x, gain)


def skips_calls(x: Tensor, gain: Tensor) -> Tensor:
    """Replaces the loop that is timed: one call, whose result is given for all."""
    session = sys.modules["fusedsl.judge.worker"].Session

    def batch(self: Any, m: dict[str, Any]) -> dict[str, Any]:
        return whole(self, {**m, "order": [m["order"][0]] * len(m["order"])})

    if not _calls[0]:
        whole, session.batch = session.batch, batch
    _calls[0] += 1
    return right(x, gain)


def works_early(x: Tensor, gain: Tensor) -> Tensor:
    """Computes as the inputs arrive, before the clock runs."""
    session = sys.modules["fusedsl.judge.worker"].Session

    def refill(self: Any, m: dict[str, Any]) -> dict[str, Any]:
        answer = whole(self, m)
        for inputs in self.sets:
            time.sleep(0.01)
            _by_pointer[id(inputs[0])] = right(*inputs)
        return answer

    if not _calls[0]:
        whole, session.refill = session.refill, refill
    _calls[0] += 1
    return _by_pointer[id(x)] if id(x) in _by_pointer else right(x, gain)


def sleeps(x: Tensor, gain: Tensor) -> Tensor:
    time.sleep(0.005)
    return right(x, gain)


def beside(x: Tensor, gain: Tensor) -> Tensor:
    """Leaves its work on a stream that nobody waits for."""
    y = torch.empty_like(x)
    side = _buffers.setdefault("stream", torch.cuda.Stream())  # type: ignore[arg-type]
    side.wait_stream(torch.cuda.current_stream())  # type: ignore[attr-defined]
    with torch.cuda.stream(side):  # type: ignore[arg-type]
        torch.cuda._sleep(200_000)
        y.copy_(right(x, gain))
    return y


def beside_without_waiting(x: Tensor, gain: Tensor) -> Tensor:
    """Joins its stream in the end, but reads the inputs before they have arrived."""
    side = _buffers.setdefault("stream", torch.cuda.Stream())  # type: ignore[arg-type]
    with torch.cuda.stream(side):  # type: ignore[arg-type]
        y = right(x, gain)
    torch.cuda.current_stream().wait_stream(side)  # type: ignore[arg-type]
    return y


def joined(x: Tensor, gain: Tensor) -> Tensor:
    """Works on a stream of its own, in order with the current one."""
    side = _buffers.setdefault("stream", torch.cuda.Stream())  # type: ignore[arg-type]
    side.wait_stream(torch.cuda.current_stream())  # type: ignore[attr-defined]
    with torch.cuda.stream(side):  # type: ignore[arg-type]
        y = right(x, gain)
    torch.cuda.current_stream().wait_stream(side)  # type: ignore[arg-type]
    return y
