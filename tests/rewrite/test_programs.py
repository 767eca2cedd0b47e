"""What becomes of the example programs and of the models' blocks."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import examples
from fusedsl.frontend import parse
from fusedsl.rewrite import RewriteOptions, expand, rewrite
from tests.rewrite.harness import assert_same_meaning, blocks, fired, reason, refusals, rewritten

NAMES = sorted(examples.SMALL)


@pytest.mark.parametrize("name", NAMES)
def test_golden(name: str, golden: Callable[[str, str], None]) -> None:
    result = rewrite(expand(parse(examples.read(name))))
    trace = "\n".join(f"# {entry}" for entry in result.trace)
    golden(f"rewrite/{name}.txt", f"{result.graph}\n{trace}\n")


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("name", NAMES)
def test_meaning(name: str, dtype: str) -> None:
    graph, result = rewritten(examples.read(name, dtype=dtype, small=True))
    assert_same_meaning(graph, result.graph)
    again = rewrite(result.graph)
    assert again.graph == result.graph
    assert again.refused == result.refused


def test_llama_reads_x_itself() -> None:
    _graph, result = rewritten(examples.read("llama_mlp", small=True))
    first = result.graph.nodes[blocks(result.graph).index("linear")]
    assert first.operands[0] == "x"
    assert blocks(result.graph).count("mul") == 3  # r times each half, and gate times up
    text = reason(result, "commute_row_scale", "constant_along_k")
    assert "'silu_1'" in text and "'inv_rms_1' stays" in text
    assert "silu" in reason(result, "homogeneous_activation", "homogeneous")


def test_llama_with_two_weights_is_the_stacked_program() -> None:
    two = """
kernel llama(x: bf16[M, 64], gain: weight bf16[64], w_gate: weight bf16[128, 64],
             w_up: weight bf16[128, 64], w_down: weight bf16[64, 128]) -> (y: bf16[M, 64]) {
  h = rms_norm(x, gain, eps=1e-6);
  y = linear(silu(linear(h, w_gate)) * linear(h, w_up), w_down) + x;
}"""
    graph, result = rewritten(two)
    assert_same_meaning(graph, result.graph)
    _, stacked = rewritten(examples.read("llama_mlp", small=True))
    assert sorted(blocks(result.graph)) == sorted([*blocks(stacked.graph), "stack"])


@pytest.mark.parametrize("order", ["norm first", "bias first"])
def test_biased_pairs_end_with_halves_on_the_projection(order: str) -> None:
    norm = "rms_norm" if order == "norm first" else "layer_norm"
    graph, result = rewritten(f"""
kernel pair(x: bf16[M, 64], w: weight bf16[64, 64], b: weight bf16[64], v: weight bf16[64, 64],
            c: weight bf16[64], z: weight bf16[128, 64], d: weight bf16[128])
    -> (y: bf16[M, 64], t: bf16[M, 64]) {{
  h = {norm}(x, eps=1e-6);
  y = swiglu(linear(h, w, b), linear(h, v, c));
  t = swiglu(linear(h, z, d));
}}""")
    assert_same_meaning(graph, result.graph)
    for node in result.graph.nodes:
        if node.block.name == "half" and node.name not in result.graph.weights:
            (below,) = node.inputs
            assert result.graph.producers[below].block.name == "linear"


def test_nemotron_scales_once_behind_both_projections() -> None:
    _graph, result = rewritten(examples.read("nemotron_mlp", small=True))
    producers = result.graph.producers
    y = producers["y"]
    raw, power = (producers[name] for name in y.inputs)
    assert raw.block.name == "linear" and set(power.inputs) == {"inv_rms_1"}
    assert producers[raw.inputs[0]].block.name == "squared_relu"
    assert refusals(result, "statistics_in_producer") == {"producer"}


def test_nemotron_in_fp16_keeps_its_scale() -> None:
    _graph, result = rewritten(examples.read("nemotron_mlp", dtype="fp16", small=True))
    assert "homogeneous_activation" not in fired(result)
    assert "square" in reason(result, "homogeneous_activation", "range")


def test_relu_gate_hands_on_the_product_of_scales() -> None:
    graph, result = rewritten("""
kernel reglu_mlp(x: bf16[M, 64], w: weight bf16[192, 64], v: weight bf16[64, 96])
    -> (y: bf16[M, 64]) {
  y = linear(reglu(linear(rms_norm(x, eps=1e-5), w)), v);
}""")
    assert_same_meaning(graph, result.graph)
    assert fired(result).count("homogeneous_activation") == 2
    raw, power = (result.graph.producers[name] for name in result.graph.producers["y"].inputs)
    assert raw.block.name == "linear" and power.block.name == "mul"


@pytest.mark.parametrize("up", ["squared_relu", "gelu"])
def test_gate_and_up_must_both_hand_on_a_scale(up: str) -> None:
    graph, result = rewritten(f"""
kernel two(x: bf16[M, 64], w: weight bf16[96, 64], v: weight bf16[96, 64],
           d: weight bf16[64, 96]) -> (y: bf16[M, 64]) {{
  h = rms_norm(x, eps=1e-5);
  y = linear(-relu(linear(h, w)) * {up}(linear(h, v)), d);
}}""")
    assert_same_meaning(graph, result.graph)
    homogeneous = up == "squared_relu"
    assert fired(result).count("homogeneous_activation") == (3 if homogeneous else 0)
    if not homogeneous:
        assert "without such a scale" in reason(
            result, "homogeneous_activation", "projection_after"
        )


def test_vector_of_every_call_is_not_halved() -> None:
    graph, result = rewritten("""
kernel halves(x: bf16[M, 64], w: weight bf16[192, 64], b: bf16[192], c: weight bf16[192])
    -> (y: bf16[M, 96], t: bf16[M, 96], e: bf16[M, 192]) {
  y = swiglu(linear(x, w, b));
  u = linear(x, w) * c;
  t = swiglu(u);
  e = relu(u);
}""")
    assert_same_meaning(graph, result.graph)
    assert refusals(result, "gated_pair") == {"weights", "read_by_halves"}


def test_half_of_a_parameter_or_a_sum_of_projections_stays() -> None:
    graph, result = rewritten("""
kernel halves(x: bf16[M, 64], z: bf16[M, 192], w: weight bf16[192, 64], v: weight bf16[64, 192])
    -> (y: bf16[M, 96], t: bf16[M, 96]) {
  y = swiglu(relu(z));
  t = swiglu(linear(x, w) + matmul(x, v));
}""")
    assert_same_meaning(graph, result.graph)
    assert fired(result) == []


def test_bert_norm_has_two_readers_and_one_set_of_statistics() -> None:
    _graph, result = rewritten(examples.read("bert_layer", small=True))
    assert fired(result) == [
        "shared_norm",
        "layer_norm_shift",
        "statistics_in_producer",
        "statistics_in_producer",
    ]
    assert blocks(result.graph).count("partial_moments") == 2
    assert blocks(result.graph).count("row_moments") == 0


def test_fp32_layer_norm_stays_whole() -> None:
    _, result = rewritten(examples.read("bert_layer", dtype="fp32", small=True))
    assert set(fired(result)) == {"statistics_in_producer"}
    assert refusals(result, "layer_norm_shift") == {"sixteen_bit"}
    assert "fp32_shift" in reason(result, "shared_norm", "projections")


def test_fp32_layer_norm_moves_when_asked() -> None:
    text = examples.read("bert_layer", dtype="fp32", small=True)
    graph, result = rewritten(text, fp32_shift=True)
    assert "layer_norm_shift" in fired(result)
    assert_same_meaning(graph, result.graph)


def test_tf32_is_named() -> None:
    _, result = rewritten(examples.read("gpt2_mlp", dtype="fp32", small=True), tf32=True)
    assert "TF32" in reason(result, "layer_norm_shift", "sixteen_bit")


def test_decoder_takes_statistics_where_the_sum_is_made() -> None:
    _, result = rewritten(examples.read("decoder_stack", small=True))
    text = str(result.graph)
    assert "partial_mean_square(s, tiles=tiles_s)" in text
    assert text.count("row_mean_square(") == 1


def test_two_norms_of_one_value_share_its_statistics() -> None:
    graph, result = rewritten("""
kernel parallel(x: bf16[M, 64], g1: weight bf16[64], b1: weight bf16[64], g2: weight bf16[64],
                b2: weight bf16[64], w: weight bf16[192, 64], v: weight bf16[96, 64])
    -> (q: bf16[M, 192], a: bf16[M, 96]) {
  q = linear(layer_norm(x, g1, b1, eps=1e-5), w);
  a = gelu(linear(layer_norm(x, g2, b2, eps=1e-5), v));
}""")
    assert_same_meaning(graph, result.graph)
    assert blocks(graph).count("row_moments") == 1
    assert fired(result) == ["layer_norm_shift"] * 2


def test_query_key_value_each_read_x() -> None:
    graph, result = rewritten("""
kernel qkv(x: bf16[M, 64], g: weight bf16[64], wq: weight bf16[64, 64], wk: weight bf16[32, 64],
           wv: weight bf16[32, 64]) -> (q: bf16[M, 64], k: bf16[M, 32], v: bf16[M, 32]) {
  h = rms_norm(x, g, eps=1e-6);
  q = linear(h, wq);
  k = linear(h, wk);
  v = linear(h, wv);
}""")
    assert_same_meaning(graph, result.graph)
    linears = [node for node in result.graph.nodes if node.block.name == "linear"]
    assert [node.operands[0] for node in linears] == ["x"] * 3
    assert blocks(result.graph).count("inv_rms") == 1


def test_post_norm_of_a_branch_is_no_epilogue() -> None:
    graph, result = rewritten("""
kernel gemma(c: bf16[M, 64], x: bf16[M, 64], g: weight bf16[64], wo: weight bf16[64, 64],
             w: weight bf16[96, 64]) -> (s: bf16[M, 64], y: bf16[M, 96]) {
  s = rms_norm(linear(c, wo), g, cast=gemma, offset=1) + x;
  y = linear(rms_norm(s, eps=1e-6), w);
}""")
    assert_same_meaning(graph, result.graph)
    assert "known only when" in reason(result, "statistics_in_producer", "known_in_kernel")
    assert fired(result).count("statistics_in_producer") == 1


def test_gain_of_every_call_is_written_by_the_producer() -> None:
    graph, result = rewritten("""
kernel gain(x: bf16[M, 64], g: bf16[64], w: weight bf16[64, 64], v: weight bf16[96, 64])
    -> (s: bf16[M, 64], y: bf16[M, 96]) {
  s = linear(x, w) + x;
  y = linear(rms_norm(s, g, eps=1e-6), v);
}""")
    assert_same_meaning(graph, result.graph)
    entry = next(e for e in result.fired if e.rule == "fold_gain")
    assert "the kernel that makes 's' also writes" in entry.reason
    assert refusals(result, "fold_gain") == set()


def test_gain_of_every_call_on_a_parameter_keeps_the_norm() -> None:
    _graph, result = rewritten("""
kernel gain(x: bf16[M, 64], g: bf16[64], v: weight bf16[96, 64]) -> (y: bf16[M, 96]) {
  y = linear(rms_norm(x, g, eps=1e-6), v);
}""")
    assert fired(result) == []
    assert "'g' is no weight" in reason(result, "commute_row_scale", "stored")


def test_tied_weight_is_folded_into_a_copy() -> None:
    graph, result = rewritten("""
kernel tied(x: bf16[M, 64], z: bf16[M, 64], g: weight bf16[64], w: weight bf16[96, 64])
    -> (y: bf16[M, 96], t: bf16[M, 96]) {
  y = linear(rms_norm(x, g, eps=1e-6), w);
  t = linear(z, w);
}""")
    assert_same_meaning(graph, result.graph)
    assert result.graph.producers["t"].operands[1] == "w"


@pytest.mark.parametrize(
    "norm",
    [
        "x - m",
        "x + m",
        "(x - m) * r",
        "mul(x - m, r) * g",
        "g * (r * (x - m)) - b",
        "(x - m) / s",
        "neg(x - m) * 0.5",
        "cast(cast(x - m, dtype=fp32) * r, dtype=bf16)",
        "((x + b) * r) * g",
        "((x - m) * g + b) * r * g",
    ],
)
def test_norms_by_hand_move(norm: str) -> None:
    graph, result = rewritten(f"""
kernel hand(x: bf16[M, 64], m: bf16[M, 1], r: bf16[M, 1], s: bf16[M, 1], g: weight bf16[64],
            b: weight bf16[64], w: weight bf16[96, 64]) -> (y: bf16[M, 96], z: bf16[M, 64]) {{
  z = x * g + b + m + r + s;
  y = linear({norm}, w);
}}""")
    assert fired(result) == ["layer_norm_shift"]
    assert_same_meaning(graph, result.graph)
    assert all(n.operands[0] == "x" for n in result.graph.nodes if n.block.name == "linear")


@pytest.mark.parametrize("scaled", ["x / s", "0.5 * x", "-x", "g * (x * s)", "-(x * s) * g / s"])
def test_scales_by_hand_move(scaled: str) -> None:
    graph, result = rewritten(f"""
kernel hand(x: bf16[M, 64], s: bf16[M, 1], g: weight bf16[64], w: weight bf16[64, 96])
    -> (y: bf16[M, 96], z: bf16[M, 64]) {{
  z = x * g + s;
  y = matmul({scaled}, w);
}}""")
    assert "commute_row_scale" in fired(result)
    assert refusals(result, "commute_row_scale") == set()
    assert_same_meaning(graph, result.graph)
    assert all(n.operands[0] == "x" for n in result.graph.nodes if n.block.name == "matmul")


def test_softmax_does_not_move() -> None:
    graph, result = rewritten("""
kernel attend(x: bf16[M, 64], k: bf16[32, 64], v: bf16[32, 64]) -> (y: bf16[M, 64]) {
  y = matmul(softmax(linear(x, k)), v);
}""")
    assert_same_meaning(graph, result.graph)
    assert fired(result) == ["statistics_in_producer"]
    assert refusals(result, "commute_row_scale") == {"dtype"}


def test_statistics_of_one_value_share_a_tiles_symbol_and_no_other() -> None:
    graph, result = rewritten("""
kernel both(a: bf16[M, 32], tiles_s_rows: bf16[tiles_s, 32], w: weight bf16[64, 32])
    -> (p: fp32[M, 1], q: bf16[M, 1], o: bf16[tiles_s, 64]) {
  s = linear(a, w);
  p = row_mean_square(s);
  q = row_max(s);
  o = linear(tiles_s_rows, w);
}""")
    assert_same_meaning(graph, result.graph)
    text = str(result.graph)
    assert text.count("tiles=tiles_s_2") == 2


def test_as_written_keeps_every_rounding() -> None:
    for name in NAMES:
        graph = expand(parse(examples.read(name, small=True)))
        result = rewrite(graph, RewriteOptions(numerics="as_written"))
        assert set(fired(result)) <= {"gated_pair", "statistics_in_producer"}
        assert_same_meaning(graph, result.graph)
