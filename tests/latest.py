"""What a sink shows: of each window the newest revision, as docs/semantics.md has it, without the SQL of the product."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from windowmill.windowing.spec import Pipeline

Row = dict[str, Any]


def latest(pipeline: Pipeline, rows: Iterable[Row]) -> list[Row]:
    """The windows of ``pipeline`` among the ``rows`` of its sink as it shows them now, without revisions and retracted ones."""
    windows = {window.name: window for window in pipeline.windows}
    newest: dict[Any, Row] = {}
    for row in sorted((row for row in rows if row["window"] in windows), key=lambda row: row["revision"]):
        window, own = windows[row["window"]], (*(row[key] for key in pipeline.keys), row["window"])
        if row["trigger"] is not None:
            # Triggers of a key that was forgotten are numbered from 0 again.
            bounds = (row["trigger"], row["window_end"] if window.idle_after else None)
        elif window.type == "count":
            bounds = (row["window_start"],)
        else:
            bounds = (row["window_start"], row["window_end"])
        if window.type in ("session", "snapshot"):
            for place, other in [(place, other) for place, other in newest.items() if place[0] == own]:
                if _overlap(row, other) and other["revision"] < row["revision"]:
                    del newest[place]
        before = newest.get((own, bounds))
        assert before is None or before["revision"] < row["revision"], f"two rows of one revision: {before}, {row}"
        newest[own, bounds] = row
    return [without_revision(row) for row in newest.values() if not row.get("retracted")]


def without_revision(row: Row) -> Row:
    """``row`` without the columns that tell revisions apart."""
    return {name: value for name, value in row.items() if name not in ("revision", "retracted")}


def _overlap(one: Row, other: Row) -> bool:
    return bool(one["window_start"] < other["window_end"] and other["window_start"] < one["window_end"])
