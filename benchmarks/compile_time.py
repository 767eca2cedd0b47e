"""From text to emitted source, warm, on the host: `python -m benchmarks.compile_time`

Each sample reads the program's text and emits its file with tensor descriptors; nothing is cached
between samples but what a process loads once (the grammar, the block library). No GPU is needed.
The bar is 100 ms for `llama_mlp`; the other examples are rows beside it. Exits with 1 where a row
misses.
"""

from __future__ import annotations

import argparse
import statistics
import time

from rich.console import Console
from rich.table import Table

import fusedsl
from benchmarks.common import row, write
from examples import SMALL, read

LIMIT_MS = 100.0


def measure(text: str, samples: int) -> list[float]:
    """Milliseconds of each sample, the first two left out."""
    times: list[float] = []
    for _ in range(samples + 2):
        started = time.perf_counter()
        source = fusedsl.compile(text).source_for("tma")
        times.append((time.perf_counter() - started) * 1e3)
        assert "@triton.jit" in source
    return times[2:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--samples", type=int, default=20)
    arguments = parser.parse_args()
    table = Table("program", "median ms", "fastest", "slowest")
    rows = []
    for name in SMALL:
        times = measure(read(name), arguments.samples)
        spread = {"fastest_ms": round(min(times), 3), "slowest_ms": round(max(times), 3)}
        rows.append(row(name, statistics.median(times), LIMIT_MS, {}, 1.0, **spread))
        median = rows[-1]["ours_ms"]
        table.add_row(name, f"{median:.1f}", *(f"{ms:.1f}" for ms in spread.values()))
    Console().print(table)
    print(f"written: {write('compile_time', rows)}")
    raise SystemExit(0 if all(r["holds"] for r in rows) else 1)


if __name__ == "__main__":
    main()
