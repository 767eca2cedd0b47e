"""Launching one emitted kernel, in microseconds.

`fn[grid](...)` costs 9 to 18 µs on the host: it binds the arguments by name, specialises them and
looks the binary up. All of that is decided once here: `KernelLauncher.compile` lets Triton compile
for one set of arguments, and `Kernel.launch` then calls the binary directly. Nothing is checked
there, so the caller must only use a `Kernel` for arguments of the same `specialisation`.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from triton import knobs
from triton.compiler.errors import CompilationError, CompileTimeAssertionFailure
from triton.runtime import driver
from triton.runtime.errors import OutOfResources, PTXASError
from triton.tools.tensor_descriptor import TensorDescriptor

from fusedsl.codegen import ALIGNMENT, KernelSource
from fusedsl.diagnostics import Diagnostic, FusedslError
from fusedsl.runtime import binaries
from fusedsl.runtime.device import on_device, refuse_in_capture, target_of
from fusedsl.runtime.driver import Binary, allow_cluster, binary_of, loaded, most_clusters
from fusedsl.runtime.gluon import descriptor_class
from fusedsl.runtime.load import interprets
from fusedsl.schedule import TileConfig

Grid = tuple[int, int, int]

#: The interpreter keeps the program being run in global state.
_ONE_AT_A_TIME = threading.Lock()


def int_class(value: int) -> int:
    """What Triton's specialisation sees of a run-time integer."""
    return (value == 1) | (value % ALIGNMENT == 0) << 1 | (value >= 1 << 31) << 2


@dataclass(eq=False)
class Kernel:
    """A kernel that is ready for arguments of one specialisation.

    `direct` is the bound method that launches the binary through Triton, None where that has not
    compiled it in this process (the interpreter; a binary from the cache) or its launcher takes
    other arguments. `binary` is what the driver takes, None where Triton does not say enough for
    that. So many programs in a row of the grid are a `cluster`.
    """

    function_of: Callable[[], Any]
    options: dict[str, Any]
    direct: Callable[..., None] | None = None
    function: Any = None
    metadata: Any = None
    proven: bool = False
    binary: Binary | None = None
    cluster: int = 1

    @property
    def fn(self) -> Any:
        """The kernel as Triton has it."""
        return self.function_of()

    def launch(self, grid: Grid, stream: int, args: Sequence[Any]) -> None:
        """Launch on `stream` of the current device; pointers may be integers if `direct`."""
        assert self.direct is not None
        self.direct(
            *self._in_clusters(grid), stream, self.function, self.metadata, None, None, None, *args
        )

    def launch_slowly(self, grid: Grid, args: Sequence[Any]) -> None:
        """Launch through `fn[grid]`: the current stream, Triton's hooks, pointers as tensors."""
        if interprets():
            with _ONE_AT_A_TIME:
                self.fn[grid](*args, **self.options)
            return
        try:
            if self.cluster > 1:
                compiled = self.fn.run(*args, grid=(1, 1, 1), warmup=True, **self.options)
                launch_in_clusters(compiled, self.cluster)
            self.fn[self._in_clusters(grid)](*args, **self.options)
        except Exception as error:
            raise _build_failure(self.fn, error) from error

    def clusters(self) -> int | None:
        """How many of its clusters the device holds at a time, None where that is not known."""
        if self.cluster == 1 or self.binary is None:
            return None
        return most_clusters(self.binary)

    def _in_clusters(self, grid: Grid) -> Grid:
        """The grid as Triton's launcher counts it."""
        return (grid[0] // self.cluster, *grid[1:])


@dataclass(eq=False)
class KernelLauncher:
    """One emitted kernel with one tile configuration, ready per specialisation and device.

    `digest` is that of the emitted source; `function_of` gives the kernel as Triton has it, and
    loads the source at the first time.
    """

    source: KernelSource
    config: TileConfig
    digest: str
    function_of: Callable[[], Any]
    _kernels: dict[Any, Kernel] = field(default_factory=dict[Any, Kernel])

    @property
    def fn(self) -> Any:
        """The kernel as Triton has it."""
        return self.function_of()

    @property
    def options(self) -> dict[str, Any]:
        """Triton's own launch options."""
        return self.config.options

    @property
    def cluster(self) -> int:
        """How many programs are a cluster."""
        return self.config.parts if self.source.plan.cluster else 1

    def known(self, specialisation: Any, device: torch.device) -> Kernel | None:
        """The kernel for this specialisation, if it was built or found before."""
        return self._kernels.get((specialisation, device))

    def find(self, wanted: Wanted, device: torch.device) -> bool:
        """Whether the cache has the binary; it is loaded then."""
        key = self._key(wanted, device)
        stored = binaries.find(key, self.source.name) if key is not None else None
        if stored is None:
            return False
        binary = loaded(stored.binary, stored.name, stored.image, device.index)
        if binary is None:
            return False
        kernel = Kernel(self.function_of, self.options, binary=binary, cluster=self.cluster)
        self._kernels[(wanted.specialisation, device)] = kernel
        return True

    def build(self, wanted: Wanted, device: torch.device) -> Kernel:
        """The kernel for this specialisation, compiled with its arguments (tensors) and kept in the
        cache; nothing is launched.

        `device` must be current. Raises FusedslError: F0601 and F0603 where it cannot be built.
        """
        kernel = Kernel(self.function_of, self.options, cluster=self.cluster)
        if not interprets():
            self._compile(kernel, wanted, device)
        self._kernels[(wanted.specialisation, device)] = kernel
        return kernel

    def _compile(self, kernel: Kernel, wanted: Wanted, device: torch.device) -> None:
        key = self._key(wanted, device)  # of the switches as they are now
        fn = self.fn
        try:
            compiled = fn.run(*wanted.args, grid=(1, 1, 1), warmup=True, **self.options)
            run = getattr(compiled, "run", None)  # loads the binary
            if self.cluster > 1:
                launch_in_clusters(compiled, self.cluster)
        except Exception as error:
            raise _build_failure(fn, error) from error
        if not is_known_launcher(run) or getattr(compiled, "function", None) is None:
            return
        kernel.direct = run
        kernel.function = compiled.function
        kernel.metadata = compiled.packed_metadata
        kernel.binary = binary_of(compiled, cluster=self.cluster)
        if kernel.binary is not None and key is not None:
            described = replace(kernel.binary, function=0)
            stored = binaries.Stored(compiled.name, compiled.kernel, described)
            binaries.keep(key, self.source.name, stored)

    def _key(self, wanted: Wanted, device: torch.device) -> str | None:
        arch = arch_of(device)
        if arch is None:
            return None
        return binaries.key_of(
            self.digest, self.source.name, wanted.specialisation, wanted.args, self.options, arch
        )


def arch_of(device: torch.device) -> str | None:
    """The architecture that binaries are kept for, None where they are not."""
    target = target_of(device)
    return target.name if target.backend == "cuda" else None


@functools.cache
def get_ready() -> threading.Thread:
    """Start what Triton does once per process before it looks a first kernel up.

    That is a digest of its own files, its assembler's version (a process), and modules it imports
    late: half a second, most of it outside the interpreter lock. Threads that come to the digest
    at once would each take it. A CUDA device must be set up in this process.
    """
    arch = None
    if torch.version.hip is None:
        major, minor = torch.cuda.get_device_capability()
        arch = major * 10 + minor

    def prepare() -> None:
        late = (ImportError, AttributeError, TypeError, RuntimeError, OSError)
        with contextlib.suppress(*late):
            importlib.import_module("triton.runtime.cache").triton_key()
        with contextlib.suppress(*late):
            if arch is not None:
                importlib.import_module("triton.backends.nvidia.compiler").get_ptxas_version(arch)
        with contextlib.suppress(*late):
            importlib.import_module("triton.experimental.gluon")

    thread = threading.Thread(target=prepare, name="fusedsl-get-ready", daemon=True)
    thread.start()
    return thread


@dataclass(frozen=True)
class Wanted:
    """A kernel for one specialisation, and arguments to compile it with."""

    launcher: KernelLauncher
    specialisation: Any
    args: Sequence[Any]


def kernels_for(wanted: Sequence[Wanted], device: torch.device) -> list[Kernel]:
    """The kernels, in order; new ones come from the cache or are compiled side by side.

    Raises FusedslError: F0601 and F0603 where one cannot be built, F0606 where that would happen
    during a CUDA graph capture.
    """
    new = [w for w in wanted if w.launcher.known(w.specialisation, device) is None]
    if new and not interprets():
        refuse_in_capture(device, f"kernel '{new[0].launcher.source.name}' is not compiled yet")
        new = [w for w in new if not w.launcher.find(w, device)]
        if new and device.type == "cuda":
            get_ready()

    def build(one: Wanted) -> Kernel:
        with on_device(device):
            return one.launcher.build(one, device)

    if len(new) > 1 and not interprets():
        for one in new:
            one.launcher.function_of()  # sources are loaded one after another
        if device.type == "cuda":
            get_ready().join()
        driver.active.get_current_target()  # set up once, before the threads ask for it
        with ThreadPoolExecutor(len(new), "fusedsl-compile") as pool:
            list(pool.map(build, new))
    return [w.launcher.known(w.specialisation, device) or build(w) for w in wanted]


def launch_in_clusters(compiled: Any, cluster: int) -> None:
    """Have Triton launch a kernel that it has loaded in clusters of so many programs, which it was
    not told of when it compiled it: to its compiler they are programs like others."""
    threads, _, *others = compiled.packed_metadata
    compiled.packed_metadata = (threads, cluster, *others)
    allow_cluster(compiled.function, cluster)


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
    enter, leave = runtime.launch_enter_hook, runtime.launch_exit_hook
    return bool(getattr(enter, "calls", enter) or getattr(leave, "calls", leave))


def describe(tensor: Any, fields: dict[str, Any]) -> Any:
    """A tensor descriptor without the checks of its constructor; `fields` passed them once. One
    with a `layout` is Gluon's."""
    kind = descriptor_class() if "layout" in fields else TensorDescriptor
    descriptor = kind.__new__(kind)
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
