"""SwiGLU: silu(gate) * up."""

from __future__ import annotations

import torch

from fusedsl.blocks.epilogue.gated import gated_unit

BLOCK = gated_unit("swiglu", "silu", torch.nn.functional.silu)
