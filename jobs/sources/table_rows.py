"""Reads the rows of a source's files for corrections and purges, and finds those that versions changed.

A row is identified by its file and row number. Rows that a deletion vector removes are left out.

Changed rows are in the change data files of a version, if it has some. Otherwise they are the rows of the files that it removed which are
not in the files that it added, and vice versa: rows that were only moved are in both. Two rows are equal if they have equal values in the
columns that the pipeline uses.

:func:`queried` gives rows of a pipeline's own tables.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import DeltaError

from windowmill.checkpoints.quoting import backquoted, quoted
from windowmill.checkpoints.stores import is_unavailable, table_at
from windowmill.jobs.sources.base import AddedFile, LoggedVersion, Reading
from windowmill.jobs.sources.columns import Columns, used_columns
from windowmill.jobs.sources.delta_log import DeltaSource
from windowmill.jobs.sources.folder import FolderSource
from windowmill.jobs.sources.plain_files import Form, NotPlainError, OpenFile, constant
from windowmill.jobs.sources.plain_rows import batches_of
from windowmill.jobs.sources.spark_files import evaluate_steps, rows_of
from windowmill.windowing.columnar.added_columns import FILE, ROW, UNREAD
from windowmill.windowing.columnar.hashes import row_checksums
from windowmill.windowing.errors import SourceRangeGoneError, first_line
from windowmill.windowing.spec import Pipeline

if TYPE_CHECKING:
    from windowmill.jobs.sources.base import PlainFile
    from windowmill.jobs.sources.row_steps import RowSteps
    from windowmill.jobs.spark.access import DataFrame, SparkSession

#: Rows of files that Spark reads at a time.
_BY_SPARK = 1_000_000
#: For each file with deleted rows, by its path, the mask of the rows that are left; all rows beyond its end are, too.
Live = Mapping[str, np.ndarray]
#: Column of a changed row in addition to those asked for: its checksum over the columns that the pipeline uses.
_OF_ROW = "_of_row"
#: The column of change data files with the kind of change, and its values for rows that were removed.
_KIND, _WENT = "_change_type", ("delete", "update_preimage")
#: A side of a version that changes rows.
Side = Literal["before", "after"]
#: Rows that are compared or filtered at a time.
ROWS_AT_ONCE = 1_000_000


@dataclass(frozen=True)
class TableRows:
    """The rows of ``source``; ``spark`` starts Spark for files that Arrow would read otherwise, or refuses to, saying why.

    ``used``: the columns that the pipeline uses, which are read as runs read them.
    """

    source: DeltaSource | FolderSource
    used: tuple[str, ...]
    spark: Callable[[str], SparkSession]

    @classmethod
    def of(cls, pipeline: Pipeline, source: DeltaSource | FolderSource, spark: Callable[[str], SparkSession]) -> TableRows:
        """The rows of ``source``, of which ``pipeline`` uses some columns."""
        return cls(source, tuple(used_columns(pipeline, Columns.of_source(source).struct.names)), spark)

    @property
    def table(self) -> DeltaSource:
        """The source, whose log says what its versions changed."""
        assert isinstance(self.source, DeltaSource)  # of others nobody asks
        return self.source

    @cached_property
    def types(self) -> Mapping[str, pa.DataType]:
        """Arrow types of the columns that windows see."""
        return Columns.of_source(self.source).arrow

    @cached_property
    def _stored(self) -> Columns:
        """The columns of the files."""
        return Columns.of(self.source.schema_json)

    @cached_property
    def _stored_types(self) -> Mapping[str, pa.DataType]:
        return self._stored.arrow

    @cached_property
    def _steps(self) -> RowSteps | None:
        return None if self.source.reader is None else self._stored.steps(self.source.reader)

    @cached_property
    def known_by(self) -> tuple[str, ...]:
        """The columns by whose values a row in quarantine is found again, unless by its number: those that depend on no other table."""
        if self._steps is None or not (looked_up := self._steps.looked_up):
            return self.used
        return tuple(name for name in self.types if name.lower() not in looked_up)

    @property
    def others(self) -> tuple[str, ...]:
        """The columns that the pipeline does not use."""
        return tuple(name for name in self.types if name not in self.used)

    def at(
        self, version: int, columns: Sequence[str], others: Sequence[str] = (), *, chosen: Callable[[AddedFile], bool] = lambda _: True
    ) -> Iterator[tuple[AddedFile, pa.Table]]:
        """The rows of the table at ``version``, of ``chosen`` files; see :meth:`of_files`."""
        files = [file for file in self.source.snapshot(version) if chosen(file)]
        gone = self.source.missing(files) if isinstance(self.source, DeltaSource) else None
        if gone is not None:
            raise SourceRangeGoneError(
                f"source {self.source.path}: the file {gone.path} of version {version} is gone (VACUUM); `windowmill restate … --from … "
                "--to …` computes the windows that are named from the table as it is now"
            )
        yield from self.of_files(files, self._live(version), columns, others)

    def _live(self, version: int) -> Live:
        return live_rows(self.source, version) if isinstance(self.source, DeltaSource) and self.source.deletion_vectors else {}

    def of_files(
        self, files: Sequence[AddedFile], live: Live, columns: Sequence[str], others: Sequence[str] = ()
    ) -> Iterator[tuple[AddedFile, pa.Table]]:
        """The rows of ``files`` in their order, some of one file at a time, with ``ROW`` behind their columns.

        Of ``columns`` values are those that runs read; of ``others`` those of types that Arrow does not read so are null. Rows of a
        folder, and rows that go through steps, have ``UNREAD`` too; rows that filters of steps leave out are none of them.
        """
        if self._steps is None:
            yield from self._stored_rows(files, live, columns, others)
            return
        names, wanted = self._stored.struct.names, [*columns, *others]
        read = self._steps.columns_read(wanted, names)
        if self._steps.outside:
            yield from self._by_spark(files, live, wanted, steps=self._steps)
            return
        rest = [name for name in names if name in wanted and name not in read]
        for file, rows in self._stored_rows(files, live, read, rest):
            seen = self._steps.over(rows)
            yield file, seen.select([*wanted, ROW, UNREAD])

    def _stored_rows(
        self, files: Sequence[AddedFile], live: Live, columns: Sequence[str], others: Sequence[str]
    ) -> Iterator[tuple[AddedFile, pa.Table]]:
        """The rows before they go through steps."""
        waiting: list[AddedFile] = []
        plain_files: Sequence[PlainFile | None] = self.source.plain_files(Reading(tuple(files))) or [None] * len(files)
        for file, plain in zip(files, plain_files, strict=True):
            try:
                parts = self._by_arrow(plain, columns, others)
            except NotPlainError:
                waiting.append(file)
                if sum(each.rows or _BY_SPARK for each in waiting) >= _BY_SPARK:
                    yield from self._by_spark(waiting, live, [*columns, *others])
                    waiting = []
                continue
            yield from self._by_spark(waiting, live, [*columns, *others])
            waiting = []
            yield from ((file, left(rows, live.get(file.path))) for rows in parts)
        yield from self._by_spark(waiting, live, [*columns, *others])

    def _by_arrow(self, file: PlainFile | None, columns: Sequence[str], others: Sequence[str]) -> Iterator[pa.Table]:
        """Raises ``NotPlainError`` before the first row, if at all."""
        if file is None:
            raise NotPlainError(self.source.path)
        if file.row_form is not None:
            return self._of_text(file, [*columns, *others])
        types = self._stored_types
        form = Form(types, self._stored.fixed_lengths)
        opened = OpenFile(file, form)
        readable = [*columns]
        try:
            opened.check(columns)
            for name in {*columns, *others} - file.names.keys():
                constant(file.constants.get(name), types[name])
            for name in others:
                with suppress(NotPlainError):
                    opened.check([name])
                    readable.append(name)
        except BaseException:
            opened.__exit__()
            raise
        return self._read(opened, readable, [*columns, *others])

    def _of_text(self, file: PlainFile, columns: Sequence[str]) -> Iterator[pa.Table]:
        first = 0
        for batch in batches_of(file, Form(self._stored_types), [*columns, UNREAD]):
            yield pa.Table.from_batches([batch]).append_column(ROW, pa.array(np.arange(first, first + batch.num_rows)))
            first += batch.num_rows

    def _read(self, opened: OpenFile, readable: Sequence[str], columns: Sequence[str]) -> Iterator[pa.Table]:
        first = 0
        with opened:
            unread = [UNREAD] if self.source.has_unread else []
            for batch in opened.batches([*readable, *unread]):
                rows = pa.Table.from_batches([batch])
                own = {name: rows[name] if name in readable else pa.nulls(len(rows), self._stored_types[name]) for name in columns}
                rows = pa.table(own | {name: rows[name] for name in unread})
                yield rows.append_column(ROW, pa.array(np.arange(first, first + batch.num_rows)))
                first += batch.num_rows

    def _by_spark(
        self, files: Sequence[AddedFile], live: Live, columns: Sequence[str], steps: RowSteps | None = None
    ) -> Iterator[tuple[AddedFile, pa.Table]]:
        """The rows as they are stored; with ``steps``, some of which only Spark evaluates, the rows behind these, and ``UNREAD``."""
        if not files:
            return
        why = f"Arrow would read values of {files[0].path} otherwise" if steps is None else next(iter(steps.outside.values()))
        frame = rows_of(self.spark(why), self.source, Reading(tuple(files)))
        kinds = [(name, (self._stored_types if steps is None else self.types)[name]) for name in columns]
        if steps is not None:
            assert self.source.reader is not None
            frame, kinds = evaluate_steps(frame, self.source.reader, self._stored), [*kinds, (UNREAD, pa.string())]
        rows = frame.select(*(backquoted(name) for name, _ in kinds), FILE, ROW).toArrow()
        rows = rows.cast(pa.schema([*kinds, (FILE, pa.int32()), (ROW, pa.int64())]))
        rows = rows.sort_by([(FILE, "ascending"), (ROW, "ascending")])
        bounds = np.searchsorted(rows.column(FILE).to_numpy(), range(len(files) + 1))
        for number, file in enumerate(files):
            own = rows.slice(bounds[number], bounds[number + 1] - bounds[number]).drop_columns([FILE])
            yield file, left(own, live.get(file.path))


def live_rows(source: DeltaSource, version: int, paths: Collection[str] | None = None) -> Live:
    """The rows left in each file of ``source`` at ``version`` that has deleted rows, or only in those at ``paths``."""
    table = table_at(source.path, version)
    root, found = f"{unquote(table.table_uri).rstrip('/')}/", {}
    for batch in pa.RecordBatchReader.from_stream(table.deletion_vectors()):
        for path, selected in zip(batch.column("filepath").to_pylist(), batch.column("selection_vector"), strict=True):
            own = unquote(path).removeprefix(root)
            if paths is None or own in paths:
                found[own] = np.asarray(selected.values)
    return found


def left(rows: pa.Table, live: np.ndarray | None) -> pa.Table:
    """Those of ``rows``, by their ``ROW``, that are ``live``; null for all."""
    if live is None:
        return rows
    numbers = rows.column(ROW).to_numpy()
    return rows.filter(pa.array((numbers >= len(live)) | live[np.minimum(numbers, max(0, len(live) - 1))] if len(live) else numbers >= 0))


def with_column(source: DeltaSource, field: Mapping[str, object]) -> DeltaSource:
    """``source`` with one more column, ``field`` of Spark's JSON."""
    schema = json.loads(source.schema_json)
    return replace(source, schema_json=json.dumps(schema | {"fields": [*schema["fields"], field]}))


class WrittenRows(DeltaSource):
    """The rows of a folder that a restatement has written to files, each with what of it could not be read."""

    has_unread: ClassVar[bool] = True

    def plain_files(self, reading: Reading) -> list[PlainFile] | None:
        files = super().plain_files(reading)
        return None if files is None else [replace(file, names={**file.names, UNREAD: UNREAD}) for file in files]

    def rows(self, spark: SparkSession, reading: Reading) -> DataFrame:
        return rows_of(spark, with_column(self, {"name": UNREAD, "type": "string", "nullable": True, "metadata": {}}), reading)


def appended_rows(rows: TableRows, version: LoggedVersion, columns: Sequence[str]) -> pa.Table:
    """The ``columns`` of the rows that ``version`` appended, without those deleted in it."""
    live = live_rows(rows.table, version.version) if rows.source.deletion_vectors else {}
    empty = pa.schema([(name, rows.types[name]) for name in columns]).empty_table()
    found: Iterator[pa.Table] = (part.select(list(columns)) for _, part in rows.of_files(version.added, live, columns))
    return pa.concat_tables([empty, *found])


def changed_rows(rows: TableRows, first: int, last: int, columns: Sequence[str], *, only: Side | None = None) -> pa.Table:
    """The ``columns`` of the rows that the versions from ``first`` to ``last`` changed, as they were before and are after, each once.

    With ``only`` as they were or are on this side of each version. The pipeline uses all of ``columns``. Versions that only append, or move
    rows, change none.

    Raises ``SourceRangeGoneError`` if log entries or files of one of them are gone.
    """
    versions = [version.version for version in rows.source.versions(first - 1, last) if version.changes]
    empty = pa.schema([(name, rows.types[name]) for name in columns]).empty_table()
    found = [_changed_by(rows, version, columns, only) for version in versions]
    return pa.concat_tables([empty, *found]).group_by(list(columns), use_threads=False).aggregate([]) if found else empty


def _changed_by(rows: TableRows, version: int, columns: Sequence[str], only: Side | None) -> pa.Table:
    source, actions = rows.table, rows.table.actions(version)
    try:
        change_files = [_file(action["cdc"], version) for action in actions if "cdc" in action]
        sides = _change_data(rows, change_files) if change_files else _moved(rows, version, actions)
        empty = pa.schema([(name, rows.types[name]) for name in rows.used]).empty_table()
        gone, come = (_summed([empty, *side], rows.used, columns) for side in sides)
    except (FileNotFoundError, DeltaError) as err:
        if is_unavailable(err):
            raise
        raise SourceRangeGoneError(
            f"source {source.path}: the rows that version {version} changed cannot be read any more ({first_line(err)}); name the windows "
            "that they touch: `windowmill restate … --from … --to …` computes them from the table as it is now"
        ) from err
    sums = np.concatenate([gone.column(_OF_ROW).to_numpy(), come.column(_OF_ROW).to_numpy()])
    values, place = np.unique(sums, return_inverse=True)
    net = np.bincount(place, np.concatenate([np.full(len(gone), -1.0), np.ones(len(come))]), len(values))
    chosen = {"before": net < 0, "after": net > 0, None: net != 0}[only]
    return pa.concat_tables([gone, come]).filter(pa.array(chosen[place])).select(list(columns))


def _change_data(rows: TableRows, files: Sequence[AddedFile]) -> tuple[Iterable[pa.Table], Iterable[pa.Table]]:
    """The rows that change data files remove, and those that they insert."""
    source = with_column(rows.table, {"name": _KIND, "type": "string", "nullable": True, "metadata": {}})
    kept = [part for _, part in replace(rows, source=source).of_files(_there(rows, files), {}, [*rows.used, _KIND])]
    went = [pc.is_in(part.column(_KIND), pa.array(_WENT)) for part in kept]
    return (
        [part.filter(own) for part, own in zip(kept, went, strict=True)],
        [part.filter(pc.invert(own)) for part, own in zip(kept, went, strict=True)],
    )


def _moved(rows: TableRows, version: int, actions: Sequence[Mapping[str, Any]]) -> tuple[Iterable[pa.Table], Iterable[pa.Table]]:
    """The rows of the files that ``version`` removed, and of those that it added."""
    sides = []
    for kind, at in (("remove", version - 1), ("add", version)):
        own = [action[kind] for action in actions if kind in action and action[kind].get("dataChange", True)]
        files, live = [_file(each, version) for each in own], dict[str, Any]()
        if any(each.get("deletionVector") for each in own):
            live = dict(live_rows(rows.table, at, {file.path for file in files}))
        if any(each.get("partitionValues") is None for each in own):
            # An entry may say less of a file that it removes.
            known = {file.path: file for file in rows.source.snapshot(at)}
            files = [known.get(file.path, file) for file in files]
        sides.append((part for _, part in rows.of_files(_there(rows, files), live, rows.used)))
    return sides[0], sides[1]


def _there(rows: TableRows, files: Sequence[AddedFile]) -> Sequence[AddedFile]:
    """``files``, if all of them exist."""
    gone = rows.source.missing(files)
    if gone is not None:
        raise FileNotFoundError(f"the file {gone.path} is gone (VACUUM)")
    return files


def _file(action: Mapping[str, Any], version: int) -> AddedFile:
    """The file of an action that adds or removes it; a removal may lack the size."""
    return AddedFile(unquote(action["path"]), version, action.get("size") or 0, None, action.get("partitionValues") or {})


def queried(table: DeltaTable, types: Mapping[str, pa.DataType], where: str, names: Mapping[str, str]) -> Iterator[pa.Table]:
    """The rows of ``table`` for which ``where`` holds, some at a time, with columns of ``types``; ``names`` are those in the table."""
    chosen = ", ".join(f"{quoted(own)} AS {quoted(name)}" for name, own in names.items() if name in types)
    query = f"SELECT {chosen} FROM queried WHERE {where}"
    waiting: list[pa.RecordBatch] = []
    for batch in pa.RecordBatchReader.from_stream(QueryBuilder().register("queried", table).execute(query)):
        waiting.append(batch)
        if sum(map(len, waiting)) >= ROWS_AT_ONCE:
            yield _typed(pa.Table.from_batches(waiting), types)
            waiting = []
    if waiting:
        yield _typed(pa.Table.from_batches(waiting), types)


def ends_in_sql(*, timed: bool) -> str:
    """The ends of windows in DataFusion's SQL, as integers on the axis; ``timed`` is whether the axis is time."""
    return "CAST(arrow_cast(window_end, 'Timestamp(Microsecond, Some(\"UTC\"))') AS BIGINT)" if timed else "window_end"


def _typed(rows: pa.Table, types: Mapping[str, pa.DataType]) -> pa.Table:
    """``rows`` with all columns of ``types``, null where they have none."""
    there = set(rows.column_names)
    columns = [rows.column(name).cast(kind) if name in there else pa.nulls(len(rows), kind) for name, kind in types.items()]
    return pa.table(columns, names=list(types))


def _summed(parts: Iterable[pa.Table], used: Sequence[str], columns: Sequence[str]) -> pa.Table:
    """The ``columns`` of the rows of ``parts``, with the checksum of each row over the columns ``used``."""
    summed = ((part.select(list(columns)), row_checksums(part.select(list(used)))) for part in parts)
    return pa.concat_tables([own.append_column(_OF_ROW, sums) for own, sums in summed])
