from __future__ import annotations

import pytest
import torch

from fusedsl.ir import (
    MAX_DIM,
    NAME,
    NUMBERS,
    ONE,
    Dim,
    DType,
    Layout,
    TensorType,
    dtype_from_torch,
    promote,
    tensor,
)
from fusedsl.ir.types import is_fp32_range


def test_dtypes():
    assert [d.bytes for d in DType] == [2, 2, 4, 4, 8]
    assert [d.torch for d in DType] == [
        torch.bfloat16,
        torch.float16,
        torch.float32,
        torch.int32,
        torch.int64,
    ]
    assert [d.triton for d in DType] == [
        "tl.bfloat16",
        "tl.float16",
        "tl.float32",
        "tl.int32",
        "tl.int64",
    ]
    assert [d.wide_range for d in DType] == [True, False, True, True, True]
    assert list(map(str, DType)) == ["bf16", "fp16", "fp32", "i32", "i64"]
    assert dtype_from_torch(torch.float16) is DType.FP16
    assert dtype_from_torch(torch.float64) is None


def test_an_index_vector_is_a_column():
    index = tensor("i64", "M")
    assert index.is_index_vector and index.layout is Layout.COLUMN
    assert index.rows == Dim(1, "M") and index.cols == Dim(1)
    assert index.nbytes({"M": 3}) == 24
    assert not tensor("fp32", "M").is_index_vector
    assert DType.I32 not in NUMBERS and DType.FP16 in NUMBERS


@pytest.mark.parametrize("a", NUMBERS)
@pytest.mark.parametrize("b", NUMBERS)
def test_promotion_is_that_of_torch(a: DType, b: DType):
    assert promote(a, b).torch == torch.promote_types(a.torch, b.torch)
    assert promote(a) is a


@pytest.mark.parametrize(
    ("text", "dim"),
    [
        (4096, Dim(4096)),
        ("4096", Dim(4096)),
        ("M", Dim(1, "M")),
        ("1*M", Dim(1, "M")),
        (" 2 * F_1 ", Dim(2, "F_1")),
        ("0", Dim(0)),
        ("9" * 5000, Dim(MAX_DIM + 1)),
    ],
)
def test_dimensions_are_read(text: str | int, dim: Dim):
    assert Dim.parse(text) == dim
    assert Dim.parse(str(dim)) == dim


@pytest.mark.parametrize("text", ["", "M*2", "2*", "-1", "1.5", "M N", "2*3", "é", "²", "M*N"])
def test_what_is_no_dimension(text: str):
    with pytest.raises(ValueError, match="not a dimension"):
        Dim.parse(text)


def test_arithmetic_of_dimensions():
    assert Dim(6, "F").halved() == Dim(3, "F")
    assert Dim(3).halved() is None
    assert Dim(3, "F").doubled() == Dim(6, "F")
    assert Dim(3, "F").bind({"F": 5}) == 15
    assert Dim(3).bind({}) == 3
    assert Dim(3).is_static
    assert not Dim(3, "F").is_static
    with pytest.raises(KeyError):
        Dim(1, "M").bind({})
    assert sorted([Dim(2), Dim(1)]) == [Dim(1), Dim(2)]


def test_the_range_of_dimensions():
    assert Dim(1).in_range
    assert Dim(MAX_DIM).in_range
    assert not Dim(MAX_DIM + 1).in_range
    assert not Dim(0, "M").in_range


@pytest.mark.parametrize(
    ("type", "layout"),
    [
        (tensor("fp32", 1), Layout.SCALAR),
        (tensor("fp32", "N"), Layout.ROW),
        (tensor("fp32", "M", 1), Layout.COLUMN),
        (tensor("fp32", "M", 8), Layout.TILE),
    ],
)
def test_layouts(type: TensorType, layout: Layout):
    assert type.layout is layout


def test_tensor_types():
    t = tensor("bf16", "M", "2*F")
    assert str(t) == "bf16[M, 2*F]"
    assert (t.rank, t.rows, t.cols, t.symbols) == (2, Dim(1, "M"), Dim(2, "F"), ("M", "F"))
    assert t.concrete({"M": 3, "F": 4}) == (3, 8)
    assert t.nbytes({"M": 3, "F": 4}) == 48
    assert t.with_dtype(DType.FP32) == tensor(DType.FP32, "M", Dim(2, "F"))
    assert tensor("bf16", 4).rows == ONE


def test_types_are_read():
    assert TensorType.parse(" bf16 [ M,2 * F ] ") == tensor("bf16", "M", "2*F")
    for text in ("bf16", "bf16[]", "int8[4]", "bf16[4]]", "bf16[4", "bf16[a b]"):
        with pytest.raises(ValueError, match=r"."):
            TensorType.parse(text)


def test_names():
    assert NAME.fullmatch("a_1")
    assert not NAME.fullmatch("1a")
    assert not NAME.fullmatch("é")


@pytest.mark.parametrize("value", [0.0, -0.0, 1.0, -3.4028234663852886e38, 2.0**-149])
def test_literals_that_fp32_holds(value: float):
    assert is_fp32_range(value)


@pytest.mark.parametrize("value", [3.5e38, -1e39, 1e-46, float("inf"), float("nan")])
def test_literals_that_fp32_does_not_hold(value: float):
    assert not is_fp32_range(value)
