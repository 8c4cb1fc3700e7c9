"""Limits of a small batch, which this process computes without Spark.

Spark takes longer to start jobs and Python workers than the kernels take for a few thousand rows. The logs of source and state give the
sizes before anything is read. Partials and result rows are counted or bounded once the new rows are read, before windows are computed.
Beyond any limit, Spark does all of the work.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from windowmill.checkpoints.state.reading import ReadLimit
from windowmill.jobs.sources.base import AddedFile
from windowmill.windowing.kernels.layout import Layout

#: Limits on the new files: bytes, and rows by the source's log. 360,000 rows in calendar windows took this process 1.0 s of processor time,
#: and a warm Spark of two cores 6.5 s; 552,000 rows in sessions or a day's windows took 0.6 to 0.8 s, and Spark 4.4 to 5.1 s.
MAX_BYTES, MAX_ROWS = 64 << 20, 1_000_000
#: Greatest number of rows whose event times this process reads if tasks read the rest: 15 ns a row.
MAX_ROWS_SURVEYED_HERE = 20_000_000
#: Limit on the new files, each of which is opened and examined before it is read.
MAX_FILES = 256
#: Limit on the rows that this process quarantines: 7 µs a row and column.
MAX_REFUSED = 200_000
#: Limits on candidate state files for in-process work: bytes and rows.
MAX_STATE_BYTES, MAX_STATE_ROWS = 64 << 20, 1_000_000
#: Bytes of state files to search for nodes, or of row groups with positions. A file of 68 MB (1.4 M rows) took 0.03 s on two cores, and
#: 0.07 s with its levels mixed.
MAX_SEARCHED_BYTES = 1 << 30
#: Limit on result rows, estimated as one row per key and window end.
MAX_RESULTS = 1_000_000
#: Limit on the partials into which interval events are lifted, one for each start of a window that an event crosses: a few seconds' work.
MAX_PARTIALS = 5_000_000
#: Limit on the 8-byte numbers in partials: a histogram's hundreds of counts are small in a file but large in memory.
MAX_NUMBERS = 32 << 20
#: Numbers that a partial counts for that is a Python object; a quantile's holds up to 8,192, most hold far fewer.
NUMBERS_OF_OBJECT = 128
#: Limits on the rows of files that one task makes windows of, and on how often windows count them: a shuffle would take longer.
MAX_ROWS_OF_A_TASK, MAX_COUNTED_OF_A_TASK = 500_000, 10_000_000
#: Limits on tasks that each read all rows of files, where a shuffle would take longer: cores, the numbers that the tasks running at one
#: time keep if each row is a slice of its own, and the bytes that they keep, of pages before compression.
MAX_READERS, MAX_SHARED_NUMBERS, MAX_SHARED_BYTES = 4, 128 << 20, 1 << 30
#: Limit on how often all tasks together read live rows that exceed these limits. To read a row of 200 bytes with texts once costs about
#: 150 ns of processor time, to shuffle it 2 µs; of a row of numbers 20 ns, and 250 to 500 ns.
MAX_READINGS = 8
#: Rows for which a batch that reads only the source takes another share of the keys, and its most shares: each reads all rows.
ROWS_OF_A_SHARE, MAX_SHARES = 10_000_000, 16
#: Result rows up to which Great Expectations validates in pandas, without a Spark job.
MAX_VALIDATED_IN_PANDAS = 1_000_000

#: The option that limits how much of the new files a batch takes.
_SMALLER = "(source.options.{}PerTrigger makes batches smaller)"


class TooLargeError(Exception):
    """A batch is beyond what one process computes; the text says what exceeds which limit."""


class OnlySparkError(TooLargeError):
    """Only Spark can read the batch's rows, or evaluate the spec on them; the text says which."""


def too_many(n: int, what: str, most: int) -> TooLargeError:
    """The error for ``n`` items of a kind, if one process takes at most ``most``."""
    return TooLargeError(f"{n:,} {what}, and one process takes at most {most:,}")


def rows_within(limit: int, layout: Layout | None) -> int:
    """``limit`` in rows, reduced for wide partials; ``layout`` is null for rows that are not made partials."""
    return limit if layout is None else min(limit, MAX_NUMBERS // max(1, _width(layout)))


def check_rows(n_rows: int, layout: Layout | None) -> None:
    """Raise ``TooLargeError`` if ``n_rows`` new rows are too many for this process."""
    most = rows_within(MAX_ROWS, layout)
    if n_rows <= most:
        return
    if layout is None or most == MAX_ROWS:
        raise too_many(n_rows, "new rows", MAX_ROWS)
    raise too_many(n_rows, f"new rows, whose aggregates keep {_width(layout):,} numbers a row and window", most)


def are_few_partials(n_partials: int, n_rows: int, layout: Layout) -> bool:
    """Whether this process lifts ``n_rows`` into ``n_partials``; each counts its width, and objects one number more for each row."""
    return n_partials * _width(layout) + n_rows * len(layout.objects) <= MAX_NUMBERS


def _width(layout: Layout) -> int:
    """Number of 8-byte numbers in a partial."""
    return sum(layout.widths()) + NUMBERS_OF_OBJECT * len(layout.objects)


def shares_of(n_rows: int) -> int:
    """Number of shares of the keys for which a batch of ``n_rows`` that reads only the source is computed one after the other."""
    return max(1, min(MAX_SHARES, -(-n_rows // ROWS_OF_A_SHARE)))


def check_files(files: Sequence[AddedFile], layout: Layout | None) -> None:
    """Raise ``TooLargeError`` if the rows of ``files`` are too many for this process, or their number is not in the source's log."""
    size = sum(file.size_bytes for file in files)
    if size > MAX_BYTES:
        most = f"{MAX_BYTES >> 20} MB {_SMALLER.format('maxBytes')}"
        raise TooLargeError(f"{size / 2**20:,.0f} MB of new files, and one process takes at most {most}")
    if any(file.rows is None for file in files):
        unknown = "the source's log does not record the number of new rows (it lacks statistics, or files have deletion vectors)"
        raise TooLargeError(f"{unknown}, and one process takes at most {MAX_ROWS:,}")
    if len(files) > MAX_FILES:
        raise TooLargeError(f"{len(files):,} new files, and one process takes at most {MAX_FILES:,} {_SMALLER.format('maxFiles')}")
    check_rows(sum(file.rows or 0 for file in files), layout)


def are_few_files(files: Sequence[AddedFile]) -> bool:
    """Whether this process computes the rows of ``files``, as far as the source's log shows."""
    try:
        check_files(files, None)
    except TooLargeError:
        return False
    return True


def state_beyond(path: str) -> TooLargeError:
    """The error for a batch that needs more of the state at ``path`` than :func:`state_read` allows."""
    most = f"{MAX_STATE_BYTES >> 20} MB or {MAX_STATE_ROWS:,} rows"
    return TooLargeError(
        f"the batch needs more of the state {path} than the {most} that one process reads; `windowmill maintain` compacts it, "
        "which may be enough"
    )


def state_read(layout: Layout | None, *, limited: bool) -> ReadLimit:
    """Limits on what this process reads of the state; none that matters unless the batch is ``limited``."""
    if not limited:
        return ReadLimit(sys.maxsize, sys.maxsize, sys.maxsize)
    return ReadLimit(MAX_STATE_BYTES, MAX_SEARCHED_BYTES, rows_within(MAX_STATE_ROWS, layout))
