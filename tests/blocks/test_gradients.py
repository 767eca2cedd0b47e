"""Every VJP against torch.autograd in fp64."""

from __future__ import annotations

import pytest
import torch

from fusedsl.blocks import library
from fusedsl.ir import GraphBuilder, Kind, evaluate, tensor
from tests.blocks.harness import attr_variants, bound, each, random_operands

DIFFERENTIABLE = each(lambda b: b.vjp is not None)
ROWS, COLS = 5, 12


def check(name: str, operands: list, attrs: dict) -> None:
    """Builds the gradient graph and evaluates it; cotangents have the result's shape."""
    block = library()[name]
    b = GraphBuilder(library())
    inputs: dict[str, torch.Tensor] = {}
    named: dict[str, str | float] = {}
    for spec, value in zip(block.operands, operands, strict=True):
        named[spec.name] = value
        if isinstance(value, torch.Tensor):
            dtype = "i64" if spec.index else "fp32"
            named[spec.name] = b.add_param(f"in_{spec.name}", tensor(dtype, *value.shape))
            inputs[f"in_{spec.name}"] = value
    dy = b.add_param("dy", tensor("fp32", ROWS, COLS))
    inputs["dy"] = torch.randn(ROWS, COLS, dtype=torch.float64)
    (y,) = b.call_all(block, [], {**named, **attrs}, ("y",))
    node = b.nodes[-1]
    every = {spec.name: named[spec.name] for spec in block.operands}
    assert block.vjp is not None
    grads = block.vjp(b, every, node.attr_map, (y,), (dy,))
    tensors = [s.name for s, v in zip(block.operands, operands, strict=True) if not _literal(v)]
    assert sorted(grads) == sorted(tensors)

    leaves = [v if _literal(v) else v.expand(ROWS, COLS).clone().requires_grad_() for v in operands]
    block.reference(*leaves, **bound(attrs)).backward(inputs["dy"])
    values = evaluate(b.finish(), inputs, keep=True)
    for spec, leaf in zip(block.operands, leaves, strict=True):
        if not _literal(leaf):
            actual = values[grads[spec.name]].expand(ROWS, COLS)
            torch.testing.assert_close(actual, leaf.grad, rtol=1e-9, atol=1e-12)


def _literal(value: object) -> bool:
    """Whether nothing is derived by it: a number, or an index."""
    return not isinstance(value, torch.Tensor) or not value.is_floating_point()


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_vjp_is_autograds(name: str) -> None:
    torch.manual_seed(0)
    block = library()[name]
    for attrs in attr_variants(block):
        operands = random_operands(block, seed=1)
        operands[0] = operands[0] * 3
        operands[0][0, :3] = torch.tensor([0.5, 8.0, 40.0])
        check(name, operands, attrs)


@pytest.mark.parametrize("name", ["add", "sub", "mul", "div"])
def test_vjp_of_broadcast_operands_and_literals(name: str) -> None:
    torch.manual_seed(0)
    a, b = random_operands(library()[name], seed=2)
    for operands in ([a, b[0]], [a[:, :1], b], [a, 2.5], [-0.75, b], [a[:, :1], b[0][None]]):
        check(name, operands, {})


@pytest.mark.parametrize("name", ["relu", "leaky_relu", "squared_relu"])
def test_slope_at_zero_is_torchs(name: str) -> None:
    torch.manual_seed(0)
    for attrs in attr_variants(library()[name]):
        check(name, [torch.zeros(ROWS, COLS, dtype=torch.float64)], attrs)


def test_every_public_pointwise_block_has_a_gradient() -> None:
    public = [b for b in library().public() if b.kind is Kind.POINTWISE]
    assert len(public) >= 14
    assert [b.name for b in public if b.vjp is None] == []
