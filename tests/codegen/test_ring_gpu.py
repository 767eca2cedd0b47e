"""Projections of few rows whose weights go through a ring, on a GPU: every tail, every dtype, hard
rows, weights that have just been written, and again and again."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import fusedsl
from fusedsl.ir import evaluate
from tests.codegen.harness import (
    ON_HOPPER,
    check,
    check_repeats,
    error,
    inputs_of,
    planned_on_gpu,
    run,
)
from tests.codegen.test_ring import FORMS, text_of

pytestmark = ON_HOPPER

FORM = pytest.mark.parametrize("form", FORMS)
SIZES = [(136, 328), (2048, 8192), (2880, 1000), (64, 64)]


def compiled(form: str, k: int = 136, n: int = 328, t: str = "bf16") -> fusedsl.Program:
    return fusedsl.compile(text_of(form, k, n, t))


def is_ringed(program: fusedsl.Program, rows: int) -> bool:
    return all(kernel.ring for kernel in planned_on_gpu(program, rows).kernels)


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("rows", [1, 3, 16, 17, 33, 64])
@FORM
def test_tails(form: str, rows: int, sizes: tuple[int, int]) -> None:
    program = compiled(form, *sizes)
    assert is_ringed(program, rows)
    check(program, inputs_of(program.graph(), seed=rows, M=rows))


@FORM
def test_fp16(form: str) -> None:
    program = compiled(form, 1000, 2880, "fp16")
    assert is_ringed(program, 20)
    check(program, inputs_of(program.graph(), M=20))


@FORM
def test_repeats_bit_for_bit(form: str) -> None:
    program = compiled(form, 2048, 8192)
    check_repeats(program, inputs_of(program.graph(), M=9))


def test_hard_rows_stay_by_themselves() -> None:
    program = compiled("mlp", 1000, 2880)
    inputs = inputs_of(program.graph(), M=40)
    plain = run(program, inputs)["y"]
    hard = {5: float("nan"), 13: float("inf"), 39: -float("inf")}
    for row, value in hard.items():
        inputs["x"][row, row] = value
    got = run(program, inputs)["y"]
    for row in range(40):
        if row in hard:
            assert got[row].isnan().all()
        else:
            assert torch.equal(got[row], plain[row])


def bound_of(
    k: int, n: int, rows: int, frozen: bool
) -> tuple[fusedsl.BoundProgram, Tensor, Tensor, Tensor]:
    """A program without folded weights, bound; its activations and weights."""
    program = compiled("bias", k, n)
    inputs = {name: t.cuda() for name, t in inputs_of(program.graph(), M=rows).items()}
    x = inputs.pop("x")
    return program.bind(inputs, frozen=frozen), x, inputs["w"], inputs["v"]


@pytest.mark.parametrize("frozen", [False, True])
def test_weights_that_have_just_been_written(frozen: bool) -> None:
    """The call comes right behind what writes the weights of both projections."""
    bound, x, w, v = bound_of(2048, 8192, 4, frozen)
    bound(x)
    signs = [1 - 2 * (i % 2) for i in range(20)]
    first, second = w.clone(), v.clone()
    got: list[Tensor] = []
    for sign in signs:
        torch.mul(first, sign, out=w)
        torch.mul(second, sign, out=v)
        got.append(bound(x)[1])
    wanted = {sign: got[i].clone() for i, sign in enumerate(signs[:2])}
    assert not torch.equal(wanted[1], wanted[-1])
    for sign, tensor in zip(signs, got, strict=True):
        assert torch.equal(tensor, wanted[sign])
    graph = bound.program.graph()
    given = {"x": x, "w": first, "v": second, "b": bound.weights["b"]}
    exact = evaluate(graph, {name: t.cpu() for name, t in given.items()})
    assert error(wanted[1].cpu(), exact["z"]) < 6e-3


def test_frozen_weights_are_read_early() -> None:
    """By the first kernel as well, which asks for none of them ahead then."""
    templates: list[list[object]] = []
    for frozen in (False, True):
        bound, x, *_ = bound_of(2048, 8192, 4, frozen)
        bound(x)
        (recipe,) = bound._binding.recipes.values()
        templates.append(recipe.launches[0].template)
    pairs = [(a, b) for a, b in zip(*templates, strict=True) if isinstance(a, int) and a != b]
    assert pairs == [(256, 0), (False, True)]


def test_in_a_cuda_graph() -> None:
    """Many blocks, one behind the other, each reading what the one before wrote."""
    program = compiled("mlp", 2048, 8192)
    inputs = {name: t.cuda() for name, t in inputs_of(program.graph(), M=16).items()}
    x = inputs.pop("x")
    bound = program.bind(inputs, frozen=True)

    def chain() -> Tensor:
        y = x
        for _ in range(12):
            y = bound(y)
        return y

    wanted = chain()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = chain()
    for _ in range(20):
        got.fill_(float("nan"))
        graph.replay()
        graph.replay()
        assert torch.equal(got, wanted)
