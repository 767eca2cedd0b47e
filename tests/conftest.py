"""Set-up that every test shares.

Where no CUDA device is usable, the kernels run in Triton's interpreter on the CPU; on a machine
with one, the same tests run compiled kernels. Triton reads ``TRITON_INTERPRET`` while it is
imported, so the choice is made here, before any test module is.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # read by numpy as it is imported

import pytest
import torch

TESTS = Path(__file__).parent
GOLDEN = TESTS / "golden"
#: Folders of the tests of the stages whose coverage is measured.
MEASURED = {TESTS / stage for stage in ("frontend", "fuse", "ir", "rewrite")}


def _cuda_usable() -> bool:
    """Say whether a kernel can run on a CUDA device here (a driver alone is not enough)."""
    if not torch.cuda.is_available():
        return False
    try:
        torch.zeros(1, device="cuda").item()
    except RuntimeError:
        return False
    return True


CUDA = _cuda_usable()
if not CUDA:
    os.environ.setdefault("TRITON_INTERPRET", "1")
torch.set_num_threads(1)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--update-golden``."""
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="write the texts that the golden fixture is given to tests/golden/",
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests marked ``gpu`` where there is no CUDA device."""
    if CUDA:
        return
    skip = pytest.mark.skip(reason="needs a CUDA device")
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(skip)


def _is_of_coverage(tracer: object) -> bool:
    """Say whether it is coverage's, not a debugger's."""
    return type(tracer).__module__.partition(".")[0] == "coverage"


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Run the tests outside of MEASURED without coverage's tracer: it makes Python two to three
    times slower. The marker ``no_cover`` takes away one of the two that a worker of xdist has."""
    tracer = sys.gettrace()
    if not _is_of_coverage(tracer) or not MEASURED.isdisjoint(item.path.parents):
        return (yield)
    sys.settrace(None)
    try:
        return (yield)
    finally:
        sys.settrace(tracer)
        _is_of_coverage(tracer)  # the tracer starts with a call, and this function's end is its


@pytest.fixture(scope="session")
def device() -> str:
    """Return the torch device that kernels run on: ``cuda``, or ``cpu`` when interpreted."""
    return "cuda" if CUDA and os.environ.get("TRITON_INTERPRET", "0") != "1" else "cpu"


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Return ``golden(name, text)``: hold a text against tests/golden/<name>.

    With ``--update-golden`` the text is written there instead, and the test passes.
    """
    update = request.config.getoption("--update-golden")

    def check(name: str, text: str) -> None:
        path = GOLDEN / name
        if update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            return
        if not path.exists():
            pytest.fail(f"{path} does not exist; pytest --update-golden writes it")
        assert text == path.read_text(encoding="utf-8"), (
            f"differs from {path}; if the change is meant, pytest --update-golden writes it"
        )

    return check
