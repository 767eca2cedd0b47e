from triton import language as core
from triton.experimental import gluon
from triton.experimental.gluon import language as tl
from triton.experimental.gluon.language.nvidia.ampere import async_copy


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


@gluon.jit
def larger(a, b):
    """The larger value; NaN if one is."""
    return tl.maximum(a, b, propagate_nan=core.PropagateNan.ALL)


@gluon.jit
def largest(x, live):
    """The largest value of a part; NaN if it holds one."""
    WIDTH: tl.constexpr = 256 * tl.num_warps()
    x = tl.reshape(tl.where(live, x, float("-inf")), (x.shape[1] // WIDTH, WIDTH))
    return tl.reduce(tl.reduce(x, 0, larger), 0, larger)


@gluon.jit
def finite(x, LAYOUT: tl.constexpr):
    """A value of the row at hand, [1, 1], with the lowest finite one for -inf: the exponentials of a
    part that holds nothing else are zeros then."""
    x = larger(x, -3.4028234663852886e38)
    return tl.full((1,), x, tl.float32, tl.SliceLayout(1, LAYOUT))[:, None]


@gluon.jit
def join_exps(maxima, sums, held):
    """The largest value of a row and the sum of exponentials about it, from those of its parts."""
    maxima = tl.where(held > 0, maxima, float("-inf"))
    top = tl.reduce(maxima, 1, larger)
    apart = larger(maxima, -3.4028234663852886e38) - top[:, None]
    return top, tl.sum(tl.where(held > 0, sums * tl.exp(apart), 0.0), 1)


@gluon.jit(do_not_specialize=["M"])
def k0_mul(
    words_ptr, x_ptr, x_stride, y_ptr, y_stride, M, N: tl.constexpr, BLOCK_N: tl.constexpr,
    PARTS: tl.constexpr, READ: tl.constexpr, STAGES: tl.constexpr, FAST: tl.constexpr,
):
    """k0_mul: row_max, sub, exp, row_sum, div, mul."""
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
    for turn in range(turns + LAG):
        late = turn - LAG
        # the row to store was told LAG turns ago: its words come while another one is reduced
        here = told + (late + SLOTS) % SLOTS * (2 * PARTS)
        row_max_1_state0_words = tl.load(here, volatile=True)
        row_sum_1_state0_words = tl.load(here + 1 * PARTS, volatile=True)
        ahead = turn + LOADS
        if ahead < turns:
            row = (group + ahead * groups).to(tl.int64)
            begin_load(x_ring.index(ahead % STAGES), x_ptr, x_stride, row, cols, col_live)
        async_copy.commit_group()
        async_copy.wait_group(LOADS)
        if turn < turns:
            mine = slots + turn % SLOTS * (2 * PARTS) + own
            # row_max: y = softmax(x);
            x = widen(x_ring.index(turn % STAGES).load(TILE))
            row_max_1_state0 = largest(x, col_live[None, :])
            row_max_1 = finite(row_max_1_state0, TILE)
            # sub: y = softmax(x);
            sub_1 = sub(x, row_max_1)
            # exp: y = softmax(x);
            exp_1 = exp(sub_1, FAST=FAST)
            # row_sum: y = softmax(x);
            exp_1_live = tl.where(col_live[None, :], exp_1, 0.0)
            row_sum_1_state0_lanes = sum_lift(exp_1_live)
            row_sum_1_state0 = sum_one(row_sum_1_state0_lanes)
            tell_two(mine, row_max_1_state0, row_sum_1_state0, turn + 1, PARTS)
        if late >= 0:
            row = (group + late * groups).to(tl.int64)
            mark = late + 1
            while any_of(missing(row_max_1_state0_words, mark) | missing(row_sum_1_state0_words, mark)):
                row_max_1_state0_words = tl.load(here, volatile=True)
                row_sum_1_state0_words = tl.load(here + 1 * PARTS, volatile=True)
            row_max_1_state0_parts = states_of(row_max_1_state0_words, PARTS)
            row_sum_1_state0_parts = states_of(row_sum_1_state0_words, PARTS)
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
            # sub: y = softmax(x);
            x_2 = widen(x_ring.index(late % STAGES).load(TILE))
            sub_1_2 = sub(x_2, row_max_1_2)
            # exp: y = softmax(x);
            exp_1_2 = exp(sub_1_2, FAST=FAST)
            # mul: y = softmax(x);
            y = mul(exp_1_2, div_1)
            at = y_ptr + tl.multiple_of(row * y_stride, 8)
            tl.store(at + cols[None, :], y.to(tl.bfloat16), mask=col_live[None, :])
