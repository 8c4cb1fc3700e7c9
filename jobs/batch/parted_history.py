"""Refuses a backfill whose windows, computed from other rows, would overlap windows outside its range. No JVM."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from windowmill.checkpoints.delta_tables import newest
from windowmill.checkpoints.places import Runnable
from windowmill.checkpoints.stores import is_table
from windowmill.jobs.sources.changed_rows import ends_in_sql, queried
from windowmill.jobs.sources.reading import Reach
from windowmill.windowing.errors import UnsupportedError


def check_range(runnable: Runnable, begin: int, end: int, reach: Reach) -> None:
    """Refuse to recompute windows in (``begin``, ``end``] from other rows than earlier batches read, unless they lie on grids or are all.

    Triggers are counted from a key's first tuple on, and where a window ends that is not on a grid follows from the rows. Rows outside
    the range keep the numbers and bounds that they have: one window could be shown twice, or not at all.

    Parameters
    ----------
    reach
        What is read, and why.

    Raises
    ------
    UnsupportedError
        If the sink has rows of these windows outside the range.
    """
    windows = runnable.pipeline.windows
    numbered = [window.name for window in windows if window.follows_policies]
    moving = [window.name for window in windows if not (window.follows_policies or window.on_grid)]
    so = []
    if _shown_outside(runnable, numbered, begin, end):
        so.append(f"triggers of {', '.join(numbered)} would be numbered again in the range, and not outside it")
    if _shown_outside(runnable, moving, begin, end):
        so.append(f"windows of {', '.join(moving)} could move into the range or out of it, and rows outside it stay as they are")
    if so:
        why = reach.why or "rows count in event-time order"
        instead = ", and --as-arrived reads what earlier batches read"
        if reach.snapshot is None:
            why, instead = "--as-arrived reads rows as they came, but batches have counted them as they were restated since", ""
        raise UnsupportedError(
            f"pipeline {runnable.name}: {why}, so {'; '.join(so)}; `windowmill restate` recomputes what has changed, a backfill of all "
            f"windows everything{instead}"
        )


def _shown_outside(runnable: Runnable, names: Sequence[str], begin: int, end: int) -> bool:
    """Whether the sink has rows of the windows ``names`` that end outside of (``begin``, ``end``]."""
    if not names or not is_table(runnable.sink_path):
        return False
    ends = ends_in_sql(timed=not runnable.pipeline.time.integer_axis)
    listed = ", ".join(f"'{name}'" for name in names)  # identifiers
    others = queried(
        newest(runnable.sink_path),
        {"window": pa.string()},
        f'"window" IN ({listed}) AND NOT ({ends} > {begin} AND {ends} <= {end})',
        {"window": "window"},
    )
    return any(rows.num_rows for rows in others)
