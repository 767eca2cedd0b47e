"""Tile configurations: legality and the deterministic default.

| module | does |
|---|---|
| `config` | the record of every compile-time number |
| `target` | machines: architecture, shared memory, main loop |
| `default` | the configuration without tuning |
| `rows` | the same for row kernels |
"""

from fusedsl.schedule.config import TileConfig
from fusedsl.schedule.default import (
    MAX_THREADS,
    ROW_CLASSES,
    choose,
    power_of_two,
    row_class,
)
from fusedsl.schedule.rows import (
    CHAINED_COLUMNS,
    LOOPED_COLUMNS,
    RESIDENT_COLUMNS,
    is_resident,
    is_shared,
    row_segments,
)
from fusedsl.schedule.target import Target

__all__ = [
    "CHAINED_COLUMNS",
    "LOOPED_COLUMNS",
    "MAX_THREADS",
    "RESIDENT_COLUMNS",
    "ROW_CLASSES",
    "Target",
    "TileConfig",
    "choose",
    "is_resident",
    "is_shared",
    "power_of_two",
    "row_class",
    "row_segments",
]
