"""A spec with its tables, as runs take it; and sinks of pipelines whose rows are no events, so that none reads them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from windowmill.checkpoints.ledger import Ledger
from windowmill.checkpoints.places import Places, Runnable, absolute, escape_in, local_path
from windowmill.checkpoints.protocol import check_scheme
from windowmill.checkpoints.stores import is_table, located, table_at, use_options_of
from windowmill.jobs.batch.engine import compute_of
from windowmill.jobs.sources.delta_log import DeltaSource
from windowmill.jobs.spec_checks import not_run
from windowmill.windowing.bounds import check_lengths
from windowmill.windowing.errors import SourceRangeGoneError, SpecError, TableUnlocatedError, UnsupportedError
from windowmill.windowing.fields import Sink, Source
from windowmill.windowing.spec import Pipeline

if TYPE_CHECKING:
    from windowmill.jobs.sources.base import SourceTable

#: Columns of every sink; a foreign table with all of them was copied from one.
_COLUMNS = {"window", "window_start", "window_end", "trigger", "revision", "batch"}
#: Newest log entries that are searched for a commit of a batch: compactions lie between them.
_ENTRIES = 50
_CHOICE = re.compile(r"(?<![\w.])`?window`?(?!\w)", re.IGNORECASE)
_INSTEAD = "name its spec by source.pipeline, and the window by source.window, in place of source.path"


def runnable_of(pipeline: Pipeline) -> Runnable:
    """``pipeline`` with its tables; raises ``SpecError``, naming the field, for a spec that ``run`` and ``backfill`` do not support."""
    name = f"pipeline {pipeline.pipeline}"
    use_options_of(pipeline)
    source, sink = pipeline.source, pipeline.sink
    if source is None or sink is None:
        missing = "source" if source is None else "sink"
        raise SpecError(f"{name}: {missing}: missing; give its path")
    problem = next(not_run(pipeline), None)
    if problem:
        raise UnsupportedError(f"{name}: {problem[0]}: {problem[1]}")
    pipeline = located(pipeline)
    source, sink = cast(Source, pipeline.source), cast(Sink, pipeline.sink)
    for field, table in (("source", source), ("sink", sink)):
        if table.table is not None:
            raise TableUnlocatedError(
                f"{name}: {field}.table: where {table.table} lies is not recorded yet; `windowmill run` asks Spark's catalog"
            )
    compute_of(pipeline)
    check_lengths(pipeline)
    # `not_run` has refused tables without a path.
    # Spark may run in another folder.
    places = Places.below(absolute(Places.of(pipeline).root))
    current = None if sink.current is None else absolute(sink.current)
    source_path = places.input if source.pipeline is not None else source.path or source.place
    runnable = Runnable(pipeline, source, source_path, absolute(cast(str, sink.path)), places, current)
    written = {"sink.path": runnable.sink_path, "checkpoints.path": runnable.places.root}
    for field, path in (written if current is None else written | {"sink.current": current}).items():
        escape = escape_in(path)
        if escape is not None:
            raise SpecError(
                f"{name}: {field}: {path} leads to {Path(path).resolve()}, which holds {escape!r}; writers of Delta tables take that "
                f"for {unquote(escape)!r}: rename the folder to which it leads"
            )
        check_scheme(path)
    # Delta stores such names by column mapping.
    for field, names in (("keys", pipeline.keys), ("aggregates", pipeline.aggregates)):
        odd = next((name for name in names if set(name) & set(" ,;{}()\n\t=")), None)
        if odd is not None and local_path(runnable.sink_path) is None:
            raise UnsupportedError(
                f"{name}: {field}: {odd!r}: Delta stores this name by column mapping, which only Spark writes, and "
                "Spark never commits to object storage; rename the column in the source"
            )
        if odd is not None and current is not None:
            raise UnsupportedError(
                f"{name}: sink.current: {odd!r} ({field}) is a name that Delta stores by column mapping, which this table does not have; "
                "rename the column by a step, or leave sink.current out"
            )
    return runnable


def refuse_own_results(pipeline: Pipeline, source: SourceTable) -> None:
    """Raise ``UnsupportedError`` if ``source`` is a sink of which one window has several rows, or several windows count as one."""
    if not isinstance(source, DeltaSource) or not {field["name"] for field in json.loads(source.schema_json)["fields"]} >= _COLUMNS:
        return
    ledger = f"{source.path.rstrip('/')}.windowmill/ledger"
    newest = Ledger(ledger).newest if is_table(ledger) else None
    app_ids = (str(action.get("txn", {}).get("appId", "")) for action in _newest_actions(source))
    if newest is None and not any(app_id.startswith("windowmill/") and app_id.endswith("/sink") for app_id in app_ids):
        return
    definition: dict[str, Any] = {} if newest is None else dict(newest.plan.definition)
    files = pa.table(table_at(source.path).get_add_actions(flatten=True))
    greatest = pc.max(files.column("max.revision")).as_py() if "max.revision" in files.column_names else None
    revised = definition.get("emit") == "revise" or greatest not in (None, 0)
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


def _values(files: pa.Table, column: str) -> set[str]:
    return set(pc.unique(files.column(column)).drop_null().to_pylist()) if column in files.column_names else set()
