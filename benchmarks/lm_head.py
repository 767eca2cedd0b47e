"""A language-model head and its loss on a GPU: norm, projection, softcap and cross-entropy.

    python -m benchmarks.lm_head [--rows 8192] [--width 2048] [--vocabulary 128256] [--no-compile]

The limit is the bare cuBLAS projection, which stores the logits. Peers are the same chain in eager
torch (in pieces of the rows where its fp32 logits would not fit) and under torch.compile. The loss
of some rows is verified against fp64 first; each row records the memory that a call takes beside
its operands, as a fraction of the logits.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import fusedsl
from benchmarks.chains import rms_norm
from benchmarks.common import collect, row, side_by_side

#: Time over the bare projection's, and memory over the logits'.
BAR, MEMORY_BAR = 1.05, 0.02
#: Rows compared with fp64.
CHECKED = 64
#: Rows that eager computes at a time.
PIECE = 2048
CAP = 30.0

PROGRAM = """
kernel head(x: bf16[M, {d}], gain: weight bf16[{d}], w: weight bf16[{v}, {d}], target: i64[M])
    -> (loss: fp32[M, 1]) {{
  logits = {logits};
  loss = cross_entropy(logits, target);
}}"""
PLAIN = "linear(rms_norm(x, gain, eps=1e-6), w)"


def loss_of(x: Tensor, gain: Tensor, w: Tensor, target: Tensor, capped: bool) -> Tensor:
    """The chain in torch, in the dtypes of its operands; the loss of each row, fp32 or wider."""
    logits = F.linear(rms_norm(x, gain), w)
    if capped:
        logits = CAP * torch.tanh(logits / CAP)
    wide = logits if logits.dtype == torch.float64 else logits.float()
    return F.cross_entropy(wide, target, reduction="none")


def measure(rows: int, d: int, v: int, capped: bool, modes: tuple[str, ...]) -> dict[str, Any]:
    """One head: verify, measure memory, then time everything in turns."""
    x = torch.randn(rows, d, device="cuda").bfloat16()
    gain = (1 + 0.1 * torch.randn(d, device="cuda")).bfloat16()
    w = (torch.randn(v, d, device="cuda") / d**0.5).bfloat16()
    target = torch.randint(v, (rows,), device="cuda")
    logits = f"softcap({PLAIN}, cap={CAP:g})" if capped else PLAIN
    bound = fusedsl.compile(PROGRAM.format(d=d, v=v, logits=logits)).bind(gain=gain, w=w)
    head, named = x[:CHECKED], target[:CHECKED]
    exact = loss_of(head.double(), gain.double(), w.double(), named, capped)
    loss = bound(x, target)
    assert isinstance(loss, Tensor)
    error = _distance(loss[:CHECKED, 0], exact)
    eager_error = _distance(loss_of(head, gain, w, named, capped), exact)
    memory = _extra_bytes(lambda: bound(x, target)) / (rows * v * x.element_size())
    pieces = list(zip(x.split(PIECE), target.split(PIECE), strict=True))
    calls: dict[str, Callable[[], Any]] = {
        "ours": lambda: bound(x, target),
        "bare": lambda: x @ w.t(),
        "eager": lambda: [loss_of(a, gain, w, t, capped) for a, t in pieces],
    }
    for mode in modes:
        compiled = torch.compile(loss_of, mode=None if mode == "default" else mode)
        calls[f"torch.compile {mode}"] = lambda c=compiled: c(x, gain, w, target, capped)
    times = side_by_side(calls)
    others = {peer: ms for peer, ms in times.items() if peer not in ("ours", "bare")}
    name = f"M {rows}, d {d}, V {v}: rms_norm, head, {'softcap, ' * capped}cross_entropy"
    found = row(name, times["ours"], times["bare"], others, BAR, error=error)
    fits = memory <= MEMORY_BAR
    return {
        **found,
        "eager_error": eager_error,
        "memory_of_logits": round(memory, 5),
        "memory_bar": MEMORY_BAR,
        "holds": found["holds"] and fits,
    }


def _extra_bytes(call: Callable[[], Any]) -> int:
    """The most memory that a call holds beside what was allocated before it."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def _distance(got: Tensor, exact: Tensor) -> float:
    return float((got.double() - exact).norm() / exact.norm())


def main() -> None:
    """Measure and write `results/lm_head.json`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=8192)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--vocabulary", type=int, default=128256)
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    options = parser.parse_args()
    modes = () if options.no_compile else ("default",)
    sizes = (options.rows, options.width, options.vocabulary)
    with torch.no_grad():
        collect("lm_head", (measure(*sizes, capped, modes) for capped in (False, True)))


if __name__ == "__main__":
    main()
