"""Programs built in Python: the same graphs as text gives, and coded mistakes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from fusedsl.blocks import library
from fusedsl.diagnostics import FusedslError
from fusedsl.frontend import Kernel, parse
from fusedsl.ir import BlockLibrary, Dim, DType
from tests.frontend.programs import GEMMA_HEAD, GPT2_MLP, LLAMA_MLP, MOMENTS


def raised(action: Callable[[], Any]) -> FusedslError:
    with pytest.raises(FusedslError) as caught:
        action()
    return caught.value


def small() -> tuple[Kernel, Any, Any]:
    k = Kernel("f")
    return k, k.input("x", "bf16", "M", 64), k.weight("w", "bf16", 64, 64)


def test_the_llama_mlp():
    k = Kernel("llama_mlp")
    x = k.input("x", "bf16", "M", 4096)
    gain = k.weight("gain", torch.bfloat16, 4096)
    w_gate_up = k.weight("w_gate_up", DType.BF16, 28672, Dim(4096))
    w_down = k.weight("w_down", "bf16", 4096, 14336)
    h = k.rms_norm(x, gain, eps=1e-6, name="h")
    a = k.swiglu(k.linear(h, w_gate_up), name="a")
    k.output(y=k.linear(a, w_down) + x)
    assert k.graph() == parse(LLAMA_MLP)
    assert k.graph().nodes[0].origin == "h = rms_norm(x, gain, eps=1e-06);"


def test_a_layer_norm_with_operands_by_name():
    k = Kernel("gpt2_mlp")
    x = k.input("x", "fp16", "M", 768)
    g, b = k.weight("g", "fp16", 768), k.weight("b", "fp16", 768)
    w1, b1 = k.weight("w1", "fp16", 3072, 768), k.weight("b1", "fp16", 3072)
    w2, b2 = k.weight("w2", "fp16", 768, 3072), k.weight("b2", "fp16", 768)
    h = k.layer_norm(x, bias=b, gain=g, name="h")
    u = k.gelu(k.linear(h, w1, bias=b1), approximate="tanh", name="u")
    k.output(y=k.linear(u, w2, b2) + x)
    assert k.graph() == parse(GPT2_MLP)


def test_several_results():
    k = Kernel("moments")
    x, z = k.input("x", "fp32", "B", "2*F"), k.input("z", "fp32", "B", "F")
    mean, var = k.row_moments(x, name=("mean", "var"))
    y = (k.half(x, index=0) - mean) / (var + 0.5) * -z
    k.output(y=y)
    k.output(mean)
    assert k.graph() == parse(MOMENTS)


def test_dtypes_as_attributes():
    k = Kernel("gemma_head")
    x = k.input("x", "bf16", "M", 2304)
    gain, w = k.weight("gain", "bf16", 2304), k.weight("w", "bf16", 256000, 2304)
    h = k.rms_norm(x, gain, offset=1, cast="gemma", name="h")
    k.output(logits=k.softcap(k.linear(h, w, out_dtype=torch.float32), cap=30))
    assert k.graph() == parse(GEMMA_HEAD)
    k2, x2, _ = small()
    assert k2.cast(x2, dtype=DType.FP16).type.dtype is DType.FP16
    assert "F0303" in raised(lambda: k2.cast(x2, dtype=torch.int8)).codes


def test_operators_with_numbers_on_either_side():
    k = Kernel("f")
    x = k.input("x", "fp32", "M", 4)
    y = -((1 + x) * (2.5 - x) / (3 / x + 1)) - np.float32(2) * x / np.int64(4) - 1
    k.output(y=y)
    text = "y = -((1 + x) * (2.5 - x) / (3 / x + 1)) - 2 * x / 4 - 1;"
    assert k.graph() == parse(f"kernel f(x: fp32[M, 4]) -> (y: fp32[M, 4]) {{ {text} }}")


def test_values_show_their_types():
    k, x, _ = small()
    assert x.name == "x"
    assert repr(x) == "<x: bf16[M, 64]>"
    h = k.relu(x)
    assert h.name is None
    assert "relu" in repr(h)
    assert str(h.type) == "bf16[M, 64]"


def test_an_output_renames_its_value():
    k, x, w = small()
    h = k.relu(x, name="h")
    k.output(y=h)
    k.output(z=k.linear(h, w))
    assert k.graph().outputs == ("y", "z")
    assert [n.name for n in k.graph().nodes] == ["y", "z"]
    assert k.graph().nodes[1].inputs == ("y", "w")


def test_fresh_names_give_way_to_given_ones():
    k, x, w = small()
    h = k.relu(k.relu(x))
    k.output(y=k.linear(h, w), relu_1=k.silu(h))
    assert [n.name for n in k.graph().nodes] == ["relu_2", "relu_3", "y", "relu_1"]


def test_the_graph_may_be_taken_more_than_once():
    k, x, w = small()
    k.output(y=k.linear(x, w))
    first = k.graph()
    k.output(z=k.relu(x))
    assert first.outputs == ("y",)
    assert k.graph().outputs == ("y", "z")


def test_blocks_are_methods():
    k = Kernel("f")
    assert {"rms_norm", "linear", "softcap", "input", "graph"} <= set(dir(k))
    assert "partial_sum" not in dir(k)
    assert not hasattr(k, "nosuch")
    assert not hasattr(k, "_nosuch")
    assert k.softcap.__name__ == "softcap"
    assert "softcap(x, cap)" in (inspect.getdoc(k.softcap) or "")
    x = k.input("x", "fp32", "M", 4)
    assert k.call("softcap", x, cap=3, name="y").name == "y"


def test_another_library():
    k = Kernel("f", library=BlockLibrary((library()["relu"],)))
    x = k.input("x", "fp32", "M", 4)
    k.output(y=k.relu(x))
    error = raised(lambda: x + x)
    assert error.codes == ("F0201",)
    assert "relu" in dir(k)
    assert raised(lambda: k.silu(x)).codes == ("F0201",)
    assert raised(lambda: -x).codes == ("F0201",)


def test_a_mistake_leaves_the_kernel_as_it_was():
    k, x, w = small()
    assert raised(lambda: k.softcap(x, cp=3, name="h")).codes == ("F0302", "F0304")
    h = k.softcap(x, cap=3, name="h")
    raised(lambda: k.linear(h, w, name="h"))
    raised(lambda: k.linear(x, w, w))
    k.output(y=k.linear(h, w))
    assert [n.name for n in k.graph().nodes] == ["h", "y"]


@pytest.mark.parametrize(
    ("action", "code", "fix"),
    [
        (lambda k, x, w: k.rmsnorm(x), "F0201", "did you mean 'rms_norm'?"),
        (lambda k, x, w: k.call("rmsnorm", x), "F0201", "did you mean 'rms_norm'?"),
        (lambda k, x, w: Kernel("g").relu(x), "F0202", "in 'g'"),
        (lambda k, x, w: Kernel("g").relu(k.relu(x)), "F0202", "in 'g'"),
        (lambda k, x, w: k.relu(x, name="w"), "F0203", "'w_1'"),
        (lambda k, x, w: k.relu(x, name="M"), "F0203", "'M_1'"),
        (lambda k, x, w: k.input("x", "bf16", 4), "F0203", "'x_1'"),
        (lambda k, x, w: k.input("M", "bf16", 4), "F0203", "'M_1'"),
        (lambda k, x, w: k.input("z", "bf16", "z"), "F0203", "'z_1'"),
        (lambda k, x, w: k.input("z", "bf16", "w"), "F0203", "'w_1'"),
        (lambda k, x, w: k.row_moments(x, name=("a", "a")), "F0203", "'a_1'"),
        (lambda k, x, w: k.row_moments(x, name="a"), "F0301", "mean, var"),
        (lambda k, x, w: k.relu("x"), "F0301", "pass the Value"),
        (lambda k, x, w: x + "x", "F0301", "pass the Value"),
        (lambda k, x, w: x * True, "F0301", "input(...)"),
        (lambda k, x, w: x * torch.ones(3), "F0301", "input(...)"),
        (lambda k, x, w: k.relu(k.row_moments(x)), "F0301", "unpack the results"),
        (lambda k, x, w: k.relu(), "F0301", "add x"),
        (lambda k, x, w: k.relu(3), "F0301", "pass a tensor"),
        (lambda k, x, w: k.linear(x, w, w, w), "F0301", "linear(x, w, [bias])"),
        (lambda k, x, w: k.linear(x, None), "F0301", "add w"),
        (lambda k, x, w: k.linear(x, w, w=w), "F0301", "leave out w="),
        (lambda k, x, w: k.rms_norm(x, epsi=1), "F0302", "did you mean 'eps'?"),
        (lambda k, x, w: k.rms_norm(x, eps="x"), "F0303", "a number"),
        (lambda k, x, w: k.rms_norm(x, eps=x), "F0303", "a number"),
        (lambda k, x, w: k.softcap(x), "F0304", "add cap="),
        (lambda k, x, w: x * 1e300, "F0105", "the range of fp32"),
        (lambda k, x, w: x * 10**400, "F0105", "the range of fp32"),
        (lambda k, x, w: x * float("nan"), "F0105", "the range of fp32"),
        (lambda k, x, w: k.fold_scale(x, w, axis=1), "F0407", "weight"),
        (lambda k, x, w: k.linear(w, k.half(w, index=0)), "F0402", "matmul"),
        (lambda k, x, w: k.input("a", "f8", 4), "F0206", "bf16, fp16, fp32"),
        (lambda k, x, w: k.input("a", torch.float64, 4), "F0206", "fp"),
        (lambda k, x, w: k.input("a", 16, 4), "F0206", "fp"),
        (lambda k, x, w: k.input("a", "bf16", 0), "F0105", "at least 1"),
        (lambda k, x, w: k.input("a", "bf16", "2 M"), "F0101", "a multiple"),
        (lambda k, x, w: k.input("a", "bf16", 1.5), "F0101", "a multiple"),
        (lambda k, x, w: k.input("a", "bf16", True), "F0101", "a multiple"),
        (lambda k, x, w: k.input("a", "bf16"), "F0403", "[1]"),
        (lambda k, x, w: k.input("a", "bf16", 1, 2, 3), "F0403", "flatten"),
        (lambda k, x, w: k.input("a b", "bf16", 1), "F0101", "letters"),
        (lambda k, x, w: k.input(3, "bf16", 1), "F0101", "letters"),
        (lambda k, x, w: k.relu(x, name="%1"), "F0101", "letters"),
        (lambda k, x, w: k.relu(x, name="x" * 200), "F0101", "shorter"),
        (lambda k, x, w: Kernel(""), "F0101", "letters"),
        (lambda k, x, w: k.output(y=x), "F0204", "compute something"),
        (lambda k, x, w: k.output(x), "F0204", "compute something"),
        (lambda k, x, w: k.output(k.relu(x)), "F0204", "output(y=value)"),
        (lambda k, x, w: k.output(y=3), "F0301", "input(...)"),
        (lambda k, x, w: k.output("x"), "F0301", "pass the Value"),
        (lambda k, x, w: k.output(x=k.relu(x)), "F0203", "'x_1'"),
        (lambda k, x, w: k.output(M=k.relu(x)), "F0203", "'M_1'"),
        (lambda k, x, w: k.graph(), "F0204", "output(y=value)"),
    ],
)
def test_mistakes_are_coded(action: Callable[..., Any], code: str, fix: str):
    k, x, w = small()
    error = raised(lambda: action(k, x, w))
    assert error.codes == (code,), error
    assert fix in (error.diagnostics[0].fix or "")


def test_one_value_is_one_output():
    k, x, _ = small()
    h = k.relu(x)
    k.output(y=h)
    error = raised(lambda: k.output(z=h))
    assert error.codes == ("F0203",)
    assert "'y' is an output already" in str(error)


def test_what_is_unused_is_told_with_the_graph():
    k, x, _ = small()
    k.silu(x)
    k.output(y=k.relu(x))
    error = raised(k.graph)
    assert error.codes == ("F0205", "F0205")
    assert "'silu_1' is never used" in str(error)
    assert "parameter 'w' is never used" in str(error)
