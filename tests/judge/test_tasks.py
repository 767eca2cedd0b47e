"""Tasks: those of the repository, useless ones, and mistakes in them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from examples import FOLDER
from fusedsl.cli.app import app
from fusedsl.judge import BadTask, Code, Verdict, judge, load_task

HERE = Path(__file__).parent
TASKS = sorted(p.stem for p in (FOLDER / "tasks").glob("*.py"))
USELESS = "softmax_sum"
CHEATS = HERE / "cheats.py"


@pytest.mark.parametrize("name", [t for t in TASKS if t != USELESS])
def test_the_tasks_tell_right_from_wrong(name: str) -> None:
    """The reference is accepted, so every mutant was rejected before."""
    found = judge(FOLDER / "tasks" / f"{name}.py", "reference", device="cpu")
    assert found.accepted, found.reasons
    assert {"zero", "constant", "stale", "nan_blind"} <= set(found.mutants)
    assert any(m.startswith("drops:") for m in found.mutants)
    assert any(m.startswith("precision:") for m in found.mutants)


def test_a_task_that_tells_nothing_is_refused() -> None:
    found = judge(FOLDER / "tasks" / f"{USELESS}.py", "reference", device="cpu")
    assert (found.status, found.code, found.exit_code) == ("refused", Code.NON_DISCRIMINATING, 2)
    assert "'mean'" in found.reasons[0].message


HEAD = """
import torch
from fusedsl.judge import Input, Task
def f(x, w):
    return {}
task = Task(name="t", reference=f, inputs=(Input("x", ("M", 24)), Input("w", (24,), weight=True)),
            dims={{"M": (9, 30)}}, timed={{"M": 9}}, hidden=1{})
"""


def written(tmp_path: Path, body: str, more: str = "") -> Path:
    file = tmp_path / "t.py"
    file.write_text(HEAD.format(body, more))
    return file


@pytest.mark.parametrize(
    ("body", "more", "mutant"),
    [
        ("x * (1 + w * 1e-12)", "", "ignores:w"),  # the weight is lost in a rounding
        ("(x * w).clamp(-1e7, 1e7)", "", "drops:1:0:clamp"),  # no input reaches the bounds
        ("torch.zeros_like(x) + w * 0", "", "zero"),
        ("torch.relu(x) * w", ", cases=('normal',), dtype='bf16'", None),
        ("x.sigmoid() * 1e-4 * w", "", None),  # small references
    ],
)
def test_refused(tmp_path: Path, body: str, more: str, mutant: str | None) -> None:
    found = judge(written(tmp_path, body, more), "reference", device="cpu")
    if mutant is None:
        assert found.accepted, found.reasons
    else:
        assert found.code is Code.NON_DISCRIMINATING, found
        assert f"'{mutant}'" in found.reasons[0].message


def test_zeros_for_a_small_reference(tmp_path: Path) -> None:
    """faults_52: a reference below 1e-2 does not make zeros right."""
    task = written(tmp_path, "x.sigmoid() * 1e-4 * w")
    program = tmp_path / "p.py"
    program.write_text("import torch\ndef f(x, w): return torch.zeros_like(x)\n")
    assert judge(task, f"{program}:f", device="cpu").code is Code.WRONG_VALUES


@pytest.mark.parametrize(
    ("body", "more"),
    [
        ("x.float() * w.float()", ""),  # not in fp64
        ("x.log() * w", ""),  # not finite
        ("x.add_(w)", ""),
        ("x @ x", ""),
        ("x * w", ", cases=('nan_rows',)"),
        ("x * w", ", dtype='fp4'"),
        ("x * w", ", shapes=({'N': 3},)"),
    ],
)
def test_bad_tasks(tmp_path: Path, body: str, more: str) -> None:
    with pytest.raises(BadTask):
        judge(written(tmp_path, body, more), "reference", device="cpu")


INDEXED = """
import torch
import torch.nn.functional as F
from fusedsl.judge import Input, Task
def loss(x, w, target):
    return F.cross_entropy(x @ w.t(), target, ignore_index=-100, reduction="none")[:, None]
def gather(x, w, target):
    return x * w[target]
task = Task(name="t", reference={function}, dims={{"M": (1, 30), "V": (5, 40)}}, hidden=1,
            timed={{"M": 9, "V": 30}}, inputs=(Input("x", ("M", 24)),
            Input("w", ("V", 24), weight=True), Input("target", ("M",), {target})){more})
"""


def indexed(tmp_path: Path, target: str, function: str = "loss", more: str = "") -> Path:
    file = tmp_path / "t.py"
    file.write_text(INDEXED.format(target=target, function=function, more=more))
    return file


@pytest.mark.parametrize(
    ("target", "function"),
    [
        ("'i64', high='V', special=(-100,)", "loss"),
        ("'i64', high=('V', 4)", "loss"),
        ("'i32', low=1, high='V'", "gather"),
        ("'i64', high=3, fill=lambda s, g: torch.randint(3, s, generator=g)", "gather"),
    ],
)
def test_tasks_with_indices(tmp_path: Path, target: str, function: str) -> None:
    found = judge(indexed(tmp_path, target, function), "reference", device="cpu")
    assert found.accepted, found.reasons
    assert "ignores:target" in found.mutants
    assert {"edge_indices", "equal_indices"} <= {error.case for error in found.errors}


def test_ignored_rows_count(tmp_path: Path) -> None:
    task = indexed(tmp_path, "'i64', high='V', special=(-100,)")
    program = tmp_path / "p.py"
    program.write_text(
        "import torch.nn.functional as F\n"
        "def f(x, w, target):\n"
        "    return F.cross_entropy(x @ w.t(), target.clamp(min=0), reduction='none')[:, None]\n"
    )
    found = judge(task, f"{program}:f", device="cpu")
    assert found.code is Code.WRONG_VALUES and found.reasons[0].case == "edge_indices"


@pytest.mark.parametrize(
    ("target", "more", "words"),
    [
        ("'i64'", "", "holds indices and has no range"),
        ("'i64', high='N'", "", "unknown dim 'N'"),
        ("'i64', high='V', fill='normal'", "", "its fill is auto or a function"),
        ("high='V'", "", "its dtype is not i32 or i64"),
        ("'i64', high='V', low=50", "", "has no values"),
        ("'i64', high='V', low=7", "", "has no values where dims are least"),
        ("'i64', high='V', special=-100", "", "is no sequence"),
        ("'i64', high='V', special=(-100.5,)", "", "has -100.5 beside i64"),
        ("'i64', high='V', special=('V',)", "", "has 'V' beside i64"),
        ("'i32', high='V', special=(2**40,)", "", "beside i32"),
        ("'i64', high='V', low='V'", "", "has 'V' beside i64"),
        ("'i64', high=2.5", "", "has 2.5 beside i64"),
        ("'i64', high=True", "", "has True beside i64"),
        ("'i64', high=2**70", "", "beside i64"),
        ("'i64', high='V', fill=lambda shape, made: 3", "", "the fill of 'target' gave int"),
        ("'i64', high='V', fill=lambda shape, made: torch.rand(shape)", "", "its fill gave"),
        ("'i16', high='V'", "", "beyond fp32, fp16, bf16, i32, i64"),
        ("high='V'", ", dtype='i64'", "beyond fp32, fp16, bf16"),
    ],
)
def test_indices_without_a_range(tmp_path: Path, target: str, more: str, words: str) -> None:
    with pytest.raises(BadTask, match=words):
        judge(indexed(tmp_path, target, more=more), "reference", device="cpu")


def test_one_value_of_any_strides(tmp_path: Path) -> None:
    task = tmp_path / "task.py"
    task.write_text(
        "from fusedsl.judge import Input, Task\n"
        "task = Task(name='t', reference=lambda x: x.square().mean(-1, keepdim=True), "
        "dims={'M': (1, 9)}, shapes=({'M': 1},), timed={'M': 5}, inputs=(Input('x', ('M', 24)),))\n"
    )
    program = tmp_path / "p.py"
    program.write_text(
        "def f(x):\n"
        "    y = x.square().mean(-1, keepdim=True)\n"
        "    return y if len(x) > 1 else y.reshape(()).expand(1, 1)\n"
    )
    found = judge(task, f"{program}:f", device="cpu")
    assert found.accepted, found.reasons


def test_files_that_are_no_task_or_program(tmp_path: Path) -> None:
    task = HERE / "small_task.py"
    for place in (tmp_path / "nowhere.py", CHEATS, FOLDER / "llama_mlp.fdsl"):
        with pytest.raises(BadTask):
            load_task(place)
    for program in ("nowhere.py:f", "cheats.py", "x.fdsl", f"{CHEATS}:", "eager"):
        with pytest.raises(BadTask):
            judge(task, program)
    with pytest.raises(BadTask):
        judge(task, "reference", device="tpu")


# the command line --------------------------------------------------------------------------------
def run(*words: str) -> Any:
    return CliRunner().invoke(app, ["judge", str(HERE / "small_task.py"), *words, "--device=cpu"])


def test_the_command() -> None:
    accepted = run(f"{CHEATS}:right")
    assert accepted.exit_code == 0 and "small: accepted" in accepted.stdout
    rejected = run(f"{CHEATS}:zero")
    assert rejected.exit_code == 1 and "WRONG_VALUES" in rejected.stdout
    assert run("nowhere.fdsl").exit_code == 2


def test_its_json() -> None:
    found = json.loads(run(f"{CHEATS}:mutates", "--json").stdout)
    assert found["status"] == "rejected" and found["reasons"][0]["code"] == "INPUT_MUTATED"
    found = json.loads(run(f"{CHEATS}:right", "--json").stdout)
    assert found["accepted"] and found["speed"]["speedup"] > 0
    bad = run("nowhere.fdsl", "--json")
    assert bad.exit_code == 2 and json.loads(bad.stdout)["status"] == "error"


def test_the_page_has_every_code_and_key() -> None:
    page = (HERE.parents[1] / "docs" / "judge.md").read_text(encoding="utf-8")
    assert [c.value for c in Code if f"`{c.value}`" not in page] == []
    keys = Verdict("accepted", "t", "p", "cpu").to_json()
    assert [k for k in keys if f"`{k}`" not in page] == []
