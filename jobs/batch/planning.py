"""Plans the next batch, and says what waits for it. Writes nothing. No JVM: a run that finds nothing new ends here."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import version as distribution_version
from itertools import chain
from typing import Any

from windowmill.checkpoints.batches import BackfillPlan, Batch, Plan, RestatePlan, RunPlan, effective_batches, state_plans
from windowmill.checkpoints.committer import error_of
from windowmill.checkpoints.current import check_sink
from windowmill.checkpoints.delta_tables import check_appendable, check_writable_features
from windowmill.checkpoints.ledger import Ledger
from windowmill.checkpoints.own_tables import own_tables, refuse_committed, verify, verify_table_versions
from windowmill.checkpoints.places import Runnable
from windowmill.checkpoints.stores import forbidden_folder, is_table, located
from windowmill.expectations.suites import needs_spark, rules, type_problems
from windowmill.jobs import user_code
from windowmill.jobs.batch.engine import compute_of, tries_this_process
from windowmill.jobs.conditions.expressions import Expressions
from windowmill.jobs.layouts import limits
from windowmill.jobs.runnables import refuse_own_results
from windowmill.jobs.sources.base import LoggedVersion, Reading, SourceTable, is_located, open_source
from windowmill.jobs.sources.delta_log import DeltaSource
from windowmill.jobs.sources.reading import (
    Arrival,
    History,
    Limits,
    VersionRange,
    backfill_versions,
    check_readable,
    moves_on,
    next_change,
    next_versions,
    refuse_purged,
    restated_versions,
)
from windowmill.jobs.spark.spark_settings import is_short_run
from windowmill.jobs.spec_checks import condition_problems, function_problems, refuse_first, rule_problems
from windowmill.windowing.axis import Duration, to_us
from windowmill.windowing.errors import (
    OutOfTurnError,
    SourceError,
    SourceReplacedError,
    SpecChangedError,
    SpecError,
    UnsupportedError,
    WindowmillError,
)
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.watermark import LatenessRule


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Differences since the last batch that the user accepts: rows changed by others, an edited module."""

    changes: bool = False
    code: bool = False


NOTHING_ACCEPTED = Acceptance()
#: Called with the source and what a batch will read of it, before its plan is checked.
OnReading = Callable[[SourceTable, Reading], None]


def ignore(*_: object) -> None:
    """The default of ``on_reading`` and ``on_other_rows``."""


def next_run(
    runnable: Runnable,
    ledger: Ledger,
    *,
    interval_end: datetime | None = None,
    arrival: Arrival = "log",
    restates: bool = False,
    accepted: Acceptance = NOTHING_ACCEPTED,
    on_reading: OnReading = ignore,
) -> Plan | None:
    """The plan of the next batch, over the new source versions; null if there is nothing to do.

    The commits of the last batch must have been made, and it must not be held.

    ``restates``: whether versions that changed rows are restated even if the spec does not say so. ``on_reading``: called with what the
    batch will read of its source, before the plan is checked.
    """
    pipeline = runnable.pipeline
    check_owner(pipeline, ledger)
    ledger.check_meaning(pipeline)
    chained = runnable.source.pipeline is not None
    if chained and not is_table(runnable.places.input) and not ledger.count:
        return None  # the other pipeline has published nothing yet
    source, last = source_of(runnable, ledger), ledger.last_commit
    after = last.plan.to_version if last else -1
    asserted = source.complete if chained else asserted_through(pipeline, interval_end)
    lags = lags_behind(pipeline, last)
    if source.version <= after and not lags and not moves_on(pipeline, ledger, asserted):
        verify_table_versions(ledger, own_tables(runnable))
        return None
    check_tables(runnable, ledger, accepted)
    through = None
    if last and (restates or runnable.source.changes == "restate") and not lags and (change := next_change(source, after)):
        through = change[0] - 1
        if not any(version.added for version in source.versions(after, through)):
            last_corrected = change[1]
            if chained:
                ends = (_left_through(pipeline, last), None)
                return next_restatement(
                    runnable, ledger, changed=(change[0], last_corrected), ends=ends, through=last_corrected, accepted=accepted
                )
            if isinstance(source, DeltaSource):
                from windowmill.jobs.batch.restating import last_redelivery  # imports numba

                last_corrected = last_redelivery(pipeline, source, change, last.outcome)
            return next_restatement(runnable, ledger, changed=(change[0], last_corrected), through=last_corrected, accepted=accepted)
    versions = VersionRange(after, after)
    if not lags:
        versions = next_versions(
            runnable,
            source,
            last.plan if last else None,
            arrival,
            limits=Limits.of(runnable.source.options),
            through=through,
        )
    on_reading(source, check_readable(runnable, source, versions, again=False))
    # The interval is complete only once the backlog is drained: later versions may hold more of its rows.
    interval_end_us = asserted if versions.through == source.version else None
    seen = last.outcome.seen if last and last.outcome else None
    plan = RunPlan(**pinned(pipeline, ledger, source, versions), seen=seen, interval_end=interval_end_us)
    check_plan(runnable, ledger, source, plan)
    return plan


def next_backfill(
    runnable: Runnable,
    ledger: Ledger,
    *,
    begin: int,
    end: int,
    history: History = "current",
    accepted: Acceptance = NOTHING_ACCEPTED,
    on_reading: OnReading = ignore,
    on_other_rows: Callable[[str], None] = ignore,
) -> BackfillPlan:
    """The plan of a backfill of the windows that end in (``begin``, ``end``], instants on the axis.

    On a pipeline that has never run, the backfill is the first batch and builds the state from which later runs continue. Otherwise it
    recomputes emitted windows from the versions that earlier batches read, and never runs ahead of the schedule.

    ``on_other_rows`` is called with a sentence if it reads other rows than these batches, or in another order.
    """
    pipeline = runnable.pipeline
    check_owner(pipeline, ledger)
    ledger.check_meaning(pipeline)
    refuse_held(runnable, ledger, "backfill")
    source, last = source_of(runnable, ledger), ledger.last_commit
    check_tables(runnable, ledger, accepted)
    before = state_plans(ledger.batches())
    refuse_purged(runnable, before, history)
    versions = backfill_versions(runnable, source, before, history)
    # Whether it counts other rows than those batches, or in another order.
    was_restated = any(plan.replaces_state and plan.snapshot is not None for plan in before)
    others = bool(before) and (versions != backfill_versions(runnable, source, before, "log") or was_restated)
    if before:
        from windowmill.jobs.batch.counted_rows import check_range, judged_otherwise  # loads what a run without new rows does not need

        is_judged_otherwise = judged_otherwise(pipeline, before)
        others = others or is_judged_otherwise
        if others:
            check_range(runnable, begin, end, versions, is_judged_otherwise=is_judged_otherwise)
    if versions.why is not None:
        on_other_rows(versions.why)
    on_reading(source, check_readable(runnable, source, versions, again=bool(before)))
    # Numbers and bounds of windows that are not on a grid depend on all earlier rows: the state has to fit the published windows.
    replaces = others and not all(window.on_grid for window in pipeline.windows)
    plan = BackfillPlan(
        **pinned(pipeline, ledger, source, versions) | ({"from_version": versions.through} if replaces else {}),
        seen=None if last is None else last.outcome.seen,
        range_from=begin,
        range_to=end,
        found_closed=[(plan.to_version, plan.emitted) for plan in before] if pipeline.time.watermark == "data_interval_end" else [],
        builds_state=last is None or replaces,
        read_from=versions.after if replaces else None,
    )
    check_plan(runnable, ledger, source, plan)
    return plan


def next_restatement(
    runnable: Runnable,
    ledger: Ledger,
    *,
    changed: tuple[int, int] | None = None,
    ends: tuple[int | None, int | None] = (None, None),
    late: bool = False,
    files: Sequence[str] = (),
    lookup: str | None = None,
    through: int | None = None,
    accepted: Acceptance = NOTHING_ACCEPTED,
    on_reading: OnReading = ignore,
) -> RestatePlan | None:
    """The plan of a restatement of a running pipeline.

    - ``changed``: first and last version whose changed rows are restated; null for everything.
    - ``ends``: bounds of the ends of the windows to publish again; see :class:`.RestatePlan`.
    - ``late``: whether rows that were quarantined as too late count from now on.
    - ``files``: files of a folder whose rows count as they are now.
    - ``lookup``: name of a lookup whose table has changed; the plan is null if no version of it has.
    - ``through``: the version through which the pipeline has read afterwards; null if that does not change.
    - ``on_reading``: as for :func:`next_run`.
    """
    ledger.check_meaning(runnable.pipeline)
    source, last = source_of(runnable, ledger), ledger.last_commit
    if last is None:
        raise _never_ran(runnable)
    refuse_held(runnable, ledger, "restate")
    if files or source.names_files:
        from windowmill.jobs.batch.restating import corrected  # loads what other batches do not need

        source, files, through = corrected(runnable, ledger, source, files, last.plan.to_version, ends)
    after = last.plan.to_version
    read = after if through is None else through
    if changed is not None and changed[1] > read:
        raise OutOfTurnError(
            f"pipeline {runnable.name}: version {changed[1]} of the source has not been read, only those through {read}; "
            "`windowmill restate` without versions takes the unread ones"
        )
    check_tables(runnable, ledger, accepted)
    first = state_plans(ledger.batches())[0]
    if first.from_version >= 0:
        raise UnsupportedError(
            f"pipeline {runnable.name}: it began at version {first.from_version + 1} (startingVersion), but the table as it is now does "
            "not distinguish rows before it; backfill it in a new sink instead"
        )
    versions = restated_versions(source, after, through, goes_on=changed is None and not late and lookup is None)
    if source.names_files:
        on_reading(source, check_readable(runnable, source, versions, again=False))
    fields, changes = pinned(runnable.pipeline, ledger, source, versions), dict[str, list[int]]()
    if lookup is not None or (changed is not None and "lookups" in fields):
        changes = _lookups().versions_since(runnable.pipeline, lookup, effective_batches(ledger.batches()), fields.get("lookups", {}))
        if lookup is not None and lookup not in changes:
            return None
        if lookup is not None:
            changes |= _lookups().versions_since(runnable.pipeline, None, effective_batches(ledger.batches()), fields["lookups"])
    plan = RestatePlan(
        **fields,
        seen=last.outcome.seen,
        files=list(files),
        changed=changed,
        range_from=ends[0],
        range_to=ends[1],
        shown_after=None if first.range is None else first.range[0],
        late=late,
        lookup=lookup,
        lookups_changed=changes,
    )
    check_plan(runnable, ledger, source, plan)
    return plan


def pinned(pipeline: Pipeline, ledger: Ledger, source: SourceTable, versions: VersionRange) -> dict[str, Any]:
    """The fields of :class:`Plan` that runs and backfills have in common."""
    last = ledger.last_commit
    outcome, now_us = last.outcome if last else None, time.time_ns() // 1_000
    zones = user_code.zone_digests(pipeline, now_us)
    return {
        "batch": ledger.count,
        "attempt": uuid.uuid4().hex[:12],
        "generation": ledger.generation,
        "pipeline": pipeline.pipeline,
        "source_id": source.table_id,
        "source_mark": source.mark(versions.through),
        "from_version": versions.after,
        "to_version": versions.through,
        "snapshot": versions.snapshot,
        "now_us": now_us,
        "meaning": pipeline.meaning_hash(),
        "definition": pipeline.shown_meaning(),
        "source_schema": source.schema_json,
        "emitted": outcome.emitted if outcome else None,
        "watermark": outcome.watermark if outcome else None,
        "shown": outcome.shown if outcome else None,
        "windowmill": distribution_version("windowmill"),
        "modules": user_code.module_digests(pipeline),
        "tzdata": user_code.tzdata_version() if zones else None,
        "zones": zones,
        **({"lookups": _lookups().pins_with_types(pipeline, source.schema_json)} if pipeline.steps and pipeline.lookups else {}),
        **(_upstream(last, source, versions) if pipeline.source is not None and pipeline.source.pipeline is not None else {}),
    }


def _upstream(last: Batch | None, source: SourceTable, versions: VersionRange) -> dict[str, Any]:
    """The field of :class:`Plan` that names the pipeline whose results are the source, and its batches."""
    before = -1 if last is None else last.plan.upstream.get("batches", [-1, -1])[1]
    return {"upstream": source.covered(versions.after, versions.through, before)}


def _left_through(pipeline: Pipeline, last: Batch) -> int | None:
    """The instant through which published windows stay as they are when the other pipeline corrects its results; null for none.

    Windows with policies are numbered: all that differ are revised, as later ones are numbered behind them.
    """
    if any(window.follows_policies for window in pipeline.windows):
        return None
    return last.outcome.emitted


def _lookups() -> Any:
    from windowmill.jobs.sources import lookups  # loads what a spec without lookups does without

    return lookups


def refuse_held(runnable: Runnable, ledger: Ledger, then: str) -> None:
    """Refuse what has to wait until the held batch has been ruled on; ``then`` names the command to repeat."""
    if ledger.held_batch:
        raise OutOfTurnError(
            f"pipeline {runnable.name}: batch {ledger.held_batch.number} is held; `windowmill run`, release, discard or abandon it, then "
            f"{then}"
        )


def check_tables(runnable: Runnable, ledger: Ledger, accepted: Acceptance) -> None:
    """Refuse the pipeline's tables if this process cannot write them, or others have changed them; and changed modules and time zones."""
    for role, table in own_tables(runnable).items():
        folder = forbidden_folder(table.place)
        if folder is not None:
            raise error_of(role)(
                f"{role} {table.place}: the folder {folder} is read-only for this process; give its user the permission to write, or "
                "mount it writable, and run again"
            )
    check_writable_features(runnable.sink_path)  # refuses features with which neither delta-rs nor Spark can write
    if runnable.current_path is not None:
        check_sink(runnable.sink_path)
    for path in (runnable.places.ledger, runnable.places.quality):
        check_appendable(path)
    verify(ledger, own_tables(runnable), accept_changes=accepted.changes)
    if ledger.newest_kept and not accepted.code:
        user_code.check_code(runnable.pipeline, ledger.newest_kept.plan)


def check_plan(runnable: Runnable, ledger: Ledger, source: SourceTable, plan: Plan) -> None:
    """Refuse a new ``plan`` that could not be carried out over this source and these tables."""
    from windowmill.jobs.sources.columns import Columns, check_unchanged

    pipeline = runnable.pipeline
    columns = Columns.of(source.schema_json)
    if ledger.newest_kept:  # its error says what has become of a missing column
        check_unchanged(ledger.newest_kept.plan.source_schema, source.schema_json, pipeline, source.path)
    else:  # later batches have the same conditions: a spec with other ones is refused
        refuse_first(pipeline, condition_problems(pipeline))
    refuse_first(pipeline, chain(function_problems(pipeline), rule_problems(pipeline)))
    columns.check(pipeline, f"the source {source.path}", source.unread, source.untyped)
    if plan.lookups and ledger.newest_kept:
        _lookups().check_types(pipeline, ledger.newest_kept.plan.lookups, plan.lookups)
    refuse_first(pipeline, type_problems(pipeline, Expressions.of(pipeline, columns.seen_by(pipeline).arrow).schema))
    if pipeline.strict:
        from windowmill.windowing.layouts import check_strict

        check_strict(pipeline)
    refuse_committed(plan, ledger, own_tables(runnable))


def check_owner(pipeline: Pipeline, ledger: Ledger) -> None:
    """Refuse a ledger that another pipeline has written."""
    newest = ledger.newest_kept
    if newest and newest.plan.pipeline not in (pipeline.pipeline, pipeline.renamed_from):
        raise SpecChangedError(
            f"pipeline {pipeline.pipeline}: the ledger {ledger.path} is that of the pipeline {newest.plan.pipeline!r} (last batch "
            f"{newest.number}); give this pipeline its own sink.path (and checkpoints.path), or, if it is the same under another name, "
            f"say renamed_from: {newest.plan.pipeline}"
        )


def source_of(runnable: Runnable, ledger: Ledger) -> SourceTable:
    """The source; refuses a source other than the one that the pipeline has read, or an older copy of it."""
    newest, last = ledger.newest_kept, ledger.last_commit
    plan = newest.plan if newest else None
    source = open_source(runnable.pipeline).fitted(runnable.pipeline, plan, last.plan.to_version if last else -1)
    path = source.path
    refuse_own_results(runnable.pipeline, source)
    if newest and newest.plan.source_id != source.table_id:
        raise SourceReplacedError(
            f"source {path}: this is another table (Delta id {source.table_id}), not the one that the pipeline has read "
            f"({newest.plan.source_id}); put the old table back, or give the pipeline a new sink and backfill it there"
        )
    if newest and source.version < newest.plan.to_version:
        raise SourceReplacedError(
            f"source {path}: is at version {source.version}, but version {newest.plan.to_version} has been read already; the table was "
            "probably restored from a copy: give the pipeline a new sink and backfill it there"
        )
    if newest and newest.plan.source_mark is not None and source.mark(newest.plan.to_version) not in (None, newest.plan.source_mark):
        raise SourceReplacedError(
            f"source {path}: its version {newest.plan.to_version} is another commit than the one that batch {newest.number} read, as in a "
            "copy of the table that others have written to; put the old table back, or give the pipeline a new sink and backfill it there"
        )
    return source


def last_change(runnable: Runnable, ledger: Ledger) -> int | None:
    """The last unread version that changed rows; null if none did."""
    source, last = source_of(runnable, ledger), ledger.last_commit
    if last is None:
        raise _never_ran(runnable)
    return next((version.version for version in reversed(list(source.versions(last.to_version, source.version))) if version.changes), None)


def has_unread_rows(runnable: Runnable, ledger: Ledger) -> bool:
    """Whether versions of the source may have rows that no batch has read."""
    last = ledger.last_commit
    return last is None or source_of(runnable, ledger).version > last.to_version


def reads_before_change(runnable: Runnable, ledger: Ledger, source: SourceTable | None = None) -> bool:
    """Whether a run has something to do before the first unread version that changed rows; false if there is no such version."""
    source, last = source or source_of(runnable, ledger), ledger.last_commit
    if last is None or (change := next_change(source, last.plan.to_version)) is None:
        return False
    return lags_behind(runnable.pipeline, last) or any(version.added for version in source.versions(last.plan.to_version, change[0] - 1))


def _never_ran(runnable: Runnable) -> OutOfTurnError:
    return OutOfTurnError(f"pipeline {runnable.name}: has committed no batch, so there is nothing to restate; `windowmill run` it first")


@dataclass(frozen=True, slots=True)
class Waiting:
    """The versions of a source that no batch has read."""

    n: int | None = None  #: Their number; null if it is not known.
    source: SourceTable | None = None  #: The table that has them; null if a first batch reads it as it is, or nothing is known.

    @classmethod
    def of(cls, pipeline: Pipeline, ledger: Ledger) -> Waiting:
        last, pipeline = ledger.last_commit, located(pipeline)
        if not is_located(pipeline.source):
            return cls()
        try:
            source = open_source(pipeline)
        except WindowmillError:
            return cls()
        if last is None:
            return cls(source.version + 1)
        if last.plan.source_id != source.table_id or source.version < last.to_version:
            return cls()
        return cls(source.version - last.to_version, source)

    def changing(self) -> tuple[LoggedVersion, ...]:
        """Those that update or remove rows; none if some versions are gone, which the run reports."""
        if not self.n or self.source is None:
            return ()
        through = self.source.version
        try:
            return tuple(version for version in self.source.versions(through - self.n, through) if version.changes)
        except SourceError:
            return ()


def is_sure_to_use_spark(runnable: Runnable, source: SourceTable, reading: Reading) -> bool:
    """Whether a run over ``reading`` is sure to use Spark: to compute, or to evaluate rules that only Spark evaluates."""
    compute = compute_of(runnable.pipeline)
    if compute == "local" or (reading.files and not tries_this_process(runnable.pipeline)):
        return compute != "local"
    # This process can read the rows, and they are few enough, as far as the source's log shows.
    here = limits.are_few_files(reading.files) and _is_plain(runnable.pipeline, source, reading)
    return not here or any(map(needs_spark, rules(runnable.pipeline)))


def has_brief_use(runnable: Runnable, source: SourceTable, reading: Reading) -> bool:
    """Whether Spark's JVM has little to do, before the plan and after: a small batch, or tasks read its files and conditions by Arrow."""
    if is_short_run(reading.size_bytes):
        return True
    pipeline = runnable.pipeline
    if not (pipeline.conditions() or pipeline.own_filter or pipeline.steps):
        return source.plain_files(reading) is not None
    return _is_plain(pipeline, source, reading)


def _is_plain(pipeline: Pipeline, source: SourceTable, reading: Reading) -> bool:
    """Whether Arrow reads the rows of ``reading`` and evaluates all conditions on them."""
    from windowmill.jobs.sources.plain_rows import PlainRows  # imports PySpark

    return PlainRows.of(pipeline, source, reading) is not None


def asserted_through(pipeline: Pipeline, interval_end: datetime | None) -> int | None:
    """The instant (µs) through which input is asserted complete, null if the spec does not use it; refuses one ahead of the clock."""
    if pipeline.time.watermark != "data_interval_end":
        return None
    if interval_end is None:
        raise SpecError(
            f"pipeline {pipeline.pipeline}: time.watermark is data_interval_end, so each run needs the end of its interval; "
            "give --data-interval-end (the DAG does), or use watermark: max_event_time"
        )
    asserted, skew = to_us(interval_end), pipeline.time.max_future_skew
    ahead = Duration(days=1) if skew is None or skew.plain else skew
    if asserted > time.time_ns() // 1_000 + ahead.elapsed():
        raise SpecError(
            f"pipeline {pipeline.pipeline}: --data-interval-end: got {interval_end.isoformat()}, which is more than {ahead} ahead of the "
            "clock, so every row until then would be too late; give the end of an interval that is over"
        )
    return asserted


def lags_behind(pipeline: Pipeline, last: Batch | None) -> bool:
    """Whether a restatement, or other settings, have moved the watermark past windows that are not shown yet: a run without rows does."""
    if last is None or not last.plan.replaces_state or pipeline.time.watermark == "data_interval_end":
        return False
    seen, emitted, before, rule = last.outcome.seen, last.outcome.emitted, last.outcome.watermark, LatenessRule.of(pipeline)
    if seen is None:
        return False
    watermark = rule.watermark(seen)
    if before is not None:
        if before < watermark or last.outcome.shown is not None:
            return True
        watermark = before
    return emitted is None or emitted < rule.closed(watermark)
