"""Blocks of a test's own: rules know laws, not names."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fusedsl.blocks import library
from fusedsl.blocks.typing import elementwise
from fusedsl.ir import (
    Block,
    Contracts,
    Elementwise,
    GraphBuilder,
    HomogeneousIn,
    Kind,
    LinearIn,
    OperandSpec,
    Rowwise,
    Scales,
    tensor,
)
from fusedsl.rewrite import RewriteResult, expand, rewrite
from tests.rewrite.harness import assert_same_meaning, fired, refusals


def unary(name: str, function: Any, *laws: Any) -> Block:
    return Block(
        name=name,
        kind=Kind.POINTWISE,
        operands=(OperandSpec("x"),),
        infer=elementwise,
        reference=function,
        laws=laws,
    )


def mlp(activation: Block) -> RewriteResult:
    """rms_norm, projection, the block, projection."""
    b = GraphBuilder(library())
    x = b.add_param("x", tensor("bf16", "M", 32))
    up = b.add_param("up", tensor("bf16", 64, 32), weight=True)
    down = b.add_param("down", tensor("bf16", 32, 64), weight=True)
    a = b.call(activation, b.call("linear", b.call("rms_norm", x, eps=1e-5), up))
    b.outputs = [b.call("linear", a, down, name="y")]
    graph = expand(b.finish())
    result = rewrite(graph)
    assert_same_meaning(graph, result.graph)
    return result


def normed(block: Block) -> RewriteResult:
    """rms_norm, the block, projection."""
    b = GraphBuilder(library())
    x = b.add_param("x", tensor("bf16", "M", 32))
    w = b.add_param("w", tensor("bf16", 64, 32), weight=True)
    b.outputs = [b.call("linear", b.call(block, b.call("rms_norm", x, eps=1e-5)), w, name="y")]
    graph = expand(b.finish())
    result = rewrite(graph)
    assert_same_meaning(graph, result.graph)
    return result


def test_block_without_laws_is_never_moved_past() -> None:
    for block in (unary("relu_like", torch.relu), unary("twice", lambda x: 2 * x)):
        assert fired(normed(block)) == []
        result = mlp(block)
        assert fired(result) == ["commute_row_scale"]
        assert [n.block.name for n in result.graph.nodes].count(block.name) == 1


def test_elementwise_is_not_enough() -> None:
    block = unary("relu_like", torch.relu, Elementwise(), Rowwise())
    assert refusals(mlp(block), "homogeneous_activation") == {"homogeneous"}


def test_linear_block_is_moved_past() -> None:
    block = unary("twice", lambda x: 2 * x, Elementwise(), Rowwise(), LinearIn("x"))
    assert fired(normed(block)) == ["commute_row_scale"] * 2


@pytest.mark.parametrize("degree", [1, 2, 3])
def test_degree_is_the_power_of_the_scale(degree: int) -> None:
    laws = (Elementwise(), Rowwise(), HomogeneousIn("x", degree))
    result = mlp(unary("power", lambda x: x.abs() ** degree, *laws))
    assert fired(result).count("homogeneous_activation") == 1
    scales = [n for n in result.graph.nodes if n.block.name == "mul" and n.name != "y"]
    assert len(scales) == degree - 1


def test_other_names_with_the_same_laws() -> None:
    """A product and a projection under other names are treated alike."""
    product = Block(
        name="times",
        kind=Kind.POINTWISE,
        operands=(OperandSpec("p"), OperandSpec("q")),
        infer=elementwise,
        reference=lambda p, q: p * q,
        laws=(Elementwise(), Rowwise(), Scales("q", "p")),
    )
    linear = library()["linear"]
    project = Block(
        name="project",
        kind=Kind.GEMM,
        operands=linear.operands,
        infer=linear.infer,
        reference=linear.reference,
        laws=(Contracts("x", "w", k_axis=1, n_axis=0),),
    )
    b = GraphBuilder(library())
    x = b.add_param("x", tensor("bf16", "M", 32))
    r = b.add_param("r", tensor("bf16", "M", 1))
    w = b.add_param("w", tensor("bf16", 64, 32), weight=True)
    b.outputs = [b.call(project, b.call(product, r, x), w, name="y")]
    graph = b.finish()
    result = rewrite(graph)
    assert fired(result) == ["commute_row_scale"]
    assert_same_meaning(graph, result.graph)


def test_projection_that_still_holds_a_bias_is_none() -> None:
    b = GraphBuilder(library())
    x = b.add_param("x", tensor("bf16", "M", 32))
    r = b.add_param("r", tensor("bf16", "M", 1))
    w = b.add_param("w", tensor("bf16", 64, 32), weight=True)
    c = b.add_param("c", tensor("bf16", 64), weight=True)
    b.outputs = [b.call("linear", b.call("mul", x, r), w, c, name="y")]
    assert fired(rewrite(b.finish())) == []
