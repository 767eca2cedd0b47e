"""Row kernels, forward, against a copy of the same bytes, torch.compile and Quack, on a GPU.

    python -m benchmarks.norms [--kinds rms_norm,layer_norm,softmax,residual] [--compiled none]

bf16 throughout; `residual` adds, gives the sum as a second output and norms it with a gain in
fp32. The bar is a fraction of the copy's speed: 0.95 where the input fits in the L2 cache, 0.97 up
to 32768 columns, 0.92 beyond. Quack is left out where it is not installed or wrong.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F

import fusedsl
from benchmarks.common import collect, quack_call, row, side_by_side
from fusedsl.runtime.report import allowed_error

SHAPES = (
    (32768, 256), (32768, 384), (32768, 1024), (32768, 4096), (32768, 5120), (32768, 8192),
    (16384, 16384), (8192, 32768), (8192, 65536), (4096, 131072), (2048, 262144),
)  # fmt: skip
#: Bytes of input and output that stay in the L2 cache of an H200.
IN_CACHE = 50_000_000

PROGRAMS = {
    "rms_norm": "kernel norm(x: bf16[M, {n}], gain: weight bf16[{n}]) -> (y: bf16[M, {n}]) "
    "{{ y = rms_norm(x, gain, eps=1e-6); }}",
    "layer_norm": "kernel norm(x: bf16[M, {n}], gain: weight bf16[{n}], shift: weight bf16[{n}]) "
    "-> (y: bf16[M, {n}]) {{ y = layer_norm(x, gain, shift); }}",
    "softmax": "kernel norm(x: bf16[M, {n}]) -> (y: bf16[M, {n}]) {{ y = softmax(x); }}",
    "residual": "kernel norm(x: bf16[M, {n}], r: bf16[M, {n}], gain: weight fp32[{n}]) "
    "-> (y: bf16[M, {n}], h: bf16[M, {n}]) "
    "{{ h = x + r; y = rms_norm(h, gain, eps=1e-6, cast=olmo2); }}",
}


def eager_of(kind: str, n: int) -> Callable[..., Any]:
    """The chain in plain torch: `(*tiles, *weights) -> y, or (y, h)`."""

    def residual(x: torch.Tensor, r: torch.Tensor, gain: torch.Tensor) -> Any:
        h = x + r
        return F.rms_norm(h.to(gain.dtype), (n,), gain, 1e-6).to(x.dtype), h

    return {
        "rms_norm": lambda x, gain: F.rms_norm(x, (n,), gain, 1e-6),
        "layer_norm": lambda x, gain, shift: F.layer_norm(x, (n,), gain, shift),
        "softmax": lambda x: torch.softmax(x, -1),
        "residual": residual,
    }[kind]


def operands(kind: str, m: int, n: int) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Tiles and weights of one kind, random."""
    count = 2 if kind == "residual" else 1
    tiles = [torch.randn(m, n, device="cuda", dtype=torch.bfloat16) for _ in range(count)]
    gain = torch.rand(n, device="cuda").bfloat16() + 0.5
    weights = {
        "softmax": [],
        "residual": [gain.float()],
        "layer_norm": [gain, torch.randn(n, device="cuda").bfloat16()],
    }.get(kind, [gain])
    return tiles, weights


def first(outputs: Any) -> torch.Tensor:
    """`y` of one or several outputs."""
    return outputs[0] if isinstance(outputs, tuple) else outputs


def measure(kind: str, m: int, n: int, compiled: bool) -> dict[str, Any]:
    """One kind of row kernel at one shape."""
    torch._dynamo.reset()
    torch.cuda.empty_cache()
    tiles, weights = operands(kind, m, n)
    eager = eager_of(kind, n)
    program: Any = fusedsl.compile(PROGRAMS[kind].format(n=n))
    graph = program.graph("source")
    names = [p.name for p in graph.params if p.weight]
    bound = program.bind(dict(zip(names, weights, strict=True))) if names else program
    exact = first(eager(*(t[:64].double() for t in tiles), *(w.double() for w in weights)))

    def error_of(y: torch.Tensor) -> float:
        return float((y[:64].double() - exact).norm() / exact.norm())

    error = error_of(first(bound(*tiles)))
    most = allowed_error(error_of(first(eager(*tiles, *weights))), 64)
    source = torch.cat(tiles)
    copied = torch.empty_like(source)
    calls: dict[str, Callable[[], Any]] = {
        "ours": lambda: bound(*tiles),
        "copy": lambda: copied.copy_(source),
        "eager": lambda: eager(*tiles, *weights),
    }
    if compiled:
        fast = torch.compile(eager, mode="max-autotune-no-cudagraphs")
        calls["torch.compile max-autotune"] = lambda: fast(*tiles, *weights)
    inputs = {p.name: t for p, t in zip(graph.params, [*tiles, *weights], strict=True)}
    quack, absent = quack_call(graph, inputs, lambda y: error_of(y) <= most)
    calls |= quack
    times = side_by_side(calls)
    cached = 4 * source.numel() <= IN_CACHE
    wanted = 0.95 if cached else 0.97 if n <= 32768 else 0.92
    peers = {name: ms for name, ms in times.items() if name not in ("ours", "copy")}
    found = row(f"{kind} {m} x {n}", times["ours"], times["copy"], peers, round(1 / wanted, 4))
    more = {"absent": absent} if absent else {}
    return {**found, "of_copy": round(times["copy"] / times["ours"], 4), "error": error, **more}


def main() -> None:
    """Measure and write `results/norms.json`."""
    parser = argparse.ArgumentParser(description=__doc__)
    every = ",".join(PROGRAMS)
    parser.add_argument("--kinds", default=every, help="which, with commas")
    parser.add_argument("--compiled", default=every, help="under torch.compile, too, or none")
    options = parser.parse_args()
    picked = product(SHAPES, options.kinds.split(","))
    compiled = options.compiled.split(",")
    collect("norms", (measure(kind, m, n, kind in compiled) for (m, n), kind in picked))


if __name__ == "__main__":
    main()
