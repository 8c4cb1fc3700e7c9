"""What counts as small: a batch within these limits is worked on by this process.

Starting jobs and Python workers takes Spark longer than a few thousand rows take the kernels. The logs of source and state say how much
there is before anything is read, and the number of result rows is bounded before windows are computed. Beyond any limit Spark does all of
the work. That appends of few rows need no Spark is decided by :mod:`windowmill.checkpoints.appending`.
"""

from __future__ import annotations

from collections.abc import Sequence

from windowmill.checkpoints.state.wanted import ReadLimit
from windowmill.jobs.sources.base import AddedFile
from windowmill.windowing.kernels.layout import Layout

#: New files, by their size and the rows that the log gives.
MOST_BYTES, MOST_ROWS = 32 << 20, 200_000
#: State files that may hold the slices that a batch needs.
MOST_STATE_BYTES, MOST_STATE_ROWS = 64 << 20, 1_000_000
#: State files in which nodes are looked up. A file of 68 MB (1.4 M rows) took 0.03 s on two cores, and 0.07 s with its levels mixed.
MOST_SEARCHED_BYTES = 1 << 30
#: Result rows, bounded by a row for every key and window end.
MOST_RESULTS = 500_000
#: Numbers of eight bytes in the partials of any of these: a histogram's hundreds of counts take little room in a file and much in memory.
MOST_NUMBERS = 32 << 20
#: Source bytes up to which Spark is set up for little work: a session with settings for a short life, and no more partitions than cores.
MOST_BYTES_OF_SHORT_RUN = 64 << 20
#: Result rows up to which Great Expectations validates in pandas, without a Spark job.
MOST_VALIDATED_IN_PANDAS = 1_000_000


def rows_within(limit: int, layout: Layout) -> int:
    """``limit`` in rows, lowered where partials are wide."""
    return min(limit, MOST_NUMBERS // max(1, sum(layout.widths())))


def are_few(files: Sequence[AddedFile], layout: Layout) -> bool:
    """Whether this process takes the rows of ``files``; not where the log does not say how many there are."""
    rows = sum(MOST_ROWS + 1 if file.rows is None else file.rows for file in files)
    return rows <= rows_within(MOST_ROWS, layout) and sum(file.size_bytes for file in files) <= MOST_BYTES


def state_read(layout: Layout) -> ReadLimit:
    """Up to how much of the state table this process reads."""
    return ReadLimit(MOST_STATE_BYTES, MOST_SEARCHED_BYTES, rows_within(MOST_STATE_ROWS, layout))
