"""One row over several programs that run at the same time and tell each other their statistics.

A program takes a number when it starts, so that those of one row have all started, or will start
as soon as others end: whoever waits, waits for programs that run. The states of a row's parts are
words that carry their own sign of being there: the value in the upper half, the step it belongs to
in the lower. No order between words is needed then, and no cache is emptied, as acquiring would.

In turn k a program asks for the words of turn k, tells its state of the row of turn k + 1, waits
until all words of turn k are there, and stores that row. How far ahead rows are loaded does not
matter to the words. Turn 0 is of no row: the words are zero, which says that they are there. Turns
past the last row are of no row either; their states are told and nobody waits for them. Programs of
a group take the same turns, whatever M is.

A slot is written again four turns later. Whoever tells the state of turn k + 1, over that of turn
k - 3, has ended turn k - 1, so has seen every part's word of turn k - 1. Each of these was told in
turn k - 2 of its program, after that program had ended turn k - 3, with all its reads of words of
turn k - 3: what they gave decided when the turn ended, in every warp before the barrier of the
reduction whose state was told. So no word is lost before all have read it, and a word that is
asked for is of its turn or of an earlier one. States that depend on others are told in turn k
itself, over those of turn k - 4, by a program that has ended turn k - 1, so after every part's turn
k - 2.
"""

# releases of triton type their functions differently
# pyright: reportArgumentType=false, reportOperatorIssue=false, reportGeneralTypeIssues=false
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def take_number(words):
    """The number of this program in the order in which they start."""
    before = tl.atomic_add(words, 1, sem="relaxed")
    return (before % tl.num_programs(0)).to(tl.int32)


@triton.jit
def publish(slot, value, turn):
    """Put a part's state, fp32 [rows], into a slot of as many words."""
    bits = unbound(value).to(tl.int32, bitcast=True).to(tl.int64)
    at = slot + tl.arange(0, value.shape[0])
    tl.atomic_xchg(at, (bits << 32) | turn, sem="relaxed")


@triton.jit
def words_at(slots, PARTS: tl.constexpr, PADDED: tl.constexpr, ROWS: tl.constexpr):
    """Where the words of all parts lie, [ROWS, PADDED]; PADDED is a power of two, and the words
    past the last part are the last one's."""
    parts = tl.minimum(tl.arange(0, PADDED), PARTS - 1)
    return slots + parts[None, :] * ROWS + tl.arange(0, ROWS)[:, None]


@triton.jit
def missing(words, turn):
    """1 where a word is not of this turn yet, else 0."""
    return (words.to(tl.int32) != turn).to(tl.int32)


@triton.jit
def any_of(flags):
    """Whether any flag is set; all threads learn the same."""
    return tl.max(tl.max(flags, axis=1), axis=0) != 0


@triton.jit
def states_of(words, PARTS: tl.constexpr):
    """The states of all parts, fp32, in words that are there, and zeros past the last part."""
    states = (words >> 32).to(tl.int32).to(tl.float32, bitcast=True)
    return tl.where((tl.arange(0, words.shape[1]) < PARTS)[None, :], states, 0.0)


@triton.jit
def unbound(values):
    """The same values; that of a single row by way of a scalar, which every layout takes as it is:
    triton 3.6 may spread such a value over a tile in one layout and bring the tile to another."""
    if values.shape[0] == 1:
        return tl.full((1,), tl.sum(values, axis=0), values.dtype)
    else:
        return values


#: What the row skeleton calls.
SHARING = (take_number, publish, words_at, missing, any_of, states_of, unbound)
