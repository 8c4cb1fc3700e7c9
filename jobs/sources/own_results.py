"""Refuses the sink of a pipeline as a source where its rows are no events: those of several windows, or revisions of one."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from windowmill.checkpoints.ledger import Ledger
from windowmill.checkpoints.stores import is_table, table_at
from windowmill.jobs.sources.delta_log import DeltaSource
from windowmill.windowing.errors import SourceRangeGoneError, UnsupportedError

if TYPE_CHECKING:
    from windowmill.jobs.sources.base import SourceTable
    from windowmill.windowing.spec import Pipeline

#: Columns of every sink; a foreign table with all of them was copied from one.
_COLUMNS = {"window", "window_start", "window_end", "trigger", "revision", "batch"}
#: Newest log entries that are searched for a commit of a batch: compactions lie between them.
_ENTRIES = 50
_CHOICE = re.compile(r"(?<![\w.])`?window`?(?!\w)", re.IGNORECASE)
_INSTEAD = (
    "read a sink with one window and emit: final that nothing has restated, or a table to which complete windows of the latest view "
    "(`windowmill views`) are appended"
)


def refuse_own_results(pipeline: Pipeline, source: SourceTable) -> None:
    """Raise ``UnsupportedError`` if ``source`` is a sink of which one window has several rows, or several windows count as one."""
    if not isinstance(source, DeltaSource) or not {field["name"] for field in json.loads(source.schema_json)["fields"]} >= _COLUMNS:
        return
    ledger = f"{source.path.rstrip('/')}.windowmill/ledger"
    newest = Ledger(ledger).newest if is_table(ledger) else None
    if newest is None and not any(_of_sink(action) for action in _newest_actions(source)):
        return
    definition: dict[str, Any] = {} if newest is None else dict(newest.plan.definition)
    files = pa.table(table_at(source.path).get_add_actions(flatten=True))
    revised = definition.get("emit") == "revise" or _greatest(files, "max.revision") not in (None, 0)
    windows = {window["name"] for window in definition.get("windows", ())} | _values(files, "min.window") | _values(files, "max.window")
    # A filter on this column says which windows are events.
    chosen = pipeline.source is not None and _CHOICE.search(pipeline.source.filter or "") is not None
    several = len(windows) > 1 and not chosen
    if revised or several:
        what = "revisions, each of which would count" if revised else f"the windows {', '.join(sorted(windows))}, all of which would count"
        choose = "" if revised else "; or choose one by source.filter, such as \"window = '" + min(windows) + "'\""
        raise UnsupportedError(
            f"pipeline {pipeline.pipeline}: source.path: {source.path} is the sink of a pipeline, and has rows of {what}: "
            f"{_INSTEAD}{choose}"
        )


def _newest_actions(source: DeltaSource) -> Iterator[dict[str, Any]]:
    for version in range(source.version, max(-1, source.version - _ENTRIES), -1):
        try:
            yield from source.actions(version)
        except SourceRangeGoneError:
            return


def _of_sink(action: dict[str, Any]) -> bool:
    app_id = str(action.get("txn", {}).get("appId", ""))
    return app_id.startswith("windowmill/") and app_id.endswith("/sink")


def _values(files: pa.Table, column: str) -> set[str]:
    return set(pc.unique(files.column(column)).drop_null().to_pylist()) if column in files.column_names else set()


def _greatest(files: pa.Table, column: str) -> int | None:
    return pc.max(files.column(column)).as_py() if column in files.column_names else None
