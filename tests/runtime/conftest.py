"""Small programs that these tests share, and a cache folder of their own."""

from __future__ import annotations

import pytest
import torch

import fusedsl
from fusedsl.ir import random_inputs
from fusedsl.runtime.load import interprets

DEVICE = "cuda" if torch.cuda.is_available() and not interprets() else "cpu"

MLP = """
kernel mlp(x: {dtype}[M, {k}], gain: weight {dtype}[{k}],
           w_gate_up: weight {dtype}[{f2}, {k}], w_down: weight {dtype}[{k}, {f}])
    -> (y: {dtype}[M, {k}]) {{
  a = swiglu(linear(rms_norm(x, gain, eps=1e-6), w_gate_up));
  y = linear(a, w_down) + x;
}}
"""


def mlp_text(k: int = 64, f: int = 48, dtype: str = "bf16") -> str:
    """A Llama MLP of hidden width k and inner width f."""
    return MLP.format(k=k, f=f, f2=2 * f, dtype=dtype)


def close(got: torch.Tensor, want: torch.Tensor, limit: float = 8e-3) -> None:
    """Relative Frobenius error against fp64; bf16 chains of these sizes stay below 4e-3."""
    want = want.double()
    scale = want.norm() or 1.0
    assert got.shape == want.shape
    assert float((got.double() - want).norm() / scale) < limit


@pytest.fixture(autouse=True)
def cache_dir(tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.getbasetemp() / "fusedsl-cache"
    monkeypatch.setenv("FUSEDSL_CACHE_DIR", str(folder))
    return folder


@pytest.fixture
def mlp():
    """The program and a function that makes its inputs."""
    program = fusedsl.compile(mlp_text())

    def inputs(m: int = 8, seed: int = 0, device: str = DEVICE) -> dict[str, torch.Tensor]:
        return random_inputs(program.graph("source"), {"M": m}, seed=seed, device=device)

    return program, inputs


@pytest.fixture(name="close")
def close_fixture():
    return close


@pytest.fixture(name="mlp_text")
def mlp_text_fixture():
    return mlp_text
