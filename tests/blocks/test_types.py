"""What blocks infer, and every mistake they report: its code, its place, and a fix."""

from __future__ import annotations

from typing import Any

import pytest

from fusedsl.blocks import library
from fusedsl.diagnostics import Diagnostic, FusedslError
from fusedsl.ir import GraphBuilder, TensorType, tensor


def infer(block: str, operands: dict[str, Any], **attrs: Any) -> tuple[TensorType, ...]:
    """Result types of one call on parameters of these types."""
    b = GraphBuilder(library())
    for name, value in operands.items():
        if isinstance(value, TensorType):
            b.add_param(name, value)
    given = {n: n if isinstance(v, TensorType) else v for n, v in operands.items()}
    return tuple(b.types[r] for r in b.call_all(library()[block], [], {**given, **attrs}))


def mistake(block: str, operands: dict[str, Any], **attrs: Any) -> Diagnostic:
    with pytest.raises(FusedslError) as caught:
        infer(block, operands, **attrs)
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.expected and diagnostic.got and diagnostic.fix
    assert diagnostic.where and block in diagnostic.where
    return diagnostic


def bf16(*shape: int | str) -> TensorType:
    return tensor("bf16", *shape)


def fp32(*shape: int | str) -> TensorType:
    return tensor("fp32", *shape)


X = bf16("M", 768)

INFERRED = [
    ("linear", {"x": X, "w": bf16(512, 768)}, {}, (bf16("M", 512),)),
    ("linear", {"x": bf16(768), "w": bf16("N", 768), "bias": fp32("N")}, {}, (bf16("N"),)),
    ("linear", {"x": X, "w": bf16(5, 768)}, {"out_dtype": "fp32"}, (fp32("M", 5),)),
    ("matmul", {"x": X, "w": bf16(768, 512)}, {}, (bf16("M", 512),)),
    ("add", {"a": X, "b": bf16(768)}, {}, (X,)),
    ("add", {"a": X, "b": fp32("M", 1)}, {}, (fp32("M", 768),)),
    ("sub", {"a": 1.0, "b": X}, {}, (X,)),
    ("mul", {"a": bf16(768), "b": bf16(768)}, {}, (bf16(768),)),
    ("div", {"a": X, "b": tensor("fp16", 1)}, {}, (fp32("M", 768),)),
    ("cast", {"x": X}, {"dtype": "fp16"}, (tensor("fp16", "M", 768),)),
    ("silu", {"x": bf16(768)}, {}, (bf16(768),)),
    ("row_sum", {"x": X}, {}, (bf16("M", 1),)),
    ("row_mean", {"x": X}, {"out_dtype": "fp32"}, (fp32("M", 1),)),
    ("row_max", {"x": X}, {}, (bf16("M", 1),)),
    ("row_mean_square", {"x": X}, {}, (fp32("M", 1),)),
    ("row_moments", {"x": X}, {}, (fp32("M", 1), fp32("M", 1))),
    ("partial_moments", {"x": X}, {"tiles": "T"}, (fp32("M", "T"), fp32("M", "T"))),
    ("merge_moments", {"mean": fp32("M", 6), "m2": fp32("M", 6)}, {"width": 768},
     (fp32("M", 1), fp32("M", 1))),
    ("partial_max", {"x": X}, {"tiles": 6}, (fp32("M", 6),)),
    ("merge_sum", {"sums": fp32("M", 6)}, {"width": 768}, (fp32("M", 1),)),
    ("rms_norm", {"x": X, "gain": fp32(768)}, {}, (fp32("M", 768),)),
    ("rms_norm", {"x": X, "gain": fp32(768)}, {"cast": "gemma"}, (X,)),
    ("rms_norm", {"x": X, "gain": fp32(768)}, {"cast": "olmo2"}, (X,)),
    ("rms_norm", {"x": fp32("M", 768), "gain": bf16(768)}, {"cast": "t5"}, (X,)),
    ("rms_norm", {"x": X}, {"eps": 0}, (X,)),
    ("layer_norm", {"x": X, "bias": fp32(768)}, {}, (X,)),
    ("softmax", {"x": X}, {}, (X,)),
    ("half", {"x": bf16("M", "2*F")}, {"index": 0}, (bf16("M", "F"),)),
    ("half", {"x": bf16(10)}, {"index": 1}, (bf16(5),)),
    ("swiglu", {"gate": bf16("M", "4*F")}, {}, (bf16("M", "2*F"),)),
    ("geglu", {"gate": X, "up": X}, {"approximate": "tanh"}, (X,)),
]  # fmt: skip


@pytest.mark.parametrize(("block", "operands", "attrs", "expected"), INFERRED)
def test_inferred(block: str, operands: Any, attrs: Any, expected: Any) -> None:
    assert infer(block, operands, **attrs) == expected


# block, operands, attributes, code, what the message names, what it leaves out
MISTAKES = [
    ("linear", {"x": bf16("M", 767), "w": bf16(512, 768)}, {}, "F0402", ["767", "768"], ["512"]),
    ("linear", {"x": bf16(2, 3, 768), "w": bf16(512, 768)}, {}, "F0403", ["'x'"], ["768"]),
    ("linear", {"x": X, "w": bf16(768)}, {}, "F0403", ["'w'"], ["768"]),
    ("linear", {"x": X, "w": fp32(512, 768)}, {}, "F0401", ["bf16", "fp32"], ["768"]),
    ("linear", {"x": X, "w": bf16(512, 768), "bias": bf16(768)}, {}, "F0402", ["'bias'"], ["M"]),
    ("matmul", {"x": bf16("M", 767), "w": bf16(768, 512)}, {}, "F0402", ["767", "768"], ["512"]),
    ("matmul", {"x": X, "w": bf16(768)}, {}, "F0403", ["'w'"], ["768"]),
    ("add", {"a": X, "b": bf16("M", 512)}, {}, "F0402", ["columns", "768", "512"], ["M"]),
    ("mul", {"a": X, "b": bf16("N", 768)}, {}, "F0402", ["rows", "M", "N"], ["768"]),
    ("sub", {"a": bf16("M", 1), "b": bf16(768)}, {}, "F0402", ["row vector"], ["768"]),
    ("div", {"a": bf16(2, 3, 4), "b": 2.0}, {}, "F0403", ["'a'"], ["2"]),
    ("silu", {"x": bf16(2, 3, 4)}, {}, "F0403", ["'x'"], ["3"]),
    ("inv_rms", {"s": fp32("M", 1)}, {"eps": -1e-6}, "F0303", ["'eps'"], []),
    ("row_sum", {"x": bf16(768)}, {}, "F0403", ["'x'"], ["768"]),
    ("row_moments", {"x": bf16(768)}, {}, "F0403", ["'x'"], ["768"]),
    ("merge_mean", {"sums": fp32(768)}, {"width": 768}, "F0403", ["'sums'"], ["768"]),
    ("rms_norm", {"x": bf16(768)}, {}, "F0403", ["'x'"], ["768"]),
    ("rms_norm", {"x": X, "gain": bf16(512)}, {}, "F0402", ["'gain'"], ["M"]),
    ("rms_norm", {"x": X, "gain": bf16("M", 1)}, {}, "F0402", ["'gain'"], []),
    ("rms_norm", {"x": X}, {"eps": -1.0}, "F0303", ["'eps'"], []),
    ("rms_norm", {"x": X}, {"offset": 1}, "F0303", ["'offset'"], []),
    ("layer_norm", {"x": bf16(768)}, {}, "F0403", ["'x'"], ["768"]),
    ("layer_norm", {"x": X, "bias": bf16(512)}, {}, "F0402", ["'bias'"], ["M"]),
    ("layer_norm", {"x": X, "gain": bf16(512)}, {}, "F0402", ["'gain'"], ["M"]),
    ("layer_norm", {"x": X}, {"eps": -1.0}, "F0303", ["'eps'"], []),
    ("layer_norm", {"x": X, "bias": bf16(768)}, {"offset": 1}, "F0303", ["'offset'"], []),
    ("softmax", {"x": bf16(768)}, {}, "F0403", ["'x'"], ["768"]),
    ("half", {"x": bf16("M", 767)}, {"index": 0}, "F0406", ["767"], ["M"]),
    ("swiglu", {"gate": bf16("M", 767)}, {}, "F0406", ["'gate'", "767"], ["M"]),
    ("reglu", {"gate": bf16(2, 3, 4)}, {}, "F0403", ["'gate'"], ["3"]),
    ("geglu", {"gate": X, "up": bf16("M", 512)}, {}, "F0402", ["columns", "512"], ["M"]),
    ("fold_scale", {"w": bf16(8, 4), "scale": bf16(4)}, {"axis": 0}, "F0402", ["'scale'"], ["4"]),
    ("fold_scale", {"w": bf16(8), "scale": bf16(8)}, {"axis": 0}, "F0403", ["'w'"], ["8"]),
    ("weight_sum", {"w": bf16(8)}, {"axis": 0}, "F0403", ["'w'"], ["8"]),
    ("project_vector", {"v": bf16(4), "w": bf16(4, 8)}, {"k_axis": 1}, "F0402", ["'v'"], ["8"]),
    ("stack", {"a": bf16(8, 4), "b": bf16(8, 5)}, {"axis": 0}, "F0402", ["4", "5"], ["8"]),
    ("stack", {"a": bf16(8, 4), "b": bf16(8)}, {"axis": 0}, "F0402", ["dimensions"], ["4"]),
    ("stack", {"a": bf16(8), "b": bf16(8)}, {"axis": 1}, "F0303", ["'axis'"], []),
    ("stack", {"a": bf16("A", 4), "b": bf16("B", 4)}, {"axis": 0}, "F0402", ["A", "B"], ["4"]),
    ("stack", {"a": bf16(8), "b": fp32(8)}, {"axis": 0}, "F0401", ["bf16", "fp32"], ["8"]),
]


@pytest.mark.parametrize(("block", "operands", "attrs", "code", "named", "unnamed"), MISTAKES)
def test_mistakes(
    block: str, operands: Any, attrs: Any, code: str, named: list[str], unnamed: list[str]
) -> None:
    diagnostic = mistake(block, operands, **attrs)
    assert diagnostic.code == code
    assert [w for w in named if w not in diagnostic.message] == []
    words = diagnostic.message.replace("'", " ").replace(":", " ").split()
    assert [w for w in unnamed if w in words] == []


def test_a_weight_of_the_other_layout_is_named() -> None:
    wrong = mistake("linear", {"x": X, "w": bf16(768, 512)})
    assert wrong.fix == "this weight is [K, N]: use matmul(x, w)"
    assert wrong.expected == "[N, 768] (linear takes the weight as [N, K])"
    wrong = mistake("matmul", {"x": X, "w": bf16(512, 768)})
    assert wrong.fix == "this weight is [N, K]: use linear(x, w)"
    assert wrong.expected == "[768, N] (matmul takes the weight as [K, N])"
    assert mistake("matmul", {"x": X, "w": bf16(5, 6)}).fix == "give 'w' the shape [768, N]"


def test_a_symbolic_width_that_cannot_be_halved_says_how_to_write_it() -> None:
    assert "2*F" in (mistake("swiglu", {"gate": bf16("M", "F")}).fix or "")
    assert "even" in (mistake("half", {"x": bf16("M", 7)}, index=0).fix or "")


@pytest.mark.parametrize(
    ("block", "attrs"),
    [
        ("softcap", {"cap": 0.0}),
        ("softcap", {"cap": -1.0}),
        ("gelu", {"approximate": "erf"}),
        ("cast", {"dtype": "fp64"}),
        ("rms_norm", {"offset": 2}),
        ("rms_norm", {"cast": "qwen"}),
        ("half", {"index": 2}),
    ],
)
def test_attribute_values_that_are_not_allowed(block: str, attrs: dict[str, Any]) -> None:
    operand = library()[block].operands[0].name
    with pytest.raises(FusedslError) as caught:
        infer(block, {operand: bf16("M", 8)}, **attrs)
    assert caught.value.codes == ("F0303",)
