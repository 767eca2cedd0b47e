"""What a call takes of the host, on a GPU and without a CUDA graph: `python -m benchmarks.host`

Two kernels: a projection with what surrounds it, and a second one that cannot join it, at a size
whose device time is shorter than the host's. A sample is a batch of 16 calls, the device idle
before it, so that the launch queue never fills; figures are medians over batches. The call comes
again with the same addresses, as in a loop; `single_launches_ms` is without the replay that this
makes possible (`FUSEDSL_REPLAY=0`). Peers: the same statements in eager torch and under
torch.compile. `ours_ms` and the rest are milliseconds of one call. The bar is 12 microseconds.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

import fusedsl
from benchmarks.common import collect, row
from fusedsl.ir import random_inputs
from fusedsl.runtime.timing import host_us

LIMIT_MS = 0.012

#: Programs of two kernels; the second is the MLP of a small Llama without the statistics' kernel.
PROGRAM = """
kernel mlp(x: bf16[M, 256], w_up: weight bf16[512, 256], w_down: weight bf16[256, 512])
    -> (y: bf16[M, 256]) {
  a = squared_relu(linear(x, w_up));
  y = linear(a, w_down) + x;
}
"""


def eager(x: torch.Tensor, w_up: torch.Tensor, w_down: torch.Tensor) -> torch.Tensor:
    """The same in torch."""
    return F.linear(F.relu(F.linear(x, w_up)).square(), w_down) + x


def measure(rows: int, compiled: bool) -> dict[str, Any]:
    """Host time of one call at a number of rows."""
    program = fusedsl.compile(PROGRAM)
    assert len(program.kernels) == 2, program.kernels
    inputs = random_inputs(program.graph("source"), {"M": rows}, seed=0, device="cuda")
    x, *weights = inputs.values()
    fixed = {n: t for n, t in inputs.items() if n != "x"}
    bound = program.bind(fixed)
    os.environ["FUSEDSL_REPLAY"] = "0"  # read when a call is prepared
    single = fusedsl.compile(PROGRAM).bind(fixed)
    single(x)
    single(x)
    del os.environ["FUSEDSL_REPLAY"]
    calls: dict[str, Callable[[], Any]] = {
        "ours": lambda: bound(x),
        "single": lambda: single(x),
        "eager": lambda: eager(x, *weights),
    }
    if compiled:
        fast = torch.compile(eager, dynamic=False)
        calls["torch.compile default"] = lambda: fast(x, *weights)
    exact = eager(*(t.double() for t in (x, *weights)))
    with torch.no_grad():
        got = {name: call() for name, call in calls.items()}
        errors = {n: float((y.double() - exact).norm() / exact.norm()) for n, y in got.items()}
        us = {name: host_us(call, "cuda") for name, call in calls.items()}
    peers = {name: t / 1e3 for name, t in us.items() if name not in ("ours", "single")}
    extra = {"error": errors["ours"], "eager_error": errors["eager"]}
    extra["single_launches_ms"] = us["single"] / 1e3
    found = row(f"two kernels, M={rows}", us["ours"] / 1e3, LIMIT_MS, peers, 1.0, **extra)
    assert errors["ours"] <= 1.1 * errors["eager"], errors
    return found


def main() -> None:
    """Measure and write `results/host.json`."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", default="1,64,256")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    options = parser.parse_args()
    counts = options.rows.split(",")
    collect("host", (measure(int(m), not options.no_compile) for m in counts))


if __name__ == "__main__":
    main()
