"""Tuned configurations on disk: found again, never illegal, whole under many writers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import fusedsl
from fusedsl.fuse import KernelPlan, Plan
from fusedsl.runtime import cache, tuned
from fusedsl.runtime.configure import Configurations
from fusedsl.runtime.tune import _differs, medians
from fusedsl.schedule import Target, TileConfig, candidates, choose
from tests.fuse.harness import plan_of

TEXT = """
kernel k(x: bf16[M, 512], w: weight bf16[384, 512]) -> (y: bf16[M, 384]) { y = linear(x, w); }"""
TARGET = Target.parse("sm_90")
OPTIONS = {"numerics": "moved", "fp32_shift": False, "tf32": False, "fast_math": True}
ENV = {"M": 300}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FUSEDSL_CACHE_DIR", str(tmp_path))
    tuned._warn_once.cache_clear()
    return tmp_path


def planned() -> tuple[Plan, KernelPlan]:
    plan = plan_of(TEXT)
    return plan, plan.kernels[0]


def key_of(env: dict[str, int] = ENV, device: str = "a GPU", loop: str = "tma", **options: object):
    plan, kernel = planned()
    return tuned.key_of(plan, kernel, env, TARGET, loop, {**OPTIONS, **options}, device)


def find(key: dict[str, object]) -> tuned.Entry | None:
    return tuned.find(key, *planned(), TARGET, "tma")


def another() -> TileConfig:
    """A legal configuration that is not the default."""
    return candidates(*planned(), ENV, TARGET, "tma")[3]


def test_what_was_saved_is_found(folder: Path) -> None:
    entry = tuned.Entry(another(), 0.5, 0.75)
    assert find(key_of()) is None
    assert tuned.save(key_of(), entry)
    assert find(key_of()) == entry
    assert tuned.save(key_of(), replace(entry, ms=0.25))
    assert find(key_of()) == replace(entry, ms=0.25), "the last writer wins"
    assert len([p for p in folder.rglob("*") if p.is_file()]) == 1


@pytest.mark.parametrize(
    "other",
    [
        {"env": {"M": 100}},
        {"device": "another GPU"},
        {"loop": "mixed"},
        {"fast_math": False},
    ],
)
def test_tuning_46_everything_that_matters_is_in_the_key(folder: Path, other: dict) -> None:
    tuned.save(key_of(), tuned.Entry(another(), 0.5, 0.75))
    assert find(key_of(**other)) is None
    assert find(key_of({"M": 299})) is not None, "the same class of rows"


def test_tuning_46_columns_and_depth_are_in_the_key(folder: Path) -> None:
    key = key_of()
    tuned.save(key, tuned.Entry(another(), 0.5, 0.75))
    for text in (TEXT.replace("384", "392"), TEXT.replace("512", "520")):
        plan = plan_of(text)
        other = tuned.key_of(plan, plan.kernels[0], ENV, TARGET, "tma", OPTIONS, "a GPU")
        assert tuned.find(other, plan, plan.kernels[0], TARGET, "tma") is None


def test_entries_of_other_versions_are_not_used(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuned.save(key_of(), tuned.Entry(another(), 0.5, 0.75))
    monkeypatch.setattr(cache.triton, "__version__", "9.9.9")
    assert find(key_of()) is None


def reseal(text: str, **config: object) -> str:
    """An entry with another configuration and a whole seal."""
    found = json.loads(text)
    del found["sha256"]
    found["config"] = {**found["config"], **config}
    return json.dumps({**found, "sha256": tuned._digest(found)})


DAMAGE = {
    "empty": lambda text: "",
    "truncated": lambda text: text[: len(text) // 2],
    "not json": lambda text: "\x00" * 40,
    "no object": lambda text: "[]",
    "edited": lambda text: text.replace('"warps": ', '"warps": 1'),
    "no seal": lambda text: text.replace("sha256", "sha255"),
    "unknown field": lambda text: reseal(text, colour=1),
    "wrong type": lambda text: reseal(text, warps="8"),
    "bool for int": lambda text: reseal(text, warps=True),
    "too much memory": lambda text: reseal(text, stages=64),
    "no power of two": lambda text: reseal(text, block_m=100),
    "another key": lambda text: text.replace("a GPU", "b GPU"),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_entry_is_ignored_with_one_warning_and_rebuilt(folder: Path, damage) -> None:
    key, entry = key_of(), tuned.Entry(another(), 0.5, 0.75)
    tuned.save(key, entry)
    path = tuned.path_of(key)
    path.write_text(damage(path.read_text()))
    with pytest.warns(RuntimeWarning, match="is not used"):
        assert find(key) is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert find(key) is None, "warned about once"
        assert tuned.save(key, entry)
        assert find(key) == entry


def test_bytes_that_are_no_text_are_ignored(folder: Path) -> None:
    tuned.save(key_of(), tuned.Entry(another(), 0.5, 0.75))
    tuned.path_of(key_of()).write_bytes(b"\xff\xfe\x80")
    with pytest.warns(RuntimeWarning, match="is not used"):
        assert find(key_of()) is None


def test_a_folder_that_cannot_be_written_is_no_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "file").write_text("")
    monkeypatch.setenv("FUSEDSL_CACHE_DIR", str(folder / "file"))
    cache._warn_once.cache_clear()
    with pytest.warns(RuntimeWarning, match="cannot be written"):
        assert not tuned.save(key_of(), tuned.Entry(another(), 0.5, 0.75))


WRITER = """
import sys
from tests.runtime.test_tuned import another, find, key_of
from fusedsl.runtime import tuned
from dataclasses import replace
me = int(sys.argv[1])
configs = [replace(another(), group_m=g) for g in (1, 2, 4, 8, 16, 32)]
for turn in range(40):
    for rows in (10, 300, 5000):
        key = key_of({"M": rows})
        tuned.save(key, tuned.Entry(configs[(me + turn) % 6], float(me), 9.0))
        found = find(key)
        assert found is not None and found.config in configs, found
"""


def test_concurrency_43_many_processes_write_the_same_entries(folder: Path) -> None:
    root = Path(__file__).parents[2]
    env = {**os.environ, "FUSEDSL_CACHE_DIR": str(folder), "PYTHONPATH": str(root)}
    env["PYTHONWARNINGS"] = "error::RuntimeWarning"
    started = [
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(WRITER), str(i)],
            env=env, cwd=root, stderr=subprocess.PIPE, text=True,
        )
        for i in range(4)
    ]  # fmt: skip
    started[0].kill()  # one dies on the way: nothing of it may be in anybody's
    ends = [process.communicate(timeout=200)[1] for process in started]
    assert [p.returncode for p in started[1:]] == [0] * 3, ends
    left = [p for p in folder.rglob("*") if p.is_file() and p.suffix == ".json"]
    assert len(left) == 3
    for rows in (10, 300, 5000):
        assert find(key_of({"M": rows})) is not None


# what the engine makes of it ----------------------------------------------------------------
def test_a_tuned_configuration_takes_the_place_of_the_default(folder: Path) -> None:
    plan, kernel = planned()
    device = torch.device("cpu")
    configs = Configurations(plan, OPTIONS)
    key = configs.key(kernel, ENV, TARGET, device, "tma")
    assert configs.of(kernel, ENV, TARGET, device, "tma") == choose(
        plan, kernel, ENV, TARGET, "tma"
    )
    tuned.save(key, tuned.Entry(another(), 0.5, 0.75))
    assert configs.of(kernel, ENV, TARGET, device, "tma") != another(), "asked once per class"
    configs.forget()
    assert configs.of(kernel, ENV, TARGET, device, "tma") == another()
    assert Configurations(plan, OPTIONS).of(kernel, ENV, TARGET, device, "tma") == another()
    unlike = Configurations(plan, {**OPTIONS, "fast_math": False})
    assert unlike.of(kernel, ENV, TARGET, device, "tma") != another()


def test_the_interpreter_has_nothing_to_tune(folder: Path) -> None:
    program = fusedsl.compile(TEXT, tune=True)
    assert program.tune({"M": 5}) == () or torch.cuda.is_available()
    x, w = torch.randn(3, 512).bfloat16(), torch.randn(384, 512).bfloat16()
    if not torch.cuda.is_available():
        assert program(x, w).shape == (3, 384)
    with pytest.raises(fusedsl.FusedslError) as caught:
        program.tune({"K": 5})
    assert caught.value.diagnostics[0].code == "F0404"
    with pytest.raises(fusedsl.FusedslError) as caught:
        fusedsl.compile(TEXT, tune="yes")  # type: ignore[arg-type]
    assert caught.value.diagnostics[0].code == "F0507"


def test_tuning_45_wrong_values_are_told_from_roundings() -> None:
    right = torch.randn(64, 64).bfloat16()
    close = (right.float() * (1 + 0.002 * torch.randn(64, 64))).bfloat16()
    assert _differs([close], [right]) == ""
    wrong = right.clone()
    wrong[:, ::8] = 0
    assert "differ" in _differs([wrong], [right])
    wrong = right.clone()
    wrong[3, 3] = float("nan")
    assert "finite" in _differs([wrong], [right])
    assert _differs([right.float() * 1.01], [right.float()])


@pytest.mark.gpu
def test_tuning_on_a_gpu_is_kept_and_used(folder: Path) -> None:
    program = fusedsl.compile(TEXT)
    steps: list[tuple[str, int, int]] = []
    (found,) = program.tune({"M": 300}, progress=lambda *step: steps.append(step))
    assert found.ms <= found.default_ms and found.saved and steps
    assert sum(trial.ms is not None for trial in found.trials) >= 3
    assert program.tune({"M": 300}, again=False) == ()
    other = fusedsl.compile(TEXT)
    x = torch.randn(290, 512, device="cuda").bfloat16()
    w = torch.randn(384, 512, device="cuda").bfloat16()
    got = other(x, w)
    used = next(iter(other._engine._launchers))[2]
    assert used == found.config
    assert (got.float() - x.float() @ w.float().t()).norm() < 0.01 * got.float().norm()


@pytest.mark.gpu
def test_medians_tell_slow_from_fast(folder: Path) -> None:
    x = torch.randn(4096, 4096, device="cuda")
    times = medians({"one": lambda: x + 1, "ten": lambda: [x + 1 for _ in range(10)]}, x.device)
    assert times["ten"] > 3 * times["one"] > 0
