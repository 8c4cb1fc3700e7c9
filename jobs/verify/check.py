"""Verifies a sample of a pipeline's published rows: compares them with recomputed ones, and keeps the result in the quality table.

A hash chooses among the latest revisions, so that a seed gives the same rows again. Whole numbers and texts must be equal, floats and
sketches within a bound.
"""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from functools import cached_property, partial
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from rich.filesize import decimal

from windowmill.checkpoints.batches import Batch, RestatePlan, effective_batches
from windowmill.checkpoints.current import CurrentView, MadeOfSink, opened
from windowmill.checkpoints.delta_tables import own_commit
from windowmill.checkpoints.ledger import Ledger
from windowmill.checkpoints.own_tables import own_tables
from windowmill.checkpoints.places import Runnable
from windowmill.checkpoints.protocol import lease, outstanding
from windowmill.checkpoints.quoting import backquoted
from windowmill.checkpoints.stores import table_at, write_table
from windowmill.expectations.gate import SCHEMA
from windowmill.jobs.batch.counted_rows import table_rows
from windowmill.jobs.batch.loop import LEASE_WAIT_SECONDS
from windowmill.jobs.batch.planning import check_owner
from windowmill.jobs.batch.progress import Progress, late_missed
from windowmill.jobs.batch.restating import looking_up_changes
from windowmill.jobs.batch.window_history import redefined_by
from windowmill.jobs.conditions.expressions import Expressions
from windowmill.jobs.runnables import runnable_of
from windowmill.jobs.sources.base import SourceTable, open_source
from windowmill.jobs.sources.chains import InputCheck
from windowmill.jobs.sources.delta_log import DeltaSource
from windowmill.jobs.sources.folder import FolderSource
from windowmill.jobs.sources.lookups import pins_of, versions_since
from windowmill.jobs.sources.table_rows import changed_rows, queried
from windowmill.jobs.sources.unusable_rows import TOO_LATE, EventTimes
from windowmill.jobs.spark import launch
from windowmill.jobs.spark.access import DataFrame, SparkSession, access_to, frame_of
from windowmill.jobs.spark.session import shipment_of, spark_session
from windowmill.jobs.verify.plain import Plain, PublishedRow, RecomputedValue
from windowmill.jobs.verify.source_rows import Arrival, Reaches, SampledRows, SourceFiles, with_conditions
from windowmill.windowing import reference
from windowmill.windowing.axis import AXIS_BEGIN, to_us
from windowmill.windowing.columnar.added_columns import FILE, RETRACTED, ROW, TIME, UNTIL_OF
from windowmill.windowing.columnar.hashes import row_checksums
from windowmill.windowing.columnar.rows import codes_of, distinct_values, first_rows
from windowmill.windowing.errors import OutOfTurnError, SourceRangeGoneError
from windowmill.windowing.kernels.lift import condition_column
from windowmill.windowing.reference.events import ranks
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.windows.base import Window

if TYPE_CHECKING:
    from deltalake import DeltaTable

    from windowmill.windowing.kernels.checksums import Words
    from windowmill.windowing.kernels.combine import Ints

#: Columns that identify a window of a key.
PLACE = ("window", "window_start", "window_end", "trigger")
_HASH = "_hash"
#: Relative error by which floating-point results may differ: their sums are in another order.
TOLERANCE = 1e-9
#: Most rows of the sampled keys that the reference engine is given for a window; it keeps every row.
MAX_ROWS = 500_000
_COMMIT, _COUNT = "_commit", "_count"
#: How rows were recomputed.
BY_SQL, BY_REFERENCE = "Spark SQL", "the reference engine"
#: Origin and type of the rows of the quality table; the number of the rule, after those of a spec.
ORIGIN, TYPE, RULE = "verify", "verify_published_rows", 1_000_000
_NO_SQL = "has no form in SQL"
_NO_WATERMARK = "the end of an interval is its watermark, which the source does not have"
_OF_EARLIER_SPEC = "an earlier spec published them"
_TOO_MANY = f"rows of their keys are more than {MAX_ROWS:,}, too many for the reference engine; keys with fewer rows are compared"
_UNKNOWN_ORDER = (
    "rows came late, and since then files of the source were rewritten, settings of time have changed, or windows were recomputed in which "
    "no row is late, so which windows count them is not known"
)
_UNKNOWN_COPIES = (
    "rows with equal values of dedup.by differ, and since then files of the source were rewritten, or windows were recomputed, so which of "
    "them counts is not known"
)
#: Rows that differ whose texts are kept in the quality table or named, and files that a query leaves out by name.
_EXAMPLES, _FILES_NAMED = 5, 20


@dataclass(frozen=True)
class CurrentCheck:
    """The current table at ``path``, compared with the rows that the sink shows."""

    path: str
    #: Number of keys and windows of which it has another row, or none, or one too many; and the first of them, as values of its columns.
    differing: int = 0
    examples: Sequence[Mapping[str, Any]] = ()

    @classmethod
    def of(cls, runnable: Runnable, ledger: Ledger) -> CurrentCheck | None:
        """Of the table as the last batch of ``ledger`` has left it; null if the spec wants none, or the next batch makes it.

        Raises ``OutOfTurnError`` if a batch is published meanwhile.
        """
        written, path = ledger.written(), runnable.current_path
        if path is None or "current" not in written or written["current"].batch != written["sink"].batch:
            return None
        made = MadeOfSink.of(path, opened(path), sink=runnable.sink_path, view=CurrentView.of(runnable.pipeline))
        pairs = pa.concat_tables(list(made.differing(made.files)))
        if len(pairs) and Ledger.open(runnable.pipeline).count != ledger.count:
            raise OutOfTurnError(f"pipeline {runnable.name}: another run has published a batch meanwhile; verify again")
        return cls(path, len(pairs), pairs.slice(0, _EXAMPLES).to_pylist())


@dataclass(frozen=True)
class Verification:
    """The result of a verification."""

    batch: int | None  #: The last batch whose rows were verified; null if nothing has been published.
    seed: int
    source_version: int
    comparison: Comparison
    changed: Sequence[tuple[int, str]] = ()  #: Versions that changed rows of the source since the pipeline began, with their operation.
    #: By window name, the number of rows that came too late for a window that holds them; windows leave these out.
    missed: Mapping[str, int] = field(default_factory=dict)
    current: CurrentCheck | None = None  #: Of the table of current rows; null if there is none.
    input: InputCheck | None = None  #: Of the input table; null for a source that is no other pipeline.


def verify(
    pipeline: Pipeline, progress: Progress, *, number: int, seed: int, ends: tuple[int | None, int | None] = (None, None)
) -> Verification:
    """Recompute ``number`` random published rows that end in ``ends`` (begin, end], and compare; changes nothing but the quality table."""
    runnable, ledger = runnable_of(pipeline), Ledger.open(pipeline)
    check_owner(pipeline, ledger)
    ledger.check_meaning(pipeline)
    source, batches = open_source(runnable.pipeline), ledger.batches()
    committed = effective_batches(batches)
    plans = [batch.plan for batch in committed]
    if not any(plan.builds_state for plan in plans) or "sink" not in _written(runnable, ledger):
        return Verification(None, seed, source.version, Comparison())
    files = SourceFiles.of(pipeline, source, plans)
    newest = committed[-1]
    with progress.step("sample", f"{number} rows of {runnable.sink_path}"):
        drawn = sample(runnable.sink_path, pipeline, number=number, seed=seed, ends=ends, through=newest.number)
    current = None
    if runnable.current_path is not None:
        with progress.step("compare", f"{runnable.current_path} with the rows that the sink shows"):
            current = CurrentCheck.of(runnable, ledger)
    entered = None
    if runnable.source.pipeline is not None:
        with progress.step("compare", f"{runnable.places.input} with the rows that {runnable.source.place} shows"):
            entered = InputCheck.of(runnable)
    comparison = Comparison()
    chosen, lacking = _of_this_spec(drawn, ledger, comparison)
    plain = Plain(partial(_started, pipeline, progress), runnable, files, time.time_ns() // 1_000)
    late = sum(batch.counts.rows_late for batch in committed if batch.plan.builds_state) > 0
    # Windows that were read again may count rows that are in quarantine because they came too late.
    late = late or (files.counts_late and TOO_LATE in plain.refused)
    changes = _LookupChanges.of(runnable.pipeline, source, committed, progress) if runnable.pipeline.lookups else None
    left = _Left.of(runnable.pipeline, source, committed, progress) if runnable.source.pipeline is not None else None
    comparing = _Comparing(plain, chosen, lacking, comparison, late, changes, left, progress)
    if chosen.rows:
        comparing.run()
    # It is unknown which rows before a restatement still miss windows, so they are left out.
    restated = max((place for place, batch in enumerate(committed, 1) if batch.plan.restates), default=0)
    found = Verification(
        newest.number, seed, source.version, comparison, files.changed, late_missed(committed[restated:]), current, entered
    )
    if chosen.rows:
        _keep(runnable, newest, found, progress.say)
    return found


def _of_this_spec(drawn: Sample, ledger: Ledger, comparison: Comparison) -> tuple[Sample, Mapping[int, Collection[str]]]:
    """``drawn`` without rows of windows that meant something else in the spec of their batch; and by batch the aggregates that did."""
    newest = ledger.newest_kept
    assert newest is not None  # rows have been published
    batches, publishing = ledger.batches(), {row.batch for row in drawn.rows}
    redefined = redefined_by(batches)
    windows, aggregates = _meanings(newest, redefined)
    specs = {batch.number: _meanings(batch, redefined) for batch in batches if batch.number in publishing}
    lacking = {number: {name for name, spec in aggregates.items() if then.get(name) != spec} for number, (_, then) in specs.items()}
    places = []
    for place, row in enumerate(drawn.rows):
        if specs[row.batch][0].get(row.window) != windows.get(row.window):
            comparison.left_out[f"rows of {row.window}", _OF_EARLIER_SPEC] += 1
            continue
        comparison.left_out.update((f"column {name}", _OF_EARLIER_SPEC) for name in lacking[row.batch])
        places.append(place)
    return Sample([drawn.rows[place] for place in places], drawn.keys.take(pa.array(places, pa.int64()))), lacking


def _meanings(batch: Batch, redefined: Mapping[int, Mapping[str, int]]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """The windows and the aggregates of the spec of ``batch`` by name, each with the batch that has changed its meaning last."""
    definition: Mapping[str, Any] = batch.plan.definition
    since, windows = redefined[batch.number], {window["name"]: window for window in definition["windows"]}
    return (
        {name: (since.get(f"windows.{name}"), window) for name, window in windows.items()},
        {name: (since.get(f"aggregates.{name}"), spec) for name, spec in definition["aggregates"].items()},
    )


def _started(pipeline: Pipeline, progress: Progress, brief: bool) -> SparkSession:
    """Spark, as the verification of ``pipeline`` needs it; ``brief`` where it has few rows to compute."""
    with progress.step("start", "Spark"):
        shipment = shipment_of(pipeline)
        spark = spark_session(f"windowmill verify {pipeline.pipeline}", brief=brief, shipment=shipment, say=progress.say)
        access_to(spark).ship(shipment)
    return spark


def _written(runnable: Runnable, ledger: Ledger) -> set[str]:
    """Roles of the tables that there are."""
    lacking = outstanding(ledger, own_tables(runnable))
    if lacking and ledger.held_batch is None:
        raise OutOfTurnError(
            f"pipeline {runnable.name}: batch {ledger.count - 1} lacks its commit to {', '.join(lacking)}, which the next run makes; "
            "`windowmill run`, then verify"
        )
    return set(ledger.written())


@dataclass(frozen=True)
class _LookupChanges:
    """What has changed in tables that are looked up, which published windows may not reflect."""

    names: str  #: Names of the lookups, for messages.
    #: By key, the sorted times of rows that look it up; null where it is not known.
    times: Mapping[tuple[Any, ...], Ints] | None

    @classmethod
    def of(cls, pipeline: Pipeline, source: SourceTable, committed: Sequence[Batch], progress: Progress) -> _LookupChanges | None:
        """Those since the ``committed`` batches; null for none."""
        changes = versions_since(pipeline, None, committed, pins_of(pipeline))
        if not changes or not isinstance(source, DeltaSource | FolderSource):
            return None
        rows, axis = table_rows(pipeline, source, progress), EventTimes(pipeline, None)
        columns, names = [*dict.fromkeys([*pipeline.keys, *axis.axis])], ", ".join(changes)
        parts = (looking_up_changes(pipeline, rows, source.version, name, versions, columns) for name, versions in changes.items())
        try:
            return cls(names, _times_by_key(pipeline.keys, map(axis.of, chain.from_iterable(parts))))
        except SourceRangeGoneError:
            return cls(names, None)

    def doubt(self, row: PublishedRow) -> str | None:
        """Why ``row`` may differ: what its rows look up has changed; null if that has not."""
        if self.times is not None and not _may_hold(row, self.times):
            return None
        return f"the table of lookup {self.names} has changed since; `windowmill restate --lookup NAME` brings their windows up to date"


def _times_by_key(keys: Sequence[str], parts: Iterable[pa.Table]) -> Mapping[tuple[Any, ...], Ints]:
    """By key, the sorted times of those rows of ``parts`` that have one."""
    found = dict[tuple[Any, ...], list[int]]()
    for rows in (part.filter(pc.is_valid(part.column(TIME))) for part in parts):
        cells = zip(*(rows.column(key).to_pylist() for key in keys), strict=True) if keys else repeat(())
        for key, at in zip(cells, rows.column(TIME).to_pylist(), strict=False):
            found.setdefault(key, []).append(at)
    return {key: np.array(sorted(times)) for key, times in found.items()}


def _may_hold(row: PublishedRow, times: Mapping[tuple[Any, ...], Ints]) -> bool:
    """Whether the window of ``row`` may hold one of the ``times``, sorted ones by key."""
    own = times.get(row.key)
    first = AXIS_BEGIN if row.start is None or row.trigger is not None else row.start
    return own is not None and bool(np.searchsorted(own, first) < np.searchsorted(own, row.end, side="right"))


@dataclass(frozen=True)
class _Left:
    """The restatements of corrections by the pipeline that is the source, which have left windows that were final."""

    #: For each the batch, and by key the sorted times of the rows that were corrected; null where they are not known any more.
    batches: Sequence[tuple[Batch, Mapping[tuple[Any, ...], Ints] | None]]
    committed: Sequence[Batch]

    @classmethod
    def of(cls, pipeline: Pipeline, source: SourceTable, committed: Sequence[Batch], progress: Progress) -> _Left | None:
        """Those among the ``committed`` batches; null for none."""
        found = [batch for batch in committed if batch.plan.leaves_through is not None]
        if not found or not isinstance(source, DeltaSource):
            return None
        rows, axis = table_rows(pipeline, source, progress), EventTimes(pipeline, None)
        columns = list(dict.fromkeys([*pipeline.keys, *axis.axis]))
        times: list[tuple[Batch, Mapping[tuple[Any, ...], Ints] | None]] = []
        for batch in found:
            changed = cast("RestatePlan", batch.plan).changed
            assert changed is not None
            try:
                timed = axis.of(changed_rows(rows, *changed, columns))
            except SourceRangeGoneError:
                times.append((batch, None))
            else:
                times.append((batch, _times_by_key(pipeline.keys, [timed])))
        return cls(times, committed)

    def doubt(self, row: PublishedRow) -> str | None:
        """Why ``row`` may differ: its window was left as it is, and no later batch has computed it again; null if that is not so."""
        for batch, times in self.batches:
            through = batch.plan.leaves_through
            if batch.number <= row.batch or through is None or row.end > through:
                continue
            touched = times is None or _may_hold(row, times)
            if touched and not any(later.number > batch.number and later.plan.recomputes_end(row.end) for later in self.committed):
                return "their source was corrected once they were final; `windowmill restate --from … --to …` brings them up to date"
        return None


@dataclass
class _Comparing:
    """The comparison of a sample with the source."""

    plain: Plain
    sample: Sample
    lacking: Mapping[int, Collection[str]]  #: By batch the aggregates that were not in its spec, or had another meaning there.
    comparison: Comparison
    late: bool  #: Whether rows came late and were counted.
    changes: _LookupChanges | None  #: What has changed in tables that are looked up; null for nothing.
    left: _Left | None  #: Which published windows were left when the pipeline that is the source corrected its results; null for none.
    progress: Progress

    def run(self) -> None:
        """Compare the rows: those that SQL recomputes, and all others by the reference engine; each file is read once."""
        windows = self.plain.pipeline.windows
        # To late rows a session may have been closed that their time would join.
        sessions = not self.late and self.plain.pipeline.time.end is None
        has_sql = [each for each in windows if each.on_grid or (sessions and each.joins_by_gap and each.greatest_size() is None)]
        in_sql = {window.name: window.session_gap() if window.joins_by_gap else None for window in has_sql}
        rows, keys = self._of(in_sql)
        gaps = [in_sql[row.window] for row in rows]
        others, others_keys = self._others([window.name for window in windows if window.name not in in_sql])
        if rows:
            launch.begin(brief=self.plain.local.is_plain)  # Spark starts while this process reads
        on_grids = [row for row, gap in zip(rows, gaps, strict=True) if gap is None]
        spans = [(row.start, row.end) for row in on_grids if row.start is not None]
        arrival = self.plain.arrival(spans, surveyed=bool(others))
        chosen = range(len(self.plain.files.files)) if arrival is None else self.plain.read_for(rows, gaps)
        reaches = [self.plain.reaches(rows, keys, gaps), reaches_of(others, others_keys, self.plain.types)]
        if self.plain.pipeline.dedup is not None:
            _ = self.plain.spark
            with self.progress.step("dedup", "which rows are duplicates"):
                _ = self.plain.copies
        with self.progress.step("read", self._told(chosen)):
            found = self.plain.local.read(chosen, self.plain.columns, reaches)
        if found is None:
            _ = self.plain.spark  # starts it, which is a step of its own: steps are not within others
        arrival = self._arrival(found) if arrival is None else arrival
        by_engine = self._by_reference(others, others_keys, arrival, found)
        self._by_sql(rows, keys, gaps, arrival, found)
        for row, expected in by_engine:
            self._add(row, expected, None, BY_REFERENCE)
        self._name_left_out()

    def _others(self, names: Collection[str]) -> tuple[list[PublishedRow], pa.Table]:
        """The sampled rows that the reference engine recomputes, of windows with these ``names``, and their keys."""
        rows, keys = self._of(names)
        if not self.plain.pipeline.asserts_interval:
            return rows, keys
        for row in rows:
            self.comparison.left_out[f"rows of {row.window}", _NO_WATERMARK] += 1
        return [], keys.slice(0, 0)

    def _of(self, windows: Collection[str]) -> tuple[list[PublishedRow], pa.Table]:
        numbers = [n for n, row in enumerate(self.sample.rows) if row.window in windows]
        return [self.sample.rows[n] for n in numbers], self.sample.keys.take(pa.array(numbers, pa.int64()))

    def _arrival(self, found: SampledRows | None) -> Arrival:
        """How the rows of the source arrived, by a survey of all files; ``found`` are the rows already read here."""
        if found is not None:
            latest = (found.latest.column(name).to_pylist() for name in (FILE, TIME, ROW))
            greatest: dict[int, tuple[int, int]] = {}
            for file, at, row in zip(*latest, strict=True):
                greatest[file] = max(greatest.get(file, (at, row)), (at, row))
            return self.plain.arrived(greatest)
        with self.progress.step("survey", f"the event times of {self._told(range(len(self.plain.files.files)))}"):
            return self.plain.survey()

    def _told(self, chosen: Sequence[int]) -> str:
        """How much of the source the files with the indices ``chosen`` are."""
        source, size = self.plain.files.source, sum(self.plain.files.files[n].size_bytes for n in chosen)
        return f"{len(chosen):,} of {len(self.plain.files.files):,} files ({decimal(size)}) of {source.path} at version {source.version}"

    def _by_sql(
        self, rows: Sequence[PublishedRow], keys: pa.Table, gaps: Sequence[int | None], arrival: Arrival, found: SampledRows | None
    ) -> None:
        if not rows:
            return
        _ = self.plain.spark
        with self.progress.step("compare", f"{len(rows)} rows by SQL"):
            values = self.plain.recomputed(rows, keys, gaps, arrival, None if found is None else found.rows)
        for row, gap, expected in zip(rows, gaps, values, strict=True):
            closed = zip(self.plain.files.files, arrival.closed, strict=True)
            too_late = [file.path for file, through in closed if through is not None and through >= row.end]
            query = self.plain.query(row, gap, without=too_late[:_FILES_NAMED])
            self._add(row, expected, query, BY_SQL)

    @cached_property
    def _expressions(self) -> Expressions:
        return Expressions.of(self.plain.pipeline, self.plain.types)

    def _add(self, row: PublishedRow, expected: Mapping[str, RecomputedValue] | None, query: str | None, method: str) -> None:
        lacking = self.lacking[row.batch]
        if expected is not None:
            # Of the published values, which are compared themselves: an expression of values that round differently may differ at will.
            published = {**dict(zip(self.plain.pipeline.keys, row.key, strict=True)), **row.values}
            [own] = self._expressions.of_records([published])
            expected = {**expected, **{name: RecomputedValue(value) for name, value in own.items()}}
        known = None if expected is None else {name: value for name, value in expected.items() if name not in lacking}
        # Why rows may differ although nothing is wrong.
        doubt = _UNKNOWN_ORDER if self.late and not self.plain.files.order_known else None
        doubt = self.changes.doubt(row) if doubt is None and self.changes is not None else doubt
        doubt = self.left.doubt(row) if doubt is None and self.left is not None else doubt
        if doubt is None and (copies := self.plain.copies) is not None and _may_hold(row, copies.doubtful):
            doubt = _UNKNOWN_COPIES
        self.comparison.add(row, known, query, method, doubt)

    def _by_reference(
        self, rows: Sequence[PublishedRow], keys: pa.Table, arrival: Arrival, found: SampledRows | None
    ) -> list[tuple[PublishedRow, Mapping[str, RecomputedValue] | None]]:
        """Each of ``rows`` that the reference engine recomputes, with what it gives; null if there is no such window."""
        if not rows:
            return []
        aggregates = self.plain.pipeline.aggregates
        with self.progress.step("recompute", f"{len(rows)} rows by {BY_REFERENCE}"):
            values, left_out = recomputed(self.plain, arrival, rows, keys, found)
        compared: list[tuple[PublishedRow, Mapping[str, RecomputedValue] | None]] = []
        for row, expected, many in zip(rows, values, left_out, strict=True):
            if many:
                self.comparison.left_out[f"rows of {row.window}", _TOO_MANY] += 1
                continue
            own = None if expected is None else {name: value for name, value in expected.items() if aggregates[name].use is None}
            compared.append((row, own))
        return compared

    def _name_left_out(self) -> None:
        """Count the columns that were not compared."""
        for name in self.plain.pipeline.aggregates:
            rows = len(self.comparison.rows) - self.comparison.compared[name]
            missing = sum(1 for row in self.comparison.rows if any(each.column is None for each in row.differences))
            missing += self.comparison.left_out[f"column {name}", _OF_EARLIER_SPEC]
            if rows > missing:
                self.comparison.left_out[f"column {name}", _NO_SQL] += rows - missing


def _keep(runnable: Runnable, newest: Batch, found: Verification, say: Callable[[str], None]) -> None:
    """Add the result to the quality table, where the rules of the last batch are."""
    comparison, differing = found.comparison, found.comparison.differing
    shares = {name: comparison.equal[name] / compared for name, compared in comparison.compared.items()}
    message = f"{len(differing)} of {len(comparison.rows)} published rows differ from the source at version {found.source_version}"
    examples = [
        ", ".join(f"{each.column or row.row.window}: {each.published!r} instead of {each.recomputed!r}" for each in row.differences)
        for row in differing[:_EXAMPLES]
    ]
    row = {
        "pipeline": runnable.name,
        "generation": newest.plan.generation,
        "batch": newest.number,
        "attempt": newest.plan.attempt,
        "at": datetime.now(UTC),
        "status": newest.verdict,
        "rule": RULE,
        "origin": ORIGIN,
        "type": TYPE,
        "arguments": "{}",
        "severity": "warning",
        "outcome": "failed" if differing else "passed",
        "observed": json.dumps({"seed": found.seed, "equal": shares}),
        "elements": len(comparison.rows),
        "unexpected": len(differing),
        "message": message if differing else "",
        "examples": json.dumps(examples),
    }
    with lease(runnable.places.root, wait_seconds=LEASE_WAIT_SECONDS, on_wait=say):
        write_table(
            runnable.places.quality, pa.Table.from_pylist([row], schema=SCHEMA), mode="append", commit_properties=own_commit("verify")
        )


def recomputed(
    plain: Plain, arrival: Arrival, sampled: Sequence[PublishedRow], keys: pa.Table, found: SampledRows | None
) -> tuple[list[dict[str, RecomputedValue] | None], np.ndarray]:
    """The values of the rows ``sampled``, each null if there is no such window; and a mask of those whose keys have too many rows.

    ``found`` are the rows of these keys, and those by which the watermark moves; null if Spark reads them.
    """
    if found is None:
        found = _by_spark(plain, keys, arrival)
    # The rows that move the watermark: one with the greatest event time of each commit, of any key.
    latest = set(arrival.latest)
    moving = [at in latest for at in zip(found.latest.column(FILE).to_pylist(), found.latest.column(ROW).to_pylist(), strict=True)]
    others = found.latest.filter(pa.array(moving, pa.bool_()))
    values: list[dict[str, RecomputedValue] | None] = [None] * len(sampled)
    left_out = np.zeros(len(sampled), np.bool_)
    for window in plain.pipeline.windows:
        own = [n for n, row in enumerate(sampled) if row.window == window.name]
        if not own:
            continue
        rows, too_many = _rows_of([sampled[n] for n in own], keys.take(pa.array(own)), found.rows, plain.types)
        left_out[own] = too_many
        of_window = plain.pipeline.model_copy(update={"windows": (window,), "dedup": None})  # duplicates are left out
        for n, each in zip(own, _of_window(of_window, plain, pa.concat_tables([rows, others]), [sampled[n] for n in own]), strict=True):
            values[n] = each
    return values, left_out


def reaches_of(sampled: Sequence[PublishedRow], keys: pa.Table, types: Mapping[str, pa.DataType]) -> Reaches:
    """The rows by which the windows of ``sampled`` are recomputed: those of each key up to the end of its last window."""
    codes = codes_of([keys], keys.column_names)[0] if keys.num_columns else np.zeros(len(sampled), np.int64)
    ends = np.full(len(sampled), AXIS_BEGIN)
    np.maximum.at(ends, codes, [row.end + 1 for row in sampled])
    firsts = first_rows(codes)
    return Reaches.of(keys.take(pa.array(firsts)), [(AXIS_BEGIN, int(end)) for end in ends[: len(firsts)]], types)


def _rows_of(
    sampled: Sequence[PublishedRow], keys: pa.Table, rows: pa.Table, types: Mapping[str, pa.DataType]
) -> tuple[pa.Table, np.ndarray]:
    """Those of ``rows`` that decide about the windows of ``sampled``; and a mask of the windows whose keys have too many."""
    of_keys = reaches_of(sampled, keys, types)
    numbers, places = of_keys.pairs(rows)
    counts = np.bincount(numbers, minlength=len(of_keys))
    # The keys with the fewest rows.
    order = np.argsort(counts, kind="stable")
    few = order[np.cumsum(counts[order]) <= MAX_ROWS]
    codes = codes_of([keys], keys.column_names)[0] if keys.num_columns else np.zeros(len(sampled), np.int64)
    return rows.take(pa.array(places[np.isin(numbers, few)])), ~np.isin(codes, few)


def _of_window(
    pipeline: Pipeline, plain: Plain, rows: pa.Table, sampled: Sequence[PublishedRow]
) -> list[dict[str, RecomputedValue] | None]:
    """The values of the rows ``sampled`` of the only window of ``pipeline``, by all ``rows``."""
    records, commits = _records(rows, plain)
    wanted = {_place_of(row) for row in sampled}

    def asked(window: Window, fired: reference.WindowResult) -> bool:
        return (ranks(fired.key), window.name, fired.span.start, fired.span.end, fired.trigger) in wanted

    # The watermark is moved to the end: rows that had moved it may be gone from the source, and only published windows are asked for. The
    # row up to whose time ticks have shown windows may be gone, too, so that time is taken from the sampled rows.
    greatest = max(row.end for row in sampled)
    outcome = reference.evaluate(pipeline, records, commits=commits, final=True, greatest=greatest, wanted=asked)
    # In order of revisions, so that the latest one is left.
    newest = {_place(row, [row[name] for name in pipeline.keys]): row for row in outcome.rows}
    values = [newest.get(_place_of(row)) for row in sampled]
    return [None if row is None else {name: RecomputedValue(row[name]) for name in pipeline.over_rows().aggregates} for row in values]


def _by_spark(plain: Plain, keys: pa.Table, arrival: Arrival) -> SampledRows:
    """The rows of these ``keys``, those with the fewest if they are too many, and the rows that move the watermark, as Spark reads them."""
    pipeline, read = plain.pipeline, plain.read

    def chosen(rows: DataFrame) -> DataFrame:
        rows, conditions = with_conditions(rows, pipeline, plain.types)
        own = map(backquoted, dict.fromkeys([*plain.columns, TIME, UNTIL_OF, FILE, ROW]))
        return rows.selectExpr(*own, *(f"{backquoted(name)} AS {backquoted(condition_column(text))}" for text, name in conditions.items()))

    rows = plain.of_keys(keys, arrival)
    found = chosen(rows).limit(MAX_ROWS + 1).toArrow()
    if found.num_rows > MAX_ROWS:
        found = chosen(plain.of_keys(_fewest(rows, pipeline.keys), arrival)).toArrow() if pipeline.keys else found.slice(0, 0)
    latest = pa.table(
        {FILE: pa.array([file for file, _ in arrival.latest], pa.int32()), ROW: pa.array([n for _, n in arrival.latest], pa.int64())}
    )
    others = read(sorted({file for file, _ in arrival.latest}), arrival.closed)
    others = others.join(frame_of(plain.spark, latest).hint("broadcast"), [FILE, ROW], "left_semi")
    return SampledRows(found, chosen(others).toArrow().cast(found.schema))


def _fewest(rows: DataFrame, keys: tuple[str, ...]) -> pa.Table:
    """Those of the keys with the fewest ``rows`` whose rows together are not too many."""
    counted = rows.groupBy(*map(backquoted, keys)).count().toDF(*keys, _COUNT).toArrow().sort_by(_COUNT)
    together = np.cumsum(counted.column(_COUNT).to_numpy())
    return counted.slice(0, int(np.searchsorted(together, MAX_ROWS, side="right"))).select(list(keys))


def _records(found: pa.Table, plain: Plain) -> tuple[list[reference.Record], list[int]]:
    """The rows, each once, in order of arrival, with the number of each one's commit; those of a snapshot arrive one by one."""
    time, files = plain.pipeline.time, plain.files
    columns = {
        name: (
            found.column(name).cast(pa.int64()) if pa.types.is_timestamp(found.schema.field(name).type) else found.column(name)
        ).to_pylist()
        for name in found.column_names
    }
    every = (dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True))
    rows = list({(row[FILE], row[ROW]): row for row in every}.values())
    for row in rows:
        commit = files.commits[row[FILE]] if files.order_known else None
        row[_COMMIT] = -1 if commit is None else commit
    rows.sort(key=lambda row: (row[_COMMIT], row[TIME] if row[_COMMIT] < 0 else 0, row[FILE], row[ROW]))
    conditions = [(text, condition_column(text)) for text in plain.pipeline.conditions()]
    records, commits = [], []
    for number, row in enumerate(rows):
        commits.append(number if row[_COMMIT] < 0 else len(rows) + row[_COMMIT])
        # Numbers are as the reference engine takes them; instants, dates and texts of the source are on the axis in a column of their own.
        axis = {} if time.unit else {time.column: row[TIME]} | ({time.end: row[UNTIL_OF]} if time.end else {})
        values = row | axis
        records.append(reference.Record(values, frozenset(text for text, name in conditions if row[name])))
    return records, commits


def _place_of(row: PublishedRow) -> tuple[Any, ...]:
    key = ranks([to_us(value) if isinstance(value, datetime) else value for value in row.key])
    return key, row.window, row.start, row.end, row.trigger


def _place(row: Mapping[str, Any], key: Sequence[Any]) -> tuple[Any, ...]:
    return ranks(key), row["window"], row["window_start"], row["window_end"], row["trigger"]


@dataclass(frozen=True)
class Sample:
    """Rows of the sink; ``keys`` has their key columns with the types of the sink, in the same order."""

    rows: Sequence[PublishedRow]
    keys: pa.Table


def sample(table: str, pipeline: Pipeline, *, number: int, seed: int, ends: tuple[int | None, int | None], through: int) -> Sample:
    """``number`` rows of the sink at ``table`` that end in ``ends`` (begin, end], of the batches ``through`` this one."""
    sink, restarting = table_at(table), [window.name for window in pipeline.windows if window.restarts_triggers]
    kept, whole = 4 * number, False
    found = pa.table({})
    # Rows that are superseded, retracted, or out of the range are among those with the least hashes, too.
    while not whole:
        rows, whole = _least(sink, pipeline, restarting, kept, seed, through)
        found = _within(_newest(rows), ends)
        if len(found) >= number:
            break
        kept *= 16
    found = found.sort_by([(_HASH, "ascending"), *((name, "ascending") for name in PLACE)]).slice(0, number)
    return Sample([_row(row, pipeline) for row in found.to_pylist()], found.select(list(pipeline.keys)))


def _least(sink: DeltaTable, pipeline: Pipeline, restarting: Sequence[str], number: int, seed: int, through: int) -> tuple[pa.Table, bool]:
    """All rows of the ``number`` windows with the least hashes, at least; and whether these are all windows."""
    there = {field.name: field.type for field in pa.schema(sink.schema().to_arrow())}
    wanted = [*pipeline.keys, *PLACE, "revision", "batch", *pipeline.aggregates, *([RETRACTED] if RETRACTED in there else [])]
    types = {name: there[name] for name in wanted}
    rows, whole = pa.schema([*types.items(), (_HASH, pa.uint64())]).empty_table(), True
    for part in queried(sink, types, f"batch <= {through}", {name: name for name in types}):
        own = pa.array(_hashes(part, pipeline.keys, restarting, seed))
        rows = pa.concat_tables([rows, part.append_column(_HASH, own)])
        hashes = distinct_values(rows.column(_HASH).to_numpy())
        if len(hashes) > number:
            rows, whole = rows.filter(pc.less(rows.column(_HASH), pa.scalar(hashes[number], pa.uint64()))), False
    return rows.combine_chunks(), whole


def _hashes(rows: pa.Table, keys: Sequence[str], restarting: Sequence[str], seed: int) -> Words:
    """A number for each row, the same for all versions of a window (:meth:`.PublishedTable.latest_sql`)."""
    numbered = pc.is_valid(rows.column("trigger"))
    no_end = pc.and_(numbered, pc.invert(pc.is_in(rows.column("window"), pa.array(list(restarting), pa.string()))))
    bounds = {name: rows.column(name) for name in ("window_start", "window_end")}
    for name, hidden in (("window_start", numbered), ("window_end", no_end)):
        bounds[name] = pc.if_else(hidden, pa.scalar(None, bounds[name].type), bounds[name])
    known_by = rows.select([*keys, "window", "trigger"])
    for name, column in bounds.items():
        known_by = known_by.append_column(name, column)
    # The finalizer of splitmix64, which makes another order of each seed.
    mixed = row_checksums(known_by).to_numpy().view(np.uint64) + np.uint64(seed * 0x9E3779B97F4A7C15 % 2**64)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(mixed ^ (mixed >> np.uint64(31)), np.uint64)


def _newest(rows: pa.Table) -> pa.Table:
    """The version of each window that readers see, without retracted windows."""
    order = np.lexsort((rows.column("revision").to_numpy(), rows.column(_HASH).to_numpy()))
    hashes = rows.column(_HASH).to_numpy()[order]
    newest = rows.take(pa.array(order[np.append(hashes[1:] != hashes[:-1], True)[: len(order)]]))
    if RETRACTED not in rows.column_names:
        return newest
    return newest.filter(pc.invert(pc.fill_null(newest.column(RETRACTED), False))).drop_columns([RETRACTED])


def _within(rows: pa.Table, ends: tuple[int | None, int | None]) -> pa.Table:
    """Those of ``rows`` that end in ``ends``, with instants as integers on the axis."""
    for name in ("window_start", "window_end"):
        rows = rows.set_column(rows.schema.get_field_index(name), name, rows.column(name).cast(pa.int64()))
    begin, end = ends
    rows = rows if begin is None else rows.filter(pc.greater(rows.column("window_end"), begin))
    return rows if end is None else rows.filter(pc.less_equal(rows.column("window_end"), end))


def _row(row: Mapping[str, Any], pipeline: Pipeline) -> PublishedRow:
    return PublishedRow(
        key=tuple(row[name] for name in pipeline.keys),
        window=row["window"],
        start=row["window_start"],
        end=row["window_end"],
        trigger=row["trigger"],
        revision=row["revision"],
        batch=row["batch"],
        values={name: row[name] for name in pipeline.aggregates},
    )


@dataclass(frozen=True, slots=True)
class Difference:
    """A value of a published row that is not the recomputed one; ``column`` is null if the window itself is not there."""

    column: str | None
    published: Any
    recomputed: Any


@dataclass(frozen=True)
class ComparedRow:
    """A published row and how it was recomputed."""

    row: PublishedRow
    differences: Sequence[Difference]
    sql: str | None  #: A query that recomputes it; null if no plain query does.
    undecided: str | None = None  #: Why its differences do not count; null if they do.


@dataclass
class Comparison:
    """The rows of a sample as they have been compared."""

    rows: list[ComparedRow] = field(default_factory=list)
    #: ``equal``, ``compared``: numbers of values by column.
    equal: Counter[str] = field(default_factory=Counter)
    compared: Counter[str] = field(default_factory=Counter)
    left_out: Counter[tuple[str, str]] = field(default_factory=Counter)  #: What could not be compared, with why, and the number of rows.
    methods: Counter[str] = field(default_factory=Counter)  #: Numbers of rows by how they were recomputed.

    @property
    def differing(self) -> list[ComparedRow]:
        return [row for row in self.rows if row.differences and row.undecided is None]

    def add(
        self, row: PublishedRow, expected: Mapping[str, RecomputedValue] | None, sql: str | None, method: str, doubt: str | None = None
    ) -> None:
        """Compare ``row`` with what was ``expected``: its values, or null if there is no such window. ``doubt`` excuses differences."""
        self.methods[method] += 1
        if expected is None:
            found = [Difference(None, "the row", "no such window")]
        else:
            found = []
            for name, wanted in expected.items():
                same = agree(row.values[name], wanted)
                self.compared[name] += 1
                self.equal[name] += same
                if not same:
                    found.append(Difference(name, row.values[name], wanted.value))
        undecided = doubt if found else None
        if undecided is not None:
            self.left_out[f"rows of {row.window}", undecided] += 1
        self.rows.append(ComparedRow(row, found, sql, undecided))


def agree(published: Any, wanted: RecomputedValue) -> bool:
    """Whether a published value is the one wanted.

    >>> [agree(a, RecomputedValue(b)) for a, b in ((0.1 + 0.2, 0.3), (3, 4), ([1, None], [1, None]))]
    [True, False, True]
    """
    return _agree(published, wanted.value, wanted.scale or 0.0, wanted.bound)


def _agree(a: Any, b: Any, scale: float, bound: float) -> bool:
    if a is None or b is None:
        return a is b
    a, b = (to_us(value) if isinstance(value, datetime) else value for value in (a, b))
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(_agree(a[name], b[name], scale, bound) for name in a)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(_agree(x, y, scale, bound) for x, y in zip(a, b, strict=True))
    numbers = isinstance(a, int | float | Decimal) and isinstance(b, int | float | Decimal)
    if not numbers or (not bound and not isinstance(a, float) and not isinstance(b, float)):
        return bool(a == b)
    x, y = float(a), float(b)
    if not (math.isfinite(x) and math.isfinite(y)):
        return x == y or (math.isnan(x) and math.isnan(y))
    return abs(x - y) <= TOLERANCE * max(abs(x), abs(y), scale if math.isfinite(scale) else 0.0) + bound * abs(y)
