# decoder_stack: emitted by fusedsl. Do not edit: compile the program instead.
#
# kernel decoder_stack(
#     x: bf16[M, 64],
#     gain_1: weight bf16[64],
#     w_gate_up_1: weight bf16[256, 64],
#     w_down_1: weight bf16[64, 128],
#     gain_2: weight bf16[64],
#     w_gate_up_2: weight bf16[256, 64],
#     w_down_2: weight bf16[64, 128]
# ) -> (y: bf16[M, 64]) {
#   rms_norm_1 = rms_norm(x, gain_1, eps=1e-06);
#   linear_1 = linear(rms_norm_1, w_gate_up_1);
#   a = swiglu(linear_1);
#   linear_2 = linear(a, w_down_1);
#   s = linear_2 + x;
#   rms_norm_2 = rms_norm(s, gain_2, eps=1e-06);
#   linear_3 = linear(rms_norm_2, w_gate_up_2);
#   b = swiglu(linear_3);
#   linear_4 = linear(b, w_down_2);
#   y = linear_4 + s;
# }
#
# Rules that fired:
#   commute_row_scale at linear_1: 'inv_rms_1' scales the accumulator of 'w_gate_up_1', which reads 'mul_3'
#   commute_row_scale at linear_3: 'inv_rms_2' scales the accumulator of 'w_gate_up_2', which reads 'mul_1'
#   gated_pair at half_1: 'half_1' takes its half under 'linear_1' (mul)
#   gated_pair at half_2: 'half_2' takes its half under 'linear_1' (mul)
#   gated_pair at half_3: 'half_3' takes its half under 'linear_3' (mul)
#   gated_pair at half_4: 'half_4' takes its half under 'linear_3' (mul)
#   fold_gain at linear_5: 'gain_1' is folded into a copy of 'w_gate_up_1', 'fold_scale_1'
#   fold_gain at linear_6: 'gain_2' is folded into a copy of 'w_gate_up_2', 'fold_scale_2'
#   statistics_in_producer at row_mean_square_2: the kernel of 'linear_2' leaves partial_mean_square of 's' for each tile
#
# Again: fusedsl.compile('decoder_stack.fdsl', numerics='moved', fp32_shift=False, tf32=False, fast_math=True).source
import triton
import triton.language as tl


@triton.jit
def mean_square_chunk(x, valid, count):
    """Sum of squares of each row of a piece."""
    return tl.sum(x * x, axis=1)


@triton.jit
def mean_square_merge(count_a, sum_a, count_b, sum_b):
    """Sum of squares of two pieces together."""
    return sum_a + sum_b


@triton.jit
def mean_square_merge_all(sums, counts):
    """Sum of squares of all pieces; padding holds zeros."""
    return tl.sum(sums, axis=1)


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
    # row_mean_square: a = swiglu(linear(rms_norm(x, gain_1, eps=1e-6), w_gate_up_1));
    cols = tl.arange(0, BLOCK_N)
    col_live = tl.full((BLOCK_N,), True, tl.int1)
    x = tl.load(x_ptr + rows64[:, None] * x_stride + cols[None, :], mask=row_live[:, None] & col_live[None, :], other=0.0).to(tl.float32)
    row_mean_square_1_state0 = mean_square_chunk(x, col_live[None, :], N)
    row_mean_square_1 = mean_square_finish(row_mean_square_1_state0, WIDTH=N)
    row_mean_square_1 = row_mean_square_1[:, None]
    # inv_rms: a = swiglu(linear(rms_norm(x, gain_1, eps=1e-6), w_gate_up_1));
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
        # half: a = swiglu(linear(rms_norm(x, gain_1, eps=1e-6), w_gate_up_1));
        half_5 = first
        # mul: a = swiglu(linear(rms_norm(x, gain_1, eps=1e-6), w_gate_up_1));
        half_1 = mul(half_5, inv_rms_1)
        # half: a = swiglu(linear(rms_norm(x, gain_1, eps=1e-6), w_gate_up_1));
        half_6 = second
        # mul: a = swiglu(linear(rms_norm(x, gain_1, eps=1e-6), w_gate_up_1));
        half_2 = mul(half_6, inv_rms_1)
        # silu: a = swiglu(linear(rms_norm(x, gain_1, eps=1e-6), w_gate_up_1));
        silu_1 = silu(half_1, FAST=FAST)
        # mul: a = swiglu(linear(rms_norm(x, gain_1, eps=1e-6), w_gate_up_1));
        a_2 = mul(silu_1, half_2)
        a_desc_2.store([row0, col], a_2.to(tl.bfloat16))


@triton.jit(do_not_specialize=["M"])
def k2_linear(
    a_desc, b_desc, x_desc_2, s_desc, partial_mean_square_1_ptr, M, N: tl.constexpr,
    K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr, SIDES: tl.constexpr, PRECISION: tl.constexpr,
):
    """k2_linear: linear, add, partial_mean_square."""
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
            # linear: s = linear(a, w_down_1) + x;
            linear_2 = part
            # add: s = linear(a, w_down_1) + x;
            x = x_desc_2.load([row0, col]).to(tl.float32)
            s = add(linear_2, x)
            s_desc.store([row0, col], s.to(tl.bfloat16))
            # partial_mean_square: b = swiglu(linear(rms_norm(s, gain_2, eps=1e-6), w_gate_up_2));
            col_live = col_live | (N % (WIDTH * SIDES) == 0)
            s_stored = s.to(tl.bfloat16).to(tl.float32)
            s_live = tl.where(col_live[None, :], s_stored, 0.0)
            partial_mean_square_1_state0 = mean_square_chunk(s_live, col_live[None, :], min(WIDTH, N - col))
            if side == 0:
                partial_mean_square_1_state0_tile = partial_mean_square_1_state0
            else:
                partial_mean_square_1_state0_tile = mean_square_merge(
                    min(side * WIDTH, N - col0), partial_mean_square_1_state0_tile,
                    max(0, min(WIDTH, N - col)), partial_mean_square_1_state0,
                )
            if side == SIDES - 1:
                tl.store(partial_mean_square_1_ptr + tile_n.to(tl.int64) * M + rows64, partial_mean_square_1_state0_tile, mask=row_live)


@triton.jit(do_not_specialize=["M"])
def k3_linear(
    a_desc, b_desc, partial_mean_square_1_TILES: tl.constexpr,
    partial_mean_square_1_TILES_GROUP: tl.constexpr, partial_mean_square_1_TILE_WIDTH: tl.constexpr,
    partial_mean_square_1_ptr, b_desc_2, M, N: tl.constexpr, K: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr, SIDES: tl.constexpr,
    PRECISION: tl.constexpr, FAST: tl.constexpr,
):
    """k3_linear: linear, merge_mean_square, inv_rms, half, mul, half, mul, silu, mul."""
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
        # merge_mean_square: b = swiglu(linear(rms_norm(s, gain_2, eps=1e-6), w_gate_up_2));
        row_mean_square_2_state0_all = tl.full((BLOCK_M,), 0.0, tl.float32)
        for partial_mean_square_1_at in tl.static_range(0, partial_mean_square_1_TILES, partial_mean_square_1_TILES_GROUP):
            partial_mean_square_1_tile = partial_mean_square_1_at + tl.arange(0, partial_mean_square_1_TILES_GROUP)
            partial_mean_square_1_pieces = tl.load(
                partial_mean_square_1_ptr + partial_mean_square_1_tile.to(tl.int64)[None, :] * M + rows64[:, None],
                mask=row_live[:, None] & (partial_mean_square_1_tile < partial_mean_square_1_TILES)[None, :],
                other=0.0,
            )
            partial_mean_square_1_counts = tl.minimum(64 - partial_mean_square_1_tile * partial_mean_square_1_TILE_WIDTH, partial_mean_square_1_TILE_WIDTH)
            partial_mean_square_1_counts = tl.maximum(partial_mean_square_1_counts, 0).to(tl.float32)[None, :]
            row_mean_square_2_state0 = mean_square_merge_all(partial_mean_square_1_pieces, partial_mean_square_1_counts)
            partial_mean_square_1_before = min(partial_mean_square_1_at * partial_mean_square_1_TILE_WIDTH, 64)
            partial_mean_square_1_now = min((partial_mean_square_1_at + partial_mean_square_1_TILES_GROUP) * partial_mean_square_1_TILE_WIDTH, 64) - partial_mean_square_1_before
            row_mean_square_2_state0_all = mean_square_merge(partial_mean_square_1_before, row_mean_square_2_state0_all, partial_mean_square_1_now, row_mean_square_2_state0)
        row_mean_square_2 = mean_square_finish(row_mean_square_2_state0_all, WIDTH=64)
        row_mean_square_2 = row_mean_square_2[:, None]
        # inv_rms: b = swiglu(linear(rms_norm(s, gain_2, eps=1e-6), w_gate_up_2));
        inv_rms_2 = inv_rms(row_mean_square_2, EPS=1e-06)
        # one dot made both halves: split them in registers
        first, second = tl.split(tl.permute(tl.reshape(acc, (BLOCK_M, 2, WIDTH)), (0, 2, 1)))
        col = col0
        cols = col + tl.arange(0, WIDTH)
        col_live = cols < N
        # half: b = swiglu(linear(rms_norm(s, gain_2, eps=1e-6), w_gate_up_2));
        half_7 = first
        # mul: b = swiglu(linear(rms_norm(s, gain_2, eps=1e-6), w_gate_up_2));
        half_3 = mul(half_7, inv_rms_2)
        # half: b = swiglu(linear(rms_norm(s, gain_2, eps=1e-6), w_gate_up_2));
        half_8 = second
        # mul: b = swiglu(linear(rms_norm(s, gain_2, eps=1e-6), w_gate_up_2));
        half_4 = mul(half_8, inv_rms_2)
        # silu: b = swiglu(linear(rms_norm(s, gain_2, eps=1e-6), w_gate_up_2));
        silu_2 = silu(half_3, FAST=FAST)
        # mul: b = swiglu(linear(rms_norm(s, gain_2, eps=1e-6), w_gate_up_2));
        b_2 = mul(silu_2, half_4)
        b_desc_2.store([row0, col], b_2.to(tl.bfloat16))


@triton.jit(do_not_specialize=["M"])
def k4_linear(
    a_desc, b_desc, s_desc, y_desc, M, N: tl.constexpr, K: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr, SIDES: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """k4_linear: linear, add."""
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
            # linear: y = linear(b, w_down_2) + s;
            linear_4 = part
            # add: y = linear(b, w_down_2) + s;
            s = s_desc.load([row0, col]).to(tl.float32)
            y = add(linear_4, s)
            y_desc.store([row0, col], y.to(tl.bfloat16))
