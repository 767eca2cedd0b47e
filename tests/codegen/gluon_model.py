"""A model of what of Gluon rows in clusters use, in torch: programs are threads, copies to shared
memory arrive no earlier than they are waited for, and layouts mean nothing."""

from __future__ import annotations

import math
import operator
import random
import threading
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch


class Value:
    """A tensor or a number."""

    def __init__(self, data: Any) -> None:
        self.data: torch.Tensor = torch.as_tensor(data)

    @property
    def dtype(self) -> Any:
        return self.data.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.data.shape)

    @property
    def type(self) -> Any:
        return SimpleNamespace(layout=None)

    def to(self, dtype: torch.dtype, bitcast: bool = False) -> Value:
        return Value(self.data.view(dtype) if bitcast else self.data.to(dtype))

    def __getitem__(self, key: Any) -> Value:
        return Value(self.data[key])

    def __bool__(self) -> bool:
        return bool(self.data)

    def __index__(self) -> int:
        return int(self.data)

    def __neg__(self) -> Value:
        return Value(-self.data)


def plain(value: Any) -> Any:
    return value.data if isinstance(value, Value) else value


def _method(name: str, swapped: bool) -> Callable[[Value, Any], Value]:
    function = getattr(operator, name)

    def apply(self: Value, other: Any) -> Value:
        if isinstance(other, Pointer):
            return NotImplemented
        pair = (plain(other), self.data) if swapped else (self.data, plain(other))
        return Value(function(*pair))

    return apply


_WORDS = ("and_", "or_", "xor", "lshift", "rshift")
for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", *_WORDS):
    setattr(Value, f"__{_name.rstrip('_')}__", _method(_name, False))
    setattr(Value, f"__r{_name.rstrip('_')}__", _method(_name, True))
for _name in ("lt", "le", "gt", "ge", "eq", "ne"):
    setattr(Value, f"__{_name}__", _method(_name, False))


class Pointer:
    """Addresses in a flat tensor; of what lies outside, nothing may be read."""

    def __init__(self, tensor: torch.Tensor, at: Any = 0) -> None:
        size = tensor.untyped_storage().nbytes() // tensor.element_size()
        self.memory, self.at = tensor.as_strided((size,), (1,), 0), torch.as_tensor(at)

    @property
    def dtype(self) -> Any:
        return SimpleNamespace(element_ty=self.memory.dtype)

    def __add__(self, other: Any) -> Pointer:
        return Pointer(self.memory, self.at + plain(other))

    def read(self, mask: Any = None, other: Any = 0.0) -> Value:
        live = torch.as_tensor(True if mask is None else plain(mask)).broadcast_to(self.at.shape)
        found = torch.full(self.at.shape, plain(other), dtype=self.memory.dtype)
        assert (self.at[live] >= 0).all() and (self.at[live] < len(self.memory)).all()
        found[live] = self.memory[self.at[live]]
        return Value(found)

    def write(self, value: Any, mask: Any = None) -> None:
        live = torch.as_tensor(True if mask is None else plain(mask)).broadcast_to(self.at.shape)
        data = torch.as_tensor(plain(value)).to(self.memory.dtype).broadcast_to(self.at.shape)
        self.memory[self.at[live]] = data[live]


class _Room:
    """The shared memory of a program, in bytes; what nobody wrote is NaN. `pending`: by barrier,
    the copies that are under way to it."""

    def __init__(self, size: int) -> None:
        self.memory = torch.full((size,), 0xFF, dtype=torch.uint8)
        self.pending: dict[int, list[tuple[int, torch.Tensor]]] = {}
        self.barriers: dict[int, Barrier] = {}

    def part(self, at: int, count: int, dtype: torch.dtype) -> torch.Tensor:
        """So many values that start at a byte."""
        return self.memory[at : at + count * dtype.itemsize].view(dtype)


class Barrier:
    """Passed when `count` have arrived and no bytes are missing."""

    def __init__(self, count: int) -> None:
        self.count, self.left, self.missing, self.phase = count, count, 0, 0
        self.changed = threading.Condition()

    def step(self, arrived: int, more: int) -> None:
        """So many arrive; so many bytes more, or fewer, are missing."""
        with self.changed:
            self.left, self.missing = self.left - arrived, self.missing + more
            assert self.left >= 0, "a barrier that more arrive at than it counts"
            if not self.left and not self.missing:
                self.left, self.phase = self.count, self.phase + 1
                self.changed.notify_all()


#: Addresses of another program of the cluster: its rank and one more, times this, and the address.
_RANK = 1 << 24


class Machine:
    """Runs the kernels of an emitted file on a grid of `programs`, in clusters of `parts`."""

    def __init__(self, text: str, programs: int, warps: int, parts: int) -> None:
        self.programs, self.warps, self.parts = programs, warps, parts
        self.mine = threading.local()
        lines = [line for line in text.split("\n") if not line.startswith("from triton")]
        self.names = names_beside(self._language())
        exec("\n".join(lines), self.names)
        self.names |= {
            "expect_cluster": lambda _, programs: self._launched(programs),
            "shared_address": lambda threads: threads * 0,
            "of_peer": lambda at, rank: at + (rank + 1) * _RANK,
            "make_barrier": self._make_barrier,
            "clear": self._clear,
            "arrive_in_cluster": lambda _: None,
            "wait_in_cluster": lambda _: self.met[self._place()[0]].wait(60),
            "expect": self._expect,
            "pass_barrier": self._pass,
            "begin_load": self._begin_load,
            "end_reads": lambda _: None,
            "tell": self._tell,
            "part_at": self._part,
            "states_at": self._states,
        }

    def launch(self, name: str, args: Sequence[Any], seconds: float = 60.0) -> None:
        """Run a kernel; a program that does not end is an error."""
        failed: list[BaseException] = []
        self.deadline = time.monotonic() + seconds

        clusters = self.programs // self.parts
        self.met = [threading.Barrier(self.parts) for _ in range(clusters)]
        self.rooms: list[_Room | None] = [None] * self.programs
        ended = [threading.Barrier(self.parts) for _ in range(clusters)]

        def program(number: int) -> None:
            self.mine.number = number
            try:
                self.names[name](*args)
                ended[number // self.parts].wait(60)
                room = self.rooms[number]
                assert room and not any(room.pending.values()), "a copy that nobody waits for"
                assert all(b.left == b.count and not b.missing for b in room.barriers.values())
            except BaseException as error:
                failed.append(error)
                self.deadline = 0.0
                for barrier in (*self.met, *ended):
                    barrier.abort()

        threads = [threading.Thread(target=program, args=(i,)) for i in range(self.programs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        broken = [e for e in failed if not isinstance(e, threading.BrokenBarrierError)]
        if failed:
            raise (broken or failed)[0]

    def _launched(self, programs: Any) -> None:
        assert int(programs) == self.parts, "launched in other clusters"

    # shared memory and barriers ----------------------------------------------------------------
    def _place(self) -> tuple[int, int]:
        """Cluster and rank of this program."""
        return divmod(self.mine.number, self.parts)

    @property
    def room(self) -> _Room:
        """This program's shared memory."""
        room = self.rooms[self.mine.number]
        assert room is not None
        return room

    def _allocate(self, dtype: torch.dtype, shape: Sequence[int], layout: Any) -> None:
        assert self.rooms[self.mine.number] is None, "one allocation"
        self.rooms[self.mine.number] = _Room(4 * math.prod(map(int, shape)))

    def _make_barrier(self, at: Value, count: Any, which: Value) -> None:
        for (one,) in self._picked(which, at):
            self.room.barriers[one] = Barrier(int(count))

    def _clear(self, place: Value, which: Value) -> None:
        for (at,) in self._picked(which, place):
            self.room.part(at, 16, torch.uint8).zero_()

    def _expect(self, barrier: Value, size: Any, which: Value) -> None:
        for (one,) in self._picked(which, barrier):
            self.room.barriers[one].step(1, int(size))

    def _pass(self, barrier: Value, phase: Any) -> None:
        for at in set(barrier.data.reshape(-1).tolist()):
            one = self.room.barriers[at]
            for place, data in self.room.pending.pop(at, []):
                self.room.part(place, len(data), data.dtype).copy_(data)
                one.step(0, -data.nbytes)
            with one.changed:
                while one.phase % 2 == int(phase):
                    assert time.monotonic() < self.deadline, "a state that nobody tells"
                    one.changed.wait(0.05)

    def _begin_load(
        self, place: Value, barrier: Value, source: Pointer, size: Value, which: Value
    ) -> None:
        for at, told, where, size_ in self._picked(which, place, barrier, Value(source.at), size):
            self.room.barriers[told].step(1, size_)
            if size_:
                assert size_ % 16 == 0 and where * source.memory.itemsize % 16 == 0
                count = size_ // source.memory.itemsize
                assert where >= 0 and where + count <= len(source.memory)
                self.room.part(at, size_, torch.uint8).fill_(0xFF)  # what is under way
                data = source.memory[where : where + count].clone()
                self.room.pending.setdefault(told, []).append((at, data))

    def _tell(self, at: Value, barrier: Value, state: Value, which: Value) -> None:
        time.sleep(random.choice((0, 0, 1e-4)))
        cluster = self._place()[0]
        states = Value(state.data[:, None])
        for to, told, value in self._picked(which, at, barrier, states):
            rank, place = to // _RANK - 1, to % _RANK
            room = self.rooms[cluster * self.parts + rank]
            assert room is not None and told // _RANK - 1 == rank
            room.part(place, 1, torch.float32)[0] = value
            room.barriers[told % _RANK].step(0, -4)

    def _picked(self, which: Value, *values: Value) -> list[tuple[Any, ...]]:
        """The values of the threads `which`."""
        every = (self.warps, 32)
        live = which.data.broadcast_to(every)
        return list(zip(*(v.data.broadcast_to(every)[live].tolist() for v in values), strict=True))

    def _part(self, room: Any, place: Any, like: Any, width: Any, layout: Any) -> Value:
        dtype = like.dtype.element_ty
        return Value(self.room.part(2 * int(place), int(width), dtype).clone()[None, :])

    def _states(self, room: Any, place: Any, layout: Any, read: Any, count: Any) -> Value:
        found = self.room.part(1024 * int(place), int(read), torch.float32).clone()
        return Value(torch.where(torch.arange(int(read)) < int(count), found, 0.0)[None, :])

    def _load(self, source: Pointer, mask: Any = None, other: Any = 0.0) -> Value:
        return source.read(mask, other)

    def _language(self) -> Any:
        names: dict[str, Any] = {
            name: lambda *_: None
            for name in ("BlockedLayout", "SliceLayout", "SwizzledSharedLayout")
        }
        return SimpleNamespace(
            constexpr=int,
            num_warps=lambda: self.warps,
            num_programs=lambda axis: self.programs,
            program_id=lambda axis: Value(self.mine.number),
            allocate_shared_memory=self._allocate,
            load=self._load,
            store=lambda at, value, mask=None: at.write(value, mask),
            **names,
            **functions(),
        )


def names_beside(language: Any) -> dict[str, Any]:
    """What an emitted file finds beside its own functions."""
    return {
        "tl": language,
        "gluon": SimpleNamespace(jit=jit),
        "core": SimpleNamespace(PropagateNan=SimpleNamespace(ALL=None)),
        "range": lambda *ends: (Value(i) for i in range(*map(int, ends))),
        "min": lambda a, b: Value(min(int(a), int(b))),
        "max": lambda a, b: Value(max(int(a), int(b))),
    }


def jit(function: Any = None, **options: Any) -> Any:
    return function if function is not None else jit


def _divisible(value: Value, by: int) -> Value:
    assert int(value.data.reshape(-1)[0]) % by == 0
    return value


def _unary(function: Any) -> Callable[[Any], Value]:
    return lambda x: Value(function(plain(x)))


def _binary(function: Any) -> Callable[..., Value]:
    def apply(a: Any, b: Any, propagate_nan: Any = None) -> Value:
        return Value(function(torch.as_tensor(plain(a)), torch.as_tensor(plain(b))))

    return apply


def _reduce(given: Any, axis: int, combine: Any) -> Any:
    """`combine` is `larger`."""
    return Value(given.data.amax(axis))


def functions() -> dict[str, Any]:
    def narrow(x: Any) -> torch.Tensor:
        found = torch.as_tensor(plain(x))
        return found.float() if found.is_floating_point() else found

    return {
        "static_range": lambda *ends: (Value(i) for i in range(*map(int, ends))),
        "multiple_of": _divisible,
        "max_contiguous": lambda value, by: value,
        "arange": lambda start, end, layout: Value(torch.arange(int(start), int(end))),
        "full": lambda shape, value, dtype, layout: Value(
            torch.as_tensor(plain(value)).to(dtype).broadcast_to(tuple(map(int, shape))).clone()
        ),
        "where": lambda c, a, b: Value(
            torch.where(torch.as_tensor(plain(c)), narrow(a), narrow(b))
        ),
        "maximum": _binary(torch.maximum),
        "minimum": _binary(torch.minimum),
        "abs": _unary(torch.abs),
        "rsqrt": _unary(torch.rsqrt),
        "fma": lambda a, b, c: Value(plain(a) * plain(b) + plain(c)),
        "cdiv": lambda a, b: Value(-(-plain(a) // plain(b))),
        "zeros": lambda shape, dtype, layout: Value(torch.zeros(*map(int, shape), dtype=dtype)),
        "permute": lambda x, order: Value(x.data.permute(*order)),
        "split": lambda x: (Value(x.data[..., 0]), Value(x.data[..., 1])),
        "min": lambda x, axis: Value(x.data.amin(axis)),
        "sum": lambda x, axis: Value(x.data.sum(axis)),
        "max": lambda x, axis: Value(x.data.amax(axis)),
        "reduce": _reduce,
        "convert_layout": lambda value, layout, assert_trivial=False: value,
        "exp": _unary(torch.exp),
        "erf": _unary(torch.erf),
        "exp2": _unary(torch.exp2),
        "floor": _unary(torch.floor),
        "div_rn": lambda a, b: Value(plain(a) / plain(b)),
        "reshape": lambda x, shape: Value(x.data.reshape(tuple(map(int, shape)))),
        "inline_asm_elementwise": lambda text, names, args, **options: args[0].to(torch.float32),
        "float32": torch.float32,
        "float16": torch.float16,
        "bfloat16": torch.bfloat16,
        "int1": torch.bool,
        "int32": torch.int32,
        "int64": torch.int64,
    }
