"""Refuses a backfill that would number triggers anew beside rows that keep their numbers. No JVM."""

from __future__ import annotations

import pyarrow as pa

from windowmill.checkpoints.delta_tables import newest
from windowmill.checkpoints.places import Runnable
from windowmill.checkpoints.stores import is_table
from windowmill.jobs.sources.changed_rows import ends_in_sql, queried
from windowmill.windowing.errors import UnsupportedError


def check_range(runnable: Runnable, begin: int, end: int, why: str) -> None:
    """Refuse to recompute windows with policies in (``begin``, ``end``] from other rows than earlier batches read, unless these are all.

    Triggers are counted from a key's first tuple on. Rows outside the range keep the numbers that they have.

    Parameters
    ----------
    why
        Why other rows count, for the message.

    Raises
    ------
    UnsupportedError
        If the sink has rows of these windows outside the range.
    """
    pipeline, names = runnable.pipeline, [window.name for window in runnable.pipeline.windows if window.follows_policies]
    if not names or not is_table(runnable.sink_path):
        return
    ends = ends_in_sql(timed=pipeline.time.unit is None)
    listed = ", ".join(f"'{name}'" for name in names)  # identifiers
    others = queried(
        newest(runnable.sink_path),
        {"window": pa.string()},
        f'"window" IN ({listed}) AND NOT ({ends} > {begin} AND {ends} <= {end})',
        {"window": "window"},
    )
    if any(rows.num_rows for rows in others):
        raise UnsupportedError(
            f"pipeline {runnable.name}: {why}, so triggers of {', '.join(names)} would be numbered anew in the range, and not outside it; "
            "`windowmill restate` recomputes what has changed, a backfill of all windows everything, and --as-arrived reads what earlier "
            "batches read"
        )
