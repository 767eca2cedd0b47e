"""A prepared call: buffers to allocate and kernels to launch, for one layout of the arguments.

Everything that can be decided from shapes, strides, dtypes and alignment is decided by
`Engine.recipe`; `Recipe.run` then only allocates, fills in pointers and launches.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fusedsl.runtime import driver
from fusedsl.runtime.device import stream_getter
from fusedsl.runtime.launch import Grid, Kernel, describe, hooked

#: Distance in bytes that buffers of a workspace start apart, as torch's allocator has it.
APART = 512


@dataclass(frozen=True)
class Buffer:
    """A tensor to allocate on every call; `row_stride` elements lie between its rows. `zero`: a
    kernel starts from zeros in it."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    row_stride: int = 0
    zero: bool = False

    @property
    def stored(self) -> tuple[int, ...]:
        """Its shape with the padding of rows."""
        padded = len(self.shape) == 2 and self.row_stride > self.shape[-1] and self.shape[0] > 1
        return (self.shape[0], self.row_stride) if padded else self.shape

    def allocate(self, device: torch.device) -> Tensor:
        """A new tensor."""
        made = torch.empty(self.stored, dtype=self.dtype, device=device)
        return made if self.stored == self.shape else made[:, : self.shape[-1]]


@dataclass(frozen=True)
class Copy:
    """A given tensor that kernels need otherwise: contiguous, or with `row_stride` elements
    between its rows."""

    slot: int
    row_stride: int = 0

    def of(self, tensor: Tensor) -> Tensor:
        """The copy."""
        if not self.row_stride:
            return tensor.contiguous()
        shape = (tensor.shape[0], self.row_stride)
        made = torch.empty(shape, dtype=tensor.dtype, device=tensor.device)
        return made[:, : tensor.shape[1]].copy_(tensor)


@dataclass(frozen=True)
class Descriptor:
    """A descriptor argument. `fixed` is the ready one for a value that never moves."""

    position: int
    slot: int
    fields: dict[str, Any]
    fixed: Any = None

    def of(self, tensors: Sequence[Tensor]) -> Any:
        """The descriptor for this call's tensors."""
        return self.fixed or describe(tensors[self.slot], self.fields)


@dataclass(eq=False)
class Launch:
    """One launch: the kernel, its grid, and where its run-time arguments come from."""

    kernel: Kernel
    grid: Grid
    template: list[Any]
    pointers: tuple[tuple[int, int], ...]
    descriptors: tuple[Descriptor, ...]
    _driven: list[_Driven] = field(default_factory=list["_Driven"])

    def numbers(self) -> list[Any]:
        """What is known of the arguments: numbers, and the fields of descriptors."""
        args = self.template.copy()
        for descriptor in self.descriptors:
            args[descriptor.position] = descriptor.fields
        return args

    def arguments(self, pointed: Sequence[Any], tensors: Sequence[Tensor]) -> list[Any]:
        """The arguments; `pointed` is what goes where the kernel takes a pointer."""
        args = self.template.copy()
        for position, slot in self.pointers:
            args[position] = pointed[slot]
        for descriptor in self.descriptors:
            args[descriptor.position] = descriptor.of(tensors)
        return args

    def run(self, pointers: Sequence[int], tensors: Sequence[Tensor], stream: int) -> None:
        """Launch directly, or through Triton where that is not possible.

        A binary from the cache has no launcher of Triton's: it goes straight to the driver.
        """
        kernel = self.kernel
        if kernel.direct is None and kernel.binary is not None:
            try:
                driven = self._driven.pop()
            except IndexError:
                driven = _Driven(self, kernel.binary, len(pointers))
            try:
                driven.launch(pointers, stream)
            finally:
                self._driven.append(driven)
            return
        if kernel.direct is None:
            kernel.launch_slowly(self.grid, self.arguments(tensors, tensors))
            return
        args = self.arguments(pointers, tensors)
        if kernel.proven:
            kernel.launch(self.grid, stream, args)
            return
        try:
            kernel.launch(self.grid, stream, args)
            kernel.proven = True
        except TypeError:  # a launcher with another argument list: nothing was launched
            kernel.direct = None
            kernel.launch_slowly(self.grid, self.arguments(tensors, tensors))


class _Driven:
    """The packed parameters of one launch, in use by one call at a time."""

    def __init__(self, launch: Launch, binary: driver.Binary, slots: int):
        self._addresses = (ctypes.c_uint64 * slots)()
        self._packed = driver.Packed(
            binary, launch.grid, 0, launch.numbers(), dict(launch.pointers), self._addresses
        )
        self._layouts = binary.layouts
        self._descriptors = launch.descriptors
        self._at: dict[int, int] = {}

    def launch(self, pointers: Sequence[int], stream: int) -> None:
        """Launch on a stream of the current device, on the tensors at these addresses."""
        driver.enter(torch.cuda.current_device())
        self._addresses[:] = pointers
        for descriptor in self._descriptors:
            position, pointer = descriptor.position, pointers[descriptor.slot]
            if self._at.get(position) != pointer:
                shape, strides = descriptor.fields["shape"], descriptor.fields["strides"]
                made = driver.encode(pointer, self._layouts[position], shape, strides)
                self._packed.hold(self._packed.maps[position], made)
                self._at[position] = pointer
        self._packed.on(stream)
        driver.check(driver.launcher()(*self._packed.call, None), "cuLaunchKernelEx")


@dataclass(eq=False)
class Recipe:
    """A prepared call.

    Slots: the tensors given, then `static` (bound values), then `buffers`. `copies` are given
    tensors that kernels cannot read as they lie. `outputs` are slots in the order of the signature,
    with whether the value must be copied because it outlives the call. `prepared` is the fast way
    to run it again, once it has run.
    """

    device: torch.device
    static: tuple[Tensor, ...]
    buffers: tuple[Buffer, ...]
    copies: tuple[Copy, ...]
    launches: tuple[Launch, ...]
    outputs: tuple[tuple[int, bool], ...]
    kernels: tuple[str, ...] = ()
    main_loops: tuple[str, ...] = ()
    given: int = 0
    prepared: Any = None

    def place(self, given: Sequence[Tensor]) -> list[Tensor]:
        """The tensors that kernels read: given ones, copied where they must be, and bound ones."""
        tensors = [*given, *self.static]
        for copy in self.copies:
            tensors[copy.slot] = copy.of(tensors[copy.slot])
        return tensors

    def run(self, given: Sequence[Tensor], *, poison: bool = False) -> tuple[Tensor, ...]:
        """Allocate, launch on the current stream of the tensors' device, give the outputs.

        With `poison` every buffer holds NaN before the first launch.
        """
        here = self.device.type == "cuda" and self.device.index == torch.cuda.current_device()
        tensors = self.place(given)
        device = self.device
        for buffer in self.buffers:
            tensors.append(buffer.allocate(device))
        if poison:
            for tensor in tensors[len(tensors) - len(self.buffers) :]:
                tensor.fill_(float("nan") if tensor.is_floating_point() else -1)
        for slot, buffer in enumerate(self.buffers, len(tensors) - len(self.buffers)):
            if buffer.zero:
                tensors[slot].zero_()
        if device.type == "cuda" and not here:
            with torch.cuda.device(device):
                self._launch(tensors)
        else:
            self._launch(tensors)
        return tuple(tensors[s].clone() if copy else tensors[s] for s, copy in self.outputs)

    def _launch(self, tensors: list[Tensor]) -> None:
        if self.device.type != "cuda" or hooked():
            for launch in self.launches:
                launch.kernel.launch_slowly(launch.grid, launch.arguments(tensors, tensors))
            return
        stream = stream_getter()(self.device.index)
        pointers = [tensor.data_ptr() for tensor in tensors]
        for launch in self.launches:
            launch.run(pointers, tensors, stream)


@dataclass(eq=False)
class EmptyRecipe:
    """A call with a zero-sized tensor: nothing is launched.

    Outputs without elements are allocated; others (a contraction over nothing) come from the
    reference evaluation `compute`.
    """

    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[torch.dtype, ...]
    device: torch.device
    compute: Any
    kernels: tuple[str, ...] = ()
    main_loops: tuple[str, ...] = ()
    prepared: None = None

    def run(self, given: Sequence[Tensor], *, poison: bool = False) -> tuple[Tensor, ...]:
        """The outputs; `poison` has nothing to poison."""
        if all(0 in shape for shape in self.shapes):
            return tuple(
                torch.empty(shape, dtype=dtype, device=self.device)
                for shape, dtype in zip(self.shapes, self.dtypes, strict=True)
            )
        return self.compute(given)
