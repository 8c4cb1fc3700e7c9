"""The input of a batch: its new rows, the progress of earlier batches, and the windows that it emits."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow as pa

from windowmill.checkpoints.batches import Plan
from windowmill.checkpoints.places import Runnable
from windowmill.jobs.conditions.expressions import Expressions
from windowmill.jobs.sources.base import Reading, SourceTable
from windowmill.jobs.sources.columns import Columns
from windowmill.jobs.sources.plain_rows import PlainRows
from windowmill.jobs.sources.unusable_rows import EventTimes
from windowmill.windowing.axis import AXIS_BEGIN, AXIS_END
from windowmill.windowing.columnar.hashes import RowCheck
from windowmill.windowing.registry import imported
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.watermark import AFTER, BEFORE, Clock, LatenessRule

if TYPE_CHECKING:
    from windowmill.windowing.columnar.slices import RowColumns


@dataclass(frozen=True, slots=True)
class Emission:
    """Progress along the time axis with one batch."""

    seen: int | None  #: Greatest event time so far; null if no row ever had one.
    emitted: int | None  #: The instant through which all windows are emitted once the batch is committed; null if none are.
    #: ``after``, ``through``: the batch emits the windows that end in (``after``, ``through``].
    after: int
    through: int
    #: ``watermark``, ``since``: the watermark after the batch, ``AFTER`` once the input has ended, and the one through which earlier
    #: batches have emitted windows.
    watermark: int = BEFORE
    since: int = BEFORE
    #: The instants through which windows were shown before the batch, and are after it, null for none; null as a whole where they follow
    #: from what is emitted.
    shown: tuple[int | None, int | None] | None = None
    #: The range (begin, end] of window ends that a backfill emits; null for all. Sessions and live rows need it, because their windows may
    #: close or trigger later than they end.
    ends: tuple[int, int] | None = None

    def clock(self, rule: LatenessRule) -> Clock:
        clock = Clock(rule.lateness, BEFORE if self.seen is None else self.seen, self.watermark, self.since, rule.closings)
        if self.shown is None:
            return clock
        closed, shown = (BEFORE if at is None else at for at in (self.emitted, self.shown[1]))
        return replace(clock, through=(closed, shown))

    def shows(self, batch: Input) -> tuple[int | None, ...]:
        """The instants through which windows were shown before the ``batch``, and are after it; null for none."""
        ahead, ends = batch.rule.ahead, (batch.emitted, self.emitted)
        return self.shown or tuple(None if end is None else end + ahead for end in ends)


def _windows_of(rule: LatenessRule, plan: Plan, seen: int | None, reached: int, *, emits_within_range_only: bool) -> Emission:
    """The windows that ``plan`` emits after times up to ``seen``, with which it has ``reached`` this watermark."""
    after = AXIS_BEGIN if plan.emitted is None else plan.emitted
    if plan.replaces_state:
        # It publishes again the windows that earlier batches have emitted, and advances nothing.
        if plan.range is not None:
            return Emission(plan.seen, plan.emitted, plan.range[0], max(plan.range[0], after))
        if plan.passes_over or plan.reads_others:  # rows that were appended, too, or had been left out
            return Emission(_greatest(plan.seen, seen), plan.emitted, AXIS_BEGIN, after)
        return Emission(plan.seen, plan.emitted, AXIS_BEGIN, after)
    if plan.range is not None and not plan.builds_state:
        # It recomputes windows that have been emitted; the pipeline's progress stays.
        begin, end = plan.range
        shown = begin if plan.emitted is None else plan.watermark_by(rule)
        return Emission(plan.seen, plan.emitted, begin, max(begin, min(end, shown)))
    if rule.asserted and plan.advances:
        # A batch that leaves a backlog asserts nothing, so ``emitted`` does not change.
        emitted = _greatest(plan.emitted, None if plan.interval_end is None else rule.closed(plan.interval_end))
    else:
        emitted = _greatest(plan.emitted, None if seen is None else rule.closed(reached))
    if plan.range is None:
        return Emission(seen, emitted, after, after if emitted is None else emitted)
    begin, end = plan.range
    through = begin if emitted is None else max(begin, min(end, emitted) if emits_within_range_only else emitted)
    return Emission(seen, through if emits_within_range_only else emitted, begin, through)


def _greatest(*instants: int | None) -> int | None:
    return max((instant for instant in instants if instant is not None), default=None)


@dataclass(frozen=True, kw_only=True)
class Input:
    """The rows of one batch. The defaults are those of a bounded input, which is the only batch."""

    pipeline: Pipeline
    types: Mapping[str, pa.DataType]  #: Arrow types of the source's columns.
    batch: int = 0  #: Number of the batch.
    #: ``seen``, ``emitted``: progress after the previous batch; null if there is none.
    seen: int | None = None
    emitted: int | None = None
    builds_state: bool = False  #: Whether later batches continue from this batch's state.
    ended: bool = False  #: Whether the input ends with this batch, so that all windows are complete.
    commits: tuple[int, ...] = ()  #: For each file, the number of its commit, ascending; empty if the input has no files.
    first_row: int = 0  #: The place of the first row among those of its commit; the state has rows at the places before.
    snapshot_files: int = 0  #: Number of leading files whose rows count as arrived in order of event time.
    #: For each file, the instant through which windows were closed when its rows arrived, by asserted intervals; null if rows move the
    #: watermark.
    closed_by_file: tuple[int, ...] | None = None
    expected_rows: int = 0  #: Number of rows by the source's log; 0 if unknown.
    size_bytes: int | None = None  #: Size of the rows' files; null if unknown.
    latest: int | None = None  #: Greatest accepted event time; null for no bound.
    check: RowCheck | None = None  #: Verifies rows of the state; null if there is no state.
    kept_gaps: tuple[int, ...] = ()  #: Gaps of the sessions whose stored state stays: the batch writes no state of theirs.
    has_unread: bool = False  #: Whether rows come with the column ``UNREAD``.
    reads_state: bool = True  #: Whether the batch may read state; a backfill, and a batch that replaces the state, read only the source.
    #: Whether the batch recomputes windows that earlier ones have emitted, as a backfill of a running pipeline does.
    recomputes_range: bool = False
    #: Whether this process computes the batch only within :mod:`.limits`, because Spark would compute a larger one.
    is_limited: bool = False
    is_bounded: bool = False  #: Whether this is all of a bounded input, and not a batch among others.

    @property
    def times(self) -> EventTimes:
        return EventTimes(self.pipeline, self.latest, self.has_unread)

    @cached_property
    def expressions(self) -> Expressions:
        """What is computed of result rows, and the columns of the sink; in a part none is, and the columns are those that windows give."""
        return Expressions.of(self.pipeline, self.types)

    @property
    def restores(self) -> bool:
        """Whether the batch reads state: that of earlier batches, if there are any."""
        return self.batch > 0 and self.reads_state

    @cached_property
    def rule(self) -> LatenessRule:
        return LatenessRule.of(self.pipeline)

    def emission(self, seen: int | None) -> Emission:
        """The emission of this batch, after which ``seen`` is the greatest event time so far."""
        after = AXIS_BEGIN if self.emitted is None else self.emitted
        since = self.rule.watermark_of(self.emitted)
        if self.ended:
            return Emission(seen, AXIS_END, after, AXIS_END, AFTER, since)
        closed = None if seen is None or self.rule.asserted else self.rule.closed_after(seen)
        emitted = _greatest(self.emitted, closed)
        watermark = BEFORE if self.rule.asserted or seen is None else self.rule.watermark(seen)
        return Emission(seen, emitted, after, after if emitted is None else emitted, watermark, since)


@dataclass(frozen=True, kw_only=True)
class SourceInput(Input):
    """As :class:`Input`, for rows that Spark can read; ``columns`` are those that windows see."""

    columns: Columns
    types: Mapping[str, pa.DataType] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "types", self.columns.arrow)


@dataclass(frozen=True, kw_only=True)
class TableInput(SourceInput):
    """The rows that a plan reads from the source table; ``plain`` reads them in this process, and is null if Spark reads them."""

    check: RowCheck
    runnable: Runnable
    plan: Plan
    source: SourceTable
    reading: Reading
    plain: PlainRows | None
    #: What is read of a new row to find duplicates. A restatement leaves out none: it has written rows without them.
    finds_duplicates_by: tuple[RowColumns, ...]

    @cached_property
    def rule(self) -> LatenessRule:
        rule, plan = LatenessRule.of(self.pipeline), self.plan
        if plan.watermark is None:
            return rule
        closed = BEFORE if plan.emitted is None else plan.emitted
        if plan.advances:
            return replace(rule, watermarks=(plan.watermark, AFTER), closings=(closed, AFTER))
        shown = plan.shown_by(rule)
        return replace(rule, watermarks=(BEFORE, plan.watermark), closings=(BEFORE, closed), shown=BEFORE if shown is None else shown)

    @classmethod
    def of(
        cls, runnable: Runnable, plan: Plan, source: SourceTable, reading: Reading, plain: PlainRows | None, check: RowCheck
    ) -> TableInput:
        """The input of ``plan``, from a ``source`` with the columns that it has pinned; ``check`` verifies rows of the state."""
        pipeline, latest = runnable.pipeline, runnable.pipeline.time.latest(plan.now_us)
        if plan.rereads and plan.seen is not None and not plan.reads_others:
            # Rows with later times were quarantined as too far in the future when they arrived, or have not been read.
            latest = plan.seen
        return cls(
            pipeline=pipeline,
            columns=Columns.of(plan.source_schema).seen_by(pipeline),
            batch=plan.batch,
            # A batch that replaces the state, or recomputes a range, computes everything as the pipeline's first batch would.
            seen=None if plan.rereads or plan.replaces_state else plan.seen,
            emitted=None if plan.replaces_state else plan.emitted,
            builds_state=plan.builds_state,
            commits=reading.commits,
            first_row=reading.first_row,
            snapshot_files=reading.snapshot_files,
            closed_by_file=_closed_by_file(plan, reading) if pipeline.time.watermark == "data_interval_end" else None,
            expected_rows=sum(file.rows or 0 for file in reading.files),
            size_bytes=reading.size_bytes,
            latest=latest,
            check=check,
            kept_gaps=plan.keeps_gaps,
            has_unread=source.has_unread or source.reader is not None,
            reads_state=plan.range is None and not plan.replaces_state,
            recomputes_range=plan.range is not None and not plan.builds_state,
            is_limited=True,
            runnable=runnable,
            plan=plan,
            source=source,
            reading=reading,
            plain=plain,
            finds_duplicates_by=(
                () if pipeline.dedup is None or plan.restates else (imported("windowmill.jobs.layouts.unique:reading_of")(pipeline),)
            ),
        )

    def emission(self, seen: int | None, *, emits_within_range_only: bool = True) -> Emission:
        """The emission of the plan after times up to ``seen``.

        ``emits_within_range_only``: a backfill that builds the state leaves later windows to runs.
        """
        rule, plan = self.rule, self.plan
        before = plan.watermark_by(rule)
        reached = BEFORE if seen is None else max(rule.watermark(seen), rule.watermarks[0])
        emission = _windows_of(rule, plan, seen, reached, emits_within_range_only=emits_within_range_only)
        closed = rule.watermark_of(emission.emitted)
        # Not the interval's own end: an earlier batch may have asserted a later one.
        watermark = closed if rule.asserted or emission.seen is None else rule.watermark(emission.seen)
        if (plan.rereads or plan.replaces_state) and emission.emitted is not None:
            # A restatement may have moved the watermark past windows that are not emitted yet: the next run emits them.
            watermark = min(watermark, closed)
        shown: tuple[int | None, int | None] | None = None
        if plan.watermark is not None:
            watermark, through = before, plan.shown_by(rule)
            shown = None if plan.replaces_state else through, through
            if plan.advances:
                watermark = max(before, reached if not rule.asserted else BEFORE if plan.interval_end is None else plan.interval_end)
                shown = through, _greatest(through, watermark if rule.revises else emission.emitted)
        emission = replace(emission, watermark=watermark, shown=shown)
        if plan.range is None:
            return replace(emission, since=BEFORE if plan.replaces_state else before)
        return replace(emission, ends=(emission.after, AXIS_END if plan.builds_state else emission.through))


def _closed_by_file(plan: Plan, reading: Reading) -> tuple[int, ...]:
    """For each file, the instant through which windows were closed when its rows arrived, for the first time if they are reread."""
    if plan.found_closed is None:
        return (AXIS_BEGIN if plan.emitted is None else plan.emitted,) * len(reading.files)
    if not plan.found_closed:
        return (AXIS_BEGIN,) * len(reading.files)
    through = [version for version, _ in plan.found_closed]
    later = [plan.found_closed[bisect_left(through, file.version)][1] for file in reading.files[reading.snapshot_files :]]
    return (*(AXIS_BEGIN,) * reading.snapshot_files, *(AXIS_BEGIN if instant is None else instant for instant in later))
