"""A prepared call: buffers to allocate and kernels to launch, for one layout of the arguments.

Everything that can be decided from shapes, strides, dtypes and alignment is decided by
`Engine.recipe`; `Recipe.run` then only allocates, fills in pointers and launches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from fusedsl.runtime.device import stream_getter
from fusedsl.runtime.launch import Grid, Kernel, describe, hooked

#: Encoded tensor maps kept per launch; an encoding costs about 2 µs.
_MAPS = 64
#: Distance in bytes that buffers of a workspace start apart, as torch's allocator has it.
_APART = 512


@dataclass(frozen=True)
class Buffer:
    """A tensor to allocate on every call."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype


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


@dataclass(frozen=True)
class _Address:
    """What Triton asks of a descriptor's base."""

    pointer: int

    def data_ptr(self) -> int:
        """The address."""
        return self.pointer


@dataclass(eq=False)
class Launch:
    """One launch: the kernel, its grid, and where its run-time arguments come from."""

    kernel: Kernel
    grid: Grid
    template: list[Any]
    pointers: tuple[tuple[int, int], ...]
    descriptors: tuple[Descriptor, ...]
    _maps: dict[tuple[int, int], list[Any]] = field(
        default_factory=dict[tuple[int, int], list[Any]]
    )

    @cached_property
    def _fixed(self) -> tuple[Any, ...]:
        raw = self.kernel.raw
        assert raw is not None
        return (raw.cooperative, raw.pdl, None, None, self.kernel.metadata, None, None, None)

    def _expanded(self, pointers: Sequence[int]) -> list[Any]:
        """The C launcher's arguments. A tensor map depends on its address alone here, so each is
        encoded once; an allocator gives the same addresses again."""
        raw = self.kernel.raw
        assert raw is not None
        args = self.template.copy()
        for position, slot in self.pointers:
            args[position] = pointers[slot]
        for number in range(len(self.descriptors) - 1, -1, -1):  # from the back: lists grow
            descriptor = self.descriptors[number]
            key = (number, pointers[descriptor.slot])
            piece = self._maps.get(key)
            if piece is None:
                if len(self._maps) >= _MAPS:
                    self._maps.clear()
                described = describe(_Address(key[1]), descriptor.fields)
                piece = self._maps[key] = raw.expanded(described, number)
            args[descriptor.position : descriptor.position + 1] = piece
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
        """Launch directly, or through Triton where that is not possible."""
        kernel = self.kernel
        if kernel.raw is not None and kernel.proven:
            kernel.raw.call(
                *self.grid,
                stream,
                kernel.function,
                *self._fixed,
                *self._expanded(pointers),
            )
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


@dataclass(eq=False)
class Recipe:
    """A prepared call.

    Slots: the tensors given, then `static` (bound values), then `buffers`. `copies` are given
    tensors that kernels need contiguous. `outputs` are slots in the order of the signature, with
    whether the value must be copied because it outlives the call.
    """

    device: torch.device
    static: tuple[Tensor, ...]
    buffers: tuple[Buffer, ...]
    copies: tuple[int, ...]
    launches: tuple[Launch, ...]
    outputs: tuple[tuple[int, bool], ...]
    kernels: tuple[str, ...] = ()
    main_loops: tuple[str, ...] = ()
    given: int = 0
    proven: bool = False

    @cached_property
    def _slots(self) -> tuple[list[tuple[Buffer, int | None]], int]:
        """Each buffer with its offset in the call's one workspace (None: an output, which stands
        alone), and the workspace's bytes."""
        first = len(self.static) + self.given
        kept = {slot - first for slot, _ in self.outputs}
        table: list[tuple[Buffer, int | None]] = []
        size = 0
        for index, buffer in enumerate(self.buffers):
            table.append((buffer, None if index in kept else size))
            if index not in kept:
                bytes = math.prod(buffer.shape) * buffer.dtype.itemsize
                size += -(-bytes // _APART) * _APART
        return table, size

    @property
    def _can_run_fast(self) -> bool:
        """Whether every launch goes straight to the C launcher."""
        if not self.proven:
            lasting = any(copy for _, copy in self.outputs)
            ready = all(x.kernel.raw is not None and x.kernel.proven for x in self.launches)
            self.proven = ready and not lasting and not self.copies
        return self.proven

    def _run_fast(self, given: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """`run` with addresses alone: one allocation for all that does not leave the call."""
        table, size = self._slots
        device = self.device
        pointers = [t.data_ptr() for t in given]
        pointers += [t.data_ptr() for t in self.static]
        results: dict[int, Tensor] = {}
        workspace = torch.empty(size, dtype=torch.uint8, device=device) if size else None
        base = 0 if workspace is None else workspace.data_ptr()
        for buffer, offset in table:
            if offset is not None:
                pointers.append(base + offset)
                continue
            made = torch.empty(buffer.shape, dtype=buffer.dtype, device=device)
            results[len(pointers)] = made
            pointers.append(made.data_ptr())
        stream = stream_getter()(device.index)
        for launch in self.launches:
            launch.run(pointers, (), stream)
        return tuple(results[slot] for slot, _ in self.outputs)

    def run(self, given: Sequence[Tensor], *, poison: bool = False) -> tuple[Tensor, ...]:
        """Allocate, launch on the current stream of the tensors' device, give the outputs.

        With `poison` every buffer holds NaN before the first launch.
        """
        here = self.device.type == "cuda" and self.device.index == torch.cuda.current_device()
        if here and not poison and self._can_run_fast and not hooked():
            return self._run_fast(given)
        tensors = [*given, *self.static]
        for slot in self.copies:
            tensors[slot] = tensors[slot].contiguous()
        device = self.device
        for buffer in self.buffers:
            tensors.append(torch.empty(buffer.shape, dtype=buffer.dtype, device=device))
        if poison:
            for tensor in tensors[len(tensors) - len(self.buffers) :]:
                tensor.fill_(float("nan") if tensor.is_floating_point() else -1)
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

    def run(self, given: Sequence[Tensor], *, poison: bool = False) -> tuple[Tensor, ...]:
        """The outputs; `poison` has nothing to poison."""
        if all(0 in shape for shape in self.shapes):
            return tuple(
                torch.empty(shape, dtype=dtype, device=self.device)
                for shape, dtype in zip(self.shapes, self.dtypes, strict=True)
            )
        return self.compute(given)
