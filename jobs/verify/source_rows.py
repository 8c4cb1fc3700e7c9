"""The rows of a source as it is now that published rows were made of, each with the instant through which windows were closed to it.

Left out are rows that are quarantined, rows that the filter leaves out, rows that no batch has read yet, and those of before the pipeline
began. Arrow reads those of a sample in this process: rows of its keys, in its times. Otherwise Spark does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from itertools import groupby
from operator import and_, itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from windowmill.checkpoints.quoting import backquoted
from windowmill.checkpoints.stores import is_table, table_at
from windowmill.jobs.batch.counted_rows import judged_otherwise, kept_out
from windowmill.jobs.conditions.truths import Conditions, every_condition
from windowmill.jobs.sources.base import AddedFile, Reading, SourceTable
from windowmill.jobs.sources.columns import Columns, used_columns
from windowmill.jobs.sources.delta_log import DeltaSource, spans
from windowmill.jobs.sources.plain_files import NotPlainError
from windowmill.jobs.sources.plain_rows import PlainRows, batches_of
from windowmill.jobs.sources.spark_files import read_rows, truth
from windowmill.jobs.sources.table_rows import Live, left, live_rows, queried
from windowmill.jobs.sources.unusable_rows import TOO_LATE
from windowmill.jobs.spark.access import frame_of
from windowmill.jobs.spark.spark_settings import reader_options, spark_path
from windowmill.windowing.columnar.added_columns import FILE, ID_HIGH, REASON, ROW, TIME, UNTIL_OF
from windowmill.windowing.columnar.rows import codes_of, distinct_values
from windowmill.windowing.errors import SourceFileError, SourceRangeGoneError, SpecError, UnsupportedError
from windowmill.windowing.grids import Grids
from windowmill.windowing.kernels.lift import condition_column
from windowmill.windowing.reference.events import ranks
from windowmill.windowing.watermark import LatenessRule

if TYPE_CHECKING:
    from windowmill.checkpoints.batches import Plan
    from windowmill.checkpoints.places import Runnable
    from windowmill.windowing.kernels.combine import Ints
    from windowmill.windowing.slicing.edges import WindowGrid
    from windowmill.windowing.spec import Pipeline


#: Times [begin, end).
Span = tuple[int, int]


@dataclass(frozen=True)
class SourceFiles:
    """The files that committed batches have read."""

    pipeline: Pipeline
    source: SourceTable
    plans: Sequence[Plan]  #: Those of the batches that built the state, oldest first.
    present: Sequence[AddedFile]  #: All files of the source at its version.
    files: Sequence[AddedFile]  #: Those of them that have been read.
    #: The commit of each of these files; null if it is unknown, or the file belongs to the snapshot.
    commits: Sequence[int | None]
    order_known: bool  #: Whether all commits that matter are known.
    changed: Sequence[tuple[int, str]] = ()  #: Versions since the pipeline began that changed rows, with their operation.
    #: Whether windows were computed from the source again, which may count rows that are in quarantine because they came too late.
    counts_late: bool = False

    @property
    def judges_late(self) -> bool:
        """Whether the order of arrival decides which windows count rows that came too late."""
        # A row that deletion vectors have removed from a file that stays may have moved the watermark.
        return self.counts_late and self.order_known and not self.source.deletion_vectors

    @classmethod
    def of(cls, pipeline: Pipeline, source: SourceTable, plans: Sequence[Plan]) -> SourceFiles:
        """The files that batches by ``plans``, oldest first, have read; at least one has built the state."""
        building = [plan for plan in plans if plan.builds_state]
        first, through = building[0], building[-1].to_version
        snapshot = max(first.from_version, -1 if first.snapshot is None else first.snapshot)
        # A backfill in the order of arrival refuses the rows that runs have refused, unless the settings of time have changed.
        otherwise = judged_otherwise(pipeline, building)
        counts_late = any(plan.fills or (plan.range and plan.rereads and (plan.snapshot is not None or otherwise)) for plan in plans)
        present = source.snapshot(source.version)
        try:
            versions = list(source.versions(snapshot, source.version))
            before = {file.path for file in source.snapshot(first.from_version)} if first.from_version >= 0 else set()
        except SourceRangeGoneError:
            if first.from_version >= 0:
                raise
            return cls(pipeline, source, building, present, present, [None] * len(present), order_known=False, counts_late=counts_late)
        brought = {file.path: version.version for version in versions if not version.changes for file in version.added}
        read = [file for file in present if file.path not in before and brought.get(file.path, -1) <= through]
        held = {file.path for file in present}
        # A file that has been rewritten is gone; its rows are in another one, among rows of other commits.
        known = all(path in held for path, version in brought.items() if version <= through)
        # A restatement, or a backfill from the rows of now, has judged no row as late.
        rebuilt = any(plan.snapshot not in (None, first.snapshot) for plan in plans)
        # Which rows were late is known by the settings of now alone.
        rebuilt = rebuilt or otherwise
        return cls(
            pipeline,
            source,
            building,
            present,
            read,
            [brought.get(file.path) for file in read],
            order_known=known and not rebuilt,
            changed=[(version.version, version.operation) for version in versions if version.changes],
            counts_late=counts_late,
        )

    def overlapping(self, windows: Sequence[Span]) -> list[int]:
        """Indices of the files that may have rows in one of ``windows``."""
        time, bounds = self.pipeline.time, np.array(windows, np.int64).reshape(-1, 2)
        starts = spans(self.source, self.files, time.column, time.tick_us)
        ends = starts if time.end is None else spans(self.source, self.files, time.end, time.tick_us)
        return [
            n
            for n, (start, end) in enumerate(zip(starts, ends, strict=True))
            if start is None or end is None or np.any(_overlap(bounds, start[0], max(start[2], end[2])))
        ]

    def closed_through(self, greatest: Mapping[int | None, int]) -> list[int | None]:
        """For each file the instant through which windows were closed to its rows, null for none, by the greatest time of each commit."""
        if not self.order_known:
            return [None] * len(self.files)
        time = self.pipeline.time
        if time.watermark == "data_interval_end":
            return [None if commit is None else next(p.emitted for p in self.plans if commit <= p.to_version) for commit in self.commits]
        rule = LatenessRule.of(self.pipeline)
        closed: dict[int | None, int | None] = {None: None}
        seen = greatest.get(None)
        for version in sorted({commit for commit in self.commits if commit is not None}):
            closed[version] = None if seen is None else rule.closed_after(seen)
            seen = max((time for time in (seen, greatest.get(version)) if time is not None), default=None)
        return [closed[commit] for commit in self.commits]

    def closed_by_statistics(self, windows: Sequence[Span], *, every_row_counts: bool) -> list[int | None] | None:
        """As :meth:`closed_through`, as far as it matters to ``windows``; null if the statistics of the files do not decide it.

        ``every_row_counts`` is whether each row with an event time moves the watermark, so that the greatest one of a file does.
        """
        if not self.order_known or self.pipeline.time.watermark == "data_interval_end":
            return self.closed_through({})
        found = spans(self.source, self.files, self.pipeline.time.column, self.pipeline.time.tick_us)
        known = [span for span in found if span is not None]
        if len(known) < len(found):
            return None
        least, most = (self.closed_through(self._greatest([span[place] for span in known])) for place in (1, 2))
        least = least if every_row_counts else [None] * len(known)
        bounds = np.array(windows, np.int64).reshape(-1, 2)
        for span, low, high in zip(known, least, most, strict=True):
            ends = bounds[_overlap(bounds, span[0], span[2]), 1]
            if high is not None and np.any((ends <= high) & (True if low is None else ends > low)):
                return None
        return least

    def _greatest(self, times: Sequence[int]) -> dict[int | None, int]:
        """The greatest of ``times``, one of each file, by commit."""
        greatest: dict[int | None, int] = {}
        for commit, time in zip(self.commits, times, strict=True):
            greatest[commit] = max(greatest.get(commit, time), time)
        return greatest


def _overlap(windows: np.ndarray, first: int, last: int) -> np.ndarray:
    """Mask of the ``windows``, shape (n, 2), that hold one of the instants from ``first`` to ``last``."""
    return np.asarray((windows[:, 0] <= last) & (windows[:, 1] > first), np.bool_)


#: Most rows that are kept; where windows have more, Spark reads.
MAX_KEPT = 2_000_000


@dataclass(frozen=True)
class Reaches:
    """The rows that windows ask for, by key and time."""

    keys: pa.Table  #: The key of each window, with the types of the source.
    #: ``begins``, ``ends``: times [begin, end) of its rows; int64, shape (n,).
    begins: Ints
    ends: Ints

    @classmethod
    def of(cls, keys: pa.Table, reaches: Sequence[tuple[int, int]], types: Mapping[str, pa.DataType]) -> Reaches:
        """For windows with these ``keys``, whose columns are cast to ``types``, each with its times."""
        begins, ends = np.array(reaches, np.int64).reshape(-1, 2).T
        # Without columns Arrow would lose the number of rows.
        return cls(keys.cast(pa.schema([(name, types[name]) for name in keys.column_names])) if keys.num_columns else keys, begins, ends)

    def __len__(self) -> int:
        return len(self.begins)

    def pairs(self, rows: pa.Table) -> tuple[Ints, Ints]:
        """The indices of windows and ``rows`` that belong together, in order of windows, then of rows."""
        names = self.keys.column_names
        codes = codes_of([self.keys, rows.select(names)], names)[0] if names else np.zeros(len(self) + len(rows), np.int64)
        own, of_rows = codes[: len(self)], codes[len(self) :]
        order = np.argsort(of_rows, kind="stable")
        first, behind = (np.searchsorted(of_rows[order], own, side=side) for side in ("left", "right"))
        time = rows.column(TIME).to_numpy()
        stop = np.maximum(rows.column(UNTIL_OF).to_numpy(), time + 1)
        windows, places = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for n in range(len(self)):
            found = order[first[n] : behind[n]]
            found = found[(time[found] < self.ends[n]) & (stop[found] > self.begins[n])]
            windows.append(np.full(len(found), n))
            places.append(found)
        return np.concatenate(windows), np.concatenate(places)


@dataclass(frozen=True)
class SourceCopies:
    """The duplicates among the rows of a source, by the definition: a search among the rows that have been applied before."""

    places: frozenset[tuple[int, int]]  #: Index of the file and of the row of each.
    #: By key, the sorted times of rows that may be duplicates or not, as the order in which they arrived is unknown.
    doubtful: Mapping[tuple[Any, ...], Ints]

    @classmethod
    def of(cls, pipeline: Pipeline, files: SourceFiles, rows: Sequence[Mapping[str, Any]]) -> SourceCopies:
        """Those among ``rows``, which have all rows that share values with another."""
        dedup, within, known = pipeline.dedup, pipeline.remembers_for, files.order_known
        assert dedup is not None
        lateness = pipeline.time.lateness.elapsed()
        grids = Grids.of(pipeline).grids if all(window.on_grid for window in pipeline.windows) else ()
        places, doubtful = set[tuple[int, int]](), dict[tuple[Any, ...], list[int]]()
        for _, group in groupby(sorted(rows, key=lambda row: (row[ID_HIGH], _order(pipeline, files, row))), key=itemgetter(ID_HIGH)):
            applied, every = list[tuple[int | None, int]](), list(group)
            for row in every:
                commit, until, closed = files.commits[row[FILE]] if known else None, row[UNTIL_OF], row[CLOSED]
                if any(
                    (commit == other or closed is None or closed + lateness <= at + within)
                    and (dedup.within is None or abs(until - at) <= within)
                    for other, at in applied
                ):
                    places.add((row[FILE], row[ROW]))
                elif not grids or closed is None or _is_open(grids, row, closed):
                    applied.append((commit, until))
            if not known and (len(applied) != 1 or len({row[TEXT] for row in every}) > 1):
                for row in every:
                    doubtful.setdefault(tuple(row[name] for name in pipeline.keys), []).append(row[TIME])
        return cls(frozenset(places), {key: np.sort(times) for key, times in doubtful.items()})

    def left(self, rows: pa.Table) -> pa.Table:
        """Those of ``rows`` that are no duplicates."""
        pairs = zip(rows.column(FILE).to_pylist(), rows.column(ROW).to_pylist(), strict=True)
        return rows.filter(pa.array([place not in self.places for place in pairs], pa.bool_()))


def _is_open(grids: Sequence[WindowGrid], row: Mapping[str, Any], closed: int) -> bool:
    """Whether a window on ``grids`` counts ``row`` although windows are ``closed`` through an instant, or none holds its time."""
    last = np.array([max(row[UNTIL_OF] - 1, row[TIME])])
    end = max(int(grid.last_end_holding(last)[0]) for grid in grids)
    return end > closed or end <= row[TIME]


def _order(pipeline: Pipeline, files: SourceFiles, row: Mapping[str, Any]) -> tuple[Any, ...]:
    commit = files.commits[row[FILE]] if files.order_known else None
    return (-1 if commit is None else commit, row[TIME], ranks([row[name] for name in pipeline.time.tie_break]), row[FILE], row[ROW])


@dataclass(frozen=True)
class SampledRows:
    """Rows of a source, with the columns that a pipeline uses, ``TIME``, ``UNTIL_OF``, ``FILE``, ``ROW``, and one for each condition."""

    rows: pa.Table  #: Those that were asked for.
    latest: pa.Table  #: One row with the greatest event time from each file that was read.


@dataclass(frozen=True)
class LocalReader:
    """Reads ``files`` of a source as of ``now_us``; ``refused`` are quarantine's reasons of rows that are usable by themselves."""

    runnable: Runnable
    files: SourceFiles
    now_us: int
    refused: frozenset[str]
    copies: Callable[[], SourceCopies | None]  #: Finds the duplicates, which are left out; null without ``dedup``.

    @property
    def _pipeline(self) -> Pipeline:
        return self.runnable.pipeline

    @property
    def is_plain(self) -> bool:
        """Whether this process can read the rows, as far as is known without opening the files."""
        return self._plain is not None

    @cached_property
    def _plain(self) -> PlainRows | None:
        return PlainRows.of(self._pipeline, self.files.source, Reading(tuple(self.files.files)))

    @cached_property
    def _live(self) -> Live:
        source = self.files.source
        return live_rows(source, source.version) if isinstance(source, DeltaSource) and source.deletion_vectors else {}

    def read(self, chosen: Sequence[int], columns: Sequence[str], reaches: Sequence[Reaches]) -> SampledRows | None:
        """Rows of files ``chosen`` by index that ``reaches`` ask for; null if many, or for Spark. A file that is gone raises an error."""
        if self._plain is None:
            return None
        copies = self.copies()
        conditions, kept, latest, n_kept = self._pipeline.conditions(), list[pa.Table](), list[pa.Table](), 0
        own = [(name, self._plain.types[name]) for name in columns]
        own += [(TIME, pa.int64()), (UNTIL_OF, pa.int64()), (FILE, pa.int32()), (ROW, pa.int64())]
        schema = pa.schema([*own, *((condition_column(text), pa.bool_()) for text in conditions)])
        try:
            for rows in self._parts(chosen, columns, conditions, schema):
                places = distinct_values(np.concatenate([each.pairs(rows)[1] for each in reaches]))
                own = rows.take(pa.array(places))
                kept.append(own if copies is None else copies.left(own))
                if len(rows):
                    latest.append(rows.slice(int(np.argmax(rows.column(TIME).to_numpy())), 1))
                n_kept += len(places)
                if n_kept > MAX_KEPT:
                    return None
        except (NotPlainError, SpecError, UnsupportedError, OSError, pa.ArrowException):  # Spark reads them, or says what is wrong
            gone = self.files.source.missing([self.files.files[n] for n in chosen])
            if gone is not None:
                path, version = self.files.source.path, self.files.source.version
                raise SourceFileError(
                    f"source {path}: the file {gone.path} of version {version} is gone; bring it back, or restore a version of the source "
                    "whose files are there, and verify again"
                ) from None
            return None
        return SampledRows(*(pa.concat_tables([schema.empty_table(), *parts]) for parts in (kept, latest)))

    def _parts(self, chosen: Sequence[int], columns: Sequence[str], conditions: Sequence[str], schema: pa.Schema) -> Iterator[pa.Table]:
        """The usable rows of each of the ``chosen`` files, some at a time."""
        plain, quarantined = self._plain, None
        assert plain is not None
        if self.refused:
            looked_up = frozenset[str]() if plain.steps is None else plain.steps.looked_up
            known_by = [name for name in columns if name.lower() not in looked_up]
            quarantined = kept_out(self.runnable, known_by, {file.path for file in self.files.present}, self.refused)
        latest = self._pipeline.time.latest(self.now_us)
        # If the quarantine does not say which of several equal rows it holds, they are the last ones.
        for n in reversed(chosen):
            file, first = self.files.files[n], 0
            for batch in batches_of(plain.files[n], plain.form, plain.needed(columns)):
                rows = pa.Table.from_batches([batch]).append_column(ROW, pa.array(np.arange(first, first + batch.num_rows)))
                first += batch.num_rows
                rows = plain.evaluated(left(rows, self._live.get(file.path)), columns, conditions, latest)
                rows = rows.filter(pc.is_null(rows.column(REASON)))
                if quarantined is not None and len(rows):
                    staying = quarantined.split(file, rows.select([*columns, ROW]))[0].column(ROW)
                    rows = rows.filter(pc.is_in(rows.column(ROW), staying.combine_chunks()))
                rows = rows.append_column(FILE, pa.repeat(pa.scalar(n, pa.int32()), len(rows)))
                rows = rows if UNTIL_OF in rows.column_names else rows.append_column(UNTIL_OF, rows.column(TIME))
                yield rows.select(schema.names).cast(schema)


#: Instant through which windows were closed to a row; null if none were. Text by which a row is found in the quarantine.
CLOSED, TEXT = "_ closed through", "_ text"
#: Reasons of rows that are usable by themselves.
_REFUSED = (TOO_LATE, "future_time")
_PLACE, _TIMES, _NUMBER, _ROW_OF, _REASON = "_ place of file", "_ times", "_ number", "_ row of", "_ reason"


@dataclass(frozen=True)
class Arrival:
    """How the rows of a source arrived."""

    #: For each file the instant through which windows were closed to its rows; null if none were, or it does not matter.
    closed: Sequence[int | None]
    #: Index of file and row of a row with the greatest event time of each commit; none if only statistics were looked at.
    latest: Sequence[tuple[int, int]] = ()


@dataclass(frozen=True)
class RereadRows:
    """Reads rows of the ``files`` of a source, which are usable at the instant ``now_us``."""

    #: Starts Spark; its argument is whether this process can read the rows, so that Spark has few to compute.
    start: Callable[[bool], SparkSession]
    runnable: Runnable
    files: SourceFiles
    now_us: int

    @cached_property
    def spark(self) -> SparkSession:
        return self.start(self.local.is_plain)

    @cached_property
    def local(self) -> LocalReader:
        """Reads rows in this process, as far as Arrow can."""
        return LocalReader(self.runnable, self.files, self.now_us, self._kept_out, lambda: self.copies)

    @cached_property
    def copies(self) -> SourceCopies | None:
        """Duplicates among the rows; null without ``dedup``. Spark finds the rows that share values with another."""
        dedup, every = self.pipeline.dedup, range(len(self.files.files))
        if dedup is None:
            return None
        by = [F.col(backquoted(name)) for name in dedup.by]
        rows = self.read(every, self.survey().closed).where(reduce(and_, (column.isNotNull() for column in by)))
        several = rows.withColumn(_TIMES, F.count(F.lit(1)).over(Window.partitionBy(*by))).where(F.col(_TIMES) > 1)
        # A number for each of the values, which Spark compares.
        values = F.min(F.col(FILE).cast("long") * (1 << 40) + F.col(ROW)).over(Window.partitionBy(*by))
        names = dict.fromkeys([*self.pipeline.keys, *self.pipeline.time.tie_break, FILE, ROW, TIME, UNTIL_OF, CLOSED])
        found = several.select(values.alias(ID_HIGH), _text_of(self.columns).alias(TEXT), *map(backquoted, names)).toArrow()
        return SourceCopies.of(self.pipeline, self.files, found.to_pylist())

    @property
    def pipeline(self) -> Pipeline:
        return self.runnable.pipeline

    @property
    def source(self) -> SourceTable:
        return self.files.source

    @property
    def types(self) -> Mapping[str, pa.DataType]:
        return self._struct.arrow

    @cached_property
    def columns(self) -> list[str]:
        """The source's columns by which results are computed; rows that agree in them are the same to a pipeline."""
        return used_columns(self.pipeline, self._struct.struct.names)

    @cached_property
    def _struct(self) -> Columns:
        return Columns.of_source(self.source)

    @cached_property
    def refused(self) -> set[str]:
        """Those of the reasons ``_REFUSED`` that rows in quarantine have."""
        place = self.runnable.places.quarantine
        if not is_table(place):
            return set()
        reasons = ", ".join(f"'{reason}'" for reason in _REFUSED)
        found = queried(table_at(place), {"reason": pa.string()}, f"reason IN ({reasons})", {"reason": "reason"})
        return {reason for rows in found for reason in rows.column("reason").unique().to_pylist()}

    @property
    def _kept_out(self) -> frozenset[str]:
        """Reasons for which rows in quarantine are left out; those that came too late are judged again where windows may count them."""
        return frozenset(self.refused - {TOO_LATE} if self.files.judges_late else self.refused)

    @cached_property
    def quarantined(self) -> DataFrame | None:
        """Texts of the rows that were usable by themselves and were not applied, with the reason; null if there are none."""
        if not self._kept_out:
            return None
        place = self.runnable.places.quarantine
        table = self.spark.read.format("delta").options(**reader_options(place)).load(spark_path(place))
        row = F.from_json("row", self._struct.struct)
        table = table.where(F.col("reason").isin(*self._kept_out)).select(row.alias(_ROW_OF), F.col("reason").alias(_REASON))
        return table.select(f"{backquoted(_ROW_OF)}.*", _REASON).select(_text_of(self.columns).alias(TEXT), _REASON)

    def arrival(self, windows: Sequence[Span], *, surveyed: bool) -> Arrival | None:
        """How the rows arrived as far as it matters to ``windows``, by statistics; null if these are missing, or if ``surveyed``."""
        pipeline = self.pipeline
        left_out = (
            self.runnable.source.filter is not None or bool(pipeline.steps),
            self.source.deletion_vectors,
            pipeline.time.end is not None,
            Conditions.of(every_condition(pipeline), self._struct.in_conditions).may_fail,
            "future_time" in self.refused,
        )
        closed = None if surveyed else self.files.closed_by_statistics(windows, every_row_counts=not any(left_out))
        return None if closed is None else Arrival(closed)

    def survey(self) -> Arrival:
        """How the rows arrived; reads the event times of all files."""
        every = range(len(self.files.files))
        rows = self.read(every, [None] * len(every))
        # For each file its greatest event time, and a row that has it.
        return self.arrived({row[0]: (row[1][0], row[1][1]) for row in rows.groupBy(FILE).agg(F.max(F.struct(TIME, ROW))).collect()})

    def arrived(self, greatest: Mapping[int, tuple[int, int]]) -> Arrival:
        """How the rows arrived, given for each file its greatest event time and the index of a row that has it."""
        latest = dict[int | None, tuple[int, int, int]]()
        for file, (time, row) in greatest.items():
            commit = self.files.commits[file] if self.files.order_known else None
            latest[commit] = max(latest.get(commit, (time, file, row)), (time, file, row))
        closed = self.files.closed_through({commit: time for commit, (time, _, _) in latest.items()})
        return Arrival(closed, [(file, row) for _, file, row in latest.values()])

    def read(
        self, chosen: Sequence[int], closed: Sequence[int | None], select: Callable[[DataFrame], DataFrame] | None = None
    ) -> DataFrame:
        """The rows with an event time of the files with the indices ``chosen``.

        They have the source's columns, event time, end, index of file and of the row in it, and ``CLOSED`` by ``closed``, which has
        an item for each file. ``select`` is applied to rows of the source before they have event times, which tasks of Python give them.
        """
        files, as_of = [self.files.files[n] for n in chosen], None
        places = list(range(len(files)))
        if self.source.deletion_vectors and files:
            # Delta's reader, which applies them, reads the whole table.
            present, as_of = {file.path: n for n, file in enumerate(self.files.present)}, self.source.version
            places, files = [present[file.path] for file in files], list(self.files.present)
        reading = Reading(tuple(files), len(files), as_of)
        rows = read_rows(self.spark, self.source, reading, self.runnable, now_us=self.now_us, select=select).where(F.col(REASON).isNull())
        rows = rows if self.pipeline.time.end else rows.withColumn(UNTIL_OF, F.col(TIME))
        by_place = {
            _PLACE: pa.array(places, pa.int32()),
            FILE: pa.array(chosen, pa.int32()),
            CLOSED: pa.array([closed[n] for n in chosen], pa.int64()),
        }
        known = F.broadcast(frame_of(self.spark, pa.table(by_place)))
        rows = rows.withColumnRenamed(FILE, _PLACE).join(known, _PLACE).drop(_PLACE)
        # Rows that were too far in the future for the run that read them have moved no watermark.
        if self.quarantined is None or "future_time" not in self.refused:
            return rows
        ahead = self.quarantined.where(F.col(_REASON) == "future_time").select(TEXT).distinct()
        return rows.withColumn(TEXT, _text_of(self.columns)).join(F.broadcast(ahead), TEXT, "left_anti").drop(TEXT)

    def without_quarantined(self, rows: DataFrame, place: Sequence[str]) -> DataFrame:
        """``rows`` without duplicates, and without as many equal ones as are in quarantine, most closed first.

        ``place`` brings equal rows together.
        """
        if self.copies is not None and self.copies.places:
            files, numbers = zip(*self.copies.places, strict=True)
            copies = pa.table({FILE: pa.array(files, pa.int32()), ROW: pa.array(numbers, pa.int64())})
            rows = rows.join(F.broadcast(frame_of(self.spark, copies)), [FILE, ROW], "left_anti")
        if self.quarantined is None:
            return rows
        counted = self.quarantined.groupBy(TEXT).agg(F.count(F.lit(1)).alias(_TIMES))
        order = Window.partitionBy(*place, TEXT).orderBy(F.col(CLOSED).desc_nulls_last(), F.col(FILE).desc(), F.col(ROW).desc())
        counted_rows = rows.withColumn(TEXT, _text_of(self.columns)).join(F.broadcast(counted), TEXT, "left")
        numbered = counted_rows.withColumn(_NUMBER, F.when(F.col(_TIMES).isNotNull(), F.row_number().over(order)))
        return numbered.where(F.col(_TIMES).isNull() | (F.col(_NUMBER) > F.col(_TIMES))).drop(TEXT, _TIMES, _NUMBER)


def _text_of(columns: Sequence[str]) -> Column:
    """The text of a row that has these columns, as quarantined rows have it."""
    return F.to_json(F.struct(*(F.col(backquoted(name)) for name in columns)), {"ignoreNullFields": "false"})


def condition_names(pipeline: Pipeline) -> Mapping[str, str]:
    """For each condition of the spec the name of the column that says where it holds."""
    return {condition: f"_holds{n}" for n, condition in enumerate(pipeline.conditions())}


def with_conditions(rows: DataFrame, pipeline: Pipeline, types: Mapping[str, pa.DataType]) -> tuple[DataFrame, Mapping[str, str]]:
    """``rows`` with a column for each condition of the spec; and the names of these columns by condition."""
    names = condition_names(pipeline)
    held = {name: F.coalesce(truth(text, types), F.lit(False)) for text, name in names.items()}
    # Over Connect no columns are none that can be added.
    return (rows.withColumns(held) if held else rows), names
