"""Composites: the expansion means what the reference means, and rounds as eager torch rounds."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from fusedsl.blocks import library
from fusedsl.ir import (
    Graph,
    Kind,
    TensorType,
    evaluate,
    evaluate_eager,
    promote,
    random_inputs,
    tensor,
    verify,
)
from tests.blocks.harness import (
    attr_variants,
    bound,
    each,
    program,
    run_on_kernels,
    shape_of,
    types_like,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*(encountered in|All-NaN):RuntimeWarning")

EXPANDING = each(lambda b: b.expand is not None)
DTYPES = ("bf16", "fp16", "fp32")


def variants(name: str) -> list[tuple[tuple[str, ...], dict[str, Any]]]:
    """Which optional operands are given, and attribute values, in every legal combination."""
    block = library()[name]
    optional = [o.name for o in block.operands if o.optional]
    out: list[tuple[tuple[str, ...], dict[str, Any]]] = []
    for flags in itertools.product((False, True), repeat=len(optional)):
        given = tuple(n for n, flag in zip(optional, flags, strict=True) if flag)
        for attrs in attr_variants(block):
            if not (attrs.get("offset") == 1 and "gain" not in given):
                out.append((given, attrs))
    return out


def graph_of(name: str, given: tuple[str, ...], attrs: dict[str, Any], dtypes: Any) -> Graph:
    block = library()[name]
    types = {
        o.name: tensor("i64" if o.index else dtypes(o.name), *shape_of(block, o.name))
        if not o.optional or o.name in given
        else None
        for o in block.operands
    }
    weights = tuple(n for n in types if n in ("gain", "bias", "w"))
    return program(types, name, weights, **attrs)


def apply(name: str, run: Any, inputs: dict[str, torch.Tensor], attrs: dict[str, Any]) -> Any:
    operands = [inputs.get(o.name) for o in library()[name].operands]
    return run(*operands, **bound(attrs))


@pytest.mark.parametrize("name", EXPANDING)
def test_expansion_is_the_reference_in_fp64(name: str) -> None:
    for given, attrs in variants(name):
        graph = verify(graph_of(name, given, attrs, lambda _: "fp32"))
        inputs = {
            n: t.double() if t.is_floating_point() else t
            for n, t in random_inputs(graph, {}, seed=1).items()
        }
        expected = apply(name, library()[name].reference, inputs, attrs)
        torch.testing.assert_close(evaluate(graph, inputs)["y"], expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", EXPANDING)
def test_expansion_rounds_as_eager(name: str, dtype: str) -> None:
    block = library()[name]
    for given, attrs in variants(name):
        graph = verify(graph_of(name, given, attrs, lambda _: dtype))
        inputs = random_inputs(graph, {}, seed=2)
        eager = apply(name, block.eager or block.reference, inputs, attrs)
        stepwise = evaluate_eager(graph, inputs)["y"]
        assert stepwise.dtype == eager.dtype == graph.types["y"].dtype.torch
        if name == "rms_norm":  # the same operations in the same order
            torch.testing.assert_close(stepwise, eager, rtol=0, atol=0)
            continue
        eps = torch.finfo(eager.dtype).eps
        # fp32 is the working precision; a sum may round its larger term instead of the result
        steps, size = (8 if eager.dtype is torch.float32 else 1), 0.0
        if name in ("linear", "matmul", "layer_norm") and given:
            steps, size = 2 * steps, float(eager.abs().max())
        bound_ = steps * eps * torch.maximum(eager.double().abs(), torch.tensor(size)) + 1e-7
        assert ((stepwise.double() - eager.double()).abs() <= bound_).all(), (given, attrs)


@pytest.mark.parametrize("name", EXPANDING)
def test_expansion_carries_the_name_and_type_of_the_call(name: str) -> None:
    for given, attrs in variants(name):
        for out in ("auto", *DTYPES):
            graph = graph_of(name, given, {**attrs, "out_dtype": out}, lambda _: "bf16")
            assert graph.nodes[-1].name == "y" == graph.outputs[0]
            natural = "fp32" if name in ("cross_entropy", "log_sum_exp") else "bf16"
            assert graph.types["y"].dtype.value == (natural if out == "auto" else out)
            assert all(n.block.kind is not Kind.COMPOSITE for n in graph.nodes)
            assert len({n.name for n in graph.nodes}) == len(graph.nodes)


@pytest.mark.parametrize("name", EXPANDING)
def test_kernels_compute_the_expansion(name: str) -> None:
    for given, attrs in variants(name):
        graph = graph_of(name, given, attrs, lambda _: "fp32")
        inputs = random_inputs(graph, {}, seed=3)
        actual = run_on_kernels(graph, inputs, cols=4)
        torch.testing.assert_close(
            actual.double(), evaluate(graph, inputs)["y"], rtol=3e-6, atol=2e-6
        )


@pytest.mark.parametrize("cast", ["llama", "gemma", "olmo2", "t5"])
@pytest.mark.parametrize(("x", "gain"), [("bf16", "fp32"), ("fp32", "bf16"), ("fp16", "bf16")])
def test_rms_norm_of_mixed_dtypes_promotes_as_eager(cast: str, x: str, gain: str) -> None:
    for offset in (0, 1):
        attrs = {"eps": 1e-6, "offset": offset, "cast": cast}
        graph = graph_of("rms_norm", ("gain",), attrs, lambda n: x if n == "x" else gain)
        inputs = random_inputs(graph, {}, seed=4)
        eager = apply("rms_norm", library()["rms_norm"].eager, inputs, attrs)
        stepwise = evaluate_eager(graph, inputs)["y"]
        assert graph.types["y"].dtype.torch == eager.dtype
        torch.testing.assert_close(stepwise, eager, rtol=0, atol=0)
        types = {n: graph.types[n].dtype for n in ("x", "gain")}
        expected = {"llama": promote(*types.values()), "t5": types["gain"]}.get(cast, types["x"])
        assert graph.types["y"].dtype is expected


def test_layer_norm_is_torchs() -> None:
    x = torch.randn(5, 12, generator=torch.Generator().manual_seed(0)).bfloat16()
    gain, bias = (torch.randn(12, generator=torch.Generator().manual_seed(i)) for i in (1, 2))
    eager = library()["layer_norm"].eager
    assert eager is not None
    narrow = eager(x, gain.bfloat16(), bias.bfloat16(), eps=1e-5, offset=0)
    torch_ = torch.nn.functional.layer_norm(x, (12,), gain.bfloat16(), bias.bfloat16())
    torch.testing.assert_close(narrow, torch_, rtol=0, atol=0)
    mixed = eager(x, gain, bias, eps=1e-5, offset=0)
    torch_ = torch.nn.functional.layer_norm(x.float(), (12,), gain, bias).bfloat16()
    torch.testing.assert_close(mixed, torch_, rtol=0, atol=0)


def test_linear_adds_the_bias_to_the_raw_accumulator() -> None:
    graph = graph_of("linear", ("bias",), {}, lambda _: "bf16")
    raw, total = graph.nodes
    assert (raw.block.name, str(raw.type.dtype)) == ("linear", "fp32")
    assert (total.block.name, str(total.type.dtype)) == ("add", "bf16")


def test_a_gain_with_an_offset_is_added_in_fp32_at_bind_time() -> None:
    attrs = {"eps": 1e-6, "offset": 1, "cast": "gemma"}
    graph = graph_of("rms_norm", ("gain",), attrs, lambda _: "bf16")
    packed = list(graph.bind_time_nodes())
    assert [n.block.name for n in packed] == ["cast", "add"]
    assert all(str(n.type.dtype) == "fp32" for n in packed)


def test_softmax_of_special_rows() -> None:
    x = torch.tensor(
        [[-torch.inf] * 3, [-torch.inf, 0.0, 0.0], [torch.inf, 0, 1], [1e38, -1e38, 0]]
    )
    graph = program({"x": tensor("fp32", 4, 3)}, "softmax")
    actual = run_on_kernels(graph, {"x": x})
    torch.testing.assert_close(actual, torch.softmax(x, -1), equal_nan=True)


def test_gated_units_take_the_gate_first() -> None:
    gate, up = torch.tensor([[-1.0, 2.0]]), torch.tensor([[10.0, 100.0]])
    for name in ("swiglu", "geglu", "reglu"):
        block = library()[name]
        attrs = bound(next(attr_variants(block)))
        stacked = block.reference(torch.cat((gate, up), dim=1), None, **attrs)
        torch.testing.assert_close(stacked, block.reference(gate, up, **attrs))
    assert library()["reglu"].reference(gate, up).tolist() == [[0.0, 200.0]]


def norm(name: str, x: torch.Tensor, *, as_written: bool = False, **attrs: Any) -> torch.Tensor:
    """A norm without gain, on the Triton functions."""
    dtype = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32"}[x.dtype]
    graph = program({"x": tensor(dtype, *x.shape)}, name, **attrs)
    return run_on_kernels(graph, {"x": x}, as_written=as_written, cols=64)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_numerics_01_fp16_rows_near_300() -> None:
    x = (300.0 + normal(4, 256)).half()
    expected = x.float() * torch.rsqrt(x.float().square().mean(1, keepdim=True) + 1e-6)
    for as_written in (False, True):
        y = norm("rms_norm", x, as_written=as_written, eps=1e-6)
        torch.testing.assert_close(y, expected.half(), rtol=1e-3, atol=0)


def test_numerics_02_variance_of_large_residuals() -> None:
    x = torch.where(normal(4, 256) > 0, 2.75e5, -2.75e5)
    x[:, 0] = 1.5e6
    expected = torch.nn.functional.layer_norm(x.double(), (256,))
    assert x.double().var(1, correction=0).min() > 1e10
    torch.testing.assert_close(norm("layer_norm", x).double(), expected, rtol=1e-5, atol=1e-6)


def test_numerics_05_zero_row_layer_norm() -> None:
    zero = torch.zeros(2, 64, dtype=torch.float16)
    for as_written in (False, True):
        assert (norm("layer_norm", zero, as_written=as_written, eps=1e-12) == 0).all()
        assert (norm("rms_norm", zero, as_written=as_written, eps=1e-12) == 0).all()
    types: dict[str, TensorType | None] = {"x": tensor("fp16", 2, 64), "bias": tensor("fp16", 64)}
    bias = normal(64).half()
    graph = program(types, "layer_norm", eps=1e-12)
    actual = run_on_kernels(graph, {"x": zero, "bias": bias})
    torch.testing.assert_close(actual, bias.expand(2, 64), rtol=0, atol=0)


def test_numerics_06_no_floor_on_eps() -> None:
    x = (2e-4**0.5 * normal(4, 256).sign()).half()
    wide = x.double()
    expected = wide / (wide.square().mean(1, keepdim=True) + 1e-6).sqrt()
    assert expected.abs().min() > 0.99
    torch.testing.assert_close(norm("rms_norm", x, eps=1e-6), expected.half(), rtol=1e-3, atol=0)


def test_numerics_07_default_eps_is_fp32s() -> None:
    x = (1e-4 * normal(4, 256)).bfloat16()
    wide = x.double()
    expected = wide / (wide.square().mean(1, keepdim=True) + torch.finfo(torch.float32).eps).sqrt()
    torch.testing.assert_close(norm("rms_norm", x), expected.bfloat16(), rtol=8e-3, atol=0)
    torch.testing.assert_close(
        norm("rms_norm", x, as_written=True), torch.nn.functional.rms_norm(x, (256,)),
        rtol=8e-3, atol=0,
    )  # fmt: skip


def test_numerics_08_layer_norm_of_a_large_mean() -> None:
    x = (1000.0 + 1e-3 * torch.arange(16, dtype=torch.float64)).float()[None, :]
    y = norm("layer_norm", x, eps=1e-5)
    # an fp32 mean near 1000 is off by up to 3e-5, 0.0055 after the norm
    assert abs(float(y[0, 0]) + 1.3415) < 0.006
    expected = torch.nn.functional.layer_norm(x.double(), (16,))
    assert (y - expected).abs().max() < 0.006


def test_numerics_09_layer_norm_of_2048_bf16_columns() -> None:
    x = (8.0 + normal(2, 2048)).bfloat16()
    expected = torch.nn.functional.layer_norm(x.double(), (2048,))
    torch.testing.assert_close(norm("layer_norm", x).double(), expected, rtol=4e-3, atol=1e-5)


def test_numerics_12_cast_orders_differ_and_are_named() -> None:
    x, gain = normal(64, 256, seed=1).bfloat16(), (1.0 + normal(256, seed=2)).bfloat16()
    results: dict[str, torch.Tensor] = {}
    types: dict[str, TensorType | None] = {
        "x": tensor("bf16", 64, 256),
        "gain": tensor("bf16", 256),
    }
    inputs = {"x": x, "gain": gain}
    wide = x.float()
    unit = wide * torch.rsqrt(wide.square().mean(1, keepdim=True) + 1e-6)
    expected = {
        "llama": gain * unit.bfloat16(),
        "olmo2": (gain * unit).bfloat16(),
        "gemma": ((1.0 + gain.float()) * unit).bfloat16(),
    }
    for cast, value in expected.items():
        offset = int(cast == "gemma")
        graph = program(types, "rms_norm", cast=cast, eps=1e-6, offset=offset)
        results[cast] = evaluate_eager(graph, inputs)["y"]
        torch.testing.assert_close(results[cast], value, rtol=0, atol=0)
        written = run_on_kernels(graph, inputs, as_written=True, cols=256)
        # the statistic is summed in another order: a rounding may tip, one value in a thousand
        assert (written != value).float().mean() < 1e-3
    assert (results["llama"] != results["olmo2"]).any()
    assert dict(library()["rms_norm"].all_attrs)["cast"].default == "llama"


def test_moved_norm_is_closer_to_fp64_than_eager() -> None:
    x, gain = normal(16, 256, seed=1).bfloat16(), (1.0 + 0.1 * normal(256, seed=2)).bfloat16()
    graph = program({"x": tensor("bf16", 16, 256), "gain": tensor("bf16", 256)}, "rms_norm")
    inputs = {"x": x, "gain": gain}
    exact = evaluate(graph, inputs)["y"]
    errors = [
        float((y.double() - exact).norm() / exact.norm())
        for y in (run_on_kernels(graph, inputs, cols=256), evaluate_eager(graph, inputs)["y"])
    ]
    assert errors[0] < errors[1]


def test_example_types_cover_every_composite() -> None:
    for name in EXPANDING:
        assert all(types_like(library()[name], "bf16", optional=True).values())
