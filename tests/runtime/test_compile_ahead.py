"""Jobs for processes that compile ahead: how arguments are described, and processes that die."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from triton.tools.tensor_descriptor import TensorDescriptor

from fusedsl.runtime import compile_ahead
from fusedsl.runtime.compile_ahead import Job
from fusedsl.runtime.tune_worker import described, stand_in

CPU = torch.device("cpu")


def test_arguments_come_back_as_triton_sees_them() -> None:
    wide = torch.empty(64, 72, dtype=torch.bfloat16)
    args = [
        wide,
        wide[:, 1:],
        TensorDescriptor(wide, [64, 65], [72, 1], [32, 64]),
        torch.empty(4, dtype=torch.float32),
        7,
        True,
        "ieee",
        0.5,
    ]
    again = [stand_in(arg, CPU) for arg in described(args)]
    assert described(again) == described(args)
    assert again[0].data_ptr() % 16 == 0 and again[1].data_ptr() % 16 != 0
    assert again[2].block_shape == [32, 64] and again[2].base.dtype == torch.bfloat16
    assert [a for a in again if not hasattr(a, "shape")] == [7, True, "ieee", 0.5]


def job(path: Path, text: str) -> Job:
    path.write_text(text)
    return Job(path.stem, str(path), "kernel", "cpu", [], {})


def test_a_job_that_fails_or_kills_its_process_leaves_the_others_alone(tmp_path: Path) -> None:
    jobs = [
        job(tmp_path / "a.py", "raise ValueError('no kernel here')"),
        job(tmp_path / "b.py", "import os\nos._exit(3)"),
        job(tmp_path / "c.py", "print('noise')"),
        Job("d", str(tmp_path / "none.py"), "kernel", "cpu", [], {}),
    ]
    seen: list[tuple[int, int]] = []
    answers = compile_ahead.compile_ahead(jobs, lambda done, total: seen.append((done, total)))
    assert "no kernel here" in answers[0]
    assert "died" in answers[1]
    assert "kernel" in answers[2] and "noise" not in answers[2]
    assert "FileNotFoundError" in answers[3]
    assert seen[0] == (0, 4) and seen[-1] == (4, 4)


def test_a_process_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_ahead, "PATIENCE", 15.0)
    hung = job(tmp_path / "a.py", "import time\ntime.sleep(600)")
    (answer,) = compile_ahead.compile_ahead([hung])
    assert "died or took more than" in answer


def test_no_jobs() -> None:
    assert compile_ahead.compile_ahead([]) == []
