"""What a schedule must know about the machine a kernel is compiled for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fusedsl.diagnostics import Diagnostic, FusedslError, did_you_mean

#: name → (backend, architecture, multiprocessors, shared memory per program in bytes).
#: NVIDIA limits: CUDA C++ Programming Guide, table of technical specifications (opt-in maximum);
#: AMD: LDS per workgroup of CDNA 2/3 (64 KiB) and CDNA 4 (160 KiB).
_KNOWN: dict[str, tuple[str, int | str, int, int]] = {
    "sm_80": ("cuda", 80, 108, 166_912),
    "sm_86": ("cuda", 86, 84, 101_376),
    "sm_89": ("cuda", 89, 142, 101_376),
    "sm_90": ("cuda", 90, 132, 232_448),
    "sm_100": ("cuda", 100, 148, 232_448),
    "sm_120": ("cuda", 120, 170, 101_376),
    "gfx90a": ("hip", "gfx90a", 104, 65_536),
    "gfx942": ("hip", "gfx942", 304, 65_536),
    "gfx950": ("hip", "gfx950", 256, 163_840),
}


@dataclass(frozen=True)
class Target:
    """A machine: `arch` is an integer for cuda, a gfx name for hip, 0 for the interpreter."""

    name: str
    backend: str
    arch: int | str
    sms: int
    shared_limit: int

    @property
    def main_loop(self) -> str:
        """The projection's main loop here: tensor descriptors from sm_90 on."""
        has_tma = self.backend == "interpreter" or (
            isinstance(self.arch, int) and self.arch >= 90 and self.backend == "cuda"
        )
        return "tma" if has_tma else "pointer"

    @property
    def has_pdl(self) -> bool:
        """Whether a kernel can be launched ahead of its predecessor's end: sm_90 and later."""
        return self.backend == "cuda" and isinstance(self.arch, int) and self.arch >= 90

    @property
    def warp_size(self) -> int:
        """Threads of a warp (wave)."""
        return 64 if self.backend == "hip" else 32

    @staticmethod
    def parse(name: str) -> Target:
        """A target by name. Raises FusedslError (F0602)."""
        if name not in _KNOWN:
            raise FusedslError(
                Diagnostic(
                    "F0602",
                    f"unknown target '{name}'",
                    expected=", ".join(_KNOWN),
                    got=name,
                    fix=did_you_mean(name, _KNOWN, "targets"),
                )
            )
        return Target(name, *_KNOWN[name])

    @staticmethod
    def interpreter() -> Target:
        """Triton's interpreter on the CPU: any tile fits, few large ones are fastest."""
        return Target("interpreter", "interpreter", 0, 1, 1 << 40)

    @staticmethod
    def of_device(backend: str, arch: int | str, sms: int, shared_limit: int) -> Target:
        """The target of a device that is present."""
        name = f"sm_{arch}" if backend == "cuda" else str(arch)
        return Target(name, backend, arch, sms, shared_limit)

    @staticmethod
    def names() -> tuple[str, ...]:
        """Every name `parse` knows."""
        return tuple(_KNOWN)


def usable_loop(wanted: str, fits: Mapping[str, bool]) -> str:
    """The main loop of a projection whose descriptors (by argument) can express their values or
    not: `wanted`, or what comes closest to it."""
    if wanted == "pointer" or not fits:
        return "pointer"
    if wanted == "tma" and all(fits.values()):
        return "tma"
    return "mixed" if fits["a_desc"] and fits["b_desc"] else "pointer"
