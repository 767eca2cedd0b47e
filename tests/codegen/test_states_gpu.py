"""What projections leave of their tiles' rows, on a GPU, specialised and tiled: losses, and the
moments of a norm to come."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import fusedsl
from fusedsl.ir import evaluate, evaluate_eager
from fusedsl.runtime import planning
from tests.codegen.harness import (
    ON_HOPPER,
    check,
    check_repeats,
    error,
    inputs_of,
    planned_on_gpu,
    run,
)

pytestmark = ON_HOPPER

LOGITS = {
    "plain": "linear(rms_norm(x, g, eps=1e-6), w)",
    "capped": "softcap(linear(rms_norm(x, g, eps=1e-6), w), cap=5)",
}
HEAD = """kernel k(x: {t}[M, {k}], g: weight {t}[{k}], w: weight {t}[{n}, {k}], target: i64[M])
    -> (loss: fp32[M, 1]) {{ loss = cross_entropy({logits}, target); }}"""
#: A projection whose epilogue reads a tile, stores one, and leaves the moments of it.
NORM_NEXT = """kernel k(x: {t}[M, {k}], z: {t}[M, {n}], w: weight {t}[{n}, {k}], b: weight {t}[{n}],
    g: weight {t}[{n}], s: weight {t}[{n}], v: weight {t}[{m}, {n}])
    -> (h: {t}[M, {n}], y: {t}[M, {m}])
    {{ h = linear(x, w, b) + z; y = linear(layer_norm(h, g, s), v); }}"""
HEADS = pytest.mark.parametrize("logits", LOGITS)


@pytest.fixture(autouse=True, params=[True, False], ids=["specialised", "tiled"])
def specialised(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Specialise wherever it can be done, or nowhere."""
    monkeypatch.setattr(planning, "fills", lambda *_: request.param)
    monkeypatch.setattr(planning, "pays_in_turn", lambda *_: request.param)
    monkeypatch.setattr(planning, "left_sums", lambda plan: iter(()))  # no sums taken along
    return request.param


def head(logits: str, k: int = 136, n: int = 2056, t: str = "bf16", **how: str) -> fusedsl.Program:
    return fusedsl.compile(HEAD.format(t=t, k=k, n=n, logits=LOGITS[logits]), **how)


def norm_next(
    form: str, k: int = 136, n: int = 264, m: int = 72, t: str = "bf16", **how: str
) -> fusedsl.Program:
    return fusedsl.compile(form.format(t=t, k=k, n=n, m=m, m2=2 * m), **how)


#: The same with an activation behind the norm's projection, which is then taken in turn.
TURNED = NORM_NEXT.replace("linear(layer_norm(h, g, s), v)", "gelu(linear(layer_norm(h, g, s), v))")
#: Sums that are merged, by a pair of projections.
SQUARES = """kernel k(x: {t}[M, {k}], z: {t}[M, {n}], w: weight {t}[{n}, {k}], b: weight {t}[{n}],
    g: weight {t}[{n}], v: weight {t}[{m2}, {n}]) -> (h: {t}[M, {n}], y: {t}[M, {m}])
    {{ h = linear(x, w, b) + z; y = swiglu(linear(rms_norm(h, g, eps=1e-6), v)); }}"""
NORMS = pytest.mark.parametrize(
    "form", [NORM_NEXT, TURNED, SQUARES], ids=["norm", "turned", "squares"]
)


def specialised_states(program: fusedsl.Program, rows: int) -> set[str]:
    """What becomes of states in specialised projections."""
    kernels = [k for k in planned_on_gpu(program, rows).kernels if k.specialised]
    found = {"left": any(k.states_left for k in kernels)}
    found["merged"] = any(k.states_merged for k in kernels)
    return {what for what, there in found.items() if there}


def losses(program: fusedsl.Program, inputs: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """The losses and what they should be; they are as near to that as eager's are."""
    exact = evaluate(program.graph(), inputs)["loss"]
    eager = evaluate_eager(program.graph(), inputs)["loss"]
    got = run(program, inputs)["loss"]
    assert torch.equal(got.isnan(), exact.isnan())
    known = ~exact.isnan()
    apart = ((value.double() - exact)[known].norm() for value in (got, eager))
    found, allowed = map(float, apart)
    assert found <= 1.2 * allowed + 1e-6
    return got, exact


@HEADS
@pytest.mark.parametrize(
    "sizes", [(64, 392), (64, 640), (136, 2056), (200, 4104), (512, 50304), (512, 50264)]
)
@pytest.mark.parametrize("rows", [65, 100, 1000, 4097])
def test_losses(logits: str, rows: int, sizes: tuple[int, int], specialised: bool) -> None:
    """The last tile of columns is full, or some of its pieces are, or all are cut or empty."""
    program = head(logits, *sizes)
    assert specialised_states(program, rows) == ({"left"} if specialised else set())
    inputs = inputs_of(program.graph(), seed=rows, M=rows)
    inputs["target"][:5] = torch.tensor([-100, sizes[1] - 1, sizes[1], -1, 0])
    got, _ = losses(program, inputs)
    assert got[0] == 0 and got[2].isnan() and got[3].isnan()


@HEADS
@pytest.mark.parametrize("numerics", ["moved", "as_written"])
@pytest.mark.parametrize("t", ["bf16", "fp16"])
def test_dtypes(logits: str, t: str, numerics: str) -> None:
    program = head(logits, 200, 2880, t, numerics=numerics)
    losses(program, inputs_of(program.graph(), M=700))


@HEADS
def test_hard_rows_stay_by_themselves(logits: str) -> None:
    program = head(logits, 200, 2880)
    inputs = inputs_of(program.graph(), M=700)
    plain = run(program, inputs)["loss"]
    x = inputs["x"]
    hard = {5: float("nan"), 70: float("inf"), 130: -float("inf"), 699: float("nan")}
    for row, value in hard.items():
        x[row, row % 200] = value
    x[200] = 0.0
    x[201] *= 1e16
    x[202, 199] = 3e4
    got, exact = run(program, inputs)["loss"], evaluate(program.graph(), inputs)["loss"]
    for row in range(700):
        if row in hard:
            assert got[row].isnan(), row
        elif 200 <= row <= 202:
            assert error(got[row], exact[row]) < 2e-2, row
        else:
            assert torch.equal(got[row], plain[row]), row


@NORMS
@pytest.mark.parametrize(
    "sizes", [(64, 64, 8), (136, 264, 72), (1000, 2880, 520), (512, 5000, 264)]
)
@pytest.mark.parametrize("rows", [65, 100, 1000, 4097])
def test_norms(form: str, rows: int, sizes: tuple[int, int, int], specialised: bool) -> None:
    program = norm_next(form, *sizes)
    found = {"left", "merged"} if specialised else set[str]()
    assert specialised_states(program, rows) == found
    check(program, inputs_of(program.graph(), seed=rows, M=rows))


@NORMS
@pytest.mark.parametrize("numerics", ["moved", "as_written"])
@pytest.mark.parametrize("t", ["bf16", "fp16"])
def test_norms_of_dtypes(form: str, t: str, numerics: str) -> None:
    program = norm_next(form, 1000, 2880, 520, t, numerics=numerics)
    check(program, inputs_of(program.graph(), M=700))


def test_rows_far_from_zero() -> None:
    """The variance is 2^-12 of the square of the mean."""
    program = norm_next(NORM_NEXT, 256, 768, 512)
    inputs = inputs_of(program.graph(), M=500)
    inputs["z"] += 64.0
    exact, eager = (f(program.graph(), inputs)["y"] for f in (evaluate, evaluate_eager))
    got = run(program, inputs)["y"]
    assert error(got, exact) <= 1.2 * error(eager, exact) + 1e-3


@pytest.mark.parametrize(
    "program",
    [head("capped", 768, 5056), *(norm_next(f, 768, 3072, 512) for f in (NORM_NEXT, TURNED))],
)
def test_repeats_bit_by_bit(program: fusedsl.Program) -> None:
    check_repeats(program, inputs_of(program.graph(), M=5000))
