"""A cache folder of their own, and rows that are never kept in registers."""

from __future__ import annotations

import pytest

import fusedsl.codegen.passes
import fusedsl.schedule.rows


@pytest.fixture(autouse=True)
def cache_dir(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path_factory.getbasetemp() / "fusedsl-cache"
    monkeypatch.setenv("FUSEDSL_CACHE_DIR", str(folder))


@pytest.fixture
def looped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every row reduction passes over its rows in pieces of at most 4096 columns."""
    monkeypatch.setattr(fusedsl.schedule.rows, "RESIDENT_COLUMNS", 0)
    monkeypatch.setattr(fusedsl.schedule.rows, "CHAINED_COLUMNS", 0)


@pytest.fixture
def centred(looped: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Moments are taken about the mean of the first of those pieces."""
    monkeypatch.setattr(fusedsl.codegen.passes, "CENTRED_COLUMNS", 0)


@pytest.fixture
def shared(looped: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every row is one that several programs may share."""
    for name in ("ALONE_COLUMNS", "ALONE_OTHERS", "ALONE_MOMENTS", "ALONE_DEPENDENT"):
        monkeypatch.setattr(fusedsl.schedule.rows, name, 0)
