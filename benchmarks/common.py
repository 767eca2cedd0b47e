"""What every benchmark shares: the record of a run, and medians measured side by side."""

from __future__ import annotations

import json
import platform
import shlex
import statistics
import sys
from collections.abc import Callable, Mapping
from datetime import date
from pathlib import Path
from typing import Any

import torch
import triton

RESULTS = Path(__file__).parent / "results"


def versions() -> dict[str, str]:
    """Versions that a figure depends on."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": triton.__version__,
    }


def device_name() -> str:
    """The GPU, or "none" and the processor's architecture."""
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    return f"none ({platform.machine()})"


def write(name: str, rows: list[dict[str, Any]], **extra: Any) -> Path:
    """Write `results/<name>.json` and give its path."""
    RESULTS.mkdir(exist_ok=True)
    module = Path(sys.argv[0]).stem
    command = shlex.join(["python", "-m", f"benchmarks.{module}", *sys.argv[1:]])
    record = {
        "command": command,
        "versions": versions(),
        "gpu": device_name(),
        "date": date.today().isoformat(),
        **extra,
        "rows": rows,
    }
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(record, indent=1) + "\n")
    return path


def side_by_side(
    calls: Mapping[str, Callable[[], Any]], *, rounds: int = 5, rep: int = 60
) -> dict[str, float]:
    """Median milliseconds of each call on the GPU, measured in turns in one process.

    Each round times every call once (`rep` ms of repetitions, L2 flushed in between, as
    `triton.testing.do_bench` does); the result is the median over the rounds.
    """
    from triton.testing import do_bench

    samples: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    torch.cuda.synchronize()
    for _ in range(rounds):
        for name, call in calls.items():
            samples[name].append(do_bench(call, warmup=15, rep=rep, return_mode="median"))
    return {name: statistics.median(values) for name, values in samples.items()}


def row(
    name: str, ours_ms: float, limit_ms: float, peers: Mapping[str, float], bar: float, **extra: Any
) -> dict[str, Any]:
    """One row of a results file: it holds where ours is at most `bar` times the limit."""
    return {
        "name": name,
        "ours_ms": round(ours_ms, 5),
        "limit_ms": round(limit_ms, 5),
        "ratio": round(ours_ms / limit_ms, 4),
        "peers": {peer: round(ms, 5) for peer, ms in peers.items()},
        "bar": bar,
        "holds": ours_ms <= bar * limit_ms,
        **extra,
    }
