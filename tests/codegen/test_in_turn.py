"""Projections by two groups in turn: where they are chosen, what is emitted, and their barriers."""

from __future__ import annotations

import random
from collections.abc import Generator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

import fusedsl
from fusedsl.codegen import emit
from fusedsl.fuse import Form
from fusedsl.runtime.ahead import schedule
from fusedsl.runtime.build import compile_jobs, place
from fusedsl.runtime.planning import planned
from fusedsl.schedule import Target, candidates, choose, problem, signature

GELU = """kernel k(x: bf16[M, {k}], g: weight bf16[{k}], s: weight bf16[{k}],
    w: weight bf16[{n}, {k}], b: weight bf16[{n}]) -> (y: bf16[M, {n}])
    {{ y = gelu(linear(layer_norm(x, g, s), w, b), approximate=tanh); }}"""
LIGHT = """kernel k(x: bf16[M, {k}], w: weight bf16[{n}, {k}]) -> (y: bf16[M, {n}])
    {{ y = relu(linear(x, w)); }}"""
NO_NORM = LIGHT.replace("relu(linear(x, w))", "gelu(linear(x, w))")
WEIGHTS_BY_K = LIGHT.replace("relu(linear(x, w))", "gelu(matmul(x, w))").replace(
    "bf16[{n}, {k}]", "bf16[{k}, {n}]"
)
NORM = """kernel k(x: bf16[M, {k}], g: weight bf16[{k}], w: weight bf16[{n}, {k}])
    -> (y: bf16[M, {n}]) {{ y = silu(linear(rms_norm(x, g, eps=1e-6), w)); }}"""
GATED = """kernel k(x: bf16[M, {k}], w: weight bf16[2 * {n}, {k}]) -> (y: bf16[M, {n}])
    {{ y = swiglu(linear(x, w)); }}"""
RESIDUAL = """kernel k(x: bf16[M, {k}], h: bf16[M, {n}], w: weight bf16[{n}, {k}])
    -> (y: bf16[M, {n}]) {{ y = gelu(linear(x, w)) + h; }}"""
SM_90 = Target.parse("sm_90")


def text_of(form: str, k: int = 768, n: int = 3072) -> str:
    return form.replace("2 * {n}", str(2 * n)).format(k=k, n=n)


def forms(text: str, rows: int = 16384, target: Target = SM_90) -> list[Form]:
    plan = fusedsl.compile(text).plan
    return [kernel.form for kernel in planned(plan, {"M": rows}, target).kernels]


@pytest.mark.parametrize(
    ("text", "kernels"),
    [(text_of(GELU), 2), (text_of(NO_NORM), 1), (text_of(GELU, 1024, 4096), 2)],
)
def test_heavy_epilogues_are_taken_in_turn(text: str, kernels: int) -> None:
    assert forms(text) == [Form.TILED] * (kernels - 1) + [Form.IN_TURN]


@pytest.mark.parametrize("form", [LIGHT, WEIGHTS_BY_K, NORM, GATED, RESIDUAL])
def test_other_projections_are_not(form: str) -> None:
    assert Form.IN_TURN not in forms(text_of(form))


@pytest.mark.parametrize("target", ["sm_80", "sm_100", "gfx942"])
def test_nor_on_other_targets(target: str) -> None:
    assert forms(text_of(GELU), target=Target.parse(target)) == [Form.TILED] * 2


def test_nor_where_tiles_are_few() -> None:
    assert Form.IN_TURN not in forms(text_of(GELU), 1024)


def test_nor_where_no_tensor_map_expresses_the_rows() -> None:
    assert Form.IN_TURN not in forms(text_of(GELU, 768, 3076))


def test_the_file_and_the_configurations() -> None:
    plan = fusedsl.compile(text_of(GELU)).plan
    made = planned(plan, {"M": 16384}, SM_90)
    kernel = made.kernels[1]
    found = emit(made, main_loop="specialised")
    assert [source.name for source in found.kernels] == [kernel.name]
    for wanted in ("_multiply(", "load_in_turn(", "tanh.approx", "def gelu(", "def sub_outer("):
        assert wanted in found.text, wanted
    assert "gelu" not in emit(made, main_loop="tma").text.split("def k0")[0]
    default = choose(made, kernel, {"M": 16384}, SM_90, "specialised")
    every = candidates(made, kernel, {"M": 16384}, SM_90, "specialised")
    assert every[0] == default and len({config.group_m for config in every}) == len(every) == 3
    assert all(problem(made, kernel, c, SM_90, "specialised") is None for c in every)
    for wrong in ({"block_n": 256}, {"stages": 7}, {"warps": 8}, {"programs": 64}):
        assert problem(made, kernel, replace(default, **wrong), SM_90, "specialised"), wrong
    assert signature(made, kernel) != signature(plan, plan.kernels[1])


@pytest.mark.slow
@pytest.mark.parametrize("approximate", ["tanh", "none"])
def test_it_fits_hopper_without_spills(approximate: str, tmp_path: Path) -> None:
    rows = {"M": 16384}
    text = text_of(GELU).replace("approximate=tanh", f"approximate={approximate}")
    plan = planned(fusedsl.compile(text).plan, rows, SM_90)
    loops = ("tma", "pointer", "specialised")
    emitted = {loop: emit(plan, main_loop=loop) for loop in loops}
    how = schedule(plan, SM_90, rows, emitted["tma"])
    jobs = place(plan, how, emitted, tmp_path)
    _, built = compile_jobs([SM_90] * 2, jobs)
    assert built.error is None and built.spills == 0
    assert built.shared_memory <= SM_90.shared_limit


# the barriers ----------------------------------------------------------------------------------
@dataclass
class Barrier:
    """Phases that have ended; a wait for a parity ends where the current phase has another."""

    ended: int = 0

    def passes(self, parity: int) -> bool:
        return self.ended % 2 != parity


class Ring:
    """The skeleton's three roles over the tiles of one program, one step at a time. A filling
    arrives a while after it was asked for; products end a while after they were issued."""

    def __init__(self, tiles: int, steps: int, stages: int) -> None:
        self.tiles, self.steps, self.stages = tiles, steps, stages
        self.full = [Barrier() for _ in range(stages)]
        self.empty = [Barrier() for _ in range(stages)]
        self.turn = [Barrier(), Barrier()]
        self.held: list[int | None] = [None] * stages
        self.read: list[int] = []

    def loads(self) -> Generator[Barrier | None]:
        stage, phase = 0, 1
        for position in range(self.tiles * self.steps):
            while not self.empty[stage].passes(phase):
                yield None
            self.held[stage] = None  # what is under way
            yield None
            self.held[stage] = position
            self.full[stage].ended += 1
            stage, phase = self.next(stage, phase)

    def multiplies(self, part: int) -> Generator[Barrier | None]:
        stage, phase = self.skip(0, 0, self.steps * part)
        mine = 1 - part
        for tile in range(part, self.tiles, 2):
            while not self.turn[part].passes(mine):
                yield None
            mine ^= 1
            last = -1
            for step in range(self.steps):
                while not self.full[stage].passes(phase):
                    yield None
                assert self.held[stage] == tile * self.steps + step
                self.read.append(tile * self.steps + step)
                yield None
                if last >= 0:
                    assert self.held[last] == tile * self.steps + step - 1
                    self.empty[last].ended += 1
                last = stage
                stage, phase = self.next(stage, phase)
            self.turn[1 - part].ended += 1
            stage, phase = self.skip(stage, phase, self.steps)
            yield None
            assert self.held[last] == (tile + 1) * self.steps - 1
            self.empty[last].ended += 1

    def next(self, stage: int, phase: int) -> tuple[int, int]:
        return (0, phase ^ 1) if stage + 1 == self.stages else (stage + 1, phase)

    def skip(self, stage: int, phase: int, steps: int) -> tuple[int, int]:
        ahead = stage + steps
        return ahead % self.stages, phase ^ ((ahead // self.stages) & 1)


@pytest.mark.parametrize("stages", [2, 3, 5])
@pytest.mark.parametrize("steps", [1, 2, 5, 12])
@pytest.mark.parametrize("tiles", [0, 1, 2, 3, 6, 7])
def test_barriers(tiles: int, steps: int, stages: int) -> None:
    """However the roles are interleaved, every step is read once, in order, and nothing hangs."""
    for seed in range(60):
        ring, chance = Ring(tiles, steps, stages), random.Random(seed)
        roles = [ring.loads(), ring.multiplies(0), ring.multiplies(1)]
        weights = [chance.choice((1, 10)) for _ in roles]
        for _ in range(400 * (tiles * steps + 3)):
            if not roles:
                break
            role = chance.choices(range(len(roles)), weights[: len(roles)])[0]
            if next(roles[role], "ended") == "ended":
                del roles[role]
        assert not roles, "it hangs"
        assert ring.read == list(range(tiles * steps))
