"""Arithmetic of tile sizes, and their limits."""

from __future__ import annotations

#: Threads of a program, on every target.
MAX_THREADS = 1024

#: Elements of a tile: Triton's own limit on a tensor.
MAX_ELEMENTS = 1 << 20

#: Shared memory that the hardware keeps of every program's share, in bytes (CUDA C++ Programming
#: Guide, compute capabilities 8.x and 9.0).
RESERVED = 1024

#: 32-bit registers of a multiprocessor, and the most that one thread can have (NVIDIA).
REGISTERS, PER_THREAD = 65_536, 255


def power_of_two(value: int) -> int:
    """The smallest power of two that is at least `value`."""
    return 1 << max(0, value - 1).bit_length()
