"""The launches of a prepared call as one CUDA graph, for addresses that come again.

A caching allocator gives a loop the same addresses in every round. When a call has been launched a
few times with the very same ones, its launches are captured (nothing runs then, and no other
stream or thread notices), and the next call with them is one `cuGraphLaunch`. The graph belongs to
the lane, hence to one stream; what makes a prepared call hold makes its graphs hold.

Kernels that may begin before the one ahead has ended do so within a graph, not from one call to
the next.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from ctypes import c_int, c_uint, c_uint64, c_void_p
from functools import cache
from typing import Any

from fusedsl.runtime import driver

#: How often a call runs with the same addresses before it is captured.
_OFTEN = 3
#: Graphs kept for a lane of a prepared call, and sets of addresses counted. A graph takes some
#: ten kilobytes of the device.
_GRAPHS, _COUNTED = 4, 16
#: Graphs that may give way to others: a caller that goes round more addresses than are kept would
#: capture on every call.
_REPLACED = 8

_NON_BLOCKING = 1
_RELAXED = 2


@cache
def _library() -> Any:
    """The driver's functions for graphs, or None where one is missing."""
    found = driver.library()
    names = {
        "cuStreamCreate": (c_void_p, c_uint),
        "cuStreamDestroy_v2": (c_void_p,),
        "cuStreamBeginCapture_v2": (c_void_p, c_int),
        "cuStreamEndCapture": (c_void_p, c_void_p),
        "cuThreadExchangeStreamCaptureMode": (c_void_p,),
        "cuGraphInstantiateWithFlags": (c_void_p, c_void_p, c_uint64),
        "cuGraphDestroy": (c_void_p,),
        "cuGraphExecDestroy": (c_void_p,),
    }
    try:
        for name, takes in names.items():
            function = getattr(found, name)
            function.argtypes, function.restype = takes, c_int
        getattr(found, "cuGraphLaunch").restype = c_int  # noqa: B009
    except AttributeError:
        return None
    return found


def launcher() -> Callable[[c_void_p, c_void_p], int]:
    """`(graph, stream) -> status`, unchecked."""
    return _library().cuGraphLaunch


def usable() -> bool:
    """Whether the driver has what is needed."""
    return driver.library() is not None and _library() is not None


class Graph:
    """An instantiated graph; it is destroyed with this object, after its last run has ended."""

    __slots__ = ("handle",)

    def __init__(self, handle: int):
        self.handle = c_void_p(handle)

    def __del__(self) -> None:
        _library().cuGraphExecDestroy(self.handle)


class Graphs:
    """The graphs of a prepared call on one lane, by the call's addresses."""

    def __init__(self, launches: Sequence[driver.Packed], stream: int):
        self._launches = launches
        #: What `launcher` takes.
        self.stream = c_void_p(stream)
        self._home = stream
        self._counts: dict[tuple[int, ...], int] = {}
        self._known: dict[tuple[int, ...], Graph] = {}
        #: Addresses → what `launcher` takes, for those that have a graph.
        self.handles: dict[tuple[int, ...], c_void_p] = {}
        self._refused = False
        self._replaced = 0

    def launched(self, pointers: tuple[int, ...]) -> None:
        """The launches were made with these addresses, and are still packed so."""
        count = self._counts.pop(pointers, 0) + 1
        if self._refused or count < _OFTEN:
            self._counts[pointers] = count
            if len(self._counts) > _COUNTED:
                self._counts.pop(next(iter(self._counts)))
            return
        if len(self._known) >= _GRAPHS:
            self._replaced += 1
            self._refused = self._replaced > _REPLACED
            if self._refused:
                return
        try:
            made = self._captured()
        except RuntimeError:  # this driver, or these kernels: stay with single launches
            self._refused = True
            return
        if len(self._known) >= _GRAPHS:
            oldest = next(iter(self._known))
            del self.handles[oldest], self._known[oldest]
        self._known[pointers], self.handles[pointers] = made, made.handle

    def _captured(self) -> Graph:
        """The launches as they are packed, in a graph of their own."""
        api, stream, graph, made = _library(), c_void_p(), c_void_p(), c_void_p()
        mode = c_int(_RELAXED)
        check, at = driver.check, ctypes.addressof
        check(api.cuThreadExchangeStreamCaptureMode(at(mode)), "cuThreadExchangeStreamCaptureMode")
        try:
            check(api.cuStreamCreate(at(stream), _NON_BLOCKING), "cuStreamCreate")
            check(api.cuStreamBeginCapture_v2(stream, _RELAXED), "cuStreamBeginCapture")
            try:
                self._launch(stream.value or 0)
            finally:
                status = api.cuStreamEndCapture(stream, at(graph))
            check(status, "cuStreamEndCapture")
            status = api.cuGraphInstantiateWithFlags(at(made), graph, 0)
            check(status, "cuGraphInstantiateWithFlags")
        finally:
            if graph.value:
                api.cuGraphDestroy(graph)
            if stream.value:
                api.cuStreamDestroy_v2(stream)
            api.cuThreadExchangeStreamCaptureMode(at(mode))
        return Graph(made.value or 0)

    def _launch(self, stream: int) -> None:
        launch = driver.launcher()
        try:
            for packed in self._launches:
                packed.on(stream)
                driver.check(launch(*packed.call, None), "cuLaunchKernelEx")
        finally:
            for packed in self._launches:
                packed.on(self._home)
