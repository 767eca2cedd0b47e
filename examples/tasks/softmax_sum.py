"""A task that tells nothing: the sum of a softmax is 1 whatever its input. It is refused."""

import torch
from torch import Tensor

from fusedsl.judge import Input, Task


def softmax_sum(x: Tensor) -> Tensor:
    return torch.softmax(x, -1).sum(-1, keepdim=True)


task = Task(
    name="softmax_sum",
    reference=softmax_sum,
    inputs=(Input("x", ("M", "K")),),
    dims={"M": (1, 70), "K": (16, 200)},
    shapes=({"M": 33, "K": 100},),
    timed={"M": 64, "K": 256},
)
