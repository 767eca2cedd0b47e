"""Projections of few rows whose weights go through a ring: where they are made, and what they
compute in a model of the machine."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import fusedsl
from fusedsl.codegen import can_ring, compile_time_value, emit, parts
from fusedsl.fuse import Form, Plan, for_few_rows
from fusedsl.ir import evaluate, random_inputs
from fusedsl.runtime.binding import Binding
from fusedsl.runtime.check import Dims
from fusedsl.runtime.planning import planned
from fusedsl.schedule import Target, TileConfig, candidates, choose, pays_in_ring, problem
from tests.codegen.gluon_model import Pointer, Value
from tests.codegen.harness import error
from tests.codegen.projection_model import Descriptor, Machine

SM_90 = Target.parse("sm_90")
FORMS = {
    "mlp": """kernel k(x: {t}[M, {k}], g: weight {t}[{k}], w: weight {t}[2 * {n}, {k}],
        v: weight {t}[{k}, {n}]) -> (y: {t}[M, {k}])
        {{ y = linear(swiglu(linear(rms_norm(x, g, eps=1e-6), w)), v) + x; }}""",
    "bias": """kernel k(x: {t}[M, {k}], w: weight {t}[{n}, {k}], b: weight {t}[{n}],
        v: weight {t}[{k}, {n}]) -> (y: {t}[M, {k}], z: {t}[M, {n}])
        {{ z = gelu(linear(x, w, b), approximate=tanh); y = linear(z, v); }}""",
    "gated twice": """kernel k(x: {t}[M, {k}], w: weight {t}[2 * {n}, {k}],
        v: weight {t}[2 * {k}, {n}]) -> (y: {t}[M, {k}])
        {{ y = geglu(linear(swiglu(linear(x, w)), v)); }}""",
}


def text_of(form: str, k: int, n: int, t: str) -> str:
    text = FORMS[form].replace("2 * {n}", str(2 * n)).replace("2 * {k}", str(2 * k))
    return text.format(k=k, n=n, t=t)


class Case:
    """A program of few rows and what it is given."""

    def __init__(self, form: str, rows: int, k: int = 136, n: int = 328, t: str = "bf16") -> None:
        self.program = fusedsl.compile(text_of(form, k, n, t))
        self.inputs: dict[str, Tensor] = random_inputs(self.program.graph(), {"M": rows}, seed=rows)

    def run(self, together: int = 7, changed: Any = lambda text: text) -> dict[str, Tensor]:
        """The outputs by the model, on poisoned memory; K is shared as widely as it can be."""
        inputs, graph = self.inputs, self.program.graph()
        env = {"M": len(inputs["x"])}
        plan = planned(self.program.plan, env, SM_90)
        assert all(kernel.ring for kernel in plan.kernels)
        source = emit(plan, main_loop="specialised")
        weights = {p.name: inputs[p.name] for p in graph.params if p.weight}
        binding = Binding.make(plan, weights, Dims(), hold=True)
        tensors: dict[str, Tensor] = {**inputs, **binding.values}
        configs: dict[str, TileConfig] = {}
        for emitted in source.kernels:
            kernel = emitted.plan
            config = choose(plan, kernel, env, SM_90, "specialised")
            configs[kernel.name] = config
            for name in kernel.writes:
                kind = plan.type_of(name).concrete(env)
                tensors[name] = torch.full(kind, float("nan"), dtype=inputs["x"].dtype)
            sums = torch.full((parts(kernel, config, env),), float("nan"))
            tensors[f"{kernel.name}.parts"] = sums
            tensors[f"{kernel.name}.arrived"] = torch.full((1024,), 99, dtype=torch.int32)
        for emitted in source.kernels:
            kernel, config = emitted.plan, configs[emitted.name]
            args: list[Any] = []
            for arg in emitted.args:
                if arg.role == "pointer":
                    args.append(Pointer(tensors[arg.value]))
                elif arg.role in ("stride", "fixed_stride"):
                    args.append(tensors[arg.value].stride(0))
                elif arg.role == "descriptor":
                    args.append(Descriptor(tensors[arg.value], emitted.block_shape(arg, config)))
                elif arg.role == "rows":
                    args.append(env["M"])
                elif arg.name == "FAST":
                    args.append(False)
                else:
                    value = compile_time_value(arg, kernel.name, plan, configs, env)
                    args.append(Value(value) if arg.name in ("N", "K") else value)
            programs = -(-kernel.cols.bind(env) // 64) * config.split
            machine = Machine(changed(source.text), programs, min(together, programs))
            machine.launch(kernel.name, args)
        return {name: tensors[name] for name in graph.outputs}

    def exact(self) -> dict[str, Tensor]:
        return dict(evaluate(self.program.graph(), self.inputs))


def check(case: Case, got: dict[str, Tensor]) -> None:
    exact = case.exact()
    for name, tensor in got.items():
        assert tensor.isfinite().all(), name
        assert error(tensor, exact[name]) < 6e-3, name


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("rows", "k", "n"), [(1, 136, 328), (17, 2568, 72), (64, 72, 2056)])
def test_tails(form: str, rows: int, k: int, n: int) -> None:
    case = Case(form, rows, k, n)
    check(case, case.run())


def test_k_is_shared() -> None:
    """By programs in any order, with the same bits."""
    case = Case("mlp", 5, 72, 4104, "fp16")
    plan = planned(case.program.plan, {"M": 5}, SM_90)
    configs = [choose(plan, k, {"M": 5}, SM_90, "specialised") for k in plan.kernels]
    assert [c.split for c in configs] == [1, 8]
    wanted = case.run()
    check(case, wanted)
    for together in (1, 3):
        assert torch.equal(case.run(together)["y"], wanted["y"])


def test_hard_rows_stay_by_themselves() -> None:
    case = Case("mlp", 20)
    plain = case.run()["y"]
    hard = {5: float("nan"), 13: float("inf"), 19: -float("inf")}
    for row, value in hard.items():
        case.inputs["x"][row, row % 136] = value
    got = case.run()["y"]
    for row in range(20):
        if row in hard:
            assert got[row].isnan().all()
        else:
            assert torch.equal(got[row], plain[row])


@pytest.mark.parametrize(
    ("line", "k", "n"),
    [
        ("mbarrier.wait(full.index(stage), phase)", 136, 72),
        ("mbarrier.wait(empty.index(stage), phase)", 5128, 72),
        ("acc = sum_parts(acc, every, M, SIZE, SPLIT)", 72, 4104),
    ],
)
def test_faults_are_seen(line: str, k: int, n: int) -> None:
    """Without a wait, or with the last part for the sum of all, one run of a few is wrong."""
    case = Case("bias", 5, k, n)
    exact = case.exact()

    def broken(text: str) -> str:
        assert line in text
        return text.replace(line, "pass")

    for _ in range(20):
        try:
            got = case.run(changed=broken)
            if not all(error(got[name], exact[name]) < 6e-3 for name in got):
                return
        except (AssertionError, RuntimeError):
            return
    pytest.fail("no fault was seen")


# where they are made ------------------------------------------------------------------------------
def ringed(text: str, rows: int = 4, **more: int) -> list[bool]:
    plan = planned(fusedsl.compile(text).plan, {"M": rows, **more}, SM_90)
    return [kernel.ring for kernel in plan.kernels if kernel.anchor is not None]


def test_up_to_64_rows_on_hopper() -> None:
    text = text_of("mlp", 136, 328, "bf16")
    program = fusedsl.compile(text)
    assert ringed(text) == ringed(text, 64) == [True, True]
    assert not any(ringed(text, 65))
    for name in ("sm_80", "sm_100", "gfx942"):
        plan = planned(program.plan, {"M": 4}, Target.parse(name))
        assert [kernel.form for kernel in plan.kernels] == [Form.FEW_ROWS] * 2


@pytest.mark.parametrize(
    "text",
    [
        text_of("bias", 136, 328, "fp32"),
        text_of("bias", 132, 330, "bf16"),  # K of no multiple of 16 bytes
        """kernel k(x: bf16[M, 64], w: weight bf16[64, 64], v: weight bf16[64, 96])
        -> (y: bf16[M, 96]) { y = matmul(matmul(x, w), v); }""",
        """kernel k(x: bf16[M, 64], g: weight bf16[64], s: weight bf16[64], w: weight bf16[96, 64])
        -> (y: bf16[M, 96]) { y = linear(layer_norm(x, g, s), w); }""",
        """kernel k(x: bf16[M, 64], w: weight bf16[50000, 64]) -> (y: bf16[M, 50000])
        { y = linear(x, w); }""",  # more tiles than programs are there at a time
    ],
)
def test_where_they_are_not(text: str) -> None:
    assert not any(ringed(text))


def test_weights_that_the_program_makes() -> None:
    """They are written by a kernel that may still be running."""
    text = """kernel k(x: bf16[M, 64], a: bf16[96, 64], b: bf16[96, 64]) -> (y: bf16[M, 96]) {
        w = a * b; y = linear(x, w); }"""
    plan = for_few_rows(fusedsl.compile(text).plan)
    for kernel in plan.kernels:
        assert not can_ring(plan, kernel)


def of(form: str, k: int, n: int) -> Plan:
    return planned(fusedsl.compile(text_of(form, k, n, "bf16")).plan, {"M": 4}, SM_90)


def test_which_read_their_weights_early() -> None:
    """All but the first: what runs ahead of it is not this program's."""
    plan = of("mlp", 2048, 8192)
    configs = [choose(plan, k, {"M": 4}, SM_90, "specialised") for k in plan.kernels]
    assert [c.early for c in configs] == [False, True]
    assert [c.ahead > 0 for c in configs] == [True, False]
    assert all(c.pdl for c in configs)


@pytest.mark.parametrize("rows", [1, 17, 33])
@pytest.mark.parametrize(("k", "n"), [(2048, 8192), (4096, 14336), (64, 64), (136, 328)])
def test_configurations_are_legal(rows: int, k: int, n: int) -> None:
    plan, env = of("mlp", k, n), {"M": rows}
    for kernel in plan.kernels:
        assert pays_in_ring(plan, kernel, env, SM_90)
        for config in candidates(plan, kernel, env, SM_90, "specialised"):
            assert problem(plan, kernel, config, SM_90, "specialised") is None
            assert config.block_m == {1: 16, 17: 32, 33: 64}[rows]
    default = choose(plan, plan.kernels[0], env, SM_90, "specialised")
    for name, value in {
        "block_k": 64,
        "block_n": 256,
        "stages": 40,
        "split": 2,
        "warps": 8,
    }.items():
        wrong = TileConfig(**{**default.__dict__, name: value})
        assert problem(plan, plan.kernels[0], wrong, SM_90, "specialised") is not None


def test_two_programs_where_there_are_more_tiles() -> None:
    """Two on a multiprocessor have half of its memory and registers each."""
    plan = of("mlp", 4096, 14336)
    first, second = (choose(plan, k, {"M": 4}, SM_90, "specialised") for k in plan.kernels)
    assert (first.registers, second.registers) == (128, 0)
    assert first.stages * 2 < second.stages
