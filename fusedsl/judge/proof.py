"""A task proves that it tells right from wrong: its mutants fail where its reference passes."""

from __future__ import annotations

import hashlib
import random

from fusedsl.judge import mutants
from fusedsl.judge.process import Worker
from fusedsl.judge.task import FINITE_CASES, BadTask, Dims, Task
from fusedsl.judge.trials import Trials, Truth, Truths, truth
from fusedsl.judge.verdict import Code, Reason, Rejection

#: What has been proved in this process, by the task's text and the device.
_proved: dict[tuple[str, str], tuple[tuple[str, ...], Reason | None]] = {}


def prove(task: Task, device: str) -> tuple[tuple[str, ...], Reason | None]:
    """The mutants that are rejected, and the reason to refuse the task if one is not.

    NaN and Inf do not count as evidence, except against the mutant that is blind to them: a wrong
    program can pass them on all the same. Raises BadTask if the reference itself fails.
    """
    assert task.file is not None
    key = (hashlib.sha256(repr(task).encode() + task.file.read_bytes()).hexdigest(), device)
    if key not in _proved:
        _proved[key] = _prove(task, device)
    return _proved[key]


def _prove(task: Task, device: str) -> tuple[tuple[str, ...], Reason | None]:
    shapes = task.all_shapes(random.SystemRandom())
    known: dict[tuple[str, str, int], Truth] = {}

    def truths(dims: Dims, case: str, number: int) -> Truth:
        key = (str(dims), case, number)
        if key not in known:
            known[key] = truth(task, device, dims, case)
        return known[key]

    with Worker(task, device) as worker:
        try:
            worker.load({"kind": "reference"})
            _run(Trials(task, worker, truths, task.cases), shapes)
        except Rejection as rejection:
            raise BadTask(f"{task.name}: its reference fails: {rejection}") from rejection
        rejected: list[str] = []
        for name in mutants.names(task, shapes[0], device):
            if not _fails(task, worker, truths, name, shapes):
                message = f"the mutant '{name}' of the reference passes"
                return tuple(rejected), Reason(Code.NON_DISCRIMINATING, message)
            rejected.append(name)
    return tuple(rejected), None


def _fails(task: Task, worker: Worker, truths: Truths, name: str, shapes: list[Dims]) -> bool:
    """Whether a mutant is rejected for its values."""
    cases = [c for c in task.cases if c in FINITE_CASES or name == "nan_blind"]
    try:
        worker.load({"kind": "mutant", "name": name})
        _run(Trials(task, worker, truths, cases), shapes)
    except Rejection as rejection:
        if rejection.reason.code in (Code.CRASHED, Code.TIMED_OUT, Code.OUT_OF_MEMORY):
            raise BadTask(f"{task.name}: the mutant '{name}' ended in {rejection}") from rejection
        return True
    return False


def _run(trials: Trials, shapes: list[Dims]) -> None:
    for dims in shapes:
        trials.shape(dims)
