"""A model of what of Gluon projections use, in torch: programs and groups of warps are threads,
copies to shared memory arrive no earlier than they are waited for, products read their operands
when they are waited for, and layouts mean nothing."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch

from tests.codegen.gluon_model import Barrier, Value, functions, names_beside


class Descriptor:
    """A tensor map: what lies outside is zero, and is not stored."""

    def __init__(self, tensor: torch.Tensor, block: Sequence[int]) -> None:
        self.tensor, self.block = tensor, tuple(block)
        self.dtype, self.layout = tensor.dtype, None

    def read(self, at: Sequence[Any]) -> torch.Tensor:
        found = torch.zeros(self.block, dtype=self.dtype)
        source, (rows, cols) = self._inside(at)
        found[:rows, :cols] = source
        return found

    def write(self, at: Sequence[Any], data: torch.Tensor) -> None:
        place, (rows, cols) = self._inside(at)
        place.copy_(data[:rows, :cols])

    def _inside(self, at: Sequence[Any]) -> tuple[torch.Tensor, tuple[int, int]]:
        row, col = map(int, at)
        assert row >= 0 and col >= 0
        place = self.tensor[row : row + self.block[0], col : col + self.block[1]]
        return place, (place.shape[0], place.shape[1])


class Shared:
    """A part of shared memory; what nobody wrote is NaN."""

    def __init__(self, data: torch.Tensor) -> None:
        self.data = data

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.data.shape)

    def index(self, at: Any) -> Shared:
        return Shared(self.data[int(at)])

    def slice(self, start: Any, size: Any) -> Shared:
        return Shared(self.data[int(start) : int(start) + int(size)])

    def permute(self, order: Sequence[int]) -> Shared:
        return Shared(self.data.permute(*order))

    def load(self, layout: Any) -> Value:
        return Value(self.data.clone())

    def store(self, value: Value) -> None:
        assert value.dtype == self.data.dtype
        self.data.copy_(value.data)


class Barriers:
    """Barriers in shared memory."""

    def __init__(self, count: int) -> None:
        self.every: list[Barrier | None] = [None] * count
        self.pending: list[list[tuple[Shared, torch.Tensor]]] = [[] for _ in range(count)]
        self.lock = threading.Lock()

    def index(self, at: Any) -> tuple[Barriers, int]:
        return self, int(at)


class Sums(Value):
    """Accumulators: products are taken when they are waited for."""

    def __init__(self, data: torch.Tensor) -> None:
        super().__init__(data)
        self.left: list[tuple[Shared, Shared]] = []

    def take(self) -> None:
        a, b = self.left.pop(0)
        self.data = self.data + a.data.float() @ b.data.float()


class Machine:
    """Runs the kernels of an emitted file with so many programs, `together` of them at a time; if
    one at a time, the last one first."""

    def __init__(self, text: str, programs: int, together: int) -> None:
        self.programs, self.together = programs, together
        self.mine = threading.local()
        lines = text[text.index("@gluon.jit") :]
        self.names = names_beside(self._language()) | {
            "fence_async_shared": lambda: None,
            "mbarrier": SimpleNamespace(
                MBarrierLayout=lambda: "barriers",
                init=self._make_barrier,
                wait=self._wait,
                arrive=lambda barrier, count: self._step(barrier, int(count), 0),
                expect=lambda barrier, size: self._step(barrier, 1, int(size)),
            ),
            "tma": SimpleNamespace(
                async_copy_global_to_shared=self._begin_load,
                async_copy_shared_to_global=lambda desc, at, part: desc.write(at, part.data),
                store_wait=lambda pending: None,
            ),
            "warpgroup_mma": self._multiply,
            "warpgroup_mma_init": lambda sums: sums,
            "warpgroup_mma_wait": self._wait_for_products,
        }
        exec(lines, self.names)
        order = ("await_earlier", "admit_next", "fetch_ahead")
        self.names |= {name: lambda *_: None for name in order}
        self.counting = threading.Lock()

    def launch(self, name: str, args: Sequence[Any], seconds: float = 60.0) -> None:
        """Run a kernel; one that does not end is an error."""
        self.failed: list[BaseException] = []
        self.deadline = time.monotonic() + seconds
        room = threading.Semaphore(self.together)

        def program(number: int) -> None:
            with room:
                self.mine.number, self.mine.products = number, []
                self._guarded(self.names[name], args)

        threads = [threading.Thread(target=program, args=(i,)) for i in range(self.programs)]
        if self.together == 1:
            for thread in reversed(threads):
                self._all([thread])
        else:
            self._all(random.sample(threads, len(threads)))
        if self.failed:
            raise self.failed[0]

    def _guarded(self, function: Any, args: Sequence[Any]) -> None:
        try:
            function(*args)
        except BaseException as error:
            self.failed.append(error)
            self.deadline = 0.0

    def _all(self, threads: Sequence[threading.Thread]) -> None:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _specialise(self, roles: Sequence[Any], warps: Any, registers: Any) -> None:
        number = self.mine.number

        def role(function: Any, args: Sequence[Any]) -> None:
            self.mine.number, self.mine.products = number, []
            self._guarded(function, args)

        self._all([threading.Thread(target=role, args=one) for one in roles])

    # shared memory, barriers, copies, products ---------------------------------------------------
    def _count(self, at: Any, more: int, sem: str) -> Value:
        with self.counting:
            found = at.read()
            at.write(found + more)
            return found

    def _allocate(self, dtype: torch.dtype, shape: Sequence[Any], layout: Any) -> Any:
        sizes = tuple(map(int, shape))
        if layout == "barriers":
            return Barriers(sizes[0])
        return Shared(torch.full(sizes, float("nan"), dtype=dtype))

    def _make_barrier(self, barrier: tuple[Barriers, int], count: int) -> None:
        barriers, at = barrier
        barriers.every[at] = Barrier(count)

    def _of(self, barrier: tuple[Barriers, int]) -> Barrier:
        found = barrier[0].every[barrier[1]]
        assert found is not None
        return found

    def _step(self, barrier: tuple[Barriers, int], arrived: int, more: int) -> None:
        time.sleep(random.choice((0, 0, 0, 1e-4)))
        self._of(barrier).step(arrived, more)

    def _wait(self, barrier: tuple[Barriers, int], phase: Any) -> None:
        barriers, at = barrier
        one = self._of(barrier)
        while one.phase % 2 == int(phase):
            with barriers.lock:
                for place, data in barriers.pending[at]:
                    place.data.copy_(data)
                    one.step(0, -data.nbytes)
                barriers.pending[at] = []
            with one.changed:
                if one.phase % 2 == int(phase):
                    one.changed.wait(0.002)
            assert time.monotonic() < self.deadline, "a barrier that nobody passes"

    def _begin_load(
        self, desc: Descriptor, at: Sequence[Any], barrier: tuple[Barriers, int], place: Shared
    ) -> None:
        place.data.fill_(float("nan"))  # what is under way
        barriers, number = barrier
        with barriers.lock:
            barriers.pending[number].append((place, desc.read(at)))

    def _multiply(
        self, a: Shared, b: Shared, sums: Value, use_acc: bool = True, is_async: bool = False
    ) -> Sums:
        assert is_async
        made = sums if isinstance(sums, Sums) else Sums(sums.data)
        if not use_acc:
            made = Sums(torch.zeros_like(sums.data))
        made.left.append((a, b))
        self.mine.products.append(made)
        return made

    def _wait_for_products(self, pending: int, deps: tuple[Any, ...]) -> Any:
        while len(self.mine.products) > pending:
            self.mine.products.pop(0).take()
        return deps[0] if len(deps) == 1 else deps

    def _language(self) -> Any:
        names: dict[str, Any] = {
            name: lambda *_: None
            for name in (
                "BlockedLayout",
                "SliceLayout",
                "NVMMADistributedLayout",
                "DotOperandLayout",
            )
        }
        return SimpleNamespace(
            constexpr=int,
            num_programs=lambda axis: self.programs,
            program_id=lambda axis: Value(self.mine.number),
            allocate_shared_memory=self._allocate,
            warp_specialize=self._specialise,
            thread_barrier=lambda: None,
            load=lambda at, mask=None, other=0.0, cache_modifier="": at.read(mask, other),
            atomic_add=self._count,
            store=lambda at, value, mask=None: at.write(value, mask),
            **names,
            **functions(),
        )
