"""quick_gelu: values, its distance from gelu, and a program that fuses it into a projection."""

from __future__ import annotations

import pytest
import torch

import fusedsl
from fusedsl.blocks import library
from fusedsl.ir import Kind

PROGRAM = """
kernel mlp(x: {dtype}[M, 64], w: weight {dtype}[96, 64], b: weight {dtype}[96])
    -> (y: {dtype}[M, 96]) {{
  y = quick_gelu(linear(x, w, b));
}}
"""


def test_values() -> None:
    x = torch.tensor([-1e4, -3.0, 0.0, 1.0, 1e4], dtype=torch.float64)
    got = library()["quick_gelu"].reference(x)
    want = torch.tensor([0.0, -3 / (1 + 2.718281828459045**5.106), 0.0, 0.845795, 1e4])
    assert torch.allclose(got, want.double(), rtol=1e-6, atol=1e-12)


def test_it_is_an_approximation_of_gelu_and_not_gelu() -> None:
    x = torch.linspace(-6, 6, 2001, dtype=torch.float64)
    gap = (library()["quick_gelu"].reference(x) - torch.nn.functional.gelu(x)).abs().max()
    assert 0.01 < gap < 0.03


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
def test_fused_into_the_projection(dtype: str) -> None:
    program = fusedsl.compile(PROGRAM.format(dtype=dtype))
    assert [kernel.kind for kernel in program.kernels] == [Kind.GEMM]
    assert program.verify({"M": 33}).ok
