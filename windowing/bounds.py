"""Limits: event times whose windows would lie outside the time axis, and numbers of windows or ticks that are too large.

All checks are arithmetic on the spec and on a few numbers per key, so a limit is found to be exceeded before any work starts.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

import numpy as np

from windowmill.windowing.axis import DAY_US, to_us
from windowmill.windowing.errors import LimitExceededError, SpecError

if TYPE_CHECKING:
    from windowmill.windowing.kernels.combine import Ints
    from windowmill.windowing.slicing.edges import WindowGrid
    from windowmill.windowing.spec import Pipeline
    from windowmill.windowing.windows.base import Window

#: Maximum number of windows that contain one event.
MAX_WINDOWS_OF_EVENT = 1_000_000
#: Maximum number of windows, empty ones included, or ticks of one key in a batch.
MAX_ROWS_OF_KEY = 10_000_000
#: Maximum number of windows of all keys that are processed together: about 20 GB of columns.
MAX_ROWS = 1 << 28

#: Integer axes end at ± this, so that the sum or difference of two instants or lengths fits into 64 bits.
_REACH = 1 << 62
#: Time axes end with the years that Python can represent: 1 to 9999.
PRINTABLE = to_us(datetime(1, 1, 1)), to_us(datetime(9999, 12, 31)) + DAY_US - 1  # noqa: DTZ001 - UTC
#: Upper bound on a time zone's offset from UTC plus a change of its clock.
_CLOCKS_US = 3 * DAY_US


def accepted_times(pipeline: Pipeline) -> tuple[int, int]:
    """The least and greatest event time whose windows lie on the axis; rows outside are quarantined as ``time_out_of_range``.

    >>> from windowmill.windowing.specfile import parse_pipeline
    >>> hourly = {"name": "hourly", "type": "tumbling", "size": 3600}
    >>> spec = {"pipeline": "p", "time": {"column": "t", "unit": "s"}, "windows": [hourly], "aggregates": {"n": {"count": "*"}}}
    >>> accepted_times(parse_pipeline(spec)) == (-(1 << 62) + 7200, (1 << 62) - 7200)
    True
    """
    reach = max(window.reach() for window in pipeline.windows)
    if pipeline.time.integer_axis:
        return reach - _REACH, _REACH - reach
    first, last = PRINTABLE
    return first + reach + _CLOCKS_US, last - reach - _CLOCKS_US


def check_lengths(pipeline: Pipeline) -> None:
    """Refuse a spec whose lengths leave no valid event time, or put each event into too many windows.

    Raises
    ------
    SpecError
        If lengths or an origin reach beyond the axis.
    LimitExceededError
        If one event would be in more than ``MAX_WINDOWS_OF_EVENT`` windows.
    """
    name, (least, greatest) = f"pipeline {pipeline.pipeline}", accepted_times(pipeline)
    delay = pipeline.time.delay
    if least > greatest or delay > _REACH:
        where = "windows" if least > greatest else "time: disorder and lateness"
        raise SpecError(f"{name}: {where}: lengths reach beyond the time axis; make them shorter")
    for index, window in enumerate(pipeline.windows):
        origin = window.counted_from
        if isinstance(origin, int) and abs(origin) > _REACH // 2:
            raise SpecError(f"{name}: windows.{index}.origin: got {origin}; expected an instant within ±{_REACH // 2}")
        count = window.windows_of_event()
        if count > MAX_WINDOWS_OF_EVENT:
            raise LimitExceededError(
                f"{name}: windows.{index}: each event would be in {count:,} windows, more than {MAX_WINDOWS_OF_EVENT:,}; "
                f"give window {window.name} a longer {window.hop_field}"
            )


def check_duration(window: Window, duration: int) -> None:
    """Raise ``LimitExceededError`` if an event of ``duration`` is in too many windows."""
    count = window.windows_of_event(duration)
    if count > MAX_WINDOWS_OF_EVENT:
        raise LimitExceededError(
            f"window {window.name}: an event that lasts {duration:,} ticks would be in {count:,} windows, more than "
            f"{MAX_WINDOWS_OF_EVENT:,}; leave such rows out by source.filter, or make the windows longer"
        )


def check_key(window: str, count: int) -> None:
    """Raise ``LimitExceededError`` if one key has too many windows or ticks in a batch."""
    if count > MAX_ROWS_OF_KEY:
        raise LimitExceededError(
            f"window {window}: one key would have {count:,} windows or ticks in this batch, more than {MAX_ROWS_OF_KEY:,}; look for "
            "a row whose time is far from the others, limit future times by time.max_future_skew, or make the window's hop or tick longer"
        )


def check_share(window: str, count: int) -> None:
    """Raise ``LimitExceededError`` if the keys processed together have too many windows."""
    if count > MAX_ROWS:
        raise LimitExceededError(
            f"window {window}: up to {count:,} result rows in one part of this batch, more than {MAX_ROWS:,}; give the window a longer hop"
        )


def count_ends(grid: WindowGrid, first: Ints, last: Ints, n_slices: Ints, *, after: int, through: int) -> int:
    """Upper bound on the number of windows of ``grid`` that contain slices of the keys and end in (``after``, ``through``].

    ``first``, ``last``, ``n_slices``: start of each key's first and last slice, and its number of slices.
    """
    begin, end = np.maximum(first, after), np.minimum(last + grid.longest, through)
    span = np.where(end > begin, grid.most_ends(end - begin), 0)
    return int(np.minimum(span, n_slices * grid.most_ends(grid.longest)).sum(dtype=np.float64))
