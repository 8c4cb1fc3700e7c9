"""What a sink shows: of each window the row of greatest revision, unless it is retracted; without the SQL of the product."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from windowmill.windowing.spec import Pipeline

Row = dict[str, Any]


def latest(pipeline: Pipeline, rows: Iterable[Row]) -> list[Row]:
    """The windows of ``pipeline`` among the ``rows`` of its sink as it shows them now, without revisions and retracted ones."""
    return shown({window.name: window.restarts_triggers for window in pipeline.windows}, pipeline.keys, rows)


def shown(windows: Mapping[str, bool], keys: Sequence[str], rows: Iterable[Row]) -> list[Row]:
    """As :func:`latest`, of these ``windows``, each with whether it forgets idle keys."""
    newest: dict[Any, Row] = {}
    for row in sorted((row for row in rows if row["window"] in windows), key=lambda row: row["revision"]):
        if row["trigger"] is None:
            bounds = (row["window_start"], row["window_end"])
        else:
            # Triggers of a key that was forgotten are numbered from 0 again.
            bounds = (row["trigger"], row["window_end"] if windows[row["window"]] else None)
        place = (*(row[key] for key in keys), row["window"], bounds)
        before = newest.get(place)
        assert before is None or before["revision"] < row["revision"], f"two rows of one revision: {before}, {row}"
        newest[place] = row
    return [without_revision(row) for row in newest.values() if not row["retracted"]]


def without_revision(row: Row) -> Row:
    """``row`` without the columns that tell revisions apart."""
    return {name: value for name, value in row.items() if name not in ("revision", "retracted")}
