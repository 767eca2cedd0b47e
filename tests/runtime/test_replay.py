"""Calls replayed as graphs, with a driver that writes down what is captured and launched."""

from __future__ import annotations

import pytest

from tests.runtime.test_prepared import play

CODE = """
    import os
    from fusedsl.runtime import replay
    graphs, capturing, destroyed, failing = {}, [], [], []
    modes = [0]
    def begin(stream, mode):
        if failing:
            return failing[0]
        capturing.append((stream.value, mode, len(fast)))
        return 0
    def end(stream, graph):
        at, mode, first = capturing.pop()
        assert at == stream.value == 900 and mode == 2 and not capturing
        number = 5000 + len(graphs)
        graphs[number] = fast[first:]
        del fast[first:]
        ctypes.c_uint64.from_address(graph).value = number
        return 0
    def exchange(mode):
        cell = ctypes.c_int.from_address(mode)
        modes[0], cell.value = cell.value, modes[0]
        return 0
    def give(value):
        def into(found, *rest):
            ctypes.c_uint64.from_address(found).value = value
            return 0
        return into
    def instantiate(made, graph, flags):
        ctypes.c_uint64.from_address(made).value = graph.value
        return 0
    replayed = []
    def launch_graph(graph, stream):
        if not now.context:
            return 201
        replayed.append((graph.value, stream.value))
        return 0
    api = dict(cuStreamCreate=give(900), cuStreamDestroy_v2=lambda stream: 0,
        cuStreamBeginCapture_v2=begin, cuStreamEndCapture=end,
        cuThreadExchangeStreamCaptureMode=exchange, cuGraphInstantiateWithFlags=instantiate,
        cuGraphDestroy=lambda graph: 0,
        cuGraphExecDestroy=lambda graph: destroyed.append(graph.value) or 0,
        cuGraphLaunch=launch_graph)
    for name, function in api.items():
        setattr(library, name, function)

    # the same addresses on every call, as a caching allocator gives them
    pool = {}
    def allocator():
        def allocate(shape, strides, dtype):
            key = (tuple(shape), dtype, len(held))
            if key not in pool:
                pool[key] = torch.empty_strided(shape, strides, dtype=dtype)
            return pool[key]
        return allocate
    held = []
    prepared.allocator = allocator
    def told(call):
        before = len(fast), len(replayed)
        call()
        return [len(fast) - before[0], len(replayed) - before[1]]

    out = {}
    bound(x)
    out["at first"] = [told(lambda: bound(x)) for _ in range(5)]
    single = fast[:2]
    (made,) = graphs.values()
    out["alike"] = [{**f, "stream": 0} for f in made] == [{**f, "stream": 0} for f in single]
    out["captured on"] = sorted({f["stream"] for f in made})
    out["replayed"] = replayed[-1] == (5000, 7)
    out["mode"] = modes[0]
    held.append(1)  # another output
    out["another output"] = [told(lambda: bound(x)) for _ in range(5)]
    held.clear()
    out["the first again"] = told(lambda: bound(x))
    now.capturing = True
    out["in a capture"] = told(lambda: bound(x))
    now.capturing = False
    now.context = 0
    out["no context"] = [told(lambda: bound(x)), now.context]
    now.stream = 8
    out["another stream"] = [told(lambda: bound(x)) for _ in range(5)], replayed[-1][1]
    now.stream = 7
    for count in range(2, 9):
        held[:] = range(count)
        for _ in range(4):
            bound(x)
    out["destroyed"] = len(destroyed)
    out["made"] = len(graphs)
    now.stream, before = 9, len(graphs)
    for count in range(20, 50):
        held[:] = range(count)
        for _ in range(4):
            bound(x)
    out["gone round"] = len(graphs) - before
    now.stream = 7
    held.clear()
    weights["w_down"].data = weights["w_down"].data.clone()
    bound(x)
    out["a moved weight"] = told(lambda: bound(x))
    out["new place"] = weights["w_down"].data_ptr() in fast[-1]["values"]
    failing.append(900)
    out["no capture"] = [told(lambda: bound(x)) for _ in range(6)]
    print(json.dumps(out))
"""


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    return play(CODE, tmp_path_factory.mktemp("replay"))


def test_the_same_addresses_are_replayed_after_a_few_calls(seen):
    assert seen["at first"] == [[2, 0], [2, 0], [2, 0], [0, 1], [0, 1]]
    assert seen["alike"] and seen["captured on"] == [900] and seen["replayed"]
    assert seen["mode"] == 0


def test_others_are_launched_one_by_one(seen):
    assert seen["another output"] == [[2, 0], [2, 0], [2, 0], [0, 1], [0, 1]]
    assert seen["the first again"] == [0, 1]
    assert seen["in a capture"] == [0, 0]
    assert seen["another stream"] == [[[2, 0], [2, 0], [2, 0], [0, 1], [0, 1]], 8]


def test_a_thread_without_a_context_gets_one(seen):
    assert seen["no context"] == [[0, 1], 77]


def test_few_graphs_are_kept(seen):
    assert seen["made"] - seen["destroyed"] == 5  # four on one stream, one on the other


def test_a_caller_that_goes_round_many_addresses_stops_capturing(seen):
    assert seen["gone round"] == 4 + 8


def test_a_weight_that_moved_is_read_where_it_lies(seen):
    assert seen["a moved weight"] == [2, 0] and seen["new place"]


def test_a_capture_that_fails_is_not_tried_again(seen):
    assert seen["no capture"] == [[2, 0]] * 6
