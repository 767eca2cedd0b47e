"""What every benchmark shares: where its results lie, and how they are written."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

from fusedsl.bench import device_name, record, row, versions
from fusedsl.runtime.timing import side_by_side

__all__ = ["RESULTS", "device_name", "row", "side_by_side", "versions", "write"]

RESULTS = Path(__file__).parent / "results"


def write(name: str, rows: list[dict[str, Any]], **extra: Any) -> Path:
    """Write `results/<name>.json` and give its path."""
    RESULTS.mkdir(exist_ok=True)
    module = Path(sys.argv[0]).stem
    command = shlex.join(["python", "-m", f"benchmarks.{module}", *sys.argv[1:]])
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(record(command, rows, **extra), indent=1) + "\n")
    return path
