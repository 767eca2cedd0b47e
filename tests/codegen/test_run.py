"""Programs of every shape through emitted kernels, poisoned buffers first."""

from __future__ import annotations

import pytest
import torch

from examples import SMALL, read
from fusedsl.blocks import library
from fusedsl.fuse import few_rows
from fusedsl.ir import GraphBuilder, TensorType, evaluate, evaluate_eager, random_inputs
from tests.codegen.harness import (
    DEVICE,
    LOOPS,
    check,
    check_text,
    compiled,
    inputs_of,
    run,
    unrewritten,
)
from tests.rewrite.random_graphs import Programs

EACH_LOOP = pytest.mark.parametrize("loop", LOOPS)
NUMERICS = ("moved", "as_written")


# random programs -------------------------------------------------------------------------------
@EACH_LOOP
@pytest.mark.parametrize("numerics", NUMERICS)
@pytest.mark.parametrize("batch", range(5))
def test_random_programs(
    batch: int, numerics: str, loop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each seed takes both loops in one numerics, and one loop in the other; in turns as the few
    rows that they are, and as if they were many."""
    for seed in range(6 * batch, 6 * batch + 6):
        monkeypatch.setattr(few_rows, "FEW_ROWS", 64 * (seed // 2 % 2))
        if numerics == "as_written" and loop != LOOPS[seed % 2]:
            continue
        graph = Programs(seed).graph()
        program = compiled(graph, loop, numerics=numerics)
        inputs = random_inputs(graph, {"M": 5}, seed=seed, device=DEVICE)
        check(program, inputs)


@pytest.mark.usefixtures("looped")
def test_random_programs_with_looped_rows() -> None:
    for seed in range(30, 42):
        graph = Programs(seed).graph()
        check(compiled(graph), random_inputs(graph, {"M": 5}, seed=seed, device=DEVICE))


@pytest.mark.parametrize(("dtype", "loop"), [("fp16", "tma"), ("fp32", "pointer")])
@pytest.mark.parametrize("name", SMALL)
def test_examples(name: str, dtype: str, loop: str) -> None:
    program = compiled(read(name, small=True, dtype=dtype), loop)
    check(program, inputs_of(program.graph(), M=21))


# shapes ----------------------------------------------------------------------------------------
CHAIN = """
kernel chain(x: bf16[M, {k}], w: weight bf16[{n}, {k}], b: weight bf16[{n}], r: bf16[M, {n}])
    -> (y: bf16[M, {n}]) {{
  y = gelu(linear(rms_norm(x, eps=1e-3), w, b)) + r;
}}
"""
CHAIN_KN = CHAIN.replace("bf16[{n}, {k}]", "bf16[{k}, {n}]").replace("linear", "matmul")
GATED = """
kernel gated(x: bf16[M, {k}], w: weight bf16[{n2}, {k}], v: weight bf16[7, {n}])
    -> (y: bf16[M, 7]) {{
  y = linear(swiglu(linear(rms_norm(x, eps=1e-3), w)), v);
}}
"""
GATED_KN = GATED.replace("bf16[{n2}, {k}]", "bf16[{k}, {n2}]").replace(
    "swiglu(linear(", "swiglu(matmul("
)


@EACH_LOOP
@pytest.mark.parametrize("m", [1, 5, 130])
@pytest.mark.parametrize("k", [1, 17, 100])
@pytest.mark.parametrize("n", [1, 3, 50, 129])
def test_widths_that_are_no_multiple_of_a_tile(n: int, k: int, m: int, loop: str) -> None:
    for text in (CHAIN, CHAIN_KN) if m == 5 else (CHAIN,):
        check_text(text.format(n=n, k=k), loop, M=m)


@EACH_LOOP
@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (5, 3, 17), (130, 75, 16), (5, 300, 100)])
def test_pairs_with_odd_halves(m: int, n: int, k: int, loop: str) -> None:
    for text in (GATED, GATED_KN):
        check_text(text.format(n=n, n2=2 * n, k=k), loop, M=m)


@EACH_LOOP
@pytest.mark.parametrize("n", [1, 3, 75, 129])
def test_halves_of_a_stored_tile(n: int, loop: str) -> None:
    check_text(
        f"""
kernel k(x: bf16[M, {2 * n}], w: weight bf16[{n}, 16], a: bf16[M, 16])
    -> (y: bf16[M, {n}], z: bf16[M, {n}]) {{
  y = swiglu(x);
  z = linear(a, w) + y;
}}""",
        loop,
        M=130,
    )


@EACH_LOOP
def test_halves_read_in_an_epilogue(loop: str) -> None:
    b = _builder(x="bf16[M, 96]", a="bf16[M, 16]", w="bf16[48, 16]")
    z = b.call("linear", "a", "w")
    left, right = (b.call("half", "x", index=i) for i in (0, 1))
    b.outputs = [b.call("add", b.call("mul", z, right), left)]
    _check_graph(b, loop, M=37)


@EACH_LOOP
def test_halves_of_symbolic_width(loop: str) -> None:
    for columns in (1, 33, 70):
        check_text(
            """
kernel k(x: bf16[M, 4*N]) -> (y: bf16[M, N], z: bf16[M, N]) {
  y = swiglu(reglu(x));
  z = softmax(y);
}""",
            loop,
            M=130,
            N=columns,
        )


@EACH_LOOP
def test_symbolic_columns_between_projections(loop: str) -> None:
    for columns in (1, 50, 70):
        check_text(
            """
kernel k(x: bf16[M, N], w: weight bf16[F, N], v: weight bf16[N, F]) -> (y: bf16[M, N]) {
  s = linear(squared_relu(linear(rms_norm(x, eps=1e-3), w)), v) + x;
  y = layer_norm(s, eps=1e-3);
}""",
            loop,
            M=6,
            N=columns,
            F=40,
        )


@EACH_LOOP
@pytest.mark.parametrize("n", [129, 300])
def test_statistics_of_a_ragged_last_tile_stay_within_their_buffer(n: int, loop: str) -> None:
    """The second piece of the last tile holds no column: it has no place in the buffer."""
    check_text(
        f"""
kernel k(a: bf16[M, 16], x: bf16[M, {n}], w: weight bf16[{n}, 16], v: weight bf16[5, {n}])
    -> (y: bf16[M, 5], h: bf16[M, {n}]) {{
  s = linear(a, w) + x;
  y = linear(rms_norm(s, eps=1e-3), v);
  h = layer_norm(s, eps=1e-3);
}}""",
        loop,
        M=130,
    )


@EACH_LOOP
def test_statistics_after_a_gated_product(loop: str) -> None:
    program = check_text(
        """
kernel k(x: bf16[M, 16], w: weight bf16[600, 16], v: weight bf16[5, 300])
    -> (y: bf16[M, 5]) {
  y = linear(layer_norm(swiglu(linear(x, w)), eps=1e-3), v);
}""",
        loop,
        M=130,
    )
    first, second = program.kernels
    assert first.paired and "partial_moments" in first.blocks
    assert "merge_moments" in second.blocks


ONE_ROW = {
    "beside_a_projection": """kernel f(x: bf16[M, 24], p: bf16[1, 24], w: weight bf16[9, 24])
        -> (y: bf16[M, 9]) { y = linear(x, w) + linear(p, w); }""",
    "under_a_projection": """kernel f(x: bf16[M, 24], p: weight bf16[1, 24],
        w: weight bf16[9, 24]) -> (y: bf16[M, 9]) { y = linear(x * p, w); }""",
    "normed": """kernel f(x: bf16[M, 24], p: bf16[1, 24], w: weight bf16[9, 24])
        -> (y: bf16[M, 9], z: bf16[1, 9]) {
          h = rms_norm(p, eps=1e-6);
          y = linear(x * h, w);
          z = linear(h, w);
        }""",
    "one_value": """kernel f(x: bf16[M, 24], p: bf16[1, 1], r: bf16[M, 1])
        -> (y: bf16[M, 24], z: bf16[M, 1]) { y = x * p; z = r * p + p; }""",
    "its_statistic": """kernel f(p: bf16[1, 24], r: bf16[M, 1]) -> (y: bf16[M, 1]) {
        y = row_mean(p) * r;
      }""",
    "pieces_of_its_statistic": """kernel f(p: bf16[1, 24], w: weight bf16[400, 24],
        x: bf16[M, 400]) -> (y: bf16[M, 400]) { y = rms_norm(linear(p, w), eps=1e-6) * x; }""",
    "halved": """kernel f(x: bf16[M, 7], p: bf16[1, 14], q: bf16[1, 2])
        -> (y: bf16[M, 7]) { y = x * half(q, index=1) + half(p, index=1); }""",
    "vector_projected": """kernel f(x: bf16[M, 24], v: bf16[24], w: weight bf16[9, 24],
        u: weight bf16[1, 24]) -> (y: bf16[M, 9], z: bf16[9], s: bf16[1]) {
          z = linear(v, w);
          s = linear(v, u);
          y = linear(x, w) * s + z;
        }""",
}


@EACH_LOOP
@pytest.mark.parametrize("numerics", NUMERICS)
@pytest.mark.parametrize("name", ONE_ROW)
def test_one_row_is_shared_by_all_rows(name: str, numerics: str, loop: str) -> None:
    """A value of one row, read where there are many, is not read past its end."""
    program = compiled(ONE_ROW[name], loop, numerics=numerics)
    check(program, inputs_of(program.graph()))


@EACH_LOOP
def test_one_row_and_no_symbol(loop: str) -> None:
    check_text(
        """
kernel k(x: bf16[1, 64], g: bf16[64], w: weight bf16[40, 64]) -> (y: bf16[1, 40], h: bf16[64]) {
  h = g * g;
  y = linear(rms_norm(x, h, eps=1e-3), w);
}""",
        loop,
    )


def test_vectors_and_scalars() -> None:
    text = """
kernel k(x: bf16[M, N], g: bf16[N], s: bf16[1], c: bf16[M, 1])
    -> (y: bf16[M, N], h: bf16[N], t: bf16[1], d: bf16[M, 1]) {
  h = exp(g) + g;
  t = s * s;
  d = c * t;
  y = softmax(x * d + h);
}"""
    check_text(text, M=7, N=70)


@pytest.mark.usefixtures("looped")
def test_vectors_and_scalars_outlive_a_pass_over_the_columns() -> None:
    text = """
kernel k(x: bf16[M, 70], g: bf16[70], s: bf16[1], c: bf16[M, 1]) -> (y: bf16[M, 70]) {
  h = exp(g) + g;
  t = s * s;
  d = c * t;
  z = softmax(x * d + h);
  y = softmax(z * t) * d;
}"""
    program = check_text(text, M=7)
    assert "d" in program.kernels[-1].computed and "t" in program.kernels[-1].computed


@EACH_LOOP
def test_outputs_of_different_row_strides(loop: str) -> None:
    check_text(
        """
kernel k(x: bf16[M, 64], w: weight bf16[40, 64], v: weight bf16[17, 40])
    -> (a: bf16[M, 40], y: bf16[M, 17], x2: fp32[M, 64]) {
  a = linear(x, w);
  y = relu(linear(a, v));
  x2 = cast(x, dtype=fp32) * 2.0;
}""",
        loop,
        M=9,
    )


@pytest.mark.parametrize("wide", [False, True])
def test_row_kernels_with_several_outputs(wide: bool, request: pytest.FixtureRequest) -> None:
    if wide:
        request.getfixturevalue("looped")
    check_text(
        """
kernel k(x: bf16[M, 70], z: fp32[M, 70])
    -> (a: bf16[M, 70], b: fp32[M, 70], c: fp32[M, 1], d: bf16[M, 1], e: bf16[M, 70]) {
  a = rms_norm(x, eps=1e-3);
  b = softmax(z);
  c = row_sum(z);
  d = row_max(x);
  e = softmax(a) + x;
}""",
        M=11,
    )


@EACH_LOOP
def test_strided_inputs(loop: str) -> None:
    program = compiled(CHAIN.format(n=48, k=32), loop)
    inputs = inputs_of(program.graph(), M=9)
    strided = {
        "x": _within(inputs["x"], 3, 64),
        "w": inputs["w"].t().contiguous().t(),
        "b": inputs["b"].repeat_interleave(2)[::2],
        "r": _within(inputs["r"], 0, 56),
    }
    assert not any(t.is_contiguous() for t in strided.values())
    want, got = check(program, inputs)["y"], check(program, strided)["y"]
    assert torch.equal(want, got)


def _within(x: torch.Tensor, start: int, width: int) -> torch.Tensor:
    wide = torch.full((x.shape[0], width), float("nan"), dtype=x.dtype, device=x.device)
    view = wide[:, start : start + x.shape[1]]
    view.copy_(x)
    return view


def test_strided_columns() -> None:
    program = compiled("""
kernel k(x: bf16[M, 40], c: fp32[M, 1]) -> (y: fp32[M, 40]) { y = exp(x) * c; }""")
    inputs = inputs_of(program.graph(), M=9)
    wide = torch.zeros(9, 5, device=DEVICE)
    wide[:, 2:3] = inputs["c"]
    check(program, {**inputs, "c": wide[:, 2:3]})


@EACH_LOOP
def test_expanded_rows(loop: str) -> None:
    program = compiled(CHAIN.format(n=48, k=32), loop)
    inputs = inputs_of(program.graph(), M=9)
    check(program, {**inputs, "x": inputs["x"][:1].expand(9, 32)})


@EACH_LOOP
def test_no_rows(loop: str) -> None:
    program = compiled(CHAIN.format(n=48, k=32), loop)
    outputs = run(program, inputs_of(program.graph(), M=0))
    assert outputs["y"].shape == (0, 48) and outputs["y"].dtype == torch.bfloat16


# as written ------------------------------------------------------------------------------------
@EACH_LOOP
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_as_written_is_eager_bit_for_bit_where_sums_are_exact(dtype: str, loop: str) -> None:
    """Small integers: sums are exact in any order, so every rounding is one that eager makes."""
    text = f"""
kernel k(x: {dtype}[M, 20], w: weight {dtype}[50, 20], b: weight {dtype}[50], r: {dtype}[M, 50],
         g: {dtype}[50], v: weight {dtype}[30, 50])
    -> (z: {dtype}[M, 50], y: {dtype}[M, 30]) {{
  z = (squared_relu(linear(x, w, b)) * g - r) * 0.37 + r;
  y = linear(relu(z * 0.001), v) * 1.7;
}}"""
    program = compiled(text, loop, numerics="as_written")
    generator = torch.Generator().manual_seed(0)
    inputs = {}
    for p in program.graph().params:
        shape = p.type.concrete({"M": 37})
        values = torch.randint(-3, 4, shape, generator=generator).float()
        inputs[p.name] = values.to(p.type.dtype.torch).to(DEVICE)
    inputs["v"] = torch.eye(30, 50).to(inputs["v"])  # one term per sum: exact whatever z holds
    got, want = run(program, inputs), evaluate_eager(program.graph(), inputs)
    for name in got:
        assert torch.equal(got[name], want[name]), name
    moved = run(compiled(text, loop), inputs)
    assert not torch.equal(moved["z"], want["z"]), "the example would tell a rounding left out"


def test_as_written_keeps_the_casts_of_a_norm() -> None:
    """Cast orders differ in their roundings, as_written gives each its own."""
    outputs = []
    for cast in ("llama", "gemma", "olmo2"):
        program = compiled(
            "kernel k(x: bf16[M, 64], g: bf16[64]) -> (y: bf16[M, 64]) "
            f"{{ y = rms_norm(x, g, eps=1e-6, cast={cast}); }}",
            numerics="as_written",
        )
        inputs = inputs_of(program.graph(), M=33)
        outputs.append(check(program, inputs)["y"])
        eager = evaluate_eager(program.graph(), inputs)["y"]
        assert float((outputs[-1] != eager).float().mean()) < 0.01
    assert not torch.equal(outputs[0], outputs[1])


# what a call leaves alone ----------------------------------------------------------------------
@EACH_LOOP
def test_inputs_never_change(loop: str) -> None:
    program = compiled(read("bert_layer", small=True), loop)
    inputs = inputs_of(program.graph(), M=9)
    before = {n: t.clone() for n, t in inputs.items()}
    run(program, inputs)
    assert all(torch.equal(inputs[n], t) for n, t in before.items())


@EACH_LOOP
def test_a_row_does_not_depend_on_its_neighbours(loop: str) -> None:
    program = compiled(read("decoder_stack", small=True), loop)
    inputs = inputs_of(program.graph(), M=40)
    together = run(program, inputs)["y"]
    inputs["x"][20:] = float("nan")
    assert torch.equal(run(program, inputs)["y"][:20], together[:20])


# graphs of primitive blocks --------------------------------------------------------------------
def _builder(**params: str) -> GraphBuilder:
    b = GraphBuilder(library(), "program")
    for name, text in params.items():
        b.add_param(name, TensorType.parse(text), weight=name.startswith("w"))
    return b


def _check_graph(b: GraphBuilder, loop: str, **dims: int) -> None:
    graph = b.finish()
    program = unrewritten(graph)
    program.main_loop = loop
    check(program, inputs_of(graph, **dims))


@EACH_LOOP
def test_a_statistic_of_a_single_streamed_column(loop: str) -> None:
    b = _builder(x="bf16[M, 1]", w_a="bf16[64, 1]", w_b="bf16[32, 64]")
    s = b.call("row_mean_square", "x")
    z = b.call("linear", b.call("linear", "x", "w_a"), "w_b")
    b.outputs = [b.call("mul", z, s)]
    _check_graph(b, loop, M=130)


@EACH_LOOP
def test_a_projection_of_one_column_and_its_statistic(loop: str) -> None:
    b = _builder(x="bf16[M, 24]", w_a="bf16[1, 24]", c="fp32[M, 1]")
    z = b.call("add", b.call("mul", b.call("linear", "x", "w_a"), "c"), 1.0)
    p = b.call("partial_mean_square", z, tiles="T")
    s = b.call("merge_mean_square", p, width=1)
    b.outputs = [b.call("sub", z, s)]
    _check_graph(b, loop, M=130)


@EACH_LOOP
def test_bind_time_outputs_beside_kernels(loop: str) -> None:
    b = _builder(x="bf16[M, 24]", w_a="bf16[24]", w_b="bf16[24]")
    s = b.call("add", "w_a", "w_b")
    b.outputs = [s, b.call("mul", "x", s)]
    graph = b.finish()
    program = unrewritten(graph)
    outputs = check(program, inputs_of(graph, M=9))
    exact = evaluate(graph, inputs_of(graph, M=9))
    assert torch.allclose(outputs[s].double(), exact[s], rtol=1e-2)
