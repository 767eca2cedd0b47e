"""Launching one emitted kernel, in microseconds.

`fn[grid](...)` costs 9 to 18 µs on the host: it binds the arguments by name, specialises them and
looks the binary up. All of that is decided once here: `KernelLauncher.compile` lets Triton compile
for one set of arguments, and `Kernel.launch` then calls the binary directly. Nothing is checked
there, so the caller must only use a `Kernel` for arguments of the same `specialisation`.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from triton import knobs
from triton.compiler.errors import CompilationError, CompileTimeAssertionFailure
from triton.runtime.errors import OutOfResources, PTXASError
from triton.tools.tensor_descriptor import TensorDescriptor

from fusedsl.codegen import KernelSource
from fusedsl.diagnostics import Diagnostic, FusedslError
from fusedsl.runtime.device import refuse_in_capture
from fusedsl.runtime.load import interprets
from fusedsl.schedule import TileConfig

Grid = tuple[int, int, int]

#: The interpreter keeps the program being run in global state.
_ONE_AT_A_TIME = threading.Lock()

#: The divisibility and alignment that Triton specialises on.
ALIGNMENT = 16


def int_class(value: int) -> int:
    """What Triton's specialisation sees of a run-time integer."""
    return (value == 1) | (value % ALIGNMENT == 0) << 1 | (value >= 1 << 31) << 2


@dataclass(eq=False)
class RawLauncher:
    """The C launcher under Triton's Python one, which encodes every tensor map at every launch.

    `call(gridX, gridY, gridZ, stream, function, cooperative, pdl, None, None, metadata, None, None,
    None, *arguments)`, where each descriptor is given as its tensor map, shape and strides.
    """

    call: Callable[..., None]
    cooperative: bool
    pdl: bool
    encode: Callable[[Any, Any], list[Any]] | None = None
    layouts: tuple[Any, ...] = ()

    def expanded(self, descriptor: Any, number: int) -> list[Any]:
        """What the C launcher takes for the descriptor argument of that number."""
        assert self.encode is not None
        return self.encode(descriptor, self.layouts[number])


def raw_launcher(run: Any) -> RawLauncher | None:
    """The C launcher of a loaded kernel, or None where Triton is built otherwise (3.6 is known)."""
    wanted = ("launch", "global_scratch_size", "profile_scratch_size", "launch_pdl")
    if not all(hasattr(run, name) for name in wanted):
        return None
    if run.global_scratch_size or run.profile_scratch_size:
        return None
    cooperative = getattr(run, "launch_cooperative_grid", False)
    if inspect.isbuiltin(run.launch):
        return RawLauncher(run.launch, cooperative, run.launch_pdl)
    if not inspect.isfunction(run.launch):
        return None
    found = inspect.getclosurevars(run.launch)
    call, layouts = found.nonlocals.get("launcher"), found.nonlocals.get("tensordesc_meta")
    encode = found.globals.get("make_tensordesc_arg")
    if not inspect.isbuiltin(call) or not layouts or encode is None or None in layouts:
        return None
    if len(inspect.signature(encode).parameters) != 2:
        return None
    return RawLauncher(call, cooperative, run.launch_pdl, encode, tuple(layouts))


@dataclass(eq=False)
class Kernel:
    """A kernel that is ready for arguments of one specialisation.

    `direct` is the bound method that launches the binary, None where only `fn[grid]` is available
    (the interpreter; a Triton whose launcher takes other arguments).
    """

    fn: Any
    options: dict[str, Any]
    direct: Callable[..., None] | None = None
    function: Any = None
    metadata: Any = None
    proven: bool = False
    raw: RawLauncher | None = None

    def launch(self, grid: Grid, stream: int, args: Sequence[Any]) -> None:
        """Launch on `stream` of the current device; pointers may be integers if `direct`."""
        assert self.direct is not None
        self.direct(*grid, stream, self.function, self.metadata, None, None, None, *args)

    def launch_slowly(self, grid: Grid, args: Sequence[Any]) -> None:
        """Launch through `fn[grid]`: the current stream, Triton's hooks, pointers as tensors."""
        if interprets():
            with _ONE_AT_A_TIME:
                self.fn[grid](*args, **self.options)
            return
        try:
            self.fn[grid](*args, **self.options)
        except Exception as error:
            raise _build_failure(self.fn, error) from error


@dataclass(eq=False)
class KernelLauncher:
    """One emitted kernel with one tile configuration, compiled per specialisation and device."""

    source: KernelSource
    fn: Any
    config: TileConfig
    _kernels: dict[Any, Kernel] = field(default_factory=dict[Any, Kernel])

    @property
    def options(self) -> dict[str, Any]:
        """Triton's own launch options."""
        return self.config.options

    def kernel(self, specialisation: Any, device: torch.device, args: Sequence[Any]) -> Kernel:
        """The kernel for this specialisation, compiled with `args` (tensors) if it is new.

        Nothing is launched. `device` must be current. Raises FusedslError: F0601 and F0603 where
        it cannot be built, F0606 where that would happen during a CUDA graph capture.
        """
        key = (specialisation, device)
        kernel = self._kernels.get(key)
        if kernel is None:
            if not interprets():
                refuse_in_capture(device, f"kernel '{self.source.name}' is not compiled yet")
            kernel = self._kernels[key] = self._compile(args)
        return kernel

    def _compile(self, args: Sequence[Any]) -> Kernel:
        kernel = Kernel(self.fn, self.options)
        if interprets():
            return kernel
        try:
            compiled = self.fn.run(*args, grid=(1, 1, 1), warmup=True, **self.options)
            run = getattr(compiled, "run", None)  # loads the binary
        except Exception as error:
            raise _build_failure(self.fn, error) from error
        if is_known_launcher(run) and getattr(compiled, "function", None) is not None:
            kernel.direct = run
            kernel.function = compiled.function
            kernel.metadata = compiled.packed_metadata
            kernel.raw = raw_launcher(run)
        return kernel


def is_known_launcher(run: Any) -> bool:
    """Whether a launcher takes what `Kernel.launch` passes (Triton 3.6 to 3.9 do)."""
    try:
        parameters = list(inspect.signature(run).parameters.values())
    except (TypeError, ValueError):
        return False
    names = [p.name.lower() for p in parameters]
    fixed = names[: len(names) - 1]
    return (
        bool(parameters)
        and parameters[-1].kind is inspect.Parameter.VAR_POSITIONAL
        and fixed[:5] == ["gridx", "gridy", "gridz", "stream", "function"]
        and len(fixed) in (5, 9)
    )


def hooked() -> bool:
    """Whether a profiler watches launches: then they go through Triton's own path."""
    runtime = knobs.runtime
    for hook in (runtime.launch_enter_hook, runtime.launch_exit_hook):
        if getattr(hook, "calls", hook):
            return True
    return False


def describe(tensor: Any, fields: dict[str, Any]) -> TensorDescriptor:
    """A tensor descriptor without the checks of its constructor; `fields` passed them once."""
    descriptor = TensorDescriptor.__new__(TensorDescriptor)
    descriptor.__dict__.update(fields)
    descriptor.base = tensor
    return descriptor


def _build_failure(fn: Any, error: Exception) -> Exception:
    """What to raise for a failed build; an error of another kind stays what it is."""
    name = getattr(fn, "__name__", str(fn))
    if isinstance(error, OutOfResources) and "shared" in str(error.name):
        shared = Diagnostic(
            "F0601",
            f"kernel '{name}' needs more shared memory than the device has",
            expected=f"at most {error.limit} bytes",
            got=f"{error.required} bytes",
            fix="report the program: the default tile configuration should have been smaller",
        )
        return FusedslError(shared)
    compiler = (CompilationError, CompileTimeAssertionFailure, PTXASError, OutOfResources)
    if not isinstance(error, compiler) and "PassManager" not in str(error):
        return error
    failed = Diagnostic(
        "F0603",
        f"kernel '{name}' failed to compile",
        got=f"{type(error).__name__}: {error}",
        fix="report the program with its emitted source (Program.source)",
    )
    return FusedslError(failed)
