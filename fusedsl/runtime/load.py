"""Emitted sources to modules, and which way kernels run in this process."""

from __future__ import annotations

import functools
import sys
import threading
from types import ModuleType

import torch
import triton
import triton.language as tl
import triton.runtime.interpreter as triton_interpreter

from fusedsl.diagnostics import Diagnostic, FusedslError
from fusedsl.runtime import interpreter
from fusedsl.runtime.cache import Entry

_LOCK = threading.Lock()


def load(entry: Entry) -> ModuleType:
    """The module of an emitted source; the same source gives the same module.

    Compiled from the text at hand, not imported from the file: no bytecode file is left behind,
    and a file that another process replaces meanwhile does not matter.
    """
    name = f"fusedsl_emitted_{entry.digest}"
    with _LOCK:
        module = sys.modules.get(name)
        if module is not None:
            return module
        if interprets():
            interpreter.install()
        module = ModuleType(name)
        module.__file__ = entry.path
        sys.modules[name] = module  # `inspect` looks a function's module up here
        try:
            exec(compile(entry.text, entry.path, "exec"), module.__dict__)
        except BaseException:
            del sys.modules[name]
            raise
        return module


@functools.cache
def interprets() -> bool:
    """Whether Triton interprets kernels in this process: fixed while triton is imported."""
    return isinstance(tl.standard._sum_combine, triton_interpreter.InterpretedFunction)


def check_device(device: torch.device) -> None:
    """Raise FusedslError (F0604) where kernels on this device cannot run in this process."""
    if interprets():
        interpreter.install()
        return
    if device.type == "cuda":
        return
    raise FusedslError(
        Diagnostic(
            "F0604",
            f"tensors on '{device}' need Triton's interpreter, which is off in this process",
            expected="CUDA tensors, or a process that interprets",
            got=f"tensors on '{device}' and kernels that are compiled",
            where=f"triton {triton.__version__}",
            fix="move the tensors to a GPU, or set TRITON_INTERPRET=1 before anything imports "
            "triton",
        )
    )
