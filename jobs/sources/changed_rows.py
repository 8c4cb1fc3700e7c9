"""Finds the rows that versions of a Delta table inserted, updated or removed other than by appending. No JVM where Arrow reads the files.

They are in the change data files of a version, if it has some. Otherwise they are the rows of the files that it removed which are not in
the files that it added, and vice versa: rows that were only moved are in both. Two rows are equal if they have equal values in the
columns that the pipeline uses. Queries of a pipeline's own tables are here, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import DeltaError

from windowmill.checkpoints.quoting import quoted
from windowmill.checkpoints.stores import is_unavailable
from windowmill.jobs.sources.base import AddedFile
from windowmill.jobs.sources.table_rows import TableRows, live_rows, with_column
from windowmill.windowing.columnar.checksums import row_checksums
from windowmill.windowing.errors import SourceRangeGoneError, first_line

#: Column of a changed row in addition to those asked for: its checksum over the columns that the pipeline uses.
_OF_ROW = "_of_row"
#: The column of change data files with the kind of change, and its values for rows that were removed.
_KIND, _WENT = "_change_type", ("delete", "update_preimage")
#: A side of a version that changes rows.
Side = Literal["before", "after"]
#: Rows that are compared or filtered at a time.
ROWS_AT_ONCE = 1_000_000


def changed_rows(rows: TableRows, first: int, last: int, columns: Sequence[str], *, only: Side | None = None) -> pa.Table:
    """The ``columns`` of the rows that the versions from ``first`` to ``last`` changed, as they were before and are after, each once.

    With ``only`` as they were or are on this side of each version. The pipeline uses all of ``columns``. Versions that only append, or move
    rows, change none.

    Raises
    ------
    SourceRangeGoneError
        If log entries or files of one of them are gone.
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
    """The file of an action that adds or removes it, of which the latter may lack its size."""
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
