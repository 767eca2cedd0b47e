"""The MLP block of a transformer with few rows, as in decoding, inside a CUDA graph.

    python -m benchmarks.decode [--sizes 1B,8B] [--rows 1,16,64] [--no-compile]

The graph holds the whole block (norm, gate and up projection, SwiGLU, down projection, residual)
once for each of eight sets of weights, so that no weight is found in the L2 cache; times are for
one block. The limit is one read of the weights at the speed of a device-to-device copy (bytes read
and written) measured in the same run, outside a graph: a graph hands copies to a slower engine.
Peers, eager torch and torch.compile, are captured as the product is. All outputs, taken after the
last replay, are verified against fp64.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import torch
from torch import Tensor

import fusedsl
from benchmarks.chains import CHAINS, SIZES
from benchmarks.common import collect, row
from fusedsl.runtime.roofline import copy_bandwidth
from fusedsl.runtime.timing import graph_ms

#: (size, most rows, bar): what a block may cost, in reads of its weights.
BARS = (("1B", 16, 1.15), ("1B", 64, 1.3), ("8B", 16, 1.08), ("8B", 64, 1.15))
#: Sets of weights in turn: together they are far larger than the L2 cache.
SETS = 8


def measure(size: str, rows: int, speed: float, modes: Sequence[str]) -> dict[str, Any]:
    """One size and number of rows: time all, then verify what the graphs left."""
    _, d, f, _ = SIZES[size]
    chain = CHAINS["mlp"]
    program = fusedsl.compile(chain.program.format(d=d, f=f, f2=2 * f, q=d))
    weights = [_weights(d, f) for _ in range(SETS)]
    x = torch.randn(rows, d, device="cuda").bfloat16()
    bound = [program.bind(w, frozen=True) for w in weights]
    elapsed, results = graph_ms([lambda b=b: b(x) for b in bound])
    error = max(_error(chain.eager, x, w, y) for w, y in zip(weights, results, strict=True))
    callables = {"eager": chain.eager}
    for mode in modes:
        torch._dynamo.reset()
        compiled = torch.compile(
            chain.eager, dynamic=False, mode=None if mode == "default" else mode
        )
        callables[f"torch.compile {mode}"] = compiled
    peers: dict[str, float] = {}
    for name, call in callables.items():
        peers[name], results = graph_ms([lambda c=call, w=w: c(x, *w.values()) for w in weights])
    eager_error = max(_error(chain.eager, x, w, chain.eager(x, *w.values())) for w in weights)
    limit = 3 * d * f * 2 / speed
    bar = next(b for name, most, b in BARS if name == size and rows <= most)
    found = row(f"{size}: MLP block, M {rows}", elapsed, limit, peers, bar)
    return {**found, "error": error, "eager_error": eager_error}


def _weights(d: int, f: int) -> dict[str, Tensor]:
    return {
        "gain": (1 + 0.1 * torch.randn(d, device="cuda")).bfloat16(),
        "w": (torch.randn(2 * f, d, device="cuda") / d**0.5).bfloat16(),
        "v": (torch.randn(d, f, device="cuda") / f**0.5).bfloat16(),
    }


def _error(
    eager: Callable[..., Tensor], x: Tensor, weights: dict[str, Tensor], got: Tensor
) -> float:
    exact = eager(x.double(), *(w.double() for w in weights.values()))
    return float((got.double() - exact).norm() / exact.norm())


def main() -> None:
    """Measure and write `results/decode.json`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default="1B,8B")
    parser.add_argument("--rows", default="1,16,64")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    options = parser.parse_args()
    modes = () if options.no_compile else ("default", "max-autotune-no-cudagraphs")
    speed = copy_bandwidth("cuda") / 1e3
    picked = product(options.sizes.split(","), options.rows.split(","))
    rows = (measure(size, int(count), speed, modes) for size, count in picked)
    collect("decode", rows, copy_gb_per_s=round(speed / 1e6, 1))


if __name__ == "__main__":
    main()
