"""Norms, projections, activations and residuals of a transformer's MLP and attention on a GPU.

    python -m benchmarks.chains [--sizes 1B,8B] [--chains swiglu,qkv] [--no-compile]

The limit of a chain is its bare cuBLAS projections: no norm, no activation, no residual. Peers are
the same chain in eager torch, under torch.compile, and by Quack, which is left out where it is not
installed: its norm, then its GEMM with what follows as the epilogue, each GEMM tuned by Quack and
the weights laid out as it wants them before the timing. All outputs are verified against fp64
first.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import fusedsl
from benchmarks.common import collect, quack_call, row, side_by_side
from fusedsl.runtime.report import allowed_error
from fusedsl.runtime.roofline import copy_bandwidth, limit, product_flops

#: name → (rows, hidden, feed-forward, width of q, k and v together)
SIZES = {
    "125M": (16384, 768, 3072, 2304),
    "1B": (8192, 2048, 8192, 3072),
    "8B": (8192, 4096, 14336, 6144),
}
#: Rows compared with fp64.
CHECKED = 256


@dataclass(frozen=True)
class Chain:
    """One chain: its program, the same in torch, and the projections that bound it.

    `program` is filled with d, f, f2 and q; `bare` names (activation, weight) of each projection.
    """

    title: str
    program: str
    eager: Callable[..., Tensor]
    bare: tuple[tuple[str, str], ...]
    bar: float


def rms_norm(x: Tensor, gain: Tensor) -> Tensor:
    """RMSNorm in Llama's cast order."""
    wide = x if x.dtype == torch.float64 else x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * gain


def swiglu(z: Tensor) -> Tensor:
    """silu(gate) * up of a stacked projection."""
    gate, up = z.chunk(2, dim=-1)
    return F.silu(gate) * up


def norm_gelu(x: Tensor, gain: Tensor, shift: Tensor, w: Tensor, bias: Tensor) -> Tensor:
    """A LayerNorm, a projection with a bias, and GELU by tanh."""
    normed = F.layer_norm(x, gain.shape, gain, shift)
    return F.gelu(F.linear(normed, w, bias), approximate="tanh")


CHAINS = {
    "qkv": Chain(
        "rms_norm, qkv",
        """kernel chain(x: bf16[M, {d}], gain: weight bf16[{d}], w: weight bf16[{q}, {d}])
            -> (y: bf16[M, {q}]) {{ y = linear(rms_norm(x, gain, eps=1e-6), w); }}""",
        lambda x, gain, w: F.linear(rms_norm(x, gain), w),
        (("x", "w"),),
        1.03,
    ),
    "swiglu": Chain(
        "rms_norm, gate_up, swiglu",
        """kernel chain(x: bf16[M, {d}], gain: weight bf16[{d}], w: weight bf16[{f2}, {d}])
            -> (y: bf16[M, {f}]) {{ y = swiglu(linear(rms_norm(x, gain, eps=1e-6), w)); }}""",
        lambda x, gain, w: swiglu(F.linear(rms_norm(x, gain), w)),
        (("x", "w"),),
        1.02,
    ),
    "down": Chain(
        "down, residual",
        """kernel chain(h: bf16[M, {f}], x: bf16[M, {d}], w: weight bf16[{d}, {f}])
            -> (y: bf16[M, {d}]) {{ y = linear(h, w) + x; }}""",
        lambda h, x, w: F.linear(h, w) + x,
        (("h", "w"),),
        1.03,
    ),
    "gelu": Chain(
        "layer_norm, linear, bias, gelu",
        """kernel chain(x: bf16[M, {d}], gain: weight bf16[{d}], shift: weight bf16[{d}],
                       w: weight bf16[{f}, {d}], bias: weight bf16[{f}]) -> (y: bf16[M, {f}]) {{
            y = gelu(linear(layer_norm(x, gain, shift), w, bias), approximate=tanh); }}""",
        norm_gelu,
        (("x", "w"),),
        1.03,
    ),
    "mlp": Chain(
        "whole MLP block",
        """kernel chain(x: bf16[M, {d}], gain: weight bf16[{d}], w: weight bf16[{f2}, {d}],
                       v: weight bf16[{d}, {f}]) -> (y: bf16[M, {d}]) {{
            y = linear(swiglu(linear(rms_norm(x, gain, eps=1e-6), w)), v) + x; }}""",
        lambda x, gain, w, v: F.linear(swiglu(F.linear(rms_norm(x, gain), w)), v) + x,
        (("x", "w"), ("h", "v")),
        1.03,
    ),
    "between": Chain(
        "down, residual, layer_norm, linear, bias, gelu",
        """kernel chain(h: bf16[M, {f}], x: bf16[M, {d}], w: weight bf16[{d}, {f}],
                       gain: weight bf16[{d}], shift: weight bf16[{d}], v: weight bf16[{f}, {d}],
                       bias: weight bf16[{f}]) -> (y: bf16[M, {f}]) {{
            r = linear(h, w) + x;
            y = gelu(linear(layer_norm(r, gain, shift), v, bias), approximate=tanh); }}""",
        lambda h, x, w, *rest: norm_gelu(F.linear(h, w) + x, *rest),
        (("h", "w"), ("x", "v")),
        1.03,
    ),
}


def measure(size: str, chain: Chain, modes: tuple[str, ...]) -> dict[str, Any]:
    """One chain at one size: verify, then time everything in turns."""
    rows, d, f, q = SIZES[size]
    program = fusedsl.compile(chain.program.format(d=d, f=f, f2=2 * f, q=q))
    graph = program.graph("source")
    signature = graph.params
    inputs = {p.name: _random(p.type.concrete({"M": rows}), p.weight) for p in signature}
    weights = {p.name: inputs[p.name] for p in signature if p.weight}
    given = [inputs[p.name] for p in signature if not p.weight]
    every = list(inputs.values())
    bound = program.bind(weights)
    head = [t if p.weight else t[:CHECKED] for p, t in zip(signature, every, strict=True)]
    exact = chain.eager(*(t.double() for t in head))
    error = _distance(bound(*given)[:CHECKED], exact)
    eager_error = _distance(chain.eager(*head), exact)
    pairs = [
        (inputs.get(a, torch.randn(rows, f, device="cuda").bfloat16()), inputs[w])
        for a, w in chain.bare
    ]
    calls: dict[str, Callable[[], Any]] = {
        "ours": lambda: bound(*given),
        "bare": lambda: [a @ w.t() for a, w in pairs],
        "eager": lambda: chain.eager(*every),
    }
    for mode in modes:
        compiled = torch.compile(chain.eager, mode=None if mode == "default" else mode)
        calls[f"torch.compile {mode}"] = lambda compiled=compiled: compiled(*every)
    most = allowed_error(eager_error, CHECKED)
    quack, absent = quack_call(graph, inputs, lambda y: _distance(y[:CHECKED], exact) <= most)
    calls |= quack
    times = side_by_side(calls)
    others = {peer: ms for peer, ms in times.items() if peer not in ("ours", "bare")}
    found = row(f"{size}: {chain.title}", times["ours"], times["bare"], others, chain.bar)
    least = limit(graph, {"M": rows}, "cuda")
    more: dict[str, Any] = {"flops": least.work, "bytes": least.moved}
    if absent:
        more["absent"] = absent
    return {**found, "error": error, "eager_error": eager_error, **more}


def _random(shape: tuple[int, ...], weight: bool) -> Tensor:
    data = torch.randn(shape, device="cuda")
    if weight and len(shape) == 2:
        data /= math.sqrt(shape[-1])
    elif weight:
        data = 1 + 0.1 * data
    return data.bfloat16()


def _distance(got: Tensor, exact: Tensor) -> float:
    return float((got.double() - exact).norm() / exact.norm())


def main() -> None:
    """Measure and write `results/chains.json`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default=",".join(SIZES))
    parser.add_argument("--chains", default=",".join(CHAINS))
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    options = parser.parse_args()
    modes = () if options.no_compile else ("default", "max-autotune-no-cudagraphs")
    peak = {
        "bandwidth_gb_s": round(copy_bandwidth("cuda") / 1e9, 1),
        "tflops": {"bf16": round(product_flops("cuda", torch.bfloat16) / 1e12, 1)},
    }
    picked = product(options.sizes.split(","), options.chains.split(","))
    rows = (measure(size, CHAINS[name], modes) for size, name in picked)
    collect("chains", rows, peak=peak)


if __name__ == "__main__":
    main()
