from triton.experimental import gluon
from triton.experimental.gluon import language as tl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)


@gluon.jit
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


@gluon.jit
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


@gluon.jit
def softcap(x, CAP: tl.constexpr, FAST: tl.constexpr):
    """cap * tanh(x / cap), in fp32 registers."""
    return CAP * fast_tanh(x * (1.0 / CAP), FAST)


@gluon.jit
def softcap_share(x, scale, CAP: tl.constexpr, FAST: tl.constexpr):
    """softcap(scale * x) / cap, in fp32 registers; scale is a number or a column."""
    return fast_tanh(x * (scale * (1.0 / CAP)), FAST)


@gluon.jit
def max_of_rows(x):
    """The largest value of each row."""
    return tl.max(x, axis=1)


@gluon.jit
def finite_or_zero(x):
    """x, and 0 where it is infinite: what exponents are taken relative to."""
    return tl.where(tl.abs(x) == float("inf"), 0.0, x)


@gluon.jit
def as_vector(column):
    """[rows, 1] as [rows]."""
    return tl.sum(column, axis=1)


@gluon.jit
def sum_of_rows(x):
    """The sum of each row."""
    return tl.sum(x, axis=1)


@gluon.jit
def log_sum_chunk(x, valid, count, scale=1.0, FAST: tl.constexpr = False):
    """(maximum, sum of exp(z - maximum)) of z = scale * x in each row of a piece; scale is a
    positive number, or a column of them.

    The fast form is one multiplication and one special function for each element; its error in
    the sum is about abs(maximum) units in the last place.
    """
    if FAST:
        live = tl.where(valid, x, float("-inf"))
        peak = max_of_rows(live)[:, None]
        steep = scale * 1.4426950408889634
        terms = tl.exp2(x * steep - finite_or_zero(peak * steep))
        terms = tl.where(valid, terms, 0.0)  # steep may be 0
        return as_vector(peak * scale), sum_of_rows(terms)
    else:
        live = tl.where(valid, x * scale, float("-inf"))
        largest = tl.max(live, axis=1)
        terms = tl.exp(live - finite_or_zero(largest)[:, None])
        return largest, tl.sum(terms, axis=1)


@gluon.jit
def log_sum_merge(count_a, max_a, sum_a, count_b, max_b, sum_b):
    """(maximum, sum) of two pieces together; the one with the smaller maximum is scaled down."""
    largest = tl.maximum(max_a, max_b)
    share = tl.where(max_a == max_b, 1.0, tl.exp(-tl.abs(max_a - max_b)))
    scaled_a = sum_a * tl.where(max_a == largest, 1.0, share)
    return largest, scaled_a + sum_b * tl.where(max_b == largest, 1.0, share)


@gluon.jit
def widen(x):
    """fp32 of 16-bit values; of bf16 one instruction each, where a cast takes three for two."""
    if x.dtype == tl.bfloat16:
        return tl.inline_asm_elementwise(
            "shl.b32 $0, $2, 16; and.b32 $1, $2, 0xffff0000;",
            "=r,=r,r", [x], dtype=tl.float32, is_pure=True, pack=2,
        )
    else:
        return x.to(tl.float32)


@gluon.jit
def sum_lanes(x):
    """Sums of [64, 64] in the layout of an operand over what lies in one thread: [64, 4]."""
    x = tl.permute(tl.reshape(x, (64, 8, 4, 2)), (0, 2, 1, 3))
    return tl.sum(tl.reshape(x, (64, 4, 16)), 2)


@gluon.jit
def halves(x):
    """The left and the right half of the columns."""
    return tl.split(tl.permute(tl.reshape(x, (x.shape[0], 2, x.shape[1] // 2)), (0, 2, 1)))


@gluon.jit
def tile_at(tile, tiles_m, tiles_n, GROUP_M: tl.constexpr, BACKWARDS: tl.constexpr):
    """Row and column of a tile: GROUP_M rows of tiles at a time share operands in the L2 cache.
    Backwards, where that cache still holds the last rows of what the kernel before went over."""
    if BACKWARDS:
        tile = tiles_m * tiles_n - 1 - tile
    group = tile // (GROUP_M * tiles_n)
    group_rows = min(tiles_m - group * GROUP_M, GROUP_M)
    within = tile % (GROUP_M * tiles_n)
    return group * GROUP_M + within % group_rows, within // group_rows


@gluon.jit
def put(value, turn: tl.constexpr, staged, desc, row, col):
    """Store a piece from one of the buffers, in turn. What this one held last has been read by
    then: only the stores from the others may still be under way."""
    BUFFERS: tl.constexpr = staged.shape[0]
    tma.store_wait(BUFFERS - 1)
    buffer = staged.index(turn % BUFFERS)
    buffer.store(value)
    fence_async_shared()
    tma.async_copy_shared_to_global(desc, [row, col], buffer)


@gluon.jit
def next_stage(stage, phase, STAGES: tl.constexpr):
    """The stage after this one, and its phase: it turns where the ring begins anew."""
    stage += 1
    if stage == STAGES:
        stage = 0
        phase = phase ^ 1
    return stage, phase


@gluon.jit
def load_stages(
    a_desc, b_desc, a_stages, b_stages, full, empty, M, N: tl.constexpr, K: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr, STAGES: tl.constexpr,
    BACKWARDS: tl.constexpr, PAIRED: tl.constexpr,
):
    """The warp that loads: 128 rows of a (two boxes) and BLOCK_N columns of b for every step of K
    of every tile, through the ring of stages. A pair's halves are two boxes of one buffer."""
    WIDE: tl.constexpr = BLOCK_N // 2 if PAIRED else BLOCK_N
    BYTES: tl.constexpr = (128 + BLOCK_N) * BLOCK_K * 2
    tiles_m = tl.cdiv(M, 128)
    tiles_n = tl.cdiv(N, WIDE)
    steps = tl.cdiv(K, BLOCK_K)
    stage = 0
    phase = 1
    for tile in range(tl.program_id(0), tiles_m * tiles_n, tl.num_programs(0)):
        tile_m, tile_n = tile_at(tile, tiles_m, tiles_n, GROUP_M, BACKWARDS)
        row = tile_m * 128
        col = tile_n * WIDE
        for step in range(steps):
            k = step * BLOCK_K
            bar = full.index(stage)
            b = b_stages.index(stage)
            mbarrier.wait(empty.index(stage), phase)
            mbarrier.expect(bar, BYTES)
            tma.async_copy_global_to_shared(a_desc, [row, k], bar, a_stages.index(stage * 2))
            tma.async_copy_global_to_shared(
                a_desc, [row + 64, k], bar, a_stages.index(stage * 2 + 1)
            )
            if PAIRED:
                tma.async_copy_global_to_shared(b_desc, [col, k], bar, b.slice(0, WIDE))
                tma.async_copy_global_to_shared(b_desc, [N + col, k], bar, b.slice(WIDE, WIDE))
            else:
                tma.async_copy_global_to_shared(b_desc, [col, k], bar, b)
            stage, phase = next_stage(stage, phase, STAGES)


@gluon.jit
def k1_linear_multiply(
    inv_rms_1_ptr, inv_rms_1_stride, maxima_1_ptr, sums_1_ptr, a_stages, b_stages, full, empty, M,
    N: tl.constexpr, K: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr, STAGES: tl.constexpr, FAST: tl.constexpr, PART: tl.constexpr,
):
    """Four warps that multiply 64 rows of every tile and finish and store them.

    A stage is released when its products are done, one step later: those of the next stage are
    issued by then.
    """
    SIDES: tl.constexpr = 4
    WIDE: tl.constexpr = BLOCK_N
    WIDTH: tl.constexpr = 64
    MMA: tl.constexpr = tl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    PIECE: tl.constexpr = tl.NVMMADistributedLayout([3, 0], [4, 1], [16, WIDTH, 16])
    ROWS: tl.constexpr = tl.SliceLayout(1, PIECE)
    COLS: tl.constexpr = tl.SliceLayout(0, PIECE)
    tiles_m = tl.cdiv(M, 128)
    tiles_n = tl.cdiv(N, WIDE)
    steps = tl.cdiv(K, BLOCK_K)
    stage = 0
    phase = 0
    for tile in range(tl.program_id(0), tiles_m * tiles_n, tl.num_programs(0)):
        tile_m, tile_n = tile_at(tile, tiles_m, tiles_n, GROUP_M, True)
        row0 = tile_m * 128 + PART * 64
        col0 = tile_n * WIDE
        a = a_stages.index(stage * 2 + PART)
        b = b_stages.index(stage).permute((1, 0))
        mbarrier.wait(full.index(stage), phase)
        acc = tl.zeros((64, BLOCK_N), tl.float32, MMA)
        acc = warpgroup_mma(a, b, acc, use_acc=False, is_async=True)
        last = stage
        stage, phase = next_stage(stage, phase, STAGES)
        for step in range(1, steps):
            a = a_stages.index(stage * 2 + PART)
            b = b_stages.index(stage).permute((1, 0))
            mbarrier.wait(full.index(stage), phase)
            acc = warpgroup_mma(a, b, acc, is_async=True)
            acc = warpgroup_mma_init(warpgroup_mma_wait(1, deps=(acc,)))
            tl.thread_barrier()
            mbarrier.arrive(empty.index(last), count=1)
            last = stage
            stage, phase = next_stage(stage, phase, STAGES)
        rows = row0 + tl.arange(0, 64, ROWS)
        rows64 = rows.to(tl.int64)
        row_live = rows < M
        inv_rms_1 = tl.load(inv_rms_1_ptr + rows64 * inv_rms_1_stride, mask=row_live, other=0.0).to(tl.float32)[:, None]
        # the last products run under what was made of columns
        acc, inv_rms_1 = warpgroup_mma_wait(
            0, deps=(acc, inv_rms_1)
        )
        tl.thread_barrier()
        mbarrier.arrive(empty.index(last), count=1)
        left, right = halves(acc)
        part0, part1 = halves(left)
        part2, part3 = halves(right)
        for side in tl.static_range(SIDES):
            if side < 2:
                part = part0 if side == 0 else part1
            else:
                part = part2 if side == 2 else part3
            part = tl.convert_layout(part, PIECE, assert_trivial=True)
            col = col0 + side * WIDTH
            cols = col + tl.arange(0, WIDTH, COLS)
            col_live = cols < N
            # linear: loss = cross_entropy(softcap(linear(rms_norm(x, g), w), cap=30), target);
            linear_2 = part
            # partial_log_sum: loss = cross_entropy(softcap(linear(rms_norm(x, g), w), cap=30), target);
            col_live = col_live | (N % (WIDTH * SIDES) == 0)
            # mul: loss = cross_entropy(softcap(linear(rms_norm(x, g), w), cap=30), target);
            # softcap: loss = cross_entropy(softcap(linear(rms_norm(x, g), w), cap=30), target);
            softcap_1_share = softcap_share(linear_2, inv_rms_1, CAP=30.0, FAST=FAST)
            maxima_1_state0, maxima_1_state1 = log_sum_chunk(softcap_1_share, col_live[None, :], min(WIDTH, N - col), 30.0, FAST=FAST)
            if side == 0:
                maxima_1_state0_tile, maxima_1_state1_tile = maxima_1_state0, maxima_1_state1
            else:
                maxima_1_state0_tile, maxima_1_state1_tile = log_sum_merge(
                    min(side * WIDTH, N - col0), maxima_1_state0_tile, maxima_1_state1_tile,
                    max(0, min(WIDTH, N - col)), maxima_1_state0, maxima_1_state1,
                )
            if side == SIDES - 1:
                tl.store(maxima_1_ptr + tile_n.to(tl.int64) * M + rows64, maxima_1_state0_tile, mask=row_live)
                tl.store(sums_1_ptr + tile_n.to(tl.int64) * M + rows64, maxima_1_state1_tile, mask=row_live)


@gluon.jit(do_not_specialize=["M"])
def k1_linear(
    a_desc, b_desc, inv_rms_1_ptr, inv_rms_1_stride, maxima_1_ptr, sums_1_ptr, M, N: tl.constexpr,
    K: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    STAGES: tl.constexpr, FAST: tl.constexpr,
):
    """k1_linear: linear, mul, softcap, partial_log_sum.

    One warp loads, two groups of four multiply 64 rows each of a tile of 128 and share its columns.
    A ring of STAGES stages lies between them.

    `full` of a stage: one arrival for each filling, the loading warp's own, which also says how
    many bytes are to come; its phase ends when they are there. Groups wait for phase 0, then 1, ...
    `empty`: one arrival of each group. The first wait is for the phase "before the first", which
    has ended by definition (parity 1), the one of the next round for phase 0, ... A group arrives
    when its products of that stage have been waited for and, behind a barrier of its four warps,
    all of them have read what they load of it: no read is under way when the loads of the next
    round, which wait for both arrivals, overwrite it. Every tile takes as many steps from the ring
    on either side, in the same order, so that stages and phases stay together from tile to tile.

    Rows, columns and steps past the end are zeros, which add nothing, and are not stored.
    """
    a_stages = tl.allocate_shared_memory(a_desc.dtype, [STAGES * 2, 64, BLOCK_K], a_desc.layout)
    b_stages = tl.allocate_shared_memory(b_desc.dtype, [STAGES, BLOCK_N, BLOCK_K], b_desc.layout)
    full = tl.allocate_shared_memory(tl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = tl.allocate_shared_memory(tl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in tl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=2)
    fence_async_shared()
    tl.warp_specialize(
        [
            (k1_linear_multiply, (
                inv_rms_1_ptr, inv_rms_1_stride, maxima_1_ptr, sums_1_ptr, a_stages, b_stages, full,
                empty, M, N, K, BLOCK_N, BLOCK_K, GROUP_M, STAGES, FAST,
                0,
            )),
            (k1_linear_multiply, (
                inv_rms_1_ptr, inv_rms_1_stride, maxima_1_ptr, sums_1_ptr, a_stages, b_stages, full,
                empty, M, N, K, BLOCK_N, BLOCK_K, GROUP_M, STAGES, FAST,
                1,
            )),
            (load_stages, (
                a_desc, b_desc, a_stages, b_stages, full, empty, M, N, K, BLOCK_N, BLOCK_K,
                GROUP_M, STAGES, True, False,
            )),
        ],
        [4, 1],
        [232, 40],
    )
