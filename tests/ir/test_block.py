from __future__ import annotations

import pytest

from fusedsl.ir import (
    Attr,
    Block,
    BlockLibrary,
    Contracts,
    Dim,
    Elementwise,
    Kind,
    LinearIn,
    OperandSpec,
    TypeProblem,
    tensor,
)
from fusedsl.ir.block import REQUIRED
from tests.ir.blocks import LIBRARY, MINUS, SCALE, SPREAD, TIMES


@pytest.mark.parametrize(
    ("kind", "value", "result"),
    [
        ("float", 1, 1.0),
        ("float", 1.5, 1.5),
        ("float", True, None),
        ("float", "1", None),
        ("float", float("inf"), None),
        ("float", 1e300, None),
        ("float", 10**400, None),
        ("int", 3, 3),
        ("int", 3.0, 3),
        ("int", -3, -3),
        ("int", 3.5, None),
        ("int", False, None),
        ("int", float("nan"), None),
        ("int", 1 << 63, None),
        ("bool", True, True),
        ("bool", "true", True),
        ("bool", "false", False),
        ("bool", "True", None),
        ("bool", 1, None),
        ("str", "tanh", "tanh"),
        ("str", "two words", None),
        ("str", 3, None),
        ("dim", 4, Dim(4)),
        ("dim", 4.0, Dim(4)),
        ("dim", "2*F", Dim(2, "F")),
        ("dim", Dim(1, "M"), Dim(1, "M")),
        ("dim", 0, None),
        ("dim", 1 << 31, None),
        ("dim", 1.5, None),
        ("dim", True, None),
        ("dim", "M*2", None),
        ("dim", None, None),
    ],
)
def test_coercion(kind: str, value: object, result: object):
    made = Attr("a", kind).coerce(value)
    assert made == result
    assert type(made) is type(result)


def test_choices_and_the_minimum():
    choice = Attr("a", "str", choices=("x", "y"))
    assert choice.coerce("x") == "x"
    assert choice.coerce("z") is None
    assert choice.expectation() == "one of x, y"
    above = Attr("a", "float", minimum=0.0)
    assert above.coerce(0) is None
    assert above.coerce(1e-9) == 1e-9
    assert above.expectation() == "a number > 0"
    assert Attr("a", "bool", choices=(True, False)).expectation() == "one of true, false"


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("float", "a number"),
        ("int", "an integer"),
        ("bool", "true or false"),
        ("str", "a name"),
        ("dim", "a dimension"),
    ],
)
def test_expectations(kind: str, words: str):
    assert Attr("a", kind).expectation() == words


def test_defaults_are_of_the_kind():
    assert Attr("a", "dim", default=4).default == Dim(4)
    assert Attr("a", "float", default=1).default == 1.0
    with pytest.raises(ValueError, match="is not a int"):
        Attr("a", "int", default=1.5)
    assert Attr("a", "int").required
    assert repr(REQUIRED) == "REQUIRED"


@pytest.mark.parametrize(
    ("kind", "value", "out"),
    [
        ("float", 1e300, True),
        ("float", 10**400, True),
        ("float", "x", False),
        ("float", True, False),
        ("int", 1 << 63, True),
        ("int", float("inf"), True),
        ("int", 1.5, False),
        ("dim", 0, True),
        ("dim", "0*M", True),
        ("dim", "M", False),
        ("dim", "x y", False),
        ("str", 3, False),
    ],
)
def test_numbers_out_of_range(kind: str, value: object, out: bool):
    assert Attr("a", kind).is_out_of_range(value) is out


def test_a_block():
    assert SCALE.signature() == ("scale(x, [shift], by, times=1, kind=plain, on=true, size=1)")
    assert SCALE.min_operands == 1
    assert SCALE.operand_index("shift") == 1
    with pytest.raises(KeyError):
        SCALE.operand_index("y")
    assert list(SCALE.all_attrs) == ["by", "times", "kind", "on", "size", "out_dtype"]
    assert "out_dtype" not in SPREAD.all_attrs
    assert SCALE.has_law(Elementwise)
    assert not SCALE.has_law(Contracts)
    assert TIMES.laws_of(LinearIn) == (LinearIn("a"), LinearIn("b"))


def test_blocks_are_equal_by_name():
    def infer(operands: object, attrs: object):
        raise TypeProblem("F0401", "never")

    other = Block("minus", Kind.COMPOSITE, (OperandSpec("x"),), infer, lambda x: x)
    assert other == MINUS
    assert hash(other) == hash(MINUS)
    assert other != TIMES
    assert MINUS != "minus"


def test_a_library():
    assert len(LIBRARY) == 5
    assert LIBRARY["scale"] is SCALE
    assert LIBRARY.infix == {"*": TIMES}
    assert LIBRARY.prefix == {"-": MINUS}
    assert [b.name for b in LIBRARY.public()] == ["minus", "scale", "spread", "times"]
    assert LIBRARY.suggestion("scall") == "did you mean 'scale'?"
    assert LIBRARY.suggestion("zzz") == "blocks: minus, scale, spread, times"
    with pytest.raises(ValueError, match="two blocks"):
        BlockLibrary((SCALE, SCALE))


def test_a_type_problem_keeps_its_parts():
    problem = TypeProblem("F0401", "m", operand="x", expected="e", got="g", fix="f")
    assert str(problem) == "m"
    assert (problem.code, problem.operand, problem.expected, problem.got, problem.fix) == (
        "F0401", "x", "e", "g", "f",
    )  # fmt: skip
    assert tensor("fp32", 1).rank == 1
