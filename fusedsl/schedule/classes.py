"""Row classes: numbers of rows that one choice serves."""

from __future__ import annotations

#: Upper ends of the row classes; a new number of rows inside a class compiles nothing.
#: Waves of tiles decide a projection's time: from 64 on a class spans a factor of at most 3 to 2.
ROW_CLASSES = (16, 32, 64, *(top for n in range(7, 16) for top in (3 << (n - 2), 1 << n)))


def row_class(rows: int) -> int:
    """The class of a number of rows: the upper end that stands for it in every choice."""
    return next((top for top in ROW_CLASSES if rows <= top), ROW_CLASSES[-1])
