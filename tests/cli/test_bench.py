"""`fusedsl bench`: in the interpreter here, with compiled kernels where there is a GPU."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from examples import FOLDER, read
from fusedsl.bench import run as measuring
from fusedsl.cli.app import app

NORM = "kernel norm(x: bf16[M, 64], g: weight bf16[64]) -> (y: bf16[M, 64]) { y = rms_norm(x, g); }"
PAGE = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")


def invoke(*words: str, code: int = 0, stdin: str | None = None) -> Any:
    result = CliRunner().invoke(app, ["bench", *words], input=stdin)
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return result


def as_json(*words: str, code: int = 0, stdin: str | None = None) -> dict[str, Any]:
    return json.loads(invoke(*words, "--json", code=code, stdin=stdin).stdout)


@pytest.fixture(scope="module")
def mlp(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("bench") / "llama_mlp.fdsl"
    file.write_text(read("llama_mlp", small=True))
    return str(file)


@pytest.fixture(scope="module")
def found(mlp: str) -> dict[str, Any]:
    return as_json(mlp, "--against", "eager,bare", "--shapes", "M=3,16", "--rounds", "1")


def test_a_row_for_each_size(found: dict[str, Any]) -> None:
    assert found["ok"] and found["program"] == "llama_mlp" and found["rounds"] == 1
    assert found["interpreted"] == found["device"].startswith("cpu")
    assert [r["dims"] for r in found["rows"]] == [{"M": 3}, {"M": 16}]
    for r in found["rows"]:
        assert set(r["peers"]) == {"eager", "bare"} and r["bar"] is None and r["holds"] is None
        assert all(ms > 0 for ms in (r["ours_ms"], r["warm_ms"], *r["peers"].values()))
        assert r["ratio"] == pytest.approx(r["ours_ms"] / r["limit_ms"], rel=0.01)
        assert 0 < r["verified"]["ours"]["error"] <= 1.6 * r["verified"]["ours"]["eager_error"]
        assert all(v["ok"] for v in r["verified"].values())


def test_the_roofline_counts_the_projections_and_the_bytes(found: dict[str, Any]) -> None:
    small, large = found["rows"]
    assert large["flops"] == 2 * 16 * (64 * 256 + 128 * 64)
    assert large["bytes"] == 2 * (2 * 16 * 64 + 64 + 64 * 256 + 64 * 128)
    assert small["flops"] == large["flops"] * 3 / 16
    peak = found["peak"]
    arithmetic = large["flops"] / peak["tflops"]["bf16"] / 1e9
    memory = large["bytes"] / peak["bandwidth_gb_s"] / 1e6
    assert large["limit_ms"] == pytest.approx(max(arithmetic, memory), rel=0.05)
    assert large["limit_by"] == ("memory" if memory >= arithmetic else "arithmetic")


def test_every_key_is_documented(found: dict[str, Any]) -> None:
    section = PAGE.split("### bench\n")[1].split("### ")[0]
    known = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`]*)`", section))))
    keys = {*found, *found["rows"][0], *found["rows"][0]["verified"]["ours"], *found["peak"]}
    assert keys <= known, keys - known


def test_a_program_without_projections_is_held_against_a_copy() -> None:
    row = as_json("-", "--against", "bare,quack", "--rounds", "1", stdin=NORM)["rows"][0]
    assert set(row["peers"]) == {"bare copy"} and row["limit_by"] == "memory"
    assert "quack" in row["absent"] and row["verified"]["bare copy"]["ok"]


def test_text_says_what_was_timed(mlp: str) -> None:
    said = invoke(mlp, "--against", "eager,quack", "--rounds", "1", "--shapes", "M=2")
    assert "all verified" in said.stdout and "eager" in said.stdout
    assert "not measured: quack: Quack is not installed" in said.stderr
    if not torch.cuda.is_available():
        assert "times of Triton's interpreter" in said.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="of the interpreter")
def test_a_large_program_is_shrunk_for_the_interpreter() -> None:
    words = (str(FOLDER / "llama_mlp.fdsl"), "--against", "eager", "--rounds", "1")
    said = invoke(*words, "--shapes", "M=2")
    assert re.search(r"note: shrunk by \d+ for the interpreter", said.stderr)


def test_two_symbols_are_combined() -> None:
    text = "kernel k(x: fp32[M, F]) -> (y: fp32[M, F]) { y = relu(x); }"
    words = ("-", "--against", "eager", "--rounds", "1", "--shapes", "M=1,2,F=8,16,8")
    rows = as_json(*words, stdin=text)["rows"]
    assert [tuple(r["dims"].values()) for r in rows] == [(1, 8), (1, 16), (2, 8), (2, 16)]


def test_markdown_and_plot(mlp: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    table, plot = tmp_path / "deep" / "t.md", tmp_path / "p.svg"
    words = (mlp, "--against", "eager,bare", "--rounds", "1", "--shapes", "M=2")
    invoke(*words, "--markdown", str(table), "--plot", str(plot))
    lines = table.read_text().splitlines()
    assert lines[0].count("|") == lines[2].count("|") and "llama_mlp M=2" in lines[2]
    assert "**wrong**" not in lines[2]
    assert plot.read_text().startswith("<?xml") and "dc:date" not in plot.read_text()


def test_the_same_record_gives_the_same_picture(found: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from fusedsl.bench.plot import draw

    for name in ("a.svg", "b.svg"):
        draw(found, tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    other = {**found, "rows": [{**r, "ours_ms": 2 * r["ours_ms"]} for r in found["rows"]]}
    draw(other, tmp_path / "c.svg")
    assert (tmp_path / "a.svg").read_bytes() != (tmp_path / "c.svg").read_bytes()


MISTAKES = {
    "no size": (["--shapes", "M=many"], "F0105"),
    "no name": (["--shapes", "128"], "F0105"),
    "zero": (["--shapes", "M=0"], "F0105"),
    "too many": (["--shapes", "M=" + ",".join(map(str, range(1, 100)))], "F0105"),
    "unknown symbol": (["--shapes", "N=1"], "F0404"),
    "unknown peer": (["--against", "eagre"], "F0507"),
    "suffix": (["--plot", "x.gif"], "F0507"),
    "device": (["--device", "gpu"], "F0507"),
    "a folder": (["--markdown", "{}", "--against", "eager", "--rounds", "1"], "F0102"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_has_a_code(name: str, mlp: str, tmp_path: Path) -> None:
    words, code = MISTAKES[name]
    words = [w.replace("{}", str(tmp_path)) for w in words]
    said = invoke(mlp, *words, code=1)
    assert f"error[{code}]" in said.stderr and "fix:" in said.stderr


def test_without_matplotlib_the_pip_command_is_named(
    mlp: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    said = invoke(mlp, "--plot", "x.svg", code=1)
    assert "error[F0607]" in said.stderr and "pip install 'fusedsl[plot]'" in said.stderr


@pytest.mark.parametrize("when", ["before the timing", "in the timed calls"])
def test_a_wrong_output_is_said_and_ends_with_1(
    when: str, mlp: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that goes wrong at once, or only after it was checked."""
    honest = measuring._ours

    def wrong(program: Any, case: Any) -> Any:
        contender, calls = honest(program, case), [0]

        def spoilt(call: Any) -> Any:
            calls[0] += 1
            return call() * 1.5 if when == "before the timing" or calls[0] > 1 else call()

        contender.calls = [lambda c=c: spoilt(c) for c in contender.calls]
        return contender

    monkeypatch.setattr(measuring, "_ours", wrong)
    words = (mlp, "--against", "eager", "--rounds", "1", "--shapes", "M=2")
    found = as_json(*words, code=1)
    assert not found["ok"] and not found["rows"][0]["verified"]["ours"]["ok"]
    assert found["rows"][0]["verified"]["eager"]["ok"]
    assert "WRONG: ours" in invoke(*words, code=1).stdout


def test_a_peer_that_fails_is_absent(mlp: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("no compiler here\nsecond line")

    monkeypatch.setattr(torch, "compile", lambda *_, **__: broken)
    row = as_json(mlp, "--against", "compile", "--rounds", "1", "--shapes", "M=2")["rows"][0]
    assert row["peers"] == {} and row["verified"].keys() == {"ours"}
    assert row["absent"]["torch.compile default"] == "RuntimeError: no compiler here"
