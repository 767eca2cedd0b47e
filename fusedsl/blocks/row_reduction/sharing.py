"""One row over several programs that run at the same time and tell each other their statistics.

A program takes a number when it starts, so that those of one row have all started, or will start
as soon as others end: whoever waits, waits for programs that run. The states of a row's parts are
words that carry their own sign of being there: the value in the upper half, the step it belongs to
in the lower. No order between words is needed then, and no cache is emptied, as acquiring would.

A slot is written again two steps later. By then every program of the row has published the step
between, which it does after it has read this one.
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
def publish(slot, value, step):
    """Put a part's state, fp32 [rows], into a slot of as many words."""
    bits = value.to(tl.int32, bitcast=True).to(tl.int64)
    at = slot + tl.arange(0, value.shape[0])
    tl.atomic_xchg(at, (bits << 32) | step, sem="relaxed")


@triton.jit
def collect(
    slots, step, PARTS: tl.constexpr, PADDED: tl.constexpr, ROWS: tl.constexpr, WAIT: tl.constexpr
):
    """The states of all parts, fp32 [ROWS, PADDED], once they are there; PADDED is a power of two.

    Without WAIT, what is there: where programs run one after another, a launch is repeated until
    the states of every step are.
    """
    parts = tl.arange(0, PADDED)[None, :]
    at = slots + parts * ROWS + tl.arange(0, ROWS)[:, None]
    live = (parts < PARTS) & (tl.arange(0, ROWS) >= 0)[:, None]
    absent = tl.zeros([ROWS, PADDED], tl.int64) + step
    words = tl.load(at, mask=live, other=absent, volatile=True)
    if WAIT:
        while tl.max(tl.max((words.to(tl.int32) != step).to(tl.int32), axis=1), axis=0) != 0:
            words = tl.load(at, mask=live, other=absent, volatile=True)
    return (words >> 32).to(tl.int32).to(tl.float32, bitcast=True)


#: What the row skeleton calls.
SHARING = (take_number, publish, collect)
