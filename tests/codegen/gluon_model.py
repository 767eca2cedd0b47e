"""A model of what of Gluon rows in rings use, in torch: programs are threads, copies to shared
memory arrive no earlier than they are waited for, and layouts mean nothing."""

from __future__ import annotations

import operator
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


def _plain(value: Any) -> Any:
    return value.data if isinstance(value, Value) else value


def _method(name: str, swapped: bool) -> Callable[[Value, Any], Value]:
    function = getattr(operator, name)

    def apply(self: Value, other: Any) -> Value:
        if isinstance(other, Pointer):
            return NotImplemented
        pair = (_plain(other), self.data) if swapped else (self.data, _plain(other))
        return Value(function(*pair))

    return apply


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "and_", "or_", "lshift", "rshift"):
    setattr(Value, f"__{_name.rstrip('_')}__", _method(_name, False))
    setattr(Value, f"__r{_name.rstrip('_')}__", _method(_name, True))
for _name in ("lt", "le", "gt", "ge", "eq", "ne"):
    setattr(Value, f"__{_name}__", _method(_name, False))


class Pointer:
    """Addresses in a flat tensor; of what lies outside, nothing may be read."""

    def __init__(self, memory: torch.Tensor, at: Any = 0) -> None:
        self.memory, self.at = memory, torch.as_tensor(at)

    @property
    def dtype(self) -> Any:
        return SimpleNamespace(element_ty=self.memory.dtype)

    def __add__(self, other: Any) -> Pointer:
        return Pointer(self.memory, self.at + _plain(other))

    def read(self, mask: Any = None, other: Any = 0.0) -> Value:
        live = torch.as_tensor(True if mask is None else _plain(mask)).broadcast_to(self.at.shape)
        found = torch.full(self.at.shape, _plain(other), dtype=self.memory.dtype)
        assert (self.at[live] >= 0).all() and (self.at[live] < len(self.memory)).all()
        found[live] = self.memory[self.at[live]]
        return Value(found)

    def write(self, value: Any, mask: Any = None) -> None:
        live = torch.as_tensor(True if mask is None else _plain(mask)).broadcast_to(self.at.shape)
        data = torch.as_tensor(_plain(value)).to(self.memory.dtype).broadcast_to(self.at.shape)
        self.memory[self.at[live]] = data[live]


class _Shared:
    def __init__(self, memory: torch.Tensor) -> None:
        self.memory = memory

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.memory.shape)

    def index(self, at: Any) -> _Shared:
        return _Shared(self.memory[int(at)])

    def load(self, layout: Any) -> Value:
        return Value(self.memory.clone())


class Machine:
    """Runs the kernels of an emitted file on a grid of `programs`."""

    def __init__(self, text: str, programs: int, warps: int) -> None:
        self.programs, self.warps = programs, warps
        self.mine = threading.local()
        self.lock = threading.Lock()
        lines = [line for line in text.split("\n") if not line.startswith("from triton")]
        self.names: dict[str, Any] = {
            "tl": self._language(),
            "gluon": SimpleNamespace(jit=_jit),
            "core": SimpleNamespace(PropagateNan=SimpleNamespace(ALL=None)),
            "async_copy": SimpleNamespace(
                async_copy_global_to_shared=self._copy,
                commit_group=self._commit,
                wait_group=self._wait,
            ),
            "range": lambda *ends: (Value(i) for i in range(*map(int, ends))),
            "min": lambda a, b: Value(min(int(a), int(b))),
            "max": lambda a, b: Value(max(int(a), int(b))),
        }
        exec("\n".join(lines), self.names)

    def launch(self, name: str, args: Sequence[Any], seconds: float = 60.0) -> None:
        """Run a kernel; a program that does not end is an error."""
        failed: list[BaseException] = []
        self.deadline = time.monotonic() + seconds

        def program() -> None:
            self.mine.open, self.mine.groups = [], []
            try:
                self.names[name](*args)
            except BaseException as error:
                failed.append(error)
                self.deadline = 0.0

        threads = [threading.Thread(target=program) for _ in range(self.programs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failed:
            raise failed[0]

    # copies to shared memory -------------------------------------------------------------------
    def _copy(self, place: _Shared, source: Pointer, mask: Any) -> None:
        place.memory.fill_(float("nan"))  # what is under way
        self.mine.open.append((place, source.read(mask)))

    def _commit(self) -> None:
        self.mine.groups.append(self.mine.open)
        self.mine.open = []

    def _wait(self, left: int) -> None:
        while len(self.mine.groups) > left:
            for place, value in self.mine.groups.pop(0):
                place.memory.copy_(value.data)

    # words -------------------------------------------------------------------------------------
    def _load(
        self, source: Pointer, mask: Any = None, other: Any = 0.0, volatile: bool = False
    ) -> Value:
        if volatile:
            time.sleep(0)
            assert time.monotonic() < self.deadline, "a word that nobody tells"
        return source.read(mask, other)

    def _exchange(self, at: Pointer, value: Any, sem: str) -> None:
        at.write(value)

    def _add(self, at: Pointer, value: int, sem: str) -> Value:
        with self.lock:
            before = int(at.memory[at.at])
            at.memory[at.at] += value
        return Value(before)

    def _language(self) -> Any:
        names: dict[str, Any] = {
            name: lambda *_: None
            for name in ("BlockedLayout", "SliceLayout", "SwizzledSharedLayout")
        }
        return SimpleNamespace(
            constexpr=int,
            num_warps=lambda: self.warps,
            num_programs=lambda axis: self.programs,
            allocate_shared_memory=_allocate,
            load=self._load,
            store=lambda at, value, mask=None: at.write(value, mask),
            atomic_xchg=self._exchange,
            atomic_add=self._add,
            **names,
            **_functions(),
        )


def _jit(function: Any = None, **options: Any) -> Any:
    return function if function is not None else _jit


def _allocate(dtype: torch.dtype, shape: Sequence[int], layout: Any) -> _Shared:
    return _Shared(torch.full(tuple(map(int, shape)), float("nan"), dtype=dtype))


def _divisible(value: Value, by: int) -> Value:
    assert int(value.data.reshape(-1)[0]) % by == 0
    return value


def _unary(function: Any) -> Callable[[Any], Value]:
    return lambda x: Value(function(_plain(x)))


def _binary(function: Any) -> Callable[..., Value]:
    def apply(a: Any, b: Any, propagate_nan: Any = None) -> Value:
        return Value(function(torch.as_tensor(_plain(a)), torch.as_tensor(_plain(b))))

    return apply


def _reduce(given: Any, axis: int, combine: Any) -> Any:
    """`combine` is `add_pairs`, of two values, or `larger`, of one."""
    if isinstance(given, tuple):
        return tuple(Value(x.data.sum(axis)) for x in given)
    return Value(given.data.amax(axis))


def _functions() -> dict[str, Any]:
    def narrow(x: Any) -> torch.Tensor:
        found = torch.as_tensor(_plain(x))
        return found.float() if found.is_floating_point() else found

    return {
        "static_range": lambda *ends: (Value(i) for i in range(*map(int, ends))),
        "multiple_of": _divisible,
        "max_contiguous": lambda value, by: value,
        "arange": lambda start, end, layout: Value(torch.arange(start, end)),
        "full": lambda shape, value, dtype, layout: Value(
            torch.as_tensor(_plain(value)).to(dtype).broadcast_to(shape).clone()
        ),
        "where": lambda c, a, b: Value(
            torch.where(torch.as_tensor(_plain(c)), narrow(a), narrow(b))
        ),
        "maximum": _binary(torch.maximum),
        "minimum": _binary(torch.minimum),
        "abs": _unary(torch.abs),
        "rsqrt": _unary(torch.rsqrt),
        "fma": lambda a, b, c: Value(_plain(a) * _plain(b) + _plain(c)),
        "sum": lambda x, axis: Value(x.data.sum(axis)),
        "max": lambda x, axis: Value(x.data.amax(axis)),
        "reduce": _reduce,
        "exp": _unary(torch.exp),
        "exp2": _unary(torch.exp2),
        "floor": _unary(torch.floor),
        "div_rn": lambda a, b: Value(_plain(a) / _plain(b)),
        "reshape": lambda x, shape: Value(x.data.reshape(tuple(map(int, shape)))),
        "inline_asm_elementwise": lambda text, names, args, **options: args[0].to(torch.float32),
        "float32": torch.float32,
        "float16": torch.float16,
        "bfloat16": torch.bfloat16,
        "int32": torch.int32,
        "int64": torch.int64,
    }
