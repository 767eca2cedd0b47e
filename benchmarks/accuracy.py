"""Every example's error against fp64, over that of the same chain in eager torch.

    python -m benchmarks.accuracy [--rows 1,17,128,4096] [--dtypes bf16,fp16,fp32] [--seeds 5]
                                  [--shrink 1]

Inputs are fresh for each seed: normal values, columns of 1000 σ, zero rows, rows with a mean of
100 σ; buffers hold NaN before each run. `--shrink 16` divides the hidden sizes (for the CPU).
The bar is 1.1 times eager's error, with no value that is finite in fp64 lost.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

import fusedsl
from benchmarks.common import RESULTS, write  # noqa: F401

EXAMPLES = Path(__file__).parent.parent / "examples"
BAR = 1.1


def text_of(path: Path, dtype: str, shrink: int) -> str:
    """An example in another dtype, its sizes divided."""
    text = path.read_text().replace("bf16", dtype)
    return re.sub(r"\d{3,}", lambda m: str(max(32, int(m.group()) // shrink)), text)


def measure(path: Path, dtype: str, rows: int, seeds: int, shrink: int) -> dict[str, Any]:
    """The worst ratio over seeds and kinds of input."""
    program = fusedsl.compile(text_of(path, dtype, shrink))
    report = program.verify(dims={"M": rows}, seeds=range(seeds))
    worst = max(report.checks, key=lambda check: check.ratio)
    return {
        "name": f"{path.stem} {dtype} M={rows}",
        "ratio": round(worst.ratio, 4),
        "case": worst.case,
        "error": worst.error,
        "eager_error": worst.eager_error,
        "median_ratio": round(sorted(c.ratio for c in report.checks)[len(report.checks) // 2], 4),
        "finite": all(check.finite for check in report.checks),
        "bar": BAR,
        "holds": worst.ratio <= BAR and all(check.finite for check in report.checks),
    }


def main() -> None:
    """Measure and write `results/accuracy_<device>.json`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", default="1,17,128")
    parser.add_argument("--dtypes", default="bf16,fp16,fp32")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--shrink", type=int, default=1)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    rows = []
    for path in sorted(EXAMPLES.glob("*.fdsl")):
        if options.only and path.stem not in options.only.split(","):
            continue
        for dtype in options.dtypes.split(","):
            for m in map(int, options.rows.split(",")):
                rows.append(measure(path, dtype, m, options.seeds, options.shrink))
                print(rows[-1], flush=True)
    import torch

    where = "gpu" if torch.cuda.is_available() else "interpreter"
    print(write(f"accuracy_{where}", rows))
    missed = [r["name"] for r in rows if not r["holds"]]
    print(f"{len(rows) - len(missed)} of {len(rows)} hold; missed: {missed}")


if __name__ == "__main__":
    main()
