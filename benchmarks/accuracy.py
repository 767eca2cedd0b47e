"""Every example's error against fp64, over that of the same chain in eager torch.

    python -m benchmarks.accuracy [--rows 1,17,128,4096] [--dtypes bf16,fp16,fp32] [--seeds 5]
                                  [--shrink 1] [--jobs 1]

Inputs are fresh for each seed: normal values, columns of 1000 sigma, zero rows, rows with a mean of
100 sigma; buffers hold NaN before each run. `--shrink 16` divides the hidden sizes (for the CPU).
The bar is 1.1 times eager's error, with no value that is finite in fp64 lost. An error is the root
mean square over the seeds: of one row, a single seed's error is mostly luck: one rounding that
the whole row shares. The worst single seed is reported beside it.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import re
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch

import fusedsl
from benchmarks.common import write
from fusedsl.runtime.report import Check

EXAMPLES = Path(__file__).parent.parent / "examples"
BAR = 1.1


def text_of(path: Path, dtype: str, shrink: int) -> str:
    """An example in another dtype, its sizes divided."""
    text = path.read_text().replace("bf16", dtype)
    return re.sub(r"\d{3,}", lambda m: str(max(32, int(m.group()) // shrink)), text)


def measure(job: tuple[str, str, int, int, int]) -> list[dict[str, Any]]:
    """One example, dtype and number of rows: a row for each kind of input."""
    name, dtype, rows, seeds, shrink = job
    program = fusedsl.compile(text_of(EXAMPLES / f"{name}.fdsl", dtype, shrink))
    report = program.verify(dims={"M": rows}, seeds=range(seeds))
    cases = dict.fromkeys(check.case for check in report.checks)
    return [
        _row(f"{name} {dtype} M={rows}: {case}", [c for c in report.checks if c.case == case])
        for case in cases
    ]


def _row(name: str, checks: list[Check]) -> dict[str, Any]:
    error = math.sqrt(sum(c.error**2 for c in checks) / len(checks))
    eager = math.sqrt(sum(c.eager_error**2 for c in checks) / len(checks))
    ratio = error / eager if eager else float(error > 0)
    finite = all(c.finite for c in checks)
    return {
        "name": name,
        "ratio": round(ratio, 4),
        "worst_seed_ratio": round(max(c.ratio for c in checks), 4),
        "error": error,
        "eager_error": eager,
        "finite": finite,
        "bar": BAR,
        "holds": ratio <= BAR and finite,
    }


def main() -> None:
    """Measure and write `results/accuracy_<gpu or interpreter>.json`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", default="1,17,128")
    parser.add_argument("--dtypes", default="bf16,fp16,fp32")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--shrink", type=int, default=1)
    parser.add_argument("--only", default="")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    options = parser.parse_args()
    names = (
        options.only.split(",") if options.only else sorted(p.stem for p in EXAMPLES.glob("*.fdsl"))
    )
    jobs = [
        (name, dtype, int(m), options.seeds, options.shrink)
        for m in reversed(options.rows.split(","))
        for name in names
        for dtype in options.dtypes.split(",")
    ]
    rows: list[dict[str, Any]] = []
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.jobs, mp_context=context) as pool:
        for done, found in enumerate(pool.map(measure, jobs), start=1):
            rows += found
            worst = max(found, key=lambda r: r["ratio"])
            print(f"{done}/{len(jobs)} {worst['name']} {worst['ratio']}", flush=True)
    where = "gpu" if torch.cuda.is_available() else "interpreter"
    print(write(f"accuracy_{where}", rows))
    missed = [r for r in rows if not r["holds"]]
    print(f"{len(rows) - len(missed)} of {len(rows)} hold")
    for r in missed:
        print(r)


if __name__ == "__main__":
    main()
