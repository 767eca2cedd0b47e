"""Kernel plans to readable Triton source; holds no Triton text of its own."""

from fusedsl.codegen.source import Arg, KernelSource, ProgramSource

__all__ = ["Arg", "KernelSource", "ProgramSource"]
