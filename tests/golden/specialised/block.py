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
def add(a, b):
    """a + b, in fp32 registers."""
    return a + b


@gluon.jit
def mean_square_finish(total, WIDTH: tl.constexpr):
    """Mean square of a row of WIDTH columns."""
    return total / WIDTH


@gluon.jit
def mean_square_lift(x):
    """Square of each element."""
    return x * x


@gluon.jit
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


@gluon.jit
def mul(a, b):
    """a * b, in fp32 registers."""
    return a * b


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
def times_sigmoid(x, u, FAST: tl.constexpr):
    """x * sigmoid(2 u) = 0.5 x (1 + tanh u) in fp32; the portable form does not cancel."""
    if FAST:
        half = 0.5 * x
        return half + half * fast_tanh(u, FAST)
    else:
        return x / (1.0 + fast_exp(-2.0 * u, FAST))


@gluon.jit
def silu(x, FAST: tl.constexpr):
    """x * sigmoid(x), in fp32 registers."""
    return times_sigmoid(x, 0.5 * x, FAST)


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
def load_stages_and_tile(
    a_desc, b_desc, a_stages, b_stages, full, empty, M, N: tl.constexpr, K: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr, STAGES: tl.constexpr,
    BACKWARDS: tl.constexpr, PAIRED: tl.constexpr, tile_desc,
):
    """The warp that loads: 128 rows of a (two boxes) and BLOCK_N columns of b for every step of K
    of every tile, through the ring of stages. A pair's halves are two boxes of one buffer.
    Then the tile that the epilogue reads, in boxes of 64 x 64: two pieces of the columns, each for
    both groups, take the place of b in a stage."""
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
        for side in tl.static_range(0, WIDE // 64, 2):
            bar = full.index(stage)
            b = b_stages.index(stage)
            mbarrier.wait(empty.index(stage), phase)
            mbarrier.expect(bar, 4 * 64 * 64 * 2)
            for box in tl.static_range(4):
                at = [row + box % 2 * 64, col + (side + box // 2) * 64]
                tma.async_copy_global_to_shared(tile_desc, at, bar, b.slice(box * 64, 64))
            stage, phase = next_stage(stage, phase, STAGES)


@gluon.jit
def k0_linear_multiply(
    s_desc, a_stages, b_stages, full, empty, M, N: tl.constexpr, K: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr, STAGES: tl.constexpr,
    staged, PART: tl.constexpr,
):
    """Four warps that multiply 64 rows of every tile and finish and store them.

    A stage is released when its products are done, one step later: those of the next stage are
    issued by then.
    What the epilogue reads beside the products comes through the ring as well, two pieces a stage.
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
        tile_m, tile_n = tile_at(tile, tiles_m, tiles_n, GROUP_M, False)
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
        acc = warpgroup_mma_wait(0, deps=(acc,))
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
            if side % 2 == 0:
                mbarrier.wait(full.index(stage), phase)
            brought = b_stages.index(stage).slice((side % 2 * 2 + PART) * 64, 64)
            # linear: s = linear(x, w) + z;
            linear_1 = part
            # add: s = linear(x, w) + z;
            z = widen(brought.load(PIECE))
            s = add(linear_1, z)
            put(s.to(tl.bfloat16), side, staged, s_desc, row0, col)
            if side % 2 == 1:
                tl.thread_barrier()
                mbarrier.arrive(empty.index(stage), count=1)
                stage, phase = next_stage(stage, phase, STAGES)
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["M"])
def k0_linear(
    a_desc, b_desc, z_desc, s_desc, M, N: tl.constexpr, K: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr, STAGES: tl.constexpr,
):
    """k0_linear: linear, add.

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
    staged0 = tl.allocate_shared_memory(s_desc.dtype, [2, 64, 64], s_desc.layout)
    staged1 = tl.allocate_shared_memory(s_desc.dtype, [2, 64, 64], s_desc.layout)
    full = tl.allocate_shared_memory(tl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = tl.allocate_shared_memory(tl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in tl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=2)
    fence_async_shared()
    tl.warp_specialize(
        [
            (k0_linear_multiply, (
                s_desc, a_stages, b_stages, full, empty, M, N, K, BLOCK_N, BLOCK_K, GROUP_M, STAGES,
                staged0, 0,
            )),
            (k0_linear_multiply, (
                s_desc, a_stages, b_stages, full, empty, M, N, K, BLOCK_N, BLOCK_K, GROUP_M, STAGES,
                staged1, 1,
            )),
            (load_stages_and_tile, (
                a_desc, b_desc, a_stages, b_stages, full, empty, M, N, K, BLOCK_N, BLOCK_K,
                GROUP_M, STAGES, False, False, z_desc,
            )),
        ],
        [4, 1],
        [232, 40],
    )


@gluon.jit
def k1_linear_take(a, sums):
    """Add one step of K to the sums of each row, [64, 4]; a [64, 64] in shared memory."""
    MMA: tl.constexpr = tl.NVMMADistributedLayout([3, 0], [4, 1], [16, 256, 16])
    x_tile = widen(a.load(tl.DotOperandLayout(0, MMA, 2)))
    # row_mean_square: y = swiglu(linear(rms_norm(s, g), v, b)) + s;
    row_mean_square_1_state0 = mean_square_lift(x_tile)
    return sums + sum_lanes(row_mean_square_1_state0)


@gluon.jit
def k1_linear_multiply(
    half_4_ptr, half_6_ptr, y_desc, a_stages, b_stages, full, empty, M, N: tl.constexpr,
    K: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    STAGES: tl.constexpr, FAST: tl.constexpr, staged, PART: tl.constexpr,
):
    """Four warps that multiply 64 rows of every tile and finish and store them.

    A stage is released when its products are done, one step later: those of the next stage are
    issued by then.
    The statistics of the rows are taken from the very stages that the products read, between two
    steps: all loads of a stage come ahead of the products of the next step, and so of the barrier
    of these warps (`thread_barrier`) and the arrival that release it.
    What the epilogue reads beside the products comes through the ring as well, two pieces a stage.
    """
    SIDES: tl.constexpr = 2
    WIDE: tl.constexpr = BLOCK_N // 2
    WIDTH: tl.constexpr = 64
    MMA: tl.constexpr = tl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    PIECE: tl.constexpr = tl.NVMMADistributedLayout([3, 0], [4, 1], [16, WIDTH, 16])
    ROWS: tl.constexpr = tl.SliceLayout(1, PIECE)
    COLS: tl.constexpr = tl.SliceLayout(0, PIECE)
    OPERAND: tl.constexpr = tl.DotOperandLayout(0, MMA, 2)
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
        tl.thread_barrier()  # the products are issued ahead of these loads
        none = sum_lanes(tl.zeros((64, 64), tl.float32, OPERAND))
        sums = k1_linear_take(a, none)
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
            sums = k1_linear_take(a, sums)
            last = stage
            stage, phase = next_stage(stage, phase, STAGES)
        rows = row0 + tl.arange(0, 64, ROWS)
        rows64 = rows.to(tl.int64)
        row_live = rows < M
        row_mean_square_1_state0_all = tl.convert_layout(tl.sum(sums, 1), ROWS)
        # row_mean_square: y = swiglu(linear(rms_norm(s, g), v, b)) + s;
        row_mean_square_1 = mean_square_finish(row_mean_square_1_state0_all, WIDTH=K)
        row_mean_square_1 = row_mean_square_1[:, None]
        # inv_rms: y = swiglu(linear(rms_norm(s, g), v, b)) + s;
        inv_rms_1 = inv_rms(row_mean_square_1, EPS=1.1920928955078125e-07)
        # the last products run under what was made of columns
        acc, row_mean_square_1, inv_rms_1 = warpgroup_mma_wait(
            0, deps=(acc, row_mean_square_1, inv_rms_1)
        )
        tl.thread_barrier()
        mbarrier.arrive(empty.index(last), count=1)
        left, right = halves(acc)
        first0, first1 = halves(left)
        second0, second1 = halves(right)
        for side in tl.static_range(SIDES):
            first = tl.convert_layout(first0 if side == 0 else first1, PIECE, assert_trivial=True)
            second = tl.convert_layout(
                second0 if side == 0 else second1, PIECE, assert_trivial=True
            )
            col = col0 + side * WIDTH
            cols = col + tl.arange(0, WIDTH, COLS)
            col_live = cols < N
            if side % 2 == 0:
                mbarrier.wait(full.index(stage), phase)
            brought = b_stages.index(stage).slice((side % 2 * 2 + PART) * 64, 64)
            # half: y = swiglu(linear(rms_norm(s, g), v, b)) + s;
            half_7 = first
            # mul: y = swiglu(linear(rms_norm(s, g), v, b)) + s;
            half_3 = mul(half_7, inv_rms_1)
            # add: y = swiglu(linear(rms_norm(s, g), v, b)) + s;
            half_4 = tl.load(half_4_ptr + cols, mask=col_live, other=0.0).to(tl.float32)[None, :]
            half_1 = add(half_3, half_4)
            # half: y = swiglu(linear(rms_norm(s, g), v, b)) + s;
            half_8 = second
            # mul: y = swiglu(linear(rms_norm(s, g), v, b)) + s;
            half_5 = mul(half_8, inv_rms_1)
            # add: y = swiglu(linear(rms_norm(s, g), v, b)) + s;
            half_6 = tl.load(half_6_ptr + cols, mask=col_live, other=0.0).to(tl.float32)[None, :]
            half_2 = add(half_5, half_6)
            # silu: y = swiglu(linear(rms_norm(s, g), v, b)) + s;
            silu_1 = silu(half_1, FAST=FAST)
            # mul: y = swiglu(linear(rms_norm(s, g), v, b)) + s;
            swiglu_1 = mul(silu_1, half_2)
            # add: y = swiglu(linear(rms_norm(s, g), v, b)) + s;
            s = widen(brought.load(PIECE))
            y = add(swiglu_1, s)
            put(y.to(tl.bfloat16), side, staged, y_desc, row0, col)
            if side % 2 == 1:
                tl.thread_barrier()
                mbarrier.arrive(empty.index(stage), count=1)
                stage, phase = next_stage(stage, phase, STAGES)
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["M"])
def k1_linear(
    a_desc, b_desc, s_desc, half_4_ptr, half_6_ptr, y_desc, M, N: tl.constexpr, K: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr, STAGES: tl.constexpr,
    FAST: tl.constexpr,
):
    """k1_linear: linear, row_mean_square, inv_rms, half, mul, add, half, mul, add, silu, mul, add.

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
    staged0 = tl.allocate_shared_memory(y_desc.dtype, [2, 64, 64], y_desc.layout)
    staged1 = tl.allocate_shared_memory(y_desc.dtype, [2, 64, 64], y_desc.layout)
    full = tl.allocate_shared_memory(tl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = tl.allocate_shared_memory(tl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in tl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=2)
    fence_async_shared()
    tl.warp_specialize(
        [
            (k1_linear_multiply, (
                half_4_ptr, half_6_ptr, y_desc, a_stages, b_stages, full, empty, M, N, K, BLOCK_N,
                BLOCK_K, GROUP_M, STAGES, FAST,
                staged0, 0,
            )),
            (k1_linear_multiply, (
                half_4_ptr, half_6_ptr, y_desc, a_stages, b_stages, full, empty, M, N, K, BLOCK_N,
                BLOCK_K, GROUP_M, STAGES, FAST,
                staged1, 1,
            )),
            (load_stages_and_tile, (
                a_desc, b_desc, a_stages, b_stages, full, empty, M, N, K, BLOCK_N, BLOCK_K,
                GROUP_M, STAGES, True, True, s_desc,
            )),
        ],
        [4, 1],
        [232, 40],
    )
