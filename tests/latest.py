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
    return [without_revision(row) for row in _versions(windows, keys, rows) if not row["retracted"]]


def current(windows: Mapping[str, bool], keys: Sequence[str], rows: Iterable[Row]) -> list[Row]:
    """Of each key and window name among those of :func:`shown` the newest window, with all columns of the sink."""
    newest: dict[Any, Row] = {}
    for row in _versions(windows, keys, rows):
        pair = (*(row[key] for key in keys), row["window"])
        if not row["retracted"] and (pair not in newest or _age(newest[pair]) < _age(row)):
            newest[pair] = row
    return list(newest.values())


def _age(row: Row) -> tuple[Any, ...]:
    trigger, start = row["trigger"], row["window_start"]
    return (row["window_end"], trigger is not None, trigger or 0, start is not None, start or 0)


def _versions(windows: Mapping[str, bool], keys: Sequence[str], rows: Iterable[Row]) -> Iterable[Row]:
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
    return newest.values()


def without_revision(row: Row) -> Row:
    """``row`` without the columns that tell revisions apart."""
    return {name: value for name, value in row.items() if name not in ("revision", "retracted")}
