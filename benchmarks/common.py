"""What every benchmark shares: where its results lie, and how they are written."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from fusedsl.bench import device_name, record, row, versions
from fusedsl.bench.case import Case
from fusedsl.bench.peers import with_quack
from fusedsl.bench.quack import NOT_INSTALLED
from fusedsl.ir import Graph
from fusedsl.runtime import cache
from fusedsl.runtime.timing import side_by_side

__all__ = [
    "RESULTS", "collect", "device_name", "quack_call", "row", "side_by_side", "versions", "write",
]  # fmt: skip

RESULTS = Path(__file__).parent / "results"


def collect(name: str, rows: Iterable[dict[str, Any]], **extra: Any) -> Path:
    """Print each row as it is measured, and write `results/<name>.json` at the end.

    Until then the rows lie in `<name>.partial.json`, so that a run cut short leaves what it has
    measured and does not touch an older result.
    """
    done: list[dict[str, Any]] = []
    partial = f"{name}.partial"
    for found in rows:
        done.append(found)
        print(found, flush=True)
        write(partial, done, **extra)
    path = write(name, done, **extra)
    (RESULTS / f"{partial}.json").unlink(missing_ok=True)
    print(path)
    return path


def quack_call(
    graph: Graph, inputs: Mapping[str, Tensor], fits: Callable[[Tensor], bool]
) -> tuple[dict[str, Callable[[], Any]], dict[str, str]]:
    """`{"quack": call}`, tuned and its first output held against `fits`, or why there is none.

    Nothing of both where Quack is not installed.
    """
    found = with_quack(Case(graph, {}, "cuda", [dict(inputs)]))
    if found.absent.get("quack") == NOT_INSTALLED:
        return {}, {}
    calls = {c.name: c.calls[0] for c in found.contenders}
    for name, call in calls.items():
        if not fits(call()[0]):
            return {}, {name: "its result is wrong"}
    return calls, found.absent


def write(name: str, rows: list[dict[str, Any]], **extra: Any) -> Path:
    """Write `results/<name>.json`, at once or not at all, and give its path."""
    module = Path(sys.argv[0]).stem
    command = shlex.join(["python", "-m", f"benchmarks.{module}", *sys.argv[1:]])
    path = RESULTS / f"{name}.json"
    if not cache.write(path, json.dumps(record(command, rows, **extra), indent=1) + "\n"):
        raise SystemExit(f"{path} cannot be written")
    return path
