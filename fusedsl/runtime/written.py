"""The text of a prepared call.

A call of two short kernels spends as much time in Python as in one launch, most of it on loops over
one or two things and on looking attributes up. So the function is written for the numbers of
tensors, outputs and launches that it has, and what it knows of them are its globals.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from types import CodeType, SimpleNamespace
from typing import Any

from torch import Tensor
from triton import knobs

from fusedsl.runtime.device import dynamo_guards

_CALL = """
def call(binding, tensors):
    try:
        {tensors} = tensors
        {pointers} = {addresses}
        if {phases} or not same({given}):
            if {differ}:
                return None
        {held}
        for weight, pointer, version in binding.watched:
            if weight.data_ptr() != pointer or (version >= 0 and weight._version != version):
                return None
    except (AttributeError, RuntimeError, TypeError, ValueError):  # said on the long way
        return None
    if epoch is not binding.epoch or (binding.graded and graded()) or current() != index:
        return None
    if (
        runtime.launch_enter_hook is not enter
        or runtime.launch_exit_hook is not leave
        or enter.calls
        or leave.calls
    ) and hooked():
        return None
    stream = stream_of(index)
    if stream and capturing():  # the legacy stream, 0, cannot be captured
        return None
    if stream not in binding.ordered:
        binding.wait(stream)
    try:
        lane = lanes[stream].pop()
    except (KeyError, IndexError):
        lane = lane_of(stream)
    try:
        packed = packed_of.get(lane) or packed_for(lane)
        {workspace}
        {outputs}= {allocations}
        pointers = ({inputs}{results})
        {launches}
    finally:
        lanes[stream].append(lane)
    return {outputs}
"""

_DIFFER = """(
                t{i}.shape != shape{i}
                or t{i}.stride() != stride{i}
                or t{i}.dtype is not dtype{i}
                or t{i}.device != device{i}
                or p{i} & 15 != phase{i}
                or (t{i}.requires_grad and graded())
            )"""

_HELD = """if held{i}() is not t{i} or p{i} != place{i} or t{i}._version != version{i}:
            return None
"""

_WORKSPACE = """workspace = allocate((size,), (1,), uint8)
        base = workspace.data_ptr()
        if packed.base != base:
            place(packed, base)
"""

_LAUNCHES = """if packed.seen != pointers:
            packed.move(pointers)
        {calls}= packed.calls
        {each}
"""

_LAUNCH = """status = launch(*c{i}, None)
        if status:
            again(status, *c{i})
"""

_REPLAY = """graphs = packed.graphs
        graph = graphs.handles.get(pointers)
        if graph is not None:
            status = replay(graph, graphs.stream)
            if status:
                replay_again(status, graph, graphs.stream)
            return {outputs}
        {launches}
        graphs.launched(pointers)
"""


def written(
    tensors: int,
    held: Sequence[int],
    outputs: int,
    launches: int,
    *,
    large: bool = False,
    replayed: bool = False,
) -> str:
    """The text of `call(binding, tensors)`.

    `held` are the tensors that must stay the same objects. A `large` workspace is allocated by the
    call; others belong to the lane. A `replayed` call uses graphs (`replay`).
    """

    def each(text: str, over: Sequence[int], between: str = "") -> str:
        return between.join(text.format(i=i) for i in over)

    inputs, results = range(tensors), range(outputs)
    made = each("o{i}, ", results)
    calls = each("c{i}, ", range(launches))
    text = _LAUNCHES.format(calls=calls, each=each(_LAUNCH, range(launches), " " * 8))
    if replayed:
        text = _REPLAY.format(outputs=made, launches=text)
    return _CALL.format(
        tensors=each("t{i}, ", inputs) or "()",
        given=each("t{i}, ", inputs),
        pointers=each("p{i}, ", inputs) or "()",
        inputs=each("p{i}, ", inputs),
        addresses=each("t{i}.data_ptr(), ", inputs) or "()",
        phases=each("p{i} & 15 != phase{i}", inputs, " or ") or "False",
        differ=each(_DIFFER, inputs, " or ") or "False",
        held=each(_HELD, held, " " * 8),
        workspace=_WORKSPACE if large else "",
        outputs=made,
        allocations=each("allocate(new_shape{i}, new_strides{i}, new_dtype{i}), ", results),
        results=each("o{i}.data_ptr(), ", results),
        launches=text,
    )


@functools.cache
def code(
    tensors: int, held: tuple[int, ...], outputs: int, launches: int, large: bool, replayed: bool
) -> CodeType:
    """`written`, compiled once for every call of the same numbers."""
    text = written(tensors, held, outputs, launches, large=large, replayed=replayed)
    return compile(text, "<a prepared call>", "exec")


def same_layouts(tensors: Sequence[Tensor]) -> Callable[..., bool]:
    """`(*tensors) -> whether` they certainly have the layouts, dtypes and device of these and need
    no gradient, by torch's own check; it also refuses what only differs in its dispatch keys."""
    guards = dynamo_guards()
    try:
        if not any(tensor.requires_grad for tensor in tensors):
            made = guards.TensorGuards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None)
            if made.check(*tensors):
                return made.check
    except (AttributeError, TypeError, RuntimeError):
        pass
    return lambda *tensors: False


def hooks() -> tuple[Any, Any]:
    """Triton's chains of hooks before and after a launch; in place of anything else something that
    sends every call to `hooked`."""
    unknown = SimpleNamespace(calls=(None,))
    chains = knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook
    enter, leave = (chain if hasattr(chain, "calls") else unknown for chain in chains)
    return enter, leave
