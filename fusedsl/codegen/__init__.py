"""Kernel plans to readable Triton source; holds no Triton text of its own.

| module | does |
|---|---|
| `emit` | a program's file |
| `kernels` | fills one skeleton from one kernel plan |
| `rows` | the slots of row kernels |
| `few_rows` | projections of few rows |
| `ring` | those of few rows on Hopper, in Gluon |
| `specialised` | specialised projections, in Gluon |
| `in_turn` | those of two groups on tiles of their own |
| `cluster` | row kernels whose rows clusters of programs share, in Gluon |
| `cluster_body` | how these load and store |
| `body` | loads, calls and stores of a kernel's nodes |
| `tiles` | per-tile states and picks of a projection's epilogue |
| `scales` | factors that a statistic applies once for each row |
| `helpers` | copies the blocks' Triton functions |
| `templates` | the jinja2 environment |
| `names` | unique variable names |
| `source` | what the run time receives |
"""

from fusedsl.codegen.cluster import can_share_in_cluster
from fusedsl.codegen.emit import emit
from fusedsl.codegen.in_turn import can_take_turns
from fusedsl.codegen.ring import can_ring
from fusedsl.codegen.source import (
    ALIGNMENT,
    COMPILE_TIME_ROLES,
    COUNTERS,
    Arg,
    KernelSource,
    ProgramSource,
    column_tiles,
    compile_time_value,
    parts,
    tile_group,
    words,
    words_of,
)
from fusedsl.codegen.specialised import can_specialise

__all__ = [
    "ALIGNMENT",
    "COMPILE_TIME_ROLES",
    "COUNTERS",
    "Arg",
    "KernelSource",
    "ProgramSource",
    "can_ring",
    "can_share_in_cluster",
    "can_specialise",
    "can_take_turns",
    "column_tiles",
    "compile_time_value",
    "emit",
    "parts",
    "tile_group",
    "words",
    "words_of",
]
