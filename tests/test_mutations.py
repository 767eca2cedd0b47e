"""A thousand damaged programs through the whole compiler, up to source that Python reads."""

from __future__ import annotations

import ast
import random
import time

import pytest

import fusedsl
from examples import FOLDER
from fusedsl.diagnostics import CODES
from tests.frontend.programs import ALL
from tests.frontend.test_mutations import mutated

COUNT = 1000
PROGRAMS = {**ALL, **{path.stem: path.read_text() for path in sorted(FOLDER.glob("*.fdsl"))}}


@pytest.mark.parametrize("base", PROGRAMS)
def test_each_compiles_or_is_refused_with_codes(base: str) -> None:
    rng = random.Random(f"compiling mutations of {base}")
    for _ in range(-(-COUNT // len(PROGRAMS))):
        text = mutated(PROGRAMS[base], rng)
        started = time.perf_counter()
        try:
            program = fusedsl.compile(text + "\n")
        except fusedsl.FusedslError as error:
            assert set(error.codes) <= set(CODES), text
        else:
            ast.parse(program.source_for(rng.choice(("tma", "pointer"))))
        assert time.perf_counter() - started < 20, text
