"""Compiled kernels on disk, beside the emitted sources.

Triton keeps binaries too, but to find one it digests its own files, asks its assembler for its
version, reads the kernel's source and builds a launcher: half a second of every process. An entry
here is a binary that has been loaded and held against its description (`driver.binary_of`), with
that description, under a digest of everything that decides it: the emitted source with the block
library and the versions (`cache.key_of`), the kernel, its arguments as Triton specialises on them,
the options of its launch, the device's architecture, and the Triton that compiled it.

A file begins with the digest of all that follows, so one that is truncated or edited counts as
absent; files are written beside their place and renamed. Nothing is looked up or kept while Triton
is asked to show or to change what it compiles.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
import triton
from triton import knobs
from triton.tools.tensor_descriptor import TensorDescriptor

from fusedsl import settings
from fusedsl.runtime import cache
from fusedsl.runtime.driver import Binary, Parameter
from fusedsl.runtime.gluon import is_laid_out

#: Changes with the format of the files.
_FORMAT = 1

#: Triton's switches by which it compiles without looking, or shows or changes what it compiles.
_WATCHED = ("override", "dump_ir", "always_compile", "use_ir_loc", "listener")
_HOOKS = (
    "kernel_load_start_hook",
    "kernel_load_end_hook",
    "jit_cache_hook",
    "jit_post_compile_hook",
    "add_stages_inspection_hook",
)

#: What Triton's digest of itself covers.
_COMPILER = ("compiler", "backends/nvidia", "language", "runtime", "experimental/gluon", "_C")


@dataclass(frozen=True)
class Stored:
    """A kernel's binary, its name in there, and what launches it once it is loaded (`function` of
    `binary` is 0)."""

    name: str
    image: bytes
    binary: Binary


def key_of(
    source: str,
    kernel: str,
    specialisation: Sequence[Any],
    args: Sequence[Any],
    options: Mapping[str, Any],
    arch: str,
) -> str | None:
    """The digest that an entry is found by, None where none may be used.

    `source` is the digest of the emitted source. `args` are such as the kernel is compiled with.
    """
    compiler = _environment()
    if compiler is None:
        return None
    content = {
        "format": _FORMAT,
        "source": source,
        "kernel": kernel,
        "specialisation": repr(specialisation),
        "arguments": [_argument(arg) for arg in args],
        "options": {name: repr(value) for name, value in options.items()},
        "arch": arch,
        "compiler": compiler,
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def find(key: str, kernel: str) -> Stored | None:
    """The entry of a key, None where there is none that is whole."""
    try:
        digest, _, body = _path(key, kernel).read_bytes().partition(b"\n")
        if digest.decode() != hashlib.sha256(body).hexdigest():
            return None
        head, _, image = body.partition(b"\n")
        said = json.loads(head)
        return _stored(said, image) if said["key"] == key else None
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None


def keep(key: str, kernel: str, stored: Stored) -> bool:
    """Write an entry; False where it cannot be."""
    binary = stored.binary
    said = {
        "key": key,
        "name": stored.name,
        "threads": binary.threads,
        "shared": binary.shared,
        "pdl": binary.pdl,
        "cooperative": binary.cooperative,
        "cluster": binary.cluster,
        "parameters": [[p.kind, p.position, p.field] for p in binary.parameters],
        "layouts": [[position, dict(layout)] for position, layout in binary.layouts.items()],
    }
    head = json.dumps(said).encode()
    if _stored(json.loads(head), stored.image) != stored:  # what JSON does not give back
        return False
    body = head + b"\n" + stored.image
    sealed = hashlib.sha256(body).hexdigest().encode() + b"\n" + body
    return cache.write(_path(key, kernel), sealed)


def _stored(said: Mapping[str, Any], image: bytes) -> Stored:
    parameters = tuple(
        Parameter(kind, position, None if field is None else (field[0], field[1]))
        for kind, position, field in said["parameters"]
    )
    layouts = {position: layout for position, layout in said["layouts"]}
    binary = Binary(
        0,
        said["threads"],
        said["shared"],
        said["pdl"],
        said["cooperative"],
        parameters,
        layouts,
        said["cluster"],
    )
    return Stored(said["name"], image, binary)


def folder() -> Path:
    """Where entries lie."""
    return settings.current().cache_dir / "binaries"


def _path(key: str, kernel: str) -> Path:
    return folder() / f"{kernel}-{key[:32]}.bin"


def _argument(arg: Any) -> list[Any]:
    """What decides a binary of an argument, beside its kernel's specialisation."""
    if isinstance(arg, TensorDescriptor):
        return ["descriptor", str(arg.base.dtype), list(arg.block_shape), arg.padding]
    if is_laid_out(arg):
        said = [str(arg.base.dtype), list(arg.block_shape), arg.padding, repr(arg.layout)]
        return ["laid out descriptor", *said]
    if isinstance(arg, torch.Tensor):
        return ["pointer", str(arg.dtype)]
    wide = isinstance(arg, int) and not -(1 << 31) <= arg < 1 << 31
    return [type(arg).__name__, wide]


# the compiler ----------------------------------------------------------------------------------
def _environment() -> dict[str, Any] | None:
    """Everything about this process's Triton that decides what it compiles, as far as is known;
    None where a binary from elsewhere must not stand in for it."""
    try:
        if any(getattr(knobs.compilation, name) for name in _WATCHED):
            return None
        for name in _HOOKS:
            hook = getattr(knobs.runtime, name)
            if getattr(hook, "calls", hook):
                return None
        return {
            "version": triton.__version__,
            "files": _files(),
            "knobs": [list(map(repr, item)) for item in _settings()],
            "tools": [_stamp(path) for path in _tools()],
            "options": _defaults(),
            "environment": sorted(_invalidating().items()),
        }
    except (AttributeError, ImportError, TypeError, OSError):
        return None


def _settings() -> Iterator[tuple[str, Any]]:
    """Triton's switches that may change a binary, and their values.

    Tools are left out: to say their value is to ask them for their version.
    """
    for group in (knobs.compilation, knobs.language, knobs.nvidia):
        for name, knob in group.knob_descriptors.items():
            if not isinstance(knob, knobs.env_nvidia_tool):
                yield name, getattr(group, name)
    yield "instrumentation_mode", knobs.compilation.instrumentation_mode
    yield "debug", knobs.runtime.debug
    yield "override_arch", knobs.runtime.override_arch


def _tools() -> Iterator[str]:
    """The assemblers that are used, and the device library if another one is."""
    for name in ("ptxas", "ptxas_blackwell"):
        knob = knobs.nvidia.knob_descriptors.get(name)
        if isinstance(knob, knobs.env_nvidia_tool):
            chosen = knobs.nvidia.__dict__.get(name) or os.environ.get(knob.key)
            yield str(chosen or knob.default_path)
    yield str(knobs.nvidia.libdevice_path or "")


@functools.cache
def _files() -> str:
    """A digest of the names, sizes and times of Triton's own files: of their content would take
    a third of a second."""
    root = Path(triton.__file__).parent
    digest = hashlib.sha256()
    for part in _COMPILER:
        for folder, inner, names in os.walk(root / part):
            inner[:] = sorted(name for name in inner if name not in ("__pycache__", "bin"))
            for name in sorted(names):
                if name.endswith((".py", ".so", ".bc", ".c")):
                    digest.update(repr(_stamp(os.path.join(folder, name))).encode())
    return digest.hexdigest()


def _stamp(path: str) -> tuple[str, int, int]:
    """A file's path, size and time of change; sizes of -1 for one that is absent."""
    try:
        found = os.stat(path)
    except OSError:
        return path, -1, -1
    return path, found.st_size, found.st_mtime_ns


@functools.cache
def _defaults() -> list[list[str]]:
    """The defaults of the backend's options, some of which it takes from the environment while
    it is imported."""
    options = importlib.import_module("triton.backends.nvidia.compiler").CUDAOptions
    return [[field.name, repr(field.default)] for field in fields(options)]


def _invalidating() -> Mapping[str, str]:
    """The variables that Triton's compiler itself says its binaries depend on."""
    return importlib.import_module("triton._C.libtriton").get_cache_invalidating_env_vars()
