"""rms_norm → gate_up → swiglu on a GPU, against the bare cuBLAS projection and torch.compile.

    python -m benchmarks.chains [--sizes 1B,8B] [--no-compile]

The limit is the projection alone: no norm, no activation. All outputs are verified first.
"""

from __future__ import annotations

import argparse
import math
from typing import Any

import torch
import torch.nn.functional as F

import fusedsl
from benchmarks.common import row, side_by_side, write

#: name → (rows, hidden, feed-forward)
SIZES = {"125M": (16384, 768, 3072), "1B": (8192, 2048, 8192), "8B": (8192, 4096, 14336)}

PROGRAM = """
kernel norm_gate_up_swiglu(
    x: bf16[M, {hidden}], gain: weight bf16[{hidden}], w: weight bf16[{stacked}, {hidden}]
) -> (y: bf16[M, {ff}]) {{
  y = swiglu(linear(rms_norm(x, gain, eps=1e-6), w));
}}
"""


def eager(x: torch.Tensor, gain: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """The chain as a user writes it (Llama's cast order)."""
    wide = x.float()
    scaled = (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype)
    gate, up = F.linear(scaled * gain, w).chunk(2, dim=-1)
    return F.silu(gate) * up


def measure(name: str, peers: tuple[str, ...]) -> dict[str, Any]:
    """One size: verify, then time everything in turns."""
    rows, hidden, ff = SIZES[name]
    x = torch.randn(rows, hidden, device="cuda", dtype=torch.bfloat16)
    gain = (1 + 0.1 * torch.randn(hidden, device="cuda")).bfloat16()
    w = (torch.randn(2 * ff, hidden, device="cuda") / math.sqrt(hidden)).bfloat16()
    text = PROGRAM.format(hidden=hidden, stacked=2 * ff, ff=ff)
    bound = fusedsl.compile(text).bind(gain=gain, w=w)
    exact = eager(x[:512].double(), gain.double(), w.double())
    error = float((bound(x)[:512].double() - exact).norm() / exact.norm())
    eager_error = float((eager(x[:512], gain, w).double() - exact).norm() / exact.norm())
    calls = {
        "ours": lambda: bound(x),
        "bare": lambda: x @ w.t(),
        "eager": lambda: eager(x, gain, w),
    }
    for mode in peers:
        compiled = torch.compile(eager, mode=None if mode == "default" else mode)
        calls[f"torch.compile {mode}"] = lambda compiled=compiled: compiled(x, gain, w)
    times = side_by_side(calls)
    others = {peer: ms for peer, ms in times.items() if peer not in ("ours", "bare")}
    return row(
        f"{name}: rms_norm, gate_up, swiglu",
        times["ours"],
        times["bare"],
        others,
        1.02,
        error=error,
        eager_error=eager_error,
    )


def main() -> None:
    """Measure and write `results/chains.json`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default=",".join(SIZES))
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    options = parser.parse_args()
    modes = () if options.no_compile else ("default", "max-autotune-no-cudagraphs")
    rows = []
    for size in options.sizes.split(","):
        rows.append(measure(size, modes))
        print(rows[-1], flush=True)
    print(write("chains", rows))


if __name__ == "__main__":
    main()
