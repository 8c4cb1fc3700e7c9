"""Finds the rows that versions of a Delta table changed: inserted, updated or removed beside appending. No JVM.

A version tells them by its change data files, if it has some. Else they are the rows of the files that it removed without those of the
files that it added, and the other way round: rows that were only moved are in both. Where files do not hold just the rows of the
version, as with deletion vectors, the whole table before the version is compared with that after it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import DeltaError

from windowmill.checkpoints.quoting import quoted
from windowmill.checkpoints.stores import table_at
from windowmill.jobs.sources.base import AddedFile, Reading
from windowmill.jobs.sources.columns import Columns
from windowmill.jobs.sources.delta_log import DeltaSource
from windowmill.jobs.sources.plain_files import Form, NotPlainError, OpenFile
from windowmill.windowing.columnar.checksums import row_checksums
from windowmill.windowing.errors import SourceRangeGoneError, first_line

#: Column of a changed row beside those asked for: its checksum over all columns.
_OF_ROW = "_of_row"
#: Rows that are compared or filtered at a time.
ROWS_AT_ONCE = 1_000_000


def changed_rows(source: DeltaSource, first: int, last: int, columns: Sequence[str]) -> pa.Table:
    """The ``columns`` of the rows that the versions from ``first`` to ``last`` changed, as they were before and are after, each once.

    Versions that only append, or move rows, change none.

    Raises
    ------
    SourceRangeGoneError
        If log entries or files of one of them are gone.
    """
    versions = [version.version for version in source.versions(first - 1, last) if version.changes]
    empty = pa.schema([(name, Columns.of(source.schema_json).arrow[name]) for name in columns]).empty_table()
    found = [_changed_by(source, version, columns) for version in versions]
    return pa.concat_tables([empty, *found]).group_by(list(columns), use_threads=False).aggregate([]) if found else empty


def _changed_by(source: DeltaSource, version: int, columns: Sequence[str]) -> pa.Table:
    actions = source.actions(version)
    try:
        if any("cdc" in action for action in actions):
            before, after = _told(source, version)
        else:
            before, after = _moved(source, version, actions)
        empty = _typed(pa.table({}), Columns.of(source.schema_json).arrow)
        gone, come = (_summed(rows, columns, empty) for rows in (before, after))
    except (FileNotFoundError, DeltaError) as err:
        raise SourceRangeGoneError(
            f"source {source.path}: the rows that version {version} changed cannot be read any more ({first_line(err)}); name the windows "
            "that they touch: `windowmill restate … --from … --to …` computes them from the table as it is now"
        ) from err
    sums = np.concatenate([gone.column(_OF_ROW).to_numpy(), come.column(_OF_ROW).to_numpy()])
    values, place = np.unique(sums, return_inverse=True)
    net = np.bincount(place, np.concatenate([np.full(len(gone), -1.0), np.ones(len(come))]), len(values))
    return pa.concat_tables([gone, come]).filter(pa.array(net[place] != 0)).select(list(columns))


def _told(source: DeltaSource, version: int) -> tuple[Iterator[pa.Table], Iterator[pa.Table]]:
    """The rows that the change data of ``version`` removes, and those that it inserts."""
    data = pa.table(table_at(source.path).load_cdf(version, version))
    rows = _typed(data, Columns.of(source.schema_json).arrow)
    removed = pc.is_in(data.column("_change_type").cast(pa.string()), pa.array(["delete", "update_preimage"]))
    return iter([rows.filter(removed)]), iter([rows.filter(pc.invert(removed))])


def _moved(source: DeltaSource, version: int, actions: Sequence[Mapping[str, Any]]) -> tuple[Iterator[pa.Table], Iterator[pa.Table]]:
    """The rows of the files that ``version`` removed, and of those that it added."""
    sides = [[action[name] for action in actions if name in action and action[name].get("dataChange", True)] for name in ("remove", "add")]
    partitioned = len(table_at(source.path, version).metadata().partition_columns)
    every = [*sides[0], *sides[1]]
    if not any(each.get("deletionVector") or len(each.get("partitionValues") or {}) != partitioned for each in every):
        files = [[_file(each, version) for each in side] for side in sides]
        try:
            return iter(list(_rows_of(source, files[0]))), _rows_of(source, files[1])
        except NotPlainError:
            pass
    before = iter(()) if version == 0 else rows_at(source, version - 1)
    return before, rows_at(source, version)


def _file(action: Mapping[str, Any], version: int) -> AddedFile:
    """The file of an action that adds or removes it, of which the latter may lack its size."""
    return AddedFile(unquote(action["path"]), version, action.get("size") or 0, None, action.get("partitionValues") or {})


def _rows_of(source: DeltaSource, files: Sequence[AddedFile]) -> Iterator[pa.Table]:
    columns = Columns.of(source.schema_json)
    form, names = Form(columns.arrow, columns.fixed_lengths), list(columns.arrow)
    plain = source.plain_files(Reading(tuple(files)))
    if plain is None:
        raise NotPlainError(source.path)
    for file in plain:
        with OpenFile(file, form) as opened:
            opened.check(names)
            yield from (pa.Table.from_batches([batch]) for batch in opened.batches(names))


def rows_at(source: DeltaSource, version: int, where: str = "true", columns: Collection[str] | None = None) -> Iterator[pa.Table]:
    """The rows of the source at ``version`` for which the SQL condition ``where`` holds, some at a time; null for all ``columns``."""
    # With column mapping a column may have been renamed since; its name in the files identifies it.
    then = {stored: name for name, stored in source.stored_names(version).items()}
    names = {name: then[stored] for name, stored in source.stored_names().items() if stored in then}
    types = {name: kind for name, kind in Columns.of(source.schema_json).arrow.items() if columns is None or name in columns}
    return queried(table_at(source.path, version), types, where, names)


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


def _summed(rows: Iterator[pa.Table], columns: Sequence[str], empty: pa.Table) -> pa.Table:
    """The ``columns`` of ``rows``, with the checksum of each whole row; ``empty`` has the columns of ``rows``."""
    parts = [part.select(list(columns)).append_column(_OF_ROW, row_checksums(part)) for part in (empty, *rows)]
    return pa.concat_tables(parts)
