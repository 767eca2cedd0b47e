"""Tile configurations: legality and the deterministic default.

| module | does |
|---|---|
| `config` | the record of every compile-time number |
| `target` | machines: architecture, shared memory, main loop |
| `default` | the configuration without tuning |
| `few_rows` | the same for projections that stream their weights |
"""

from fusedsl.schedule.config import TileConfig
from fusedsl.schedule.default import (
    LOOPED_COLUMNS,
    MAX_THREADS,
    RESIDENT_COLUMNS,
    ROW_CLASSES,
    choose,
    row_class,
    row_segments,
)
from fusedsl.schedule.sizes import power_of_two
from fusedsl.schedule.target import Target

__all__ = [
    "LOOPED_COLUMNS",
    "MAX_THREADS",
    "RESIDENT_COLUMNS",
    "ROW_CLASSES",
    "Target",
    "TileConfig",
    "choose",
    "power_of_two",
    "row_class",
    "row_segments",
]
