"""One call being prepared: where its values lie, how its kernels are tiled, what is launched."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fusedsl.codegen import (
    ALIGNMENT,
    COMPILE_TIME_ROLES,
    COUNTERS,
    Arg,
    KernelSource,
    column_tiles,
    compile_time_value,
    parts,
    words,
    words_of,
)
from fusedsl.fuse import KernelPlan, anchor_operands
from fusedsl.ir import Kind, Layout
from fusedsl.runtime.binding import (
    Binding,
    needs_copy,
    needs_padding,
    padded_stride,
    streamed_names,
)
from fusedsl.runtime.device import target_of
from fusedsl.runtime.gluon import layout_of
from fusedsl.runtime.launch import (
    Grid,
    Kernel,
    Wanted,
    describe,
    int_class,
    kernels_for,
)
from fusedsl.runtime.recipe import Buffer, Copy, Descriptor, Launch, Recipe
from fusedsl.schedule import TileConfig, is_shared, usable_loop

if TYPE_CHECKING:
    from fusedsl.runtime.engine import Engine

#: Gives the kernels that are wanted on a device, in order.
Compile = Callable[[Sequence[Wanted], torch.device], list[Kernel]]

#: Rows from which a weight given per call is copied into rows that tensor maps can express.
_PADDING_ROWS = 128


@dataclass(frozen=True)
class Value:
    """A stored value as one call lays it out: strides in elements, the last one 1."""

    slot: int
    shape: tuple[int, ...]
    row_stride: int
    item: int
    aligned: bool


@dataclass(frozen=True)
class _Request:
    """A launch whose kernel may have to be compiled first; see `Launch`."""

    wanted: Wanted
    grid: Grid
    template: list[Any]
    pointers: tuple[tuple[int, int], ...]
    descriptors: tuple[Descriptor, ...]


class Preparation:
    """One call being prepared."""

    def __init__(
        self,
        engine: Engine,
        binding: Binding,
        names: Sequence[str],
        given: Sequence[Tensor],
        env: dict[str, int],
        device: torch.device,
    ):
        self.engine = engine
        self.plan = engine.plan
        self.env = dict(env)
        self.device = device
        self.target = target_of(device)
        self.names = list(names)
        self.given = given
        self.frozen = binding.frozen
        self.static = [n for n in binding.values if n not in self.names]
        self.static_tensors = tuple(binding.values[n] for n in self.static)
        self.configs: dict[str, TileConfig] = {}
        self.loops: dict[str, str] = {}
        self.values: dict[str, Value] = {}
        self.buffers: list[Buffer] = []
        self.copies: list[Copy] = []
        self.streamed = streamed_names(engine.plan)
        self.overrides: Mapping[str, TileConfig] = {}
        self.compile: Compile = kernels_for

    def recipe(self) -> Recipe:
        """The prepared call.

        Raises FusedslError: F0601 and F0603 where a kernel cannot be built, F0606 in a capture.
        """
        self._place_inputs()
        for kernel in self.plan.kernels:
            self._schedule(kernel)
            self._place_outputs(kernel)
        tensors = self._example_tensors()
        requests = [self._request(kernel, tensors) for kernel in self.plan.kernels]
        compiled = self.compile([request.wanted for request in requests], self.device)
        launches = tuple(
            Launch(kernel, _fitting(kernel, r), r.template, r.pointers, r.descriptors)
            for kernel, r in zip(compiled, requests, strict=True)
        )
        outputs: list[tuple[int, bool]] = []
        for name in self.plan.graph.outputs:
            slot = self.values[name].slot
            lasting = slot < len(self.given) + len(self.static)
            outputs.append((slot, lasting or any(slot == s for s, _ in outputs)))
        return Recipe(
            self.device,
            self.static_tensors,
            tuple(self.buffers),
            tuple(self.copies),
            launches,
            tuple(outputs),
            tuple(k.name for k in self.plan.kernels),
            tuple(self.loops[k.name] for k in self.plan.kernels),
            len(self.given),
        )

    def fits(self) -> bool:
        """Whether specialised kernels can move their tiles: tensor maps express all of them, and
        the rows that clusters share are of whole 16 bytes."""
        self._place_inputs()
        kernels = [k for k in self.plan.kernels if k.specialised]
        args = [a for k in kernels for a in self.engine.emitted("specialised").kernel(k.name).args]
        copied = {n for k in kernels if k.cluster for n in self.plan.tiles_read(k)}
        return all(
            self._describable(arg)
            for arg in args
            if arg.role == "descriptor" or (arg.role == "pointer" and arg.value in copied)
        )

    # where values lie ------------------------------------------------------------------------
    def _place_inputs(self) -> None:
        types = self.plan.graph.types
        tensors = [*self.given, *self.static_tensors]
        names = [*self.names, *self.static]
        for slot, (name, tensor) in enumerate(zip(names, tensors, strict=True)):
            if name in types and types[name].is_index_vector:
                tensor = tensor.unsqueeze(-1)
            shape, item = tuple(tensor.shape), tensor.element_size()
            if self._is_padded(name, tensor):
                stride = padded_stride(shape[-1], item)
                self.copies.append(Copy(slot, stride))
                self.values[name] = Value(slot, shape, stride, item, True)
            elif name in types and needs_copy(types[name].layout, tensor):
                self.copies.append(Copy(slot))
                self.values[name] = Value(slot, shape, _row_stride(shape, shape[-1]), item, True)
            else:
                self.values[name] = _value_of(slot, tensor)

    def _is_copied(self, slot: int) -> bool:
        return any(copy.slot == slot for copy in self.copies)

    def _is_padded(self, name: str, tensor: Tensor) -> bool:
        """Whether an operand is copied into padded rows, which costs less than the pointer loop;
        of a weight that is given per call, only where many rows read it."""
        if self.engine.main_loop == "pointer" or name not in self.streamed:
            return False
        if not needs_padding(tensor):
            return False
        readers = [k for k in self.plan.kernels if k.anchor and name in anchor_operands(k.anchor)]
        if any(k.anchor and name == anchor_operands(k.anchor)[0] for k in readers):
            return True
        return any(k.rows.bind(self.env) >= _PADDING_ROWS for k in readers)

    def _place_outputs(self, kernel: KernelPlan) -> None:
        first = len(self.given) + len(self.static)
        for name in kernel.writes:
            type = self.plan.type_of(name)
            shape = type.concrete(self.env)
            slot = first + len(self.buffers)
            stride = self._buffer_stride(name)
            self.buffers.append(Buffer(name, shape, type.dtype.torch, stride))
            self.values[name] = Value(slot, shape, stride, type.dtype.bytes, True)
        if kernel.few_rows:
            sums = parts(kernel, self.configs[kernel.name], self.env)
            self._place_workspace(f"{kernel.name}.parts", sums, torch.float32)
            self._place_workspace(f"{kernel.name}.arrived", COUNTERS, torch.int32)
        if _shares_rows(kernel):
            size = words(kernel, self.configs[kernel.name])
            self._place_workspace(words_of(kernel.name), size, torch.int64, zero=True)

    def _place_workspace(
        self, name: str, size: int, dtype: torch.dtype, zero: bool = False
    ) -> None:
        slot = len(self.given) + len(self.static) + len(self.buffers)
        self.buffers.append(Buffer(name, (size,), dtype, zero=zero))
        self.values[name] = Value(slot, (size,), size, dtype.itemsize, True)

    def _buffer_stride(self, name: str) -> int:
        """Rows of what stays inside the call may be padded; outputs are contiguous."""
        type = self.plan.type_of(name)
        shape = type.concrete(self.env)
        inside = len(shape) == 2 and shape[-1] > 1 and name not in self.plan.graph.outputs
        padding = inside and self.target.main_loop == "tma" and type.layout is Layout.TILE
        stride = padded_stride(shape[-1], type.dtype.bytes) if padding else shape[-1]
        return _row_stride(shape, stride)

    def _example_tensors(self) -> list[Tensor]:
        """Tensors to compile with: the ones given, and buffers of one element.

        What a kernel is compiled for depends on dtype and alignment, not on size.
        """
        tensors = [*self.given, *self.static_tensors]
        for copy in self.copies:
            dtype = tensors[copy.slot].dtype
            tensors[copy.slot] = torch.empty(16, dtype=dtype, device=self.device)
        return tensors + [torch.empty(16, dtype=b.dtype, device=self.device) for b in self.buffers]

    # how each kernel is tiled ----------------------------------------------------------------
    def _schedule(self, kernel: KernelPlan) -> None:
        loop = self._main_loop(kernel)
        config = self.overrides.get(kernel.name)
        if config is None:
            config = self.engine.configs.of(kernel, self.env, self.target, self.device, loop)
        if kernel.ring and kernel.anchor and self._lies_still(anchor_operands(kernel.anchor)[1]):
            config = replace(config, early=True, ahead=0)
        self.loops[kernel.name] = loop
        self.configs[kernel.name] = config
        for symbol, writer, _ in self.plan.tile_symbols():
            if writer is kernel:
                self.env[symbol] = column_tiles(kernel, config, self.env)

    def _lies_still(self, weight: str) -> bool:
        """Whether a weight was written before anything was queued that may still run."""
        first, slot = len(self.given), self.values[weight].slot
        static = first <= slot < first + len(self.static)
        return self.frozen and static and not self._is_copied(slot)

    def _main_loop(self, kernel: KernelPlan) -> str:
        if kernel.specialised:
            return "specialised"
        wanted = self.engine.main_loop
        loop = self.target.main_loop if wanted == "auto" else wanted
        if kernel.kind is not Kind.GEMM or loop == "pointer":  # nothing need be emitted to know
            return "pointer"
        args = self.engine.emitted("tma").kernel(kernel.name).args
        described = [arg for arg in args if arg.role == "descriptor"]
        return usable_loop(loop, {arg.name: self._describable(arg) for arg in described})

    def _describable(self, arg: Arg) -> bool:
        """Whether a tensor descriptor can express this value: aligned base and row strides."""
        value = self.values.get(arg.value)
        if value is None:  # the kernel writes it: a fresh buffer
            type = self.plan.type_of(arg.value)
            stride = self._buffer_stride(arg.value)
            value = Value(-1, type.concrete(self.env), stride, type.dtype.bytes, True)
        shape, _ = _viewed(value, arg.view)
        steps = arg.steps(value.row_stride, value.shape[-1])
        aligned = all(s * value.item % ALIGNMENT == 0 and s > 0 for s in steps)
        # rows that overlap (an expanded tensor) have no descriptor
        apart = value.row_stride >= value.shape[-1] or value.shape[0] == 1
        return value.aligned and aligned and apart and all(size > 0 for size in shape)

    def _grid(self, kernel: KernelPlan) -> Grid:
        config = self.configs[kernel.name]
        rows = -(-kernel.rows.bind(self.env) // config.block_m)
        if kernel.kind is Kind.ROW_REDUCTION:
            if not kernel.cluster and not _shares_rows(kernel):
                return (rows, 1, 1)
            groups = min(config.programs // config.parts, rows) if config.programs else rows
            return (groups * config.parts, 1, 1)
        width = config.block_n // 2 if kernel.paired else config.block_n
        tiles = rows * -(-kernel.cols.bind(self.env) // width) * config.split
        return (min(config.programs, tiles) if config.programs else tiles, 1, 1)

    # arguments -------------------------------------------------------------------------------
    def _request(self, kernel: KernelPlan, tensors: Sequence[Tensor]) -> _Request:
        launcher = self.engine.launcher(kernel, self.loops[kernel.name], self.configs[kernel.name])
        template: list[Any] = []
        pointers: list[tuple[int, int]] = []
        descriptors: list[Descriptor] = []
        key: list[Any] = []
        for position, arg in enumerate(launcher.source.args):
            entry: Any = None
            if arg.role == "pointer":
                value = self.values[arg.value]
                pointers.append((position, value.slot))
                key.append(value.aligned)
            elif arg.role == "descriptor":
                descriptors.append(self._descriptor(launcher.source, arg, position))
            else:
                entry = self._number(kernel, arg)
                constant = arg.role in COMPILE_TIME_ROLES
                key.append(entry if constant else int_class(entry) if arg.role == "stride" else 0)
            template.append(entry)
        example = self._example(template, pointers, descriptors, tensors)
        return _Request(
            Wanted(launcher, tuple(key), example),
            self._grid(kernel),
            template,
            tuple(pointers),
            tuple(descriptors),
        )

    def _example(
        self,
        template: list[Any],
        pointers: list[tuple[int, int]],
        descriptors: list[Descriptor],
        tensors: Sequence[Tensor],
    ) -> list[Any]:
        args = template.copy()
        for position, slot in pointers:
            args[position] = tensors[slot]
        for descriptor in descriptors:
            args[descriptor.position] = descriptor.of(tensors)
        return args

    def _descriptor(self, source: KernelSource, arg: Arg, position: int) -> Descriptor:
        value = self.values[arg.value]
        shape, strides = _viewed(value, arg.view)
        fields: dict[str, Any] = {
            "shape": list(shape),
            "strides": list(strides),
            "block_shape": list(source.block_shape(arg, self.configs[source.name])),
            "padding": "zero",
            "round_f32_to_tf32": False,
        }
        if self.loops[source.name] == "specialised":
            dtype = self.plan.type_of(arg.value).dtype.torch
            fields["layout"] = layout_of(fields["block_shape"], dtype)
        first = len(self.given)
        fixed = None
        if first <= value.slot < first + len(self.static) and not self._is_copied(value.slot):
            fixed = describe(self.static_tensors[value.slot - first], fields)
        return Descriptor(position, value.slot, fields, fixed)

    def _number(self, kernel: KernelPlan, arg: Arg) -> Any:
        if arg.role == "rows":
            return kernel.rows.bind(self.env)
        if arg.role in ("stride", "fixed_stride"):
            return self.values[arg.value].row_stride
        return compile_time_value(arg, kernel.name, self.plan, self.configs, self.env)


def _fitting(kernel: Kernel, request: _Request) -> Grid:
    """The grid, no larger than the device holds at a time if its clusters take row after row: how
    many that are depends on which multiprocessors lie together."""
    count = kernel.clusters() if request.wanted.launcher.config.programs else None
    if count is None:
        return request.grid
    return (min(request.grid[0], max(1, count) * kernel.cluster), 1, 1)


def _shares_rows(kernel: KernelPlan) -> bool:
    """Whether programs share a row, and tell each other its states."""
    return kernel.kind is Kind.ROW_REDUCTION and not kernel.cluster and is_shared(kernel)


def _value_of(slot: int, tensor: Tensor) -> Value:
    shape, item = tuple(tensor.shape), tensor.element_size()
    stride = tensor.stride(0) if tensor.dim() > 1 else shape[-1]
    aligned = tensor.data_ptr() % ALIGNMENT == 0
    return Value(slot, shape, _row_stride(shape, stride), item, aligned)


def _row_stride(shape: Sequence[int], stride: int) -> int:
    """The stride kernels are given. Of a single row it says nothing, so it is made divisible."""
    if len(shape) > 1 and shape[0] > 1:
        return stride
    cols = shape[-1]
    return cols if cols <= 1 else -(-cols // ALIGNMENT) * ALIGNMENT


def _viewed(value: Value, view: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shape and strides of a descriptor's view."""
    rows, cols = (1, value.shape[0]) if len(value.shape) == 1 else value.shape
    stride = value.row_stride
    if view == "stacked_rows":
        return (2, rows // 2, cols), (rows // 2 * stride, stride, 1)
    if view == "stacked_cols":
        return (rows, 2, cols // 2), (stride, cols // 2, 1)
    return (rows, cols), (stride, 1)
