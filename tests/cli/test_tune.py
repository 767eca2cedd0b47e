"""`fusedsl tune`: what it asks for, and what it says where there is nothing to tune."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from fusedsl.cli.app import app
from fusedsl.cli.inputs import parse_shapes
from fusedsl.cli.tune import brief
from fusedsl.diagnostics import FusedslError
from fusedsl.schedule import TileConfig

ROOT = Path(__file__).parents[2]
FILE = str(ROOT / "examples" / "rmsnorm_qkv.fdsl")


def run(*words: str):
    result = CliRunner().invoke(app, ["tune", FILE, *words, "--json"], catch_exceptions=False)
    return result.exit_code, json.loads(result.stdout)


def test_shapes() -> None:
    assert parse_shapes("M=16; M=4096,F=512") == [{"M": 16}, {"M": 4096, "F": 512}]
    assert parse_shapes(None) == parse_shapes(" ") == [{}]
    with pytest.raises(FusedslError) as caught:
        parse_shapes("M=16;N;K=-1")
    assert [d.code for d in caught.value.diagnostics] == ["F0105", "F0105"]


@pytest.mark.parametrize(
    ("words", "code"), [(("--shapes", "Q=3"), "F0404"), (("--shapes", "M"), "F0105")]
)
def test_mistakes(words: tuple[str, ...], code: str) -> None:
    status, found = run(*words)
    assert status == 1 and found["diagnostics"][0]["code"] == code


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is something to tune")
def test_without_a_gpu_there_is_nothing_to_tune() -> None:
    status, found = run("--shapes", "M=16")
    assert status == 1 and found["diagnostics"][0]["code"] == "F0604"


def test_configurations_in_few_words() -> None:
    config = TileConfig(128, 256, 64, warps=8, stages=4, programs=132)
    assert brief(config) == "128x256x64 w8 s4 p132 g8"
    assert brief(TileConfig(2, 1024, warps=4)) == "2x1024 w4"


@pytest.mark.gpu
def test_tuning_prints_default_and_tuned(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("FUSEDSL_CACHE_DIR", str(tmp_path))
    status, found = run("--shapes", "M=64")
    assert status == 0 and found["ok"]
    assert all(k["saved"] and k["ms"] <= k["default_ms"] for k in found["kernels"])
