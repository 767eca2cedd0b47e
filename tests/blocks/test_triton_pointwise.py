"""Every pointwise Triton function against its reference in fp64.

Portable forms are held to a few units in the last place of fp32, widened where the function
itself is ill-conditioned: a rounding of x moves f by abs(x f'(x) / f(x)) units.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from fusedsl.blocks import library
from fusedsl.ir import Block, Kind
from tests.blocks.harness import attr_variants, each, random_operands, run_pointwise

#: numpy, under the interpreter, remarks on what the hard values are there for.
pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")

POINTWISE = each(lambda b: b.kind is Kind.POINTWISE)
UNARY = [n for n in POINTWISE if len(library()[n].operands) == 1]
ULP = 2.0**-24
TINY = torch.finfo(torch.float32).tiny

#: Sums whose terms cancel: an error of a few units of the larger term, not of the result.
#: gelu by erf is 0.5 x (1 + erf), as in torch; derivatives cross zero.
CANCELS = {
    ("gelu", "none"): lambda x: 0.5 * x.abs(),
    ("gelu_grad", "none"): lambda x: torch.ones_like(x),
    ("gelu_grad", "tanh"): lambda x: torch.ones_like(x),
    ("silu_grad", None): lambda x: torch.ones_like(x),
}


def hard_values() -> torch.Tensor:
    """Log-spaced magnitudes of both signs over fp32's range, ordinary ones, and special values."""
    sizes = torch.logspace(-37.5, 38.4, 601, dtype=torch.float64)
    dense = torch.linspace(0.01, 20.0, 400, dtype=torch.float64)
    near = torch.tensor([0.0, 0.03, 0.03125, 0.6249, 0.625, 0.6251, 2.7, 87.0, 88.7, 104.0, 200.0])
    special = torch.tensor([math.inf, math.nan, 1e5])
    sizes = torch.cat((sizes, dense, near.double(), special.double()))
    return torch.cat((sizes, -sizes)).float()


def conditioned(block: Block, x: torch.Tensor, attrs: dict[str, Any]) -> tuple[torch.Tensor, ...]:
    """The fp64 reference, and abs(x f'(x)): what a relative change of x does to it."""
    wide = x.double().requires_grad_()
    y = block.reference(wide, **attrs)
    if not y.requires_grad:
        return y.detach(), torch.zeros_like(wide).detach()
    (slope,) = torch.autograd.grad(y.sum(), wide)
    return y.detach(), torch.nan_to_num((wide * slope).detach().abs(), posinf=math.inf)


@pytest.mark.parametrize("name", UNARY)
def test_portable_form_is_accurate(name: str) -> None:
    block = library()[name]
    for attrs in attr_variants(block):
        x = hard_values().abs() if name == "inv_rms" else hard_values()
        actual = run_pointwise(block, [x], attrs)
        y, condition = conditioned(block, x, attrs)
        expected = y.float()
        size = y.abs() + condition
        if (name, attrs.get("approximate")) in CANCELS:
            size = size + CANCELS[name, attrs.get("approximate")](x.double())
        # torch's own tanh form of gelu cancels in fp64, too
        bound = 6 * ULP * size + TINY + 2.0**-50 * x.double().abs().clamp(max=20.0)
        finite = expected.isfinite()
        wrong = (actual.double() - y).abs()[finite] > bound[finite]
        wrong |= ~actual.isfinite()[finite]
        worst = torch.stack((x[finite][wrong], actual[finite][wrong], expected[finite][wrong]), 1)
        assert not wrong.any(), (attrs, worst[:5])
        torch.testing.assert_close(actual[~finite], expected[~finite], equal_nan=True)


@pytest.mark.parametrize("name", [n for n in UNARY if library()[n].vjp and n != "inv_rms"])
def test_nan_stays_nan(name: str) -> None:
    block = library()[name]
    for attrs in attr_variants(block):
        assert run_pointwise(block, [torch.tensor([math.nan, 1.0])], attrs)[0].isnan()


def test_limits() -> None:
    at = {
        "silu": [(-200.0, -0.0), (200.0, 200.0), (-1e30, 0.0)],
        "tanh": [(1e5, 1.0), (-1e5, -1.0), (math.inf, 1.0), (1e-30, 1e-30)],
        "exp": [(1000.0, math.inf), (-1000.0, 0.0), (math.inf, math.inf), (-math.inf, 0.0)],
        "sigmoid": [(-1000.0, 0.0), (1000.0, 1.0), (-math.inf, 0.0)],
        "relu": [(-math.inf, 0.0), (math.inf, math.inf)],
    }
    for name, points in at.items():
        x, expected = (torch.tensor(column) for column in zip(*points, strict=True))
        torch.testing.assert_close(
            run_pointwise(library()[name], [x], {}), expected, rtol=0, atol=0
        )


TWO = [n for n in POINTWISE if [op.index for op in library()[n].operands] == [False, False]]


def test_zero_where_hides_whatever_stands_in_the_row() -> None:
    x = torch.tensor([[1.0, math.nan], [2.0, -3.0], [math.inf, 4.0]])
    actual = run_pointwise(library()["zero_where"], [x, torch.tensor([7, -100, 7])], {"equals": 7})
    assert actual.tolist() == [[0.0, 0.0], [2.0, -3.0], [0.0, 0.0]]


@pytest.mark.parametrize("name", TWO)
def test_two_operands_broadcast_and_take_literals(name: str) -> None:
    block = library()[name]
    a, b = random_operands(block, seed=3)
    hard = torch.tensor([[0.0, 1e38, 3e38, 1e-38, math.inf, -math.inf, math.nan, -2.5]]).double()
    for left, right in [
        (a, b),
        (a, b[:1]),
        (a, b[:, :1]),
        (a, -1.75),
        (0.3, b),
        (hard, hard.T.clone()),
    ]:
        actual = run_pointwise(block, [left, right], {})
        narrow = [torch.as_tensor(v).float().double() for v in (left, right)]
        expected = block.reference(*narrow).float()
        torch.testing.assert_close(actual, expected, rtol=2e-7, atol=TINY, equal_nan=True)


def _inv_rms_of(bits: torch.Tensor) -> None:
    """Every result is within a unit in the last place, and exact where it is 0, inf or NaN."""
    x = bits.int().view(torch.float32)
    actual = run_pointwise(library()["inv_rms"], [x], {"eps": 0.0})
    exact = torch.rsqrt(x.double())
    rounded = exact.float()
    ulp = (torch.nextafter(rounded, torch.tensor(math.inf)) - rounded).double()
    right = ((actual - exact).abs() <= ulp) | (actual == rounded) | (actual.isnan() & exact.isnan())
    assert right.all(), x[~right][:8]


def test_inv_rms_is_right_to_a_unit_in_the_last_place() -> None:
    bits = torch.randint(0, 0x7F800000, (1 << 17,), generator=torch.Generator().manual_seed(5))
    small = torch.cat([torch.arange(64), torch.randint(0, 0x800000, (4096,))])
    special = torch.tensor([0, 0x7F800000, 0x7FC00000, 0x7F7FFFFF, 0x800000, 0x7FFFFF])
    _inv_rms_of(torch.cat([bits, small, special]))


@pytest.mark.gpu
@pytest.mark.parametrize("exponent", [0, 1, 2, 126, 127, 128, 253, 254])
def test_inv_rms_of_every_mantissa(exponent: int) -> None:
    _inv_rms_of((exponent << 23) + torch.arange(1 << 23))


def test_division_does_not_flush_where_the_divisor_is_huge() -> None:
    x = torch.tensor([2.0e38, 3.0e38])
    torch.testing.assert_close(run_pointwise(library()["div"], [x, x], {}), torch.ones(2))


def test_numerics_14_gelu_forms_are_not_exchanged() -> None:
    x = torch.linspace(-3.5, -2.0, 301)
    erf, tanh = (
        run_pointwise(library()["gelu"], [x], {"approximate": form}) for form in ("none", "tanh")
    )
    gelu = torch.nn.functional.gelu
    assert (erf - gelu(x.double())).abs().max() < 1e-6
    assert (tanh - gelu(x.double(), approximate="tanh")).abs().max() < 1e-6
    assert 4e-4 < (erf - tanh).abs().max() < 5e-4
    assert dict(library()["gelu"].all_attrs)["approximate"].default == "none"


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["tanh", "sigmoid", "silu", "silu_grad", "gelu", "softcap", "exp"])
def test_fast_form_is_below_half_precision(name: str) -> None:
    block = library()[name]
    x = torch.linspace(-30.0, 30.0, 20001)
    for attrs in attr_variants(block):
        actual = run_pointwise(block, [x], attrs, fast=True).double()
        expected = block.reference(x.double(), **attrs)
        scale = expected.abs() if name in ("tanh", "softcap", "exp") else 1.0 + x.abs()
        assert ((actual - expected).abs() <= 2.0**-10 * scale).all()
