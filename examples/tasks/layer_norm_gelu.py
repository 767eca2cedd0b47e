"""LayerNorm over the last axis, then gelu (erf), fp32."""

from torch import Tensor
from torch.nn.functional import gelu, layer_norm

from fusedsl.judge import Input, Task


def layer_norm_gelu(x: Tensor, gain: Tensor, shift: Tensor) -> Tensor:
    return gelu(layer_norm(x, x.shape[-1:], gain, shift, 1e-5))


task = Task(
    name="layer_norm_gelu",
    reference=layer_norm_gelu,
    inputs=(
        Input("x", ("M", "K")),
        Input("gain", ("K",), weight=True),
        Input("shift", ("K",), weight=True, fill="normal"),
    ),
    dims={"M": (1, 70), "K": (16, 200)},
    shapes=({"M": 33, "K": 96},),
    timed={"M": 64, "K": 256},
)
