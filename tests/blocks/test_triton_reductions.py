"""Every row reduction's Triton functions, in pieces of several widths, against fp64."""

from __future__ import annotations

import math

import pytest
import torch
import triton
import triton.language as tl

from fusedsl.blocks import library
from fusedsl.blocks.row_reduction import row_log_sum
from fusedsl.ir import Kind, as_tuple
from tests.blocks.harness import DEVICE, each, run_merge_all, run_reduction

pytestmark = pytest.mark.filterwarnings("ignore:.*(encountered in|All-NaN):RuntimeWarning")

REDUCTIONS = each(
    lambda b: b.kind is Kind.ROW_REDUCTION and b.reduction is not None and b.reduction.owner is None
)


def rows(width: int) -> dict[str, torch.Tensor]:
    """Kinds of rows that break careless statistics."""
    generator = torch.Generator().manual_seed(width)
    normal = torch.randn(4, width, generator=generator)
    outlier = normal.clone()
    outlier[:, 0] = 3e4
    return {
        "normal": normal,
        "negative": -1.0 - normal.abs(),
        "zero": torch.zeros(4, width),
        "large mean": normal + 1e4,
        "outlier": outlier,
        "huge": 1e9 * normal,
        "tiny": 1e-15 * normal,
    }


def check(name: str, x: torch.Tensor, actual: tuple[torch.Tensor, ...], label: str) -> None:
    """Errors in units of what the sum's terms, or the spread about a rounded mean, allow."""
    wide = x.double()
    expected = as_tuple(library()[name].reference(wide))
    unit = 2.0**-23
    size = wide.abs().amax(dim=-1, keepdim=True)
    total = wide.abs().sum(dim=-1, keepdim=True)
    # means are rounded to fp32: a piece's by `unit * size`, against a spread of sqrt(var)
    drift = 2 * unit * size * (expected[-1].abs().sqrt() + 2 * unit * size)
    bounds = {
        "row_sum": (8 * unit * total,),
        "row_mean": (8 * unit * size,),
        "row_max": (torch.zeros_like(size),),
        "row_mean_square": (8 * unit * expected[0],),
        # exp of a difference d is off by d units, and exp(-d) * d is below 1
        "row_log_sum": (torch.zeros_like(size), 8 * unit * (1 + expected[-1].abs())),
        "row_moments": (2 * unit * size, 16 * unit * expected[-1] + drift),
    }[name]
    for result, value, bound in zip(actual, expected, bounds, strict=True):
        assert result.dtype is torch.float32
        assert ((result.double() - value).abs() <= bound + 1e-37).all(), (label, result, value)


@pytest.mark.parametrize("width", [1, 5, 16, 50])
@pytest.mark.parametrize("name", REDUCTIONS)
def test_chunk_merge_finish(name: str, width: int) -> None:
    for label, x in rows(width).items():
        for cols in (2, 16, 64):
            check(name, x, run_reduction(library()[name], x, cols=cols), f"{label}, {cols}")


@pytest.mark.parametrize("name", REDUCTIONS)
def test_merge_all_joins_pieces_of_any_size(name: str) -> None:
    block = library()[name]
    assert block.reduction is not None
    for label, x in rows(48).items():
        for sizes in ([48], [16, 16, 16], [32, 16], [1, 40, 7], [10, 10, 10, 10, 8]):
            pieces = [block.reduction.chunk_reference(p.double()) for p in x.split(sizes, dim=1)]
            states = tuple(torch.cat(s, dim=-1).float() for s in zip(*pieces, strict=True))
            counts = torch.tensor(sizes)
            check(name, x, run_merge_all(block, states, counts, 48), f"{label}, {sizes}")


@pytest.mark.parametrize("name", REDUCTIONS)
def test_nan_reaches_the_result_of_its_row_only(name: str) -> None:
    for nan in (math.nan, -math.nan):
        x = torch.randn(3, 20, generator=torch.Generator().manual_seed(2))
        x[1, 17] = nan
        for cols in (4, 32):
            for result in run_reduction(library()[name], x, cols=cols):
                assert result.isnan().flatten().tolist() == [False, True, False]


def test_maximum_of_special_rows() -> None:
    x = torch.full((4, 10), -math.inf)
    x[1, 3], x[2, 9], x[3, :] = -7.0, math.inf, -1e-40
    for cols in (4, 16):
        (result,) = run_reduction(library()["row_max"], x, cols=cols)
        torch.testing.assert_close(result, x.amax(dim=1, keepdim=True), rtol=0, atol=0)


def test_numerics_01_squares_beyond_fp16() -> None:
    x = (300.0 + torch.randn(4, 256, generator=torch.Generator().manual_seed(1))).half()
    (mean_square,) = run_reduction(library()["row_mean_square"], x, cols=64)
    expected = x.double().square().mean(dim=1, keepdim=True)
    assert (expected > 65504).all()
    torch.testing.assert_close(mean_square.double(), expected, rtol=1e-6, atol=0)


def test_numerics_09_mean_of_bf16_accumulates_in_fp32() -> None:
    x = (1.0 + torch.rand(2, 2048, generator=torch.Generator().manual_seed(4))).bfloat16()
    mean, var = run_reduction(library()["row_moments"], x, cols=256)
    wide = x.double()
    torch.testing.assert_close(mean.double(), wide.mean(1, keepdim=True), rtol=3e-7, atol=0)
    torch.testing.assert_close(
        var.double(), wide.var(1, correction=0, keepdim=True), rtol=3e-6, atol=0
    )


@pytest.mark.parametrize("name", ["row_mean_square", "row_moments"])
def test_numerics_10_merged_statistics_of_huge_values(name: str) -> None:
    block = library()[name]
    assert block.reduction is not None
    x = 1e9 * (1.0 + 1e-3 * torch.randn(4, 96, generator=torch.Generator().manual_seed(5)))
    check(name, x, run_reduction(block, x, cols=16), "looped")
    pieces = [block.reduction.chunk_reference(p.double()) for p in x.split(16, dim=1)]
    states = tuple(torch.cat(s, dim=-1).float() for s in zip(*pieces, strict=True))
    joined = run_merge_all(block, states, torch.full((6,), 16), 96)
    expected = as_tuple(block.reference(x.double()))
    for result, value in zip(joined, expected, strict=True):
        # pieces' means are rounded to 64, a part in 15,000 of the spread
        torch.testing.assert_close(result.double(), value, rtol=1e-4, atol=0)


def test_the_largest_of_nothing() -> None:
    found = library()["row_max"].reference(torch.empty(3, 0))
    assert found.shape == (3, 1) and bool((found == -torch.inf).all())


def test_log_sum_of_special_rows() -> None:
    x = torch.randn(5, 20, generator=torch.Generator().manual_seed(6))
    x[0] = -math.inf
    x[1, 1:] = -math.inf
    x[2, 3] = math.inf
    x[3] *= 1e30
    for cols in (4, 32):
        largest, log_sum = run_reduction(library()["row_log_sum"], x, cols=cols)
        expected = torch.logsumexp(x.double(), dim=1, keepdim=True)
        torch.testing.assert_close((largest + log_sum).double(), expected, rtol=1e-6, atol=0)


@triton.jit
def _scaled_log_sum(
    x, scale, largest, total, ROWS: tl.constexpr, COLS: tl.constexpr, WIDTH: tl.constexpr,
    FAST: tl.constexpr,
):  # fmt: skip
    rows, cols = tl.arange(0, ROWS), tl.arange(0, COLS)
    tile = tl.load(x + rows[:, None] * COLS + cols[None, :])
    factor = tl.load(scale + rows)[:, None]
    valid = (cols < WIDTH)[None, :]
    peak, terms = row_log_sum.log_sum_chunk(tile, valid, WIDTH, factor, FAST=FAST)
    tl.store(largest + rows, peak)
    tl.store(total + rows, terms)


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize(("columns", "width"), [(32, 32), (128, 128), (128, 70)])
def test_a_log_sum_applies_the_scale_of_its_rows(columns: int, width: int, fast: bool) -> None:
    x = 30 * torch.randn(8, columns, generator=torch.Generator().manual_seed(0))
    x[1, 3], x[2, 4], x[3] = math.inf, math.nan, -math.inf
    scale = torch.tensor([1.0, 0.5, 2.0, 3.0, 0.0, 1e-3, 7.0, 0.1])
    largest, total = (torch.empty(8, device=DEVICE) for _ in range(2))
    given = x.to(DEVICE), scale.to(DEVICE)
    _scaled_log_sum[(1,)](*given, largest, total, ROWS=8, COLS=columns, WIDTH=width, FAST=fast)
    exact = (scale[:, None] * x)[:, :width].double().logsumexp(dim=1)
    found = largest.double().cpu() + total.double().cpu().log()
    assert found[3] == -math.inf and total[3] == 0  # that row has no value at all
    torch.testing.assert_close(found, exact, rtol=1e-6, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_pick_takes_one_column_and_never_another(dtype: torch.dtype) -> None:
    x = torch.randn(8, 50, generator=torch.Generator().manual_seed(7))
    x[:, 20] = math.nan
    x[5, 3] = math.inf
    beyond = 2**32 + 7 if dtype is torch.int64 else 2**31 - 1
    index = torch.tensor([0, 49, 16, 20, -1, 3, 50, beyond], dtype=dtype)
    block = library()["pick"]
    expected = block.reference(x, index)
    assert expected.flatten()[:3].tolist() == [x[0, 0], x[1, 49], x[2, 16]]
    assert expected.isnan().flatten().tolist() == [i in (3, 4, 6, 7) for i in range(8)]
    for cols in (2, 16, 64):
        (result,) = run_reduction(block, x, index, cols=cols)
        torch.testing.assert_close(result, expected, rtol=0, atol=0, equal_nan=True)
