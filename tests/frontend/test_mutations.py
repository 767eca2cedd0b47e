"""A thousand damaged programs: each parses or is refused with codes, quickly, and never crashes."""

from __future__ import annotations

import random
import re
import time

import pytest

from fusedsl.diagnostics import CODES, FusedslError
from fusedsl.frontend import from_json, parse, to_json
from fusedsl.ir import print_graph, verify
from tests.frontend.programs import ALL

COUNT = 1000
TOKEN = re.compile(r"#[^\n]*\n|\w+(?:\.\w*)?(?:[eE][-+]?\d+)?|\s+|->|.", re.DOTALL)
WORDS = """
kernel weight bf16 fp32 fp8 x y h M F 2*M 0 1 -1 1e-6 1e999 99999999999 tanh gemma true relu linear
row_moments half softmax stack partial_sum ( ) [ ] { } , ; = : -> + - * / # . @
"""
SPARE = WORDS.split()
NOISE = "\0\t\r\n \ufeff\u2212\u00e9\ud800$@'\"\\`~!?%^&|<>;,(){}[]=+-*/#.09azAZ_"


def delete(tokens: list[str], rng: random.Random) -> None:
    del tokens[rng.randrange(len(tokens))]


def duplicate(tokens: list[str], rng: random.Random) -> None:
    at = rng.randrange(len(tokens))
    tokens.insert(at, tokens[at])


def swap(tokens: list[str], rng: random.Random) -> None:
    a, b = rng.randrange(len(tokens)), rng.randrange(len(tokens))
    tokens[a], tokens[b] = tokens[b], tokens[a]


def replace(tokens: list[str], rng: random.Random) -> None:
    tokens[rng.randrange(len(tokens))] = rng.choice([*SPARE, rng.choice(tokens)])


def noise(tokens: list[str], rng: random.Random) -> None:
    at = rng.randrange(len(tokens))
    cut = rng.randint(0, len(tokens[at]))
    tokens[at] = tokens[at][:cut] + rng.choice(NOISE) + tokens[at][cut:]


def number(tokens: list[str], rng: random.Random) -> None:
    places = [i for i, t in enumerate(tokens) if t[0].isdigit()]
    tokens[rng.choice(places)] = rng.choice(["0", "1", "3", "7.5", "2147483648", "1e40", "9" * 400])


def name(tokens: list[str], rng: random.Random) -> None:
    places = [i for i, t in enumerate(tokens) if t[0].isalpha()]
    tokens[rng.choice(places)] = tokens[rng.choice(places)]


def statement(tokens: list[str], rng: random.Random) -> None:
    lines = "".join(tokens).split("\n")
    a, b = rng.randrange(len(lines)), rng.randrange(len(lines))
    lines[a], lines[b] = lines[b], lines[a]
    tokens[:] = TOKEN.findall("\n".join(lines)) or [" "]


MUTATIONS = (delete, duplicate, swap, replace, noise, number, name, statement)


def mutated(text: str, rng: random.Random) -> str:
    tokens = TOKEN.findall(text)
    for _ in range(rng.randint(1, 3)):
        rng.choice(MUTATIONS)(tokens, rng)
        tokens = tokens or [" "]
    return "".join(tokens)


@pytest.mark.parametrize("base", ALL)
def test_damaged_programs(base: str):
    rng = random.Random(f"mutations of {base}")
    accepted = 0
    for _ in range(-(-COUNT // len(ALL))):
        text = mutated(ALL[base], rng)
        started = time.perf_counter()
        try:
            graph = parse(text)
        except FusedslError as error:
            assert error.codes
            assert set(error.codes) <= set(CODES)
            assert all(d.span is not None and d.fix for d in error.diagnostics), text
        else:
            accepted += 1
            assert parse(print_graph(verify(graph))) == graph == from_json(to_json(graph)), text
        assert time.perf_counter() - started < 1, text
    assert accepted > 0
