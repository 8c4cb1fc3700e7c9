"""Text in lines that fit a terminal."""

from __future__ import annotations

import textwrap


def in_lines(text: str, columns: int, first: str = "", then: str = "") -> str:
    """``text`` in lines of at most so many columns; a longer word, such as a path, stays whole.

    The first line begins with ``first``, the others with ``then``.

    >>> print(in_lines("  one two three", 10, then="    "))
      one two
        three
    """
    return textwrap.fill(text, columns, initial_indent=first, subsequent_indent=then, break_long_words=False, break_on_hyphens=False)
