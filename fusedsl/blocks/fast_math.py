"""Triton helpers shared by activations: exp, tanh and sigmoid in a fast and a portable form.

`FAST` selects the hardware's approximations: `tanh.approx.f32` (one special-function instruction,
relative error about 2^-11: below bf16's and fp16's rounding, too coarse for fp32 outputs) and a
bare `ex2.approx`. What is built from tanh keeps that absolute, not relative, accuracy where it
nears 0: silu(x) is off by up to abs(x) * 2^-12 far below zero (`compile(fast_math=False)` avoids
it). The former needs inline PTX, so it is off in the interpreter, on AMD, and for
fp32 outputs. The portable forms are within a few units in the last place of fp32.
"""

# releases of triton type their functions differently
# pyright: reportArgumentType=false, reportOperatorIssue=false
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def fast_exp(x, FAST: tl.constexpr):
    """exp(x) in fp32.

    A GPU computes tl.exp(x) as 2^(x * log2 e); rounding that product costs abs(x) units in the
    last place. The portable form takes n * ln 2 off x in two exact steps first (Cody and Waite;
    the constants are FDLIBM's e_expf.c) and so stays within about 2. The fast form gives 0 where
    the result is below the normal numbers: keeping those costs three instructions more.
    """
    if FAST:
        return tl.exp2(x * 1.4426950408889634)
    else:
        n = tl.floor(x * 1.4426950408889634 + 0.5)
        n = tl.minimum(tl.maximum(n, -151.0), 129.0)
        rest = (x - n * 0.69313812256) - n * 9.0580006145e-06
        # 2^n overflows one step before the result does
        return tl.exp(rest) * 2.0 * tl.exp2(n - 1.0)


@triton.jit
def fast_tanh(x, FAST: tl.constexpr):
    """tanh(x) in fp32; the portable form is Cephes' tanhf: an odd polynomial, then exp."""
    if FAST:
        return tl.inline_asm_elementwise(
            "tanh.approx.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        z = x * x
        series = -5.70498872745e-3 * z + 2.06390887954e-2
        series = series * z - 5.37397155531e-2
        series = series * z + 1.33314422036e-1
        series = series * z - 3.33332819422e-1
        size = 1.0 - 2.0 / (fast_exp(2.0 * tl.abs(x), False) + 1.0)
        return tl.where(tl.abs(x) < 0.625, x + x * (series * z), tl.where(x < 0.0, -size, size))


@triton.jit
def fast_sigmoid(x, FAST: tl.constexpr):
    """1 / (1 + exp(-x)) in fp32; the fast form is 0.5 + 0.5 tanh(x / 2)."""
    if FAST:
        return 0.5 + 0.5 * fast_tanh(0.5 * x, FAST)
    else:
        return 1.0 / (1.0 + fast_exp(-x, FAST))


@triton.jit
def sigmoid_slope(x, FAST: tl.constexpr):
    """s (1 - s) with s = sigmoid(x), in fp32; the portable form does not cancel near s = 1."""
    if FAST:
        s = fast_sigmoid(x, FAST)
        return s * (1.0 - s)
    else:
        e = fast_exp(-tl.abs(x), FAST)
        large = 1.0 / (1.0 + e)
        return e * large * large


@triton.jit
def times_sigmoid(x, u, FAST: tl.constexpr):
    """x * sigmoid(2 u) = 0.5 x (1 + tanh u) in fp32; the portable form does not cancel."""
    if FAST:
        half = 0.5 * x
        return half + half * fast_tanh(u, FAST)
    else:
        return x / (1.0 + fast_exp(-2.0 * u, FAST))


@triton.jit
def times_tail(x):
    """x Q(x) for x >= 0, Q the upper tail of the normal distribution: the fast form alone.

    Abramowitz and Stegun 26.2.17, after Hastings (1955): the density times a polynomial in
    t = 1 / (1 + 0.2316419 x). The error of Q is at most 7.5e-8 and, being a share of the density,
    2^-11 of Q at x = 4 and 2^-8 at 6, where 1 + erf(-x / sqrt 2) has lost all its bits.
    """
    t = tl.inline_asm_elementwise(
        "rcp.approx.ftz.f32 $0, $1;", "=f,f", [1.0 + 0.2316419 * x],
        dtype=tl.float32, is_pure=True, pack=1,
    )  # fmt: skip
    series = 0.5307027144 * t - 0.7265760129
    series = series * t + 0.7107068707
    series = series * t - 0.1422483683
    series = series * t + 0.1274147959
    return x * (series * t * tl.exp2(x * (x * -0.7213475204444817)))
