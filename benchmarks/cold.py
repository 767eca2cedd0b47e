"""The first call of `examples/llama_mlp.fdsl` in a fresh process: `python -m benchmarks.cold`

Two processes in a row share a cache folder that is empty before the first (the emitted sources and
Triton's binaries). Each is timed inside, after its imports and after the GPU's context and the
inputs exist: read, compile, bind, call, wait. The bars are 4 s with the empty cache and 0.5 s with
the warm one. The figures are medians over `--samples` pairs.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.common import row, write

#: Milliseconds that a first call may take: with an empty cache, and with a warm one.
LIMITS = {"empty cache": 4000.0, "warm cache": 500.0}
EXAMPLE = Path(__file__).parent.parent / "examples" / "llama_mlp.fdsl"
#: Rows of the call.
ROWS = 4096


def first_call(rows: int) -> dict[str, float]:
    """Milliseconds of each part of the first call in this process."""
    import torch

    import fusedsl
    from fusedsl.ir import random_inputs

    device = "cuda"
    graph = fusedsl.compile(EXAMPLE).graph("source")  # the language's own imports are not timed
    inputs = random_inputs(graph, {"M": rows}, seed=0, device=device)
    torch.mm(inputs["x"][:64], inputs["x"][:64].t())  # cuBLAS too belongs to the context
    torch.cuda.synchronize()
    parts: dict[str, float] = {}
    started = last = time.perf_counter()

    def lap(name: str) -> None:
        nonlocal last
        torch.cuda.synchronize()
        now = time.perf_counter()
        parts[name], last = (now - last) * 1e3, now

    program = fusedsl.compile(EXAMPLE)
    lap("compile_ms")
    bound = program.bind({p.name: inputs[p.name] for p in graph.params if p.weight})
    lap("bind_ms")
    y = bound(inputs["x"])
    lap("call_ms")
    parts["total_ms"] = (last - started) * 1e3
    assert bool(y.isfinite().all())
    return parts


def in_process(cache: str, rows: int) -> dict[str, float]:
    """`first_call` in a fresh process with a cache folder."""
    variables = {"FUSEDSL_CACHE_DIR": f"{cache}/fusedsl", "TRITON_CACHE_DIR": f"{cache}/triton"}
    command = [sys.executable, "-m", "benchmarks.cold", "--inside", "--rows", str(rows)]
    done = subprocess.run(
        command, env={**os.environ, **variables}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Measure and write `results/cold.json`."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--samples", type=int, default=3)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--inside", action="store_true", help="time this process and print it")
    options = parser.parse_args()
    if options.inside:
        print(json.dumps(first_call(options.rows)))
        return
    found: dict[str, list[dict[str, float]]] = {name: [] for name in LIMITS}
    for _ in range(options.samples):
        with tempfile.TemporaryDirectory() as cache:
            for samples in found.values():
                samples.append(in_process(cache, options.rows))
                print(samples[-1], flush=True)
    rows: list[dict[str, Any]] = []
    for name, samples in found.items():
        parts = {key: statistics.median(s[key] for s in samples) for key in samples[0]}
        total = parts.pop("total_ms")
        spread = {key: round(ms, 1) for key, ms in parts.items()}
        rows.append(row(f"first call, {name}", total, LIMITS[name], {}, 1.0, **spread))
    print(write("cold", rows))


if __name__ == "__main__":
    main()
