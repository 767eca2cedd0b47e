"""Gluon's tensor descriptors: those of triton with the layout of the box in shared memory.

Gluon is imported by the first use, not by this module: most programs need none.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Sequence
from typing import Any

import torch


@functools.cache
def descriptor_class() -> Any:
    """The class of its descriptors for Hopper."""
    return importlib.import_module("triton.experimental.gluon.nvidia.hopper").TensorDescriptor


@functools.cache
def _layout(block_shape: tuple[int, ...], dtype: torch.dtype) -> Any:
    language = importlib.import_module("triton.experimental.gluon.language")
    element = getattr(language, str(dtype).removeprefix("torch."))
    return language.NVMMASharedLayout.get_default_for(list(block_shape), element)


def layout_of(block_shape: Sequence[int], dtype: torch.dtype) -> Any:
    """The layout of a box in shared memory."""
    return _layout(tuple(block_shape), dtype)


def is_laid_out(arg: Any) -> bool:
    """Whether an argument is one of its descriptors."""
    return hasattr(arg, "layout") and hasattr(arg, "block_shape")
