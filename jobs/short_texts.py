"""Texts for people: figures, instants and durations in few characters, lines that fit a terminal, and the console that writes them."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from windowmill.windowing.axis import from_us
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


def instant(t_us: int) -> datetime:
    """The instant ``t_us`` microseconds after the epoch, clipped to the range of ``datetime``."""
    try:
        return from_us(t_us)
    except OverflowError:
        return datetime.min.replace(tzinfo=UTC) if t_us < 0 else datetime.max.replace(tzinfo=UTC)


def short(value: float) -> str:
    """A figure in few characters: ``12,345``, ``0.123``, ``3.4M``, ``−7``."""
    sign, size = ("−" if value < 0 else ""), abs(value)
    for limit, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if size >= limit:
            return f"{sign}{size / limit:,.4g}{unit}" if size < 1e15 else f"{value:.2e}"
    if size and size < 1e-3:
        return f"{value:.2e}"
    text = f"{size:,.0f}" if size >= 1000 or size == int(size) else f"{size:.3g}"
    return f"{sign}{text}"


def moment(at: datetime | int | None, *, seconds: bool = False) -> str:
    """An instant in UTC, or a point of an integer axis, as text; a dash for none."""
    if at is None:
        return "–"
    if not isinstance(at, datetime):
        return f"{at:,}".replace("-", "−")
    at = at.astimezone(UTC)
    return f"{at.day} {at:%b %Y %H:%M:%S}" if seconds else f"{at.day} {at:%b %Y %H:%M}"


def elapsed(seconds: float) -> str:
    """A duration in one unit, rounded: ``42 ms``, ``7.3 s``, ``5 min``, ``26 h``."""
    for limit, unit, name in ((1, 0.001, "ms"), (90, 1, "s"), (5400, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / unit:.1f} {name}" if name == "s" else f"{seconds / unit:.0f} {name}"
    return f"{seconds / 86_400:,.0f} days"
