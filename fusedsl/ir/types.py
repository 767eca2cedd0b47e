"""Tensor types: a dtype and a shape of integer or symbolic dimensions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

import torch


class DType(str, Enum):
    """The storage types of the language. Integers are indices: nothing computes with them."""

    BF16 = "bf16"
    FP16 = "fp16"
    FP32 = "fp32"
    I32 = "i32"
    I64 = "i64"

    @property
    def bytes(self) -> int:
        """Size of one element in bytes."""
        return self.torch.itemsize

    @property
    def is_index(self) -> bool:
        """Whether its values name columns (i32, i64) and are not numbers to compute with."""
        return self in (DType.I32, DType.I64)

    @property
    def torch(self) -> torch.dtype:
        """The torch dtype."""
        return _TORCH[self]

    @property
    def triton(self) -> str:
        """The Triton dtype as it is written in emitted source."""
        return _TRITON[self]

    @property
    def wide_range(self) -> bool:
        """Whether the exponent range is fp32's (bf16, fp32); fp16 ends at 65,504."""
        return self is not DType.FP16

    def __str__(self) -> str:
        return self.value


_TORCH = {
    DType.BF16: torch.bfloat16,
    DType.FP16: torch.float16,
    DType.FP32: torch.float32,
    DType.I32: torch.int32,
    DType.I64: torch.int64,
}
_TRITON = {
    DType.BF16: "tl.bfloat16",
    DType.FP16: "tl.float16",
    DType.FP32: "tl.float32",
    DType.I32: "tl.int32",
    DType.I64: "tl.int64",
}

#: The dtypes that blocks compute with.
NUMBERS = tuple(d for d in DType if not d.is_index)
_FROM_TORCH = {value: key for key, value in _TORCH.items()}


def dtype_from_torch(dtype: torch.dtype) -> DType | None:
    """The language's dtype for a torch dtype, or None where the language has none."""
    return _FROM_TORCH.get(dtype)


def promote(*dtypes: DType) -> DType:
    """torch's promotion between tensors of numbers: equal stays, any mixture is fp32."""
    first = dtypes[0]
    return first if all(d is first for d in dtypes) else DType.FP32


#: What a name looks like: values, kernels and symbols of dimensions.
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

#: The largest integer in a dimension.
MAX_DIM = 2**31 - 1

#: Magnitudes of number literals: what fp32 holds, subnormals included.
_SMALLEST, _LARGEST = 2.0**-149, (2 - 2.0**-23) * 2.0**127


def is_fp32_range(value: float) -> bool:
    """Whether a literal is neither infinite, nor NaN, nor lost in fp32."""
    return value == 0 or _SMALLEST <= abs(value) <= _LARGEST


_DIM = re.compile(
    rf"\s*(?:(?P<size>[0-9]+)|(?:(?P<factor>[0-9]+)\s*\*\s*)?(?P<symbol>{NAME.pattern}))\s*"
)


def _integer(digits: str) -> int:
    return int(digits) if len(digits) <= 20 else MAX_DIM + 1


@dataclass(frozen=True, order=True)
class Dim:
    """`factor * symbol`, or the integer `factor` where there is no symbol."""

    factor: int
    symbol: str | None = None

    def __str__(self) -> str:
        if self.symbol is None:
            return str(self.factor)
        return self.symbol if self.factor == 1 else f"{self.factor}*{self.symbol}"

    @property
    def is_static(self) -> bool:
        """Whether the value is known without a call."""
        return self.symbol is None

    def bind(self, env: Mapping[str, int]) -> int:
        """The value under `env`. Raises KeyError for an unbound symbol."""
        return self.factor if self.symbol is None else self.factor * env[self.symbol]

    def halved(self) -> Dim | None:
        """Half of it where that is exact, else None."""
        return Dim(self.factor // 2, self.symbol) if self.factor % 2 == 0 else None

    def doubled(self) -> Dim:
        """Twice this dimension."""
        return Dim(2 * self.factor, self.symbol)

    @property
    def in_range(self) -> bool:
        """Whether the integer lies in 1 ... `MAX_DIM`."""
        return 1 <= self.factor <= MAX_DIM

    @staticmethod
    def parse(text: str | int) -> Dim:
        """Read `4096`, `M` or `2*F`. Raises ValueError for anything else.

        The integer may be out of range; see `in_range`.
        """
        if isinstance(text, int):
            return Dim(text)
        match = _DIM.fullmatch(text)
        if match is None:
            raise ValueError(f"not a dimension: {text!r}")
        return Dim(_integer(match["size"] or match["factor"] or "1"), match["symbol"])


class Layout(Enum):
    """How a value lies against a tile of rows and columns."""

    SCALAR = "scalar"
    ROW = "row vector"  # [N]: one value per column, shared by all rows
    COLUMN = "column vector"  # [M, 1]: one value per row
    TILE = "tile"  # [M, N]


ONE = Dim(1)

_TYPE = re.compile(r"\s*(?P<dtype>\w+)\s*\[(?P<shape>[^\]]*)\]\s*")


@dataclass(frozen=True)
class TensorType:
    """`bf16[M, 4096]`. Rank 1 is a row vector, `[M, 1]` a column vector, else a tile.

    Indices are one per row: `i64[M]` is a column vector.
    """

    dtype: DType
    shape: tuple[Dim, ...]

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def layout(self) -> Layout:
        """Scalar, row vector, column vector or tile."""
        if self.is_index_vector:
            return Layout.COLUMN
        if self.rank == 1:
            return Layout.SCALAR if self.shape[0] == ONE else Layout.ROW
        return Layout.COLUMN if self.shape[-1] == ONE else Layout.TILE

    @property
    def is_index_vector(self) -> bool:
        """Whether it holds one column number per row: `i32[M]` or `i64[M]`."""
        return self.dtype.is_index and self.rank == 1

    @property
    def rows(self) -> Dim:
        """Rows of the tile (1 for a row vector)."""
        return self.shape[0] if self.rank == 2 or self.is_index_vector else ONE

    @property
    def cols(self) -> Dim:
        """Columns of the tile."""
        return ONE if self.is_index_vector else self.shape[-1]

    @property
    def symbols(self) -> tuple[str, ...]:
        """Symbols in order of appearance."""
        return tuple(d.symbol for d in self.shape if d.symbol is not None)

    @staticmethod
    def parse(text: str) -> TensorType:
        """Read `bf16[M, 4096]`. Raises ValueError for anything else."""
        match = _TYPE.fullmatch(text)
        if match is None:
            raise ValueError(f"not a tensor type: {text!r}")
        return tensor(match["dtype"], *match["shape"].split(","))

    def with_dtype(self, dtype: DType) -> TensorType:
        """The same shape in another dtype."""
        return TensorType(dtype, self.shape)

    def concrete(self, env: Mapping[str, int]) -> tuple[int, ...]:
        """The shape under `env`."""
        return tuple(d.bind(env) for d in self.shape)

    def nbytes(self, env: Mapping[str, int]) -> int:
        """Size in bytes under `env`."""
        total = self.dtype.bytes
        for size in self.concrete(env):
            total *= size
        return total


def tensor(dtype: DType | str, *shape: Dim | int | str) -> TensorType:
    """Shorthand: `tensor("bf16", "M", 4096)`."""
    dims = tuple(d if isinstance(d, Dim) else Dim.parse(d) for d in shape)
    return TensorType(DType(dtype), dims)
