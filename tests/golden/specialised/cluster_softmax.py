from triton import language as core
from triton.experimental import gluon
from triton.experimental.gluon import language as tl


@gluon.jit
def max_finish(largest, WIDTH: tl.constexpr):
    """Maximum of the row."""
    return largest


@gluon.jit
def sub(a, b):
    """a - b, in fp32 registers."""
    return a - b


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
def exp(x, FAST: tl.constexpr):
    """exp(x), in fp32 registers."""
    return fast_exp(x, FAST)


@gluon.jit
def sum_finish(total, WIDTH: tl.constexpr):
    """Sum of a row of WIDTH columns."""
    return total


@gluon.jit
def sum_lift(x):
    """Sum of each element alone."""
    return x


@gluon.jit
def div(a, b):
    """a / b, in fp32 registers."""
    return tl.div_rn(a, b)


@gluon.jit
def mul(a, b):
    """a * b, in fp32 registers."""
    return a * b


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
def widen_here(x):
    """fp32 of what stays in registers from turn to turn. It is not pure, so that it is not done
    ahead of the turns: that would take twice the registers."""
    if x.dtype == tl.bfloat16:
        return tl.inline_asm_elementwise(
            "shl.b32 $0, $2, 16; and.b32 $1, $2, 0xffff0000;",
            "=r,=r,r", [x], dtype=tl.float32, is_pure=False, pack=2,
        )
    elif x.dtype == tl.float16:
        return tl.inline_asm_elementwise(
            "{ .reg .b16 a, b; mov.b32 {a, b}, $2; cvt.f32.f16 $0, a; cvt.f32.f16 $1, b; }",
            "=f,=f,r", [x], dtype=tl.float32, is_pure=False, pack=2,
        )
    else:
        return x.to(tl.float32)


@gluon.jit
def expect_cluster(threads, programs):
    """Stop the kernel where it was not launched in clusters of so many programs."""
    tl.inline_asm_elementwise(
        "{ .reg .pred p; mov.u32 $0, %cluster_nctaid.x; setp.ne.u32 p, $0, $2; @p trap; }",
        "=&r,r,r", [threads, threads * 0 + programs], dtype=tl.int32, is_pure=False, pack=1,
    )


@gluon.jit
def shared_address(threads):
    """Where shared memory starts. There is one allocation, so it starts there."""
    return tl.inline_asm_elementwise(
        "mov.b32 $0, global_smem;", "=r,r", [threads], dtype=tl.int32, is_pure=True, pack=1
    )


@gluon.jit
def of_peer(at, rank):
    """The address in shared memory of the cluster's program `rank` of what lies at `at` here."""
    return tl.inline_asm_elementwise(
        "mapa.shared::cluster.u32 $0, $1, $2;",
        "=r,r,r", [at, rank], dtype=tl.int32, is_pure=True, pack=1,
    )


@gluon.jit
def make_barrier(at, count, which):
    """A barrier that `count` threads arrive at, made by the threads `which`."""
    tl.inline_asm_elementwise(
        "{ .reg .pred p; setp.ne.s32 p, $3, 0; mov.b32 $0, 0;"
        " @p mbarrier.init.shared::cta.b64 [$1], $2; }",
        "=r,r,r,r", [at, at * 0 + count, which.to(tl.int32)],
        dtype=tl.int32, is_pure=False, pack=1,
    )


@gluon.jit
def clear(place, which):
    """Zeros to 16 bytes of shared memory."""
    tl.inline_asm_elementwise(
        "{ .reg .pred p; setp.ne.s32 p, $2, 0; mov.b32 $0, 0;"
        " @p st.shared::cta.v4.b32 [$1], {$0, $0, $0, $0}; }",
        "=&r,r,r", [place, which.to(tl.int32)], dtype=tl.int32, is_pure=False, pack=1,
    )


@gluon.jit
def arrive_in_cluster(threads):
    """Say that this program's barriers are made."""
    tl.inline_asm_elementwise(
        "fence.mbarrier_init.release.cluster; bar.warp.sync 0xffffffff; mov.b32 $0, 0;"
        " barrier.cluster.arrive.relaxed.aligned;",
        "=r,r", [threads], dtype=tl.int32, is_pure=False, pack=1,
    )


@gluon.jit
def wait_in_cluster(threads):
    """Wait until all programs of the cluster have said so."""
    tl.inline_asm_elementwise(
        "barrier.cluster.wait.aligned; mov.b32 $0, 0;",
        "=r,r", [threads], dtype=tl.int32, is_pure=False, pack=1,
    )


@gluon.jit
def expect(barrier, size, which):
    """Arrive at a barrier, which is not passed before `size` bytes more have come."""
    tl.inline_asm_elementwise(
        "{ .reg .pred p; setp.ne.s32 p, $3, 0; mov.b32 $0, 0;"
        " @p mbarrier.arrive.expect_tx.shared::cta.b64 _, [$1], $2; }",
        "=r,r,r,r", [barrier, barrier * 0 + size, which.to(tl.int32)],
        dtype=tl.int32, is_pure=False, pack=1,
    )


@gluon.jit
def pass_barrier(barrier, phase):
    """Wait until a barrier is passed."""
    tl.inline_asm_elementwise(
        "{ .reg .pred p; AGAIN: mbarrier.try_wait.parity.shared::cta.b64 p, [$1], $2;"
        " @!p bra AGAIN; mov.b32 $0, 0; }",
        "=r,r,r", [barrier, barrier * 0 + phase], dtype=tl.int32, is_pure=False, pack=1,
    )


@gluon.jit
def begin_load(place, barrier, source, size, which):
    """Begin to copy `size` bytes, a multiple of 16, to shared memory; their barrier is told of it."""
    tl.inline_asm_elementwise(
        "{ .reg .pred p, q; setp.ne.s32 p, $5, 0; setp.gt.and.s32 q, $4, 0, p; mov.b32 $0, 0;"
        " @p mbarrier.arrive.expect_tx.shared::cta.b64 _, [$2], $4;"
        " @q cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [$1], [$3], $4, [$2]; }",
        "=r,r,r,l,r,r", [place, barrier, source.to(tl.int64), size, which.to(tl.int32)],
        dtype=tl.int32, is_pure=False, pack=1,
    )


@gluon.jit
def end_reads(threads):
    """All of a warp's reads end before what any of its threads does next."""
    tl.inline_asm_elementwise(
        "bar.warp.sync 0xffffffff; mov.b32 $0, 0;",
        "=r,r", [threads], dtype=tl.int32, is_pure=False, pack=1,
    )


@gluon.jit
def tell(at, barrier, state, which):
    """Put this warp's state, of [warps], to where the programs of the cluster find it."""
    LANES: tl.constexpr = tl.BlockedLayout([1, 1], [1, 32], [tl.num_warps(), 1], [1, 0])
    state = tl.convert_layout(state, tl.SliceLayout(1, LANES), assert_trivial=True)[:, None]
    bits = state.to(tl.int32, bitcast=True) + at * 0
    tl.inline_asm_elementwise(
        "{ .reg .pred p; setp.ne.s32 p, $4, 0; mov.b32 $0, 0;"
        " @p st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [$1], $3, [$2]; }",
        "=r,r,r,r,r", [at, barrier, bits, which.to(tl.int32)],
        dtype=tl.int32, is_pure=False, pack=1,
    )


@gluon.jit
def part_at(room, place, like, WIDTH: tl.constexpr, TILE: tl.constexpr):
    """WIDTH columns of a row in shared memory, which start at `place` there."""
    OWNED: tl.constexpr = tl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    part = room.index(place // 512)._reinterpret(like.dtype.element_ty, [1, WIDTH], OWNED)
    return part.load(TILE)


@gluon.jit
def states_at(room, place, TOLD: tl.constexpr, READ: tl.constexpr, COUNT: tl.constexpr):
    """The states of all warps of a cluster, and zeros past the last one."""
    states = room.index(place).slice(0, READ, dim=1).load(TOLD)
    number = tl.arange(0, READ, tl.SliceLayout(0, TOLD))[None, :]
    return tl.where(number < COUNT, states, 0.0)


@gluon.jit
def shares_of(
    N, BLOCK_N: tl.constexpr, STRETCH: tl.constexpr, TOLD: tl.constexpr, READ: tl.constexpr
):
    """How many columns of a row each warp of the cluster has."""
    WARPS: tl.constexpr = tl.num_warps()
    number = tl.arange(0, READ, tl.SliceLayout(0, TOLD))
    at = number // WARPS * BLOCK_N + number % WARPS * STRETCH
    held = at * 0
    for i in tl.static_range(BLOCK_N // (WARPS * STRETCH)):
        held += tl.maximum(tl.minimum(N - at - i * WARPS * STRETCH, STRETCH), 0)
    return held.to(tl.float32)[None, :]


@gluon.jit
def load_head(ptr, stride, row, cols):
    """The first columns of a row."""
    return tl.load(ptr + tl.multiple_of(row.to(tl.int64) * stride, 8) + cols[None, :])


@gluon.jit
def by_warps(x, EACH: tl.constexpr):
    """[1, columns], of which a warp has every so many EACH, by warps and by columns of a load."""
    WARPS: tl.constexpr = tl.num_warps()
    return tl.reshape(x, (x.shape[1] // (EACH * WARPS), WARPS, EACH // 256, 256))


@gluon.jit
def column_sums(x, EACH: tl.constexpr):
    """Sums over what a thread holds, but for the 8 columns of a load: [warps, 256]."""
    return tl.sum(tl.sum(by_warps(x, EACH), 2), 0)


@gluon.jit
def warp_sums(x):
    """The sum of each warp, of what its threads hold."""
    return tl.sum(x, 1)


@gluon.jit
def unbound(values, LAYOUT: tl.constexpr):
    """The value of a row, [1], for another layout of tiles: by way of a scalar."""
    return tl.full((1,), tl.sum(values, 0), values.dtype, tl.SliceLayout(1, LAYOUT))


@gluon.jit
def larger(a, b):
    """The larger value; NaN if one is."""
    return tl.maximum(a, b, propagate_nan=core.PropagateNan.ALL)


@gluon.jit
def column_maxima(x, live, EACH: tl.constexpr):
    """The largest values of what a thread holds, but for the 8 columns of a load; NaN if it holds
    one."""
    x = by_warps(tl.where(live, x, float("-inf")), EACH)
    return tl.reduce(tl.reduce(x, 2, larger), 0, larger)


@gluon.jit
def warp_maxima(x):
    """The largest value of each warp, of what its threads hold."""
    return tl.reduce(x, 1, larger)


@gluon.jit
def over_columns(x, live, EACH: tl.constexpr, TILE: tl.constexpr):
    """A value of each warp for the columns that it holds, [1, columns], with the lowest finite one
    for -inf: the exponentials of a warp that holds nothing else are zeros then."""
    COLUMNS: tl.constexpr = live.shape[1]
    live = tl.reshape(live, (COLUMNS // (EACH * tl.num_warps()), tl.num_warps(), EACH))
    WARP: tl.constexpr = tl.SliceLayout(0, tl.SliceLayout(2, live.type.layout))
    x = tl.convert_layout(larger(x, -3.4028234663852886e38), WARP, assert_trivial=True)
    x = x[None, :, None]
    x = tl.reshape(tl.where(live, x, x), (1, COLUMNS))
    return tl.convert_layout(x, TILE, assert_trivial=True)


@gluon.jit
def join_exps(maxima, sums, held):
    """The largest value of a row and the sum of exponentials about it, from those of all warps."""
    maxima = tl.where(held > 0, maxima, float("-inf"))
    top = tl.reduce(maxima, 1, larger)
    apart = larger(maxima, -3.4028234663852886e38) - top[:, None]
    return top, tl.sum(tl.where(held > 0, sums * tl.exp(apart), 0.0), 1)


@gluon.jit(do_not_specialize=["M"])
def k0_mul(
    x_ptr, x_stride, y_ptr, y_stride, M, N: tl.constexpr, BLOCK_N: tl.constexpr,
    PARTS: tl.constexpr, READ: tl.constexpr, SIDES: tl.constexpr, FAST: tl.constexpr,
):
    """k0_mul: row_max, sub, exp, row_sum, div, mul."""
    # a cluster of PARTS programs, launched as such, shares a row: each has BLOCK_N columns of it in
    # shared memory
    WARPS: tl.constexpr = tl.num_warps()
    # a warp has a stretch of columns, and takes EACH of them at a time
    PIECE: tl.constexpr = BLOCK_N // SIDES
    EACH: tl.constexpr = PIECE // WARPS
    STRETCH: tl.constexpr = EACH * SIDES
    COPIES: tl.constexpr = BLOCK_N // (EACH * WARPS)
    x_ring: tl.constexpr = 0
    WORDS: tl.constexpr = 1 * BLOCK_N // 512
    BARRIERS: tl.constexpr = WORDS + 2
    WHOLE: tl.constexpr = N % (PARTS * BLOCK_N) == 0
    ROWS: tl.constexpr = tl.BlockedLayout([1, 8], [1, 32], [WARPS, 1], [1, 0])
    none = tl.reshape(tl.full((WARPS, EACH), 0.0, tl.float32, ROWS), (1, PIECE))
    TILE: tl.constexpr = none.type.layout
    LANES: tl.constexpr = tl.BlockedLayout([1, 1], [1, 32], [WARPS, 1], [1, 0])
    TOLD: tl.constexpr = tl.BlockedLayout([1, READ // 32], [1, 32], [1, WARPS], [1, 0])
    OWNED: tl.constexpr = tl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    # in units of 1024 bytes: rows, then states, then barriers
    room = tl.allocate_shared_memory(tl.float32, [BARRIERS + 1, 1, 256], OWNED)
    own = tl.program_id(0) % PARTS
    group = tl.program_id(0) // PARTS
    warp = tl.arange(0, WARPS, tl.SliceLayout(1, LANES))[:, None]
    lane = tl.arange(0, 32, tl.SliceLayout(0, LANES))[None, :]
    expect_cluster(warp * 32 + lane, PARTS)
    start = shared_address(warp * 32 + lane)
    loaded = start + BARRIERS * 1024 + warp * 8
    told = start + BARRIERS * 1024 + WARPS * 8
    # a warp loads the columns that it reads
    loads = lane < COPIES
    own_cols = own * BLOCK_N + warp * STRETCH + lane * EACH
    places = start + (lane * WARPS + warp) * (EACH * 2)
    sizes = tl.maximum(tl.minimum(N - own_cols, EACH), 0) * 2
    first = (warp + lane) == 0
    make_barrier(loaded, COPIES, lane == 0)
    make_barrier(told, 1, first)
    if not WHOLE:
        # past the row's end there are zeros: nothing is loaded there
        for i in tl.static_range(COPIES):
            past = own * BLOCK_N + warp * STRETCH + i % COPIES * EACH + lane * 8
            for j in tl.static_range(EACH // 256):
                clear(start + i * (WARPS * EACH * 2) + (warp * EACH + lane * 8) * 2 + j * 512, past + j * 256 >= N)
    arrive_in_cluster(start)
    row = group.to(tl.int64)
    source = x_ptr + row * x_stride + own_cols
    begin_load(places + x_ring * (BLOCK_N * 2), loaded, source, sizes, loads)
    part_cols = tl.arange(0, PIECE, tl.SliceLayout(0, TILE))
    part_cols = own * BLOCK_N + part_cols // EACH * STRETCH + part_cols % EACH
    part_cols = tl.max_contiguous(tl.multiple_of(part_cols, 8), 8)
    part_live = (part_cols < N) | WHOLE
    cols = part_cols
    col_live = part_live
    shares = shares_of(N, BLOCK_N, STRETCH, TOLD, READ)
    wait_in_cluster(start)
    peer = tl.minimum(lane, PARTS - 1) + warp * 0
    tells = lane < PARTS
    mine = of_peer(start + WORDS * 1024 + (own * WARPS + warp) * 4, peer)
    mine_told = of_peer(told, peer)
    expect(told, 2 * PARTS * WARPS * 4, first)
    pass_barrier(loaded, 0)
    row_max_1_state0 = column_maxima(none, none > 0.0, EACH)
    for side in range(SIDES):
        cols = part_cols + side * EACH
        col_live = (cols < N) | WHOLE
        # row_max: y = softmax(x);
        x = widen(part_at(room, x_ring * BLOCK_N + side * PIECE, x_ptr, PIECE, TILE))
        row_max_1_state0 = larger(row_max_1_state0, column_maxima(x, col_live[None, :], EACH))
    row_max_1_state0 = warp_maxima(row_max_1_state0)
    tell(mine, mine_told, row_max_1_state0, tells)
    row_sum_1_state0 = column_sums(none, EACH)
    for side in range(SIDES):
        cols = part_cols + side * EACH
        col_live = (cols < N) | WHOLE
        row_max_1 = over_columns(row_max_1_state0, col_live[None, :], EACH, TILE)
        # sub: y = softmax(x);
        x_2 = widen(part_at(room, x_ring * BLOCK_N + side * PIECE, x_ptr, PIECE, TILE))
        sub_1 = sub(x_2, row_max_1)
        # exp: y = softmax(x);
        exp_1 = exp(sub_1, FAST=FAST)
        # row_sum: y = softmax(x);
        exp_1_live = tl.where(col_live[None, :], exp_1, 0.0)
        row_sum_1_state0_lanes = sum_lift(exp_1_live)
        row_sum_1_state0 += column_sums(row_sum_1_state0_lanes, EACH)
    row_sum_1_state0 = warp_sums(row_sum_1_state0)
    tell(mine + 1 * 1024, mine_told, row_sum_1_state0, tells)
    pass_barrier(told, 0)
    row_max_1_state0_parts = states_at(room, WORDS + 0, TOLD, READ, PARTS * WARPS)
    row_sum_1_state0_parts = states_at(room, WORDS + 1, TOLD, READ, PARTS * WARPS)
    # row_sum: y = softmax(x);
    row_max_1_state0_all, row_sum_1_state0_all = join_exps(row_max_1_state0_parts, row_sum_1_state0_parts, shares)
    row_max_1_state0_all = unbound(row_max_1_state0_all, TILE)
    row_sum_1_state0_all = unbound(row_sum_1_state0_all, TILE)
    row_max_1_2 = max_finish(row_max_1_state0_all, WIDTH=N)
    row_max_1_2 = row_max_1_2[:, None]
    row_sum_1 = sum_finish(row_sum_1_state0_all, WIDTH=N)
    row_sum_1 = row_sum_1[:, None]
    # div: y = softmax(x);
    div_1 = div(1.0, row_sum_1)
    for side in range(SIDES):
        cols = part_cols + side * EACH
        col_live = (cols < N) | WHOLE
        # sub: y = softmax(x);
        x_3 = widen(part_at(room, x_ring * BLOCK_N + side * PIECE, x_ptr, PIECE, TILE))
        sub_1_2 = sub(x_3, row_max_1_2)
        # exp: y = softmax(x);
        exp_1_2 = exp(sub_1_2, FAST=FAST)
        # mul: y = softmax(x);
        y = mul(exp_1_2, div_1)
        at = y_ptr + tl.multiple_of(row * y_stride, 8)
        tl.store(at + cols[None, :], y.to(tl.bfloat16), mask=col_live[None, :])
