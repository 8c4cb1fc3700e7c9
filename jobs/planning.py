"""Deciding what the next batch does, and pinning it in the ledger. No JVM: a run that finds nothing new ends here."""

from __future__ import annotations

import time
import uuid
from datetime import UTC, datetime
from importlib.metadata import version as distribution_version

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from checkpoints.ledger import Ledger, Plan
from jobs.delta_log import SourceTable, last_version_within, read_source_table
from windowing.axis import to_us
from windowing.errors import LedgerError, SinkError, SourceError, SourceReplacedError, SpecError, UnsupportedError
from windowing.hopping import Grids
from windowing.spec import Pipeline

#: Limits of one batch, as Delta's own readers name them; a longer backlog is taken in several batches.
MAX_FILES, MAX_BYTES = 10_000, 8 << 30


def check_runnable(pipeline: Pipeline) -> None:
    """Refuse a spec that ``run`` and ``backfill`` cannot carry out; raises ``SpecError`` naming the field."""
    name = f"pipeline {pipeline.pipeline}"
    if pipeline.source is None or pipeline.sink is None:
        missing = "source" if pipeline.source is None else "sink"
        raise SpecError(f"{name}: {missing}: missing; give its path")
    if pipeline.source.format != "delta":
        raise UnsupportedError(f"{name}: source.format: got {pipeline.source.format!r}; runs read Delta tables, land the data in one first")
    for field, table in (("source", pipeline.source), ("sink", pipeline.sink)):
        if table.path is None:
            raise UnsupportedError(f"{name}: {field}.table: tables of a catalog are not read yet; give the table's {field}.path")


def next_run(pipeline: Pipeline, ledger: Ledger, *, interval_end: datetime | None = None) -> Plan | None:
    """The plan of the next batch: the open one if a run died, else one over the source's new versions; none if nothing is new."""
    ledger.check_meaning(pipeline)
    if ledger.open_batch:
        return ledger.open_batch.plan
    source, last = _source(pipeline, ledger), ledger.last_commit
    after = last.plan.to_version if last else -1
    vouched = _vouched(pipeline, interval_end)
    if source.version <= after and not _moves_on(pipeline, ledger, vouched):
        return None
    _check_sink_is_ours(pipeline, ledger)
    options = pipeline.source.options if pipeline.source else {}
    through = last_version_within(
        source,
        after,
        source.version,
        max_files=_limit(options, "maxFilesPerTrigger", MAX_FILES),
        max_bytes=_limit(options, "maxBytesPerTrigger", MAX_BYTES),
    )
    return _record(pipeline, ledger, source, Plan(**_common(pipeline, ledger, source, through), action="run", interval_end=vouched))


def next_backfill(pipeline: Pipeline, ledger: Ledger, *, begin: int, end: int) -> Plan:
    """The plan of a backfill of the windows that end in (``begin``, ``end``], instants on the axis.

    On a pipeline that has never run it is the first batch: it builds the state from which runs go on. Otherwise it recomputes, from the
    versions that have been committed, windows that have been emitted; it never runs ahead of the schedule.
    """
    ledger.check_meaning(pipeline)
    if ledger.open_batch:
        plan = ledger.open_batch.plan
        if plan.action == "backfill" and (plan.range_from, plan.range_to) == (begin, end):
            return plan
        raise LedgerError(
            f"pipeline {pipeline.pipeline}: batch {plan.batch} ({plan.action}) has begun and not ended; finish it with `windowmill run` "
            "(or release or discard it if it is held), then backfill"
        )
    source, last = _source(pipeline, ledger), ledger.last_commit
    _check_sink_is_ours(pipeline, ledger)
    through = last.plan.to_version if last else source.version
    values = _common(pipeline, ledger, source, through) | {"from_version": -1, "seen": None}
    if pipeline.time.watermark == "data_interval_end":
        before = [batch.plan for batch in ledger.batches() if batch.plan.builds_state]
        values["found_closed"] = [(plan.to_version, plan.emitted) for plan in before]
    plan = Plan(**values, action="backfill", range_from=begin, range_to=end, builds_state=last is None)
    return _record(pipeline, ledger, source, plan)


def _common(pipeline: Pipeline, ledger: Ledger, source: SourceTable, through: int) -> dict[str, object]:
    last = ledger.last_commit
    outcome = last.outcome if last else None
    return {
        "batch": len(ledger.batches()),
        "attempt": uuid.uuid4().hex[:12],
        "generation": ledger.generation,
        "source_id": source.table_id,
        "from_version": last.plan.to_version if last else -1,
        "to_version": through,
        "now_us": time.time_ns() // 1_000,
        "meaning": pipeline.meaning_hash(),
        "source_schema": source.schema_json,
        "seen": outcome.seen if outcome else None,
        "emitted": outcome.emitted if outcome else None,
        "windowmill": distribution_version("windowmill"),
    }


def _record(pipeline: Pipeline, ledger: Ledger, source: SourceTable, plan: Plan) -> Plan:
    from jobs.sources import Columns, check_unchanged
    from windowing.columnar.output import result_types

    columns = Columns.of(source.schema_json)
    columns.check(pipeline, f"the source {source.path}")
    if ledger.batches():
        check_unchanged(ledger.batches()[-1].plan.source_schema, source.schema_json, pipeline, source.path)
    result_types(pipeline, columns.arrow)
    ledger.record_plan(plan, datetime.now(UTC))
    return plan


def _source(pipeline: Pipeline, ledger: Ledger) -> SourceTable:
    path = pipeline.source.path if pipeline.source else None
    if path is None:
        raise SourceError(f"pipeline {pipeline.pipeline}: source.path: missing; give the path of the Delta table")
    source, batches = read_source_table(path), ledger.batches()
    if batches and batches[-1].plan.source_id != source.table_id:
        raise SourceReplacedError(
            f"source {path}: this is another table (Delta id {source.table_id}) than the one the pipeline has read "
            f"({batches[-1].plan.source_id}); "
            "put the old table back, or give the pipeline a new sink and backfill it there"
        )
    if batches and source.version < batches[-1].plan.to_version:
        raise SourceReplacedError(
            f"source {path}: stands at version {source.version}, but version {batches[-1].plan.to_version} has been read; it "
            "seems restored from a copy: "
            "give the pipeline a new sink and backfill it there"
        )
    return source


def _vouched(pipeline: Pipeline, interval_end: datetime | None) -> int | None:
    if pipeline.time.watermark != "data_interval_end":
        return None
    if interval_end is None:
        raise SpecError(
            f"pipeline {pipeline.pipeline}: time.watermark is data_interval_end, so each run needs the end of its interval; "
            "give --data-interval-end (the DAG does), or use watermark: max_event_time"
        )
    return to_us(interval_end)


def _moves_on(pipeline: Pipeline, ledger: Ledger, vouched: int | None) -> bool:
    """Whether a run without new rows would still complete windows, because the orchestrator vouches for a later instant."""
    last = ledger.last_commit
    if vouched is None or last is None or last.outcome is None:
        return False
    emitted, lateness = last.outcome.emitted, pipeline.time.lateness.elapsed()
    if emitted is None:
        return True
    # Revisions begin when the watermark passes a window, final rows when it is closed.
    shown = (emitted + lateness, vouched) if pipeline.emit == "revise" else (emitted, vouched - lateness)
    try:
        return Grids.of(pipeline).any_end(*shown)
    except UnsupportedError:  # windows that no grid cuts may end at any instant
        return shown[0] < shown[1]


def _check_sink_is_ours(pipeline: Pipeline, ledger: Ledger) -> None:
    if ledger.batches() or pipeline.sink is None or pipeline.sink.path is None:
        return
    try:
        table = DeltaTable(pipeline.sink.path)
    except TableNotFoundError:
        return
    except (DeltaError, OSError) as err:
        raise SinkError(
            f"sink {pipeline.sink.path}: cannot be read ({str(err).splitlines()[0]}); check the path and its permissions"
        ) from err
    raise SinkError(
        f"sink {pipeline.sink.path}: a table is there already (version {table.version()}), but the pipeline's ledger "
        f"{ledger.path} is empty; "
        "restore the ledger, or choose another sink.path"
    )


def _limit(options: dict[str, str], name: str, default: int) -> int:
    value = options.get(name, str(default))
    if not value.isdigit() or int(value) < 1:
        raise SpecError(f"source.options.{name}: got {value!r}; expected a whole number greater than 0")
    return int(value)
