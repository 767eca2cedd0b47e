"""Tables of tuned configurations that ship with fusedsl, one JSON file per architecture.

`python -m benchmarks.tables` makes them; nothing in them is written by hand. An entry stands for a
bucket: a family of kernels, a main loop, a row class, and N and K within a factor of 2^(1/4) of
those it was measured at. A table is only used with the release of triton that made it.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from fusedsl.schedule.config import TileConfig

#: Half-octaves: buckets per doubling of a dimension.
_PER_OCTAVE = 2


@dataclass(frozen=True)
class Entry:
    """The fastest configuration that was measured in a bucket.

    `config.programs` counts programs per multiprocessor here. `ms` and `default_ms` are medians of
    the best configuration and of what the time model chose.
    """

    family: str
    main_loop: str
    rows: int
    cols: int
    depth: int
    config: TileConfig
    ms: float
    default_ms: float

    @property
    def key(self) -> tuple[str, str, int, int, int]:
        """What is looked up."""
        return key_of(self.family, self.main_loop, self.rows, self.cols, self.depth)

    def to_json(self) -> dict[str, Any]:
        """Every field by name."""
        return asdict(self)


def key_of(
    family: str, main_loop: str, rows: int, cols: int, depth: int
) -> tuple[str, str, int, int, int]:
    """The bucket of a kernel; `rows` is a row class."""
    return family, main_loop, rows, bucket(cols), bucket(depth)


def bucket(size: int) -> int:
    """The nearest half-octave of a dimension: 4096 is 24 and stands for 3445 to 4870."""
    return round(_PER_OCTAVE * math.log2(max(1, size)))


_SHIPPED = ContextVar("shipped tables", default=True)


@contextmanager
def unused() -> Iterator[None]:
    """No table within the block: what the model alone chooses."""
    token = _SHIPPED.set(False)
    try:
        yield
    finally:
        _SHIPPED.reset(token)


def table(arch: str) -> Mapping[tuple[str, str, int, int, int], Entry]:
    """The entries for an architecture by key; none for another triton than the one they are of."""
    return _read(arch) if _SHIPPED.get() else {}


@functools.cache
def _read(arch: str) -> Mapping[tuple[str, str, int, int, int], Entry]:
    path = Path(__file__).parent / f"{arch}.json"
    if not path.is_file():
        return {}
    record = json.loads(path.read_text(encoding="utf-8"))
    if record["versions"]["triton"] != triton_version():
        return {}
    return {entry.key: entry for entry in map(entry_of, record["rows"])}


def entry_of(given: Mapping[str, Any]) -> Entry:
    """An entry from JSON."""
    names = {f.name for f in fields(Entry)}
    values = {name: value for name, value in given.items() if name in names}
    return Entry(**{**values, "config": TileConfig(**given["config"])})


def triton_version() -> str:
    """The release of triton that is installed, without importing it; "" if there is none."""
    try:
        return version("triton")
    except PackageNotFoundError:
        return ""
