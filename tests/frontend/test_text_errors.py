"""One test or more for every code that a text can raise: code, place, and a fix that helps."""

from __future__ import annotations

import pytest

from fusedsl.blocks import library
from fusedsl.diagnostics import FusedslError
from fusedsl.frontend import parse
from fusedsl.ir import BlockLibrary
from tests.frontend.programs import LLAMA_MLP, errors, marked, program

SQUARE = "kernel f(x: bf16[M, 64], w: weight bf16[64, 64]) -> (y: bf16[M, 64]) {"


@pytest.mark.parametrize(
    ("code", "text", "at", "fix"),
    [
        ("F0104", program("y = h + x; h = relu(x);"), "h", "move the statement that assigns 'h'"),
        ("F0104", program("y = y + x;"), "y", "another name than 'y'"),
        ("F0105", program("y = x * 1e999;"), "1e999", "within the range of fp32"),
        ("F0105", program("y = x * -1e39;"), "-1e39", "within the range of fp32"),
        ("F0105", program("y = x * 1e-60;"), "1e-60", "within the range of fp32"),
        ("F0105", program("y = x * 1e-999;"), "1e-999", "within the range of fp32"),
        ("F0105", program("y = x * " + "9" * 5000 + ";"), "9" * 5000, "within the range of fp32"),
        ("F0105", program("y = rms_norm(x, eps=1e-400);"), "1e-400", "a number"),
        ("F0105", program("y = half(x, index=" + "9" * 30 + ");"), "9" * 30, "one of 0, 1"),
        ("F0201", program("y = rmsnorm(x);"), "rmsnorm", "did you mean 'rms_norm'?"),
        ("F0201", program("y = RMSNorm(x);"), "RMSNorm", "did you mean 'rms_norm'?"),
        ("F0201", program("y = zzz(x);"), "zzz", "blocks: add, cast, cross_entropy"),
        ("F0202", program("y = x + xx;"), "xx", "did you mean 'x'?"),
        ("F0202", program("y = x + Q;"), "Q", "names: x"),
        ("F0203", program("y = relu(x); y = silu(x);"), "y", "'y_1'"),
        ("F0203", program("x = relu(x); y = silu(x);"), "x", "'x_1'"),
        ("F0203", program("M = relu(x); y = x * M;"), "M", "'M_1'"),
        ("F0203", program("a, a = row_moments(x); y = x + a;"), "a", "'a_1'"),
        ("F0205", program("z = relu(x); y = silu(x);"), "z", "add 'z' to the outputs"),
        ("F0301", program("y = x + relu();"), "relu", "add x"),
        ("F0301", program("y = relu(x, x);"), "x", "relu(x)"),
        ("F0301", program("y = softcap(x, 30);"), "30", "cap=30"),
        ("F0301", program("y = x + relu(3);"), "3", "pass a tensor for 'x'"),
        ("F0301", program("y = 1 / 8 * x;"), "/", "the number it amounts to"),
        ("F0301", program("y = relu(x, x=x);"), "x", "leave out x="),
        ("F0301", program("a, b = relu(x); y = x + a + b;"), "a", "one name"),
        ("F0301", program("y = x + row_moments(x);"), "row_moments", "assign mean, var"),
        ("F0302", program("y = rms_norm(x, epsi=1);"), "epsi", "did you mean 'eps'?"),
        ("F0302", program("y = relu(x, zzz=1);"), "zzz", "attributes: out_dtype"),
        ("F0303", program("y = rms_norm(x, eps=x);"), "x", "eps= with a number"),
        ("F0303", program("y = rms_norm(x, cast=lama);"), "lama", "did you mean 'llama'?"),
        ("F0303", program("y = rms_norm(x, eps=1/8);"), "1/8", "eps= with a number"),
        ("F0303", program("y = rms_norm(x, eps=1, eps=2);"), "eps", "leave one eps= out"),
        ("F0304", program("y = softcap(x);"), "softcap", "add cap=..."),
        ("F0402", f"{SQUARE} y = linear(x, w) + row_mean(linear(x, w)) + half(w, index=0); }}",
         "half(w, index=0)", "M rows"),
    ],
)  # fmt: skip
def test_one_mistake(code: str, text: str, at: str, fix: str):
    error = errors(text)
    assert error.codes == (code,), error
    assert marked(text, error) == at
    assert fix in (error.diagnostics[0].fix or "")


@pytest.mark.parametrize(
    ("code", "signature", "at", "fix"),
    [
        ("F0105", "x: bf16[M, 0]) -> (y: bf16[M, 64]", "0", "at least 1"),
        ("F0105", "x: bf16[0*M, 64]) -> (y: bf16[M, 64]", "0*M", "at least 1"),
        ("F0105", "x: bf16[M, 2147483648]) -> (y: bf16[M, 64]", "2147483648", "at most 2147483647"),
        ("F0105", "x: bf16[" + "9" * 5000 + "]) -> (y: bf16[64]", "9" * 5000, "at most"),
        ("F0203", "x: bf16[x, 64]) -> (y: bf16[x, 64]", "x", "'x_1'"),
        ("F0203", "x: bf16[M, 64], x: bf16[64]) -> (y: bf16[M, 64]", "x", "'x_1'"),
        ("F0204", "x: bf16[M, 64]) -> (y: bf16[M, 64], z: bf16[64]", "z", "assign 'z'"),
        ("F0204", "x: bf16[M, 64]) -> (y: bf16[M, 64], x: bf16[M, 64]", "x", "compute something"),
        ("F0203", "x: bf16[M, 64]) -> (y: bf16[M, 64], y: bf16[M, 64]", "y", "'y_1'"),
        ("F0205", "x: bf16[M, 64], w: bf16[64]) -> (y: bf16[M, 64]", "w", "take 'w' out"),
        ("F0206", "x: float32[M, 64]) -> (y: bf16[M, 64]", "float32", "did you mean 'fp32'?"),
        ("F0206", "x: bf16_t[M, 64]) -> (y: bf16[M, 64]", "bf16_t", "did you mean 'bf16'?"),
        ("F0206", "x: bf16[M, 64]) -> (y: int8[M, 64]", "int8", "use one of bf16, fp16, fp32"),
        ("F0403", "x: bf16[B, M, 64]) -> (y: bf16[M, 64]", "bf16[B, M, 64]", "flatten"),
        ("F0404", "x: bf16[Rows, 64]) -> (y: bf16[Row, 64]", "bf16[Row, 64]", "mean 'Rows'?"),
        ("F0404", "x: bf16[M, 64]) -> (y: bf16[Q, 64]", "bf16[Q, 64]", "or one of M"),
        ("F0404", "x: bf16[4, 64]) -> (y: bf16[Q, 64]", "bf16[Q, 64]", "write an integer"),
        ("F0405", "x: bf16[M, 64]) -> (y: fp32[M, 64]", "fp32[M, 64]", "'y: bf16[M, 64]'"),
    ],
)
def test_one_mistake_in_the_signature(code: str, signature: str, at: str, fix: str):
    text = f"kernel f({signature}) {{ y = relu(x); }}"
    error = errors(text)
    assert error.codes == (code,), error
    assert marked(text, error) == at
    assert fix in (error.diagnostics[0].fix or "")


def test_f0401_points_at_the_declaration_that_does_not_fit():
    text = "kernel f(x: bf16[M, 64], w: fp32[64, 64]) -> (y: bf16[M, 64]) { y = linear(x, w); }"
    error = errors(text)
    assert error.codes == ("F0401",)
    assert marked(text, error) == "fp32"
    (use,) = error.diagnostics[0].related
    assert use.span is not None and use.span.column == text.rindex("w") + 1
    assert "declare 'w' as bf16" in str(error)


def test_f0401_the_rest_of_the_program_says_which_declaration_is_meant():
    text = "kernel f(a: bf16[M, 64], w: fp32[64, 64]) -> (y: fp32[M, 64]) { y = linear(a, w); }"
    error = errors(text)
    assert marked(text, error) == "bf16"
    assert error.diagnostics[0].fix == "declare 'a' as fp32"


def test_f0401_points_at_the_operand_where_either_declaration_may_be_meant():
    text = (
        "kernel f(a: bf16[M, 64], w: fp32[64, 64], v: fp32[64, 64]) -> (y: fp32[M, 64]) {"
        " y = linear(a, w) + linear(a, v, out_dtype=fp32); }"
    )
    assert {d.code for d in errors(text).diagnostics} == {"F0401"}


def test_f0402_suggests_the_transposed_product():
    text = "kernel f(x: bf16[M, 64], w: bf16[64, 8]) -> (y: bf16[M, 8]) { y = linear(x, w); }"
    error = errors(text)
    assert error.codes == ("F0402",)
    assert "matmul(x, w)" in (error.diagnostics[0].fix or "")


def test_f0403_of_a_block():
    text = "kernel f(x: bf16[64]) -> (y: bf16[64]) { y = softmax(x); }"
    error = errors(text)
    assert error.codes == ("F0403",)
    assert marked(text, error) == "x"


def test_f0406_a_half_of_an_odd_width():
    text = "kernel f(x: bf16[M, 3]) -> (y: bf16[M, 1]) { y = half(x, index=0); }"
    error = errors(text)
    assert error.codes == ("F0406",)
    assert marked(text, error) == "x"


def test_f0407_a_bind_time_block_on_an_activation():
    text = (
        "kernel f(x: bf16[M, 64], w: bf16[64, 64], g: weight bf16[64]) -> (y: bf16[M, 64])"
        " { y = linear(x, fold_scale(w, g, axis=1)); }"
    )
    error = errors(text)
    assert error.codes == ("F0407",)
    assert marked(text, error) == "w"
    assert "declare 'w: weight ...'" in (error.diagnostics[0].fix or "")
    parse(text.replace("w: bf16", "w: weight bf16"))


def test_a_result_of_weights_alone_is_a_weight():
    parse(
        "kernel f(x: bf16[M, 64], w: weight bf16[64, 64], g: weight bf16[64]) ->"
        " (y: bf16[M, 64]) { v = fold_scale(w, g * 2, axis=1); y = linear(x, v); }"
    )


def test_an_operator_that_the_library_lacks():
    text = program("y = x / x;")
    small = BlockLibrary((library()["relu"], library()["mul"]))
    error = errors(text, library=small)
    assert error.codes == ("F0201",)
    assert marked(text, error) == "/"
    assert error.diagnostics[0].expected == "*"


def test_all_independent_mistakes_in_one_go():
    text = """\
kernel f(x: bf16[M, 64], w: float[64, 64], unused: bf16[64]) -> (y: bf16[N, 64], z: bf16[64]) {
  a = rmsnorm(x, nosuch);
  b = softcap(a, cp=3);
  c = linear(x, w) + b;
  d = relu(x) + xx;
  d = softcap(x, cap=-1);
  y = c * d + e;
  e = relu(x, x);
}
"""
    error = errors(text)
    found = {(d.code, marked(text, error, i)) for i, d in enumerate(error.diagnostics)}
    assert found == {
        ("F0206", "float"),
        ("F0205", "unused"),
        ("F0404", "bf16[N, 64]"),
        ("F0204", "z"),
        ("F0201", "rmsnorm"),
        ("F0202", "nosuch"),
        ("F0302", "cp"),
        ("F0304", "softcap"),
        ("F0202", "xx"),
        ("F0203", "d"),
        ("F0303", "-1"),
        ("F0104", "e"),
        ("F0301", "x"),
    }
    lines = [d.span.line for d in error.diagnostics if d.span]
    assert lines == sorted(lines)


def test_a_failed_statement_does_not_cascade():
    error = errors(program("a = nosuch(x); b = relu(a) + a; c = linear(b, x); y = c;"))
    assert error.codes == ("F0201",)


def test_names_of_a_failed_statement_count_as_used():
    signature = "kernel f(x: bf16[M, 64], g: bf16[64]) -> (y: bf16[M, 64]) {"
    assert errors(program("y = nosuch(x, gain=g);", signature)).codes == ("F0201",)
    assert errors(program("y = nosuch(x, gain=g * 2);", signature)).codes == ("F0201",)
    assert errors(program("y = rms_norm(x, gian=g);", signature)).codes == ("F0302",)


def test_the_file_is_named():
    error = errors(program("y = xx + x;"), file="a.fdsl")
    assert "a.fdsl:1:" in str(error)
    assert error.diagnostics[0].file == "a.fdsl"


def test_a_text_must_be_a_text():
    with pytest.raises(FusedslError) as caught:
        parse(LLAMA_MLP.encode())  # type: ignore[arg-type]
    assert caught.value.codes == ("F0101",)
    assert "decode" in str(caught.value)
    with pytest.raises(FusedslError, match="pass a str"):
        parse(3)  # type: ignore[arg-type]


def test_no_more_than_a_hundred_mistakes():
    error = errors(program("".join(f"a{i} = b{i} + x;" for i in range(300))))
    assert len(error.diagnostics) == 100
    assert error.truncated
    assert str(error).endswith("stopped after 100 mistakes")
