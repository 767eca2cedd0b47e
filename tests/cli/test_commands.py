"""Every command: what it prints, its JSON, its exit code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import fusedsl
from examples import FOLDER, read
from fusedsl.cli.app import app

LLAMA = str(FOLDER / "llama_mlp.fdsl")
NEMOTRON = str(FOLDER / "nemotron_mlp.fdsl")

BROKEN = "kernel k(x: bf16[M, 8]) -> (y: bf16[M, 8]) { y = rmsnorm(x) + z; }\n"


def invoke(*arguments: str, code: int = 0, stdin: str | None = None) -> Any:
    result = CliRunner().invoke(app, list(arguments), input=stdin)
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return result


def as_json(*arguments: str, code: int = 0) -> Any:
    return json.loads(invoke(*arguments, "--json", code=code).stdout)


@pytest.fixture
def small(tmp_path: Path) -> str:
    file = tmp_path / "llama_mlp.fdsl"
    file.write_text(read("llama_mlp", small=True))
    return str(file)


# check -----------------------------------------------------------------------------------------
def test_check_accepts_every_example() -> None:
    files = sorted(map(str, FOLDER.glob("*.fdsl")))
    assert invoke("check", *files).stdout.count(": ok") == len(files)
    assert as_json("check", *files) == {"ok": True, "diagnostics": []}


def test_check_reports_every_mistake_in_every_file(tmp_path: Path) -> None:
    broken, empty = tmp_path / "broken.fdsl", tmp_path / "empty.fdsl"
    broken.write_text(BROKEN)
    empty.write_text("")
    found = as_json("check", str(broken), LLAMA, str(empty), "nowhere.fdsl", code=1)
    assert found["ok"] is False
    codes = {Path(d["file"]).name: d["code"] for d in found["diagnostics"]}
    assert codes["empty.fdsl"] == "F0101" and codes["nowhere.fdsl"] == "F0102"
    assert {"F0201", "F0202"} <= {d["code"] for d in found["diagnostics"]}
    text = invoke("check", str(broken), LLAMA, code=1)
    assert "error[F0201]" in text.stderr and "did you mean 'rms_norm'" in text.stderr
    assert f"{LLAMA}: ok" in text.stdout


def test_check_reads_standard_input() -> None:
    invoke("check", "-", stdin=read("llama_mlp"))
    assert "F0201" in invoke("check", "-", stdin=BROKEN, code=1).stderr


# explain ---------------------------------------------------------------------------------------
def test_explain_as_json_has_the_documented_keys() -> None:
    found = as_json("explain", NEMOTRON, "--dims", "M=512")
    assert found["name"] == "nemotron_mlp" and found["dims"] == {"M": 512}
    for kernel in found["kernels"]:
        assert {"name", "kind", "blocks", "reads", "writes", "bytes"} <= set(kernel)
    rules = {(r["rule"], r["outcome"]) for r in found["rules"]}
    assert ("homogeneous_activation", "fired") in rules
    assert all({"rule", "fired", "outcome", "where", "reason"} <= set(r) for r in found["rules"])
    assert found["launches"]["fused"] == 2 < found["launches"]["eager"]
    assert found["bytes"]["fused"] < found["bytes"]["eager"]


def test_explain_says_why_a_rule_was_refused() -> None:
    text = invoke("explain", LLAMA).stdout
    assert "homogeneous_activation" in text and "refused" in text and "silu" in text


# show ------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("stage", "sign"),
    [
        ("source", "rms_norm(x, gain"),
        ("expand", "row_mean_square(x)"),
        ("rewrite", "fold_scale("),
        ("plan", "# once per binding: fold_scale_1"),
        ("code", "@triton.jit"),
    ],
)
def test_show_every_stage(stage: str, sign: str) -> None:
    text = invoke("show", LLAMA, "--stage", stage).stdout
    assert sign in text
    assert as_json("show", LLAMA, "--stage", stage)["text"].strip() == text.strip()


def test_show_code_for_either_main_loop() -> None:
    tma = invoke("show", LLAMA, "--main-loop", "tma").stdout
    pointer = invoke("show", LLAMA, "--main-loop", "pointer").stdout
    assert "a_desc" in tma and "a_ptr" in pointer


def test_show_code_of_specialised_projections() -> None:
    qkv = str(FOLDER / "rmsnorm_qkv.fdsl")
    shown = invoke("show", qkv, "--main-loop", "specialised", "--dims", "M=8192").stdout
    assert "@gluon.jit" in shown and "def k0_linear(" in shown
    few = invoke("show", qkv, "--main-loop", "specialised", "--dims", "M=128", code=1)
    assert "F0507" in few.output and "at M=128" in few.output


def test_shown_text_is_a_program(tmp_path: Path) -> None:
    file = tmp_path / "again.fdsl"
    file.write_text(invoke("show", LLAMA, "--stage", "expand").stdout)
    invoke("check", str(file))


# run -------------------------------------------------------------------------------------------
def test_run_on_random_inputs(small: str) -> None:
    found = as_json("run", small, "--dims", "M=19", "--repeat", "1")
    assert found["ok"] and found["dims"] == {"M": 19}
    assert 0 < found["error"] <= found["eager_error"] < 1e-2
    assert found["kernels"]["fused"] == 2 < found["kernels"]["eager"]
    assert found["ms"] > 0 and found["eager_ms"] > 0
    assert found["outputs"]["y"]["shape"] == [19, 64]
    again = as_json("run", small, "--dims", "M=19", "--repeat", "1")
    assert again["error"] == found["error"], "the seed decides the inputs"


def test_run_projects_a_vector() -> None:
    text = "kernel k(v: bf16[24], w: weight bf16[9, 24]) -> (y: bf16[9]) { y = linear(v, w); }"
    assert "bfloat16 [9]" in invoke("run", "-", stdin=text).stdout


def test_run_of_what_no_memory_holds(tmp_path: Path) -> None:
    file = tmp_path / "k.fdsl"
    size = f"{2**31 - 1}, {2**31 - 1}"
    file.write_text(f"kernel k(x: bf16[{size}]) -> (y: bf16[{size}]) {{ y = relu(x); }}")
    assert "do not fit in memory" in invoke("run", str(file), code=1).stderr


def test_run_shrunk() -> None:
    text = invoke("run", LLAMA, "--shrink", "64", "--repeat", "1", "--dims", "M=5").stdout
    assert "bfloat16 [5, 64]" in text and "ok" in text and "2 kernels" in text


def test_run_on_tensors_from_files(small: str, tmp_path: Path) -> None:
    save_file = pytest.importorskip("safetensors.torch").save_file
    x = torch.randn(7, 64, generator=torch.Generator().manual_seed(0)).bfloat16()
    save_file({"x": x, "other": x[:3].clone()}, tmp_path / "in.safetensors")
    torch.save({"deep.gain": torch.ones(64).bfloat16(), "b": x}, tmp_path / "w.pt")
    torch.save(x, tmp_path / "x.pt")
    given = [
        "--input",
        f"x={tmp_path}/in.safetensors",
        "--input",
        f"gain={tmp_path}/w.pt:deep.gain",
    ]
    assert as_json("run", small, *given, "--repeat", "1")["dims"] == {"M": 7}
    found = as_json("run", small, "--input", f"x={tmp_path}/in.safetensors:other", "--repeat", "1")
    assert found["dims"] == {"M": 3}
    assert as_json("run", small, "--input", f"x={tmp_path}/x.pt", "--repeat", "1")["ok"]


# build -----------------------------------------------------------------------------------------
def test_build_for_machines_that_are_not_here(tmp_path: Path) -> None:
    qkv = str(FOLDER / "rmsnorm_qkv.fdsl")
    found = as_json("build", qkv, "--target", "sm_90,gfx942", "--out", str(tmp_path))
    assert found["ok"] and found["diagnostics"] == []
    assert [(k["target"], k["spills"]) for k in found["kernels"]] == [
        ("sm_90", 0),  # which takes the statistic along
        ("gfx942", 0),
        ("gfx942", 0),
    ]
    for kernel in found["kernels"]:
        assert kernel["registers"] > 0
        assert kernel["shared_memory"] <= kernel["shared_limit"]
        assert all(Path(f).is_relative_to(tmp_path) for f in kernel["files"])
    source = Path(found["sources"]["sm_90"][0]).read_text()
    assert "@gluon.jit" in source and "rmsnorm_qkv" in source


# the tool itself -------------------------------------------------------------------------------
def test_version() -> None:
    assert invoke("--version").stdout.strip() == f"fusedsl {fusedsl.__version__}"


@pytest.mark.parametrize("command", ["check", "explain", "show", "run", "build"])
def test_help_has_an_example(command: str) -> None:
    assert "fusedsl" in invoke(command, "--help").stdout
    assert "Example" in invoke(command, "--help").stdout
