"""What projections in Gluon compute, in a model of the machine: rings, barriers, products that are
under way, statistics that are taken along."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

import fusedsl
from fusedsl.codegen import compile_time_value, emit
from fusedsl.ir import evaluate, random_inputs
from fusedsl.runtime import planning
from fusedsl.runtime.binding import Binding
from fusedsl.runtime.check import Dims
from fusedsl.runtime.planning import planned
from fusedsl.schedule import Target, choose
from tests.codegen.gluon_model import Pointer, Value
from tests.codegen.harness import error
from tests.codegen.projection_model import Descriptor, Machine

SM_90 = Target.parse("sm_90")
FORMS = {
    "layer": """kernel k(x: {t}[M, {k}], g: weight {t}[{k}], s: weight {t}[{k}],
        w: weight {t}[{n}, {k}], b: weight {t}[{n}]) -> (y: {t}[M, {n}])
        {{ y = gelu(linear(layer_norm(x, g, s), w, b), approximate=tanh); }}""",
    "plain": """kernel k(x: {t}[M, {k}], w: weight {t}[{n}, {k}]) -> (y: {t}[M, {n}])
        {{ y = gelu(linear(x, w), approximate=tanh); }}""",
    "sums": """kernel k(x: {t}[M, {k}], g: weight {t}[{k}], w: weight {t}[{n}, {k}])
        -> (y: {t}[M, {n}]) {{ y = linear(rms_norm(x, g, eps=1e-6), w); }}""",
    "gated": """kernel k(x: {t}[M, {k}], g: weight {t}[{k}], w: weight {t}[2 * {n}, {k}])
        -> (y: {t}[M, {n}]) {{ y = swiglu(linear(rms_norm(x, g, eps=1e-6), w)); }}""",
    "residual": """kernel k(x: {t}[M, {k}], h: {t}[M, {n}], w: weight {t}[{n}, {k}])
        -> (y: {t}[M, {n}]) {{ y = linear(x, w) + h; }}""",
}


@pytest.fixture(autouse=True)
def everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """In Gluon wherever it can be done."""
    for name in ("pays", "pays_in_turn", "fills"):
        monkeypatch.setattr(planning, name, lambda *_: True)


@dataclass
class Case:
    """A projection and what it was given."""

    program: fusedsl.Program
    inputs: dict[str, Tensor]

    @staticmethod
    def of(form: str, rows: int, k: int, n: int, t: str = "bf16") -> Case:
        text = FORMS[form].replace("2 * {n}", str(2 * n)).format(k=k, n=n, t=t)
        program = fusedsl.compile(text)
        return Case(program, random_inputs(program.graph(), {"M": rows}, seed=rows))

    def run(self, programs: int = 3, together: int = 3) -> Tensor:
        """The output by the model, on poisoned memory."""
        inputs, graph = self.inputs, self.program.graph()
        rows = len(inputs["x"])
        env = {"M": rows}
        plan = planned(self.program.plan, env, SM_90)
        source = emit(plan, main_loop="specialised")
        (kernel,) = source.kernels
        config = choose(plan, kernel.plan, env, SM_90, "specialised")
        weights = {p.name: inputs[p.name] for p in graph.params if p.weight}
        binding = Binding.make(plan, weights, Dims(), hold=True)
        tensors: dict[str, Tensor] = {**inputs, **binding.values}
        x = inputs["x"].double()
        columns = {"mean_1": x.mean(1), "inv_rms_1": (x.var(1, unbiased=False) + 1e-5).rsqrt()}
        made = {name: c.float()[:, None] for name, c in columns.items()}
        tensors |= {name: made[name] for name in kernel.plan.reads if name in made}
        for name in kernel.plan.writes:
            kind = plan.type_of(name).concrete(env)
            tensors[name] = torch.full(kind, float("nan"), dtype=inputs["x"].dtype)
        args: list[Any] = []
        for arg in kernel.args:
            if arg.role == "pointer":
                args.append(Pointer(tensors[arg.value]))
            elif arg.role == "stride":
                args.append(tensors[arg.value].stride(0))
            elif arg.role == "descriptor":
                args.append(Descriptor(tensors[arg.value], kernel.block_shape(arg, config)))
            elif arg.role == "rows":
                args.append(rows)
            elif arg.name == "FAST":
                args.append(False)
            else:
                configs = {kernel.name: config}
                args.append(Value(compile_time_value(arg, kernel.name, plan, configs, env)))
        Machine(source.text, programs, together).launch(kernel.name, args)
        return tensors["y"]

    def exact(self) -> Mapping[str, Tensor]:
        return evaluate(self.program.graph(), self.inputs)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("rows", "k", "n"), [(300, 136, 264), (128, 64, 128), (513, 448, 136)])
def test_tails(form: str, rows: int, k: int, n: int) -> None:
    case = Case.of(form, rows, k, n)
    got = case.run()
    assert got.isfinite().all()
    assert error(got, case.exact()["y"]) < 4e-3


@pytest.mark.parametrize("programs", [1, 2, 7])
@pytest.mark.parametrize("form", ["plain", "sums"])
def test_any_number_of_programs(form: str, programs: int) -> None:
    case = Case.of(form, 700, 200, 392, "fp16")
    wanted = case.run()
    assert torch.equal(case.run(programs, programs), wanted)
    assert torch.equal(case.run(programs, 1), wanted)


@pytest.mark.parametrize("form", ["layer", "sums", "gated"])
def test_hard_rows_stay_by_themselves(form: str) -> None:
    case = Case.of(form, 300, 136, 264)
    plain = case.run()
    hard = {5: float("nan"), 130: float("inf"), 299: -float("inf")}
    for row, value in hard.items():
        case.inputs["x"][row, row % 136] = value
    got = case.run()
    for row in range(300):
        assert got[row].isnan().all() if row in hard else torch.equal(got[row], plain[row])


# a model that cannot fail proves nothing ----------------------------------------------------------
@pytest.mark.parametrize(
    ("form", "line"),
    [
        ("plain", "mbarrier.wait(full.index(stage), phase)"),
        ("plain", "mbarrier.wait(empty.index(stage), phase)"),
        ("sums", "mbarrier.wait(full.index(stage), phase)"),
    ],
)
def test_faults_are_seen(form: str, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a wait, one run of a few is wrong at the least."""
    case = Case.of(form, 300, 448, 264)
    exact = case.exact()["y"]
    real = Machine.__init__

    def broken(self: Machine, text: str, programs: int, together: int) -> None:
        assert line in text
        real(self, text.replace(line, "pass"), programs, together)

    monkeypatch.setattr(Machine, "__init__", broken)
    for _ in range(20):
        try:
            if not error(case.run(), exact) < 4e-3:
                return
        except (AssertionError, RuntimeError):
            return
    pytest.fail("no fault was seen")
