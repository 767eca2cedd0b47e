"""Rows that clusters share: how their warps tell each other the states of rows."""

from __future__ import annotations

import random
from collections.abc import Generator

import pytest


class Slot:
    """A barrier that counts what is told, one program's; the rows that its words are of."""

    def __init__(self, warps: int) -> None:
        self.armed, self.arrived, self.passed = False, 0, 0
        self.words = [-1] * warps

    def settle(self, warps: int) -> None:
        if self.armed and self.arrived == warps:
            self.armed, self.arrived, self.passed = False, 0, self.passed + 1


class Cluster:
    """Programs with slots, and what of their words was lost: those of another row when read."""

    def __init__(self, programs: int, warps: int, slots: int, rng: random.Random) -> None:
        self.programs, self.warps, self.rng = programs, warps, rng
        self.every = programs * warps
        self.slots = [[Slot(self.every) for _ in range(slots)] for _ in range(programs)]
        self.lost: list[int] = []

    def warp(self, program: int, own: int, turns: int) -> Generator[None]:
        """What a warp does, step by step."""
        lag = 1
        for turn in range(turns + lag):
            if turn < turns:
                if own == 0:
                    yield from self.expect(program, turn)
                yield from self.tell(program * self.warps + own, turn)
            if turn >= lag:
                yield from self.read(program, turn - lag)

    def expect(self, program: int, row: int) -> Generator[None]:
        slot = self.at(program, row)
        if slot.armed:
            self.lost.append(row)
        slot.armed = True
        slot.settle(self.every)
        yield

    def tell(self, word: int, row: int) -> Generator[None]:
        for other in self.rng.sample(range(self.programs), self.programs):
            slot = self.at(other, row)
            slot.words[word] = row
            slot.arrived += 1
            slot.settle(self.every)
            yield

    def read(self, program: int, row: int) -> Generator[None]:
        slot = self.at(program, row)
        while slot.passed % 2 == row // len(self.slots[program]) % 2:
            yield
        for word in range(self.every):
            if slot.words[word] != row:
                self.lost.append(row)
            if self.rng.random() < 0.3:
                yield

    def at(self, program: int, row: int) -> Slot:
        return self.slots[program][row % len(self.slots[program])]


def interleaved(programs: int, warps: int, slots: int, turns: int, rng: random.Random) -> bool:
    """Whether all warps of a cluster end, in some order of their steps, and each word that one
    reads is of the row that it reads it for. Words are told and read one by one."""
    cluster = Cluster(programs, warps, slots, rng)
    running = [cluster.warp(p, own, turns) for p in range(programs) for own in range(warps)]
    weights = [1] * cluster.every
    for _ in range(400 * turns * cluster.every):
        if cluster.lost or not running:
            break
        if rng.random() < 0.02:
            weights = [rng.choice([1, 1, 50]) for _ in running]
        at = rng.choices(range(len(running)), weights)[0]
        try:
            next(running[at])
        except StopIteration:
            del running[at], weights[at]
    return not cluster.lost and not running


def test_no_word_is_lost() -> None:
    rng = random.Random(0)
    for _ in range(60):
        assert interleaved(rng.choice([2, 3]), rng.choice([1, 2]), 4, 20, rng)


@pytest.mark.parametrize("warps", [1, 2])
def test_with_a_slot_fewer_words_are_lost(warps: int) -> None:
    rng = random.Random(warps)
    tried = (interleaved(2, warps, 3, 20, rng) for _ in range(300))
    assert not all(tried)
