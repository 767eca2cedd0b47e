"""Rows in rings: how the programs of a row tell each other their states."""

from __future__ import annotations

import random
from collections.abc import Generator

import pytest

from fusedsl.schedule import ring_slots


def interleaved(parts: int, lag: int, slots: int, turns: int, rng: random.Random) -> bool:
    """Whether all programs of a group end, in some order of their steps, and no word that one asks
    for is of a later row. Words are read one by one."""
    words = [[0] * parts for _ in range(slots)]
    lost: list[int] = []

    def asked(row: int, into: list[int]) -> Generator[None]:
        into.clear()
        for part in range(parts):
            into.append(words[row % slots][part])
            if rng.random() < 0.3:
                yield

    def program(own: int) -> Generator[None]:
        found: list[int] = []
        for turn in range(turns + lag):
            late = turn - lag
            yield from asked(late, found)
            if turn < turns:
                yield
                words[turn % slots][own] = turn + 1
                yield
            while late >= 0 and any(mark != late + 1 for mark in found):
                if any(mark > late + 1 for mark in found):
                    lost.append(late)
                    return
                yield
                yield from asked(late, found)
            yield

    running = [program(own) for own in range(parts)]
    weights = [1] * parts
    while running and not lost:
        if rng.random() < 0.02:
            weights = [rng.choice([1, 1, 50]) for _ in running]
        at = rng.choices(range(len(running)), weights)[0]
        try:
            next(running[at])
        except StopIteration:
            del running[at], weights[at]
    return not lost


@pytest.mark.parametrize("stages", [3, 5, 7])
def test_no_word_is_lost(stages: int) -> None:
    rng, lag = random.Random(stages), (stages - 1) // 2
    for _ in range(60):
        assert interleaved(rng.choice([2, 3]), lag, ring_slots(stages), 40, rng)


@pytest.mark.parametrize("stages", [3, 5, 7])
def test_with_a_slot_fewer_words_are_lost(stages: int) -> None:
    rng, lag = random.Random(stages), (stages - 1) // 2
    tried = (interleaved(2, lag, ring_slots(stages) - 1, 40, rng) for _ in range(300))
    assert not all(tried)
