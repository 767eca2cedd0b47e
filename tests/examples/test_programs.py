"""The example programs: what they mean, what they become, and that they compute it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import fusedsl
from examples import FOLDER, SMALL, read, resized
from fusedsl.ir import evaluate, random_inputs

ROWS = 21
Inputs = dict[str, Tensor]


def _rms(x: Tensor, gain: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps) * gain


def _norm(x: Tensor, gain: Tensor, shift: Tensor, eps: float) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], gain, shift, eps)


def _llama_mlp(x: Tensor, gain: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    gate, up = (_rms(x, gain, 1e-6) @ gate_up.T).chunk(2, dim=-1)
    return (F.silu(gate) * up) @ down.T + x


def _post_norm(i: Inputs) -> Tensor:
    s = F.linear(i["context"], i["w_out"], i["b_out"]) + i["x"]
    h = _norm(s, i["gain_1"], i["shift_1"], 1e-12)
    t = F.linear(F.gelu(F.linear(h, i["w_up"], i["b_up"])), i["w_down"], i["b_down"]) + h
    return _norm(t, i["gain_2"], i["shift_2"], 1e-12)


def _stack(i: Inputs) -> Tensor:
    s = _llama_mlp(i["x"], i["gain_1"], i["w_gate_up_1"], i["w_down_1"])
    return _llama_mlp(s, i["gain_2"], i["w_gate_up_2"], i["w_down_2"])


def _gpt2(i: Inputs) -> Tensor:
    h = _norm(i["x"], i["gain"], i["shift"], 1e-5) @ i["w_up"] + i["b_up"]
    return F.gelu(h, approximate="tanh") @ i["w_down"] + i["b_down"] + i["x"]


def _embed(i: Inputs) -> tuple[Tensor, Tensor]:
    x = _norm(i["word"] + i["position"] + i["segment"], i["gain"], i["shift"], 1e-12)
    return x, F.linear(x, i["w_qkv"], i["b_qkv"])


def _layer(i: Inputs) -> tuple[Tensor, Tensor]:
    y = _post_norm(i)
    return y, F.linear(y, i["w_qkv"], i["b_qkv"])


def _head_loss(i: Inputs) -> Tensor:
    h = _rms(i["x"], 1 + i["gain"], 1e-6)
    logits = 30 * torch.tanh(h @ i["w"].T / 30)
    return F.cross_entropy(logits, i["target"], reduction="none")[:, None]


#: Each program written in torch by hand.
MEANING: dict[str, Callable[[Inputs], Tensor | tuple[Tensor, ...]]] = {
    "llama_mlp": lambda i: _llama_mlp(i["x"], i["gain"], i["w_gate_up"], i["w_down"]),
    "rmsnorm_qkv": lambda i: _rms(i["x"], i["gain"], 1e-5) @ i["w_qkv"].T,
    "gpt2_mlp": _gpt2,
    "nemotron_mlp": lambda i: (
        F.relu(_rms(i["x"], i["gain"], 1e-5) @ i["w_up"].T) ** 2 @ i["w_down"].T
    ),
    "bert_layer": _post_norm,
    "decoder_stack": _stack,
    "minilm_embed": _embed,
    "minilm_layer": _layer,
    "minilm_last": _post_norm,
    "lm_head_loss": _head_loss,
}


def test_every_program_is_listed() -> None:
    assert {f.stem for f in FOLDER.glob("*.fdsl")} == set(SMALL) == set(MEANING)


def _widened(inputs: Inputs) -> Inputs:
    return {k: v.double() if v.is_floating_point() else v for k, v in inputs.items()}


@pytest.mark.parametrize("name", SMALL)
def test_a_program_means_what_torch_computes(name: str) -> None:
    graph = fusedsl.parse(read(name, small=True, dtype="fp32"))
    inputs = random_inputs(graph, {"M": ROWS}, seed=3)
    found = evaluate(graph, inputs)
    expected = MEANING[name](_widened(inputs))
    expected = expected if isinstance(expected, tuple) else (expected,)
    for name_, value in zip(graph.outputs, expected, strict=True):
        torch.testing.assert_close(found[name_], value, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", SMALL)
def test_a_program_is_at_most_as_far_from_fp64_as_eager(name: str, device: str) -> None:
    program = fusedsl.compile(read(name, small=True))
    report = program.verify({"M": ROWS}, seeds=(0,), device=device)
    assert report.ok, str(report)


@pytest.mark.parametrize("dtype", ["fp16", "fp32"])
@pytest.mark.parametrize("name", ["llama_mlp", "gpt2_mlp", "bert_layer"])
def test_in_other_dtypes(name: str, dtype: str, device: str) -> None:
    program = fusedsl.compile(read(name, small=True, dtype=dtype))
    inputs = random_inputs(program.graph(), {"M": ROWS}, seed=1, device=device)
    out = program(**inputs)
    assert isinstance(out, Tensor)
    exact = evaluate(program.graph(), inputs)["y"]
    bound = {"fp16": 2e-3, "fp32": 2e-6}[dtype]  # observed: 5e-4 and 3e-7
    assert float((out.double() - exact).norm() / exact.norm()) < bound


#: Kernels of each program in bf16, at the sizes in its file: projections, and the rest.
KERNELS = {
    "llama_mlp": (2, 1),
    "rmsnorm_qkv": (1, 1),
    "gpt2_mlp": (2, 1),
    "nemotron_mlp": (2, 0),
    "bert_layer": (3, 1),
    "decoder_stack": (4, 1),
    "minilm_embed": (1, 1),
    "minilm_layer": (4, 1),
    "minilm_last": (3, 1),
    "lm_head_loss": (1, 2),
}


@pytest.mark.parametrize("name", KERNELS)
def test_everything_but_the_first_statistics_rides_on_the_projections(name: str) -> None:
    kernels = fusedsl.compile(read(name)).kernels
    projections = sum(k.anchor is not None for k in kernels)
    assert (projections, len(kernels) - projections) == KERNELS[name]


def test_one_squared_scale_lands_after_the_second_projection() -> None:
    program = fusedsl.compile(read("nemotron_mlp"))
    first, second = program.kernels
    assert second.blocks == ("linear", "mul")
    scale = next(n for n in first.steps if n.name in second.reads and n.block.name == "mul")
    assert scale.inputs[0] == scale.inputs[1], "r * r"


def test_the_second_norm_of_a_stack_reads_no_row_again() -> None:
    program = fusedsl.compile(read("decoder_stack"))
    fired = {e.rule for e in program.explain().rules if e.fired}
    assert "statistics_in_producer" in fired


def test_resizing_leaves_comments_and_attributes_alone() -> None:
    text = "# 64 of bf16[64]\nkernel k(x: bf16[M, 64]) -> (y: bf16[M, 64]) { y = x * 64; }\n"
    assert resized(text, {64: 32}, dtype="fp16") == (
        "# 64 of bf16[64]\nkernel k(x: fp16[M, 32]) -> (y: fp16[M, 32]) { y = x * 64; }\n"
    )
