"""What can be judged: a program in the language, a Python callable, a reference, a mutant."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fusedsl import pipeline
from fusedsl.judge import mutants
from fusedsl.judge.task import BadTask, Task, import_file


def describe(program: str | Path) -> dict[str, str]:
    """What `program` names, for the process that loads it. Raises BadTask.

    A path of a program (`.fdsl`, `.json`), `path.py:function`, or `reference`.
    """
    text = str(program)
    if text == "reference":
        return {"kind": "reference"}
    place, _, function = text.rpartition(":")
    if place.endswith(".py") and function.isidentifier():
        return {"kind": "python", "path": str(_existing(place)), "function": function}
    if text.endswith((".fdsl", ".json")):
        return {"kind": "program", "path": str(_existing(text))}
    raise BadTask(f"'{text}' is no program: a .fdsl or .json file, or path.py:function")


def _existing(place: str) -> Path:
    path = Path(place).resolve()
    if not path.is_file():
        raise BadTask(f"there is no file '{place}'")
    return path


def load(spec: Mapping[str, str], task: Task) -> tuple[Callable[..., Any], bool]:
    """The callable, and whether it takes `out=`. Raises whatever loading raises."""
    kind = spec["kind"]
    if kind == "reference":
        return (lambda *x: task.eager(x)), False
    if kind == "baseline":
        return (lambda *x: task.run_baseline(x)), False
    if kind == "mutant":
        return mutants.make(task, spec["name"]), False
    if kind == "program":
        return _program(spec["path"], task), False
    path = Path(spec["path"])
    sys.path.insert(0, str(path.parent))
    function = getattr(import_file(path), spec["function"])
    return function, _takes_out(function)


def _program(path: str, task: Task) -> Callable[..., Any]:
    """Inputs go by name where the signature has the task's names, else by position."""
    program = pipeline.compile(Path(path))
    theirs = [p.name for p in program.graph().params]
    ours = [item.name for item in task.inputs]
    if set(theirs) != set(ours) or theirs == ours:
        return program
    order = [ours.index(name) for name in theirs]
    return lambda *x: program(*(x[i] for i in order))


def _takes_out(function: Callable[..., Any]) -> bool:
    try:
        return "out" in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False
