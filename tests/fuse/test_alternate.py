"""From kernel to kernel rows are taken forwards and backwards, where they are the same rows."""

import torch

import fusedsl
from examples import read
from fusedsl.fuse import for_few_rows


def directions(text: str) -> dict[str, bool]:
    """Kernel → whether it takes its rows from the last to the first."""
    return {kernel.name: kernel.backwards for kernel in fusedsl.compile(text).plan.kernels}


def test_a_kernel_turns_round_where_an_earlier_one_went_over_its_operand():
    assert directions(read("llama_mlp")) == {
        "k0_inv_rms": False, "k1_linear": True, "k2_linear": False,
    }  # fmt: skip


def test_a_kernel_alone_goes_forwards():
    found = directions("kernel f(x: bf16[M, 64]) -> (y: bf16[M, 64]) { y = softmax(x); }")
    assert list(found.values()) == [False]


def test_other_rows_and_weights_do_not_turn_a_kernel_round():
    found = directions(
        """kernel f(x: bf16[M, 64], z: bf16[M, 64], w: weight bf16[32, 64])
            -> (a: bf16[M, 32], b: bf16[M, 32]) { a = linear(x, w); b = linear(z, w); }"""
    )
    assert found == {"k0_linear": False, "k1_linear": False}


def test_a_kernel_turns_from_the_last_that_went_over_its_operand():
    found = directions(
        """kernel f(x: bf16[M, 64], w: weight bf16[32, 64], v: weight bf16[48, 64])
            -> (a: bf16[M, 32], b: bf16[M, 48], c: bf16[M, 64])
            { a = linear(x, w); b = linear(x, v); c = softmax(x); }"""
    )
    assert sorted(found.values()) == [False, False, True]


def test_all_rows_of_few_lie_in_one_tile():
    plan = for_few_rows(fusedsl.compile(read("llama_mlp")).plan)
    assert [kernel.backwards for kernel in plan.kernels] == [False, False]


def test_rows_are_the_same_in_both_directions():
    """A row kernel between two projections, with a last tile that is not full."""
    program = fusedsl.compile(
        """kernel f(x: bf16[M, 64], w: weight bf16[96, 64], v: weight bf16[32, 96])
            -> (a: bf16[M, 96], b: bf16[M, 96], c: bf16[M, 32])
            { a = linear(x, w); b = softmax(a); c = linear(b, v); }"""
    )
    assert [k.backwards for k in program.plan.kernels] == [False, True, False]
    x, w, v = torch.randn(77, 64), torch.randn(96, 64) / 8, torch.randn(32, 96) / 8
    x, w, v = x.bfloat16(), w.bfloat16(), v.bfloat16()
    a, b, c = program(x, w=w, v=v)
    exact = x.double() @ w.double().t()
    torch.testing.assert_close(a.double(), exact, rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(b.double(), a.double().softmax(-1), rtol=1e-2, atol=1e-3)
    torch.testing.assert_close(c.double(), b.double() @ v.double().t(), rtol=1e-2, atol=1e-3)
