"""Reads the rows of a table's or folder's files for corrections and purges, with the values that runs read: by Arrow, else by Spark.

A row is known by its file and its number in it. Rows that a deletion vector takes out are left out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING
from urllib.parse import unquote

import numpy as np
import pyarrow as pa

from windowmill.checkpoints.quoting import backquoted
from windowmill.checkpoints.stores import table_at
from windowmill.jobs.sources.base import AddedFile, Reading
from windowmill.jobs.sources.columns import FILE, ROW, UNREAD, Columns, used_columns
from windowmill.jobs.sources.delta_log import DeltaSource
from windowmill.jobs.sources.folder import FolderSource
from windowmill.jobs.sources.plain_files import Form, NotPlainError, OpenFile, constant
from windowmill.jobs.sources.plain_rows import batches_of
from windowmill.jobs.sources.spark_files import rows_of
from windowmill.windowing.errors import SourceRangeGoneError
from windowmill.windowing.spec import Pipeline

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from windowmill.jobs.sources.base import PlainFile

#: Rows of files that Spark reads at a time.
_BY_SPARK = 1_000_000
#: For each file with deleted rows, by its path, which rows are left; rows behind the end are.
Live = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class TableRows:
    """The rows of ``source``; ``spark`` starts Spark for files that Arrow would read otherwise, or refuses to, saying why.

    Attributes
    ----------
    used
        The columns that the pipeline uses, which are read as runs read them.
    """

    source: DeltaSource | FolderSource
    used: tuple[str, ...]
    spark: Callable[[str], SparkSession]

    @classmethod
    def of(cls, pipeline: Pipeline, source: DeltaSource | FolderSource, spark: Callable[[str], SparkSession]) -> TableRows:
        """The rows of ``source``, of which ``pipeline`` uses some columns."""
        return cls(source, tuple(used_columns(pipeline, Columns.of(source.schema_json).struct.names)), spark)

    @property
    def table(self) -> DeltaSource:
        """The source, whose log says what its versions changed."""
        assert isinstance(self.source, DeltaSource)  # of others nobody asks
        return self.source

    @cached_property
    def types(self) -> Mapping[str, pa.DataType]:
        """Arrow types of the source's columns."""
        return Columns.of(self.source.schema_json).arrow

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
        folder have ``UNREAD`` too.
        """
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
        if file.text is not None:
            return self._of_text(file, [*columns, *others])
        form = Form(self.types, Columns.of(self.source.schema_json).fixed_lengths)
        opened = OpenFile(file, form)
        readable = [*columns]
        try:
            opened.check(columns)
            for name in {*columns, *others} - file.names.keys():
                constant(file.constants.get(name), self.types[name])
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
        for batch in batches_of(file, Form(self.types), [*columns, UNREAD]):
            yield pa.Table.from_batches([batch]).append_column(ROW, pa.array(np.arange(first, first + batch.num_rows)))
            first += batch.num_rows

    def _read(self, opened: OpenFile, readable: Sequence[str], columns: Sequence[str]) -> Iterator[pa.Table]:
        first = 0
        with opened:
            unread = [UNREAD] if self.source.has_unread else []
            for batch in opened.batches([*readable, *unread]):
                rows = pa.Table.from_batches([batch])
                own = {name: rows[name] if name in readable else pa.nulls(len(rows), self.types[name]) for name in columns}
                rows = pa.table(own | {name: rows[name] for name in unread})
                yield rows.append_column(ROW, pa.array(np.arange(first, first + batch.num_rows)))
                first += batch.num_rows

    def _by_spark(self, files: Sequence[AddedFile], live: Live, columns: Sequence[str]) -> Iterator[tuple[AddedFile, pa.Table]]:
        if not files:
            return
        frame = rows_of(self.spark(f"Arrow would read values of {files[0].path} otherwise"), self.source, Reading(tuple(files)))
        rows = frame.select(*map(backquoted, columns), FILE, ROW).toArrow()
        rows = rows.cast(pa.schema([*((name, self.types[name]) for name in columns), (FILE, pa.int32()), (ROW, pa.int64())]))
        rows = rows.sort_by([(FILE, "ascending"), (ROW, "ascending")])
        bounds = np.searchsorted(rows.column(FILE).to_numpy(), range(len(files) + 1))
        for number, file in enumerate(files):
            own = rows.slice(bounds[number], bounds[number + 1] - bounds[number]).drop_columns([FILE])
            yield file, left(own, live.get(file.path))


def live_rows(source: DeltaSource, version: int, paths: Collection[str] | None = None) -> Live:
    """Of the files of ``source`` at ``version`` with deleted rows, or of those at ``paths`` among them, which rows are left."""
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

    @property
    def has_unread(self) -> bool:
        return True

    def plain_files(self, reading: Reading) -> list[PlainFile] | None:
        files = super().plain_files(reading)
        return None if files is None else [replace(file, names={**file.names, UNREAD: UNREAD}) for file in files]

    def rows(self, spark: SparkSession, reading: Reading) -> DataFrame:
        return rows_of(spark, with_column(self, {"name": UNREAD, "type": "string", "nullable": True, "metadata": {}}), reading)
