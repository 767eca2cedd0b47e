"""Whole programs: layouts, empty sizes, threads, forks, explain and verify."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import threading

import pytest
import torch

import fusedsl
from fusedsl import FusedslError
from fusedsl.ir import evaluate, random_inputs
from fusedsl.runtime.load import interprets

DEVICE = "cuda" if torch.cuda.is_available() and not interprets() else "cpu"

LINEAR_BIAS = """
kernel f(x: bf16[M, K], w: weight bf16[N, K], b: weight bf16[N]) -> (y: bf16[M, N]) {
  y = linear(x, w, b);
}
"""
TWO_OUTPUTS = """
kernel f(x: bf16[M, 64], w: weight bf16[32, 64]) -> (y: bf16[M, 32], z: bf16[M, 64]) {
  y = linear(x, w);
  z = relu(x);
}
"""


def bf16(*shape, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).bfloat16().to(DEVICE)


@pytest.mark.parametrize("main_loop", ["tma", "pointer"])
@pytest.mark.parametrize("m", [1, 2, 5, 17, 130])
def test_any_number_of_rows(mlp, close, main_loop, m):
    program, inputs = mlp
    program.main_loop = main_loop
    given = inputs(m)
    close(program(**given), evaluate(program.graph(), given)["y"])


def test_outputs_are_new_tensors(mlp):
    program, inputs = mlp
    given = inputs()
    first, second = program(**given), program(**given)
    assert first.data_ptr() != second.data_ptr()
    assert torch.equal(first, second)
    assert first.is_contiguous() and not first.requires_grad


def test_layouts_28_two_outputs_come_in_the_order_of_the_signature(close):
    program = fusedsl.compile(TWO_OUTPUTS)
    x, w = bf16(5, 64), bf16(32, 64, seed=1)
    y, z = program(x, w)
    want = evaluate(program.graph(), {"x": x, "w": w})
    assert y.stride() != z.stride()
    close(y, want["y"])
    close(z, want["z"])


# shapes ------------------------------------------------------------------------------------------
def test_shapes_18_no_rows(mlp):
    program, inputs = mlp
    given = inputs(0)
    for call in (lambda: program(**given), lambda: bind(program, given)(given["x"])):
        y = call()
        assert y.shape == (0, 64) and y.dtype == torch.bfloat16


def bind(program, given):
    return program.bind({n: t for n, t in given.items() if n != "x"})


def test_shapes_18_no_columns():
    program = fusedsl.compile(LINEAR_BIAS)
    y = program(bf16(4, 16), bf16(0, 16), bf16(0))
    assert y.shape == (4, 0) and y.dtype == torch.bfloat16


def test_shapes_18_a_contraction_over_nothing_is_the_bias():
    program = fusedsl.compile(LINEAR_BIAS)
    b = bf16(8)
    y = program(bf16(4, 0), bf16(8, 0), b)
    assert torch.equal(y, b.expand(4, 8))


def test_shapes_18_nothing_is_launched(mlp, monkeypatch):
    from fusedsl.runtime.launch import Kernel

    program, inputs = mlp
    monkeypatch.setattr(Kernel, "launch_slowly", None)
    assert program(**inputs(0)).shape == (0, 64)


def test_shapes_19_one_column(close):
    program = fusedsl.compile(
        "kernel f(x: bf16[M, 256], w: weight bf16[1, 256]) -> (y: bf16[M, 1]) {\n"
        "  y = linear(x, w);\n}\n"
    )
    x, w = bf16(8, 256), bf16(1, 256, seed=1) / 16
    close(program(x, w), x.double() @ w.double().t())


def test_shapes_24_widths_and_strides_that_no_descriptor_expresses(mlp_text, close):
    program = fusedsl.compile(mlp_text(k=65, f=45))
    given = random_inputs(program.graph(), {"M": 9}, seed=0, device=DEVICE)
    close(program(**given), evaluate(program.graph(), given)["y"])
    wide = nan((9, 131))
    wide[:, 1:66] = given["x"]
    given["x"] = wide[:, 1:66]
    close(program(**given), evaluate(program.graph(), given)["y"])


# layouts -----------------------------------------------------------------------------------------
def nan(shape: tuple[int, ...]) -> torch.Tensor:
    """A tensor that any stray read shows up in."""
    return torch.full(shape, float("nan"), device=DEVICE).bfloat16()


def strided(x: torch.Tensor, how: str) -> torch.Tensor:
    """The values of x in another layout."""
    m, k = x.shape
    if how == "every other column":
        store = nan((m, 2 * k))
        view = store[:, ::2]
    elif how == "transposed":
        view = nan((k, m)).t()
    elif how == "every other row":
        view = nan((2 * m, k))[::2]
    elif how == "split from a wider one":
        view = nan((m, 3 * k))[:, k : 2 * k]
    elif how == "misaligned base":
        view = nan((m * k + 1,))[1:].view(m, k)
    else:
        view = nan((m, k + 3))[:, :k]
    return view.copy_(x)


LAYOUTS = (
    "every other column",
    "transposed",
    "every other row",
    "split from a wider one",
    "misaligned base",
    "misaligned rows",
)


@pytest.mark.parametrize("how", LAYOUTS)
def test_layouts_26_every_layout_gives_the_contiguous_result(mlp, how):
    program, inputs = mlp
    given = inputs(6)
    want = program(**given)
    x = strided(given["x"], how)
    before = x.clone()
    assert torch.equal(program(**{**given, "x": x}), want)
    assert torch.equal(bind(program, given)(x), want)
    assert torch.equal(x, before)


def test_layouts_26_one_row_expanded_to_many(mlp):
    program, inputs = mlp
    given = inputs(6)
    x = given["x"][:1].expand(6, -1)
    assert x.stride(0) == 0
    want = program(**{**given, "x": x.contiguous()})
    assert torch.equal(program(**{**given, "x": x}), want)


@pytest.mark.parametrize("how", [None, "misaligned base", "misaligned rows"])
def test_operands_that_are_not_aligned_are_copied_into_rows_that_are(mlp, how):
    program, inputs = mlp
    given = inputs(6)
    bound = bind(program, given)
    bound(given["x"] if how is None else strided(given["x"], how))
    recipe = list(bound._binding.recipes.values())[-1]
    assert recipe.main_loops[-2:] == ("tma", "tma")
    assert len(recipe.copies) == (how is not None)


ODD = """
kernel odd(x: bf16[M, 33], w: weight bf16[{f}, 33], v: weight bf16[21, {f}], r: bf16[M, 21])
    -> (y: bf16[M, 21]) {{
  y = linear(relu(linear(x, w)), v) + r;
}}
"""


@pytest.mark.parametrize("f", [24, 35])
def test_shapes_24_rows_of_no_multiple_of_16_bytes_use_descriptors(f):
    program = fusedsl.compile(ODD.format(f=f))
    given = random_inputs(program.graph(), {"M": 70}, seed=0, device=DEVICE)
    bound = program.bind(w=given["w"], v=given["v"])
    got = bound(given["x"], given["r"])
    recipe = list(bound._binding.recipes.values())[-1]
    assert recipe.main_loops == ("tma", "mixed"), "what stays inside has padded rows"
    program.main_loop = "pointer"
    by_pointer = program.bind(w=given["w"], v=given["v"])
    want = by_pointer(given["x"], given["r"])
    assert list(by_pointer._binding.recipes.values())[-1].main_loops == ("pointer", "pointer")
    assert got.is_contiguous() and torch.equal(got, want)
    exact = (given["x"].double() @ given["w"].double().t()).relu()
    exact = exact @ given["v"].double().t() + given["r"].double()
    assert (got.double() - exact).norm() < 0.01 * exact.norm()


def test_a_padded_weight_follows_writes_to_the_original():
    program = fusedsl.compile(ODD.format(f=24))
    given = random_inputs(program.graph(), {"M": 70}, seed=0, device=DEVICE)
    bound = program.bind(w=given["w"], v=given["v"])
    before = bound(given["x"], given["r"])
    with torch.no_grad():
        given["w"].mul_(2)
    after = bound(given["x"], given["r"])
    assert not torch.equal(before, after)
    assert torch.equal(after, program.bind(w=given["w"], v=given["v"])(given["x"], given["r"]))


# concurrency -------------------------------------------------------------------------------------
def test_concurrency_43_two_threads_make_the_first_call(mlp_text):
    for attempt in range(3):
        program = fusedsl.compile(mlp_text(k=64, f=32 + 16 * attempt))
        given = random_inputs(program.graph(), {"M": 4}, seed=0, device=DEVICE)
        barrier = threading.Barrier(2)
        results: list[torch.Tensor] = []

        def work(program=program, given=given, barrier=barrier, results=results):
            barrier.wait()
            results.append(program(**given))

        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(results) == 2 and torch.equal(results[0], results[1])
        assert len(program._sets) == 1


def test_tuning_46_a_new_number_of_rows_makes_no_new_kernel(mlp):
    program, inputs = mlp
    bound = bind(program, inputs())
    kernels = set()
    for m in (65, 66, 100, 255, 256):
        bound(inputs(m)["x"])
        recipe = list(bound._binding.recipes.values())[-1]
        kernels.add(tuple(id(launch.kernel) for launch in recipe.launches))
    assert len(kernels) == 1


def test_one_row_uses_the_kernel_of_sixteen(mlp):
    program, inputs = mlp
    bound = bind(program, inputs())
    kernels = set()
    for m in (1, 2, 16):
        bound(inputs(m)["x"])
        recipe = list(bound._binding.recipes.values())[-1]
        kernels.add(tuple(id(launch.kernel) for launch in recipe.launches))
    assert len(kernels) == 1


def test_prepared_calls_do_not_keep_activations_alive(mlp):
    import gc
    import weakref

    program, inputs = mlp
    bound = bind(program, inputs())
    x = inputs()["x"]
    y = bound(x)
    refs = weakref.ref(x), weakref.ref(y)
    del x, y
    gc.collect()
    assert refs[0]() is None and refs[1]() is None


def run(code: str, **env: str) -> str:
    """Run code in a process of its own; its standard output."""
    full = {**os.environ, "OMP_NUM_THREADS": "1", **env}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=120,
        env={k: v for k, v in full.items() if v},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_integration_44_importing_touches_no_device_and_a_fork_can_work():
    out = run(
        """
        import os
        import fusedsl, torch
        assert not torch.cuda.is_initialized()
        program = fusedsl.compile(
            "kernel f(x: bf16[M, 16]) -> (y: bf16[M, 16]) {\\n  y = relu(x);\\n}\\n")
        assert not torch.cuda.is_initialized()
        pid = os.fork()
        if pid == 0:
            device = "cuda" if torch.cuda.is_available() else "cpu"
            y = program(torch.full((4, 16), -1.0, device=device).bfloat16())
            os._exit(0 if bool((y == 0).all()) else 1)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        """
    )
    assert out.strip() == "0"


def test_cpu_tensors_where_kernels_are_compiled():
    out = run(
        """
        import fusedsl, torch
        program = fusedsl.compile(
            "kernel f(x: bf16[M, 16]) -> (y: bf16[M, 16]) {\\n  y = relu(x);\\n}\\n")
        try:
            program(torch.zeros(4, 16).bfloat16())
        except fusedsl.FusedslError as error:
            print(error.codes, "TRITON_INTERPRET=1" in str(error))
        """,
        TRITON_INTERPRET="0",
    )
    assert out.strip() == "('F0604',) True"


# explain and verify ------------------------------------------------------------------------------
def test_explain_counts_every_block_of_the_text(mlp):
    program, _ = mlp
    explanation = program.explain({"M": 4096})
    row = 4096 * 64 * 2
    data = json.loads(json.dumps(explanation.to_json()))
    assert data["launches"] == {"eager": 5, "fused": len(program.kernels)}
    assert data["bytes"]["fused"] < data["bytes"]["eager"]
    assert data["bytes"]["fused"] >= 2 * row
    assert {r["outcome"] for r in data["rules"]} <= {"fired", "refused"}
    assert any(r["rule"] == "commute_row_scale" and r["fired"] for r in data["rules"])
    assert all((r["precondition"] is None) == r["fired"] for r in data["rules"])
    assert [k["name"] for k in data["kernels"]] == [k.name for k in program.kernels]
    text = str(explanation)
    assert "a kernel for each block" in text and program.kernels[0].name in text


def test_explain_eager_bytes_by_hand():
    program = fusedsl.compile(
        "kernel f(x: bf16[M, 16], y: bf16[M, 16]) -> (z: bf16[M, 16]) {\n  z = relu(x + y);\n}\n"
    )
    explanation = program.explain({"M": 8})
    tile = 8 * 16 * 2
    assert explanation.eager_bytes == 3 * tile + 2 * tile
    assert explanation.fused_bytes == 3 * tile
    assert (explanation.eager_launches, explanation.fused_launches) == (2, 1)
    assert program.explain().dims == {"M": 4096}


def test_verify_passes_and_reports_every_case(mlp):
    program, _ = mlp
    report = program.verify({"M": 19}, seeds=(3,), device=DEVICE)
    assert report.ok, str(report)
    assert {c.case for c in report.checks} == {
        "normal",
        "outlier columns",
        "zero rows",
        "large means",
    }
    assert report.dims == {"M": 19}
    assert json.loads(json.dumps(report.to_json()))["ok"] is True


@pytest.mark.parametrize("spoil", ["nothing written", "half as large", "one NaN"])
def test_verify_fails_a_program_that_is_wrong(mlp, monkeypatch, spoil):
    from fusedsl.runtime.launch import Kernel

    program, _ = mlp
    real = Kernel.launch_slowly

    def spoiled(self, grid, args):
        outputs = [a for a in args if isinstance(a, torch.Tensor)]
        bases = [a.base for a in args if hasattr(a, "base")]
        if spoil != "nothing written":
            real(self, grid, args)
            for tensor in [*bases, *outputs]:
                if tensor.shape == (8, 64) and spoil == "half as large":
                    tensor.mul_(0.5)
                elif tensor.shape == (8, 64):
                    tensor.view(-1)[3] = float("nan")

    monkeypatch.setattr(Kernel, "launch_slowly", spoiled)
    report = program.verify({"M": 8}, seeds=(0,), device=DEVICE)
    assert not report.ok
    assert "FAIL" in str(report)


def test_stages_can_be_looked_at(mlp):
    program, _ = mlp
    assert "rms_norm(" in str(program.graph("source"))
    assert "rms_norm(" not in str(program.graph("expand"))
    assert "fold_scale" in str(program.graph("rewrite"))
    assert program.graph("plan").outputs == ("y",)
    with pytest.raises(FusedslError) as caught:
        program.graph("rewritten")
    assert caught.value.codes == ("F0507",)
    assert "did you mean 'rewrite'?" in str(caught.value)


def test_the_emitted_source_says_what_it_is(mlp):
    program, _ = mlp
    text = program.source
    assert "commute_row_scale" in text and "fusedsl.compile(" in text
    assert "@triton.jit" in text
    assert program.source_for("pointer") != program.source_for("tma")
    with pytest.raises(FusedslError):
        program.source_for("tam")


# devices -----------------------------------------------------------------------------------------
@pytest.mark.gpu
def test_integration_39_tensors_on_another_device_than_the_current(mlp):
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two devices")
    program, inputs = mlp
    want = program(**inputs(device="cuda:0"))
    with torch.cuda.device(0):
        got = program(**inputs(device="cuda:1"))
    assert got.device == torch.device("cuda:1")
    assert torch.equal(got.cpu(), want.cpu())


@pytest.mark.gpu
def test_the_current_stream_is_used(mlp):
    program, inputs = mlp
    given = inputs(device="cuda")
    want = program(**given)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        given["x"].mul_(0)
        late = program(**given)
    assert not stream.query(), "the call waited for the device"
    torch.cuda.current_stream().wait_stream(stream)
    assert torch.equal(late, torch.zeros_like(want))


@pytest.mark.gpu
def test_integration_41_a_cold_call_in_a_capture_is_refused_and_a_warm_one_captured(mlp):
    program, inputs = mlp
    given = inputs(device="cuda")
    cold = torch.cuda.CUDAGraph()
    with pytest.raises(FusedslError) as caught, torch.cuda.graph(cold):
        program(**given)
    assert caught.value.codes == ("F0606",)
    bound = bind(program, given)
    bound.warmup(given["x"])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = bound(given["x"])
    given["x"].copy_(inputs(seed=5)["x"])
    graph.replay()
    assert torch.equal(y, bound(given["x"]))
    given["gain"].mul_(2)
    bound.rebind()
    graph.replay()
    assert torch.equal(y, bound(given["x"]))
