"""Tests marked ``full`` run only when the command line asks for them."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip ``full`` tests unless ``-m`` names them."""
    if "full" in (config.option.markexpr or ""):
        return
    for item in items:
        if item.get_closest_marker("full"):
            item.add_marker(pytest.mark.skip(reason="takes many minutes: pytest -m full"))
