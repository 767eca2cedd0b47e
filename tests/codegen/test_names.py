"""Names of variables."""

from __future__ import annotations

import keyword

import pytest

from fusedsl.codegen.names import SKELETON, Namer


def test_a_free_name_is_kept() -> None:
    assert Namer().fresh("gain") == "gain"


def test_a_name_is_given_once() -> None:
    namer = Namer()
    assert [namer.fresh("h") for _ in range(3)] == ["h", "h_2", "h_3"]


def test_a_number_at_the_end_is_not_taken_for_ours() -> None:
    namer = Namer()
    assert [namer.fresh(n) for n in ("h_2", "h", "h")] == ["h_2", "h", "h_3"]


@pytest.mark.parametrize("word", sorted(SKELETON))
def test_skeleton_names_are_taken(word: str) -> None:
    assert Namer().fresh(word) == f"{word}_2"


@pytest.mark.parametrize("word", ["lambda", "None", "for", "is"])
def test_keywords(word: str) -> None:
    assert keyword.iskeyword(word) and Namer().fresh(word) == f"{word}_2"


def test_functions_of_the_blocks_are_taken() -> None:
    assert Namer(frozenset({"mul"})).fresh("mul") == "mul_2"


@pytest.mark.parametrize("stem", ["2*F_DIM", "a.b", "x y", "grösse", "1"])
def test_any_stem_gives_an_identifier(stem: str) -> None:
    assert Namer().fresh(stem).isidentifier()
