"""ReGLU: relu(gate) * up."""

from __future__ import annotations

import torch

from fusedsl.blocks.epilogue.gated import gated_unit

BLOCK = gated_unit("reglu", "relu", torch.relu)
