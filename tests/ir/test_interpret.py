from __future__ import annotations

import torch

from fusedsl.ir import GraphBuilder, bind_dims, evaluate, evaluate_eager, random_inputs, tensor
from tests.ir.blocks import LIBRARY


def graph():
    b = GraphBuilder(LIBRARY)
    b.add_param("x", tensor("bf16", "M", "2*F"))
    b.add_param("w", tensor("bf16", "N", "2*F"), weight=True)
    b.add_param("g", tensor("fp32", "2*F"), weight=True)
    b.call("times", "x", "g", name="h")
    b.call_all("spread", ["h"], {}, ["low", "high"])
    b.call("scale", "h", "low", by=2.0, size="2*F", name="s")
    b.call("times", "s", 0.1, name="y")
    b.outputs = ["y", "high"]
    return b.finish()


def test_the_oracle_widens_exactly_and_never_rounds():
    g = graph()
    inputs = random_inputs(g, {"M": 3, "F": 2, "N": 5}, seed=1)
    x, gain = inputs["x"].double(), inputs["g"].double()
    h = x * gain
    out = evaluate(g, inputs)
    assert list(out) == ["y", "high"]
    assert out["y"].dtype == torch.float64
    assert torch.equal(out["y"], (h * 2.0 + h.amin(-1, keepdim=True)) * 0.1)
    assert torch.equal(out["high"], h.amax(-1, keepdim=True))
    assert {"x", "h", "low", "s"} <= set(evaluate(g, inputs, keep=True))


def test_the_eager_chain_rounds_to_every_declared_dtype():
    g = graph()
    inputs = random_inputs(g, {"M": 3, "F": 2, "N": 5}, seed=2)
    out = evaluate_eager(g, inputs)
    assert out["y"].dtype == torch.bfloat16
    h = (inputs["x"] * inputs["g"]).bfloat16()
    s = (h * 2.0 + h.amin(-1, keepdim=True).float()).bfloat16()
    assert torch.equal(out["y"], (s * 0.1).bfloat16())


def test_sizes_are_bound_by_the_inputs():
    g = graph()
    inputs = random_inputs(g, {"M": 3, "F": 2, "N": 5}, seed=1)
    assert bind_dims(g, inputs) == {"M": 3, "F": 2, "N": 5}
    del inputs["w"]
    assert bind_dims(g, inputs) == {"M": 3, "F": 2}


def test_random_inputs_are_seeded_and_shaped_like_their_roles():
    g = graph()
    env = {"M": 64, "F": 64, "N": 32}
    a, b = random_inputs(g, env, seed=3), random_inputs(g, env, seed=3)
    assert all(torch.equal(a[n], b[n]) for n in a)
    assert not torch.equal(a["x"], random_inputs(g, env, seed=4)["x"])
    assert [t.dtype for t in a.values()] == [torch.bfloat16, torch.bfloat16, torch.float32]
    assert abs(a["w"].float().std().item() * 128**0.5 - 1) < 0.1
    assert abs(a["g"].mean().item() - 1) < 0.1
