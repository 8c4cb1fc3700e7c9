"""The steps of a batch after it is computed: summarizes what it quarantined, validates its results, compacts its tables, forgets keys.

Quarantined rows are summarized from their table's files alone, a part at a time, so cost and memory do not depend on which engine judged
them.

A purge is finished once the tables do not contain its keys any more: savepoints, pages and records that name them are removed. That may be
repeated: as long as the file with the keys exists, which is deleted last, it has not been done.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache, partial
from importlib.metadata import version
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import QueryBuilder

from windowmill.checkpoints import protocol, savepoints
from windowmill.checkpoints.batches import Batch, Changes, Plan, RunPlan
from windowmill.checkpoints.data_files import read_files
from windowmill.checkpoints.delta_tables import merge_if_many, newest
from windowmill.checkpoints.ledger import Ledger
from windowmill.checkpoints.places import Places, Runnable, local_path
from windowmill.checkpoints.quoting import quoted
from windowmill.checkpoints.rewriting import ErasedKeys, KeysFile, forget_bounds
from windowmill.checkpoints.state.compaction import compact, is_overgrown, is_scattered, overgrown_from
from windowmill.checkpoints.stores import is_table, remote_store_of, remove_folder
from windowmill.expectations import gate
from windowmill.expectations.docs import Folder, remove_pages
from windowmill.expectations.gate import Verdict
from windowmill.expectations.gx import load
from windowmill.expectations.rule import Loss, plain
from windowmill.expectations.suites import rules
from windowmill.jobs.batch import engine
from windowmill.jobs.batch.job import ComputedBatch, Job
from windowmill.jobs.batch.progress import CommittedBatch, Progress
from windowmill.jobs.batch.spark_committer import tables_of
from windowmill.jobs.batch.validating import (
    ResultFiles,
    held_error,
    may_need_evaluation,
    quality_changes,
    report,
    validate_files,
    write_docs,
)
from windowmill.jobs.batch.window_history import kept_verdict
from windowmill.jobs.conditions.expressions import Expressions
from windowmill.jobs.layouts import limits
from windowmill.jobs.sources.columns import Columns
from windowmill.jobs.sources.unusable_rows import BAD_CONDITION, TOO_LATE, remedies_of
from windowmill.jobs.spark.session import spark_session
from windowmill.windowing.axis import DAY_US, SECOND_US, ZERO, Duration
from windowmill.windowing.counts import Counts
from windowmill.windowing.redaction import redacted
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.watermark import LatenessRule

#: Columns of the quarantine table that are read.
COLUMNS = ("reason", "detail", "event_time", "watermark", "row")
#: Share of the rows that may still be too late after the remedy that is proposed.
_STILL_LATE = 0.001
#: Number of examples in total, and of characters of a text in one.
_MAX_EXAMPLES, _SHOWN = 5, 80
#: Units in which a person would write a delay: the largest one that the delay contains at least three times.
_UNITS = (("day", DAY_US), ("hour", 3_600 * SECOND_US), ("minute", 60 * SECOND_US), ("second", SECOND_US))
#: Interval in batches at which the quality and quarantine tables are compacted if they have many small files.
MERGED_EVERY = 16
#: Runs whose times differ by no more than this count as runs of the same time.
_SAME_TIME_US = 1_800 * SECOND_US
#: Number of past batches that are read first.
_FEW = 64


def loss_of(parts: Iterable[pa.RecordBatch], pipeline: Pipeline, *, rows_read: int, seen: int | None, first: bool) -> Loss:
    """Summarize the quarantine rows of a batch.

    - ``parts``: the rows, with :data:`COLUMNS` at least.
    - ``seen``: greatest event time after the batch, in ticks of the axis.
    - ``first``: whether no batch has been committed, so that the definition may still change in place.
    """
    reasons: Counter[str] = Counter()
    details: Counter[str] = Counter()
    examples: list[Mapping[str, Any]] = []
    lags = Lags(asserted=pipeline.time.watermark == "data_interval_end")
    for part in parts:
        for counted in part.column("reason").value_counts().to_pylist():
            # Two examples of a reason where it first occurs, so that a frequent one leaves room for others.
            taken = 1 if counted["values"] in reasons else 2
            reasons[counted["values"]] += counted["counts"]
            examples += _examples(part, counted["values"], pipeline, min(taken, _MAX_EXAMPLES - len(examples)))
        lags.add(part, pipeline, seen)
        bad = part.filter(pc.equal(part.column("reason"), BAD_CONDITION))
        details.update({each["values"]: each["counts"] for each in bad.column("detail").value_counts().to_pylist()})
    remedies = [lags.remedy(pipeline, rows_read - (reasons.total() - reasons[TOO_LATE]), first=first)] if reasons[TOO_LATE] else []
    if details:
        remedies.append(f"{BAD_CONDITION}: {details.most_common(1)[0][0]}; use try_cast, or correct the condition or the source")
    remedies += remedies_of(reasons, pipeline)
    return Loss(dict(reasons), tuple(remedy for remedy in remedies if remedy), tuple(examples))


@dataclass
class Lags:
    """How much later than allowed each late row came, rounded up to three digits: at most a thousand counters for each power of ten."""

    #: Whether the orchestrator asserts the watermark: then only a longer ``lateness`` can keep a row, else a longer ``disorder``.
    asserted: bool
    counts: Counter[int] = field(default_factory=Counter)

    def add(self, part: pa.RecordBatch, pipeline: Pipeline, seen: int | None) -> None:
        """Count the late rows of ``part``; one whose watermark is not known is compared with ``seen``."""
        late = part.filter(pc.and_(pc.equal(part.column("reason"), TOO_LATE), pc.is_valid(part.column("event_time"))))
        if not late.num_rows:
            return
        rule = LatenessRule.of(pipeline)
        known = late.column("watermark").cast(pa.int64())
        watermark = pc.fill_null(known, rule.watermark(seen or 0)).to_numpy(zero_copy_only=False)
        lags = watermark - late.column("event_time").cast(pa.int64()).to_numpy(zero_copy_only=False)
        if not self.asserted:
            lags = lags + rule.disorder - (0 if _by_policies_alone(pipeline) else rule.lateness)
        grain = 10 ** np.maximum(np.floor(np.log10(np.maximum(lags, 1))).astype(np.int64) - 2, 0)
        values, counts = np.unique(-(-np.maximum(lags, 1) // grain) * grain, return_counts=True)
        self.counts.update(dict(zip(values.tolist(), counts.tolist(), strict=True)))

    def remedy(self, pipeline: Pipeline, rows: int, *, first: bool) -> str | None:
        """The delay that would keep nearly all of the ``rows`` that were applied or too late; null if too few were late, or none would."""
        spare, chosen = int(rows * _STILL_LATE), None
        for lag in sorted(self.counts, reverse=True):
            spare -= self.counts[lag]
            if spare < 0:
                chosen = lag
                break
        if chosen is None or (self.asserted and _by_policies_alone(pipeline)):
            return None
        length, text = (chosen, str(chosen)) if pipeline.time.integer_axis else _readable(chosen)
        lost = sum(count for lag, count in self.counts.items() if lag > length)
        kept = "all" if not lost else f"{np.floor((rows - lost) / rows * 1_000) / 10:g} %"
        name = "lateness" if self.asserted else "disorder"
        present: Duration = getattr(pipeline.time, name)
        remedy = f"{TOO_LATE}: time.{name}: {text} would keep {kept} (now {present if present != ZERO else 0})"
        if not first:
            return f"{remedy}; for the rows of earlier batches too, give the pipeline a new sink and backfill it there"
        bulk = "" if self.asserted else "; history loaded in bulk: run --arrival event_time, which finds no row late"
        return f"{remedy}: `windowmill abandon` the batch, set it and run again{bulk}"


def _by_policies_alone(pipeline: Pipeline) -> bool:
    """Whether all windows have policies, for which ``lateness`` has no effect."""
    return all(window.follows_policies for window in pipeline.windows)


def _readable(ticks: int) -> tuple[int, str]:
    """``ticks`` of microseconds rounded up to whole units, and its text."""
    name, unit = next((pair for pair in _UNITS if ticks >= 3 * pair[1]), _UNITS[-1])
    count = -(-ticks // unit)
    return count * unit, f"{count} {name}{'s' * (count != 1)}"


def _examples(part: pa.RecordBatch, reason: str, pipeline: Pipeline, count: int) -> list[dict[str, Any]]:
    """Key, time and reason of up to ``count`` rows of ``part`` that have this ``reason``, as the quarantine table shows them."""
    if count <= 0:
        return []
    chosen = part.filter(pc.equal(part.column("reason"), reason)).slice(0, count)
    names = [*pipeline.keys, pipeline.time.column, *([pipeline.time.end] if pipeline.time.end else [])]
    rows = [json.loads(row) for row in chosen.column("row").to_pylist()]
    return [{name: _shown(row.get(name)) for name in names} | {"reason": reason} for row in rows]


def _shown(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    text = redacted(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"


def import_engine(pipeline: Pipeline) -> None:
    """Import Great Expectations (1 s of processor time) if it will evaluate a rule of ``pipeline`` in any case."""
    if may_need_evaluation(rules(pipeline)):
        load()


def verdict_on(
    runnable: Runnable,
    ledger: Ledger,
    plan: Plan,
    rows: ResultFiles,
    quarantine: str,
    changes: Mapping[str, Changes],
    counts: Counts,
    seen: int | None,
    spark: Callable[[], Any],
) -> Verdict:
    """The verdict on result ``rows`` of ``plan``; quarantined ones are in a folder, and few batches need a session of ``spark``."""
    lost = read_files(quarantine, changes.get("quarantine", Changes()).adds, COLUMNS)
    first = ledger.last_commit is None
    loss = partial(loss_of, lost, runnable.pipeline, rows_read=counts.rows_kept, seen=seen, first=first)
    past = PastBatches(runnable, ledger, plan, rows.here, seen) if plan.advances else None
    return validate_files(rows, runnable.pipeline, counts.rows_kept, counts.rows_quarantined, loss, spark, past)


def validate_again(runnable: Runnable, held: Batch, ledger: Ledger, progress: Progress) -> CommittedBatch:
    """Validate the files of the ``held`` batch by the present rules, and publish them unless it is held again.

    The rules that held it would give the same verdict on the same files, so it is validated again only by other rules, or by SQL.
    """
    known = _known_verdict(runnable, held)
    if known is not None:
        progress.say("  neither the rules nor the limits of quarantine have changed since: its rows are not validated again")
        report(known, progress)
        raise held_error(runnable, ledger, held.plan, known)

    @cache
    def spark() -> Any:
        if engine.compute_of(runnable.pipeline) == "local":
            raise engine.refused_rules(runnable.pipeline, held.number)
        return spark_session(f"windowmill {runnable.name}", brief=True, say=progress.say)

    tables, plan, at = tables_of(runnable, spark), held.plan, datetime.now(UTC)
    with progress.step("validate", f"the rows of batch {plan.batch}, which is held, against the expectations"):
        changes, outcome, held_files = ledger.changes_of(held), held.outcome, runnable.places.held
        rows = ResultFiles(held_files, changes.get("sink", Changes()).adds, _schema_of(runnable.pipeline, plan))
        verdict = verdict_on(runnable, ledger, plan, rows, f"{held_files}/_quarantine", changes, outcome.counts, outcome.seen, spark)
    report(verdict, progress)
    quality = quality_changes(runnable, plan, verdict, str(held.holds), at)
    held_again = verdict.status == "held"
    step = ("hold", f"batch {plan.batch} again; none of its rows is published") if held_again else ("publish", f"batch {plan.batch}")
    with progress.step(*step):
        outcome = protocol.rule(ledger, verdict.status, tables, at, validation=quality)
        write_docs(runnable, plan, verdict, at, progress)
    if held_again:
        raise held_error(runnable, ledger, plan, verdict)
    return CommittedBatch(plan, outcome)


def _known_verdict(runnable: Runnable, held: Batch) -> Verdict | None:
    """The verdict that holds the batch, if rules, limits and windowmill's version are unchanged since; else null."""
    plan = held.plan
    if plan.windowmill != version("windowmill"):
        return None
    found = kept_verdict(runnable.places.quality, plan)
    suite = rules(runnable.pipeline, _schema_of(runnable.pipeline, plan).names)
    return found if found is not None and gate.holds_again(found, suite) else None


def _schema_of(pipeline: Pipeline, plan: Plan) -> pa.Schema:
    return Expressions.of(pipeline, Columns.of(plan.source_schema).seen_by(pipeline).arrow).schema


def compact_tables(job: Job, computed: ComputedBatch, progress: Progress) -> None:
    """Compact the tables that have grown enough after the batch of ``job``, as the state's Delta log and footers of large files show."""
    parts, path, before = job.parts(), job.runnable.places.state, job.plan.batch + 1
    layouts, spans = [part.name for part in parts], [name for part in parts for name in part.spans]
    # Rows of these layouts are compacted with all others. A table of slices and sessions alone is compacted only if it has spans, which
    # batches look for in all files; otherwise `windowmill maintain` merges it.
    has_entries = bool({"positions", "live rows"} & set(layouts))
    if (has_entries or spans) and is_table(path):
        # ``first``: the first batch whose rows are worth merging with those of all later ones, 0 for all batches; null if none are.
        if layouts == ["positions"]:
            # Whether one process could not compute a batch of few rows, because of state or results.
            beyond_process = not computed.in_one_process and limits.are_few_files(job.reading.files)
            first = overgrown_from(path, lay_out=beyond_process)
        else:
            first = 0 if (is_overgrown if has_entries else is_scattered)(path) else None
        if first is not None:
            with progress.step("compact", "entries of the state that later ones replace"):
                compact(path, before, layouts, spans=spans, first=first or None)
    if job.plan.batch % MERGED_EVERY == MERGED_EVERY - 1:
        for path in (job.runnable.places.quality, job.runnable.places.quarantine):
            merge_if_many(path)


@dataclass(frozen=True)
class PastBatches:
    """The batches before that of ``plan``, as :class:`windowmill.expectations.rule.Past`."""

    runnable: Runnable
    ledger: Ledger
    plan: Plan
    rows: Callable[[Sequence[str]], pa.Table]  #: Gives the result rows of the batch of ``plan``, with some columns.
    seen: int | None  #: The greatest event time through that batch.

    def volumes(self, batches: int) -> list[int]:
        return [run.counts.rows_kept for run in self._last(batches)]

    def volumes_ago(self, ago_us: int) -> list[int]:
        then, found = _time_of(self.plan) - ago_us, []
        for run in self._runs():
            if _time_of(run.plan) < then - _SAME_TIME_US:
                break
            if _time_of(run.plan) <= then + _SAME_TIME_US:
                found.append(run.counts.rows_kept)
        return found

    def keys(self, batches: int, window: str | None) -> tuple[int, Sequence[Mapping[str, Any]]]:
        keys = list(self.runnable.pipeline.keys)
        own = self.rows([*keys, "window"])
        if window is not None:
            own = own.filter(pc.equal(own["window"], window))
        runs = [run.number for run in self._last(batches)]
        if not own.num_rows or not runs or not is_table(self.runnable.sink_path):
            return 0, ()
        there = set(_tuples(own.select(keys).group_by(keys).aggregate([])))
        known = list(_tuples(self._published(keys, runs, window)))
        missing = [dict(zip(keys, key, strict=True)) for key in known if key not in there]
        return len(known), sorted(missing, key=str)

    def age_us(self) -> int | None:
        return None if self.seen is None else self.plan.now_us - self.seen

    def _published(self, keys: Sequence[str], runs: Sequence[int], window: str | None) -> pa.Table:
        columns = ", ".join(map(quoted, keys))
        within = f"batch IN ({', '.join(map(str, runs))})"
        if window is not None:
            within += f" AND \"window\" = '{window}'"  # a window's name has no quotes
        reader = QueryBuilder().register("sink", newest(self.runnable.sink_path))
        return pa.table(reader.execute(f"SELECT DISTINCT {columns} FROM sink WHERE {within}").read_all())

    def _last(self, count: int) -> list[Batch]:
        return [run for run, _ in zip(self._runs(), range(count), strict=False)]

    def _runs(self) -> Iterator[Batch]:
        """Published runs before this batch, the newest first."""
        before, span = self.plan.batch, _FEW
        while before > 0:
            first = max(0, before - span)
            batches = [batch for batch in self.ledger.since(first) if batch.number < before]
            yield from (batch for batch in reversed(batches) if batch.action == RunPlan.action and batch.status == "committed")
            before, span = first, 4 * span


def _time_of(plan: Plan) -> int:
    """The time for which a run was made: the end of its data interval, or when it was planned."""
    return plan.now_us if plan.interval_end is None or plan.upstream else plan.interval_end


def _tuples(table: pa.Table) -> Iterator[tuple[Any, ...]]:
    """The rows of a rule's result as JSON, in which NaN equals itself."""
    return zip(*(map(plain, column.to_pylist()) for column in table.columns), strict=True)


@dataclass(frozen=True)
class Forgotten:
    """What has been removed: names of savepoints, the number of pages of Data Docs, and whether the report was."""

    savepoints: tuple[str, ...] = ()
    pages: int = 0
    report: bool = False

    def and_then(self, later: Forgotten | None) -> Forgotten:
        """What this purge and a ``later`` one have removed."""
        if later is None:
            return self
        return Forgotten(self.savepoints + later.savepoints, self.pages + later.pages, self.report or later.report)


def forget(runnable: Runnable, ledger: Ledger) -> Forgotten | None:
    """Finish the purge that is the newest batch of ``ledger``, and has been published; null if nothing is left to do."""
    newest = ledger.newest
    if newest is None or not newest.plan.purges:
        return None
    file = KeysFile(ledger.path, newest.plan.attempt)
    if not file.is_there:
        return None
    keys, places = file.read(), runnable.places
    # A restoration would read rows of the keys again, and could not distinguish removed rows from others.
    dropped = savepoints.savepoint_names(places.savepoints)
    for name in dropped:
        savepoints.drop(places.savepoints, name)
    folder = Folder(places.docs, remote_store_of(places.docs))
    found = Forgotten(dropped, remove_pages(folder, runnable.name, keys.are_named_in), _remove_report(places, keys))
    for leftover in (places.restated, *(f"{places.held}/_{role}" for role in ("sink", "current", "quarantine", "state", "seen"))):
        remove_folder(leftover)
    forget_bounds(ledger.path)
    ledger.refresh()
    file.remove()
    return found


def _remove_report(places: Places, keys: ErasedKeys) -> bool:
    """Remove the report if it may name one of the keys; returns whether it did."""
    local = local_path(places.report)
    root, name = (str(local.parent), local.name) if local else (places.root, places.report.rpartition("/")[2])
    folder = Folder(root, remote_store_of(root))
    if name not in folder.names() or not keys.are_named_in(folder.read(name)):
        return False
    folder.remove(name)
    return True
