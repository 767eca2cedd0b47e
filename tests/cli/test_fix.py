"""`fusedsl check --fix`: what is written, what is not, and what is said."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from examples import read
from fusedsl.cli.app import app
from fusedsl.frontend import to_json
from fusedsl.frontend.text import parse

CORRECT = read("llama_mlp")
BROKEN = CORRECT.replace("rms_norm", "rmsnorm").replace("+ x;", "+ x")


def check(*arguments: str, stdin: str | None = None):
    return CliRunner().invoke(app, ["check", *arguments], input=stdin)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mlp.fdsl"
    path.write_text(BROKEN)
    return path


def test_a_file_is_mended(file: Path):
    file.chmod(0o640)
    result = check(str(file), "--fix")
    assert result.exit_code == 0, result.output
    assert "2 fixed: write 'rms_norm'; add ';'" in result.stdout
    assert file.read_text() == CORRECT
    assert file.stat().st_mode & 0o777 == 0o640
    assert [p.name for p in file.parent.iterdir()] == ["mlp.fdsl"]
    assert check(str(file), "--fix").stdout == f"{file}: ok\n"


def test_a_link_stays_a_link(file: Path):
    link = file.parent / "link.fdsl"
    link.symlink_to(file)
    assert check(str(link), "--fix").exit_code == 0
    assert link.is_symlink() and file.read_text() == CORRECT


def test_the_change_is_shown_and_not_written(file: Path):
    result = check(str(file), "--fix", "--diff")
    assert result.exit_code == 0
    assert "-  h = rmsnorm(x, gain, eps=1e-6);\n+  h = rms_norm(x" in result.stdout
    assert file.read_text() == BROKEN


def test_what_is_left_is_reported(file: Path):
    file.write_text(BROKEN.replace("swiglu", "zzzz"))
    result = check(str(file), "--fix")
    assert result.exit_code == 1
    assert "F0201" in result.stderr and "zzzz" in result.stderr
    assert "rms_norm" in file.read_text()


def test_as_json(file: Path):
    data = json.loads(check(str(file), "--fix", "--json").stdout)
    assert data["ok"] and data["diagnostics"] == []
    (fixed,) = data["fixed"]
    assert fixed["file"] == str(file) and fixed["written"] and len(fixed["applied"]) == 2


def test_standard_input_goes_to_standard_output():
    result = check("-", "--fix", stdin=BROKEN)
    assert result.exit_code == 0
    assert result.stdout == CORRECT


def test_a_graph(tmp_path: Path):
    data = to_json(parse(CORRECT))
    data["nodes"][0]["op"] = "rmsnorm"
    path = tmp_path / "g.json"
    path.write_text(json.dumps(data))
    assert check(str(path), "--fix").exit_code == 0
    assert json.loads(path.read_text())["nodes"][0]["op"] == "rms_norm"


@pytest.mark.parametrize("text", ["", "kernel", "\0", "[" * 3000])
def test_what_cannot_be_mended_stays_as_it_is(file: Path, text: str):
    file.write_text(text)
    assert check(str(file), "--fix").exit_code == 1
    assert file.read_text() == text


def test_files_that_cannot_be_read_or_written(tmp_path: Path, file: Path):
    for name in ("no.fdsl", "a.txt"):
        assert "F0102" in check(str(tmp_path / name), "--fix").stderr
    (tmp_path / "bytes.fdsl").write_bytes(b"\xff")
    assert "F0102" in check(str(tmp_path / "bytes.fdsl"), "--fix").stderr
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    file.parent.chmod(0o500)
    try:
        result = check(str(file), "--fix")
    finally:
        file.parent.chmod(0o700)
    assert "cannot be written" in result.stderr
