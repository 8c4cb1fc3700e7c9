"""A pipeline over the results of another one: its input table, and how far what it holds is complete. No JVM.

The input table is the pipeline's own. For each key and window of the other one it holds the newest revision, unless that is retracted::

    the other one's sink    k1 [0, 5) revision 0, k1 [0, 5) revision 1, k2 [0, 5) revision 0, k2 [0, 5) revision 1 retracted
    input table             k1 [0, 5) of revision 1

A run first brings it up to date (:func:`sync`), by up to two commits. *Corrections* change rows, take them out, or insert some behind the
watermark of the pipeline: a version that is restated. *Appends* add rows of windows that are new, and say by transactions what the table
now reflects. Corrections are found by comparing values, so a sync that died between the two commits does nothing twice. From then on the
input is a Delta source like any other.

Usually the other sink has only appended files since, and their rows are compared with the rows of the same windows. Where files went, as
by a backfill or a purge, all windows that end in the range of the files that came and went are compared.

Only what is published counts: a batch that is held, or lacks its commit to the sink, does not.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError

from windowmill.checkpoints.batches import Batch, Changes
from windowmill.checkpoints.committer import beyond_delta_rs, commit_files, lacking, retyped, rewrite, wider_fields
from windowmill.checkpoints.current import (
    END,
    FILE,
    REVISION,
    ROW,
    ROWS_SORTED,
    START,
    TRIGGER,
    WINDOW,
    CurrentView,
    SinkFiles,
    gathered,
    numbers_of,
    shares,
)
from windowmill.checkpoints.data_files import DataFile, remove, rows_of, write_files
from windowmill.checkpoints.delta_tables import checkpoint_if_due, existing, files_of, newest, own_commit, sizes_of, span_of
from windowmill.checkpoints.failpoints import reach
from windowmill.checkpoints.ledger import Ledger
from windowmill.checkpoints.own_tables import BRING_NEWEST
from windowmill.checkpoints.places import Places, Runnable
from windowmill.checkpoints.stores import FAILURES, create_table, is_table, table_at
from windowmill.jobs.runnables import runnable_of
from windowmill.jobs.sources.base import LoggedVersion
from windowmill.jobs.sources.delta_log import CORRECTION, DeltaSource, read_source_table
from windowmill.windowing.axis import AXIS_BEGIN, AXIS_END
from windowmill.windowing.columnar.added_columns import RETRACTED
from windowmill.windowing.columnar.hashes import row_checksums
from windowmill.windowing.columnar.rows import are_among, codes_of, distinct_values, grouped
from windowmill.windowing.errors import (
    FencedError,
    LedgerBehindError,
    SinkRefusedError,
    SourceError,
    SourceMissingError,
    SourceRangeGoneError,
    SourceReplacedError,
    first_line,
)
from windowmill.windowing.grids import grid_of
from windowmill.windowing.kernels.combine import Bools, Ints
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.watermark import BEFORE, LatenessRule

#: Greatest number of rows of a file: a correction of one row rewrites it.
ROWS_PER_FILE = 131_072
#: Columns of a sink that its input table lacks.
_OF_SINK = (REVISION, RETRACTED, "batch")
#: Properties of an input table: the identity of the other pipeline's ledger, and names of the windows whose rows it has.
_GENERATION, _WINDOWS = "windowmill.upstream", "windowmill.windows"
#: Key of a commit's metadata: the last batch of the other pipeline that the table reflects.
_REFLECTS = "reflects"
Share = Callable[[pa.Table], pa.Table]


@dataclass(frozen=True, slots=True)
class UpstreamSink:
    """What a pipeline has published, by a snapshot of its sink."""

    runnable: Runnable
    generation: str
    batch: int  #: The last batch whose rows, if it has some, are in this snapshot.
    sink: DeltaTable
    #: The least time, on the axis of the reading pipeline, of rows that are still to be published; null if it is not known.
    complete: int | None

    @classmethod
    def of(cls, pipeline: Pipeline) -> UpstreamSink | None:
        """What the pipeline that ``pipeline`` reads has published; null if that is nothing yet.

        Raises ``LedgerBehindError`` if its ledger lacks batches that its sink has.
        """
        assert pipeline.upstream is not None
        runnable = runnable_of(pipeline.upstream)
        if not is_table(runnable.sink_path):
            return None
        # Before the ledger: a batch that is recorded meanwhile is not in this snapshot. One that is kept open would move on.
        sink, ledger = table_at(runnable.sink_path), Ledger.open(runnable.pipeline)
        if ledger.newest is None:
            return None
        through = -1 if (found := sink.transaction_version(f"windowmill/{ledger.generation}/sink")) is None else found
        if through > ledger.newest.number:
            raise LedgerBehindError(
                f"sink {runnable.sink_path}: batch {through} is committed, but the ledger of the pipeline {runnable.name} is at batch "
                f"{ledger.newest.number}; the ledger was restored from an older copy: {BRING_NEWEST}"
            )
        last: Batch | None = None
        for batch in ledger.since(max(0, through)):
            lacks = batch.number > through and "sink" in ledger.changes_of(batch) and "sink" not in batch.left_out
            if batch.status == "held" or (batch.status == "committed" and lacks):
                break
            last = batch if batch.status == "committed" else last
        if last is None:
            return None
        return cls(runnable, ledger.generation, last.number, sink, complete_from(pipeline, _that_advanced(ledger, last)))


def _that_advanced(ledger: Ledger, last: Batch) -> Batch:
    """The newest batch up to ``last`` that says how far the pipeline has come."""
    newest = ledger.last_commit
    if last.plan.builds_state or newest is None:
        return last
    if newest.number <= last.number:
        return newest
    return next(
        (batch for batch in reversed(ledger.batches()[: last.number]) if batch.status == "committed" and batch.plan.builds_state), last
    )


def complete_from(pipeline: Pipeline, last: Batch) -> int | None:
    """The least time of rows that the other pipeline has still to publish after its batch ``last``; null if it is not known.

    Corrections may have earlier times. Windows on grids have ends and starts of their own; of other windows, one that ends at the very
    instant through which others have been published may still come.
    """
    outcome, rule = last.outcome, LatenessRule.of_meaning(last.plan.definition)
    reached = None if outcome.watermark is None and outcome.emitted is None else outcome.watermark_by(rule)
    shown = reached if rule.revises else outcome.emitted
    shown = outcome.shown if outcome.shown is not None or outcome.emitted is None else shown
    found = list[int | None]()
    for window in pipeline.upstream_windows:
        if window.on_grid and shown is not None:
            grid = grid_of(window)
            found.append(int((grid.first_start_after if pipeline.time.column == START else grid.first_end_after)(shown)))
        else:
            found.append(reached if window.follows_policies else shown)
    known = [at for at in found if at is not None]
    return min(known) * pipeline.time.tick_us if len(known) == len(found) else None


class Marker(NamedTuple):
    """What an input table reflects; transactions of the commit that said so."""

    batch: int  #: Last batch of the other pipeline.
    sink: int  #: Version of its sink.
    rows: int  #: Last version of the input table that may have changed its rows.
    version: int  #: Version that this commit has made.
    complete: int  #: As :attr:`UpstreamSink.complete`; the begin of the axis for null.

    @classmethod
    def of(cls, table: DeltaTable) -> Marker | None:
        """That of an input table; null if nothing has been published into it."""
        found = [table.transaction_version(_app_id(name)) for name in cls._fields]
        known = [value for value in found if value is not None]
        return cls(*known) if len(known) == len(found) else None

    def transactions(self) -> list[Transaction]:
        return [Transaction(_app_id(name), value) for name, value in self._asdict().items()]


def _app_id(name: str) -> str:
    return f"windowmill/input/{name}"


@dataclass(frozen=True)
class PublishedRows(DeltaSource):
    """The input table of a pipeline as its source."""

    upstream: str = field(default="", kw_only=True)
    marker: Marker | None = field(default=None, kw_only=True)

    def covered(self, after: int, through: int, before: int) -> dict[str, Any]:
        last = self.marker.batch if self.marker is not None and through >= self.version else self._batch_at(through)
        batches = {} if last is None else {"batches": [min(last, 0 if after < 0 else before + 1), last]}
        return {"pipeline": self.upstream} | batches

    def _batch_at(self, version: int) -> int | None:
        """The last batch of the other pipeline that ``version`` reflects; null if the log no longer says so."""
        with suppress(SourceError):
            for earlier in range(version, -1, -1):
                for action in self.actions(earlier):
                    note = json.loads(action.get("commitInfo", {}).get("userMetadata") or "{}")
                    if _REFLECTS in note:
                        return int(note[_REFLECTS])
        return None

    @property
    def place(self) -> str:
        return self.upstream

    def when_changed(self, version: LoggedVersion) -> str:  # noqa: ARG002 - the same for all
        return "`windowmill backfill …` without --as-arrived reads the results of that pipeline as they are now"

    def when_missing(self) -> str:
        return "(VACUUM); bring it back, or rebuild this pipeline in a new sink with backfill"


def open_input(pipeline: Pipeline) -> PublishedRows:
    """The input table of ``pipeline`` as the last sync has left it; raises ``SourceMissingError`` if there was none."""
    assert pipeline.upstream is not None
    assert pipeline.source is not None
    path, name = Places.of(pipeline).input, pipeline.upstream.pipeline
    table = existing(path)
    marker = None if table is None else Marker.of(table)
    if table is None or marker is None:
        raise SourceMissingError(
            f"source {pipeline.source.place}: no run has read what the pipeline {name} publishes; `windowmill run` {name}, and then "
            f"{pipeline.pipeline}"
        )
    opened = read_source_table(path)
    schema = _fitted_schema(pipeline.upstream, table, opened.schema_json)
    own = {each.name: getattr(opened, each.name) for each in fields(DeltaSource)}
    # Commits that only say what the table reflects bring nothing to read; after others, such as a compaction, all versions count.
    version = marker.rows if marker.version == opened.version else opened.version
    complete = None if marker.complete == AXIS_BEGIN else marker.complete
    return PublishedRows(**own | {"version": version, "complete": complete, "schema_json": schema}, upstream=name, marker=marker)


def _fitted_schema(upstream: Pipeline, table: DeltaTable, schema_json: str) -> str:
    """The columns ``schema_json`` of an input ``table``, and those that the next sync adds because the sink has them."""
    schema = json.loads(schema_json)
    if {each["name"] for each in schema["fields"]}.issuperset((*upstream.keys, *upstream.aggregates)):
        return schema_json
    sink = existing(runnable_of(upstream).sink_path)
    added = [] if sink is None else lacking(table, sink.schema().to_json())
    schema["fields"] += [json.loads(each.to_json()) for each in added if each.name not in _OF_SINK]
    return json.dumps(schema)


def read_through(pipeline: Pipeline) -> int:
    """The last batch of the other pipeline that the input of ``pipeline`` reflects; −1 for none."""
    table = existing(Places.of(pipeline).input)
    marker = None if table is None else Marker.of(table)
    return -1 if marker is None else marker.batch


def unread_batches(pipeline: Pipeline) -> int:
    """The number of batches that the other pipeline has published and the input of ``pipeline`` does not reflect."""
    published, read = UpstreamSink.of(pipeline), read_through(pipeline)
    if published is None or pipeline.upstream is None or published.batch <= read:
        return 0
    batches = Ledger.open(pipeline.upstream).since(read + 1)
    return sum(1 for batch in batches if batch.status == "committed" and batch.number <= published.batch)


def sync(runnable: Runnable, ledger: Ledger, step: Callable[[str, str], AbstractContextManager[None]]) -> None:
    """Bring the input table up to date with what the other pipeline has published, as a ``step``; the caller holds the lease.

    Raises ``SourceReplacedError`` if the other pipeline was set up again, or its ledger is older than what has been read;
    ``SinkRefusedError`` if only Spark reads its sink; ``FencedError`` if another run has changed the input meanwhile.
    """
    published = UpstreamSink.of(runnable.pipeline)
    if published is None:
        if read_through(runnable.pipeline) >= 0:
            assert runnable.pipeline.upstream is not None
            other = runnable_of(runnable.pipeline.upstream)
            raise SourceMissingError(
                f"source {runnable.source.place}: what the pipeline {other.name} had published is gone from {other.sink_path} or from its "
                f"ledger {other.places.ledger}; bring both back, or give this pipeline a new sink and backfill it there"
            )
        return
    reason = beyond_delta_rs("sink", published.sink, Changes(removes=("*",)))
    if reason is not None:
        raise SinkRefusedError(f"sink {published.runnable.sink_path}: {reason}, so no pipeline can read its windows; alter the table")
    table = existing(runnable.places.input)
    before = None if table is None else Marker.of(table)
    if table is not None:
        _check_same(runnable, table, before, published)
        if before is not None and before.batch == published.batch:
            return
    with step("sync", f"the input with batch {published.batch} of {published.runnable.name}"):
        _Sync.of(runnable, published, _fitted(runnable, table, published), before, watermark_of(ledger)).run()


def watermark_of(ledger: Ledger) -> int:
    """The watermark that the pipeline of ``ledger`` has reached."""
    last = ledger.last_commit
    return BEFORE if last is None else last.outcome.watermark_by(LatenessRule.of_meaning(last.plan.definition))


def _check_same(runnable: Runnable, table: DeltaTable, marker: Marker | None, published: UpstreamSink) -> None:
    """Refuse an input table of another pipeline, of other windows, or of batches that the other pipeline no longer has."""
    settings, name = table.metadata().configuration, published.runnable.name
    where = f"pipeline {runnable.name}: source.pipeline"
    if settings.get(_GENERATION) != published.generation:
        raise SourceReplacedError(
            f"{where}: {name} has another ledger than the one whose batches were read, as it was set up again; put the old one back, or "
            "give this pipeline a new sink and backfill it there"
        )
    wanted = _windows(runnable.pipeline)
    if settings.get(_WINDOWS) != wanted:
        raise SourceReplacedError(
            f"{where}: its rows were those of {settings.get(_WINDOWS)} and are now those of {wanted}; put the old windows back, or give "
            "this pipeline a new sink and backfill it there"
        )
    if marker is not None and marker.batch > published.batch:
        raise SourceReplacedError(
            f"{where}: {name} is at batch {published.batch}, but batch {marker.batch} has been read already; its tables were probably "
            "restored from a copy: give this pipeline a new sink and backfill it there"
        )


def _windows(pipeline: Pipeline) -> str:
    return ", ".join(sorted(window.name for window in pipeline.upstream_windows))


def _columns(sink: DeltaTable) -> pa.Schema:
    """The columns of the input table of a ``sink``."""
    return pa.schema([each for each in pa.schema(sink.schema().to_arrow()) if each.name not in _OF_SINK])


def _fitted(runnable: Runnable, table: DeltaTable | None, published: UpstreamSink) -> DeltaTable:
    """The input table with the columns of the other sink: made, or with new or wider columns, where it lacks them."""
    path, columns = runnable.places.input, _columns(published.sink)
    if table is None:
        settings = {_GENERATION: published.generation, _WINDOWS: _windows(runnable.pipeline)}
        return create_table(path, columns, mode="error", name="windowmill input", configuration=settings, raise_if_key_not_exists=False)
    missed = lacking(table, published.sink.schema().to_json())
    missed = [each for each in missed if each.name not in _OF_SINK]
    if missed:
        table.alter.add_columns(missed, commit_properties=own_commit("widen"))
        table = newest(path)
    kinds = {each.name: each.type for each in columns}
    if wider_fields(table, kinds):
        schema = retyped(table, kinds)
        in_types = pa.schema(schema.to_arrow())
        rewrite(
            path,
            table,
            schema,
            lambda file: rows_of(path, [file["path"]], in_types),
            batch=published.batch,
            attempt=uuid.uuid4().hex[:12],
            is_followed=True,
        )
        table = newest(path)
    return table


@dataclass(frozen=True, slots=True)
class _SinkChange:
    """What has changed in a sink since an input table was synced."""

    entries: Sequence[Mapping[str, Any]]  #: Files to read: those added, or all that may have windows of the range.
    appended: bool = False  #: Whether no rows went, so that only windows of these files differ.
    ends: tuple[int, int] = (AXIS_BEGIN, AXIS_END)  #: Otherwise the least and the greatest end of windows that may differ.

    @classmethod
    def of(cls, published: UpstreamSink, since: Marker | None, names: Sequence[str], *, by_ends: bool) -> _SinkChange:
        """The change since the marker, null for all; of windows with these ``names``, which ends identify if ``by_ends``."""
        every = {str(entry["path"]): entry for entry in files_of(published.sink)}
        changed = None if since is None else _changed_paths(published, since.sink)
        if changed is not None and not changed[1] and changed[0] <= every.keys():
            return cls([entry for path in changed[0] if _has_windows(entry := every[path], names)], appended=True)
        whole = cls([entry for entry in every.values() if _has_windows(entry, names)])
        if since is None or changed is None:
            return whole
        added, removed = changed
        try:
            before = {str(entry["path"]): entry for entry in files_of(table_at(published.runnable.sink_path, since.sink))}
        except FAILURES:
            return whole
        known = before | every
        touched = [known.get(path) for path in added ^ removed]
        if not by_ends or None in touched:
            return whole
        spans = [_span(entry) for entry in touched if entry is not None and _has_windows(entry, names)]
        if not spans:
            return cls([], appended=True)
        ends = min(low for low, _ in spans), max(high for _, high in spans)
        return cls([entry for entry in whole.entries if _span(entry)[0] <= ends[1] and _span(entry)[1] >= ends[0]], ends=ends)


def _changed_paths(published: UpstreamSink, since: int) -> tuple[set[str], set[str]] | None:
    """The files that versions of the sink after ``since`` added and removed, without those only rewritten; null if the log is gone."""
    sink = published.sink
    identity = str(sink.metadata().id)
    log = DeltaSource(published.runnable.sink_path, table_id=identity, version=sink.version(), schema_json=sink.schema().to_json())
    added, removed = set[str](), set[str]()
    try:
        for version in range(since + 1, log.version + 1):
            for action in log.actions(version):
                for kind, paths in (("add", added), ("remove", removed)):
                    if kind in action and action[kind].get("dataChange", True):
                        paths.add(str(action[kind]["path"]))
    except SourceRangeGoneError:
        return None
    return added, removed


def _has_windows(entry: Mapping[str, Any], names: Sequence[str]) -> bool:
    """Whether the file may have rows of windows with these ``names``, by its statistics."""
    low, high = entry.get(f"min.{WINDOW}"), entry.get(f"max.{WINDOW}")
    return low is None or high is None or any(low <= name <= high for name in names)


def _span(entry: Mapping[str, Any]) -> tuple[int, int]:
    """The least and the greatest end of a window in a file, or of the axis if its statistics do not say."""
    return span_of(entry, END) or (AXIS_BEGIN, AXIS_END)


@dataclass(frozen=True, slots=True)
class _Compared:
    """How some windows differ between a sink and an input table; places of rows, as :meth:`.SinkFiles.narrow` gives them."""

    gone: pa.Table  #: Of the input, rows that it must not have.
    corrected: pa.Table  #: Of the sink, rows that take their place, or belong behind the watermark.
    new: pa.Table  #: Of the sink, other rows that the input lacks.

    def __len__(self) -> int:
        return len(self.gone) + len(self.corrected) + len(self.new)


@dataclass(frozen=True)
class InputComparison:
    """An input table compared with the latest view of a sink."""

    pipeline: Pipeline
    sink: SinkFiles
    input: SinkFiles
    change: _SinkChange
    watermark: int  #: That of the pipeline: rows with earlier times that are new are corrections.

    @classmethod
    def of(
        cls, pipeline: Pipeline, published: UpstreamSink, table: DeltaTable, path: str, since: Marker | None, watermark: int
    ) -> InputComparison:
        """The input ``table`` at ``path`` and what ``published`` shows, as far as this has changed ``since`` then; null for all."""
        names = [window.name for window in pipeline.upstream_windows]
        by_ends = not any(window.follows_policies for window in pipeline.upstream_windows)
        change = _SinkChange.of(published, since, names, by_ends=by_ends)
        sink = SinkFiles(published.runnable.sink_path, pa.schema(published.sink.schema().to_arrow()), change.entries)
        return cls(pipeline, sink, SinkFiles(path, pa.schema(table.schema().to_arrow()), files_of(table)), change, watermark)

    def parts(self) -> Iterator[_Compared]:
        """The differences, by shares of the keys that fit into memory."""
        n_rows = self.sink.rows + (0 if self.change.appended else self.input.rows)
        for share in shares(n_rows, self._view):
            yield self._of_share(share)

    def rows_at(self, places: pa.Table) -> Iterator[pa.Table]:
        """The rows of the sink at these ``places``, with the columns of the input."""
        yield from self._values.whole(places)

    @property
    def _view(self) -> CurrentView:
        assert self.pipeline.upstream is not None
        return CurrentView.of(self.pipeline.upstream)

    @property
    def _values(self) -> SinkFiles:
        return replace(self.sink, schema=self.input.schema)

    def _of_share(self, share: Share) -> _Compared:
        fresh = self._newest(share)
        before = self._before(fresh, share)
        ids = [self._identities(rows) for rows in (fresh, before)]
        codes, n_windows = codes_of(ids, ids[0].column_names)
        at, own = np.full(n_windows, -1), np.full(n_windows, -1)
        at[codes[len(fresh) :]], own[codes[: len(fresh)]] = np.arange(len(before)), np.arange(len(fresh))
        matching, shown = at[codes[: len(fresh)]], ~pc.fill_null(fresh.column(RETRACTED), False).to_numpy()
        both = np.flatnonzero((matching >= 0) & shown)
        differs = self._sums(self._values, fresh.take(pa.array(both))) != self._sums(self.input, before.take(pa.array(matching[both])))
        changed, lacking_ = both[differs], np.flatnonzero((matching < 0) & shown)
        late = numbers_of(fresh, self.pipeline.time.column)[lacking_] * self.pipeline.time.tick_us < self.watermark
        taken_back = matching[(matching >= 0) & ~shown]
        # Where files went, a window that the sink does not have any more is gone.
        left = np.zeros(0, np.int64) if self.change.appended else np.flatnonzero(own[codes[len(fresh) :]] < 0)
        gone = np.concatenate([matching[changed], taken_back, left])
        return _Compared(
            before.take(pa.array(gone)),
            fresh.take(pa.array(np.concatenate([changed, lacking_[late]]))),
            fresh.take(pa.array(lacking_[~late])),
        )

    def _newest(self, share: Share) -> pa.Table:
        """The newest version of each window among the rows of the sink that are read, retractions included."""
        names = pa.array([window.name for window in self.pipeline.upstream_windows], pa.string())

        def wanted(rows: pa.Table) -> pa.Table:
            return share(self._within(rows.filter(pc.is_in(rows.column(WINDOW), names))))

        rows = self._narrow(self.sink, range(len(self.sink.entries)), wanted, (REVISION, RETRACTED))
        revision = numbers_of(rows, REVISION)
        if not revision.any():
            return rows
        ids = self._identities(rows)
        codes, _ = codes_of([ids], ids.column_names)
        order = np.lexsort((revision, codes))
        return rows.take(pa.array(order[np.append(codes[order][1:] != codes[order][:-1], True)]))

    def _before(self, fresh: pa.Table, share: Share) -> pa.Table:
        """The rows of the input whose windows are compared with the ``fresh`` ones."""
        ends = distinct_values(numbers_of(fresh, END))
        moves = any(window.follows_policies for window in self.pipeline.upstream_windows) and numbers_of(fresh, REVISION).any()

        def may_hold(entry: Mapping[str, Any]) -> bool:
            low, high = _span(entry)
            if not self.change.appended:
                return low <= self.change.ends[1] and high >= self.change.ends[0]
            return bool(moves) or bool(np.searchsorted(ends, low) < np.searchsorted(ends, high, side="right"))

        ids = self._identities(fresh)

        def compared(rows: pa.Table) -> pa.Table:
            if not self.change.appended:
                return share(self._within(rows))
            return rows.filter(pa.array(are_among(self._identities(rows), ids, ids.column_names)))

        chosen = [number for number, entry in enumerate(self.input.entries) if may_hold(entry)]
        return self._narrow(self.input, chosen, compared)

    def _within(self, rows: pa.Table) -> pa.Table:
        """Those of ``rows`` whose windows end in the range that is compared."""
        if self.change.appended or self.change.ends == (AXIS_BEGIN, AXIS_END):
            return rows
        ends = numbers_of(rows, END)
        return rows.filter(pa.array((ends >= self.change.ends[0]) & (ends <= self.change.ends[1])))

    def _narrow(self, files: SinkFiles, numbers: Iterable[int], chosen: Share, also: Sequence[str] = ()) -> pa.Table:
        columns = [*self._view.pair, START, END, TRIGGER, *also]
        parts = (rows for number in numbers for rows in files.narrow(columns, number))
        return pa.concat_tables([files.none(columns), *map(chosen, gathered(parts, ROWS_SORTED))])

    def _identities(self, rows: pa.Table) -> pa.Table:
        """What identifies the window of each row: bounds, or the number of its trigger, of which a later version may have others."""
        nothing, numbered = pa.scalar(None, pa.int64()), pc.is_valid(rows.column(TRIGGER))
        restarts = pc.is_in(rows.column(WINDOW), pa.array(self._view.restarting, pa.string()))
        begins, ends = (rows.column(name).cast(pa.int64()) for name in (START, END))
        own = {name: rows.column(name) for name in (*self._view.pair, TRIGGER)}
        own |= {START: pc.if_else(numbered, nothing, begins), END: pc.if_else(pc.and_not(numbered, restarts), nothing, ends)}
        return pa.table(own)

    def _sums(self, files: SinkFiles, places: pa.Table) -> Ints:
        """A checksum of the values of each row at these ``places``."""
        order = np.lexsort((places.column(ROW).to_numpy(), places.column(FILE).to_numpy()))
        found = np.zeros(len(places), np.int64)
        found[order] = np.concatenate([np.zeros(0, np.int64), *(row_checksums(rows).to_numpy() for rows in files.whole(places))])
        return found


@dataclass
class _Sync:
    """The commits that bring an input table up to date."""

    runnable: Runnable
    published: UpstreamSink
    table: DeltaTable
    before: Marker | None
    comparison: InputComparison
    attempt: str
    written: list[DataFile]

    @classmethod
    def of(cls, runnable: Runnable, published: UpstreamSink, table: DeltaTable, before: Marker | None, watermark: int) -> _Sync:
        path = runnable.places.input
        comparison = InputComparison.of(runnable.pipeline, published, table, path, before, watermark)
        return cls(runnable, published, table, before, comparison, uuid.uuid4().hex[:12], [])

    def run(self) -> None:
        try:
            corrected, new, gone = self._compared()
            removed = {str(self.comparison.input.entries[number]["path"]): rows for number, rows in gone.items()}
            kept = [file for path, rows in removed.items() for file in self._write(self._without(path, rows))]
        except BaseException:
            with suppress(OSError):
                remove(self.runnable.places.input, self.written)
            raise
        reach("input.before")
        corrects = bool(corrected or removed)
        if corrects:
            self._commit([*corrected, *kept], list(removed), {CORRECTION: True})
        reach("input.corrected")
        self._commit(new, [], {}, corrected=corrects)
        reach("input.after")

    def _compared(self) -> tuple[list[DataFile], list[DataFile], dict[int, Ints]]:
        """Files of rows that are corrected, and of new ones; and by number of a file of the input, the rows that go."""
        corrected, new, gone = list[DataFile](), list[DataFile](), dict[int, Ints]()
        for part in self.comparison.parts():
            corrected += self._write(self.comparison.rows_at(part.corrected))
            new += self._write(self.comparison.rows_at(part.new))
            files, rows = (part.gone.column(name).to_numpy() for name in (FILE, ROW))
            for number, own in grouped(files, rows).items():
                gone[number] = np.append(gone.get(number, np.zeros(0, np.int64)), own)
        return corrected, new, gone

    def _without(self, path: str, gone: Ints) -> Iterator[pa.Table]:
        """The rows of a file of the input but for those ``gone``."""
        first = 0
        for rows in rows_of(self.runnable.places.input, [path], self.comparison.input.schema):
            stays: Bools = ~np.isin(np.arange(first, first + len(rows)), gone)
            yield rows.filter(pa.array(stays))
            first += len(rows)

    def _write(self, parts: Iterable[pa.Table]) -> list[DataFile]:
        """Write rows to files, each of a range of window ends as far as memory allows, so that few have those of a correction."""
        done, place, schema = list[DataFile](), self.runnable.places.input, self.comparison.input.schema
        for rows in gathered(parts, ROWS_SORTED):
            ordered = rows.sort_by([(END, "ascending")])
            for first in range(0, len(rows), ROWS_PER_FILE):
                task = len(self.written)
                own = [ordered.slice(first, ROWS_PER_FILE)]
                found = write_files(place, schema, own, batch=self.published.batch, attempt=self.attempt, task=task)
                self.written += found
                done += found
        return done

    def _commit(self, files: Sequence[DataFile], removes: Sequence[str], mark: Mapping[str, Any], *, corrected: bool | None = None) -> None:
        """Add and remove files; unless this is a correction, also say what the table reflects, ``corrected`` or not just before."""
        place, version = self.runnable.places.input, self.table.version() + 1
        sizes = sizes_of(self.table) if removes else {}
        note = {"windowmill": "input", _REFLECTS: self.published.batch}
        marker = [] if corrected is None else self._marker(version, bool(files), corrected=corrected).transactions()
        try:
            commit_files(self.table, files, {path: sizes[path] for path in removes}, note, marker, **mark)
        except CommitFailedError as err:
            raise FencedError(f"input {place}: another run has changed it meanwhile ({first_line(err)}); run again") from err
        checkpoint_if_due(place, version)
        self.table.update_incremental()

    def _marker(self, version: int, appends: bool, *, corrected: bool) -> Marker:
        """What the commit of ``version`` says."""
        rows = version
        if not appends and corrected:
            rows = version - 1
        elif not appends and self.before is not None and self.before.version == version - 1:
            rows = self.before.rows
        complete = AXIS_BEGIN if self.published.complete is None else self.published.complete
        return Marker(self.published.batch, self.published.sink.version(), rows, version, complete)


@dataclass(frozen=True, slots=True)
class InputCheck:
    """The input table at ``path``, compared with what the other pipeline shows."""

    path: str
    upstream: str
    batch: int  #: The last batch of the other pipeline that it reflects.
    differing: int  #: Number of windows of which it has another row, none, or one too many.
    why_not: str | None = None  #: Why they could not be compared; null if they were.

    @classmethod
    def of(cls, runnable: Runnable) -> InputCheck | None:
        """Compare all windows, as of the version of the other sink that the input reflects; null if nothing has been read."""
        published, table = UpstreamSink.of(runnable.pipeline), existing(runnable.places.input)
        marker = None if table is None else Marker.of(table)
        if published is None or table is None or marker is None:
            return None
        path, name = runnable.places.input, published.runnable.name
        try:
            if published.batch != marker.batch:
                published = replace(published, sink=table_at(published.runnable.sink_path, marker.sink))
            parts = list(map(len, InputComparison.of(runnable.pipeline, published, table, path, None, BEFORE).parts()))
        except (DeltaError, OSError) as err:
            return cls(
                path, name, marker.batch, 0, f"version {marker.sink} of the sink of {name} can no longer be read ({first_line(err)})"
            )
        return cls(path, name, marker.batch, sum(parts))
