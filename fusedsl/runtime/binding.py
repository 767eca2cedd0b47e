"""Weights bound to a program: what is known before any call is computed once.

Bind-time nodes are evaluated in torch with their blocks' references: fp32 operands, except that
packing blocks see the weights as they are stored; each result is rounded once, to its node's
dtype. Originals are never written to, so tied weights stay what they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fusedsl.diagnostics import Diagnostic, FusedslError
from fusedsl.fuse import Plan, anchor_operands
from fusedsl.ir import Kind, Layout, as_tuple, call_reference
from fusedsl.runtime.check import Dims
from fusedsl.runtime.device import capturing, refuse_in_capture, target_of

#: What tensor maps ask of addresses and of the distance between rows.
_ROW_BYTES = 16


@dataclass(frozen=True)
class Stamp:
    """What tells, without reading it, that a weight is still what it was."""

    pointer: int
    version: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    @staticmethod
    def of(tensor: Tensor) -> Stamp:
        """The stamp of a tensor now; inference tensors count no versions."""
        return Stamp(tensor.data_ptr(), version_of(tensor), tuple(tensor.shape), tensor.stride())


def version_of(tensor: Tensor) -> int:
    """torch's count of in-place writes, -1 for inference tensors, which have none."""
    return -1 if tensor.is_inference() else tensor._version


def folded_names(plan: Plan) -> frozenset[str]:
    """Weights that some bind-time node reads."""
    params = {p.name for p in plan.graph.params}
    return frozenset(name for node in plan.bind for name in node.inputs if name in params)


def direct_names(plan: Plan) -> frozenset[str]:
    """Stored values that kernels read, or that are outputs: what must exist at run time."""
    read = {name for kernel in plan.kernels for name in kernel.reads}
    return frozenset(read | set(plan.graph.outputs))


def fold(plan: Plan, weights: Mapping[str, Tensor], dims: Mapping[str, int]) -> dict[str, Tensor]:
    """Evaluate the bind-time nodes; gives those values that kernels or the caller read.

    Results are contiguous and aligned as torch aligns an allocation (at least 16 bytes).
    """
    values = dict(weights)
    wanted = direct_names(plan)
    made: set[str] = set()
    last = {name: i for i, node in enumerate(plan.bind) for name in node.inputs}
    # Not inference mode, whose tensors could never be written to again by `Binding.refresh`.
    with torch.inference_mode(False), torch.no_grad():
        for index, node in enumerate(plan.bind):
            narrow = node.block.kind is Kind.PACKING
            operands = values if narrow else {n: _widened(values[n]) for n in node.inputs}
            results = as_tuple(call_reference(node, operands, dims, node.block.reference))
            for result, tensor in zip(node.results, results, strict=True):
                shape = result.type.concrete(dims)
                values[result.name] = _stored(tensor, result.type.dtype.torch, shape, weights)
                made.add(result.name)
            for name in node.inputs:
                if name in made and name not in wanted and last[name] == index:
                    del values[name]
    return {name: values[name] for name in made if name in wanted}


def _widened(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def _stored(
    tensor: Tensor, dtype: torch.dtype, shape: tuple[int, ...], weights: Mapping[str, Tensor]
) -> Tensor:
    """Rounded once, contiguous, in memory of its own."""
    stored = tensor.detach().to(dtype).expand(shape).contiguous()
    pointers = {w.untyped_storage().data_ptr() for w in weights.values()}
    return stored.clone() if stored.untyped_storage().data_ptr() in pointers else stored


def needs_copy(layout: Layout, tensor: Tensor) -> bool:
    """Whether kernels cannot walk this tensor: its last axis must have stride 1."""
    if tensor.dim() == 0 or layout is Layout.COLUMN or tensor.shape[-1] <= 1:
        return False
    return tensor.stride(-1) != 1


def needs_padding(tensor: Tensor) -> bool:
    """Whether no tensor map can express this matrix: its rows must lie multiples of 16 bytes
    apart. Only where projections use tensor maps at all."""
    if tensor.dim() != 2 or tensor.shape[-1] <= 1:
        return False
    if target_of(tensor.device).main_loop != "tma":
        return False
    step = tensor.stride(0)
    apart = step >= tensor.shape[1] and step * tensor.element_size() % _ROW_BYTES == 0
    return (tensor.shape[0] > 1 and not apart) or tensor.data_ptr() % _ROW_BYTES != 0


def streamed_names(plan: Plan) -> frozenset[str]:
    """Operands of projections: what main loops stream."""
    return frozenset(n for k in plan.kernels if k.anchor for n in anchor_operands(k.anchor))


def padded_stride(cols: int, item: int) -> int:
    """Elements between rows of `cols` elements that begin at multiples of 16 bytes."""
    whole = max(1, _ROW_BYTES // item)
    return -(-cols // whole) * whole


def padded(tensor: Tensor) -> Tensor:
    """A copy of a matrix whose rows begin at multiples of 16 bytes; the padding is never read."""
    rows, cols = tensor.shape
    stride = padded_stride(cols, tensor.element_size())
    made = torch.empty((rows, stride), dtype=tensor.dtype, device=tensor.device)[:, :cols]
    return made.copy_(tensor)


@dataclass(eq=False)
class Binding:
    """Weights, and what was made of them.

    Fields:
        plan: the program.
        dims: symbols that the weights bound.
        values: what kernels read, by name: folded values, weights in place, contiguous copies.
        weights: the originals, as far as they are still needed; empty for weights given per call.
        stamps: what the originals looked like when `values` was made.
        recipes: calls that have been prepared, by the layout of their activations.
        graded: whether a weight requires gradients.
        epoch: another object once prepared calls no longer hold.
        watched: the originals, each with the address and version it had when it was last looked at.
        ordered: streams known to come after the folding.
        frozen: whether the weights were written before the device was last waited for, so that
            kernels may read them ahead of what is queued before them.
    """

    plan: Plan
    dims: Dims
    values: dict[str, Tensor] = field(default_factory=dict[str, Tensor])
    weights: dict[str, Tensor] = field(default_factory=dict[str, Tensor])
    stamps: dict[str, Stamp] = field(default_factory=dict[str, Stamp])
    consumed: frozenset[str] = frozenset()
    device: torch.device | None = None
    recipes: dict[Any, Any] = field(default_factory=dict[Any, Any])
    graded: bool = False
    epoch: object = field(default_factory=object)
    watched: tuple[tuple[Tensor, int, int], ...] = ()
    _ready: Any = None
    ordered: set[int] = field(default_factory=set[int])
    frozen: bool = False

    @staticmethod
    def make(
        plan: Plan,
        weights: Mapping[str, Tensor],
        dims: Dims,
        *,
        hold: bool,
        consume: bool = False,
        frozen: bool = False,
    ) -> Binding:
        """Fold `weights`; with `hold` they are kept and watched, else only what was made of them.

        With `consume` the originals that only feed folded values are let go. With `frozen` the
        device is waited for, now and where they change. The device of the weights must be current.
        Raises FusedslError: F0606 for `frozen` during a capture.
        """
        binding = Binding(plan, dims)
        binding.device = next((w.device for w in weights.values()), None)
        binding.weights = dict(weights)
        binding.frozen = frozen
        binding._compute()
        binding._settle()
        if not hold:
            binding.values = {n: t for n, t in binding.values.items() if n not in weights}
            binding.weights = {}
            binding.stamps = {}
            return binding
        if consume and all(w.numel() for w in weights.values()):
            kept = direct_names(plan)
            binding.consumed = frozenset(weights) - kept
            for name in binding.consumed:
                del binding.weights[name], binding.stamps[name]
        binding._watch_all()
        return binding

    @property
    def folded_bytes(self) -> int:
        """Bytes of device memory that bind-time values and copies take, beside the originals."""
        made = {n: t for n, t in self.values.items() if t is not self.weights.get(n)}
        return sum(t.nbytes for t in made.values())

    def is_stale(self) -> bool:
        """Whether an original was written to or moved since; a host-side check of the stamps."""
        for tensor, pointer, version in self.watched:
            if tensor.data_ptr() != pointer or (version >= 0 and tensor._version != version):
                return True
        return False

    def refresh(self, *, force: bool = False) -> None:
        """Compute the values anew from the originals as they are now.

        Folded values keep their memory, so that a captured CUDA graph sees the new ones. Raises
        FusedslError: F0505 if a consumed weight would be needed (only with `force`), F0606 during
        a capture.
        """
        changed = {n for n, t in self.weights.items() if Stamp.of(t) != self.stamps[n]}
        feeding = folded_names(self.plan)
        moved = {
            n
            for n in changed
            if Stamp.of(self.weights[n]).pointer != self.stamps[n].pointer
            or Stamp.of(self.weights[n]).stride != self.stamps[n].stride
        }
        copied = {n for n in self.weights if self.values.get(n) is not self.weights[n]}
        if force or moved or changed & (feeding | copied):
            self._recompute(moved)
        if force or changed:
            self._settle()
        self.stamps = {name: Stamp.of(tensor) for name, tensor in self.weights.items()}
        self._watch_all()

    def _settle(self) -> None:
        """Wait until all that was written to frozen weights is there."""
        if self.frozen and self.device is not None and self.device.type == "cuda":
            refuse_in_capture(self.device, "a frozen weight has changed and must be waited for")
            torch.cuda.synchronize(self.device)

    def _recompute(self, moved: set[str]) -> None:
        if self.consumed & folded_names(self.plan):
            raise FusedslError(gone(self.consumed))
        if self.device is not None:
            refuse_in_capture(self.device, "a bound weight has changed and must be folded anew")
        before = dict(self.values)
        self._compute()
        for name, old in before.items():
            new = self.values[name]
            if new is self.weights.get(name) or old.shape != new.shape:
                continue
            with torch.no_grad():
                old.copy_(new)
            self.values[name] = old
        if any(self.values[name] is not old for name, old in before.items()) or moved:
            self.forget()

    def forget(self) -> None:
        """Let go of prepared calls: a value has moved."""
        self.recipes.clear()
        self.epoch = object()

    def wait(self, stream: int) -> None:
        """Order the first call on another stream after the folding (not within a capture)."""
        if stream in self.ordered:
            return
        if self._ready is None or self.device is None:
            self.ordered.add(stream)
            return
        if not capturing(self.device):
            torch.cuda.current_stream(self.device).wait_event(self._ready)
            self.ordered.add(stream)

    def _compute(self) -> None:
        self.values = fold(self.plan, self.weights, self.dims.values)
        kept = direct_names(self.plan)
        types = self.plan.graph.types
        for name, tensor in self.weights.items():
            if name in kept:
                copy = needs_copy(types[name].layout, tensor)
                self.values[name] = tensor.detach().contiguous() if copy else tensor
        for name in streamed_names(self.plan) & self.values.keys():
            tensor = self.values[name]
            if needs_padding(tensor):
                with torch.inference_mode(False), torch.no_grad():
                    self.values[name] = padded(tensor.detach())
        self.stamps = {name: Stamp.of(tensor) for name, tensor in self.weights.items()}
        self._mark_ready()

    def _mark_ready(self) -> None:
        if self.device is None or self.device.type != "cuda" or not self.plan.bind:
            return
        stream = torch.cuda.current_stream(self.device)
        self._ready = torch.cuda.Event()
        self._ready.record(stream)
        self.ordered = {stream.cuda_stream}

    def _watch_all(self) -> None:
        self.watched = tuple(
            (tensor, self.stamps[name].pointer, self.stamps[name].version)
            for name, tensor in self.weights.items()
        )
        self.graded = any(tensor.requires_grad for tensor in self.weights.values())


def gone(consumed: frozenset[str]) -> Diagnostic:
    """The diagnostic for original weights that are needed again after they were consumed."""
    listed = ", ".join(sorted(consumed))
    return Diagnostic(
        "F0505",
        "this needs the original weights, and they were consumed when they were bound",
        expected="weights bound without consume=True",
        got=f"consumed: {listed}",
        fix="bind the program anew with the full set of weights, or bind without consume=True",
    )
