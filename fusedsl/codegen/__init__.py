"""Kernel plans to readable Triton source; holds no Triton text of its own.

| module | does |
|---|---|
| `emit` | a program's file |
| `kernels` | fills one skeleton from one kernel plan |
| `body` | loads, calls and stores of a kernel's nodes |
| `helpers` | copies the blocks' Triton functions |
| `templates` | the jinja2 environment |
| `names` | unique variable names |
| `source` | what the run time receives |
"""

from fusedsl.codegen.emit import emit
from fusedsl.codegen.kernels import is_resident
from fusedsl.codegen.source import (
    COMPILE_TIME_ROLES,
    COUNTERS,
    Arg,
    KernelSource,
    ProgramSource,
    column_tiles,
    compile_time_value,
    parts,
    tile_group,
)

__all__ = [
    "COMPILE_TIME_ROLES",
    "COUNTERS",
    "Arg",
    "KernelSource",
    "ProgramSource",
    "column_tiles",
    "compile_time_value",
    "emit",
    "is_resident",
    "parts",
    "tile_group",
]
