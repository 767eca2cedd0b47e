"""Which plan runs: by the sizes, the target and what triton can do."""

from __future__ import annotations

from dataclasses import replace

import pytest

import fusedsl
from examples import read
from fusedsl.runtime import planning
from fusedsl.runtime.planning import Change, change_of, changed, planned
from fusedsl.schedule import Target, problem
from fusedsl.schedule import specialised as rules
from fusedsl.schedule.default import choose

HOPPER = Target.parse("sm_90")
CHAIN = """kernel k(h: bf16[M, {f}], x: bf16[M, {d}], w: weight bf16[{d}, {f}], g: weight bf16[{d}],
    v: weight bf16[{f}, {d}]) -> (y: bf16[M, {f}]) {{
  s = linear(h, w) + x; y = linear(rms_norm(s, g), v); }}"""


def change(text: str, rows: int, target: Target = HOPPER) -> Change:
    return change_of(fusedsl.compile(text).plan, {"M": rows}, target)


def test_by_the_number_of_rows() -> None:
    text = read("rmsnorm_qkv")
    assert change(text, 8192) == Change(gone=("k0_inv_rms",))
    assert change(text, 6145) == change(text, 8192), "a class of rows has one plan"
    assert change(text, 256) == Change(), "a round of tiles leaves most of the machine idle"


def test_sums_and_tiles() -> None:
    text = CHAIN.format(d=2048, f=4096)
    assert change(text, 8192) == Change(("partial_mean_square_1",), (), ("k0_linear",))
    plan = planned(fusedsl.compile(text).plan, {"M": 8192}, HOPPER)
    assert all(kernel.specialised for kernel in plan.kernels)
    for kernel in plan.kernels:
        config = choose(plan, kernel, {"M": 8192}, HOPPER, "specialised")
        assert problem(plan, kernel, config, HOPPER, "specialised") is None
        assert rules.specialised_bytes(config) <= HOPPER.shared_limit


def test_kernels_turn_round_by_those_that_are_left() -> None:
    text = """kernel k(x: bf16[M, 2048], g: weight bf16[2048], v: weight bf16[4096, 2048],
        w: weight bf16[2048, 4096]) -> (y: bf16[M, 2048])
        { y = linear(linear(rms_norm(x, g, eps=1e-6), v), w); }"""
    plan = fusedsl.compile(text).plan
    assert [k.backwards for k in plan.kernels] == [False, True, False]
    left = planned(plan, {"M": 8192}, HOPPER)
    assert [k.backwards for k in left.kernels] == [False, True]


def test_a_projection_that_takes_a_sum_and_reads_a_tile() -> None:
    text = CHAIN.format(d=2048, f=2048).replace("g), v)", "g), v) + s")
    plan = planned(fusedsl.compile(text).plan, {"M": 32768}, HOPPER)
    last = plan.kernels[-1]
    assert last.specialised and plan.tiles_read(last) == ("s",)
    assert [n.block.name for n in last.recomputed] == ["row_mean_square"]
    stored = plan.stored
    assert all(set(kernel.reads) <= stored for kernel in plan.kernels)
    known = [{*k.computed, *stored} for k in plan.kernels]
    assert all(
        set(n.inputs) <= at for k, at in zip(plan.kernels, known, strict=True) for n in k.nodes
    )


@pytest.mark.parametrize("name", [*(n for n in Target.names() if n != "sm_90"), "interpreter"])
def test_hopper_alone(name: str) -> None:
    target = Target.interpreter() if name == "interpreter" else Target.parse(name)
    assert change(read("rmsnorm_qkv"), 8192, target) == Change()


def test_a_triton_without_gluon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "has_gluon", lambda: False)
    assert change(read("rmsnorm_qkv"), 8192) == Change()


@pytest.mark.parametrize(
    "text",
    [
        read("rmsnorm_qkv", dtype="fp32"),
        CHAIN.format(d=2052, f=4100),
        CHAIN.format(d=2048, f=4096)
        .replace("-> (y: bf16", "-> (y: fp32")
        .replace("g), v)", "g), v, out_dtype=fp32)"),
        CHAIN.format(d=2048, f=4096).replace("rms_norm(s, g)", "layer_norm(s, g)"),
    ],
    ids=["fp32", "rows of no whole 16 bytes", "an fp32 result", "moments"],
)
def test_what_is_not_specialised(text: str) -> None:
    found = change(text, 8192)
    assert not found.sums and not found.gone


def test_a_plan_is_chosen_once() -> None:
    program = fusedsl.compile(read("rmsnorm_qkv"))
    plan = planned(program.plan, {"M": 8192}, HOPPER)
    assert planned(plan, {"M": 8192}, HOPPER) is plan
    assert changed(program.plan, Change()) is program.plan


def test_engines_are_kept_by_what_changes() -> None:
    program = fusedsl.compile(read("rmsnorm_qkv"))
    engine = program._engine
    made = engine.planned({"M": 8192}, HOPPER)
    assert made is not engine and made is engine.planned({"M": 16384}, HOPPER)
    assert made.planned({"M": 8192}, HOPPER) is made
    assert engine.planned({"M": 256}, HOPPER) is engine and engine.planned({"M": 8192}) is engine
    program.main_loop = "pointer"
    assert engine.planned({"M": 8192}, HOPPER) is engine


def test_configurations_that_do_not_fit() -> None:
    plan = planned(fusedsl.compile(read("rmsnorm_qkv")).plan, {"M": 8192}, HOPPER)
    (kernel,) = plan.kernels
    config = choose(plan, kernel, {"M": 8192}, HOPPER, "specialised")
    for wrong, said in (
        ({"stages": 5}, "bytes of shared memory"),
        ({"stages": 1}, "bytes of shared memory"),
        ({"block_n": 128}, "a tile of"),
        ({"programs": 264}, "264 programs"),
    ):
        found = problem(plan, kernel, replace(config, **wrong), HOPPER, "specialised")
        assert found is not None and said in found
    assert "no specialised" in str(problem(plan, kernel, config, Target.parse("sm_80"), "tma"))


def test_the_rules_are_what_planning_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "pays", lambda *_: False)
    assert change(read("rmsnorm_qkv"), 8192) == Change()
