"""The expert-written blocks: all Triton text of the project lives below this package.

| package | blocks |
|---|---|
| `gemm` | projections, and what is packed into their weights at bind time |
| `row_reduction` | one value per row, and the norms and softmax made of them |
| `pointwise` | elementwise with broadcasting |
| `epilogue` | gated units, halves of a stacked projection, per-tile statistics |

One block per file. A module's `BLOCK` is found by `library()`: adding a block touches no other
file. Shared helpers are in `typing.py` (inference) and `fast_math.py` (Triton).
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from fusedsl.ir import Block, BlockLibrary


@cache
def library() -> BlockLibrary:
    """Every block that a module below this package defines as `BLOCK`."""
    found: list[Block] = []
    for module in pkgutil.walk_packages(__path__, prefix=__name__ + "."):
        block = getattr(importlib.import_module(module.name), "BLOCK", None)
        if isinstance(block, Block):
            found.append(block)
    return BlockLibrary(tuple(sorted(found, key=lambda b: b.name)))
