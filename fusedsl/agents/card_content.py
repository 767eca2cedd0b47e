"""Programs and mistakes on the language card. Tests compile the first and repair the second."""

from __future__ import annotations

from typing import NamedTuple

#: What the card shows, from the plainest to the one with most in it.
PROGRAMS = (
    """\
kernel llama_mlp(x: bf16[M, D], g: weight bf16[D], w1: weight bf16[2*F, D],
    w2: weight bf16[D, F]) -> (y: bf16[M, D]) {
  h = rms_norm(x, g, eps=1e-6);
  y = linear(swiglu(linear(h, w1)), w2) + x;
}
""",
    """\
kernel gpt2_up(x: fp16[M, D], w: weight fp16[D, F], c: weight fp16[F]) -> (y: fp16[M, F]) {
  y = gelu(matmul(layer_norm(x), w, bias=c), approximate=tanh);
}
""",
    """\
kernel gemma_q(x: bf16[M, D], g: weight bf16[D], w: weight bf16[N, D]) -> (q: bf16[M, N]) {
  q = linear(rms_norm(x, g, offset=1, cast=gemma), w);
}
""",
    """\
kernel head(x: bf16[M, D], w: weight bf16[V, D]) -> (p: fp32[M, V]) {
  p = softmax(softcap(linear(rms_norm(x), w, out_dtype=fp32), cap=30));
}
""",
    """\
kernel scaled(x: fp32[M, D], w: weight fp32[F, D]) -> (y: fp32[M, F], s: fp32[M, 1]) {
  mean, var = row_moments(x);
  s = sigmoid(var);
  y = squared_relu(linear((x - mean) / s, w));
}
""",
)


class Mistake(NamedTuple):
    """A wrong statement and the right one, in the body of `FRAME` or as the whole frame."""

    code: str
    wrong: str
    right: str


#: Where the statements of `MISTAKES` stand.
FRAME = """\
kernel f(x: bf16[M, 8], w: weight bf16[4, 8]) -> (y: bf16[M, 4]) { h = linear(x, w); %s }"""

MISTAKES = (
    Mistake("F0101", "y = relu(h)", "y = relu(h);"),
    Mistake("F0104", "y = -z; z = relu(h);", "z = relu(h); y = -z;"),
    Mistake("F0201", "y = swish(h);", "y = silu(h);"),
    Mistake("F0202", "y = h + H;", "y = h + h;"),
    Mistake("F0203", "y = relu(h); y = -y;", "z = relu(h); y = -z;"),
    Mistake("F0205", "z = -h; y = relu(h);", "z = -h; y = relu(z);"),
    Mistake("F0301", "y = softcap(h, 30);", "y = softcap(h, cap=30);"),
    Mistake("F0302", "y = gelu(h, approx=tanh);", "y = gelu(h, approximate=tanh);"),
    Mistake("F0402", "y = h + matmul(x, w);", "y = h + linear(x, w);"),
    Mistake("F0405", "y = relu(h, out_dtype=fp32);", "y = relu(h);"),
)
