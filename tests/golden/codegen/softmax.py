# soft: emitted by fusedsl. Do not edit: compile the program instead.
#
# kernel soft(
#     x: bf16[M, 70]
# ) -> (y: bf16[M, 70]) {
#   y = softmax(x);
# }
#
# Rules that fired:
#   none
#
# Again: fusedsl.compile('soft.fdsl', numerics='moved', fp32_shift=False, tf32=False, fast_math=True).source
import triton
import triton.language as tl


@triton.jit
def max_with_nan(x):
    """Maximum along axis 1; tl.max drops NaN.

    The bits of a float, with all but the sign flipped where it is set, order as integers as the
    floats do, and a positive NaN lies above inf: one integer reduction.
    """
    bits = tl.where(x == x, x, float("nan")).to(tl.int32, bitcast=True)
    key = tl.max(bits ^ ((bits >> 31) & 0x7FFFFFFF), axis=1)
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def max_chunk(x, valid, count):
    """Maximum of each row of a piece."""
    return max_with_nan(tl.where(valid, x, float("-inf")))


@triton.jit
def max_finish(largest, WIDTH: tl.constexpr):
    """Maximum of the row."""
    return largest


@triton.jit
def sub(a, b):
    """a - b, in fp32 registers."""
    return a - b


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
def exp(x, FAST: tl.constexpr):
    """exp(x), in fp32 registers."""
    return fast_exp(x, FAST)


@triton.jit
def sum_chunk(x, valid, count):
    """Sum of each row of a piece."""
    return tl.sum(x, axis=1)


@triton.jit
def sum_finish(total, WIDTH: tl.constexpr):
    """Sum of a row of WIDTH columns."""
    return total


@triton.jit
def div(a, b):
    """a / b, in fp32 registers."""
    return tl.div_rn(a, b)


@triton.jit
def mul(a, b):
    """a * b, in fp32 registers."""
    return a * b


@triton.jit(do_not_specialize=["M"])
def k0_mul(
    x_ptr, x_stride: tl.constexpr, y_ptr, y_stride: tl.constexpr, M, N: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, FAST: tl.constexpr,
):
    """k0_mul: row_max, sub, exp, row_sum, div, mul."""
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    rows64 = rows.to(tl.int64)
    row_live = (rows < M) | (BLOCK_M == 1)
    # row_max: y = softmax(x);
    cols = tl.arange(0, BLOCK_N)
    col_live = cols < N
    x = tl.load(x_ptr + rows64[:, None] * x_stride + cols[None, :], mask=row_live[:, None] & col_live[None, :], other=0.0).to(tl.float32)
    row_max_1_state0 = max_chunk(x, col_live[None, :], N)
    row_max_1 = max_finish(row_max_1_state0, WIDTH=N)
    row_max_1 = row_max_1[:, None]
    # sub: y = softmax(x);
    sub_1 = sub(x, row_max_1)
    # exp: y = softmax(x);
    exp_1 = exp(sub_1, FAST=FAST)
    # row_sum: y = softmax(x);
    exp_1_live = tl.where(col_live[None, :], exp_1, 0.0)
    row_sum_1_state0 = sum_chunk(exp_1_live, col_live[None, :], N)
    row_sum_1 = sum_finish(row_sum_1_state0, WIDTH=N)
    row_sum_1 = row_sum_1[:, None]
    # div: y = softmax(x);
    div_1 = div(1.0, row_sum_1)
    # mul: y = softmax(x);
    y = mul(exp_1, div_1)
    tl.store(y_ptr + rows64[:, None] * y_stride + cols[None, :], y.to(tl.bfloat16), mask=row_live[:, None] & col_live[None, :])
