"""Rows that clusters share on a GPU: short last parts, every dtype, hard rows, and repeats."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import triton
from torch import Tensor

import fusedsl
from fusedsl.fuse import Plan
from fusedsl.ir import evaluate, evaluate_eager
from fusedsl.runtime import planning
from tests.codegen.harness import ON_HOPPER, check_repeats, error, inputs_of, planned_on_gpu, run

pytestmark = ON_HOPPER

FORMS = {
    "rms_norm": """kernel k(x: {t}[M, {n}], g: weight {w}[{n}]) -> (y: {t}[M, {n}])
        {{ y = rms_norm(x, g, eps=1e-6, cast=olmo2); }}""",
    "layer_norm": """kernel k(x: {t}[M, {n}], g: weight {w}[{n}], b: weight {w}[{n}])
        -> (y: {t}[M, {n}]) {{ y = layer_norm(x, g, b); }}""",
    "no shift": """kernel k(x: {t}[M, {n}], g: weight {w}[{n}]) -> (y: {t}[M, {n}])
        {{ y = layer_norm(x, g); }}""",
    "chain": """kernel k(x: {t}[M, {n}], c: {t}[M, 1], g: weight {w}[{n}], b: weight {w}[{n}])
        -> (y: {t}[M, {n}]) {{ y = silu(add(layer_norm(x * c * b, g), c, out_dtype={t})); }}""",
    "residual": """kernel k(x: {t}[M, {n}], r: {t}[M, {n}], g: weight {w}[{n}])
        -> (y: {t}[M, {n}], h: {t}[M, {n}])
        {{ h = x + r; y = rms_norm(h, g, eps=1e-6, cast=olmo2); }}""",
    "normed sum": """kernel k(x: {t}[M, {n}], r: {t}[M, {n}], g: weight {w}[{n}])
        -> (h: {t}[M, {n}], y: {t}[M, {n}]) {{ h = x + r; y = layer_norm(h, g); }}""",
    "softmax": "kernel k(x: {t}[M, {n}]) -> (y: {t}[M, {n}]) {{ y = softmax(x); }}",
    "two sums": """kernel k(x: {t}[M, {n}]) -> (y: {t}[M, {n}])
        {{ y = add(rms_norm(x, eps=1e-6), row_mean(x), out_dtype={t}); }}""",
}
FORM = pytest.mark.parametrize("form", FORMS)


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Share rows in clusters wherever it can be done."""
    monkeypatch.setattr(planning, "pays_in_cluster", lambda *_: True)


def compiled(form: str, n: int, t: str = "bf16", w: str = "bf16") -> fusedsl.Program:
    program = fusedsl.compile(FORMS[form].format(t=t, w=w, n=n))
    assert all(kernel.cluster for kernel in planned_on_gpu(program, 5).kernels)
    return program


def backwards(plan: Plan) -> Plan:
    """The plan with all rows from the last to the first."""
    return replace(plan, kernels=tuple(replace(k, backwards=True) for k in plan.kernels))


def rows_apart(got: Tensor, wanted: Tensor) -> float:
    """The largest relative error of a row."""
    apart = (got.float() - wanted.float()).norm(dim=1)
    return float((apart / wanted.float().norm(dim=1).clamp_min(1e-30)).max())


@pytest.mark.parametrize(
    ("form", "n", "t", "w"),
    [
        ("rms_norm", 65536, "bf16", "bf16"),
        ("rms_norm", 131072, "fp16", "fp32"),
        ("rms_norm", 262144, "bf16", "bf16"),
        ("rms_norm", 40008, "fp16", "fp16"),
        ("layer_norm", 65536, "fp16", "fp16"),
        ("layer_norm", 131072, "bf16", "bf16"),
        ("layer_norm", 262144, "bf16", "fp32"),
        ("layer_norm", 70008, "bf16", "bf16"),
        ("no shift", 40008, "bf16", "fp32"),
        ("no shift", 262144, "fp16", "fp16"),
        ("chain", 70008, "bf16", "bf16"),
        ("two sums", 65536, "fp16", "fp16"),
        ("normed sum", 70008, "bf16", "fp32"),
        ("softmax", 65536, "fp16", "fp16"),
        ("softmax", 70008, "bf16", "bf16"),
        ("softmax", 262144, "bf16", "bf16"),
        ("residual", 131072, "bf16", "fp32"),
        ("residual", 40008, "fp16", "fp16"),
    ],
)
def test_every_row(form: str, n: int, t: str, w: str) -> None:
    program = compiled(form, n, t, w)
    for rows in (1, 5, 301):
        inputs = inputs_of(program.graph(), seed=rows, M=rows)
        eager = evaluate_eager(program.graph(), inputs)
        few = {name: v if v.dim() == 1 else v[-4:] for name, v in inputs.items()}
        exact = evaluate(program.graph(), few)
        for name, got in run(program, inputs).items():
            assert rows_apart(got, eager[name]) < 2e-2, (name, rows)
            assert error(got[-4:], exact[name]) < 4e-3, (name, rows)


@FORM
def test_rows_from_the_last_to_the_first(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = [compiled(form, 70008)]
    monkeypatch.setattr(planning, "alternate", backwards)
    programs.append(compiled(form, 70008))
    for rows in (1, 5, 301):
        inputs = inputs_of(programs[0].graph(), seed=rows, M=rows)
        made = [run(program, inputs) for program in programs]
        assert all(torch.equal(made[0][name], made[1][name]) for name in made[0]), rows
    assert all(k.backwards for k in planned_on_gpu(programs[1], 301).kernels)


@FORM
def test_hard_rows_stay_by_themselves(form: str) -> None:
    program = compiled(form, 70008)
    inputs = inputs_of(program.graph(), M=90)
    plain = run(program, inputs)["y"]
    x = inputs["x"]
    hard = {5: float("nan"), 38: float("inf"), 61: -float("inf"), 89: float("nan")}
    for row, value in hard.items():
        x[row, row * 701] = value
    x[20] = 0.0
    x[21] += 1000
    x[22, 3] = 3e4
    x[23, -1] = 3e4
    got, exact = run(program, inputs)["y"], evaluate(program.graph(), inputs)["y"]
    for row in range(90):
        if row in hard:
            assert not got[row][~exact[row].isfinite()].isfinite().any(), row
        elif 20 <= row <= 23:
            assert error(got[row], exact[row]) < 8e-3, row
        else:
            assert torch.equal(got[row], plain[row]), row


@FORM
def test_repeats_bit_by_bit(form: str) -> None:
    program = compiled(form, 131072)
    check_repeats(program, inputs_of(program.graph(), M=400), times=20)


def test_rows_with_a_pitch_and_rows_of_no_whole_16_bytes() -> None:
    n = 40008
    program = compiled("layer_norm", n)
    inputs = inputs_of(program.graph(), M=77)
    x, others = inputs["x"], [t for name, t in inputs.items() if name != "x"]
    plain = run(program, inputs)["y"]
    for pitch, offset in ((n + 8, 0), (n + 16, 8), (n + 8, 4), (n + 4, 0)):
        wide = torch.full((77 * pitch + offset,), float("nan"), dtype=x.dtype, device="cuda")
        view = wide[offset:].view(77, pitch)[:, :n]
        view.copy_(x)
        with torch.no_grad():
            got = program(view, *others)
        if pitch % 8 == 0 and offset % 8 == 0:
            assert torch.equal(got, plain), (pitch, offset)
        else:
            assert rows_apart(got, plain) < 8e-3, (pitch, offset)


@pytest.mark.parametrize("form", ["rms_norm", "layer_norm"])
def test_in_a_cuda_graph(form: str) -> None:
    program = compiled(form, 65536)
    inputs = inputs_of(program.graph(), M=150)
    given = list(inputs.values())
    with torch.no_grad():
        first = program(*given).clone()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = program(*given)
    given[0].copy_(given[0].flip(0))
    with torch.no_grad():
        expected = program(*given)
    for _ in range(3):
        captured.fill_(float("nan"))
        graph.replay()
        assert torch.equal(captured, expected) and not torch.equal(first, expected)


@pytest.mark.parametrize("form", ["rms_norm", "layer_norm", "softmax", "residual"])
@pytest.mark.parametrize("n", [65536, 262144])
def test_all_ways_to_launch(form: str, n: int) -> None:
    """A first call, prepared ones, and Triton's own path, which a profiler's hook asks for."""
    program = compiled(form, n)
    inputs = inputs_of(program.graph(), M=301)
    given = [inputs[p.name] for p in program.graph().params]
    with torch.no_grad():
        made = [first(program(*given)).clone() for _ in range(3)]
        seen: list[str] = []
        hook = lambda metadata: seen.append(metadata.get()["name"])  # noqa: E731
        triton.knobs.runtime.launch_enter_hook.add(hook)
        try:
            made.append(first(program(*given)).clone())
        finally:
            triton.knobs.runtime.launch_enter_hook.remove(hook)
    assert seen and all(torch.equal(one, made[0]) for one in made)


def first(outputs: Tensor | tuple[Tensor, ...]) -> Tensor:
    """The first output."""
    return outputs[0] if isinstance(outputs, tuple) else outputs


TWICE = """
import hashlib, torch, fusedsl
torch.manual_seed(0)
x = torch.randn(301, 262144, device="cuda").bfloat16()
text = "kernel k(x: bf16[M, 262144]) -> (y: bf16[M, 262144]) { y = rms_norm(x, eps=1e-6); }"
y = fusedsl.compile(text)(x)
print(hashlib.sha256(y.view(torch.int16).cpu().numpy().tobytes()).hexdigest())
"""


def test_a_second_process_takes_the_binary_from_the_cache(tmp_path: Path) -> None:
    said: list[str] = []
    for turn in range(2):
        places = {"FUSEDSL_CACHE_DIR": tmp_path / "cache", "TRITON_CACHE_DIR": tmp_path / str(turn)}
        env = os.environ | {name: str(place) for name, place in places.items()}
        done = subprocess.run(
            [sys.executable, "-c", TWICE], env=env, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        said.append(done.stdout)
        assert bool(list(places["TRITON_CACHE_DIR"].rglob("*.cubin"))) == (turn == 0)
    assert said[0] == said[1]
