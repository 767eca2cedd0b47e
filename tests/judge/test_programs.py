"""What is rejected, with its code, and what is accepted."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

import fusedsl
from fusedsl.judge import Code, Verdict, judge, load_task
from fusedsl.judge.roofline import Peak

HERE = Path(__file__).parent
TASK = load_task(HERE / "small_task.py")
CHEATS = HERE / "cheats.py"

DSL = """
kernel k(gain: weight fp32[K], x: fp32[M, K]) -> (y: fp32[M, K]) {
  y = rms_norm(x, gain, eps=1e-6);
}
"""

REJECTED: list[tuple[str, Code]] = [
    ("zero", Code.WRONG_VALUES),
    ("constant", Code.WRONG_VALUES),
    ("identity", Code.WRONG_VALUES),
    ("no_gain", Code.WRONG_VALUES),
    ("stale", Code.STALE_OUTPUT),
    ("stale_tail", Code.STALE_OUTPUT),
    ("stale_out", Code.STALE_OUTPUT),
    ("one_value_off", Code.LOW_PRECISION),
    ("mutates", Code.INPUT_MUTATED),
    ("mutates_weight", Code.INPUT_MUTATED),
    ("nan_blind", Code.NAN_NOT_PROPAGATED),
    ("half", Code.LOW_PRECISION),
    ("bfloat", Code.LOW_PRECISION),
    ("half_gain", Code.LOW_PRECISION),
    ("cached_by_pointer", Code.RESULT_CACHED),
    ("cached_by_object", Code.RESULT_CACHED),
    ("cached_later", Code.WRONG_VALUES),
    ("one_buffer", Code.OUTPUT_REUSED),
    ("random", Code.NOT_DETERMINISTIC),
    ("raises", Code.EXCEPTION),
    ("leaves", Code.EXCEPTION),
    ("ends", Code.CRASHED),
    ("crashes", Code.CRASHED),
    ("hangs", Code.TIMED_OUT),
    ("allocates_much", Code.OUT_OF_MEMORY),
    ("allocates_more_and_more", Code.OUT_OF_MEMORY),
    ("wrong_shape", Code.WRONG_SHAPE),
    ("transposed", Code.WRONG_SHAPE),
    ("wrong_dtype", Code.WRONG_DTYPE),
    ("too_many", Code.WRONG_COUNT),
    ("none", Code.NOT_A_TENSOR),
    ("patches_clock", Code.CLOCK_TAMPERED),
    ("patches_event", Code.CLOCK_TAMPERED),
    ("patches_the_worker", Code.CLOCK_TAMPERED),
    ("skips_calls", Code.WRONG_VALUES),
    ("works_early", Code.CLOCK_TAMPERED),
    ("does_not_exist", Code.LOAD_FAILED),
]


def verdict(function: str, device: str = "cpu") -> Verdict:
    return judge(TASK, f"{CHEATS}:{function}", device=device)


@pytest.mark.parametrize(("function", "code"), REJECTED, ids=lambda v: str(v))
def test_rejected(function: str, code: Code) -> None:
    found = verdict(function)
    assert (found.status, found.code, found.exit_code) == ("rejected", code, 1), found.reasons


def test_a_dropped_eps_is_seen() -> None:
    assert verdict("no_eps").code in (Code.WRONG_VALUES, Code.LOW_PRECISION, Code.NOT_FINITE)


@pytest.mark.parametrize("function", ["right", "right_into_out", "right_as_tuple", "more_exact"])
def test_accepted(function: str) -> None:
    found = verdict(function)
    assert found.accepted and found.exit_code == 0 and not found.reasons, found.reasons
    assert found.speed is not None and found.speed.seconds > 0
    assert {e.case for e in found.errors} == set(TASK.cases)
    assert len(found.shapes) == 3 and "drops:5:0:mul" in found.mutants


def test_the_reference_is_accepted() -> None:
    assert judge(TASK, "reference", device="cpu").accepted


def test_hidden_shapes_are_drawn_anew() -> None:
    shapes = {str(verdict("right").shapes[1]) for _ in range(4)}
    assert len(shapes) > 1


def test_programs_in_the_language(tmp_path: Path) -> None:
    """Named parameters in another order; text and JSON alike."""
    text, graph = tmp_path / "k.fdsl", tmp_path / "k.json"
    text.write_text(DSL)
    graph.write_text(_json(DSL))
    for file in (text, graph):
        found = judge(TASK, file, device="cpu")
        assert found.accepted, found.reasons


def _json(text: str) -> str:
    import json

    from fusedsl import frontend

    return json.dumps(frontend.to_json(fusedsl.parse(text)))


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (DSL.replace("1e-6", "1e-5"), Code.WRONG_VALUES),
        (DSL.replace("rms_norm", "rmsnorm"), Code.LOAD_FAILED),
        (DSL.replace("fp32", "bf16"), Code.EXCEPTION),
    ],
)
def test_wrong_programs_in_the_language(text: str, code: Code, tmp_path: Path) -> None:
    file = tmp_path / "k.fdsl"
    file.write_text(text)
    found = judge(TASK, file, device="cpu")
    assert found.code in {code, Code.LOW_PRECISION if code is Code.WRONG_VALUES else code}


def test_faster_than_the_device_can_be() -> None:
    found = judge(TASK, "reference", device="cpu", peak=Peak(1e3, 1e3, 0))
    assert found.code is Code.ABOVE_ROOFLINE


def test_too_slow() -> None:
    asked = dataclasses.replace(TASK, min_speedup=0.5)
    assert judge(asked, f"{CHEATS}:sleeps", device="cpu").code is Code.TOO_SLOW
    assert verdict("sleeps").accepted


def test_a_file_that_cannot_be_loaded(tmp_path: Path) -> None:
    for text in ("def f(:", "import no_such_module", "raise SystemExit(3)"):
        file = tmp_path / "broken.py"
        file.write_text(text)
        found = judge(TASK, f"{file}:f", device="cpu")
        assert found.code is Code.LOAD_FAILED, found.reasons


@pytest.mark.gpu
@pytest.mark.parametrize("function", ["right", "right_into_out", "joined"])
def test_accepted_on_a_gpu(function: str) -> None:
    found = verdict(function, "cuda")
    assert found.accepted, found.reasons


@pytest.mark.gpu
@pytest.mark.parametrize("function", ["beside", "beside_without_waiting"])
def test_work_beside_the_stream(function: str) -> None:
    found = verdict(function, "cuda")
    assert found.status == "rejected"
    assert found.code in (Code.SIDE_STREAM, Code.STALE_OUTPUT, Code.RESULT_CACHED), found.reasons


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("function", "code"),
    [
        ("stale", Code.STALE_OUTPUT),
        ("cached_by_pointer", Code.RESULT_CACHED),
        ("half", Code.LOW_PRECISION),
        ("patches_event", Code.CLOCK_TAMPERED),
        ("patches_the_worker", Code.CLOCK_TAMPERED),
    ],
)
def test_rejected_on_a_gpu(function: str, code: Code) -> None:
    assert verdict(function, "cuda").code is code


@pytest.mark.gpu
def test_the_roofline_of_a_gpu() -> None:
    """Torch's copy and products are below what is allowed, and not by much."""
    from fusedsl.judge.roofline import measure

    peak = measure("cuda:0")
    assert 1e11 < peak.bandwidth < 2e13 and 1e13 < peak.flops < 1e16 and peak.cache > 1 << 20
