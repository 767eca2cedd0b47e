"""Values at which neighbouring projects gave wrong answers. Numbers name the cases."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from fusedsl.ir import evaluate, evaluate_eager, random_inputs
from tests.codegen.harness import DEVICE, LOOPS, check, compiled, error, inputs_of, run

EACH_LOOP = pytest.mark.parametrize("loop", LOOPS)
FORMS = pytest.mark.parametrize("form", ["resident", "looped", "centred", "partial"])


def norm_of(x: Tensor, call: str, form: str, request: pytest.FixtureRequest) -> Tensor:
    """`call` (a norm of s) of given rows: alone, looped, or from partials of a projection that
    leaves exactly x."""
    n, dtype = x.shape[1], {torch.float16: "fp16", torch.bfloat16: "bf16"}.get(x.dtype, "fp32")
    if form in ("looped", "centred"):
        request.getfixturevalue(form)
    if form != "partial":
        text = f"kernel k(s: {dtype}[M, {n}]) -> (h: {dtype}[M, {n}]) {{ h = {call}; }}"
        return run(compiled(text), {"s": x.to(DEVICE)})["h"].cpu()
    text = f"""
kernel k(a: {dtype}[M, 16], w: weight {dtype}[{n}, 16], x: {dtype}[M, {n}])
    -> (s: {dtype}[M, {n}], h: {dtype}[M, {n}]) {{
  s = linear(a, w) + x;
  h = {call};
}}"""
    program = compiled(text)
    assert any("tiles" in node.attr_map for node in program.kernels[0].steps)
    inputs = inputs_of(program.graph(), M=len(x))
    inputs |= {"a": torch.zeros_like(inputs["a"]), "x": x.to(DEVICE)}
    outputs = run(program, inputs)
    assert torch.equal(outputs["s"].cpu(), x)
    return outputs["h"].cpu()


@FORMS
def test_numerics_01_squares_beyond_fp16(form: str, request: pytest.FixtureRequest) -> None:
    x = (300.0 + torch.randn(5, 256)).half()
    got = norm_of(x, "rms_norm(s, eps=1e-6)", form, request)
    want = F.rms_norm(x.double(), (256,), eps=1e-6)
    assert torch.isfinite(got).all() and error(got, want) < 5e-4


@EACH_LOOP
def test_numerics_01_past_a_projection(loop: str) -> None:
    program = compiled(
        """
kernel k(x: fp16[M, 256], w: weight fp16[64, 256]) -> (y: fp16[M, 64]) {
  y = linear(rms_norm(x, eps=1e-6), w);
}""",
        loop,
    )
    inputs = inputs_of(program.graph(), M=5)
    inputs["x"] = (300.0 + torch.randn(5, 256)).half().to(DEVICE)
    check(program, inputs)


@FORMS
def test_numerics_02_an_fp32_residual_of_1e5(form: str, request: pytest.FixtureRequest) -> None:
    sign = torch.where(torch.arange(256) % 2 == 0, 1.0, -1.0)
    x = (2.75e5 * sign + torch.randn(5, 256)).float()
    got = norm_of(x, "layer_norm(s, eps=1e-5) * 15.0", form, request)
    want = 15.0 * F.layer_norm(x.double(), (256,), eps=1e-5)
    assert 14.9 < float(got.abs().max()) < 15.1 and error(got, want) < 1e-6


@pytest.mark.parametrize("form", ["resident", "looped", "centred"])
@pytest.mark.parametrize("mean", [1000.0, 3000.0])
def test_a_stored_sum_far_from_zero_is_normed_as_it_is(
    form: str, mean: float, request: pytest.FixtureRequest
) -> None:
    """Its 16-bit form is the same in all columns: a variance of that one, and deviations of the
    sum itself, gave values of hundreds."""
    if form != "resident":
        request.getfixturevalue(form)
    program = compiled(
        "kernel k(x: bf16[M, 256], r: bf16[M, 256]) -> (s: bf16[M, 256], y: bf16[M, 256]) "
        "{ s = x + r; y = layer_norm(s, eps=1e-5); }"
    )
    inputs = inputs_of(program.graph(), M=5)
    inputs["x"] += mean
    outputs, exact = run(program, inputs), evaluate(program.graph(), inputs)
    assert torch.equal(outputs["s"], (inputs["x"].float() + inputs["r"].float()).bfloat16())
    assert error(outputs["y"], exact["y"]) < 4e-3


@EACH_LOOP
def test_numerics_03_an_output_beyond_fp16_is_infinite_as_eager(loop: str) -> None:
    program = compiled(
        "kernel k(x: fp16[M, 64], w: weight fp16[8, 64], r: fp16[M, 8]) -> (y: fp16[M, 8]) "
        "{ y = linear(x, w) + r; }",
        loop,
    )
    inputs = inputs_of(program.graph(), M=3)
    inputs["x"][1] = 1000.0
    inputs["w"][:] = torch.tensor([2.0, -2.0] * 4)[:, None]
    got = run(program, inputs)["y"]
    assert torch.isfinite(got[[0, 2]]).all()
    assert torch.equal(got[1], evaluate_eager(program.graph(), inputs)["y"][1])
    assert torch.equal(got[1].isinf(), torch.ones(8, dtype=torch.bool, device=DEVICE))


@EACH_LOOP
def test_numerics_04_a_gated_product_stays_in_fp32(loop: str) -> None:
    program = compiled(
        """
kernel k(x: fp16[M, 16], w: weight fp16[128, 16]) -> (a: fp16[M, 64]) {
  a = swiglu(linear(x, w)) * 0.01;
}""",
        loop,
    )
    inputs = inputs_of(program.graph(), M=3)
    inputs["x"][:] = 20.0
    inputs["w"][:] = 1.0
    got = run(program, inputs)["a"]
    assert not torch.isfinite(evaluate_eager(program.graph(), inputs)["a"]).any()
    assert error(got, evaluate(program.graph(), inputs)["a"]) < 1e-3


@FORMS
def test_numerics_05_a_zero_row(form: str, request: pytest.FixtureRequest) -> None:
    x = torch.randn(5, 70).half()
    x[2] = 0
    got = norm_of(x, "layer_norm(s, eps=1e-12)", form, request)
    assert torch.isfinite(got).all() and torch.equal(got[2], torch.zeros(70).half())


@EACH_LOOP
def test_numerics_05_past_a_projection_with_bias(loop: str) -> None:
    program = compiled(
        """
kernel k(x: fp16[M, 64], b: weight fp16[64], w: weight fp16[8, 64]) -> (y: fp16[M, 8]) {
  y = linear(layer_norm(x, bias=b, eps=1e-12), w);
}""",
        loop,
    )
    inputs = inputs_of(program.graph(), M=4)
    inputs["x"][2] = 0
    got = check(program, inputs)["y"]
    want = inputs["w"].double() @ inputs["b"].double()
    assert error(got[2], want) < 1e-3


@FORMS
def test_numerics_06_no_floor_under_eps(form: str, request: pytest.FixtureRequest) -> None:
    x = torch.randn(5, 256)
    x = (x / x.square().mean(1, keepdim=True).sqrt() * 2e-4**0.5).half()
    got = norm_of(x, "rms_norm(s, eps=1e-6)", form, request)
    want = F.rms_norm(x.double(), (256,), eps=1e-6)
    assert error(got, want) < 5e-4


def test_numerics_07_eps_left_out_is_that_of_fp32() -> None:
    x = (1e-4 * torch.randn(5, 64)).bfloat16()
    program = compiled("kernel k(x: bf16[M, 64]) -> (y: bf16[M, 64]) { y = rms_norm(x); }")
    got = run(program, {"x": x.to(DEVICE)})["y"].cpu()
    want = F.rms_norm(x.double(), (64,), eps=torch.finfo(torch.float32).eps)
    assert error(got, want) < 4e-3
    assert error(got, F.rms_norm(x.double(), (64,), eps=torch.finfo(torch.bfloat16).eps)) > 1


@FORMS
def test_numerics_08_a_small_ramp_on_a_thousand(form: str, request: pytest.FixtureRequest) -> None:
    x = (1000.0 + torch.arange(16) * 1e-3).float()[None, :]
    got = norm_of(x, "layer_norm(s, eps=1e-5)", form, request)
    want = F.layer_norm(x.double(), (16,), eps=1e-5)
    assert abs(float(want[0, 0]) + 1.3415) < 5e-3
    assert float((got.double() - want).abs().max()) < 2e-3


@FORMS
def test_numerics_09_the_mean_accumulates_in_fp32(
    form: str, request: pytest.FixtureRequest
) -> None:
    x = (100.0 + torch.randn(3, 2048)).bfloat16()
    got = norm_of(x, "layer_norm(s, eps=1e-5)", form, request)
    want = F.layer_norm(x.double(), (2048,), eps=1e-5)
    assert error(got, want) < 3e-3


@FORMS
@pytest.mark.parametrize("norm", ["rms_norm", "layer_norm"])
def test_numerics_10_pieces_of_1e9_values(
    norm: str, form: str, request: pytest.FixtureRequest
) -> None:
    x = 1e9 * (1.0 + 1e-3 * torch.randn(3, 700))
    got = norm_of(x, f"{norm}(s, eps=1e-6)", form, request)
    want = getattr(F, norm)(x.double(), (700,), eps=1e-6)
    # 1e9 in fp32 has steps of 64, the deviation is 1e6: an exact mean leaves 3e-5
    assert error(got, want) < (1e-6 if norm == "rms_norm" else 5e-5)


def test_numerics_11_outlier_channels_through_60_layers() -> None:
    """The residual stream in bf16, two channels of 1000 and more: each layer adds little."""
    program = compiled("""
kernel layer(x: bf16[M, 64], g: weight bf16[64], w: weight bf16[128, 64], v: weight bf16[64, 64])
    -> (y: bf16[M, 64]) {
  y = linear(swiglu(linear(rms_norm(x, g, eps=1e-6), w)), v) + x;
}""")
    graph = program.graph()
    inputs = random_inputs(graph, {"M": 4}, seed=0, device=DEVICE)
    inputs["x"][:, 5], inputs["x"][:, 40] = 1000.0, -2500.0
    got, exact = inputs["x"], inputs["x"].double()
    for layer in range(60):
        weights = random_inputs(graph, {"M": 4}, seed=layer, device=DEVICE)
        got = run(program, {**weights, "x": got})["y"]
        exact = evaluate(graph, {**weights, "x": exact})["y"]
    for columns in (slice(None), [c for c in range(64) if c not in (5, 40)]):
        cosine = F.cosine_similarity(got[:, columns].double(), exact[:, columns], dim=-1)
        assert float(cosine.min()) > 0.998


def test_numerics_13_statistics_are_of_the_rounded_sum() -> None:
    """A residual that bf16 swallows: the norm is of what was stored, as eager's."""
    program = compiled("""
kernel k(a: bf16[M, 16], w: weight bf16[64, 16], x: bf16[M, 64])
    -> (s: bf16[M, 64], m: fp32[M, 1]) {
  s = linear(a, w) + x;
  m = row_mean_square(s);
}""")
    inputs = inputs_of(program.graph(), M=5)
    inputs["a"][:], inputs["w"][:] = 0.0625, 0.25
    inputs["x"] = torch.full_like(inputs["x"], 256.0)
    outputs = run(program, inputs)
    assert torch.equal(outputs["s"], inputs["x"])
    assert torch.equal(outputs["m"], torch.full_like(outputs["m"], 65536.0))


def test_numerics_15_layer_norm_abs_reciprocal() -> None:
    program = compiled("""
kernel k(x: fp32[64, 128]) -> (y: fp32[64, 128]) {
  y = 1.0 / (relu(layer_norm(x)) + relu(-layer_norm(x)) + 1e-6);
}""")
    inputs = random_inputs(program.graph(), {}, seed=3, device=DEVICE)
    check(program, inputs, ratio=4.0)  # a value near 0 decides both errors
