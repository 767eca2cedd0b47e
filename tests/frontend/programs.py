"""Programs, and random graphs, that the tests of the frontends share."""

from __future__ import annotations

import string

from hypothesis import strategies as st

from fusedsl.blocks import library
from fusedsl.diagnostics import FusedslError
from fusedsl.frontend import parse
from fusedsl.ir import Graph, GraphBuilder, tensor

LLAMA_MLP = """\
# A Llama MLP block
kernel llama_mlp(x: bf16[M, 4096], gain: weight bf16[4096],
                 w_gate_up: weight bf16[28672, 4096], w_down: weight bf16[4096, 14336])
    -> (y: bf16[M, 4096]) {
  h = rms_norm(x, gain, eps=1e-6);
  a = swiglu(linear(h, w_gate_up));
  y = linear(a, w_down) + x;
}
"""

GPT2_MLP = """\
kernel gpt2_mlp(x: fp16[M, 768], g: weight fp16[768], b: weight fp16[768],
                w1: weight fp16[3072, 768], b1: weight fp16[3072],
                w2: weight fp16[768, 3072], b2: weight fp16[768]) -> (y: fp16[M, 768]) {
  h = layer_norm(x, g, b, eps=1e-5);
  u = gelu(linear(h, w1, b1), approximate=tanh);
  y = linear(u, w2, bias=b2) + x;
}
"""

MOMENTS = """\
kernel moments(x: fp32[B, 2*F], z: fp32[B, F]) -> (y: fp32[B, F], mean: fp32[B, 1]) {
  mean, var = row_moments(x);  # two results; of fp32
  y = (half(x, index=0) - mean) / (var + .5) * -z;
}
"""

GEMMA_HEAD = """\
kernel gemma_head(x: bf16[M, 2304], gain: weight bf16[2304], w: weight bf16[256000, 2304])
    -> (logits: fp32[M, 256000]) {
  h = rms_norm(x, gain, offset=1, cast=gemma);
  logits = softcap(linear(h, w, out_dtype=fp32), cap=30);
}
"""

ARITHMETIC = """\
kernel arithmetic(a: fp32[M, 64], b: fp32[64], c: fp32[M, 1]) -> (y: fp32[M, 64], z: fp16[M, 64]) {
  t = a * b + c - 2.5e-1 / (a - -1.) * (b - 3);
  y = -(t * t) + relu(a) / 8;
  z = cast(softmax(t), dtype=fp16);
}
"""

PARTIALS = """\
kernel partials(x: bf16[M, 512], w: weight bf16[512, 512]) -> (y: bf16[M, 512]) {
  u = linear(x, w);
  p = partial_mean_square(u, tiles=T);
  s = merge_mean_square(p, width=512);
  y = mul(u, inv_rms(s, eps=1e-06), out_dtype=bf16);
}
"""

ALL = {
    "llama_mlp": LLAMA_MLP,
    "gpt2_mlp": GPT2_MLP,
    "moments": MOMENTS,
    "gemma_head": GEMMA_HEAD,
    "arithmetic": ARITHMETIC,
    "partials": PARTIALS,
}

SIGNATURE = "kernel f(x: bf16[M, 64]) -> (y: bf16[M, 64]) {"


def program(statements: str, signature: str = SIGNATURE) -> str:
    """A kernel on one line, for tests of a statement or two."""
    return f"{signature} {statements} }}"


def errors(text: str, **options: object) -> FusedslError:
    """What `parse` raises for a text that it must refuse."""
    try:
        parse(text, **options)  # type: ignore[arg-type]
    except FusedslError as error:
        return error
    raise AssertionError(f"accepted:\n{text}")


def marked(text: str, error: FusedslError, index: int = 0) -> str:
    """The piece of the text that a diagnostic points at."""
    span = error.diagnostics[index].span
    assert span is not None and span.line == span.end_line
    return text.split("\n")[span.line - 1][span.column - 1 : span.end_column - 1]


FIRST = string.ascii_letters + "_"
names = st.builds(
    lambda first, rest: first + rest,
    st.sampled_from(FIRST),
    st.text(FIRST + string.digits, max_size=6),
)
literals = st.floats(min_value=2.0**-100, max_value=2.0**100).flatmap(
    lambda v: st.sampled_from([v, -v, float(int(v)) if v < 2**60 else v])
)


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """A random valid graph of ten nodes or fewer over the public blocks."""
    taken: set[str] = {"M", "F"}

    def name() -> str:
        new = draw(names.filter(lambda n: n not in taken))
        taken.add(new)
        return new

    b = GraphBuilder(library(), name=draw(names))
    dtype = draw(st.sampled_from(["bf16", "fp16", "fp32"]))
    rows = draw(st.sampled_from(["M", "3*M", 7]))
    cols = draw(st.sampled_from([64, 96, "2*F"]))
    tiles = [b.add_param(name(), tensor(dtype, rows, cols))]
    columns: list[str] = []
    for _ in range(draw(st.integers(1, 10))):
        x = draw(st.sampled_from(tiles))
        kind = draw(
            st.sampled_from(["unary", "infix", "literal", "norm", "linear", "column", "two"])
        )
        if kind == "unary":
            op = draw(st.sampled_from(["relu", "silu", "neg", "tanh", "softmax"]))
            tiles.append(b.call(op, x, name=name()))
        elif kind == "infix":
            op = draw(st.sampled_from(["add", "sub", "mul", "div"]))
            out = draw(st.sampled_from(["auto", "fp32"]))
            other = draw(st.sampled_from([*tiles, *columns]))
            tiles.append(b.call(op, x, other, name=name(), out_dtype=out))
        elif kind == "literal":
            op = draw(st.sampled_from(["add", "sub", "mul", "div"]))
            operands = draw(st.permutations([x, draw(literals)]))
            tiles.append(b.call(op, *operands, name=name()))
        elif kind == "norm":
            gain = b.add_param(name(), tensor("fp32", cols), weight=True)
            eps = draw(st.floats(2.0**-60, 1.0))
            given = {"gain": gain} if draw(st.booleans()) else {}
            if not given:
                b.params.pop()
                del b.types[gain]
            cast = draw(st.sampled_from(["llama", "gemma", "olmo2"]))
            tiles.append(b.call("rms_norm", x, name=name(), eps=eps, cast=cast, **given))
        elif kind == "linear":
            w = b.add_param(name(), tensor(b.types[x].dtype, cols, cols), weight=True)
            bias = [b.add_param(name(), tensor("fp32", cols))] if draw(st.booleans()) else []
            tiles.append(b.call("linear", x, w, *bias, name=name(), out_dtype=dtype))
        elif kind == "column":
            columns.append(b.call("row_mean", x, name=name()))
        else:
            columns += b.call_all("row_moments", [x], {}, [name(), name()])
    read = {op for node in b.nodes for op in node.inputs}
    b.outputs = [n.name for n in b.nodes if not any(r.name in read for r in n.results)]
    return b.finish()
