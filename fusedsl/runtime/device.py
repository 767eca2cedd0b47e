"""The current device: what the scheduler wants to know about it, its stream, its captures."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import torch

from fusedsl.diagnostics import Diagnostic, FusedslError
from fusedsl.runtime.load import interprets
from fusedsl.schedule import Target


def device_of(name: Any) -> torch.device:
    """A device of this process by its name, `cuda` being the current one.

    Raises FusedslError (F0507) where there is no such device.
    """
    known = ["cpu"] if interprets() else []
    known += ["cuda"] if torch.cuda.is_available() else []
    try:
        found = torch.device(name)
    except (RuntimeError, TypeError):
        found = None
    if found is None or found.type not in known:
        raise FusedslError(
            Diagnostic(
                "F0507",
                f"there is no device '{name}' here",
                expected=", ".join(known) or "a usable GPU",
                got=str(name),
                fix="leave device out, or name one of these",
            )
        )
    if found.type == "cuda" and found.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return found


@functools.cache
def target_of(device: torch.device) -> Target:
    """What kernels on this device are scheduled for."""
    if device.type != "cuda" or interprets():
        return Target.interpreter()
    props: Any = torch.cuda.get_device_properties(device)
    limit = int(getattr(props, "shared_memory_per_block_optin", 0)) or 48 * 1024
    sms = int(props.multi_processor_count)
    if torch.version.hip:
        arch = str(props.gcnArchName).split(":")[0]
        return Target.of_device("hip", arch, sms, limit)
    return Target.of_device("cuda", props.major * 10 + props.minor, sms, limit)


def on_device(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Make the tensors' device current for the block; free where it already is."""
    if device.type != "cuda" or device.index in (None, torch.cuda.current_device()):
        return contextlib.nullcontext()
    return torch.cuda.device(device)


@functools.cache
def stream_getter() -> Callable[[int], int]:
    """`device index -> raw stream` of the current stream, by the cheapest way torch offers."""
    raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    if raw is not None:
        return raw
    return lambda index: torch.cuda.current_stream(index).cuda_stream


def dynamo_guards() -> Any:
    """torch's own guards and their allocation, in C++; None in a torch without them."""
    return getattr(getattr(torch._C, "_dynamo", None), "guards", None)


@functools.cache
def device_getter() -> Callable[[], int]:
    """`() -> index` of the current device, by the cheapest way torch offers."""
    return getattr(torch._C, "_cuda_getDevice", torch.cuda.current_device)


@functools.cache
def capturing_getter() -> Callable[[], bool]:
    """`() -> whether` the current stream is being captured, by the cheapest way torch offers."""
    capturing = torch.cuda.is_current_stream_capturing
    return getattr(torch._C, "_cuda_isCurrentStreamCapturing", capturing)


def capturing(device: torch.device) -> bool:
    """Whether the current stream is being captured into a CUDA graph."""
    return device.type == "cuda" and not interprets() and torch.cuda.is_current_stream_capturing()


def refuse_in_capture(device: torch.device, what: str) -> None:
    """Raise FusedslError (F0606) if work that cannot be captured is due during a capture."""
    if not capturing(device):
        return
    raise FusedslError(
        Diagnostic(
            "F0606",
            f"{what} during a CUDA graph capture",
            expected="a program that has run on such tensors before",
            got="a cold call on a capturing stream",
            fix="call the program, or its warmup(...), once with the same shapes before the "
            "capture",
        )
    )
