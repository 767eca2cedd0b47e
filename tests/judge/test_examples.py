"""The repository's own programs are accepted, beside their own eager reference."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples import SMALL, read
from fusedsl.judge import judge
from fusedsl.judge.verdict import Code

TASK = """
from fusedsl.judge import Task
task = Task(name={name!r}, reference={program!r}, dims={{"M": (1, 40)}}, timed={{"M": 9}},
            hidden=1, seconds=600)
"""

#: The rest takes long in the interpreter.
QUICK = ("rmsnorm_qkv", "minilm_embed", "nemotron_mlp")

#: Whose random inputs show a fault by chance: logits so small that a softcap hardly bends them. The
#: judge then refuses the task, as it must, and says nothing of the program.
BY_CHANCE = ("lm_head_loss",)


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in SMALL]
)
def test_the_examples_are_accepted(name: str, tmp_path: Path, device: str) -> None:
    program = tmp_path / f"{name}.fdsl"
    program.write_text(read(name, small=True))
    task = tmp_path / "task.py"
    task.write_text(TASK.format(name=name, program=program.name))
    found = judge(task, program, device=device)
    codes = {reason.code for reason in found.reasons}
    if name in BY_CHANCE and codes == {Code.NON_DISCRIMINATING}:
        return
    assert found.accepted, found.reasons
