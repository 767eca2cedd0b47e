"""`judge`: the proof of the task, the values of the program, then its speed."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import torch

from fusedsl import settings
from fusedsl.judge.candidate import describe
from fusedsl.judge.process import Worker
from fusedsl.judge.proof import prove
from fusedsl.judge.roofline import Peak
from fusedsl.judge.task import BadTask, Task, load_task
from fusedsl.judge.timing import Timing
from fusedsl.judge.trials import Trials, truth
from fusedsl.judge.verdict import Reason, Rejection, Speed, Verdict


def judge(
    task: str | Path | Task,
    program: str | Path,
    *,
    device: str | None = None,
    peak: Peak | None = None,
) -> Verdict:
    """Judge a program: `.fdsl`, `.json`, `path.py:function`, or `reference`.

    The candidate runs in a process of its own, within the task's budget; values are compared and
    time is taken here. `device` is CUDA where it is usable; `peak` replaces what is measured of
    it. Raises BadTask where the task or the path of the program is no use; a task that does not
    tell right from wrong gives the verdict "refused".
    """
    asked = task if isinstance(task, Task) else load_task(task)
    where = _device(device)
    spec = describe(program)
    about = (asked.name, str(program), where)
    mutants, refusal = prove(asked, where)
    if refusal is not None:
        return Verdict("refused", *about, reasons=(refusal,), mutants=mutants)
    found: dict[str, Any] = {"shapes": (), "errors": (), "speed": None}
    reasons: tuple[Reason, ...] = ()
    try:
        _judge(asked, where, spec, peak, found)
    except Rejection as rejection:
        reasons = (rejection.reason,)
    status = "rejected" if reasons else "accepted"
    return Verdict(status, *about, reasons=reasons, mutants=mutants, **found)


def _judge(
    task: Task, device: str, spec: dict[str, str], peak: Peak | None, found: dict[str, Any]
) -> None:
    with Worker(task, device) as worker:
        worker.load(spec)
        # Only now: a candidate that is loaded has had its chance to look round.
        shapes = task.all_shapes(random.SystemRandom())
        found["shapes"] = tuple(shapes)
        trials = Trials(task, worker, lambda d, c, _: truth(task, device, d, c), task.cases)
        try:
            for dims in shapes:
                trials.shape(dims)
        finally:
            found["errors"] = tuple(trials.errors.values())
        found["speed"] = _time(task, device, worker, peak)


def _time(task: Task, device: str, worker: Worker, peak: Peak | None) -> Speed:
    worker.stop()  # while the baseline starts and the device is measured
    timing = Timing(task, device, peak)
    with Worker(task, device) as baseline:
        baseline.load({"kind": "baseline"})
        worker.resume()
        return timing.run(worker, baseline)


def _device(asked: str | None) -> str:
    """The device: as asked, else CUDA where kernels compile for one. Raises BadTask."""
    usable = torch.cuda.is_available() and not settings.interpreting()
    device = asked or ("cuda" if usable else "cpu")
    try:
        kind = torch.device(device).type
    except RuntimeError:
        kind = ""
    if kind == "cpu":
        return device
    if kind == "cuda" and torch.cuda.is_available():
        return device if torch.device(device).index is not None else "cuda:0"
    raise BadTask(f"no device '{device}' here")
