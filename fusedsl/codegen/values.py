"""How values are held in an emitted kernel: their variables and layouts."""

from __future__ import annotations

from dataclasses import dataclass

from fusedsl.codegen.templates import fragment
from fusedsl.ir import Layout, TensorType

_ORDER = (Layout.SCALAR, Layout.ROW, Layout.COLUMN, Layout.TILE)


@dataclass(frozen=True)
class Var:
    """A variable in fp32 registers and its layout."""

    name: str
    layout: Layout


@dataclass(frozen=True)
class Load:
    """A tile in its stored dtype: the variable it is loaded into, the one that it is reduced from,
    and the one that keeps it; `width` is how many columns it has, in the source."""

    pointer: str
    stride: str
    offset: str
    ahead: str
    next: str
    part: str
    width: str

    def line(self, name: str, keep: str = "") -> str:
        """The line that loads it into `name`, with a cache policy."""
        return fragment("load_part", name, self.pointer, self.stride, self.offset, keep)


def joined(layouts: list[Layout]) -> Layout:
    """Layout of an elementwise combination."""
    kinds = set(layouts)
    if Layout.TILE in kinds or {Layout.ROW, Layout.COLUMN} <= kinds:
        return Layout.TILE
    return max(kinds, key=_ORDER.index)


def halved(kind: TensorType) -> TensorType:
    """The type of one half."""
    cols = kind.cols.halved()
    assert cols is not None
    return TensorType(kind.dtype, (*kind.shape[:-1], cols))
