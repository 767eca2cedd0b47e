"""README.md and docs/cli.md: what they show works as written."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import fusedsl
from fusedsl.cli.app import app

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGE = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")


def _blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.M | re.S)


def test_the_readme_has_what_is_tested_below() -> None:
    assert _blocks(README, "fdsl") and _blocks(README, "python") and _blocks(README, "text")


@pytest.mark.parametrize("program", _blocks(README, "fdsl"))
def test_programs_compile(program: str) -> None:
    fusedsl.compile(program)


@pytest.mark.parametrize("code", _blocks(README, "python"))
def test_python_runs(code: str, tmp_path: Path) -> None:
    file = tmp_path / "snippet.py"
    file.write_text(f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n{code}")
    done = subprocess.run([sys.executable, str(file)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "@triton.jit" in done.stdout


def _commands() -> list[str]:
    return [line for block in _blocks(README, "") for line in block.splitlines()]


@pytest.mark.parametrize("line", [c for c in _commands() if c.startswith("fusedsl")])
def test_commands_exist(line: str) -> None:
    """The whole command where it is quick, else its arguments up to a --help."""
    words = shlex.split(line)[1:]
    quick = words[0] in ("explain", "show")
    files = [str(f) for f in sorted(ROOT.glob("examples/*.fdsl"))]
    words = [str(ROOT / w) if w.startswith("examples/") and "*" not in w else w for w in words]
    words = [w for word in words for w in (files if "*" in word else [word])]
    result = CliRunner().invoke(app, words if quick else [*words, "--help"])
    assert result.exit_code == 0, result.output


def test_make_targets_exist() -> None:
    targets = re.findall(r"^make (\w+)", README, re.M)
    assert {"demo", "test"} <= set(targets)
    makefile = (ROOT / "Makefile").read_text()
    assert all(re.search(rf"^{target}:", makefile, re.M) for target in targets)


def test_shown_output_is_real(request: pytest.FixtureRequest) -> None:
    """Written anew by --update-golden."""
    text = README
    for block in _blocks(README, "text"):
        command, _, shown = block.partition("\n")
        words = [str(ROOT / w) if w.startswith("examples/") else w for w in command.split()[2:]]
        output = CliRunner().invoke(app, words).stdout
        if request.config.getoption("--update-golden"):
            text = text.replace(block, f"{command}\n{output}")
        else:
            assert shown == output, "pytest --update-golden writes README.md anew"
    if text != README:
        (ROOT / "README.md").write_text(text, encoding="utf-8")


@pytest.mark.parametrize("page", ["README.md", "docs/cli.md"])
def test_links_lead_somewhere(page: str) -> None:
    file = ROOT / page
    for link in re.findall(r"\]\(([^)#]+)[^)]*\)", file.read_text(encoding="utf-8")):
        assert link.startswith("http") or (file.parent / link).exists(), link


@pytest.mark.parametrize("command", ["explain", "run"])
def test_every_json_key_is_documented(command: str) -> None:
    words = [command, str(ROOT / "examples" / "nemotron_mlp.fdsl"), "--json"]
    words += ["--shrink", "64", "--repeat", "1", "--dims", "M=3"] if command == "run" else []
    found = json.loads(CliRunner().invoke(app, words).stdout)
    section = PAGE.split(f"### {command}\n")[1].split("### ")[0]
    known = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`]*)`", section))))
    inner = [v[0] for v in found.values() if isinstance(v, list) and v and isinstance(v[0], dict)]
    inner += [found["outputs"]["y"]] if command == "run" else []
    keys = set(found) | {key for item in inner for key in item}
    assert keys <= known, keys - known


def test_the_documented_mistake_is_the_printed_one() -> None:
    documented = json.loads(_blocks(PAGE, "json")[0])
    words = ["build", str(ROOT / "examples" / "llama_mlp.fdsl"), "--target", "sm90", "--out", "x"]
    assert json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout) == documented
