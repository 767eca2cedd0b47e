"""What a user can get wrong: a coded diagnostic, exit 1 (2 for usage), never a traceback."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from examples import FOLDER, read
from fusedsl.cli.app import app

LLAMA = str(FOLDER / "llama_mlp.fdsl")
ROOT = Path(__file__).parents[2]


@pytest.fixture
def small(tmp_path: Path) -> str:
    (tmp_path / "p.fdsl").write_text(read("llama_mlp", small=True))
    (tmp_path / "text.safetensors").write_text("not tensors")
    (tmp_path / "text.pt").write_text("not tensors")
    (tmp_path / "x.npy").write_text("")
    torch.save([1, 2], tmp_path / "list.pt")
    torch.save({"a": torch.ones(2), "gains": torch.ones(2)}, tmp_path / "two.pt")
    torch.save(torch.ones(5, 64), tmp_path / "fp32.pt")
    torch.save(torch.ones(5, 63).bfloat16(), tmp_path / "narrow.pt")
    torch.save(torch.ones(5).bfloat16(), tmp_path / "flat.pt")
    return str(tmp_path / "p.fdsl")


MISTAKES = {
    "no such file": (["explain", "nowhere.fdsl"], "F0102"),
    "another kind of file": (["explain", "README.md"], "F0102"),
    "a folder": (["run", "examples"], "F0102"),
    "dims: no number": (["explain", LLAMA, "--dims", "M=many"], "F0105"),
    "dims: two sizes": (["explain", LLAMA, "--dims", "M=1,M=2"], "F0105"),
    "dims: twice": (["explain", LLAMA, "--dims", "M=1", "--dims", "M=2"], "F0105"),
    "dims: zero": (["explain", LLAMA, "--dims", "M=0"], "F0105"),
    "dims: no name": (["explain", LLAMA, "--dims", "128"], "F0105"),
    "dims: unknown": (["explain", LLAMA, "--dims", "N=128"], "F0404"),
    "dims: too large": (["explain", LLAMA, "--dims", f"M={1 << 40}"], "F0105"),
    "stage": (["show", LLAMA, "--stage", "codes"], "F0507"),
    "main loop": (["show", LLAMA, "--main-loop", "tmb"], "F0507"),
    "numerics": (["explain", LLAMA, "--numerics", "move"], "F0507"),
    "target": (["build", LLAMA, "--target", "sm90", "--out", "{}"], "F0602"),
    "no target": (["build", LLAMA, "--target", ",", "--out", "{}"], "F0602"),
    "output folder": (["build", LLAMA, "--target", "sm_90", "--out", "{}/p.fdsl"], "F0102"),
    "device": (["run", "{}/p.fdsl", "--device", "gpu"], "F0507"),
    "input: no equals sign": (["run", "{}/p.fdsl", "--input", "x"], "F0507"),
    "input: unknown name": (["run", "{}/p.fdsl", "--input", "z={}/fp32.pt"], "F0501"),
    "input: no such file": (["run", "{}/p.fdsl", "--input", "x={}/no.pt"], "F0102"),
    "input: bad safetensors": (["run", "{}/p.fdsl", "--input", "x={}/text.safetensors"], "F0102"),
    "input: bad pt": (["run", "{}/p.fdsl", "--input", "x={}/text.pt"], "F0102"),
    "input: a list": (["run", "{}/p.fdsl", "--input", "x={}/list.pt"], "F0102"),
    "input: which of two": (["run", "{}/p.fdsl", "--input", "gain={}/two.pt"], "F0102"),
    "input: unknown key": (["run", "{}/p.fdsl", "--input", "gain={}/two.pt:b"], "F0102"),
    "input: suffix": (["run", "{}/p.fdsl", "--input", "x={}/x.npy"], "F0102"),
    "input: dtype": (["run", "{}/p.fdsl", "--input", "x={}/fp32.pt"], "F0502"),
    "input: columns": (["run", "{}/p.fdsl", "--input", "x={}/narrow.pt"], "F0503"),
    "input: rank": (["run", "{}/p.fdsl", "--input", "x={}/flat.pt"], "F0503"),
    "shrunk too far": (["run", LLAMA, "--shrink", "4096"], "F0406"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_has_a_code(name: str, small: str) -> None:
    arguments, code = MISTAKES[name]
    arguments = [a.replace("{}", str(Path(small).parent)) for a in arguments]
    text = CliRunner().invoke(app, arguments)
    assert text.exit_code == 1, text.output
    assert f"error[{code}]" in text.stderr, text.stderr
    assert text.stdout == "" and "fix:" in text.stderr
    found = json.loads(CliRunner().invoke(app, [*arguments, "--json"]).stdout)
    assert found["ok"] is False and found["diagnostics"][0]["code"] == code


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["build", LLAMA, "--target", "sm90", "--out", "x"], "did you mean 'sm_90'?"),
        (["show", LLAMA, "--stage", "expnd"], "did you mean 'expand'?"),
    ],
)
def test_did_you_mean(arguments: list[str], said: str) -> None:
    assert said in CliRunner().invoke(app, arguments).stderr


@pytest.mark.parametrize(
    "arguments",
    [["frobnicate"], ["check"], ["run", LLAMA, "--frob"], ["run", LLAMA, "--repeat", "0"],
     ["run", LLAMA, "--seed", "one"], ["build", LLAMA]],
)  # fmt: skip
def test_a_wrong_command_line_exits_with_2(arguments: list[str]) -> None:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2, result.output
    assert "Usage" in result.stderr


# as processes ----------------------------------------------------------------------------------
def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "fusedsl", *arguments]


def test_plain_fusedsl_shows_the_help() -> None:
    done = subprocess.run(_command(), cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and "Commands" in done.stdout and done.stderr == ""


def test_a_reader_that_goes_away_is_no_error() -> None:
    command = subprocess.Popen(
        _command("show", LLAMA), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert command.stdout is not None and command.stderr is not None
    command.stdout.close()
    assert command.stderr.read() == ""
    command.wait()


def test_an_interrupt_ends_quietly() -> None:
    command = subprocess.Popen(
        _command("run", LLAMA, "--dims", "M=512"),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TRITON_INTERPRET": "1"},
        # a shell that runs the tests in the background has interrupts ignored
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert command.stderr is not None
    assert "takes long" in command.stderr.readline()
    time.sleep(0.5)
    command.send_signal(signal.SIGINT)
    _, stderr = command.communicate(timeout=60)
    assert command.returncode == 130
    assert "Traceback" not in stderr
