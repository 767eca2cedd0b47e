from triton import language as core
from triton.experimental import gluon
from triton.experimental.gluon import language as tl


@gluon.jit
def moments_finish(mean, m2, WIDTH: tl.constexpr):
    """(mean, variance) of a row of WIDTH columns."""
    return mean, m2 / WIDTH


@gluon.jit
def moments_centre(sums, count):
    """A rough mean of each row, from the sums of its lanes."""
    return tl.sum(sums, axis=1) / count


@gluon.jit
def moments_apart(x, valid, centre):
    """Distance from the rough mean and its square, for each element."""
    centred = tl.where(valid, x - centre, 0.0)
    return centred, centred * centred


@gluon.jit
def moments_about(centre, residues, squares, count):
    """(mean, M2); what the rough mean is off by is taken out of both.

    The mean of a share f of the row will do: the variance is at least f (1 - f) (m - m')^2, with m
    and m' the means of that share and of the rest, and the rough mean m is off by
    (1 - f) (m - m'), so what is subtracted is at most (1 - f) / f times what is left.

    Of 32 columns of 262144 that is 2^13, reached where these columns hold all that lies apart from
    the rest. The worst found in fp32, where they are 1000 and all others 3: 2^-8 of the variance,
    so 2^-9 of what is divided by its root, a rounding to bf16. One outlier among them costs 2^-12
    of the variance, and far from zero or with outliers elsewhere it is right to fp32.
    """
    residue = tl.sum(residues, axis=1)
    m2 = tl.sum(squares, axis=1) - residue * (residue / count)
    return centre + residue / count, tl.maximum(m2, 0.0, propagate_nan=core.PropagateNan.ALL)


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
def sub(a, b):
    """a - b, in fp32 registers."""
    return a - b


@gluon.jit
def mul(a, b):
    """a * b, in fp32 registers."""
    return a * b


@gluon.jit
def add(a, b):
    """a + b, in fp32 registers."""
    return a + b


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


@gluon.jit(do_not_specialize=["M"])
def k0_add(
    x_ptr, x_stride, gain_ptr, shift_ptr, y_ptr, y_stride, M, N: tl.constexpr,
    BLOCK_N: tl.constexpr, PARTS: tl.constexpr, READ: tl.constexpr, STAGES: tl.constexpr,
):
    """k0_add: row_moments, inv_rms, sub, mul, mul, add."""
    # a cluster of PARTS programs, launched as such, shares a row: each has BLOCK_N columns of it in
    # shared memory
    LAG: tl.constexpr = 1
    LOADS: tl.constexpr = STAGES - LAG
    SLOTS: tl.constexpr = 2 * LAG + 2
    WARPS: tl.constexpr = tl.num_warps()
    # a warp has every so many columns EACH of them, which it copies at a time
    EACH: tl.constexpr = 256
    STRETCH: tl.constexpr = EACH
    COPIES: tl.constexpr = BLOCK_N // (EACH * WARPS)
    x_ring: tl.constexpr = 0
    WORDS: tl.constexpr = 1 * STAGES * BLOCK_N // 512
    BARRIERS: tl.constexpr = WORDS + SLOTS * 2
    WHOLE: tl.constexpr = N % (PARTS * BLOCK_N) == 0
    TILE: tl.constexpr = tl.BlockedLayout([1, 8], [1, 32], [1, WARPS], [1, 0])
    LANES: tl.constexpr = tl.BlockedLayout([1, 1], [1, 32], [WARPS, 1], [1, 0])
    TOLD: tl.constexpr = tl.BlockedLayout([1, READ // 32], [1, 32], [1, WARPS], [1, 0])
    OWNED: tl.constexpr = tl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    # in units of 1024 bytes: rows, then states, then barriers
    room = tl.allocate_shared_memory(tl.float32, [BARRIERS + 1, 1, 256], OWNED)
    own = tl.program_id(0) % PARTS
    group = tl.program_id(0) // PARTS
    groups = tl.num_programs(0) // PARTS
    warp = tl.arange(0, WARPS, tl.SliceLayout(1, LANES))[:, None]
    lane = tl.arange(0, 32, tl.SliceLayout(0, LANES))[None, :]
    expect_cluster(warp * 32 + lane, PARTS)
    start = shared_address(warp * 32 + lane)
    loaded = start + BARRIERS * 1024 + warp * 8
    told = start + BARRIERS * 1024 + STAGES * WARPS * 8
    # a warp loads the columns that it reads
    loads = lane < COPIES
    own_cols = own * BLOCK_N + (lane * WARPS + warp) * EACH
    places = start + (lane * WARPS + warp) * (EACH * 2)
    sizes = tl.maximum(tl.minimum(N - own_cols, EACH), 0) * 2
    first = (warp + lane) == 0
    for i in tl.static_range(STAGES):
        make_barrier(loaded + i * (WARPS * 8), COPIES, lane == 0)
    for i in tl.static_range(SLOTS):
        make_barrier(told + i * 8, 1, first)
    if not WHOLE:
        # past the row's end there are zeros: nothing is loaded there
        for i in tl.static_range(COPIES * STAGES):
            past = own * BLOCK_N + (i % COPIES * WARPS + warp) * EACH + lane * 8
            for j in tl.static_range(EACH // 256):
                clear(start + i * (WARPS * EACH * 2) + (warp * EACH + lane * 8) * 2 + j * 512, past + j * 256 >= N)
    arrive_in_cluster(start)
    turns = (M - group + groups - 1) // groups
    for i in tl.static_range(LOADS - 1):
        if i < turns:
            row = (group + i * groups).to(tl.int64)
            source = x_ptr + row * x_stride + own_cols
            place = places + (x_ring + i) * (BLOCK_N * 2)
            begin_load(place, loaded + i * (WARPS * 8), source, sizes, loads)
    part_cols = tl.arange(0, BLOCK_N, tl.SliceLayout(0, TILE))
    part_cols = own * BLOCK_N + part_cols
    part_cols = tl.max_contiguous(tl.multiple_of(part_cols, 8), 8)
    part_live = (part_cols < N) | WHOLE
    cols = part_cols
    col_live = part_live
    # row vectors stay in registers, as they are stored
    gain_kept = tl.load(gain_ptr + cols[None, :], mask=col_live[None, :], other=0.0).to(tl.float32)
    shift_kept = tl.load(shift_ptr + cols[None, :], mask=col_live[None, :], other=0.0)
    head_cols = tl.max_contiguous(tl.arange(0, 32, tl.SliceLayout(0, TILE)), 8)
    head_live = head_cols < 32
    x_head_next = load_head(x_ptr, x_stride, min(group, M - 1), head_cols)
    shares = shares_of(N, BLOCK_N, STRETCH, TOLD, READ)
    wait_in_cluster(start)
    peer = tl.minimum(lane, PARTS - 1) + warp * 0
    tells = lane < PARTS
    there = of_peer(start + WORDS * 1024 + (own * WARPS + warp) * 4, peer)
    there_told = of_peer(told, peer)
    mean_1_centre = tl.full((1,), 0.0, tl.float32, tl.SliceLayout(1, TILE))
    for turn in range(turns + LAG):
        late = turn - LAG
        mean_1_centre_late = mean_1_centre
        x_head_ahead = load_head(x_ptr, x_stride, min(group + (turn + 1) * groups, M - 1), head_cols)
        # the row of the last turn is stored: its place is free
        ahead = turn + LOADS - 1
        if ahead < turns:
            row = (group + ahead * groups).to(tl.int64)
            free = ahead % STAGES
            end_reads(start)
            source = x_ptr + row * x_stride + own_cols
            place = places + (x_ring + free) * (BLOCK_N * 2)
            begin_load(place, loaded + free * (WARPS * 8), source, sizes, loads)
        if turn < turns:
            row = (group + turn * groups).to(tl.int64)
            slot = turn % SLOTS
            expect(told + slot * 8, 2 * PARTS * WARPS * 4, first)
            mine = there + slot * (2 * 1024)
            mine_told = there_told + slot * 8
            pass_barrier(loaded + turn % STAGES * (WARPS * 8), turn // STAGES % 2)
            cols = head_cols
            col_live = head_live
            x = widen(x_head_next)
            mean_1_centre = moments_centre(x, min(32, N))
            cols = part_cols
            col_live = part_live
            mean_1_centre = unbound(mean_1_centre, TILE)
            # row_moments: y = layer_norm(x, gain, shift);
            x_2 = widen(part_at(room, (x_ring + turn % STAGES) * BLOCK_N, x_ptr, BLOCK_N, TILE))
            mean_1_state0_lanes, mean_1_state1_lanes = moments_apart(x_2, col_live[None, :], mean_1_centre[:, None])
            mean_1_state0 = warp_sums(column_sums(mean_1_state0_lanes, EACH))
            mean_1_state1 = warp_sums(column_sums(mean_1_state1_lanes, EACH))
            tell(mine, mine_told, mean_1_state0, tells)
            tell(mine + 1 * 1024, mine_told, mean_1_state1, tells)
        if late >= 0:
            row = (group + late * groups).to(tl.int64)
            slot = late % SLOTS
            pass_barrier(told + slot * 8, late // SLOTS % 2)
            mean_1_state0_parts = states_at(room, WORDS + slot * 2 + 0, TOLD, READ, PARTS * WARPS)
            mean_1_state1_parts = states_at(room, WORDS + slot * 2 + 1, TOLD, READ, PARTS * WARPS)
            # row_moments: y = layer_norm(x, gain, shift);
            mean_1_centre_told = unbound(mean_1_centre_late, TOLD)
            mean_1_state0_all, mean_1_state1_all = moments_about(mean_1_centre_told, mean_1_state0_parts, mean_1_state1_parts, N)
            mean_1_state0_all = unbound(mean_1_state0_all, TILE)
            mean_1_state1_all = unbound(mean_1_state1_all, TILE)
            mean_1, var_1 = moments_finish(mean_1_state0_all, mean_1_state1_all, WIDTH=N)
            mean_1 = mean_1[:, None]
            var_1 = var_1[:, None]
            # inv_rms: y = layer_norm(x, gain, shift);
            inv_rms_1 = inv_rms(var_1, EPS=1e-05)
            # sub: y = layer_norm(x, gain, shift);
            x_3 = widen(part_at(room, (x_ring + late % STAGES) * BLOCK_N, x_ptr, BLOCK_N, TILE))
            sub_1 = sub(x_3, mean_1)
            # mul: y = layer_norm(x, gain, shift);
            mul_1 = mul(sub_1, inv_rms_1)
            # mul: y = layer_norm(x, gain, shift);
            gain = gain_kept
            mul_2 = mul(mul_1, gain)
            # add: y = layer_norm(x, gain, shift);
            shift = widen_here(shift_kept)
            y = add(mul_2, shift)
            at = y_ptr + tl.multiple_of(row * y_stride, 8)
            tl.store(at + cols[None, :], y.to(tl.bfloat16), mask=col_live[None, :])
        x_head_next = x_head_ahead
