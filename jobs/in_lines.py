"""Text in lines that fit a terminal, and the console that writes them."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from windowmill.windowing.redaction import printable


class PlainConsole(Console):
    """A console on which data neither moves the cursor nor is markup: all that it shows goes through :func:`.printable`."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(highlight=False, markup=False, soft_wrap=True, **settings)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render as rich does; its own control codes stay."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=printable(segment.text))


def in_lines(text: str, columns: int, first: str = "", then: str = "") -> str:
    """``text`` in lines of at most so many columns; a longer word, such as a path, stays whole.

    The first line begins with ``first``, the others with ``then``.

    >>> print(in_lines("  one two three", 10, then="    "))
      one two
        three
    """
    return textwrap.fill(text, columns, initial_indent=first, subsequent_indent=then, break_long_words=False, break_on_hyphens=False)
