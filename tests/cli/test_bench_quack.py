"""Quack as a peer: a stand-in with the same signatures, in torch, as the package needs a GPU."""

from __future__ import annotations

import re
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from examples import read
from fusedsl.bench.case import Case
from fusedsl.bench.peers import with_quack
from fusedsl.frontend import parse

GATED = {"swiglu": F.silu, "geglu": lambda z: F.gelu(z, approximate="tanh"), "reglu": F.relu}
ACTS = {
    "relu": F.relu,
    "relu_sq": lambda z: F.relu(z).square(),
    "gelu_tanh_approx": lambda z: F.gelu(z, approximate="tanh"),
}


def _wide(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    z = a.float() @ b.float()
    return z if bias is None else z + bias


class Stand:
    """What was called."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def gemm(self, a: Any, b: Any, bias: Any = None, tuned: bool = True) -> Any:
        self.calls.append("gemm")
        return _wide(a, b, bias).to(a.dtype)

    def gemm_act(
        self, a: Any, b: Any, *, bias: Any, activation: str, store_preact: bool, tuned: bool
    ) -> Any:
        self.calls.append(f"gemm_act {activation}")
        return None, ACTS[activation](_wide(a, b, bias)).to(a.dtype)

    def gemm_gated(
        self, a: Any, b: Any, *, activation: str, store_preact: bool, tuned: bool
    ) -> Any:
        self.calls.append(f"gemm_gated {activation}")
        z = _wide(a, b, None)
        return None, (GATED[activation](z[:, 0::2]) * z[:, 1::2]).to(a.dtype)

    def gemm_add(self, a: Any, b: Any, c: Any, *, tuned: bool) -> Any:
        self.calls.append("gemm_add")
        assert c.shape == (a.shape[0], b.shape[1])
        return (_wide(a, b, None) + c).to(a.dtype)

    def rmsnorm(self, x: Any, w: Any, eps: float) -> Any:
        self.calls.append("rmsnorm")
        return F.rms_norm(x, w.shape, w, eps)

    def layernorm_fwd(self, x: Any, w: Any, b: Any, eps: float) -> Any:
        assert w.dtype == torch.float32 and (b is None or b.dtype == torch.float32)
        self.calls.append("layernorm_fwd")
        return F.layer_norm(x.float(), w.shape, w, b, eps).to(x.dtype)

    def softmax(self, x: Any) -> Any:
        self.calls.append("softmax")
        return torch.softmax(x, -1)


@pytest.fixture
def stand(monkeypatch: pytest.MonkeyPatch) -> Stand:
    made = Stand()
    for name in ("", ".rmsnorm", ".softmax", ".gemm_interface"):
        module = ModuleType(f"quack{name}")
        module.__spec__ = ModuleSpec(f"quack{name}", None)
        for function in (n for n in dir(made) if not n.startswith("_") and n != "calls"):
            setattr(module, function, getattr(made, function))
        monkeypatch.setitem(sys.modules, f"quack{name}", module)
    return made


PROGRAMS = {
    "rmsnorm": "y = rms_norm(x, g); } [M, 32]",
    "layernorm_fwd": "y = layer_norm(x, g, b); } [M, 32]",
    "softmax": "y = softmax(x); } [M, 32]",
    "gemm": "y = linear(x, w); } [M, 64]",
    "gemm_act relu_sq": "y = squared_relu(linear(x, w)); } [M, 64]",
    "gemm_act gelu_tanh_approx": "y = gelu(linear(x, w), approximate=tanh); } [M, 64]",
    "gemm_gated swiglu": "y = swiglu(linear(x, w)); } [M, 32]",
    "gemm_gated reglu": "y = reglu(linear(x, w)); } [M, 32]",
    "rmsnorm gemm_gated geglu": "y = geglu(linear(rms_norm(x, g), w), approximate=tanh); } [M, 32]",
}


def _case(body: str) -> Case:
    text, _, shape = body.rpartition("} ")
    weights = {"g": "bf16[32]", "b": "bf16[32]", "w": "bf16[64, 32]"}
    used = [f"{n}: weight {t}" for n, t in weights.items() if re.search(rf"\b{n}\b", text)]
    params = ", ".join(["x: bf16[M, 32]", *used])
    graph = parse(f"kernel k({params}) -> (y: bf16{shape}) {{ {text}}}")
    return Case.make(graph, {"M": 9}, "cpu")


@pytest.mark.parametrize("calls", PROGRAMS)
def test_a_chain_of_its_functions_is_right(calls: str, stand: Stand) -> None:
    case = _case(PROGRAMS[calls])
    (contender,) = with_quack(case).contenders
    stand.calls.clear()
    for index, call in enumerate(contender.calls):
        checks = case.checks(call(), case.truth(index), index)
        assert all(c.ok for c in checks), checks
    assert " ".join(stand.calls) == " ".join([calls] * len(contender.calls))


def test_a_whole_mlp(stand: Stand) -> None:
    case = Case.make(parse(read("llama_mlp", small=True)), {"M": 9}, "cpu")
    (contender,) = with_quack(case).contenders
    stand.calls.clear()
    assert all(c.ok for c in case.checks(contender.calls[1](), case.truth(1), 1))
    assert stand.calls == ["rmsnorm", "gemm_gated swiglu", "gemm_add"]


def test_what_it_has_no_function_for_is_named(stand: Stand) -> None:
    found = with_quack(_case("y = softcap(x, cap=3.0); } [M, 32]"))
    assert found.absent == {"quack": "Quack has no function for 'softcap' as 'y' calls it"}


def test_a_failure_of_its_own_is_a_reason(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise TypeError("no fail-closed semantic key")

    monkeypatch.setattr(sys.modules["quack.gemm_interface"], "gemm", fails)
    found = with_quack(_case(PROGRAMS["gemm"]))
    assert found.absent == {"quack": "TypeError: no fail-closed semantic key"}
