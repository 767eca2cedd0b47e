"""Weights that are given with every call, recognised when they come again."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from fusedsl.runtime.binding import Binding, Stamp


@dataclass(frozen=True)
class WeightSet:
    """Weights given per call, held weakly, and what was folded from them."""

    weights: tuple[Callable[[], Any], ...]
    stamps: tuple[Stamp, ...]
    binding: Binding = field(repr=False)

    @staticmethod
    def of(folded: Sequence[tuple[str, Tensor]], binding: Binding) -> WeightSet:
        """Remember these weights."""
        return WeightSet(
            tuple(weakref.ref(t) for _, t in folded),
            tuple(Stamp.of(t) for _, t in folded),
            binding,
        )

    def matches(self, folded: Sequence[tuple[str, Any]]) -> bool:
        """Whether these are the same objects, unchanged. Inference tensors never are: their
        changes cannot be noticed."""
        return all(
            ref() is tensor and stamp.version >= 0 and Stamp.of(tensor) == stamp
            for (_, tensor), ref, stamp in zip(folded, self.weights, self.stamps, strict=True)
        )

    def alive(self) -> bool:
        """Whether the weights still exist."""
        return all(ref() is not None for ref in self.weights)
