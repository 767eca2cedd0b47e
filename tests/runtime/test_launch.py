"""The direct launch path, with a driver that records instead of launching.

No GPU is needed: Triton compiles for sm_90 anywhere, and the recorder stands where the CUDA driver
would. It runs in a process of its own, because this one may interpret.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap

import pytest

from fusedsl.runtime.launch import int_class, is_known_launcher

PRELUDE = """
    import itertools
    import json
    import torch
    import triton
    from triton.backends.compiler import GPUTarget

    launches, loads, pdl = [], [], []
    numbers = itertools.count(1)

    class Launcher:
        def __init__(self, src, metadata):
            self.signature = dict(src.signature)
            pdl.append(metadata.launch_pdl)
        {call}
            launches.append((gridX, gridY, gridZ, stream, function, args))

    class Utils:
        def load_binary(self, name, binary, shared, device):
            loads.append(name)
            return "module", next(numbers), 32, 0, 1024
        def unload_module(self, module):
            pass
        def get_device_properties(self, device):
            return {{"max_shared_mem": 232448}}

    class Driver:
        launcher_cls = Launcher
        utils = Utils()
        def get_current_device(self):
            return 0
        def get_current_stream(self, device):
            return 7
        def get_current_target(self):
            return GPUTarget("cuda", 90, 32)

    triton.runtime.driver.set_active(Driver())

    import fusedsl
    from fusedsl.ir import random_inputs
    from fusedsl.runtime import device, load, recipe
    from fusedsl.schedule import Target

    # CPU tensors stand in for CUDA tensors from here on.
    recipe.Recipe._launch = lambda self, tensors: [
        l.run([t.data_ptr() for t in tensors], tensors, 7) for l in self.launches]
    import fusedsl.runtime.configure as configure
    import fusedsl.runtime.engine as engine
    import fusedsl.runtime.preparation as preparation
    engine.check_device = lambda device: None
    engine.target_of = preparation.target_of = lambda device: Target.parse("sm_90")

    program = fusedsl.compile('''
    kernel mlp(x: bf16[M, 64], gain: weight bf16[64], w_up: weight bf16[96, 64],
               w_down: weight bf16[64, 96]) -> (y: bf16[M, 64]) {{
      y = linear(relu(linear(rms_norm(x, gain, eps=1e-6), w_up)), w_down) + x;
    }}
    ''')
    given = random_inputs(program.graph(), {{"M": 100}}, seed=0)
    weights = {{n: t for n, t in given.items() if n != "x"}}
    bound = program.bind(weights)
    x = given["x"]
"""
NOW = "def __call__(self, gridX, gridY, gridZ, stream, function, *args):"
OTHER = "def __call__(self, stream, gridX, gridY, gridZ, function, *args):"


def run(code: str, tmp_path, call: str = NOW):
    env = {**os.environ, "TRITON_INTERPRET": "0", "FUSEDSL_CACHE_DIR": str(tmp_path / "f")}
    env["TRITON_CACHE_DIR"] = str(tmp_path / "t")
    text = textwrap.dedent(PRELUDE.format(call=call)) + textwrap.dedent(code)
    done = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, timeout=200, env=env
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


SCENARIO = """
    result = {}
    y = bound(x)
    recipe_of = lambda: list(bound._binding.recipes.values())[-1]
    first = recipe_of()
    result["calls"] = []
    for launch, (gx, gy, gz, stream, function, args) in zip(first.launches, launches):
        table = dict(zip([p.name for p in launch.kernel.fn.params], args[4:], strict=True))
        result["calls"].append(dict(
            grid=[gx, gy, gz], planned=list(launch.grid), stream=stream, rows=table["M"],
            pointers=[type(v).__name__ for n, v in table.items() if n.endswith("_ptr")],
            bases=[v.base.data_ptr() for n, v in table.items() if n.endswith("_desc")]))
    result["known"] = [t.data_ptr() for t in (x, y, *bound._binding.values.values())]

    result["loaded"] = [len(loads)]
    for m in (97, 98, 111, 127, 128):
        bound(torch.zeros(m, 64).bfloat16())
    result["launched"] = len(launches)
    result["loaded"].append(len(loads))
    askew = torch.zeros(100, 65).bfloat16()[:, :64]
    bound(askew)  # rows that are not aligned are copied into some that are
    result["loaded"].append(len(loads))
    program.main_loop = "pointer"
    bound = program.bind(weights)
    bound(x)
    result["pointer"] = [len(loads)]
    bound(askew)
    result["pointer"].append(len(loads))
    program.main_loop = "auto"
    bound = program.bind(weights)

    import timeit
    bound(x)
    result["microseconds"] = min(
        timeit.repeat(lambda: bound(x), number=1000, repeat=3)) / 1000 * 1e6

    def refuse(*args):
        raise TypeError("function takes 11 arguments")
    launches.clear()
    for launch in first.launches:
        launch.kernel.proven, launch.kernel.direct = False, refuse
    bound(x), bound(x)
    result["after a refusal"] = len(launches)
    result["given up"] = [launch.kernel.direct is None for launch in first.launches]
    print(json.dumps(result))
"""


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    return run(SCENARIO, tmp_path_factory.mktemp("launch"))


def test_tuning_46_a_new_number_of_rows_compiles_and_loads_nothing(seen):
    first, same_class, misaligned = seen["loaded"]
    assert first == same_class == misaligned == len(seen["calls"])
    assert seen["launched"] == 6 * first


def test_pointers_that_are_not_aligned_take_other_kernels(seen):
    aligned, misaligned = seen["pointer"]
    assert misaligned > aligned


def test_arguments_arrive_in_the_order_of_the_kernel(seen):
    for call in seen["calls"]:
        assert call["grid"] == call["planned"]
        assert (call["stream"], call["rows"]) == (7, 100)
        assert set(call["pointers"]) <= {"int"}
    bases = [base for call in seen["calls"] for base in call["bases"]]
    assert len(set(bases) & set(seen["known"])) >= 3  # x or y, and both weights


def test_a_launcher_that_refuses_the_arguments_is_not_asked_again(seen):
    assert all(seen["given up"])
    assert seen["after a refusal"] == 2 * len(seen["given up"])


def test_the_host_cost_of_a_call_is_small(seen):
    """Observed 40 µs for three kernels on one slow core; the limit only catches blunders."""
    assert seen["microseconds"] < 400


def test_a_launcher_with_other_arguments_is_called_through_triton(tmp_path):
    seen = run(
        """
        bound(x)
        recipe = list(bound._binding.recipes.values())[-1]
        direct = [launch.kernel.direct is not None for launch in recipe.launches]
        print(json.dumps([direct, len(launches)]))
        """,
        tmp_path,
        OTHER,
    )
    direct, launched = seen
    assert not any(direct)
    assert launched == len(direct)


def test_dependent_launches_reach_the_launcher(tmp_path):
    with_, without = run(
        """
        from dataclasses import replace
        bound(x)
        without = pdl.copy()
        from fusedsl.runtime import configure
        plain = configure.choose
        configure.choose = lambda *args: replace(plain(*args), pdl=True)
        bound(torch.zeros(5000, 64).bfloat16())
        print(json.dumps([pdl[len(without):], without]))
        """,
        tmp_path,
    )
    assert with_ and all(with_)
    assert without and not any(without)


@pytest.mark.parametrize(
    ("value", "same"), [(16, 32), (17, 18), (1, 1), (48, 2**20), (2**31, 2**31 + 16)]
)
def test_specialisation_of_integers(value, same):
    assert int_class(value) == int_class(same)


def test_integers_of_different_specialisation():
    classes = {int_class(v) for v in (1, 2, 16, 2**31, 2**31 + 1)}
    assert len(classes) == 5


def test_known_launchers():
    def triton36(gridX, gridY, gridZ, stream, function, *args): ...
    def triton39(gridX, gridY, gridZ, stream, function, meta, launch, enter, leave, *args): ...
    def other(grid, stream, function, *args): ...
    def no_rest(gridX, gridY, gridZ, stream, function): ...

    assert is_known_launcher(triton36) and is_known_launcher(triton39)
    assert not is_known_launcher(other) and not is_known_launcher(no_rest)
    assert not is_known_launcher(None)
