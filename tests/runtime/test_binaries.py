"""Compiled kernels in the cache: a second process launches what the first one compiled.

As in `test_prepared`, the kernels are real and the driver writes down what it is asked for.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from fusedsl.runtime import binaries
from fusedsl.runtime.driver import Binary, Parameter
from tests.runtime.test_prepared import play

LOADS = """
    import itertools, os
    import fusedsl.runtime.binaries as binaries
    import fusedsl.runtime.launch as launching
    binaries._HOOKS = ()  # this test's own hook is one
    launching.arch_of = lambda device: "sm_90"
    recipe.torch.cuda.current_device = lambda: 0
    loaded, functions, refused = [], itertools.count(1000), []
    images = {}
    def load_data(module, image):
        if refused:
            return refused[0]
        if image not in images:
            files = Path(os.environ["TRITON_CACHE_DIR"]).rglob("*.cubin")
            images[image] = next(f for f in files if f.read_bytes() == image)
        number = next(functions)
        texts[number] = images[image].with_suffix(".ptx").read_text()
        ctypes.c_uint64.from_address(module).value = number
        return 0
    def get_function(found, module, name):
        loaded.append(name.decode())
        assert f".entry {loaded[-1]}(" in texts[module.value]
        ctypes.c_uint64.from_address(found).value = module.value
        return 0
    def ask(value, attribute, of):
        ctypes.c_int.from_address(value).value = {0: 1024, 1: 0, 97: 232448}[attribute]
        return 0
    allowed = []
    library.cuModuleLoadData, library.cuModuleGetFunction = load_data, get_function
    library.cuFuncGetAttribute = library.cuDeviceGetAttribute = ask
    library.cuFuncSetCacheConfig = lambda function, how: 0
    library.cuFuncSetAttribute = lambda function, which, value: allowed.append(value) or 0
    def entries():
        return sorted(binaries.folder().glob("*.bin"))
"""

FIRST = """
    out = dict(cold=counts(lambda: bound(x)), loads=len(loads), loaded=loaded)
    bound(x)
    out["launched"] = fast[-2:]
    out["known"] = [t.data_ptr() for t in (x, *bound._binding.values.values())]
    out["files"] = [f.name for f in entries()]
    print(json.dumps(out))
"""

SECOND = """
    import sys
    out = dict(cold=counts(lambda: bound(x)), loads=len(loads), loaded=loaded)
    out["first"] = fast[:2]
    out["warm"] = counts(lambda: bound(x))
    out["second"] = fast[2:4]
    out["known"] = [t.data_ptr() for t in (x, *bound._binding.values.values())]
    out["sources"] = [name for name in sys.modules if name.startswith("fusedsl_emitted")]
    # a capture takes the long way: the driver again, Triton has no launcher of these
    now.capturing = True
    out["capture"] = counts(lambda: bound(x))
    now.capturing = False
    hook = lambda *args: None
    triton.knobs.runtime.launch_enter_hook.add(hook)
    recipe_now = list(bound._binding.recipes.values())[-1]
    out["slowly"] = counts(lambda: [l.kernel.launch_slowly(l.grid, l.arguments(t, t))
                           for t in [recipe_now.place([x])
                                     + [b.allocate(x.device) for b in recipe_now.buffers]]
                           for l in recipe_now.launches])
    print(json.dumps(out))
"""

DAMAGED = """
    for number, file in enumerate(entries()):
        whole = file.read_bytes()
        file.write_bytes(whole[:-7] if number else whole.replace(b"pointer", b"pointes", 1))
    out = dict(damaged=[*counts(lambda: bound(x)), len(loads), len(loaded)])

    def again(change):
        other = fusedsl.compile(str(program.graph())).bind(weights)
        before = len(loads), len(loaded)
        change()
        launched = counts(lambda: other(x))
        return [*launched, len(loads) - before[0], len(loaded) - before[1]]
    again(lambda: None)  # the text of a graph has other lines
    for file in entries():
        file.write_bytes(file.read_bytes()[:-7])
    again(lambda: None)
    out["healed"] = again(lambda: None)
    out["refused"] = again(lambda: refused.append(700))
    refused.clear()
    out["asked to compile"] = again(
        lambda: setattr(triton.knobs.compilation, "always_compile", True))
    triton.knobs.compilation.always_compile = False
    out["another switch"] = again(
        lambda: setattr(triton.knobs.compilation, "disable_line_info", True))
    triton.knobs.compilation.disable_line_info = False
    out["another device"] = again(lambda: setattr(launching, "arch_of", lambda device: "sm_100"))
    launching.arch_of = lambda device: "sm_90"
    out["another assembler"] = again(
        lambda: os.environ.update(TRITON_PTXAS_PATH=str(entries()[0])))
    print(json.dumps(out))
"""


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    folder = tmp_path_factory.mktemp("binaries")
    return [play(LOADS + code, folder) for code in (FIRST, SECOND, DAMAGED)]


def test_the_second_process_compiles_nothing(seen):
    first, second, _ = seen
    assert first["cold"] == [2, 0] and first["loads"] == 2 and first["loaded"] == []
    assert len(first["files"]) == 2
    assert second["cold"] == [0, 2] and second["loads"] == 0 and len(second["loaded"]) == 2
    assert second["sources"] == []
    assert second["warm"] == [0, 2] and second["capture"] == [0, 2]


def test_it_launches_the_same(seen):
    first, second, _ = seen
    for name in ("first", "second"):
        for a, b in zip(first["launched"], second[name], strict=True):
            values = [made.pop("values") for made in (dict(a), dict(b))]
            assert {**a, "values": 0} == {**b, "values": 0}
            for x, y in zip(*values, strict=True):
                assert x == y or min(x, y) > 1 << 20
                in_first = first["known"].index(x) if x in first["known"] else None
                in_second = second["known"].index(y) if y in second["known"] else None
                assert in_first == in_second


def test_a_profiler_sees_every_launch(seen):
    assert seen[1]["slowly"] == [2, 0]


def test_what_is_damaged_or_does_not_load_is_compiled(seen):
    assert seen[2]["damaged"] == [2, 0, 2, 0]
    assert seen[2]["healed"] == [0, 2, 0, 2]
    assert seen[2]["refused"][:2] == [2, 0]


@pytest.mark.parametrize(
    "name", ["asked to compile", "another switch", "another device", "another assembler"]
)
def test_a_binary_of_other_circumstances_is_not_used(seen, name):
    assert seen[2][name][:2] == [2, 0] and seen[2][name][3] == 0


STORED = binaries.Stored(
    "k",
    b"\x7fELF\n\x00binary",
    Binary(
        0,
        128,
        70000,
        True,
        False,
        (Parameter("map", 0), Parameter("i32", 0, ("shape", 1)), Parameter("pointer", 1)),
        {0: {"swizzle": 3, "elem_size": 2, "elem_type": 9, "block_size": [64, 64]}},
        cluster=16,
    ),
)


def test_an_entry_comes_back_as_it_was():
    assert binaries.keep("a" * 64, "k", STORED)
    assert binaries.find("a" * 64, "k") == STORED
    assert binaries.find("b" * 64, "k") is None


def test_an_entry_under_another_name_is_none():
    binaries.keep("a" * 64, "k", STORED)
    (path,) = binaries.folder().glob(f"k-{'a' * 32}.bin")
    os.replace(path, path.with_name(f"k-{'b' * 32}.bin"))
    assert binaries.find("b" * 64, "k") is None


def test_any_changed_byte_makes_an_entry_none():
    binaries.keep("a" * 64, "k", STORED)
    (path,) = binaries.folder().glob(f"k-{'a' * 32}.bin")
    whole = path.read_bytes()
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert binaries.find("a" * 64, "k") is None
        path.write_bytes(whole[:at])
        assert binaries.find("a" * 64, "k") is None


def key(**changes):
    parts = {
        "source": "s",
        "kernel": "k",
        "specialisation": (True, 64, 2),
        "args": [64, 1 << 20],
        "options": {"num_warps": 4},
        "arch": "sm_90",
    }
    return binaries.key_of(**{**parts, **changes})


@pytest.mark.parametrize(
    "changes",
    [
        {"source": "t"},
        {"kernel": "l"},
        {"specialisation": (False, 64, 2)},
        {"specialisation": (1, 64, 2)},
        {"args": [64, 1 << 40]},
        {"options": {"num_warps": 8}},
        {"options": {"num_warps": 4, "num_stages": 3}},
        {"arch": "sm_100"},
    ],
)
def test_everything_that_matters_is_in_the_key(changes):
    assert key() == key() is not None
    assert key(**changes) != key()


def test_keys_are_of_the_compiler(monkeypatch):
    before = key()
    monkeypatch.setattr(binaries, "_files", lambda: "others")
    assert key() != before
    monkeypatch.undo()
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "0")
    assert key() != before
    assert json.dumps(before)


ON_A_GPU = """
import hashlib, json, sys, threading
import torch, triton
import fusedsl
from fusedsl.ir import random_inputs

program = fusedsl.compile('''
kernel mlp(x: bf16[M, 256], gain: weight bf16[256], w_gate_up: weight bf16[1024, 256],
           w_down: weight bf16[256, 512]) -> (y: bf16[M, 256]) {
  a = swiglu(linear(rms_norm(x, gain, eps=1e-6), w_gate_up));
  y = linear(a, w_down) + x;
}
''')
if sys.argv[1] == "warm":
    def refuse(*args, **kwargs):
        raise AssertionError("Triton was asked")
    triton.runtime.jit.JITFunction.run = triton.runtime.jit.JITFunction.__init__ = refuse
inputs = {m: random_inputs(program.graph("source"), {"M": m}, seed=m, device="cuda")
          for m in (1, 16, 300)}
weights = {n: t for n, t in inputs[300].items() if n != "x"}
bound = program.bind(weights)
out = {}
for m, given in inputs.items():
    x = given["x"]
    first = bound(x)
    for _ in range(6):
        again = bound(x)  # launched alike, and replayed where that was asked for
        assert torch.equal(first, again)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(6):
            assert torch.equal(first, bound(x))
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = bound(x)
    graph.replay()
    assert torch.equal(first, captured)
    got = []
    thread = threading.Thread(target=lambda: got.append(bound(x)))
    thread.start(), thread.join()
    assert torch.equal(first, got[0])
    out[m] = hashlib.sha256(first.cpu().view(torch.int16).numpy().tobytes()).hexdigest()
print(json.dumps(out))
"""


@pytest.mark.gpu
def test_a_warm_process_gives_the_same_bits_without_triton(tmp_path):
    env = {**os.environ, "TRITON_INTERPRET": "0", "FUSEDSL_CACHE_DIR": str(tmp_path / "f")}
    env["TRITON_CACHE_DIR"] = str(tmp_path / "t")
    outputs = []
    for which, replay in (("cold", "0"), ("warm", "0"), ("warm", "1")):
        done = subprocess.run(
            [sys.executable, "-c", ON_A_GPU, which],
            capture_output=True,
            text=True,
            timeout=300,
            env={**env, "FUSEDSL_REPLAY": replay},
        )
        assert done.returncode == 0, done.stderr[-3000:]
        outputs.append(json.loads(done.stdout.splitlines()[-1]))
    assert outputs[0] == outputs[1] == outputs[2]
