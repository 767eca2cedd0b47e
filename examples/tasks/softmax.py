"""Softmax over the last axis, bf16."""

import torch
from torch import Tensor

from fusedsl.judge import Input, Task


def softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, -1)


task = Task(
    name="softmax",
    reference=softmax,
    inputs=(Input("x", ("M", "K")),),
    dtype="bf16",
    dims={"M": (1, 70), "K": (16, 200)},
    shapes=({"M": 33, "K": 100},),
    timed={"M": 64, "K": 256},
)
