"""Tune projections over a grid of sizes and write the table that ships with fusedsl.

    python -m benchmarks.tables [--families plain,paired,residual] [--limit 8] [--seconds 600]

Each family is tuned at every N and K of the grid and at the upper end of the row classes that end
in a power of two. What the time model would have chosen is the default here, whatever a table says;
an entry is kept where the fastest configuration saves more than 2 % on it. Kernels are compiled
first, in processes of their own: rows are no part of that. `--seconds` bounds the timing; what is
left out is reported.
"""

from __future__ import annotations

import argparse
import json
import time
from datetime import date
from itertools import product
from pathlib import Path
from typing import Any

import torch

import fusedsl
from benchmarks.common import device_name, versions
from benchmarks.defaults import progress
from fusedsl.runtime.compile_ahead import Job, compile_ahead
from fusedsl.runtime.device import target_of
from fusedsl.runtime.tune import Tuned, compile_jobs, random_tensors, tune
from fusedsl.schedule import ROW_CLASSES, family, tables

PROGRAMS = {
    "plain": """kernel p(x: bf16[M, {k}], w: bf16[{n}, {k}]) -> (y: bf16[M, {n}]) {{
  y = linear(x, w); }}""",
    "paired": """kernel p(x: bf16[M, {k}], w: bf16[{n2}, {k}]) -> (y: bf16[M, {n}]) {{
  y = swiglu(linear(x, w)); }}""",
    "residual": """kernel p(x: bf16[M, {k}], w: bf16[{n}, {k}], r: bf16[M, {n}])
    -> (y: bf16[M, {n}]) {{ y = linear(x, w) + r; }}""",
}
#: The grid: centres of buckets.
SIZES = (1024, 2048, 4096, 8192, 16384)
#: A tuned configuration is shipped if it takes at most this share of the model's choice.
_WORTH = 0.98
FOLDER = Path(tables.__file__).parent


class Case:
    """One program of a family at one N and K."""

    def __init__(self, name: str, n: int, k: int, limit: int):
        self.limit = limit
        self.program = fusedsl.compile(PROGRAMS[name].format(n=n, n2=2 * n, k=k))
        self.device = torch.device("cuda", torch.cuda.current_device())
        (self.kernel,) = self.program.kernels

    def call(self, rows: int) -> tuple[Any, ...]:
        """What `tune` takes."""
        given = random_tensors(self.program.graph(), {"M": rows}, self.device)
        binding = self.program._binding_for(given)
        return self.program._engine, binding, self.program._names, given, {"M": rows}

    def jobs(self, classes: list[int]) -> list[Job]:
        """What compiles its candidates for every row class."""
        return [job for m in classes for job in compile_jobs(*self.call(m), limit=self.limit)]

    def entry(self, rows: int) -> tables.Entry | None:
        """The entry of a row class, if it is worth one."""
        (found,) = tune(*self.call(rows), limit=self.limit, ahead=False)
        if found.config == found.trials[0].config or found.ms > _WORTH * found.default_ms:
            return None
        return self._entry(found, rows)

    def _entry(self, found: Tuned, rows: int) -> tables.Entry:
        config = found.config
        config = type(config)(
            **{**config.__dict__, "programs": config.programs // target_of(self.device).sms}
        )
        name = family(self.program.plan, self.kernel)
        cols, depth = found.extent.cols, found.extent.depth
        ms, default = round(found.ms, 5), round(found.default_ms, 5)
        return tables.Entry(name, found.main_loop, rows, cols, depth, config, ms, default)


def distinct(jobs: list[Job]) -> list[Job]:
    """One job of each binary: the sizes that a tensor map holds are no part of it."""
    found: dict[str, Job] = {}
    for job in jobs:
        args = [
            {**a, "fields": {"block": a["fields"]["block_shape"]}} if "fields" in a else a
            for a in job.args
        ]
        rows = [i for i, a in enumerate(args) if "value" in a and type(a["value"]) is int]
        shown = [a for i, a in enumerate(args) if i not in rows[:1]]  # M: nothing depends on it
        found.setdefault(json.dumps([job.path, job.kernel, shown, job.options]), job)
    return list(found.values())


def main() -> None:
    """Tune and write `fusedsl/schedule/tables/<arch>.json`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--families", default=",".join(PROGRAMS))
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)))
    parser.add_argument("--limit", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--out", type=Path, default=FOLDER)
    options = parser.parse_args()
    classes = [top for top in ROW_CLASSES if top > 64 and top & (top - 1) == 0]
    sizes = [int(size) for size in options.sizes.split(",")]
    grid = list(product(options.families.split(","), sizes, sizes))
    with tables.unused():
        cases = [Case(name, n, k, options.limit) for name, n, k in grid]
        jobs = distinct([job for case in cases for job in case.jobs(classes)])
        compile_ahead(jobs, progress)
        entries, left = measured(cases, classes, time.monotonic() + options.seconds)
    arch = target_of(cases[0].device).name
    record = {
        "command": f"python -m benchmarks.tables --families {options.families} "
        f"--sizes {options.sizes} --limit {options.limit}",
        "versions": {**versions(), "fusedsl": fusedsl.__version__},
        "gpu": device_name(),
        "date": date.today().isoformat(),
        "measured": len(cases) * len(classes) - left,
        "rows": [entry.to_json() for entry in entries],
    }
    path = options.out / f"{arch}.json"
    path.write_text(json.dumps(record, indent=None).replace('{"family"', '\n{"family"') + "\n")
    print(f"{path}: {len(entries)} entries, {left} shapes left out")


def measured(
    cases: list[Case], classes: list[int], deadline: float
) -> tuple[list[tables.Entry], int]:
    """The entries of all cases and row classes, and how many shapes there was no time for."""
    entries: list[tables.Entry] = []
    left = 0
    for rows, case in product(classes, cases):
        if time.monotonic() > deadline:
            left += 1
            continue
        entry = case.entry(rows)
        if entry is not None:
            entries.append(entry)
    return entries, left


if __name__ == "__main__":
    main()
