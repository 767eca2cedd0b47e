# nemotron_mlp: emitted by fusedsl. Do not edit: compile the program instead.
#
# kernel nemotron_mlp(
#     x: bf16[M, 64],
#     gain: weight bf16[64],
#     w_up: weight bf16[128, 64],
#     w_down: weight bf16[64, 128]
# ) -> (y: bf16[M, 64]) {
#   h = rms_norm(x, gain, eps=1e-05);
#   linear_1 = linear(h, w_up);
#   a = squared_relu(linear_1);
#   y = linear(a, w_down);
# }
#
# Rules that fired:
#   commute_row_scale at linear_1: 'inv_rms_1' scales the accumulator of 'w_up', which reads 'mul_2'
#   fold_gain at linear_2: 'gain' is folded into a copy of 'w_up', 'fold_scale_1'
#   homogeneous_activation at a: 'mul_1' scales squared_relu of 'linear_2', which carry no scale any more
#   commute_row_scale at y: 'mul_1' scales the accumulator of 'w_down', which reads 'squared_relu_1'
#
# Again: fusedsl.compile('nemotron_mlp.fdsl', numerics='moved', fp32_shift=False, tf32=False, fast_math=True).source
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
def squared_relu(x):
    """max(x, 0) squared, in fp32 registers."""
    positive = tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL)
    return positive * positive


@triton.jit(do_not_specialize=["M"])
def k0_linear(
    a_desc, b_desc, x_ptr, x_stride, mul_1_ptr, mul_1_stride, squared_relu_1_desc, M,
    N: tl.constexpr, K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr, SIDES: tl.constexpr, PRECISION: tl.constexpr,
):
    """k0_linear: linear, row_mean_square, inv_rms, mul, squared_relu."""
    tiles_m = tl.cdiv(M, BLOCK_M)
    tiles_n = tl.cdiv(N, BLOCK_N)
    WIDTH: tl.constexpr = BLOCK_N // SIDES
    # statistics of the rows this kernel streams: each program takes its share of them first
    STREAM_M: tl.constexpr = 16
    STREAM_K: tl.constexpr = 512
    for share in range(tl.program_id(0), tl.cdiv(M, STREAM_M), tl.num_programs(0)):
        rows = share * STREAM_M + tl.arange(0, STREAM_M)
        rows64 = rows.to(tl.int64)
        row_live = rows < M
        row_mean_square_1_state0_all = tl.full((STREAM_M,), 0.0, tl.float32)
        for start in range(0, K, STREAM_K):
            cols = start + tl.arange(0, STREAM_K)
            col_live = cols < K
            # row_mean_square: h = rms_norm(x, gain, eps=1e-5);
            x = tl.load(x_ptr + rows64[:, None] * x_stride + cols[None, :], mask=row_live[:, None] & col_live[None, :], other=0.0).to(tl.float32)
            row_mean_square_1_state0 = mean_square_chunk(x, col_live[None, :], min(STREAM_K, K - start))
            row_mean_square_1_state0_all = mean_square_merge(start, row_mean_square_1_state0_all, min(STREAM_K, K - start), row_mean_square_1_state0)
        row_mean_square_1 = mean_square_finish(row_mean_square_1_state0_all, WIDTH=K)
        row_mean_square_1 = row_mean_square_1[:, None]
        # inv_rms: h = rms_norm(x, gain, eps=1e-5);
        inv_rms_1 = inv_rms(row_mean_square_1, EPS=1e-05)
        # mul: a = squared_relu(linear(h, w_up));
        mul_1 = mul(inv_rms_1, inv_rms_1)
        tl.store(mul_1_ptr + rows64[:, None] * mul_1_stride, mul_1.to(tl.float32), mask=row_live[:, None])
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
            # linear: a = squared_relu(linear(h, w_up));
            linear_2 = part
            # squared_relu: a = squared_relu(linear(h, w_up));
            squared_relu_1 = squared_relu(linear_2)
            squared_relu_1_desc.store([row0, col], squared_relu_1.to(tl.bfloat16))


@triton.jit(do_not_specialize=["M"])
def k1_linear(
    a_desc, b_desc, mul_1_ptr, mul_1_stride, y_desc, M, N: tl.constexpr, K: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    SIDES: tl.constexpr, PRECISION: tl.constexpr,
):
    """k1_linear: linear, mul."""
    tiles_m = tl.cdiv(M, BLOCK_M)
    tiles_n = tl.cdiv(N, BLOCK_N)
    WIDTH: tl.constexpr = BLOCK_N // SIDES
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
        mul_1 = tl.load(mul_1_ptr + rows64 * mul_1_stride, mask=row_live, other=0.0).to(tl.float32)[:, None]
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
            # linear: y = linear(a, w_down);
            linear_1 = part
            # mul: y = linear(a, w_down);
            y = mul(linear_1, mul_1)
            y_desc.store([row0, col], y.to(tl.bfloat16))
