# llama_mlp: emitted by fusedsl. Do not edit: compile the program instead.
#
# kernel llama_mlp(
#     x: bf16[M, 64],
#     gain: weight bf16[64],
#     w_gate_up: weight bf16[256, 64],
#     w_down: weight bf16[64, 128]
# ) -> (y: bf16[M, 64]) {
#   h = rms_norm(x, gain, eps=1e-06);
#   linear_1 = linear(h, w_gate_up);
#   a = swiglu(linear_1);
#   linear_2 = linear(a, w_down);
#   y = linear_2 + x;
# }
#
# Rules that fired:
#   commute_row_scale at linear_1: 'inv_rms_1' scales the accumulator of 'w_gate_up', which reads 'mul_2'
#   gated_pair at half_1: 'half_1' takes its half under 'linear_1' (mul)
#   gated_pair at half_2: 'half_2' takes its half under 'linear_1' (mul)
#   fold_gain at linear_3: 'gain' is folded into a copy of 'w_gate_up', 'fold_scale_1'
#
# Again: fusedsl.compile('llama_mlp.fdsl', numerics='moved', fp32_shift=False, tf32=False, fast_math=True).source
import triton
import triton.language as tl


@triton.jit
def mean_square_chunk(x, valid, count):
    """Sum of squares of each row of a piece."""
    return tl.sum(x * x, axis=1)


@triton.jit
def mean_square_finish(total, WIDTH: tl.constexpr):
    """Mean square of a row of WIDTH columns."""
    return total / WIDTH


@triton.jit
def inv_rms(s, EPS: tl.constexpr):
    """1 / sqrt(s + eps) to one unit in the last place: its error is shared by a whole row.

    The hardware's estimate (2 units) and one step of Newton's, r + r (1 - v r^2) / 2: what the
    products' roundings leave of it is 2^-25 of r. Of 0 and inf the estimate is exact, and the step
    is not taken; numbers below the normal ones, 0 to the hardware, are scaled by 2^24. A rounded
    root and a rounded division would branch for each row.
    """
    v = s + EPS
    small = v < 1.1754943508222875e-38
    r = tl.rsqrt(tl.where(small, v * 16777216.0, v))
    r = tl.where(small, r * 4096.0, r)
    error = tl.fma(-(v * r), r, 1.0)
    return tl.where(tl.abs(error) < 0.5, tl.fma(0.5 * r, error, r), r)


@triton.jit
def mul(a, b):
    """a * b, in fp32 registers."""
    return a * b


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
def times_sigmoid(x, u, FAST: tl.constexpr):
    """x * sigmoid(2 u) = 0.5 x (1 + tanh u) in fp32; the portable form does not cancel."""
    if FAST:
        half = 0.5 * x
        return half + half * fast_tanh(u, FAST)
    else:
        return x / (1.0 + fast_exp(-2.0 * u, FAST))


@triton.jit
def silu(x, FAST: tl.constexpr):
    """x * sigmoid(x), in fp32 registers."""
    return times_sigmoid(x, 0.5 * x, FAST)


@triton.jit
def add(a, b):
    """a + b, in fp32 registers."""
    return a + b


@triton.jit(do_not_specialize=["M"])
def k0_inv_rms(
    x_ptr, x_stride, inv_rms_1_ptr, inv_rms_1_stride, M, N: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """k0_inv_rms: row_mean_square, inv_rms."""
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    rows64 = rows.to(tl.int64)
    row_live = (rows < M) | (BLOCK_M == 1)
    # row_mean_square: h = rms_norm(x, gain, eps=1e-6);
    cols = tl.arange(0, BLOCK_N)
    col_live = tl.full((BLOCK_N,), True, tl.int1)
    x = tl.load(x_ptr + rows64[:, None] * x_stride + cols[None, :], mask=row_live[:, None] & col_live[None, :], other=0.0).to(tl.float32)
    row_mean_square_1_state0 = mean_square_chunk(x, col_live[None, :], N)
    row_mean_square_1 = mean_square_finish(row_mean_square_1_state0, WIDTH=N)
    row_mean_square_1 = row_mean_square_1[:, None]
    # inv_rms: h = rms_norm(x, gain, eps=1e-6);
    inv_rms_1 = inv_rms(row_mean_square_1, EPS=1e-06)
    tl.store(inv_rms_1_ptr + rows64[:, None] * inv_rms_1_stride, inv_rms_1.to(tl.float32), mask=row_live[:, None])


@triton.jit(do_not_specialize=["M"])
def k1_linear(
    a_desc, b_desc, inv_rms_1_ptr, inv_rms_1_stride, a_desc_2, M, N: tl.constexpr, K: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    SIDES: tl.constexpr, PRECISION: tl.constexpr, FAST: tl.constexpr,
):
    """k1_linear: linear, half, mul, half, mul, silu, mul."""
    tiles_m = tl.cdiv(M, BLOCK_M)
    tiles_n = tl.cdiv(N, (BLOCK_N // 2))
    WIDTH: tl.constexpr = (BLOCK_N // 2) // SIDES
    for tile in tl.range(tl.program_id(0), tiles_m * tiles_n, tl.num_programs(0), flatten=True):
        # GROUP_M rows of tiles at a time, so that neighbours share operands in the L2 cache
        # from the last rows on, which it still holds: the kernel before went over them last
        place = tiles_m * tiles_n - 1 - tile
        group = place // (GROUP_M * tiles_n)
        group_rows = min(tiles_m - group * GROUP_M, GROUP_M)
        within = place % (GROUP_M * tiles_n)
        tile_m = group * GROUP_M + within % group_rows
        tile_n = within // group_rows
        row0 = tile_m * BLOCK_M
        col0 = tile_n * (BLOCK_N // 2)
        acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        if PRECISION == "exact":
            lost = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for step in range(tl.cdiv(K, BLOCK_K)):
            a = a_desc.load([row0, step * BLOCK_K])
            b = tl.reshape(b_desc.load([0, col0, step * BLOCK_K]), (BLOCK_N, BLOCK_K)).T
            if PRECISION == "exact":
                # fp32: steps are summed with the error of each addition carried along (Kahan)
                term = tl.dot(a, b, input_precision="ieee") - lost
                total = acc + term
                lost = (total - acc) - term
                acc = total
            else:
                acc = tl.dot(a, b, acc, input_precision=PRECISION)
        rows = row0 + tl.arange(0, BLOCK_M)
        rows64 = rows.to(tl.int64)
        row_live = rows < M
        inv_rms_1 = tl.load(inv_rms_1_ptr + rows64 * inv_rms_1_stride, mask=row_live, other=0.0).to(tl.float32)[:, None]
        # one dot made both halves: split them in registers
        first, second = tl.split(tl.permute(tl.reshape(acc, (BLOCK_M, 2, WIDTH)), (0, 2, 1)))
        col = col0
        cols = col + tl.arange(0, WIDTH)
        col_live = cols < N
        # half: a = swiglu(linear(h, w_gate_up));
        half_3 = first
        # mul: a = swiglu(linear(h, w_gate_up));
        half_1 = mul(half_3, inv_rms_1)
        # half: a = swiglu(linear(h, w_gate_up));
        half_4 = second
        # mul: a = swiglu(linear(h, w_gate_up));
        half_2 = mul(half_4, inv_rms_1)
        # silu: a = swiglu(linear(h, w_gate_up));
        silu_1 = silu(half_1, FAST=FAST)
        # mul: a = swiglu(linear(h, w_gate_up));
        a_2 = mul(silu_1, half_2)
        a_desc_2.store([row0, col], a_2.to(tl.bfloat16))


@triton.jit(do_not_specialize=["M"])
def k2_linear(
    a_desc, b_desc, x_desc_2, y_desc, M, N: tl.constexpr, K: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr, SIDES: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """k2_linear: linear, add."""
    tiles_m = tl.cdiv(M, BLOCK_M)
    tiles_n = tl.cdiv(N, BLOCK_N)
    WIDTH: tl.constexpr = BLOCK_N // SIDES
    for tile in tl.range(tl.program_id(0), tiles_m * tiles_n, tl.num_programs(0), flatten=True):
        # GROUP_M rows of tiles at a time, so that neighbours share operands in the L2 cache
        group = tile // (GROUP_M * tiles_n)
        group_rows = min(tiles_m - group * GROUP_M, GROUP_M)
        within = tile % (GROUP_M * tiles_n)
        tile_m = group * GROUP_M + within % group_rows
        tile_n = within // group_rows
        row0 = tile_m * BLOCK_M
        col0 = tile_n * BLOCK_N
        acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        if PRECISION == "exact":
            lost = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for step in range(tl.cdiv(K, BLOCK_K)):
            a = a_desc.load([row0, step * BLOCK_K])
            b = b_desc.load([col0, step * BLOCK_K]).T
            if PRECISION == "exact":
                # fp32: steps are summed with the error of each addition carried along (Kahan)
                term = tl.dot(a, b, input_precision="ieee") - lost
                total = acc + term
                lost = (total - acc) - term
                acc = total
            else:
                acc = tl.dot(a, b, acc, input_precision=PRECISION)
        rows = row0 + tl.arange(0, BLOCK_M)
        rows64 = rows.to(tl.int64)
        row_live = rows < M
        if SIDES == 2:
            left, right = tl.split(tl.permute(tl.reshape(acc, (BLOCK_M, 2, WIDTH)), (0, 2, 1)))
        else:
            left = acc
            right = acc
        for side in tl.static_range(SIDES):
            part = left if side == 0 else right
            col = col0 + side * WIDTH
            cols = col + tl.arange(0, WIDTH)
            col_live = cols < N
            # linear: y = linear(a, w_down) + x;
            linear_2 = part
            # add: y = linear(a, w_down) + x;
            x = x_desc_2.load([row0, col]).to(tl.float32)
            y = add(linear_2, x)
            y_desc.store([row0, col], y.to(tl.bfloat16))
