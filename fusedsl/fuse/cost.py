"""The cost model: bytes through device memory, with a launch counted as the bytes it costs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from fusedsl.ir import Dim, TensorType

#: Rows a symbolic leading dimension stands for while costs are compared.
NOMINAL_ROWS = 4096
#: Any other symbolic dimension.
NOMINAL_COLUMNS = 4096


@dataclass(frozen=True)
class CostModel:
    """Prices in bytes.

    `launch` is one kernel launch: about 3 µs at 4 TB/s. `dims` overrides the nominal size of
    symbolic dimensions.
    """

    launch: int = 12_000_000
    dims: Mapping[str, int] = field(default_factory=dict[str, int])

    def size(self, dim: Dim, nominal: int) -> int:
        """The dimension, or its nominal value."""
        if dim.symbol is None:
            return dim.factor
        return dim.factor * self.dims.get(dim.symbol, nominal)

    def nbytes(self, value: TensorType) -> int:
        """Bytes of one value."""
        total = value.dtype.bytes * self.size(value.cols, NOMINAL_COLUMNS)
        return total * (self.size(value.rows, NOMINAL_ROWS) if value.rank == 2 else 1)

    def total(self, values: Iterable[TensorType]) -> int:
        """Bytes of several values."""
        return sum(self.nbytes(value) for value in values)

    def recompute_pays(
        self, value: TensorType, leaves: list[TensorType], missing: list[list[TensorType]]
    ) -> bool:
        """Whether computing `value` again in each reader beats storing it once.

        `leaves` are the stored tiles it is computed from; `missing` are, for each reader, those
        that the reader would have to load just for this.
        """
        again = sum(self.total(extra) for extra in missing)
        stored = self.total(leaves) + self.nbytes(value) * (1 + len(missing)) + self.launch
        return again <= stored
