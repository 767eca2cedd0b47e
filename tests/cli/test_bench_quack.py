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

from benchmarks.chains import CHAINS
from benchmarks.common import quack_call
from examples import read
from fusedsl.bench.case import Case
from fusedsl.bench.peers import with_quack
from fusedsl.frontend import parse

GATED = {"swiglu": F.silu, "geglu": lambda z: F.gelu(z, approximate="tanh"), "reglu": F.relu}
ACTS = {
    "relu": F.relu,
    "silu": F.silu,
    "tanh": torch.tanh,
    "relu_sq": lambda z: F.relu(z).square(),
    "gelu_tanh_approx": lambda z: F.gelu(z, approximate="tanh"),
}


def _wide(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    z = a.float() @ b.float()
    return z if bias is None else z + bias


def _gated(activation: str, z: torch.Tensor) -> torch.Tensor:
    """Columns of the gate and of what it gates in turn."""
    return GATED[activation](z[:, 0::2]) * z[:, 1::2]


class Stand:
    """What was called; parameters are named and ordered as in quack-kernels 0.6.5."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.widened: list[int] = []

    def gemm(
        self, a: Any, b: Any, out: Any = None, bias: Any = None, *, split_k: Any, tuned: bool = True
    ) -> Any:
        self.calls.append("gemm")
        return _wide(a, b, bias).to(a.dtype)

    def gemm_act(
        self,
        a: Any,
        b: Any,
        c: Any = None,
        bias: Any = None,
        activation: str | None = None,
        *,
        store_preact: bool = True,
        tuned: bool = True,
    ) -> Any:
        assert c is None and not store_preact and isinstance(activation, str)
        z = _wide(a, b, bias)
        gated = activation in GATED
        self.calls.append(f"gemm_{'gated' if gated else 'act'} {activation}")
        return None, (_gated(activation, z) if gated else ACTS[activation](z)).to(a.dtype)

    gemm_gated = gemm_act

    def gemm_add(
        self,
        a: Any,
        b: Any,
        c: Any,
        out: Any = None,
        bias: Any = None,
        *,
        split_k: Any,
        tuned: bool = True,
    ) -> Any:
        self.calls.append("gemm_add")
        assert c.shape == (a.shape[0], b.shape[1])
        return (_wide(a, b, bias) + c).to(a.dtype)

    def rmsnorm(
        self,
        x: Any,
        w: Any = None,
        bias: Any = None,
        residual: Any = None,
        out_dtype: Any = None,
        residual_dtype: Any = None,
        eps: float = 1e-6,
        prenorm: bool = False,
        weight_offset: float = 0.0,
    ) -> Any:
        assert isinstance(weight_offset, float) and bias is residual_dtype is None
        self.calls.append("rmsnorm" if residual is None else "rmsnorm+residual")
        h = x.float() + (0 if residual is None else residual.float())
        y = F.rms_norm(h, w.shape, w.float() + weight_offset, eps).to(out_dtype or x.dtype)
        return (y, h.to(x.dtype)) if prenorm else y

    def layernorm_fwd(self, x: Any, w: Any, b: Any = None, eps: float = 1e-6) -> Any:
        assert w.dtype == torch.float32 and (b is None or b.dtype == torch.float32)
        self.widened.append(w.data_ptr())
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
        for function in (n for n in dir(made) if callable(getattr(made, n)) and n[0] != "_"):
            setattr(module, function, getattr(made, function))
        monkeypatch.setitem(sys.modules, f"quack{name}", module)
    return made


PROGRAMS = {
    "layernorm_fwd": "y = layer_norm(x, g, b); } [M, 32]",
    "softmax": "y = softmax(x); } [M, 32]",
    "gemm": "y = linear(x, w); } [M, 64]",
    "gemm_act silu": "y = silu(linear(x, w)); } [M, 64]",
    "gemm_add": "y = linear(x, v, c) + x; } [M, 32]",
    "rmsnorm": "y = rms_norm(x, g); } [M, 32]",
    "rmsnorm+residual": "y = rms_norm(x + r, g, cast=olmo2); } [M, 32]",
    "layernorm_fwd gemm_act gelu_tanh_approx": "y = gelu(linear(layer_norm(x, g, b), w, c64), "
    "approximate=tanh); } [M, 64]",
    "gemm_act relu_sq": "y = squared_relu(linear(x, w)); } [M, 64]",
    "gemm_act gelu_tanh_approx": "y = gelu(linear(x, w), approximate=tanh); } [M, 64]",
    "gemm_gated swiglu": "y = swiglu(linear(x, w)); } [M, 32]",
    "gemm_gated reglu": "y = reglu(linear(x, w)); } [M, 32]",
    "rmsnorm gemm_gated geglu": "y = geglu(linear(rms_norm(x, g), w), approximate=tanh); } [M, 32]",
}


def _case(body: str) -> Case:
    text, _, shape = body.rpartition("} ")
    others = {
        "r": "bf16[M, 32]",
        "g": "weight bf16[32]",
        "b": "weight bf16[32]",
        "c": "weight bf16[32]",
        "c64": "weight bf16[64]",
        "v": "weight bf16[32, 32]",
        "w": "weight bf16[64, 32]",
    }
    used = [f"{n}: {t}" for n, t in others.items() if re.search(rf"\b{n}\b", text)]
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


def test_a_residual_before_a_norm_gives_both(stand: Stand) -> None:
    text = "(y: bf16[M, 32], h: bf16[M, 32]) { h = x + r; y = rms_norm(h, g, cast=olmo2); }"
    given = "x: bf16[M, 32], r: bf16[M, 32], g: weight fp32[32]"
    case = Case.make(parse(f"kernel k({given}) -> {text}"), {"M": 9}, "cpu")
    (contender,) = with_quack(case).contenders
    stand.calls.clear()
    assert all(c.ok for c in case.checks(contender.calls[0](), case.truth(0), 0))
    assert stand.calls == ["rmsnorm+residual"]


def test_a_gain_with_an_offset(stand: Stand) -> None:
    case = _case("y = rms_norm(x, g, offset=1, cast=gemma); } [M, 32]")
    (contender,) = with_quack(case).contenders
    assert all(c.ok for c in case.checks(contender.calls[0](), case.truth(0), 0))
    found = with_quack(_case("y = layer_norm(x, g, b, offset=1); } [M, 32]"))
    assert found.absent == {"quack": "Quack has no function for 'layer_norm' as 'y' calls it"}


def test_weights_are_prepared_before_the_calls(stand: Stand) -> None:
    (contender,) = with_quack(_case("y = layer_norm(x, g, b); } [M, 32]")).contenders
    stand.widened.clear()
    for _ in range(2):
        contender.calls[0]()
    assert len(set(stand.widened)) == 1


@pytest.mark.parametrize("name", ["qkv", "swiglu", "down", "gelu", "mlp"])
def test_every_chain_of_the_benchmark(name: str, stand: Stand) -> None:
    text = CHAINS[name].program.format(d=64, f=96, f2=192, q=80)
    case = Case.make(parse(text), {"M": 9}, "cpu")
    (contender,) = with_quack(case).contenders
    stand.calls.clear()
    assert all(c.ok for c in case.checks(contender.calls[0](), case.truth(0), 0))
    assert (
        stand.calls
        == {
            "qkv": ["rmsnorm", "gemm"],
            "swiglu": ["rmsnorm", "gemm_gated swiglu"],
            "down": ["gemm_add"],
            "gelu": ["layernorm_fwd", "gemm_act gelu_tanh_approx"],
            "mlp": ["rmsnorm", "gemm_gated swiglu", "gemm_add"],
        }[name]
    )


def test_a_benchmark_has_the_call_where_its_result_is_right(stand: Stand) -> None:
    case = _case("y = rms_norm(x, g); } [M, 32]")
    exact = case.truth(0).exact["y"]
    calls, absent = quack_call(case.graph, case.sets[0], lambda y: y.shape == exact.shape)
    assert not absent and calls["quack"]()[0].shape == exact.shape
    wrong = quack_call(case.graph, case.sets[0], lambda y: False)
    assert wrong == ({}, {"quack": "its result is wrong"})


def test_a_benchmark_says_nothing_of_quack_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    case = _case("y = rms_norm(x, g); } [M, 32]")
    assert quack_call(case.graph, case.sets[0], lambda y: True) == ({}, {})


def test_what_it_has_no_function_for_is_named(stand: Stand) -> None:
    found = with_quack(_case("y = softcap(x, cap=3.0); } [M, 32]"))
    assert found.absent == {"quack": "Quack has no function for 'softcap' as 'y' calls it"}


def test_a_failure_of_its_own_is_a_reason(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise TypeError("no fail-closed semantic key")

    monkeypatch.setattr(sys.modules["quack.gemm_interface"], "gemm", fails)
    found = with_quack(_case(PROGRAMS["gemm"]))
    assert found.absent == {"quack": "TypeError: no fail-closed semantic key"}
