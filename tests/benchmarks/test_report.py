"""Tables in the README come from the results files, and from nothing else."""

from __future__ import annotations

import json

import pytest

from benchmarks.common import RESULTS
from benchmarks.report import README, placed


def test_readme_tables_are_the_results() -> None:
    text = README.read_text()
    assert placed(text) == text, "run python -m benchmarks.report --write"


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_results_say_how_they_were_made(path) -> None:
    record = json.loads(path.read_text())
    assert record["command"].startswith("python -m benchmarks.")
    assert {"torch", "triton"} <= set(record["versions"])
    assert record["date"] and "gpu" in record and record["rows"]
