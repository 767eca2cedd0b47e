"""Calls that have run before, with a CUDA driver that writes down what it is asked to launch.

The kernels are the real ones, compiled for sm_90, and the driver holds the parameters it is given
against the parameters that their PTX declares. As in `test_launch`, CPU tensors stand in for CUDA
tensors, in a process of its own.
"""

from __future__ import annotations

import pytest

from tests.runtime.test_launch import run

FAKE = """
    import ctypes, re, types
    from pathlib import Path
    import fusedsl.runtime.driver as cuda
    import fusedsl.runtime.prepared as prepared

    texts, fast = {}, []
    now = types.SimpleNamespace(device=None, stream=7, capturing=False, status=[], during=None,
        context=77)
    def note(module, function, name, group, hash):
        path = next(p for n, p in group.items() if n.endswith(".ptx"))
        texts[function] = Path(path).read_text()
    triton.knobs.runtime.kernel_load_end_hook.add(note)

    def declared(text):
        inside = text[text.index(".entry"):]
        inside = inside[inside.index("(") + 1 : inside.index(")")]
        lines = [line for line in inside.split(chr(10)) if ".param" in line]
        widths = {"u64": 8, "s64": 8, "b64": 8, "u32": 4, "s32": 4, "b32": 4}
        arrays = [re.search(r"\\[(\\d+)\\]", line) for line in lines]
        return [int(array[1]) if array else widths[re.search(r"[.]([usb][36][24])", line)[1]]
                for line, array in zip(lines, arrays)]

    class Library:
        def cuFuncGetParamInfo(self, function, index, offset, size):
            known = declared(texts[function])
            if index >= len(known):
                return 1
            ctypes.c_size_t.from_address(size).value = known[index]
            return 0
        def cuTensorMapEncodeTiled(self, made, kind, rank, pointer, *rest):
            assert made % 64 == 0
            if now.context == 0:
                return 201
            ctypes.c_uint64.from_address(made).value = pointer
            return 0
        def cuLaunchKernelEx(self, config, function, params, extra):
            config, function, params = config.value, function.value, params.value
            status = now.status.pop(0) if now.status else 0 if now.context else 201
            if status:
                return status
            known = declared(texts[function])
            at = (ctypes.c_uint64 * len(known)).from_address(params)
            kinds = {4: ctypes.c_int32, 8: ctypes.c_int64, 128: ctypes.c_int64}
            config = cuda._Config.from_address(config)
            marks = (cuda._Attribute * config.count).from_address(config.attributes or 0) \\
                if config.count else []
            fast.append(dict(
                grid=list(config.grid), block=list(config.block), shared=config.shared,
                stream=config.stream, marks=[m.id for m in marks],
                values=[kinds[n].from_address(p).value for n, p in zip(known, at)]))
            if now.during:
                todo, now.during = now.during, None
                todo()
            return 0
        def cuGetErrorString(self, status, text):
            return 1
        def cuCtxGetCurrent(self, found):
            ctypes.c_uint64.from_address(found).value = now.context
            return 0
        def cuCtxSetCurrent(self, context):
            now.context = context
            return 0

    library = Library()
    cuda.library = lambda: library
    prepared.device_getter = lambda: lambda: now.device
    prepared.stream_getter = lambda: lambda index: now.stream
    prepared.capturing_getter = lambda: lambda: now.capturing
    prepared.allocator = lambda: lambda shape, strides, dtype: torch.empty_strided(
        shape, strides, dtype=dtype)
    bound = program.bind(weights)

    def counts(call):
        # how many launches went through Triton, and how many straight to the driver
        before = len(launches), len(fast)
        call()
        return [len(launches) - before[0], len(fast) - before[1]]
"""


def play(code: str, tmp_path):
    lines = [*FAKE.splitlines(), *code.splitlines()]
    return run("\n".join(line.removeprefix("    ") for line in lines), tmp_path)


SCENARIO = """
    out = {}
    out["cold"] = counts(lambda: bound(x))
    slow = launches[-len(bound.program.kernels):]
    out["warm"] = counts(lambda: out.update(y=bound(x).data_ptr()))
    out["slow"] = []
    recipe = list(bound._binding.recipes.values())[-1]
    for launch, (gx, gy, gz, stream, function, args) in zip(recipe.launches, slow):
        values = []
        kinds = triton_kinds(launch)
        for kind, value in zip(kinds, args[4:], strict=True):
            if kind == "constexpr":
                continue
            if kind.startswith("tensordesc"):
                values += [value.base.data_ptr(), *value.shape, *value.strides]
            else:
                values.append(value)
        out["slow"].append(dict(grid=[gx, gy, gz], stream=stream, values=[*values, 0, 0]))
    out["fast"] = fast[:]
    out["known"] = [t.data_ptr() for t in (x, *bound._binding.values.values())]

    other = torch.randn(100, 64).bfloat16()
    out["another tensor"] = counts(lambda: bound(other))
    out["its pointer"] = other.data_ptr() in fast[0 - len(slow)]["values"]
    out["no longer"] = x.data_ptr() in [v for f in fast[-len(slow):] for v in f["values"]]
    out["by name"] = counts(lambda: bound(x=x))

    def bases():
        return sorted({v for f in fast[-len(slow):] for v in f["values"] if v > 1 << 20})

    # lanes
    bound(x)
    first = set(bases())
    inner = []
    def nested():
        bound(x)
        inner.extend(bases())
    now.during = nested
    held = bound(x)
    lanes = prepared.lanes_of(None)
    out["lanes after a call inside a call"] = len(lanes[7])
    a, b = lanes[7]
    inside = lambda lane, values: any(
        lane.base <= v < lane.base + prepared.LANE_BYTES for v in values)
    out["inner lanes"] = [inside(a, inner), inside(b, inner)]
    now.stream = 8
    bound(x)
    out["other stream"] = [inside(a, bases()), inside(b, bases()), len(lanes[8])]
    out["streams told"] = sorted({f["stream"] for f in fast[-len(slow):]})
    now.stream = 7

    # what makes a call take the long way
    last = len(slow)
    def refusal(name, call):
        bound(x)
        out["refused"][name] = counts(call)
        out["again"][name] = counts(lambda: bound(x))
    out["refused"], out["again"] = {}, {}
    refusal("rows", lambda: bound(torch.zeros(3, 64).bfloat16()))
    refusal("stride", lambda: bound(torch.zeros(100, 128).bfloat16()[:, :64]))
    refusal("alignment", lambda: bound(torch.zeros(100 * 64 + 1).bfloat16()[1:].view(100, 64)))
    now.device = 1
    out["other device"] = counts(lambda: bound(x))
    now.device, now.capturing = None, True
    out["capture"] = counts(lambda: bound(x))
    now.stream = 0
    out["legacy stream"] = counts(lambda: bound(x))
    now.stream, now.capturing = 7, False
    hook = lambda *args: None
    triton.knobs.runtime.launch_enter_hook.add(hook)
    out["hooked"] = counts(lambda: bound(x))
    triton.knobs.runtime.launch_enter_hook.remove(hook)
    out["unhooked"] = counts(lambda: bound(x))

    def code_of(call):
        try:
            call()
        except fusedsl.FusedslError as error:
            return error.diagnostics[0].code
        return None
    out["codes"] = [code_of(c) for c in (
        lambda: bound(x.float()), lambda: bound(x[:, :63]), lambda: bound(x, x),
        lambda: bound(x.clone().requires_grad_()), lambda: bound(None), lambda: bound("x"),
        lambda: bound([x]))]

    # weights
    with torch.no_grad():
        weights["w_up"].mul_(2)
    folded = [n for n in bound._binding.values if n not in weights]
    kept = {n: bound._binding.values[n].clone() for n in folded}
    out["edited"] = counts(lambda: bound(x))
    out["refolded"] = any(not torch.equal(kept[n], bound._binding.values[n]) for n in folded)
    out["after"] = counts(lambda: bound(x))
    weights["w_down"].data = weights["w_down"].data.clone()
    out["moved"] = counts(lambda: bound(x))
    out["moved, after"] = counts(lambda: bound(x))
    out["new place"] = weights["w_down"].data_ptr() in fast[-1]["values"]

    # weights given per call
    args = [given[p.name] for p in program.graph().params]
    program(*args)
    out["given"] = counts(lambda: program(*args))
    with torch.no_grad():
        given["gain"].add_(1)
    out["given, edited"] = counts(lambda: program(*args))
    copies = [a.clone() for a in args]
    out["given, others"] = counts(lambda: program(*copies))

    # failures
    bound(x)
    now.context = 0
    out["no context"] = counts(lambda: bound(x))
    out["entered"] = [now.context]
    now.context, elsewhere = 0, torch.randn(100, 64).bfloat16()
    out["no context, another tensor"] = counts(lambda: bound(elsewhere))
    out["entered"].append(now.context)
    now.context, now.stream = 0, 9
    out["no context, another stream"] = counts(lambda: bound(x))
    out["entered"].append(now.context)
    now.stream = 7
    now.status = [700]
    try:
        bound(x)
    except RuntimeError as error:
        out["failure"] = str(error)
    out["lanes after all"] = len(lanes[7])
    out["kernels"] = last

    # another binary than expected, and launches that do not wait for their predecessor's end
    def compiled_with(pdl, wrong):
        from fusedsl.runtime import configure
        plain, sizes = configure.choose, cuda.parameter_sizes
        configure.choose = lambda *args: replace(plain(*args), pdl=pdl)
        cuda.parameter_sizes = lambda *args: sizes(*args)[wrong:]
        try:
            made = fusedsl.compile(str(program.graph())).bind(weights)
            made(x)
            found = counts(lambda: made(x)), fast[-1]["marks"]
        finally:
            configure.choose, cuda.parameter_sizes = plain, sizes
        return found
    from dataclasses import replace
    out["dependent"] = compiled_with(True, 0)
    out["unknown binary"] = compiled_with(False, 1)

    import timeit
    bound(x)
    bound._last[0].__globals__["launch"] = lambda *args: 0
    out["microseconds"] = min(timeit.repeat(lambda: bound(x), number=1000, repeat=5)) * 1000
    print(json.dumps(out))
"""
KINDS = """
    def triton_kinds(launch):
        (caches, *_), = [c for c in launch.kernel.fn.device_caches.values()]
        return list(next(iter(caches.values())).src.signature.values())
"""


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    return play(KINDS + SCENARIO, tmp_path_factory.mktemp("prepared"))


def test_the_second_call_goes_straight_to_the_driver(seen):
    kernels = seen["kernels"]
    assert kernels == 2
    assert seen["cold"] == [kernels, 0]
    for name in ("warm", "another tensor", "by name", "unhooked", "legacy stream", "after"):
        assert seen[name] == [0, kernels], name


def test_every_parameter_is_what_tritons_launcher_is_given(seen):
    known = set(seen["known"])
    for slow, fast in zip(seen["slow"], seen["fast"], strict=True):
        assert fast["grid"] == slow["grid"] and fast["stream"] == slow["stream"]
        assert fast["marks"] == [] and fast["block"][1:] == [1, 1] and fast["block"][0] % 32 == 0
        for a, b in zip(slow["values"], fast["values"], strict=True):
            if a in known or a < 1 << 20:
                assert a == b
            else:  # a buffer of the call's own
                assert b > 1 << 20
    assert any(set(fast["values"]) & known for fast in seen["fast"])
    assert seen["y"] in seen["fast"][-1]["values"]


def test_what_one_kernel_writes_the_next_one_reads(seen):
    own = [{v for v in f["values"] if v > 1 << 20} - set(seen["known"]) for f in seen["fast"]]
    assert own[0] & own[1]


def test_another_tensor_is_read_where_it_lies(seen):
    assert seen["its pointer"] and not seen["no longer"]


def test_calls_in_flight_at_once_have_workspaces_of_their_own(seen):
    assert seen["lanes after a call inside a call"] == 2
    assert sum(seen["inner lanes"]) == 1
    assert seen["other stream"] == [False, False, 1] and seen["streams told"] == [8]
    assert seen["lanes after all"] == 2


def test_another_layout_takes_the_long_way_once(seen):
    kernels = seen["kernels"]
    assert seen["refused"] == {n: [kernels, 0] for n in ("rows", "stride", "alignment")}
    assert set(map(tuple, seen["again"].values())) == {(0, kernels)}


def test_captures_hooks_and_other_devices_go_through_triton(seen):
    kernels = seen["kernels"]
    assert seen["capture"] == [kernels, 0]
    assert seen["other device"] == [kernels, 0]
    assert seen["hooked"] == [kernels, 0]


def test_mistakes_keep_their_codes(seen):
    assert seen["codes"] == ["F0502", "F0503", "F0501", "F0508", "F0506", "F0506", "F0506"]


def test_integration_42_edited_and_moved_weights_are_noticed(seen):
    kernels = seen["kernels"]
    assert seen["refolded"]
    assert seen["moved"] == [kernels, 0] and seen["moved, after"] == [0, kernels]
    assert seen["new place"]


def test_weights_given_per_call_must_be_the_same_and_unchanged(seen):
    kernels = seen["kernels"]
    assert seen["given"] == [0, kernels]
    assert seen["given, edited"] == [kernels, 0] and seen["given, others"] == [kernels, 0]


def test_a_thread_without_a_context_gets_one_and_a_failure_is_said(seen):
    for name in ("no context", "no context, another tensor", "no context, another stream"):
        assert seen[name] == [0, seen["kernels"]], name
    assert seen["entered"] == [77, 77, 77]
    assert "700" in seen["failure"]


def test_dependent_launches_reach_the_driver(seen):
    assert seen["dependent"] == [[0, seen["kernels"]], [6]]


def test_a_binary_that_takes_other_parameters_is_launched_by_triton(seen):
    assert seen["unknown binary"][0] == [seen["kernels"], 0]


def test_the_host_cost_of_a_repeated_call(seen):
    """Observed 7 µs on one slow core; the limit only catches blunders."""
    assert seen["microseconds"] < 100
