"""Tables and plots of the README come from the results files, and from nothing else."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from benchmarks import report
from benchmarks.common import RESULTS
from benchmarks.report import PLOTS, README, digest, load, placed, plots

MAKEFILE = (README.parent / "Makefile").read_text()


def test_readme_tables_are_the_results() -> None:
    text = README.read_text()
    assert placed(text) == text, "run python -m benchmarks.report --write"


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_results_say_how_they_were_made(path: Path) -> None:
    record = json.loads(path.read_text())
    assert record["command"].startswith("python -m benchmarks.")
    assert {"torch", "triton"} <= set(record["versions"])
    assert record["date"] and "gpu" in record and record["rows"]
    assert all("name" in r and "holds" in r for r in record["rows"])


def test_every_plot_is_there_and_no_other() -> None:
    assert {p.stem for p in PLOTS.glob("*.svg")} == set(plots())
    embedded = re.findall(r"\]\(docs/plots/(\w+)\.svg\)", README.read_text())
    assert sorted(embedded) == sorted(plots())


@pytest.mark.parametrize("name", plots())
def test_a_plot_shows_the_results(name: str, tmp_path: Path) -> None:
    """By the digest in it; byte for byte where it was drawn with this version of matplotlib."""
    committed = (PLOTS / f"{name}.svg").read_text()
    record = load(name.removesuffix("_roofline"))
    assert record is not None
    assert digest(record) in committed, "run python -m benchmarks.report --write"
    matplotlib = pytest.importorskip("matplotlib")
    if f"Matplotlib v{matplotlib.__version__}," in committed:
        plots()[name](tmp_path / "again.svg")
        assert (tmp_path / "again.svg").read_text() == committed


@pytest.mark.parametrize("name", [*report.TIMED, "defaults", "accuracy", "compile_time"])
def test_make_bench_runs_every_benchmark(name: str) -> None:
    assert re.search(rf"^\t\$\(BIN\)/python -m benchmarks\.{name}\b", MAKEFILE, re.M)


def _record(**more: object) -> report.Record:
    row = {
        "name": "1B: MLP block, M 1",
        "ours_ms": 0.024,
        "limit_ms": 0.02,
        "ratio": 1.2,
        "peers": {"eager": 0.04, "torch.compile a": 0.036, "torch.compile b": 0.03},
        "bar": 1.15,
        "holds": False,
    }
    about = {"gpu": "G", "date": "2026-01-01", "command": "python -m benchmarks.decode"}
    versions = {"torch": "2", "triton": "3"}
    return {**about, "versions": versions, "rows": [{**row, **more}]}


def test_a_table_shows_units_the_better_compile_and_missed_bars() -> None:
    lines = report.timed("decode", _record()).splitlines()
    assert lines[0].startswith("| decode, in a CUDA graph, us | fusedsl | weights read once |")
    cells = [c.strip() for c in lines[2].strip("|").split("|")]
    assert cells[1:] == ["24.0 (1.20 of the limit)", "20.0", "30.0", "40.0", "1.15 **missed**"]
    held = report.timed("decode", _record(bar=1.3, holds=True))
    assert "missed" not in held and "| 1.30 |" in held
    assert report.timed("decode", _record(bar=None, holds=None)).splitlines()[2].endswith("| - |")


def test_a_roofline_is_drawn_where_the_run_measured_one(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    peak = {"bandwidth_gb_s": 4000.0, "tflops": {"bf16": 700.0}}
    report.roofline(tmp_path / "r.svg", {**_record(flops=1e9, bytes=1e8), "peak": peak})
    assert (
        digest({**_record(flops=1e9, bytes=1e8), "peak": peak}) in (tmp_path / "r.svg").read_text()
    )
