"""The table of current rows: for each key and window name, the newest window that the sink shows. No JVM.

Rows of a sink are versions of one window as in the latest view: of each key, window name and bounds, or trigger, the row of greatest
revision counts, unless it is retracted. The newest window has the greatest ``window_end``; of equal ones the greatest ``trigger``, then the
greatest ``window_start``.

A batch compares the rows that it adds to the sink with the current rows of the same keys. It rewrites the files whose rows change, and no
other; files hold ranges of keys, so their statistics show which these are. Only where the current row is taken back, and no row that is as
new takes its place, the sink is searched for older ones, from its newest files on. The whole table follows from the sink: so it is made if
it is missing, behind a restoration, a purge or a changed spec, and where others have moved its files since the record.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake import Schema as DeltaSchema
from deltalake.exceptions import DeltaError

from windowmill.checkpoints.batches import Changes, Plan
from windowmill.checkpoints.committer import beyond_delta_rs
from windowmill.checkpoints.data_files import DataFile, rows_of, write_files
from windowmill.checkpoints.delta_tables import existing, files_of, newest, span_of
from windowmill.checkpoints.ledger import Ledger
from windowmill.checkpoints.places import Runnable
from windowmill.checkpoints.stores import remedy
from windowmill.windowing.axis import AXIS_BEGIN, AXIS_END
from windowmill.windowing.columnar.added_columns import RETRACTED
from windowmill.windowing.columnar.hashes import buckets_of, row_checksums
from windowmill.windowing.columnar.rows import are_among, codes_of, first_rows, grouped
from windowmill.windowing.errors import SinkError, SinkRefusedError, first_line
from windowmill.windowing.kernels.combine import Bools, Ints
from windowmill.windowing.spec import Pipeline

#: Greatest number of rows of a file: half of it is what a change of one row may rewrite.
ROWS_PER_FILE = 65_536
#: Rows whose windows are compared at a time, about 100 bytes each; rows that wait to be sorted before they are written.
ROWS_AT_ONCE, ROWS_SORTED = 2_000_000, 500_000
#: Pairs of key and window for which the sink is searched at a time.
SEARCHED_AT_ONCE = 20_000
WINDOW, START, END, TRIGGER, REVISION = "window", "window_start", "window_end", "trigger", "revision"
#: Columns that say from which file a row was read, and its number there.
FILE, ROW = "_file", "_row"
#: Stands for null among numbers.
_NULL = np.iinfo(np.int64).min


@dataclass(frozen=True, slots=True)
class CurrentView:
    """How the rows of a sink are versions of windows, and which window is the newest of its key."""

    #: Key columns, and names of the windows that forget idle keys, and so number triggers from 0 again.
    keys: tuple[str, ...]
    restarting: tuple[str, ...] = ()

    @classmethod
    def of(cls, pipeline: Pipeline) -> CurrentView:
        return cls(pipeline.keys, tuple(window.name for window in pipeline.windows if window.restarts_triggers))

    @property
    def pair(self) -> list[str]:
        """Columns of which the table has each combination once."""
        return [*self.keys, WINDOW]

    @property
    def columns(self) -> list[str]:
        """Columns by which rows are compared."""
        return [*self.pair, START, END, TRIGGER, REVISION, RETRACTED]

    def newest(self, rows: pa.Table) -> Ints:
        """Index of the newest row of each pair that shows one; ``rows`` are all versions of their windows. O(n log n)."""
        if not len(rows):
            return np.zeros(0, np.int64)
        pair, _ = codes_of([rows], self.pair)
        start, end, trigger, revision = (numbers_of(rows, name) for name in (START, END, TRIGGER, REVISION))
        chosen = np.arange(len(rows))
        if revision.any():
            numbered = trigger != _NULL
            restarts = pc.is_in(rows.column(WINDOW), pa.array(self.restarting, pa.string())).to_numpy()
            of_window = (np.where(numbered & ~restarts, _NULL, end), np.where(numbered, _NULL, start), trigger, pair)
            order = np.lexsort((revision, *of_window))
            chosen = order[_last_of([values[order] for values in of_window])]
        chosen = chosen[~pc.fill_null(rows.column(RETRACTED), False).to_numpy()[chosen]]
        order = chosen[np.lexsort((start[chosen], trigger[chosen], end[chosen], pair[chosen]))]
        newest_of: Ints = order[_last_of([pair[order]])]
        return newest_of

    def compared(self, rows: pa.Table, of_table: Bools, replaced: Bools) -> tuple[Ints, pa.Table]:
        """Index of the newest row of each pair, and the pairs whose newest row may be an older one that is not among ``rows``.

        ``of_table`` are current rows; those of them that are ``replaced`` count no more. All others are new.
        """
        left = np.flatnonzero(~replaced)
        best = left[self.newest(rows.take(pa.array(left)))]
        before = np.flatnonzero(of_table)
        pair, n_pairs = codes_of([rows], self.pair)
        end, trigger, start = (numbers_of(rows, name) for name in (END, TRIGGER, START))
        found = np.full(n_pairs, -1)
        found[pair[best]] = best
        now = found[pair[before]]
        older = np.zeros(len(before), np.bool_)
        for values in (start, trigger, end):  # the last one decides first
            older = np.where(values[now] == values[before], older, values[now] < values[before])
        lacking = before[(now < 0) | older]
        is_lacking = np.zeros(n_pairs, np.bool_)
        is_lacking[pair[lacking]] = True
        return best[~is_lacking[pair[best]]], rows.take(pa.array(lacking)).select(self.pair)


@dataclass(frozen=True, slots=True)
class SinkFiles:
    """Files with the columns of a sink, in the folder ``place``; ``entries`` are those of the log, as :func:`.files_of` gives them."""

    place: str
    schema: pa.Schema
    entries: Sequence[Mapping[str, Any]]

    @classmethod
    def of_sink(cls, place: str, snapshot: DeltaTable | None, changes: Changes) -> SinkFiles:
        """The sink at ``place`` as it is once ``changes`` are committed to its ``snapshot``, null if there is no table yet."""
        fields = [] if snapshot is None else list(pa.schema(snapshot.schema().to_arrow()))
        known, gone = {each.name.lower() for each in fields}, set(changes.removes)
        written = [] if changes.schema is None else list(pa.schema(DeltaSchema.from_json(changes.schema).to_arrow()))
        schema = pa.schema([*fields, *(each for each in written if each.name.lower() not in known)])
        stored = [] if snapshot is None else [file for file in files_of(snapshot) if file["path"] not in gone]
        return cls(place, schema, [*stored, *_entries(changes.files)])

    @property
    def rows(self) -> int:
        return sum(int(file["num_records"]) for file in self.entries)

    def none(self, columns: Sequence[str]) -> pa.Table:
        """No rows, with the columns of :meth:`narrow`."""
        known = {each.name: each.type for each in self.schema} | {FILE: pa.int64(), ROW: pa.int64()}
        return pa.schema([(name, known.get(name, pa.bool_())) for name in (*columns, FILE, ROW)]).empty_table()

    def narrow(self, columns: Sequence[str], number: int) -> Iterator[pa.Table]:
        """Some ``columns`` of the rows of a file, some at a time, with the file's ``number`` and the number of each row there."""
        known = {each.name: each.type for each in self.schema}
        schema, first = pa.schema([(name, known.get(name, pa.bool_())) for name in columns]), 0
        for rows in rows_of(self.place, [self.entries[number]["path"]], schema):
            numbers = pa.array(np.arange(first, first + len(rows)))
            yield rows.append_column(FILE, pa.array(np.full(len(rows), number))).append_column(ROW, numbers)
            first += len(rows)

    def whole(self, places: pa.Table) -> Iterator[pa.Table]:
        """The rows with all columns that lie at these ``places``, which have the columns of :meth:`narrow`."""
        files, numbers = places.column(FILE).to_numpy(), places.column(ROW).to_numpy()
        for file, own_numbers in grouped(files, numbers).items():
            wanted, first = np.sort(own_numbers), 0
            for rows in rows_of(self.place, [self.entries[file]["path"]], self.schema):
                own = wanted[slice(*np.searchsorted(wanted, [first, first + len(rows)]))] - first
                if len(own):
                    yield rows.take(pa.array(own))
                first += len(rows)

    def search(self, view: CurrentView, wanted: pa.Table) -> Iterator[pa.Table]:
        """The newest rows of the pairs ``wanted``, with all columns; reads no file that is older than what it has found of all pairs."""
        ends = [AXIS_END if (span := span_of(file, END)) is None else span[1] for file in self.entries]
        order, none = sorted(range(len(ends)), key=lambda number: -ends[number]), self.none(view.columns)
        for first in range(0, len(wanted), SEARCHED_AT_ONCE):
            own, found = wanted.slice(first, SEARCHED_AT_ONCE), none
            for place, number in enumerate(order):
                if not _may_hold(self.entries[number], own, view.keys).any():
                    continue
                parts = (rows.filter(pa.array(are_among(rows, own, view.pair))) for rows in self.narrow(view.columns, number))
                found = pa.concat_tables([found, *parts])
                best = found.take(pa.array(view.newest(found)))
                following = ends[order[place + 1]] if place + 1 < len(order) else AXIS_BEGIN
                # A later revision of a trigger may have another end.
                is_final = best.column(TRIGGER).null_count == len(best) == len(own)
                if is_final and len(best) and int(numbers_of(best, END).min()) > following:
                    break
            yield from self.whole(found.take(pa.array(view.newest(found))))


@dataclass(frozen=True, slots=True)
class AddedRows:
    """The rows that a batch adds to a sink, in files of it."""

    files: SinkFiles
    #: Number of the first file that may also have rows that the sink has already: those outside the range ``replaces``.
    first_kept: int
    #: Range (begin, end] of window ends whose rows the batch replaces, and names of the windows; null if it replaces none.
    replaces: tuple[int, int, Sequence[str] | None] | None = None

    @classmethod
    def of(cls, sink: SinkFiles, made: Changes) -> AddedRows:
        """The rows that the changes ``made`` add to the ``sink``."""
        replaces = None if made.replaces is None else (*made.replaces, made.windows)
        first_kept = len(made.files) if replaces is None else len(made.adds)
        return cls(SinkFiles(sink.place, sink.schema, _entries(made.files)), first_kept, replaces)

    def narrow(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        """As :meth:`SinkFiles.narrow`, of all files."""
        for number in range(len(self.files.entries)):
            for rows in self.files.narrow(columns, number):
                yield rows if number < self.first_kept else rows.filter(pa.array(self.replace(rows)))

    def replace(self, rows: pa.Table) -> Bools:
        """Mask of the ``rows`` of the sink, or of the current table, that they replace."""
        if self.replaces is None:
            return np.zeros(len(rows), np.bool_)
        (begin, end, windows), ends = self.replaces, numbers_of(rows, END)
        within = (ends > begin) & (ends <= end)
        return within if windows is None else within & pc.is_in(rows.column(WINDOW), pa.array(windows, pa.string())).to_numpy()


@dataclass(frozen=True, slots=True)
class MadeOfSink:
    """The whole table at ``table``, from all rows of its ``sink``."""

    table: str
    sink: SinkFiles
    view: CurrentView
    #: Paths of all files that the table has, which go.
    files: tuple[str, ...]

    @classmethod
    def of(cls, table: str, snapshot: DeltaTable | None, *, sink: str, view: CurrentView) -> MadeOfSink:
        """Of the published table at ``sink``, in the place of all files of ``snapshot``, the current table at ``table`` if there is one."""
        rows = SinkFiles.of_sink(sink, newest(sink), Changes())
        return cls(table, rows, view, () if snapshot is None else _paths(files_of(snapshot)))

    def changes(self, *, batch: int, attempt: str) -> Changes:
        """The changes that put the table's rows in the place of all that it has; writes the files."""
        files = self.keep(batch=batch, attempt=attempt)
        return Changes.of(self.sink.schema, kept=files, removes=self.files, replaces=(AXIS_BEGIN, AXIS_END))

    def keep(self, *, batch: int, attempt: str) -> tuple[DataFile, ...]:
        """Write the table's rows to files."""
        return _written(self.table, self.sink.schema, self.view, self.rows(), batch=batch, attempt=attempt)

    def rows(self) -> Iterator[pa.Table]:
        """The table's rows, some at a time."""
        for share in shares(self.sink.rows, self.view):
            yield from self._rows_of(share)

    def _rows_of(self, share: Callable[[pa.Table], pa.Table]) -> Iterator[pa.Table]:
        parts = (rows for number in range(len(self.sink.entries)) for rows in self.sink.narrow(self.view.columns, number))
        own = pa.concat_tables([self.sink.none(self.view.columns), *map(share, parts)])
        yield from self.sink.whole(own.take(pa.array(self.view.newest(own))))

    def differing(self, shown: Sequence[str]) -> Iterator[pa.Table]:
        """The pairs of which the files ``shown`` of the table have another row than the sink, some at a time."""
        empty = self.sink.schema.empty_table()
        for share in shares(self.sink.rows, self.view):
            made = pa.concat_tables([empty, *self._rows_of(share)])
            there = pa.concat_tables([empty, *map(share, rows_of(self.table, shown, self.sink.schema))])
            pair, n_pairs = codes_of([made, there], self.view.pair)
            sums = [np.zeros(n_pairs, np.int64) for _ in range(2)]
            counts = [np.zeros(n_pairs, np.int64) for _ in range(2)]
            for place, (rows, codes) in enumerate(((made, pair[: len(made)]), (there, pair[len(made) :]))):
                np.add.at(sums[place], codes, row_checksums(rows).to_numpy())
                np.add.at(counts[place], codes, 1)
            differs = (sums[0] != sums[1]) | (counts[0] != counts[1])
            firsts = pa.concat_tables([made, there]).select(self.view.pair).take(pa.array(first_rows(pair)))
            yield firsts.filter(pa.array(differs))


@dataclass(frozen=True, slots=True)
class Merged:
    """All files of the table are rewritten: by a batch that adds many rows to the sink."""

    old: SinkFiles
    new: AddedRows
    sink: SinkFiles
    view: CurrentView

    @property
    def files(self) -> tuple[str, ...]:
        return _paths(self.old.entries)

    def keep(self, *, batch: int, attempt: str) -> tuple[DataFile, ...]:
        """Write the table's rows to files."""
        return _written(self.old.place, self.old.schema, self.view, self._rows(), batch=batch, attempt=attempt)

    def _rows(self) -> Iterator[pa.Table]:
        for share in shares(self.old.rows + self.new.files.rows, self.view):
            rows = pa.concat_tables(list(map(share, self._narrow())))
            of_table = rows.column(FILE).to_numpy() < 0
            best, lacking = self.view.compared(rows, of_table, of_table & self.new.replace(rows))
            yield from self.old.whole(_with_files(rows.take(pa.array(best[of_table[best]])), shift=len(self.old.entries)))
            yield from self.new.files.whole(rows.take(pa.array(best[~of_table[best]])))
            yield from self.sink.search(self.view, lacking)

    def _narrow(self) -> Iterator[pa.Table]:
        """Rows of the table, with negative numbers of files, and those that are new."""
        n_old = len(self.old.entries)
        for number in range(n_old):
            yield from (_with_files(rows, shift=-n_old) for rows in self.old.narrow(self.view.columns, number))
        yield from self.new.narrow(self.view.columns)


@dataclass(frozen=True, slots=True)
class Revised:
    """The files whose rows a batch changes are rewritten."""

    old: SinkFiles
    view: CurrentView
    #: By number of the file, the rows that go, and the rows that it gets; the number of files is that of a new one.
    gone: Mapping[int, Ints]
    fresh: Mapping[int, pa.Table]

    @classmethod
    def of(cls, old: SinkFiles, new: AddedRows, sink: SinkFiles, view: CurrentView) -> Revised:
        """After a batch that adds the rows ``new`` to the ``sink``; reads those rows of the table whose keys they have."""
        added = pa.concat_tables([old.none(view.columns), *new.narrow(view.columns)])
        before = pa.concat_tables([added.slice(0, 0), *_same_pairs(old, added, new, view)])
        rows = pa.concat_tables([before, added])
        of_table = np.arange(len(rows)) < len(before)
        best, lacking = view.compared(rows, of_table, of_table & new.replace(rows))
        chosen = rows.take(pa.array(best[~of_table[best]]))
        fresh = pa.concat_tables([old.schema.empty_table(), *new.files.whole(chosen), *sink.search(view, lacking)])
        going = before.take(pa.array(np.setdiff1d(np.arange(len(before)), best)))
        files, numbers = going.column(FILE).to_numpy(), going.column(ROW).to_numpy()
        places = _places(old, before, fresh, view)
        own = {file: fresh.take(pa.array(at)) for file, at in grouped(places, np.arange(len(places))).items()}
        return cls(old, view, grouped(files, numbers), own)

    @property
    def files(self) -> tuple[str, ...]:
        return _paths([self.old.entries[number] for number in sorted({*self.gone, *self.fresh}) if number < len(self.old.entries)])

    def keep(self, *, batch: int, attempt: str) -> tuple[DataFile, ...]:
        """Write the rows that these files hold afterwards; each to files of its own, so that they still have few keys in common."""
        done: tuple[DataFile, ...] = ()
        for number in sorted({*self.gone, *self.fresh}):
            own = self._rows(number)
            done += _written(self.old.place, self.old.schema, self.view, own, batch=batch, attempt=attempt, task=len(done))
        return done

    def _rows(self, number: int) -> Iterator[pa.Table]:
        if number in self.fresh:
            yield self.fresh[number]
        if number == len(self.old.entries):
            return
        gone, first = self.gone.get(number, np.zeros(0, np.int64)), 0
        for rows in rows_of(self.old.place, [self.old.entries[number]["path"]], self.old.schema):
            stays = np.ones(len(rows), np.bool_)
            stays[gone[(gone >= first) & (gone < first + len(rows))] - first] = False
            yield rows.filter(pa.array(stays))
            first += len(rows)


def check_sink(path: str) -> None:
    """Refuse a sink at ``path`` whose files are not all that it is made of, or that only Spark writes; raises ``SinkRefusedError``."""
    reason = beyond_delta_rs("sink", existing(path), Changes(removes=("*",)))
    if reason is not None:
        raise SinkRefusedError(f"sink {path}: {reason}, so its current rows cannot be kept; alter the table, or leave sink.current out")


def opened(table: str) -> DeltaTable | None:
    """The current table at ``table``; null if there is none. Raises ``SinkError`` if it cannot be opened."""
    try:
        return existing(table)
    except DeltaError as err:
        advice = remedy(err, "remove its folder, and the next run makes it of the sink again")
        raise SinkError(f"current {table}: cannot be opened ({first_line(err)}); {advice}") from err


def changes_of(runnable: Runnable, ledger: Ledger, plan: Plan, made: Changes) -> Changes:
    """What the batch of ``plan`` changes in the current table if it makes the changes ``made`` to the sink; writes the files."""
    table, sink, view = str(runnable.current_path), runnable.sink_path, CurrentView.of(runnable.pipeline)
    stored = opened(table)
    after, entries = SinkFiles.of_sink(sink, existing(sink), made), [] if stored is None else files_of(stored)
    written = ledger.written()
    shown, own = written.get("sink"), written.get("current")
    follows = shown is not None and own is not None and own.batch == shown.batch and None not in (own.digest, shown.digest)
    takes_back = plan.changes_spec or (bool(made.removes) and made.replaces is None)
    if stored is None or not follows or takes_back or _columns(stored) != [(each.name, each.type) for each in after.schema]:
        return MadeOfSink(table, after, view, _paths(entries)).changes(batch=plan.batch, attempt=plan.attempt)
    if plan.keeps_view:
        return Changes()
    old, new = SinkFiles(table, after.schema, entries), AddedRows.of(after, made)
    many = new.files.rows > ROWS_AT_ONCE // 8
    change = Merged(old, new, after, view) if many else Revised.of(old, new, after, view)
    return Changes(kept=change.keep(batch=plan.batch, attempt=plan.attempt), removes=change.files)


def _written(
    place: str, schema: pa.Schema, view: CurrentView, parts: Iterable[pa.Table], *, batch: int, attempt: str, task: int = 0
) -> tuple[DataFile, ...]:
    """Write the rows of ``parts``, sorted as far as memory allows, to files of equal size."""
    done: tuple[DataFile, ...] = ()
    for rows in gathered(parts, ROWS_SORTED):
        ordered = rows.sort_by([(name, "ascending") for name in view.pair])
        size = -(-len(rows) // -(-len(rows) // ROWS_PER_FILE))
        for first in range(0, len(rows), size):
            own = [ordered.slice(first, size)]
            done += write_files(place, schema, own, batch=batch, attempt=attempt, task=task + len(done))
    return done


def gathered(parts: Iterable[pa.Table], n_rows: int) -> Iterator[pa.Table]:
    """The rows of ``parts`` in tables of at least ``n_rows`` rows, but for the last one; none is empty."""
    waiting = list[pa.Table]()
    for rows in parts:
        waiting.append(rows)
        if sum(map(len, waiting)) >= n_rows:
            yield pa.concat_tables(waiting)
            waiting = []
    if sum(map(len, waiting)):
        yield pa.concat_tables(waiting)


def shares(n_rows: int, view: CurrentView) -> Iterator[Callable[[pa.Table], pa.Table]]:
    """Shares of the keys of so many rows, each of about :data:`ROWS_AT_ONCE` rows: functions that choose rows of the share."""
    n_shares = -(-n_rows // ROWS_AT_ONCE) if view.keys else 1

    def of_share(share: int, rows: pa.Table) -> pa.Table:
        return rows.filter(pa.array(buckets_of(rows.select(list(view.keys)), n_shares) == share))

    yield from [partial(of_share, share) for share in range(n_shares)] if n_shares > 1 else [lambda rows: rows]


def _same_pairs(old: SinkFiles, added: pa.Table, new: AddedRows, view: CurrentView) -> Iterator[pa.Table]:
    """The rows of the table that have a key and window of the ``added`` ones, or that ``new`` rows replace."""
    pairs = added.select(view.pair).group_by(view.pair, use_threads=False).aggregate([])
    for number, entry in enumerate(old.entries):
        own = pairs.filter(pa.array(_may_hold(entry, pairs, view.keys)))
        if len(own) or new.replaces is not None:
            for rows in old.narrow(view.columns, number):
                yield rows.filter(pa.array(are_among(rows, own, view.pair) | new.replace(rows)))


def _places(old: SinkFiles, before: pa.Table, fresh: pa.Table, view: CurrentView) -> Ints:
    """For each of the ``fresh`` rows the number of its file: that of the row ``before`` with its key, else one whose keys are near."""
    n_files = len(old.entries)
    pair, n_pairs = codes_of([before, fresh], view.pair)
    file_of = np.full(n_pairs, -1)
    file_of[pair[: len(before)]] = before.column(FILE).to_numpy()
    places = file_of[pair[len(before) :]]
    waiting = np.flatnonzero(places < 0)
    if not len(waiting):
        return places
    sizes = [int(entry["num_records"]) for entry in old.entries]
    smallest = min(range(n_files), key=sizes.__getitem__, default=n_files)
    places[waiting] = smallest if n_files and sizes[smallest] + len(waiting) <= ROWS_PER_FILE else n_files
    first = view.keys[0] if view.keys else ""
    lows = sorted((low, number) for number, entry in enumerate(old.entries) if (low := entry.get(f"min.{first}")) is not None)
    if lows and _is_plain(fresh.schema.field(first).type):
        # As in the leaves of a tree: a key goes to the last file that begins at or before it.
        keys = fresh.column(first).take(pa.array(waiting)).to_pylist()
        begins = [low for low, _ in lows]
        places[waiting] = [lows[max(0, bisect_right(begins, key) - 1)][1] if key is not None else lows[0][1] for key in keys]
    return places


def _may_hold(entry: Mapping[str, Any], pairs: pa.Table, keys: Sequence[str]) -> Bools:
    """Mask of those ``pairs`` of which the file may have rows, by its statistics."""
    may = np.ones(len(pairs), np.bool_)
    for name in keys:
        column, low, high = pairs.column(name), entry.get(f"min.{name}"), entry.get(f"max.{name}")
        if low is None or high is None or not _is_plain(column.type):
            continue
        within = pc.and_(pc.greater_equal(column, pa.scalar(low, column.type)), pc.less_equal(column, pa.scalar(high, column.type)))
        may &= pc.fill_null(within, entry.get(f"null_count.{name}") != 0).to_numpy()
    return may


def _is_plain(kind: pa.DataType) -> bool:
    """Whether the bounds of a column of this type in a statistic are exact, or wider, in every writer's log."""
    return bool(pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_date(kind))


def _entries(files: Iterable[DataFile]) -> list[Mapping[str, Any]]:
    """``files`` that no log names yet, as entries of a log without statistics."""
    return [{"path": file.path, "num_records": file.rows} for file in files]


def _paths(entries: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    return tuple(str(entry["path"]) for entry in entries)


def _columns(table: DeltaTable) -> list[tuple[str, pa.DataType]]:
    return [(each.name, each.type) for each in pa.schema(table.schema().to_arrow())]


def _with_files(rows: pa.Table, *, shift: int) -> pa.Table:
    """``rows`` with other numbers of files."""
    at = rows.schema.get_field_index(FILE)
    return rows.set_column(at, FILE, pc.add(rows.column(FILE), shift))


def numbers_of(rows: pa.Table, name: str) -> Ints:
    """A column of instants or numbers as int64, with :data:`_NULL` for null."""
    return np.asarray(pc.fill_null(rows.column(name).cast(pa.int64()), _NULL).to_numpy())


def _last_of(columns: Sequence[np.ndarray]) -> Bools:
    """Mask of the last row of each run of equal rows."""
    differs = np.zeros(max(0, len(columns[0]) - 1), np.bool_)
    for values in columns:
        differs |= values[1:] != values[:-1]
    return np.append(differs, np.ones(min(1, len(columns[0])), np.bool_))
