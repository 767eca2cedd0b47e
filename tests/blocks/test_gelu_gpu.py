"""gelu by the error function as a GPU approximates it: every 16-bit value."""

import pytest
import torch

import fusedsl

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
#: dtype -> half a unit in the last place, and the number near which that becomes absolute: in bf16
#: what fp32 flushes to zero, in fp16 the least normal one.
ROUNDING = {"bf16": (2.0**-8, 2.0**-119), "fp16": (2.0**-11, 2.0**-14)}


@pytest.mark.parametrize("name", DTYPES)
def test_every_value(name: str) -> None:
    bits = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16)
    x = bits.view(DTYPES[name]).reshape(64, 1024).cuda()
    text = f"kernel k(x: {name}[M, 1024]) -> (y: {name}[M, 1024]) {{ y = gelu(x); }}"
    y = fusedsl.compile(text)(x).double()
    wide = x.double()
    want = torch.nn.functional.gelu(wide)
    assert torch.equal(y.isnan(), want.isnan()), "NaN is NaN, -inf too, and nothing else is"
    assert (y[wide == torch.inf] == torch.inf).all()
    # below zero without the cancellation of 1 + erf
    want = torch.where(wide < 0, 0.5 * wide * torch.special.erfc(-wide * 0.5**0.5), want)
    finite = torch.isfinite(wide)
    wide, y, want = wide[finite], y[finite], want[finite]
    share = torch.where(wide > -4, 2.0**-10, torch.where(wide > -6, 2.0**-7.9, 2.0**-4))
    share = torch.where(wide > -2, 2.0**-17, share)
    rounding, least = ROUNDING[name]
    allowed = want.abs() * (rounding + share) + 2 * least * rounding
    worst = int(((y - want).abs() / allowed).argmax())
    assert ((y - want).abs() <= allowed).all(), (wide[worst], y[worst], want[worst])
