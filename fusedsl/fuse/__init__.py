"""Graph to kernel plans, and the cost model that decides where fusing pays."""

from fusedsl.fuse.plan import KernelPlan, Plan

__all__ = ["KernelPlan", "Plan"]
