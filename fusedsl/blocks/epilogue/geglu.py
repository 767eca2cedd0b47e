"""GeGLU: gelu(gate) * up, by the error function or by its tanh approximation."""

from __future__ import annotations

import torch

from fusedsl.blocks.epilogue.gated import gated_unit
from fusedsl.blocks.pointwise import gelu

BLOCK = gated_unit("geglu", "gelu", torch.nn.functional.gelu, gelu.BLOCK.attrs)
