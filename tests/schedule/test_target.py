"""Targets by name and by device."""

from __future__ import annotations

import pytest

from fusedsl.diagnostics import FusedslError
from fusedsl.schedule import Target


@pytest.mark.parametrize("name", Target.names())
def test_every_name_parses(name: str) -> None:
    target = Target.parse(name)
    assert target.name == name and target.sms > 0 and target.shared_limit >= 65_536
    assert target.backend == ("cuda" if name.startswith("sm_") else "hip")
    assert target.warp_size == (32 if target.backend == "cuda" else 64)


@pytest.mark.parametrize(
    ("name", "loop"),
    [("sm_80", "pointer"), ("sm_89", "pointer"), ("sm_90", "tma"), ("sm_120", "tma"),
     ("gfx942", "pointer")],
)  # fmt: skip
def test_main_loop(name: str, loop: str) -> None:
    assert Target.parse(name).main_loop == loop


@pytest.mark.parametrize(("wrong", "right"), [("sm_9O", "sm_90"), ("gfx94", "gfx942")])
def test_an_unknown_target_offers_a_near_one(wrong: str, right: str) -> None:
    with pytest.raises(FusedslError) as caught:
        Target.parse(wrong)
    (problem,) = caught.value.diagnostics
    assert problem.code == "F0602" and wrong in problem.message and right in str(problem.fix)
    assert problem.expected == ", ".join(Target.names()) and problem.got == wrong


def test_an_unknown_target_far_from_all() -> None:
    with pytest.raises(FusedslError) as caught:
        Target.parse("tpu")
    (problem,) = caught.value.diagnostics
    assert problem.code == "F0602" and problem.fix


def test_interpreter() -> None:
    target = Target.interpreter()
    assert (target.backend, target.main_loop, target.warp_size) == ("interpreter", "tma", 32)


def test_of_device() -> None:
    assert Target.of_device("cuda", 90, 132, 232_448) == Target.parse("sm_90")
    assert Target.of_device("hip", "gfx942", 304, 65_536) == Target.parse("gfx942")
