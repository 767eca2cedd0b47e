from triton import language as core
from triton.experimental import gluon
from triton.experimental.gluon import language as tl
from triton.experimental.gluon.language.nvidia.ampere import async_copy


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
def take_number(words):
    """The number of this program in the order in which they start."""
    before = tl.atomic_add(words, 1, sem="relaxed")
    return (before % tl.num_programs(0)).to(tl.int32)


@gluon.jit
def missing(words, turn):
    """1 where a word is not of this turn yet, else 0."""
    return (words.to(tl.int32) != turn).to(tl.int32)


@gluon.jit
def any_of(flags):
    """Whether any flag is set; all threads learn the same."""
    return tl.max(tl.max(flags, axis=1), axis=0) != 0


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
def begin_load(place, ptr, stride, row, cols, live):
    """Begin to load a part of a row to its place in the ring."""
    at = ptr + tl.multiple_of(row * stride, 8)
    async_copy.async_copy_global_to_shared(place, at + cols[None, :], mask=live[None, :])


@gluon.jit
def load_head(ptr, stride, row, cols):
    """The first columns of a row."""
    return tl.load(ptr + tl.multiple_of(row.to(tl.int64) * stride, 8) + cols[None, :])


@gluon.jit
def add_pairs(a, b, c, d):
    """Two sums."""
    return a + c, b + d


@gluon.jit
def column_sums(x):
    """Sums over what a thread holds of [1, BLOCK_N], but for the 8 columns of a load."""
    WIDTH: tl.constexpr = 256 * tl.num_warps()
    return tl.sum(tl.reshape(x, (x.shape[1] // WIDTH, WIDTH)), 0)


@gluon.jit
def sum_one(x):
    """The sum of a part."""
    return tl.sum(column_sums(x), 0)


@gluon.jit
def sum_two(x, y):
    """The sums of two parts, which go together from warp to warp."""
    return tl.reduce((column_sums(x), column_sums(y)), 0, add_pairs)


@gluon.jit
def tell_one(at, x, mark):
    """Put a state into its word."""
    ONE: tl.constexpr = tl.BlockedLayout([1], [32], [tl.num_warps()], [0])
    put_words(at + tl.arange(0, 1, ONE), tl.full((1,), x, tl.float32, ONE), mark)


@gluon.jit
def tell_two(at, x, y, mark, PARTS: tl.constexpr):
    """Put two states into their words."""
    ONE: tl.constexpr = tl.BlockedLayout([1], [32], [tl.num_warps()], [0])
    i = tl.arange(0, 2, ONE)
    put_words(at + i * PARTS, tl.where(i == 0, x, y), mark)


@gluon.jit
def put_words(at, values, mark):
    """Words: the value in the upper half, the mark in the lower."""
    bits = values.to(tl.int32, bitcast=True).to(tl.int64)
    tl.atomic_xchg(at, (bits << 32) | mark.to(tl.int64), sem="relaxed")


@gluon.jit
def states_of(words, PARTS: tl.constexpr):
    """The states of all parts, fp32, in words that are there, and zeros past the last part."""
    values = (words >> 32).to(tl.int32).to(tl.float32, bitcast=True)
    parts = tl.arange(0, words.shape[1], tl.SliceLayout(0, words.type.layout))
    return tl.where((parts < PARTS)[None, :], values, 0.0)


@gluon.jit
def unbound(values, LAYOUT: tl.constexpr):
    """The value of a row, [1], for another layout of tiles: by way of a scalar."""
    return tl.full((1,), tl.sum(values, 0), values.dtype, tl.SliceLayout(1, LAYOUT))


@gluon.jit(do_not_specialize=["M"])
def k0_add(
    words_ptr, x_ptr, x_stride, gain_ptr, shift_ptr, y_ptr, y_stride, M, N: tl.constexpr,
    BLOCK_N: tl.constexpr, PARTS: tl.constexpr, READ: tl.constexpr, STAGES: tl.constexpr,
):
    """k0_add: row_moments, inv_rms, sub, mul, mul, add."""
    # PARTS programs share a row, each with BLOCK_N columns of it in shared memory
    LAG: tl.constexpr = (STAGES - 1) // 2
    LOADS: tl.constexpr = STAGES - 1 - LAG
    SLOTS: tl.constexpr = 2 * LAG + 2
    TILE: tl.constexpr = tl.BlockedLayout([1, 8], [1, 32], [1, tl.num_warps()], [1, 0])
    TOLD: tl.constexpr = tl.BlockedLayout([1, READ // 32], [1, 32], [1, tl.num_warps()], [1, 0])
    OWNED: tl.constexpr = tl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    x_ring = tl.allocate_shared_memory(x_ptr.dtype.element_ty, [STAGES, 1, BLOCK_N], OWNED)
    number = take_number(words_ptr)
    own = number % PARTS
    group = number // PARTS
    groups = tl.num_programs(0) // PARTS
    turns = (M - group + groups - 1) // groups
    slots = words_ptr + 16 + group * ((2 * PARTS) * SLOTS)
    parts = tl.arange(0, READ, tl.SliceLayout(0, TOLD))
    shares = tl.maximum(tl.minimum(N - parts * BLOCK_N, BLOCK_N), 0).to(tl.float32)[None, :]
    told = slots + tl.minimum(parts, PARTS - 1)[None, :]
    part_cols = own * BLOCK_N + tl.arange(0, BLOCK_N, tl.SliceLayout(0, TILE))
    part_cols = tl.max_contiguous(tl.multiple_of(part_cols, 8), 8)
    part_live = (part_cols < N) | (N % (PARTS * BLOCK_N) == 0)
    cols = part_cols
    col_live = part_live
    for turn in tl.static_range(LOADS):
        if turn < turns:
            row = (group + turn * groups).to(tl.int64)
            begin_load(x_ring.index(turn), x_ptr, x_stride, row, cols, col_live)
        async_copy.commit_group()
    # row vectors stay in registers, as they are stored
    gain_kept = tl.load(gain_ptr + cols[None, :], mask=col_live[None, :], other=0.0)
    shift_kept = tl.load(shift_ptr + cols[None, :], mask=col_live[None, :], other=0.0)
    head_cols = tl.max_contiguous(tl.arange(0, 32, tl.SliceLayout(0, TILE)), 8)
    head_live = head_cols < 32
    x_head_next = load_head(x_ptr, x_stride, min(group, M - 1), head_cols)
    for turn in range(turns + LAG):
        late = turn - LAG
        # the row to store was told LAG turns ago: its words come while another one is reduced
        here = told + (late + SLOTS) % SLOTS * (2 * PARTS)
        mean_1_state0_words = tl.load(here, volatile=True)
        mean_1_state1_words = tl.load(here + 1 * PARTS, volatile=True)
        next_row = min(group + (turn + 1) * groups, M - 1)
        late_row = min(group + max(late, 0) * groups, M - 1)
        x_head_ahead = load_head(x_ptr, x_stride, next_row, head_cols)
        x_head_part = load_head(x_ptr, x_stride, late_row, head_cols)
        ahead = turn + LOADS
        if ahead < turns:
            row = (group + ahead * groups).to(tl.int64)
            begin_load(x_ring.index(ahead % STAGES), x_ptr, x_stride, row, cols, col_live)
        async_copy.commit_group()
        async_copy.wait_group(LOADS)
        if turn < turns:
            mine = slots + turn % SLOTS * (2 * PARTS) + own
            cols = head_cols
            col_live = head_live
            x = widen(x_head_next)
            mean_1_centre = moments_centre(x, min(32, N))
            cols = part_cols
            col_live = part_live
            # row_moments: y = layer_norm(x, gain, shift);
            x_2 = widen(x_ring.index(turn % STAGES).load(TILE))
            mean_1_centre = unbound(mean_1_centre, TILE)
            mean_1_state0_lanes, mean_1_state1_lanes = moments_apart(x_2, col_live[None, :], mean_1_centre[:, None])
            mean_1_state0, mean_1_state1 = sum_two(mean_1_state0_lanes, mean_1_state1_lanes)
            tell_two(mine, mean_1_state0, mean_1_state1, turn + 1, PARTS)
        if late >= 0:
            row = (group + late * groups).to(tl.int64)
            mark = late + 1
            while any_of(missing(mean_1_state0_words, mark) | missing(mean_1_state1_words, mark)):
                mean_1_state0_words = tl.load(here, volatile=True)
                mean_1_state1_words = tl.load(here + 1 * PARTS, volatile=True)
            mean_1_state0_parts = states_of(mean_1_state0_words, PARTS)
            mean_1_state1_parts = states_of(mean_1_state1_words, PARTS)
            cols = head_cols
            col_live = head_live
            x_3 = widen(x_head_part)
            mean_1_centre_2 = moments_centre(x_3, min(32, N))
            cols = part_cols
            col_live = part_live
            # row_moments: y = layer_norm(x, gain, shift);
            mean_1_centre_2 = unbound(mean_1_centre_2, TOLD)
            mean_1_state0_all, mean_1_state1_all = moments_about(mean_1_centre_2, mean_1_state0_parts, mean_1_state1_parts, N)
            mean_1_state0_all = unbound(mean_1_state0_all, TILE)
            mean_1_state1_all = unbound(mean_1_state1_all, TILE)
            mean_1, var_1 = moments_finish(mean_1_state0_all, mean_1_state1_all, WIDTH=N)
            mean_1 = mean_1[:, None]
            var_1 = var_1[:, None]
            # inv_rms: y = layer_norm(x, gain, shift);
            inv_rms_1 = inv_rms(var_1, EPS=1e-05)
            # sub: y = layer_norm(x, gain, shift);
            x_4 = widen(x_ring.index(late % STAGES).load(TILE))
            sub_1 = sub(x_4, mean_1)
            # mul: y = layer_norm(x, gain, shift);
            mul_1 = mul(sub_1, inv_rms_1)
            # mul: y = layer_norm(x, gain, shift);
            gain = widen_here(gain_kept)
            mul_2 = mul(mul_1, gain)
            # add: y = layer_norm(x, gain, shift);
            shift = widen_here(shift_kept)
            y = add(mul_2, shift)
            at = y_ptr + tl.multiple_of(row * y_stride, 8)
            tl.store(at + cols[None, :], y.to(tl.bfloat16), mask=col_live[None, :])
        x_head_next = x_head_ahead
