"""bfloat16 in Triton's interpreter, bit for bit against torch and against exact rationals."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from bisect import bisect_left
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
import triton.runtime.interpreter as ti
from triton.tools.tensor_descriptor import TensorDescriptor

from fusedsl.diagnostics import FusedslError
from fusedsl.runtime import interpreter

pytestmark = [
    pytest.mark.skipif(not triton.knobs.runtime.interpret, reason="about the interpreter"),
    # As for fp32, numpy reports Inf - Inf and the like; casts are held to no warning at all below.
    pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning"),
]
interpreter.install()

HARD = [0x0000, 0x8000, 0x0001, 0x8001, 0x007F, 0x0080, 0x80FF, 0x3B80, 0x3C00, 0x3F7F, 0x3F80]
HARD += [0x3F81, 0xBF80, 0xBF82, 0x4049, 0x4380, 0x7F7E, 0x7F7F, 0xFF7F, 0x7F80, 0xFF80, 0x7FC0]
HARD += [0xFFC0, 0x7F81, 0xFFFF]


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def bf16(bits) -> torch.Tensor:
    return torch.from_numpy(np.asarray(bits, dtype=np.uint16).view(np.int16)).view(torch.bfloat16)


def bits(x: torch.Tensor) -> torch.Tensor:
    return x.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()])


def assert_same(got: torch.Tensor, want: torch.Tensor, signed_zero: bool = True) -> None:
    """Same bits; NaNs may differ in theirs."""
    assert got.dtype == want.dtype and got.shape == want.shape
    same = bits(got) == bits(want) if signed_zero else got == want
    same |= got.isnan() & want.isnan()
    at = (~same).nonzero()[:5]
    assert same.all(), f"at {at.tolist()}: {got[~same][:5]} instead of {want[~same][:5]}"


def pairs() -> tuple[torch.Tensor, torch.Tensor]:
    """Every pair of hard values, random bits, and random normal values: 4096 pairs."""
    rng = np.random.default_rng(0)
    x, y = (grid.ravel() for grid in np.meshgrid(HARD, HARD))
    more = 2048 - x.size
    raw = rng.integers(0, 1 << 16, (2, more), dtype=np.uint16)
    usual = torch.from_numpy(rng.standard_normal((2, 2048), dtype=np.float32)).bfloat16()
    return (
        torch.cat([bf16(x), bf16(raw[0]), usual[0]]),
        torch.cat([bf16(y), bf16(raw[1]), usual[1]]),
    )


@triton.jit
def arithmetic(x, y, out, OP: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    a = tl.load(x + i)
    b = tl.load(y + i)
    if OP == "add":
        c = a + b
    elif OP == "sub":
        c = a - b
    elif OP == "mul":
        c = a * b
    elif OP == "div":
        c = a / b
    elif OP == "mod":
        c = a % b
    elif OP == "fmax":
        c = tl.maximum(a, b)
    elif OP == "fmin":
        c = tl.minimum(a, b)
    elif OP == "maximum":
        c = tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
    else:
        c = tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)
    tl.store(out + i, c)


@triton.jit
def comparison(x, y, out, OP: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    a = tl.load(x + i)
    b = tl.load(y + i)
    if OP == "lt":
        c = a < b
    elif OP == "le":
        c = a <= b
    elif OP == "gt":
        c = a > b
    elif OP == "ge":
        c = a >= b
    elif OP == "eq":
        c = a == b
    else:
        c = a != b
    tl.store(out + i, c.to(out.dtype.element_ty))


def run(kernel, x, y, op: str, dtype=torch.bfloat16) -> torch.Tensor:
    out = torch.full((x.numel(),), 7, dtype=dtype)
    kernel[(1,)](x, y, out, OP=op, N=x.numel())
    return out


@pytest.mark.parametrize("op", ["add", "sub", "mul", "div"])
def test_arithmetic(op):
    x, y = pairs()
    assert_same(run(arithmetic, x, y, op), getattr(torch, op)(x, y))


@pytest.mark.parametrize("op", ["maximum", "minimum"])
def test_min_and_max(op):
    x, y = pairs()
    both = getattr(torch, op)(x, y)
    assert_same(run(arithmetic, x, y, op), both, signed_zero=False)
    one = torch.where(x.isnan(), y, torch.where(y.isnan(), x, both))
    assert_same(run(arithmetic, x, y, f"f{op[:3]}"), one, signed_zero=False)


def test_remainder():
    x, y = pairs()
    x, y = x[2048:], y[2048:]
    assert_same(run(arithmetic, x, y, "mod"), torch.fmod(x, y))


@pytest.mark.parametrize("op", ["lt", "le", "gt", "ge", "eq", "ne"])
def test_comparison(op):
    x, y = pairs()
    want = getattr(torch, op)(x, y)
    for dtype in (torch.bfloat16, torch.float32, torch.int32):
        assert torch.equal(run(comparison, x, y, op, dtype), want.to(dtype))


@triton.jit
def compare_fp32(x, y, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, (tl.load(x + i) < tl.load(y + i)).to(tl.bfloat16))


def test_comparison_of_fp32_to_bf16():
    x, y = (t.float() for t in pairs())
    out = torch.empty(4096, dtype=torch.bfloat16)
    compare_fp32[(1,)](x, y, out, N=4096)
    assert_same(out, (x < y).bfloat16())


@triton.jit
def unary(x, out, OP: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    a = tl.load(x + i)
    if OP == "neg":
        a = -a
    elif OP == "abs":
        a = tl.abs(a)
    elif OP == "scale":
        a = a * 1.1 + 3
    elif OP == "clamp":
        a = tl.clamp(a, -0.7, 1.3)
    elif OP == "relu":
        a = tl.where(a > 0, a, 0.01 * a)
    else:
        a = tl.exp(a.to(tl.float32))
    tl.store(out + i, a)


@pytest.mark.parametrize(
    ("op", "want"),
    [
        ("neg", torch.neg),
        ("abs", torch.abs),
        ("scale", lambda x: x * torch.tensor(1.1).bfloat16() + 3),
        ("clamp", lambda x: x.float().clamp(-0.7, 1.3).bfloat16()),
        ("relu", lambda x: torch.where(x > 0, x, x * torch.tensor(0.01).bfloat16())),
    ],
)
def test_unary(op, want):
    x, _ = pairs()
    if op == "clamp":
        x = x[~x.isnan()][:2048]
    out = torch.empty_like(x)
    unary[(1,)](x, out, OP=op, N=x.numel())
    assert_same(out, want(x), signed_zero=op == "abs")


FINITE = [Fraction(float(v)) for v in bf16(np.arange(0x7F80)).tolist()]


def nearest(value: Fraction) -> int:
    """Return the bf16 bits nearest to an exact value, ties to even."""
    sign, size = (0x8000, -value) if value < 0 else (0, value)
    above = bisect_left(FINITE, size)
    if above == len(FINITE):
        beyond = size - FINITE[-1] < Fraction(2) ** 119
        return sign | (0x7F7F if beyond else 0x7F80)
    if above == 0:
        return sign
    low, high = size - FINITE[above - 1], FINITE[above] - size
    up = high < low or (high == low and above % 2 == 0)
    return sign | (above if up else above - 1)


@triton.jit
def fma(x, y, z, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.fma(tl.load(x + i), tl.load(y + i), tl.load(z + i)))


def test_fma_rounds_once():
    x, y = pairs()
    z = x.roll(77)
    # 1.0078125 * 1.5 is a tie; an addend below it must break it in its own direction.
    for at, addend in enumerate([2.0**-100, -(2.0**-100), 2.0**-30, 2.0**-130, 0.0]):
        x[at], y[at], z[at] = 1.0078125, 1.5, addend
    out = torch.empty_like(x)
    fma[(1,)](x, y, z, out, N=4096)
    finite = x.isfinite() & y.isfinite() & z.isfinite()
    triples = torch.stack([x, y, z])[:, finite].double().T.tolist()
    exact = [Fraction(a) * Fraction(b) + Fraction(c) for a, b, c in triples]
    assert_same(out[finite], bf16([nearest(v) for v in exact]), signed_zero=False)
    assert_same(out[~finite], (x.double() * y.double() + z.double())[~finite].bfloat16())


@triton.jit
def cast(x, out, HOW: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    a = tl.load(x + i)
    tl.store(out + i, a.to(out.dtype.element_ty, fp_downcast_rounding=HOW))


def run_cast(x: torch.Tensor, dtype: torch.dtype, how: str | None = None) -> torch.Tensor:
    out = torch.empty(x.shape, dtype=dtype)
    cast[(1,)](x, out, HOW=how, N=x.numel())
    return out


def fp32_values() -> torch.Tensor:
    """Ties, their neighbours, NaNs whose payload sits in the low bits, random bits: 8192 values."""
    ties = np.asarray(HARD, dtype=np.uint32) << 16 | 0x8000
    hard = np.concatenate([ties, ties - 1, ties + 1, [0x7F800001, 0xFF800001, 0x7FFFFFFF]])
    raw = np.random.default_rng(1).integers(0, 1 << 32, 8192 - hard.size, dtype=np.uint32)
    return torch.from_numpy(np.concatenate([hard, raw]).astype(np.uint32).view(np.float32))


@pytest.mark.filterwarnings("error")
def test_fp32_to_bf16():
    x = fp32_values()
    assert_same(run_cast(x, torch.bfloat16), x.bfloat16())


@pytest.mark.filterwarnings("error")
def test_fp32_to_bf16_towards_zero():
    x = fp32_values()
    cut = (x.view(torch.int32) >> 16 << 16).view(torch.float32)
    want = torch.where(x.isnan(), x, cut).bfloat16()
    assert_same(run_cast(x, torch.bfloat16, "rtz"), want)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_fp64_rounds_once(dtype):
    x = torch.cat([fp32_values()[:4096].double(), torch.randn(4096).double()])
    tie = float(torch.tensor(1 + 2.0**-8)) if dtype == torch.bfloat16 else 1 + 2.0**-11
    x[:4] = torch.tensor([tie, tie + 2.0**-40, tie - 2.0**-40, -tie - 2.0**-40])
    x[4:8] = torch.tensor([1e300, -1e300, 1e-300, 2.0**-134 + 2.0**-170])
    got = run_cast(x, dtype)
    if dtype == torch.float16:
        with np.errstate(over="ignore", invalid="ignore"):
            assert_same(got, torch.from_numpy(x.numpy().astype(np.float16)))
        return
    finite = x.isfinite()
    want = bf16([nearest(Fraction(v)) for v in x[finite].tolist()])
    assert_same(got[finite], want, signed_zero=False)
    assert_same(got[~finite], x[~finite].bfloat16())


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("rtz", [True, False])
def test_fp64_overflow(rtz):
    x = torch.tensor([1e300, -1e300, 3.3961776e38, float("inf")], dtype=torch.float64)
    got = run_cast(x, torch.bfloat16, "rtz" if rtz else None)
    top, inf = (0x7F7F, 0x7F80) if rtz else (0x7F80, 0x7F80)
    assert_same(got, bf16([top, top | 0x8000, top, inf]))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64])
def test_integer_to_bf16(dtype):
    top = min(torch.iinfo(dtype).max, 2**53)
    x = torch.randint(max(torch.iinfo(dtype).min, -(2**53)), top, (1024,), dtype=dtype)
    if dtype in (torch.int32, torch.int64):
        x[:2] = torch.tensor([0x1010001, -0x1010001])  # a tie once rounded to fp32
    got = run_cast(x, torch.bfloat16)
    assert_same(got, bf16([nearest(Fraction(v)) for v in x.tolist()]))
    small = x.abs() < 2**24
    assert_same(got[small], x[small].bfloat16())


@pytest.mark.filterwarnings("error")
def test_other_casts():
    x = bf16(np.arange(1 << 16))
    for dtype in (torch.float32, torch.float64, torch.float16):
        assert_same(run_cast(x, dtype), x.to(dtype))
    half = torch.arange(-(1 << 15), 1 << 15).to(torch.int16).view(torch.float16)
    assert_same(run_cast(half, torch.bfloat16), half.bfloat16())
    small = x[(x.abs() < 120)][: 1 << 14]
    for dtype in (torch.int8, torch.int32, torch.int64):
        assert torch.equal(run_cast(small, dtype), small.to(dtype))
    mask = torch.randint(0, 2, (256,), dtype=torch.bool)
    assert_same(run_cast(mask, torch.bfloat16), mask.bfloat16())


@pytest.mark.filterwarnings("error")
def test_fp32_to_fp16():
    x = torch.cat([fp32_values(), torch.randn(8192) * 300])
    x[:4] = torch.tensor([65504.0, 65519.99, 65520.0, -1e30])
    x[4:8] = torch.tensor([1 + 2.0**-11, 1 + 3 * 2.0**-11, 2.0**-25, 3 * 2.0**-25])
    assert_same(run_cast(x, torch.float16), x.half())


@triton.jit
def keep_left(a, b):
    return a + b


@triton.jit
def widening(a, b):
    return a.to(tl.float32) + b.to(tl.float32)


@triton.jit
def reduce(x, out, index, OP: tl.constexpr, M: tl.constexpr, N: tl.constexpr):
    rows = tl.arange(0, M)
    a = tl.load(x + rows[:, None] * N + tl.arange(0, N)[None, :])
    if OP == "sum":
        tl.store(out + rows, tl.sum(a, axis=1))
    elif OP == "max":
        v, i = tl.max(a, axis=1, return_indices=True)
        tl.store(out + rows, v)
        tl.store(index + rows, i)
    elif OP == "min":
        tl.store(out + rows, tl.min(a, axis=1))
        tl.store(index + rows, tl.argmin(a, axis=1))
    elif OP == "custom":
        tl.store(out + rows, tl.reduce(a, 1, keep_left))
    else:
        tl.store(out + rows, tl.reduce(a, 1, widening))


def run_reduce(x: torch.Tensor, op: str) -> tuple[torch.Tensor, torch.Tensor]:
    out = torch.empty(x.shape[0], dtype=x.dtype)
    index = torch.full((x.shape[0],), -1, dtype=torch.int32)
    reduce[(1,)](x, out, index, OP=op, M=x.shape[0], N=x.shape[1])
    return out, index


def test_sum():
    x = torch.randint(-99, 99, (32, 128)).bfloat16() / 8  # exact in fp32, in any order
    assert_same(run_reduce(x, "sum")[0], x.double().sum(1).bfloat16())


def test_max_and_min():
    x = torch.randn(32, 64).bfloat16()
    x[0, 5], x[1, 6], x[2, 7] = float("inf"), -float("inf"), 0.0
    for op in ("max", "min"):
        values, at = run_reduce(x, op)
        want = getattr(x, op)(1).values
        assert_same(values, want)
        assert torch.equal(at, (x == want[:, None]).int().argmax(1).int())


def test_reduction_of_ones_own_rounds_at_every_step():
    x = torch.randn(4, 16).bfloat16()
    want = x[:, 0]
    for column in x.T[1:]:
        want = want + column
    assert_same(run_reduce(x, "custom")[0], want)


def test_reduction_that_changes_type_is_refused():
    with pytest.raises(Exception, match=r"returns fp32 for bf16"):
        run_reduce(torch.ones(2, 4).bfloat16(), "widening")


@triton.jit
def scan(x, total, product, sorted_, N: tl.constexpr):
    i = tl.arange(0, N)
    a = tl.load(x + i)
    tl.store(total + i, tl.cumsum(a, 0))
    tl.store(product + i, tl.associative_scan(a, 0, keep_left))
    tl.store(sorted_ + i, tl.sort(a))


def test_scan_and_sort():
    x = torch.randint(-64, 64, (64,)).bfloat16()
    out = torch.empty(3, 64, dtype=torch.bfloat16)
    scan[(1,)](x, out[0], out[1], out[2], N=64)
    assert_same(out[0], x.double().cumsum(0).bfloat16())
    want = [x[0]]
    for value in x[1:]:
        want.append(want[-1] + value)
    assert_same(out[1], torch.stack(want))
    assert_same(out[2], x.sort().values, signed_zero=False)


@triton.jit
def moves(x, mask, out, n, N: tl.constexpr):
    i = tl.arange(0, N)
    a = tl.load(x + i, mask=i < n, other=-float("inf"))
    b = tl.load(x + i, mask=i < n, other=1.1)
    tl.store(out + i, a)
    tl.store(out + N + i, b)
    tl.store(out + 2 * N + i, tl.where(tl.load(mask + i), a, b), mask=i < n)
    tl.store(out + 3 * N + i, tl.full((N,), 0.3, tl.bfloat16))
    tl.store(out + 4 * N + i, tl.zeros((N,), tl.bfloat16))
    tl.store(out + 5 * N + i, tl.load(x) + tl.load(x + 1))


@pytest.mark.filterwarnings("error")
def test_loads_select_and_constants():
    x = bf16(np.arange(0x3F80, 0x3FC0))
    mask = torch.randint(0, 2, (64,), dtype=torch.bool)
    out = torch.full((6, 64), 9.0, dtype=torch.bfloat16)
    moves[(1,)](x, mask, out, 40, N=64)
    inside = torch.arange(64) < 40
    value = torch.tensor([-float("inf"), 1.1, 9.0, 0.3]).bfloat16()
    assert_same(out[0], torch.where(inside, x, value[0]))
    assert_same(out[1], torch.where(inside, x, value[1]))
    assert_same(out[2], torch.where(inside, x, value[2]))
    assert_same(out[3], value[3].expand(64))
    assert_same(out[4], torch.zeros(64).bfloat16())
    assert_same(out[5], (x[0] + x[1]).expand(64))


@triton.jit
def show(x):
    tl.device_print("value", tl.load(x + tl.arange(0, 2)))


def test_print_shows_values(capsys):
    show[(1,)](torch.tensor([1.5, -2.0]).bfloat16())
    assert "1.5" in capsys.readouterr().out


# --- whole kernels --------------------------------------------------------------------------------


@triton.jit
def gemm(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, P: tl.constexpr):
    """c[M, N] = a[M, K] b[N, K]^T through pointers."""
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        k = start + tl.arange(0, BK)
        left = tl.load(a + m[:, None] * K + k, mask=(m[:, None] < M) & (k < K), other=0.0)
        right = tl.load(b + n[:, None] * K + k, mask=(n[:, None] < N) & (k < K), other=0.0)
        acc = tl.dot(left, right.T, acc, input_precision=P)
    where = (m[:, None] < M) & (n < N)
    tl.store(c + m[:, None] * N + n, acc.to(tl.bfloat16), mask=where)


@triton.jit
def gemm_tma(a, b, c, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """The same through host tensor descriptors."""
    m = tl.program_id(0) * BM
    n = tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        acc = tl.dot(a.load([m, k]), b.load([n, k]).T, acc)
    c.store([m, n], acc.to(tl.bfloat16))


M, N, K, BM, BN, BK = 70, 56, 88, 32, 32, 16


def in_steps(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The same product, tile by tile and k-step by k-step, in fp32; torch rounds it."""
    pad_a, pad_b = torch.zeros(96, 96), torch.zeros(64, 96)
    pad_a[:M, :K], pad_b[:N, :K] = a.float(), b.float()
    c = np.zeros((96, 64), np.float32)
    for m in range(0, 96, BM):
        for n in range(0, 64, BN):
            for k in range(0, 96, BK):
                left = pad_a[m : m + BM, k : k + BK].numpy().copy()
                right = pad_b[n : n + BN, k : k + BK].numpy().copy()
                c[m : m + BM, n : n + BN] += left @ right.T
    return torch.from_numpy(c[:M, :N]).bfloat16()


def run_gemm(a: torch.Tensor, b: torch.Tensor, how: str) -> torch.Tensor:
    c = torch.full((M, N), float("nan"), dtype=torch.bfloat16)
    grid = (triton.cdiv(M, BM), triton.cdiv(N, BN))
    if how != "tma":
        gemm[grid](a, b, c, M, N, K, BM=BM, BN=BN, BK=BK, P=how)
        return c
    blocks = ((a, [BM, BK]), (b, [BN, BK]), (c, [BM, BN]))
    gemm_tma[grid](*[TensorDescriptor.from_tensor(t, s) for t, s in blocks], K, BM=BM, BN=BN, BK=BK)
    return c


@pytest.mark.parametrize("how", ["ieee", "tf32", "tma"])
def test_gemm(how):
    exact = [torch.randint(-99, 99, s).bfloat16() / 16 for s in ((M, K), (N, K))]
    want = exact[0].double() @ exact[1].double().T
    assert_same(run_gemm(*exact, how), want.bfloat16())
    a, b = (torch.randn(s).bfloat16() for s in ((M, K), (N, K)))
    assert_same(run_gemm(a, b, how), in_steps(a, b))


@triton.jit
def copy_tile(x, out, B: tl.constexpr):
    at = tl.arange(0, B)
    tl.store(out + at[:, None] * B + at, x.load([0, 0]))


@pytest.mark.parametrize("padding", ["zero", "nan"])
def test_descriptor_padding(padding):
    x = torch.randn(10, 24).bfloat16()
    out = torch.empty(32, 32, dtype=torch.bfloat16)
    copy_tile[(1,)](TensorDescriptor.from_tensor(x, [32, 32], padding), out, B=32)
    want = torch.full((32, 32), 0.0 if padding == "zero" else float("nan")).bfloat16()
    want[:10, :24] = x
    assert_same(out, want)


# --- install --------------------------------------------------------------------------------------


def test_install_twice_changes_nothing():
    methods = dict(vars(triton.runtime.interpreter.InterpreterBuilder))
    interpreter.install()
    assert dict(vars(triton.runtime.interpreter.InterpreterBuilder)) == methods


@triton.jit
def called(x, out, TIMES: tl.constexpr):
    value = tl.load(x)
    for _ in tl.static_range(TIMES):
        value = keep_left(value, value)
    tl.store(out, value)


def test_the_language_is_replaced_once_a_launch_and_put_back(monkeypatch):
    """The calls that a kernel makes neither replace it nor look through it again."""
    replace, members, did = ti._patch_attr, inspect.getmembers, []

    def replacing(owner, name, *rest):
        did.append((owner, name))
        replace(owner, name, *rest)

    def looking(owner, *rest):
        did.append(owner)
        return members(owner, *rest)

    monkeypatch.setattr(ti, "_patch_attr", replacing)
    monkeypatch.setattr(inspect, "getmembers", looking)
    seen = []
    for times in (1, 0, 1, 3):
        did.clear()
        out = torch.zeros(1)
        called[(1,)](torch.ones(1), out, times)
        assert out == 2**times and tl.core.is_builtin(tl.load)
        seen.append(list(did))
    assert (tl, "load") in seen[1]
    assert seen[1] == seen[2] == seen[3]


def python(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    root = str(Path(__file__).parents[2])
    code = f"import os, sys; sys.path.insert(0, {root!r})\n{code}"
    args = [sys.executable, "-c", code]
    return subprocess.run(args, capture_output=True, text=True, env=clean | env, check=False)


INSTALL = "from fusedsl.runtime import interpreter; interpreter.install()\n"
MODULE = "import triton.runtime.interpreter as ti\n"


def test_compiling_processes_are_left_alone():
    code = INSTALL + MODULE + "print(hasattr(ti.InterpreterBuilder, '_fusedsl'))"
    done = python(code, TRITON_INTERPRET="0")
    assert done.stdout.strip() == "False", done.stderr


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("del ti.InterpreterBuilder.create_dot", "has no InterpreterBuilder.create_dot"),
        ("del ti.ScanOps", "has no ScanOps.cumprod"),
        (
            "import numpy as np; make = ti.TensorHandle\n"
            "ti.InterpreterBuilder.create_fadd = lambda s, a, b: make(a.data + b.data, a.dtype)",
            "still wrong about bfloat16: add",
        ),
    ],
)
def test_unknown_interpreter_is_refused(change, message):
    done = python(MODULE + change + "\n" + INSTALL, TRITON_INTERPRET="1")
    assert "error[F0604]" in done.stderr and message in done.stderr, done.stderr


def test_interpreting_chosen_too_late_is_refused():
    done = python("import triton\nos.environ['TRITON_INTERPRET'] = '1'\n" + INSTALL)
    assert "error[F0604]" in done.stderr and "set after triton" in done.stderr, done.stderr


def test_numpy_too_new_for_triton_is_refused(monkeypatch):
    monkeypatch.setattr(triton, "__version__", "3.6.0")
    monkeypatch.setattr(np, "__version__", "2.4.1")
    with pytest.raises(FusedslError, match="numpy<2"):
        interpreter._check_environment()
