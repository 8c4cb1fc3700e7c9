"""Event times of rows that are points in time, and whether they can be used."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from windowmill.windowing.bounds import accepted_times
from windowmill.windowing.columnar.rows import plain
from windowmill.windowing.kernels.columns import int64_of, valid_of
from windowmill.windowing.kernels.combine import Bools, Ints
from windowmill.windowing.spec import Pipeline


def event_times(pipeline: Pipeline, column: pa.Array, latest: int | None) -> tuple[Ints, Bools]:
    """Event time of each row from its time column (instants in microseconds, or integers), and a mask of the rows that count.

    ``latest`` is the greatest accepted event time; null for no bound.
    """
    least, greatest = accepted_times(pipeline)
    times = int64_of(plain(column))
    usable = (times >= least) & (times <= (greatest if latest is None else min(greatest, latest)))
    if column.null_count:
        usable &= valid_of(column)
    return times, np.asarray(usable, np.bool_)
