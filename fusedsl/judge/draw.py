"""Inputs from a seed, the same in every process; hard inputs; poison."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fusedsl.judge.task import BadTask, Input, Task

#: Every byte of memory that the CPU's allocator gives out while values are checked.
ALLOCATED = 0x7F

#: A NaN that no arithmetic makes, for each width; bytes of other dtypes are 0x5A.
_POISON = {
    torch.float64: (torch.int64, 0x7FF8BEEFBEEFBEEF),
    torch.float32: (torch.int32, 0x7FC0BEEF),
    torch.float16: (torch.int16, 0x7E5A),
    torch.bfloat16: (torch.int16, 0x7FDA),
}


def draw(task: Task, dims: Mapping[str, int], case: str, seed: int, device: str) -> list[Tensor]:
    """Fresh inputs of a case. The same seed gives the same values in any process on a device."""
    generator = torch.Generator(device=device).manual_seed(seed)
    drawn: list[Tensor] = []
    for position, item in enumerate(task.inputs):
        if item.is_index:
            indices = _fill_indices(item, dims, generator, device)
            harden_indices(indices, item, dims, case, seed + position)
            drawn.append(indices.to(task.dtype_of(item)))
            continue
        data = _fill(item, item.sizes(dims), generator, device)
        if not item.weight:
            harden(data, case, seed + position)
        drawn.append(data.to(task.dtype_of(item)))
    return drawn


def _fill(item: Input, shape: tuple[int, ...], generator: torch.Generator, device: str) -> Tensor:
    if not isinstance(item.fill, str):
        return _made(item, shape, generator).to(device, torch.float32).clone().contiguous()
    kind = item.fill
    if kind == "auto":
        kind = "normal" if not item.weight else "matrix" if len(shape) > 1 else "gain"
    if kind == "uniform":
        return torch.rand(shape, generator=generator, device=device)
    data = torch.randn(shape, generator=generator, device=device)
    if kind == "matrix":
        return data / max(1, data.shape[-1]) ** 0.5
    return 1 + data / 10 if kind == "gain" else data


def _made(item: Input, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """What the function of an input makes. Raises BadTask where it is no tensor of that shape."""
    assert callable(item.fill)
    made: object = item.fill(shape, generator)
    if not isinstance(made, Tensor) or tuple(made.shape) != shape:
        got = tuple(made.shape) if isinstance(made, Tensor) else type(made).__name__
        raise BadTask(f"the fill of '{item.name}' gave {got}: expected a tensor of shape {shape}")
    return made


def _fill_indices(
    item: Input, dims: Mapping[str, int], generator: torch.Generator, device: str
) -> Tensor:
    (low, high), shape = item.span(dims), item.sizes(dims)
    if isinstance(item.fill, str):
        return torch.randint(low, high, shape, generator=generator, device=device)
    made = _made(item, shape, generator)
    if made.is_floating_point():
        raise BadTask(f"'{item.name}' holds indices, and its fill gave {made.dtype}")
    return made.to(device, torch.int64).clone().contiguous()


def harden_indices(x: Tensor, item: Input, dims: Mapping[str, int], case: str, seed: int) -> None:
    """Give indices (int64) the values of a case, in place: the ends of the range and what is
    beside it in turn, or one value for all."""
    low, high = item.span(dims)
    if case == "edge_indices":
        edges = torch.tensor([low, high - 1, *item.special], device=x.device)
        places = torch.arange(x.numel(), device=x.device).reshape(x.shape)
        x.copy_(edges[(places + seed % len(edges)) % len(edges)])
    elif case == "equal_indices":
        x.fill_(low + seed % (high - low))


def harden(x: Tensor, case: str, seed: int) -> None:
    """Give an activation the values of a case, in place. Rows lie along the first axis."""
    if x.dim() == 0 or x.numel() == 0:
        return
    columns = x.shape[-1]
    row = seed % x.shape[0]
    if case == "outliers":
        x[..., seed % columns] *= 1000
        x[..., -1] *= 1000
    elif case == "zeros":
        x[seed % 3 :: 3] = 0
    elif case == "large_means":
        x[seed % 2 :: 2] += 100
    elif case == "small":
        x[seed % 2 :: 2] *= 1e-3
    elif case == "nan_rows":
        x[row].view(-1)[seed % max(1, x[row].numel())] = float("nan")
    elif case == "inf_rows":
        x[row].view(-1)[seed % max(1, x[row].numel())] = float("inf")


def poison(tensor: Tensor) -> None:
    """Fill with a NaN that can be told from any other."""
    kind, pattern = _POISON.get(tensor.dtype, (torch.uint8, 0x5A))
    tensor.view(kind).fill_(pattern)


def packed(tensor: Tensor) -> Tensor:
    """The values row by row, one beside the other. A tensor of one value may have any strides, and
    torch calls it contiguous nevertheless."""
    flat = tensor.detach().contiguous().reshape(-1)
    return (
        flat
        if flat.numel() == 0 or flat.stride(0) == 1
        else torch.empty(flat.shape, dtype=flat.dtype, device=flat.device).copy_(flat)
    )


def poisoned(tensor: Tensor) -> Tensor:
    """Where a tensor still holds poison, or what memory is filled with as it is allocated."""
    if tensor.dtype not in _POISON:
        return torch.zeros(tensor.shape, dtype=torch.bool, device=tensor.device)
    kind, pattern = _POISON[tensor.dtype]
    bits = packed(tensor).view(kind).reshape(tensor.shape)
    allocated = int.from_bytes(bytes([ALLOCATED] * kind.itemsize), "little")
    return (bits == pattern) | (bits == allocated)


def to_bytes(tensor: Tensor) -> bytes:
    """The bytes of the values, row by row."""
    return packed(tensor.cpu()).view(torch.uint8).numpy().tobytes()


def bit_sum(tensors: Sequence[Tensor]) -> Tensor:
    """The sum of the bits of all values as integers: exact, in any order."""
    sums: list[Tensor] = []
    for tensor in tensors:
        sums.append(packed(tensor).view(_POISON.get(tensor.dtype, (torch.uint8, 0))[0]).sum())
    return torch.stack(sums).sum()


def digest(tensors: Sequence[Tensor]) -> str:
    """A fingerprint of the values of several tensors."""
    made = hashlib.blake2b(digest_size=16)
    for tensor in tensors:
        made.update(to_bytes(tensor))
    return made.hexdigest()
