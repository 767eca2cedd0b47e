"""Graph to kernel plans, and the cost model that decides where fusing pays.

| module | does |
|---|---|
| `placement` | which nodes run in which projection's kernel; the rest floats |
| `rowgroups` | which floating values are stored, streamed or computed again; row kernels |
| `assemble` | kernel plans in launch order |
| `alternate` | which kernels take their rows from the last to the first |
| `few_rows` | the plan for calls with few rows, where projections cost one read of the weights |
| `along` | projections that compute the statistics of what they stream |
| `cost` | bytes through memory, launches counted as bytes |
| `plan` | the result |
"""

from fusedsl.fuse.along import (
    LeftSum,
    adds_up,
    can_go,
    left_sums,
    readers,
    without,
    without_sums,
)
from fusedsl.fuse.alternate import alternate
from fusedsl.fuse.assemble import fuse
from fusedsl.fuse.cost import CostModel
from fusedsl.fuse.few_rows import FEW_ROWS, for_few_rows, has_few_rows
from fusedsl.fuse.placement import is_pick
from fusedsl.fuse.plan import Form, KernelPlan, Plan
from fusedsl.fuse.rowgroups import anchor_operands, is_reduction

__all__ = [
    "FEW_ROWS",
    "CostModel",
    "Form",
    "KernelPlan",
    "LeftSum",
    "Plan",
    "adds_up",
    "alternate",
    "anchor_operands",
    "can_go",
    "for_few_rows",
    "fuse",
    "has_few_rows",
    "is_pick",
    "is_reduction",
    "left_sums",
    "readers",
    "without",
    "without_sums",
]
