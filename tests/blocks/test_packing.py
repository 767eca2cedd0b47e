"""Packing blocks: weights folded, summed and stacked once, with one rounding."""

from __future__ import annotations

import pytest
import torch

from fusedsl.blocks import library
from fusedsl.diagnostics import FusedslError
from fusedsl.ir import GraphBuilder, Kind, tensor, verify
from tests.blocks.harness import program


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_fold_scale_rounds_once(axis: int, dtype: torch.dtype) -> None:
    w, scale = normal(6, 6).to(dtype), normal(6, seed=1).to(dtype)
    folded = library()["fold_scale"].reference(w, scale, axis=axis)
    exact = w.double() * (scale.double() if axis == 1 else scale.double()[:, None])
    assert folded.dtype is dtype
    torch.testing.assert_close(folded, exact.to(dtype), rtol=0, atol=0)


def test_fold_scale_keeps_a_wider_scale_until_the_rounding() -> None:
    w, scale = normal(4, 4).bfloat16(), 1.0 + 1e-3 * normal(4, seed=1).float()
    folded = library()["fold_scale"].reference(w, scale, axis=1)
    torch.testing.assert_close(folded, (w.float() * scale).bfloat16(), rtol=0, atol=0)


@pytest.mark.parametrize("axis", [0, 1])
def test_weight_sum_is_of_the_rounded_weight(axis: int) -> None:
    w = normal(300, 300).bfloat16()
    total = library()["weight_sum"].reference(w, axis=axis)
    assert total.dtype is torch.float32
    torch.testing.assert_close(total, w.double().sum(axis).float(), rtol=0, atol=0)


def test_weight_sum_accumulates_in_fp64() -> None:
    w = torch.tensor([[1e8, 1.0, -1e8, 1.0]], dtype=torch.float32)
    assert library()["weight_sum"].reference(w, axis=1).tolist() == [2.0]


@pytest.mark.parametrize("k_axis", [0, 1])
def test_project_vector(k_axis: int) -> None:
    w, v = normal(5, 5).half(), normal(5, seed=1).half()
    actual = library()["project_vector"].reference(v, w, k_axis=k_axis)
    wide = w.double() if k_axis == 1 else w.double().T
    assert actual.dtype is torch.float32
    torch.testing.assert_close(actual.double(), wide @ v.double(), rtol=1e-7, atol=1e-9)
    cancels = torch.tensor([[1e8, 1.0, -1e8, 1.0]])
    one = library()["project_vector"].reference(torch.ones(4), cancels, k_axis=1)
    assert one.tolist() == [2.0]


def test_stack_puts_a_first() -> None:
    stack = library()["stack"].reference
    a, b = torch.zeros(2, 3), torch.ones(4, 3)
    assert stack(a, b, axis=0)[:, 0].tolist() == [0, 0, 1, 1, 1, 1]
    assert stack(a[0], b[0], axis=0).tolist() == [0, 0, 0, 1, 1, 1]
    x = normal(2, 3).float()
    y = torch.nn.functional.linear(x, stack(a, b, axis=0))
    torch.testing.assert_close(y[:, :2], torch.nn.functional.linear(x, a))


def test_types_of_packed_weights() -> None:
    w, v = tensor("bf16", "N", 12), tensor("fp32", 12)
    for block, operands, attrs, expected in [
        ("fold_scale", {"w": w, "scale": v}, {"axis": 1}, w),
        ("weight_sum", {"w": w}, {"axis": 1}, tensor("fp32", "N")),
        ("weight_sum", {"w": w}, {"axis": 0}, tensor("fp32", 12)),
        ("project_vector", {"v": v, "w": w}, {"k_axis": 1}, tensor("fp32", "N")),
        ("stack", {"a": w, "b": w}, {"axis": 0}, tensor("bf16", "2*N", 12)),
        ("stack", {"a": w, "b": w}, {"axis": 1}, tensor("bf16", "N", 24)),
    ]:
        graph = verify(program(operands, block, tuple(operands), **attrs))
        assert graph.types["y"] == expected
        assert list(graph.run_time_nodes()) == []


def test_packing_works_on_weights_only() -> None:
    b = GraphBuilder(library())
    b.add_param("w", tensor("bf16", 4, 4))
    b.outputs = [b.call("weight_sum", "w", axis=0, name="y")]
    with pytest.raises(FusedslError) as caught:
        verify(b.finish())
    assert caught.value.codes == ("F0407",)
    assert all(b.kind is Kind.PACKING for b in [library()["stack"], library()["fold_scale"]])
