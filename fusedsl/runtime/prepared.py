"""A call that has run before: a guard, one allocation per output, one driver call per kernel.

`Prepared.of` freezes everything about a `Recipe` that its layouts decide: grids, sizes, strides,
offsets in the workspace, the packed parameters of every launch. What a call still does is compare
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
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from fusedsl.runtime import driver
from fusedsl.runtime.binding import Binding, version_of
from fusedsl.runtime.device import capturing_getter, device_getter, stream_getter
from fusedsl.runtime.launch import hooked
from fusedsl.runtime.recipe import APART, Descriptor, Recipe

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
    guards = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
    made = getattr(guards, "_empty_strided_cuda", None)
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
        self.seen: list[int] = []
        self.base = 0
        for slot, tensor in enumerate(recipe.static, recipe.given):
            self.set(slot, tensor.data_ptr())

    def set(self, slot: int, pointer: int) -> None:
        """From now on the slot's tensor lies there."""
        self._addresses[slot] = pointer
        for described, packed, index in self._maps[slot]:
            packed.hold(index, described.at(pointer))


class Prepared:
    """See the module's docstring."""

    def __init__(self, recipe: Recipe, binding: Binding, tensors: Sequence[Tensor]):
        self.recipe = recipe
        self._epoch = binding.epoch
        self._device = recipe.device
        self._index: int = recipe.device.index
        self._lanes = lanes_of(self._index)
        self._packed: dict[Lane, _Packed] = {}
        self._layouts = tuple(
            (t.shape, t.stride(), t.dtype, t.device, t.data_ptr() & 15) for t in tensors
        )
        first = recipe.given + len(recipe.static)
        kept = [slot for slot, _ in recipe.outputs]
        self._outputs = tuple(_fresh(recipe.buffers[slot - first]) for slot in kept)
        self._slots = (*range(recipe.given), *kept)
        self._workspace, self._bytes = _workspace(recipe, first, frozenset(kept))
        self._held: tuple[tuple[int, Any, int, int], ...] = ()
        self._context = driver.context()
        self.described = tuple(
            (d.slot, _Described(number, d, launch.kernel.binary.layouts[d.position], self._context))
            for number, launch in enumerate(recipe.launches)
            for d in launch.descriptors
            if launch.kernel.binary is not None
        )
        self._host = (device_getter(), stream_getter(), capturing_getter(), torch.is_grad_enabled)
        self._allocate, self._launch = allocator(), driver.launcher()

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
        made = Prepared(recipe, binding, tensors)
        made._held = tuple(
            (i, weakref.ref(tensors[i]), tensors[i].data_ptr(), version_of(tensors[i]))
            for i in held
        )
        return None if any(version < 0 for *_, version in made._held) else made

    def __call__(self, binding: Binding, tensors: Sequence[Any]) -> tuple[Tensor, ...] | None:
        """The outputs, or None where the call is not the one prepared."""
        current, stream_of, capturing, graded = self._host
        grad = graded()
        try:
            pointers: list[int] = []
            for tensor, (shape, stride, dtype, device, phase) in zip(
                tensors, self._layouts, strict=True
            ):
                pointer = tensor.data_ptr()
                if (
                    tensor.shape != shape
                    or tensor.stride() != stride
                    or tensor.dtype is not dtype
                    or tensor.device != device
                    or pointer & 15 != phase
                    or (grad and tensor.requires_grad)
                ):
                    return None
                pointers.append(pointer)
            for index, same, pointer, version in self._held:
                tensor = tensors[index]
                if same() is not tensor or pointers[index] != pointer or tensor._version != version:
                    return None
            for weight, pointer, version in binding.watched:
                if weight.data_ptr() != pointer or (version >= 0 and weight._version != version):
                    return None
        except (AttributeError, RuntimeError, TypeError, ValueError):  # said on the long way
            return None
        if self._epoch is not binding.epoch or (grad and binding.graded):
            return None
        if current() != self._index or hooked():
            return None
        stream = stream_of(self._index)
        if stream and capturing():  # the legacy stream, 0, cannot be captured
            return None
        if stream not in binding.ordered:
            binding.wait(stream)
        return self._run(pointers, stream)

    def _run(self, pointers: list[int], stream: int) -> tuple[Tensor, ...]:
        try:
            lane = self._lanes[stream].pop()
        except (KeyError, IndexError):
            lane = Lane(stream, self._device)
            self._lanes.setdefault(stream, [])
        try:
            packed = self._packed.get(lane)
            if packed is None:
                packed = self._packed[lane] = _Packed(self, lane)
            base, size = lane.base, self._bytes
            if size > LANE_BYTES:
                workspace = self._allocate((size,), (1,), torch.uint8)
                base = workspace.data_ptr()
            if packed.base != base:
                for slot, offset in self._workspace:
                    packed.set(slot, base + offset)
                packed.base = base
            allocate = self._allocate
            outputs = [allocate(*kind) for kind in self._outputs]
            for output in outputs:
                pointers.append(output.data_ptr())
            seen = packed.seen
            if seen != pointers:
                for number, slot in enumerate(self._slots):
                    if not seen or seen[number] != pointers[number]:
                        packed.set(slot, pointers[number])
                packed.seen = pointers
            launch = self._launch
            for config, function, parameters in packed.calls:
                status = launch(config, function, parameters, None)
                if status:
                    self._again(status, config, function, parameters)
        finally:
            self._lanes[stream].append(lane)
        return tuple(outputs)

    def _again(self, status: int, config: int, function: int, parameters: int) -> None:
        """A thread's first work on a device finds no context: make it current and launch."""
        if status == driver.NO_CONTEXT:
            driver.ensure(self._context)
            status = self._launch(config, function, parameters, None)  # nothing was launched before
        driver.check(status, "cuLaunchKernelEx")


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
