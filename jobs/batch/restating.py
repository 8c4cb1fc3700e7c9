"""What a restatement does before and after its computation: selects the rows to read, keeps other state, publishes windows that changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windowmill.checkpoints.batches import Changes, effective_batches, state_plans
from windowmill.checkpoints.data_files import DataFile, remove, write_files
from windowmill.checkpoints.ledger import Ledger
from windowmill.checkpoints.places import Runnable
from windowmill.checkpoints.plans import RestatePlan
from windowmill.checkpoints.quoting import sql_text
from windowmill.checkpoints.state.compaction import keep, replacing
from windowmill.checkpoints.stores import is_table, table_at
from windowmill.jobs.batch.corrections import Corrections, corrections
from windowmill.jobs.batch.counted_rows import table_rows, uncounted_changes, were_missed
from windowmill.jobs.batch.job import ComputedBatch
from windowmill.jobs.batch.progress import Progress, Restated
from windowmill.jobs.batch.restated_rows import (
    Known,
    Scope,
    latest_inserted,
    only_of_filter,
    read_as_of,
    remaining_quarantine,
    remove_rows,
    touched_rows,
    write_rows,
)
from windowmill.jobs.batch.window_history import Stretch, left_out
from windowmill.jobs.schedulers.exchange import read_files
from windowmill.jobs.sources.base import Reading, SourceTable
from windowmill.jobs.sources.columns import Columns
from windowmill.jobs.sources.delta_log import DeltaSource
from windowmill.jobs.sources.folder import FolderSource
from windowmill.jobs.sources.table_rows import TableRows, ends_in_sql, queried
from windowmill.windowing.axis import AXIS_BEGIN, AXIS_END
from windowmill.windowing.columnar.added_columns import RETRACTED, TIME
from windowmill.windowing.columnar.results import result_schema
from windowmill.windowing.columnar.rows import codes_of
from windowmill.windowing.counts import WindowRows
from windowmill.windowing.errors import OutOfTurnError, SourceRangeGoneError, UnsupportedError
from windowmill.windowing.spec import Pipeline


@dataclass(frozen=True)
class Restatement:
    """A restatement by ``plan``."""

    runnable: Runnable
    plan: RestatePlan
    source: SourceTable
    #: The keys and times that it recomputes.
    scope: Scope
    #: How many rows it takes out of quarantine, by what they are known.
    taken: Mapping[Known, int]
    #: Whether the state is that of the source's rows already.
    state_is_current: bool
    #: Reads the source.
    rows: TableRows
    #: As of :func:`.left_out`.
    left_out: Mapping[str, Sequence[Stretch]]
    #: Files of a folder whose rows in quarantine are not theirs any more.
    delivered_again: frozenset[str]

    @classmethod
    def of(cls, runnable: Runnable, plan: RestatePlan, source: SourceTable, ledger: Ledger, progress: Progress) -> Restatement:
        """The restatement of ``plan``; finds the rows that the plan restates.

        Raises ``SourceRangeGoneError`` if the rows that a version changed cannot be read any more; ``UnsupportedError`` if the source is
        neither a Delta table nor a folder.
        """
        if not isinstance(source, DeltaSource | FolderSource) or (plan.changed is not None and not isinstance(source, DeltaSource)):
            raise UnsupportedError(
                f"source {source.path}: is no Delta table, of whose versions `windowmill restate` takes up what they changed, and no "
                "folder of files, of which it takes --file, --late, --from and --to; compute it in a new sink instead, with a longer "
                "lateness if rows came too late"
            )
        rows = table_rows(runnable.pipeline, replace(source, schema_json=plan.source_schema), progress)
        again = frozenset({*plan.files, *restated_files(ledger)})
        touched, taken = touched_rows(runnable, rows, plan, again)
        if plan.late and were_missed(ledger):
            touched = None  # which keys rows missed windows of is not stored
        types = Columns.of(plan.source_schema).arrow
        uncounted = _uncounted(source, ledger, plan.to_version)
        current, (first, last) = not taken and uncounted == [], plan.changed or (0, -1)
        # Whether earlier batches have ignored changes that the plan does not name.
        ignored = uncounted is None or any(each <= plan.from_version and not first <= each <= last for each in uncounted)
        scope = Scope.of(runnable.pipeline, plan, types, touched, ignored=ignored)
        return cls(runnable, plan, rows.source, scope, taken, current, rows, left_out(runnable.pipeline, ledger), again)

    @property
    def touches_nothing(self) -> bool:
        """Whether it has no rows to restate, and no version to read."""
        unread = self.plan.to_version > self.plan.from_version and not self.plan.late
        return self.scope.touched is not None and not self.scope.touched.num_rows and not unread

    def changes_nothing(self, finished: ComputedBatch) -> bool:
        """Whether the ``finished`` batch leaves the pipeline's tables, and its progress, as they are."""
        plan = self.plan
        return not finished.changes and plan.to_version == plan.from_version and finished.emission.seen == plan.seen

    def write_rows(self) -> tuple[DeltaSource, Reading]:
        """Write the rows that the batch reads to files of their own; returns a source of these files, and a reading of all of them."""
        return write_rows(self.runnable, self.rows, self.plan, self.scope, self.delivered_again)

    def remove_rows(self) -> None:
        """Remove what :meth:`write_rows` has written."""
        remove_rows(self.runnable, self.plan)

    def finished(self, computed: ComputedBatch) -> tuple[ComputedBatch, Restated]:
        """The ``computed`` batch with the changes to publish: without result rows of windows that have not changed."""
        changes = dict(computed.changes)
        built = changes.pop("state", None)
        found = self._corrections(changes.get("sink", Changes()).adds)
        remove(self.runnable.sink_path, changes.pop("sink", Changes()).adds)
        differs = bool(len(found.changed) or len(found.retracted))
        if self.scope.rebuilds and (differs or not self.state_is_current):
            replaced = replacing(self.runnable.places.state, built, self._kept_state())
            changes |= {} if replaced is None else {"state": replaced}
        elif built is not None:
            remove(self.runnable.places.state, built.files)
        if differs:
            retracted = self._written(found.retracted)
            changes["sink"] = Changes.of(found.retracted.schema, self._written(found.changed), kept=retracted, widens=True)
        if self.taken:
            changes["quarantine"] = self._quarantine(changes.get("quarantine", Changes()).adds)
        restated = Restated(self._n_keys, len(found.changed) + len(found.retracted), len(found.retracted))
        emission = replace(computed.emission, seen=self._seen(computed))
        return replace(computed, emission=emission, changes=changes, counts=replace(computed.counts, windows=_windows(found))), restated

    def _seen(self, computed: ComputedBatch) -> int | None:
        """The greatest event time with that of the rows that the versions changed, which may have inserted some."""
        seen, touched, inserted = computed.emission.seen, self.scope.touched, computed.seen
        if touched is None or self.plan.changed is None:
            return seen
        if only_of_filter(self._pipeline, self.source):
            greatest = pc.max(touched.column(TIME)).as_py()
            if greatest is None or (seen is not None and greatest <= seen):
                return seen
            inserted = latest_inserted(self._pipeline, self.rows, self.plan, self.plan.changed)
        return max((at for at in (seen, inserted) if at is not None), default=None)

    @property
    def _pipeline(self) -> Pipeline:
        return self.runnable.pipeline

    @property
    def _n_keys(self) -> int | None:
        touched = self.scope.touched
        if touched is None:
            return None
        return len(self.scope.keys(self._pipeline.keys)) if self._pipeline.keys else min(1, len(touched))

    @cached_property
    def _schema(self) -> pa.Schema:
        return result_schema(self._pipeline, Columns.of(self.plan.source_schema).arrow)

    def _kept_state(self) -> tuple[DataFile, ...]:
        """The stored state of keys that are not touched."""
        if self.scope.touched is None:
            return ()
        return keep(self.runnable.places.state, self.scope.keys(self._pipeline.keys), batch=self.plan.batch, attempt=self.plan.attempt)

    def _corrections(self, files: tuple[DataFile, ...]) -> Corrections:
        schema = self._schema.insert(self._schema.get_field_index("revision") + 1, pa.field(RETRACTED, pa.bool_()))
        found = read_files(self.runnable.sink_path, files, self._schema.names)
        new = pa.Table.from_batches([rows.cast(self._schema) for rows in found], self._schema)
        types = {field.name: field.type for field in schema}
        parts = [schema.empty_table()]
        if is_table(self.runnable.sink_path):
            table = table_at(self.runnable.sink_path)
            there = {name: name for name in pa.schema(table.schema().to_arrow()).names}
            parts += (self.scope.of_keys(rows, self._pipeline.keys) for rows in queried(table, types, self._shown_where(), there))
        shown = pa.concat_tables(parts)
        begin, end = self.plan.range_from, self.plan.range_to
        within = AXIS_BEGIN if begin is None else begin, AXIS_END if end is None else end
        return corrections(self._pipeline, self._restated(new), self._restated(shown), self.plan.batch, within)

    def _shown_where(self) -> str:
        """The SQL condition for rows of the sink that the restatement may change."""
        end = ends_in_sql(timed=not self._pipeline.time.integer_axis)
        # Rows of windows that the spec has dropped stay.
        named = f"window IN ({', '.join(sql_text(window.name) for window in self._pipeline.windows)})"
        bounds: list[tuple[str, int | None]] = [] if self.scope.rebuilds else [(">", self.scope.begin)]
        # Other windows are identified by trigger or start alone: the row that the sink has may end outside of the range.
        if all(window.on_grid for window in self._pipeline.windows):
            bounds += [("<=", self.plan.range_to), (">", self.plan.range_from)]
        return " AND ".join([named, *(f"{end} {sign} {at}" for sign, at in bounds if at is not None)])

    def _restated(self, rows: pa.Table) -> pa.Table:
        """Those of ``rows`` whose windows have been shown, on grids those that hold a touched row."""
        ends, after = rows.column("window_end").cast(pa.int64()), self.plan.shown_after
        chosen = np.ones(len(rows), np.bool_) if after is None else pc.greater(ends, after).to_numpy()
        for name, first, last in ((name, *stretch) for name, stretches in self.left_out.items() for stretch in stretches):
            within = pc.and_(pc.greater(ends, first), pc.less_equal(ends, last))
            chosen = chosen & ~pc.and_(pc.equal(rows.column("window"), name), within).to_numpy()
        touched = self.scope.touched
        if touched is not None and self._pipeline.time.end is None:
            # A window on a grid has a row only if it holds an event, unless it fills gaps.
            grids = [window.name for window in self._pipeline.windows if window.on_grid and not window.fills_gaps]
            of_grid = pc.is_in(rows.column("window"), pa.array(grids, pa.string())).to_numpy()
            chosen &= ~of_grid | _holding(rows, touched, self._pipeline.keys)
        return rows.filter(pa.array(chosen))

    def _written(self, rows: pa.Table) -> tuple[DataFile, ...]:
        return write_files(self.runnable.sink_path, rows.schema, [rows], batch=self.plan.batch, attempt=self.plan.attempt)

    def _quarantine(self, added: tuple[DataFile, ...]) -> Changes:
        """Changes of the quarantine: rows that count from now on are removed, those that the batch has ``added`` come."""
        place = self.runnable.places.quarantine
        rows, paths = remaining_quarantine(place, self.rows, read_as_of(self.plan), Counter(self.taken))
        kept = write_files(place, rows.schema, [rows], batch=self.plan.batch, attempt=self.plan.attempt)
        return Changes.of(rows.schema, added, kept=kept, removes=paths)


def _uncounted(source: SourceTable, ledger: Ledger, through: int) -> list[int] | None:
    """The versions up to ``through`` with changes that no batch has counted; null if the log is gone."""
    try:
        return [each.version for each in uncounted_changes(state_plans(ledger.batches()), source, through, ahead=False)]
    except SourceRangeGoneError:
        return None


def _holding(rows: pa.Table, touched: pa.Table, keys: tuple[str, ...]) -> np.ndarray:
    """Mask of the result ``rows`` whose windows hold one of the ``touched`` rows of their key; O(n log n)."""
    codes, _ = (
        codes_of([touched.select(list(keys)), rows.select(list(keys))], list(keys))
        if keys
        else (np.zeros(len(touched) + len(rows), np.int64), 1)
    )
    times, n = touched.column(TIME).to_numpy(), len(touched)
    points = np.unique(times)
    held = np.sort(codes[:n] * (len(points) + 1) + np.searchsorted(points, times))
    bounds = [pc.fill_null(rows.column(name).cast(pa.int64()), 0).to_numpy() for name in ("window_start", "window_end")]
    first, last = (np.searchsorted(held, codes[n:] * (len(points) + 1) + np.searchsorted(points, bound)) for bound in bounds)
    return np.asarray(first < last, np.bool_)


def _windows(found: Corrections) -> dict[str, WindowRows]:
    """Number of the rows to publish by window."""
    columns = [
        pa.table({"window": rows.column("window"), "end": rows.column("window_end").cast(pa.int64())})
        for rows in (found.changed, found.retracted)
    ]
    grouped = pa.concat_tables(columns).group_by("window").aggregate([("end", "count"), ("end", "min"), ("end", "max")])
    return {row["window"]: WindowRows(row["end_count"], row["end_min"], row["end_max"]) for row in grouped.to_pylist()}


def corrected(
    runnable: Runnable, ledger: Ledger, source: SourceTable, files: Sequence[str], after: int, ends: tuple[int | None, int | None]
) -> tuple[FolderSource, Sequence[str], int]:
    """The source, the paths of ``files`` in it, and the last version that changed one; ``after`` is the last one that has been read.

    Raises ``UnsupportedError`` if it is no folder, or windows that are recomputed would lose rows of other files that are gone. ``ends``
    say of which windows the user wants that. Raises ``OutOfTurnError`` if other versions that have not been read come before.
    """
    if not isinstance(source, FolderSource):
        raise UnsupportedError(
            f"pipeline {runnable.name}: --file names files of a folder, and the source {source.path} is none; `windowmill restate` by "
            "--versions, or without options, takes up what versions of a table changed"
        )
    through, paths = after, list[str]()
    if files:
        source, paths, through = source.corrected(files, after)
    other = next((file for file in source.seen[after + 1 : through + 1] if file.path not in paths and file.event != "forgotten"), None)
    if other is not None:
        first = "name it by --file, too" if other.event in ("changed", "removed") else "`windowmill run --max-batches 1` reads it"
        raise OutOfTurnError(f"pipeline {runnable.name}: {other.path} ({other.event}) comes before; {first}, then restate")
    lost = sorted(source.removed(through) - {*paths, *restated_files(ledger)})
    if lost and ends == (None, None):
        more = f" and {len(lost) - 1:,} more" if len(lost) > 1 else ""
        raise UnsupportedError(
            f"pipeline {runnable.name}: {lost[0]}{more} of {source.path} were removed after batches had read them, and windows that hold "
            "their rows would lose these; name such files by --file if that is right, or the windows to recompute by --from and --to"
        )
    return source, paths, through


def restated_files(ledger: Ledger) -> set[str]:
    """Paths of the files that were delivered again, or removed, and that restatements have taken account of."""
    return {path for batch in effective_batches(ledger.batches()) for path in batch.plan.files}
