"""The default configuration of a projection beside the tuned one, over shapes drawn at random.

    python -m benchmarks.defaults [--shapes 40] [--seed 1] [--limit 12] [--cliffs]

M is drawn from 1 to 32768, N and K from 256 to 32768, evenly in their logarithm; a third of the
shapes has N and K that are multiples of 64, a third multiples of 8, a third neither. Every
candidate is compiled first, in processes of their own; then each shape is timed in turns. `ours`
is the default, the limit is the fastest of all candidates, and cuBLAS is a peer. `--cliffs` takes
the shapes of the table of awkward sizes instead.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
from typing import Any

import torch
from rich.progress import track

import fusedsl
from benchmarks.common import row, write
from fusedsl.runtime.compile_ahead import compile_ahead
from fusedsl.runtime.tune import compile_jobs, medians, random_tensors, tune

PROGRAM = """
kernel projection(x: bf16[M, {k}], w: bf16[{n}, {k}]) -> (y: bf16[M, {n}]) {{ y = linear(x, w); }}
"""
CLIFFS = [(1000, 4096, 4096), (4097, 4096, 4096), (4096, 50257, 768), (1000, 151936, 2048),
          (4097, 4096, 1000), (4097, 2880, 2880), (4096, 4096, 1001), (1000, 3001, 4096),
          (4096, 4096, 4096)]  # fmt: skip
#: The default takes at most this many times the tuned time, on any shape and in the mean.
WORST, MEAN = 1 / 0.8, 0.95


def shapes(count: int, seed: int) -> list[tuple[int, int, int]]:
    """(M, N, K), each evenly drawn in its logarithm."""
    draw = random.Random(seed)

    def number(low: int, high: int, whole: int = 1) -> int:
        value = math.exp(draw.uniform(math.log(low), math.log(high)))
        return max(low, round(value / whole) * whole)

    steps = [(64, 8, 1)[i % 3] for i in range(count)]
    return [(number(1, 32768), number(256, 32768, s), number(256, 32768, s)) for s in steps]


class Projection:
    """One shape, its program and its tensors."""

    def __init__(self, m: int, n: int, k: int, limit: int):
        self.shape, self.limit = (m, n, k), limit
        self.program = fusedsl.compile(PROGRAM.format(n=n, k=k))

    def call(self) -> tuple[Any, ...]:
        """What `tune` takes; tensors live as long as the result."""
        device, env = torch.device("cuda", torch.cuda.current_device()), {"M": self.shape[0]}
        given = random_tensors(self.program.graph(), env, device)
        binding = self.program._binding_for(given)
        return self.program._engine, binding, self.program._names, given, env

    def jobs(self) -> list[Any]:
        """The jobs that compile its candidates."""
        return compile_jobs(*self.call(), limit=self.limit)

    def measure(self) -> dict[str, Any]:
        """Its row, and all trials."""
        engine, binding, names, given, env = self.call()
        found = tune(engine, binding, names, given, env, limit=self.limit, ahead=False)[-1]
        x, w = given
        peer = medians({"cublas": lambda: x @ w.t()}, x.device)
        m, n, k = self.shape
        trials = [
            {"config": t.config.__dict__, "ms": t.ms, "refused": t.refused} for t in found.trials
        ]
        times = [t.ms for t in found.trials if t.ms is not None]
        made = row(f"M {m} N {n} K {k}", found.default_ms, min(times), peer, WORST)
        return {**made, "main_loop": found.main_loop, "trials": trials}


def main() -> None:
    """Measure and write `results/defaults.json` (`results/cliffs.json`)."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shapes", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit", type=int, default=12, help="configurations of each shape")
    parser.add_argument("--cliffs", action="store_true", help="awkward sizes instead")
    options = parser.parse_args()
    drawn = CLIFFS if options.cliffs else shapes(options.shapes, options.seed)
    every = [Projection(*shape, options.limit) for shape in drawn]
    jobs = [job for one in track(every, "preparing") for job in one.jobs()]
    refused = [answer for answer in compile_ahead(jobs, progress) if answer]
    print(f"{len(jobs)} candidates, {len(refused)} do not compile", *set(refused), sep="\n")
    rows: list[dict[str, Any]] = []
    for one in every:
        rows.append(one.measure())
        print({k: v for k, v in rows[-1].items() if k != "trials"}, flush=True)
    speeds = [r["limit_ms"] / r["ours_ms"] for r in rows]
    mean, worst = statistics.fmean(speeds), min(speeds)
    holds = mean >= MEAN and worst >= 0.8
    found = {"mean": round(mean, 4), "worst": round(worst, 4), "holds": holds}
    print(write("cliffs" if options.cliffs else "defaults", rows, **found), found)


def progress(done: int, total: int) -> None:
    """A line for every fifty kernels."""
    if done % 50 == 0 or done == total:
        print(f"compiled {done} of {total}", flush=True)


if __name__ == "__main__":
    main()
