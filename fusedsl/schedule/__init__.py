"""Tile configurations: legality, the deterministic default, the space that tuning searches.

| module | does |
|---|---|
| `config` | the record of every compile-time number |
| `target` | machines: architecture, shared memory, main loop |
| `legality` | what a configuration must satisfy; shared memory |
| `signature` | the key of a kernel: its family, its code without sizes, its extent |
| `model` | the predicted time of a projection |
| `tables` | tuned configurations that ship |
| `hopper` | the default of 16-bit projections on Hopper, by table or model |
| `classes` | numbers of rows that one choice serves |
| `default` | the configuration without tuning |
| `rows` | the same for row kernels |
| `few_rows` | the same for projections that stream their weights |
| `ring` | the same for those of them in Gluon, and where they pay |
| `specialised` | the same for specialised projections, and where they pay |
| `in_turn` | the same for those whose groups of warps take tiles in turn |
| `cluster` | the same for row kernels whose rows clusters of programs share |
| `space` | every configuration worth timing |
"""

from fusedsl.schedule.classes import ROW_CLASSES, row_class
from fusedsl.schedule.cluster import has_room_to_widen, pays_in_cluster, pays_to_stay
from fusedsl.schedule.config import TileConfig
from fusedsl.schedule.default import choose
from fusedsl.schedule.in_turn import pays_in_turn
from fusedsl.schedule.legality import problem
from fusedsl.schedule.ring import pays_in_ring
from fusedsl.schedule.rows import (
    ALONE_COLUMNS,
    CENTRED_COLUMNS,
    CHAINED_COLUMNS,
    LOOPED_COLUMNS,
    LOOPED_OTHERS,
    RESIDENT_COLUMNS,
    SHARED_COLUMNS,
    is_resident,
    is_shared,
    row_segments,
)
from fusedsl.schedule.signature import Extent, family, signature
from fusedsl.schedule.sizes import MAX_THREADS, power_of_two
from fusedsl.schedule.space import candidates
from fusedsl.schedule.specialised import fills, may_specialise, pays
from fusedsl.schedule.target import Target, usable_loop

__all__ = [
    "ALONE_COLUMNS",
    "CENTRED_COLUMNS",
    "CHAINED_COLUMNS",
    "LOOPED_COLUMNS",
    "LOOPED_OTHERS",
    "MAX_THREADS",
    "RESIDENT_COLUMNS",
    "ROW_CLASSES",
    "SHARED_COLUMNS",
    "Extent",
    "Target",
    "TileConfig",
    "candidates",
    "choose",
    "family",
    "fills",
    "has_room_to_widen",
    "is_resident",
    "is_shared",
    "may_specialise",
    "pays",
    "pays_in_cluster",
    "pays_in_ring",
    "pays_in_turn",
    "pays_to_stay",
    "power_of_two",
    "problem",
    "row_class",
    "row_segments",
    "signature",
    "usable_loop",
]
