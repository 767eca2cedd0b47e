"""Every environment variable fusedsl reads, in one frozen dataclass.

`FUSEDSL_CACHE_DIR`: the folder of emitted sources; `$XDG_CACHE_HOME/fusedsl` or `~/.cache/fusedsl`
where it is not set.

`FUSEDSL_REPLAY`: `0` keeps calls that come again with the same addresses from running as CUDA
graphs.

`TRITON_INTERPRET`: Triton's own switch. `1` runs kernels on the CPU; where it is not set, it is
chosen by whether a GPU is usable.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Settings:
    """A snapshot of the environment."""

    cache_dir: Path
    replay: bool = True


def current() -> Settings:
    """Read the environment now (tests change it; nothing is cached)."""
    explicit = os.environ.get("FUSEDSL_CACHE_DIR")
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Settings(
        cache_dir=Path(explicit) if explicit else Path(base) / "fusedsl",
        replay=os.environ.get("FUSEDSL_REPLAY", "1") != "0",
    )


def choose_triton_mode() -> None:
    """Turn Triton's interpreter on where no GPU is usable; must run before triton is imported.

    Counts devices through the driver's management library, so that no CUDA context is made and
    a process that forks later can still use the GPU. An explicit `TRITON_INTERPRET` wins.
    """
    if "TRITON_INTERPRET" in os.environ:
        return
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    import torch

    if not torch.cuda.is_available():
        os.environ["TRITON_INTERPRET"] = "1"


def interpreting() -> bool:
    """Whether kernels run in Triton's interpreter in this process."""
    return os.environ.get("TRITON_INTERPRET", "0") == "1"
