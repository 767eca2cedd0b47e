"""Triton helpers shared by activations: tanh and sigmoid in a fast and a portable form.

`FAST` selects the hardware's `tanh.approx.f32` (one special-function instruction, relative error
about 2^-11: below bf16's and fp16's rounding, too coarse for fp32 outputs). It needs inline PTX,
so it is off in the interpreter, on AMD, and for fp32 outputs.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def fast_tanh(x, FAST: tl.constexpr):
    """tanh(x) in fp32; the portable form is 2·sigmoid(2x) − 1 with x near 0 kept exact."""
    if FAST:
        return tl.inline_asm_elementwise(
            "tanh.approx.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        # tanh(x) = x - x^3/3 + 2x^5/15 below 2^-5: 2*sigmoid - 1 cancels there
        square = x * x
        series = x * (1.0 - square * (0.3333333333333333 - square * 0.13333333333333333))
        return tl.where(square < 0.0009765625, series, 2.0 * tl.sigmoid(2.0 * x) - 1.0)


@triton.jit
def fast_sigmoid(x, FAST: tl.constexpr):
    """1 / (1 + exp(−x)) in fp32; the fast form is 0.5 + 0.5·tanh(x/2)."""
    if FAST:
        return 0.5 + 0.5 * fast_tanh(0.5 * x, FAST)
    else:
        return tl.sigmoid(x)
