"""RMSNorm at tiny sizes and with a tight budget, for the tests of the judge."""

import torch
from torch import Tensor

from fusedsl.judge import Input, Task


def rms_norm(x: Tensor, gain: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * gain


task = Task(
    name="small",
    reference=rms_norm,
    inputs=(Input("x", ("M", "K")), Input("gain", ("K",), weight=True)),
    dims={"M": (9, 40), "K": (16, 48)},
    shapes=({"M": 12, "K": 40},),
    hidden=1,
    timed={"M": 16, "K": 32},
    call_seconds=4.0,
    memory=256 << 20,
)
