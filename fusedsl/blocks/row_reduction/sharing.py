"""One row over several programs that run at the same time and tell each other their statistics.

A program takes a number when it starts, so that those of one row have all started, or will start
as soon as others end: whoever waits, waits for programs that run. The states of a row's parts are
words that carry their own sign of being there: the value in the upper half, the step it belongs to
in the lower. No order between words is needed then, and no cache is emptied, as acquiring would.

A program keeps its part of a row in registers until the others have told their states, and issues
the loads of its part of the next row before it waits for them. Turn 0 is of no row: the words are
zero, which says that they are there. A slot is written again four turns later: whoever does has
waited for all parts of the turn before last, and each of them was told by a program that had done
with the turn that the slot is of.
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
    bits = value.to(tl.int32, bitcast=True).to(tl.int64)
    at = slot + tl.arange(0, value.shape[0])
    tl.atomic_xchg(at, (bits << 32) | turn, sem="relaxed")


@triton.jit
def words_at(slots, PARTS: tl.constexpr, PADDED: tl.constexpr, ROWS: tl.constexpr):
    """Where the words of all parts lie, [ROWS, PADDED]; PADDED is a power of two, and the words
    past the last part are the last one's."""
    parts = tl.minimum(tl.arange(0, PADDED), PARTS - 1)
    return slots + parts[None, :] * ROWS + tl.arange(0, ROWS)[:, None]


@triton.jit
def collect(at, words, turn, PARTS: tl.constexpr, WAIT: tl.constexpr):
    """The states of all parts, fp32, once they are there, and zeros past the last part; `words` is
    what was there before.

    Without WAIT, what is there: where programs run one after another, a launch is repeated until
    the states of every turn are.
    """
    if WAIT:
        while tl.max(tl.max((words.to(tl.int32) != turn).to(tl.int32), axis=1), axis=0) != 0:
            words = tl.load(at, volatile=True)
    states = (words >> 32).to(tl.int32).to(tl.float32, bitcast=True)
    return tl.where((tl.arange(0, words.shape[1]) < PARTS)[None, :], states, 0.0)


#: What the row skeleton calls.
SHARING = (take_number, publish, words_at, collect)
