"""A call that has run before: a guard, one allocation per output, one driver call per kernel.

`Prepared.of` freezes everything about a `Recipe` that its layouts decide: grids, sizes, strides,
offsets in the workspace, the packed parameters of every launch. The call itself is written out for
the numbers of its tensors and launches (`written`). What a call still does is compare
its tensors against the layouts, allocate its outputs, write the pointers that have changed since
the last call, and launch. It gives None where anything is not as it was: the caller then takes the
long way, which checks, says what is wrong, and prepares anew.

Calls may come from several threads, and on several streams. Packed parameters and the workspace
belong to a *lane*: a call takes one that no other call is using, for its stream, and gives it back
when its kernels are enqueued. The next call on that stream may then overwrite the workspace, since
its kernels run after. A capture takes no lane: its graph may run beside anything, at any time.
"""

from __future__ import annotations

import ctypes
import functools
import math
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from triton import knobs

from fusedsl import settings
from fusedsl.runtime import driver, replay
from fusedsl.runtime.binding import Binding, version_of
from fusedsl.runtime.device import (
    capturing_getter,
    device_getter,
    dynamo_guards,
    stream_getter,
)
from fusedsl.runtime.launch import hooked
from fusedsl.runtime.recipe import APART, Descriptor, Recipe
from fusedsl.runtime.replay import Graphs
from fusedsl.runtime.written import code, hooks, same_layouts

#: A prepared call.
Call = Callable[[Binding, Sequence[Any]], tuple[Tensor, ...] | None]

#: Bytes of a lane's own workspace. A call that needs more allocates it: its kernels are long enough
#: to hide that.
LANE_BYTES = 1 << 20

#: Encoded tensor maps kept per descriptor; an encoding costs about 2 µs.
_MAPS = 64


class Lane:
    """A stream's workspace, in use by one call at a time."""

    def __init__(self, stream: int, device: torch.device):
        self.stream = stream
        self._block = torch.empty(LANE_BYTES, dtype=torch.uint8, device=device)
        self.base = self._block.data_ptr()


@functools.cache
def lanes_of(index: int) -> dict[int, list[Lane]]:
    """A device's free lanes, by stream. As many as calls were ever enqueued at once."""
    return {}


@functools.cache
def allocator() -> Callable[..., Tensor]:
    """`(shape, strides, dtype) -> tensor` on the current device, by the cheapest way torch has."""
    made = getattr(dynamo_guards(), "_empty_strided_cuda", None)
    if made is not None:
        return made

    def allocate(shape: Any, strides: Any, dtype: torch.dtype) -> Tensor:
        return torch.empty_strided(shape, strides, dtype=dtype, device="cuda")

    return allocate


class _Described:
    """A descriptor of one launch, whose tensor map depends on an address alone."""

    def __init__(self, launch: int, descriptor: Descriptor, layout: Any, context: int):
        self.launch, self.position = launch, descriptor.position
        self._layout, self._fields, self._context = layout, descriptor.fields, context
        self._known: dict[int, driver.TensorMap] = {}

    def at(self, pointer: int) -> driver.TensorMap:
        """The tensor map for that address; an allocator gives the same addresses again."""
        made = self._known.get(pointer)
        if made is None:
            if len(self._known) >= _MAPS:
                self._known.clear()
            fields = self._fields
            driver.ensure(self._context)
            made = driver.encode(pointer, self._layout, fields["shape"], fields["strides"])
            self._known[pointer] = made
        return made


class _Packed:
    """A prepared call's parameters, packed for one lane."""

    def __init__(self, prepared: Prepared, lane: Lane):
        recipe = prepared.recipe
        slots = recipe.given + len(recipe.static) + len(recipe.buffers)
        self._addresses = (ctypes.c_uint64 * slots)()
        self._launches = [
            driver.Packed(
                launch.kernel.binary,
                launch.grid,
                lane.stream,
                launch.numbers(),
                dict(launch.pointers),
                self._addresses,
            )
            for launch in recipe.launches
            if launch.kernel.binary is not None
        ]
        self._maps: list[list[Any]] = [[] for _ in range(slots)]
        for slot, described in prepared.described:
            packed = self._launches[described.launch]
            index = packed.maps[described.position]
            self._maps[slot].append((described, packed, index))
        self.calls = tuple(launch.call for launch in self._launches)
        self._slots = prepared.slots
        self.graphs = Graphs(self._launches, lane.stream)
        self.seen: tuple[int, ...] = ()
        self.base = 0
        for slot, tensor in enumerate(recipe.static, recipe.given):
            self.set(slot, tensor.data_ptr())

    def set(self, slot: int, pointer: int) -> None:
        """From now on the slot's tensor lies there."""
        self._addresses[slot] = pointer
        for described, packed, index in self._maps[slot]:
            packed.hold(index, described.at(pointer))

    def move(self, pointers: tuple[int, ...]) -> None:
        """From now on the tensors of a call lie there; those that have not moved cost nothing."""
        seen = self.seen
        self.seen = ()  # in case of a failure half way
        for number, slot in enumerate(self._slots):
            if not seen or seen[number] != pointers[number]:
                self.set(slot, pointers[number])
        self.seen = pointers


class Prepared:
    """See the module's docstring. `call` is `(binding, tensors) -> outputs`, None where the call is
    not the one prepared."""

    def __init__(self, recipe: Recipe, binding: Binding, tensors: Sequence[Tensor]):
        self.recipe = recipe
        self._device = recipe.device
        self._lanes = lanes_of(recipe.device.index)
        self._packed: dict[Lane, _Packed] = {}
        first = recipe.given + len(recipe.static)
        kept = [slot for slot, _ in recipe.outputs]
        self._outputs = tuple(_fresh(recipe.buffers[slot - first]) for slot in kept)
        #: The slots whose pointers a call brings, in its order.
        self.slots = (*range(recipe.given), *kept)
        self._workspace, self._bytes = _workspace(recipe, first, frozenset(kept))
        self._context = driver.context()
        self.described = tuple(
            (d.slot, _Described(number, d, launch.kernel.binary.layouts[d.position], self._context))
            for number, launch in enumerate(recipe.launches)
            for d in launch.descriptors
            if launch.kernel.binary is not None
        )
        self.call: Call = _refuse
        self._binding_epoch = binding.epoch

    @staticmethod
    def of(
        recipe: Recipe, binding: Binding, tensors: Sequence[Tensor], held: Sequence[int] = ()
    ) -> Prepared | None:
        """Prepare a recipe that has run on such tensors, or None where it cannot be launched so.

        The tensors of `held` must stay the same objects, unchanged; they are held weakly.
        """
        known = all(launch.kernel.binary is not None for launch in recipe.launches)
        fresh = recipe.given + len(recipe.static)
        stays = any(copy or slot < fresh for slot, copy in recipe.outputs)
        zeros = any(buffer.zero for buffer in recipe.buffers)  # filled on every call
        if not known or not recipe.launches or stays or recipe.copies or zeros:
            return None
        versions = {index: version_of(tensors[index]) for index in held}
        if any(version < 0 for version in versions.values()):
            return None
        made = Prepared(recipe, binding, tensors)
        made.call = made._written(tensors, versions)
        return made

    def lane(self, stream: int) -> Lane:
        """A lane of a stream where none is free."""
        self._lanes.setdefault(stream, [])
        return Lane(stream, self._device)

    def packed(self, lane: Lane) -> _Packed:
        """The parameters for a lane that this call has not used yet."""
        made = self._packed[lane] = _Packed(self, lane)
        self.place(made, lane.base)
        return made

    def place(self, packed: _Packed, base: int) -> None:
        """From now on the workspace begins there."""
        for slot, offset in self._workspace:
            packed.set(slot, base + offset)
        packed.base = base

    def again(self, status: int, config: Any, function: Any, parameters: Any) -> None:
        """A thread's first work on a device finds no context: make it current and launch."""
        if status == driver.NO_CONTEXT:
            driver.ensure(self._context)
            status = driver.launcher()(config, function, parameters, None)  # nothing was launched
        driver.check(status, "cuLaunchKernelEx")

    def replay_again(self, status: int, graph: Any, stream: Any) -> None:
        """The same for a graph."""
        if status == driver.NO_CONTEXT:
            driver.ensure(self._context)
            status = replay.launcher()(graph, stream)
        driver.check(status, "cuGraphLaunch")

    def _written(self, tensors: Sequence[Tensor], versions: Mapping[int, int]) -> Call:
        """`call`, written out for this many tensors, outputs and launches."""
        names: dict[str, Any] = {
            "again": self.again,
            "allocate": allocator(),
            "capturing": capturing_getter(),
            "current": device_getter(),
            "epoch": self._binding_epoch,
            "graded": torch.is_grad_enabled,
            "hooked": hooked,
            "index": self._device.index,
            "lane_of": self.lane,
            "lanes": self._lanes,
            "launch": driver.launcher(),
            "packed_for": self.packed,
            "packed_of": self._packed,
            "place": self.place,
            "runtime": knobs.runtime,
            "same": same_layouts(tensors),
            "size": self._bytes,
            "stream_of": stream_getter(),
            "uint8": torch.uint8,
        }
        names["enter"], names["leave"] = hooks()
        for i, t in enumerate(tensors):
            names |= {f"shape{i}": t.shape, f"stride{i}": t.stride(), f"dtype{i}": t.dtype}
            names |= {f"device{i}": t.device, f"phase{i}": t.data_ptr() & 15}
        for i, version in versions.items():
            names |= {f"held{i}": weakref.ref(tensors[i]), f"version{i}": version}
            names |= {f"place{i}": tensors[i].data_ptr()}
        for i, (shape, strides, dtype) in enumerate(self._outputs):
            names |= {f"new_shape{i}": shape, f"new_strides{i}": strides, f"new_dtype{i}": dtype}
        large, launches = self._bytes > LANE_BYTES, len(self.recipe.launches)
        replayed = settings.current().replay and launches > 1 and not large and replay.usable()
        if replayed:
            names |= {"replay": replay.launcher(), "replay_again": self.replay_again}
        outputs, held = len(self._outputs), tuple(versions)
        exec(code(len(tensors), held, outputs, launches, large, replayed), names)
        return names["call"]


def _refuse(binding: Binding, tensors: Sequence[Any]) -> None:
    """Stands where nothing has been written yet."""


def _fresh(buffer: Any) -> tuple[tuple[int, ...], tuple[int, ...], torch.dtype]:
    """What `allocator` takes for a contiguous buffer."""
    strides = [math.prod(buffer.shape[axis + 1 :]) for axis in range(len(buffer.shape))]
    return tuple(buffer.shape), tuple(strides), buffer.dtype


def _workspace(
    recipe: Recipe, first: int, kept: frozenset[int]
) -> tuple[tuple[tuple[int, int], ...], int]:
    """The slots that do not leave the call, each with its offset in bytes, and the whole size."""
    offsets: list[tuple[int, int]] = []
    size = 0
    for slot, buffer in enumerate(recipe.buffers, first):
        if slot not in kept:
            offsets.append((slot, size))
            size += -(-math.prod(buffer.stored) * buffer.dtype.itemsize // APART) * APART
    return tuple(offsets), size
