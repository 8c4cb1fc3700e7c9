"""The one state table of a pipeline: its columns, which part each row belongs to, how it is compacted, and how a batch replaces it.

Each batch appends rows, once, and later batches read what they need. All parts share one table, with the columns of :func:`joint_schema`.
A row belongs to one part of the pipeline. It has the columns of that part and is null in all others, so its checksum depends on the columns
of its part alone.

*Partials.* A batch adds one row for each slice of a key that it touches; readers combine the rows of a slice. Nodes over slices are rows of
the same table. For each open session of a key that it touches, a batch adds one row, which holds the whole session and supersedes its
earlier rows.

*Live rows.* They are kept in a log, in which the latest entry of a key or row counts (:mod:`windowmill.windowing.columnar.keyed`).

Files of compacted rows over positions are large; :mod:`windowmill.checkpoints.state.readers` reads few of their row groups.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from windowmill.checkpoints.batches import Changes
from windowmill.checkpoints.data_files import FileWriter
from windowmill.checkpoints.delta_tables import files_of, newest
from windowmill.checkpoints.state.reading import (
    EVERYTHING,
    Present,
    Where,
    read_file,
    reporting_damage,
    rows_before,
    rows_of_spans,
)
from windowmill.checkpoints.stores import is_table
from windowmill.windowing.columnar.added_columns import (
    ARRIVAL,
    BATCH,
    BUCKET,
    CLOSED,
    DUE,
    FIRST,
    GAP,
    KIND,
    LAST,
    LEVEL,
    NODE_LEVEL,
    NUMBER_OF,
    REACHING,
    ROW_KEY,
    SEQUENCE,
    SLICE,
    SUM,
)
from windowmill.windowing.columnar.keyed import KEY_ENTRY
from windowmill.windowing.columnar.known_spans import span_columns
from windowmill.windowing.columnar.rows import codes_of
from windowmill.windowing.errors import SpecError
from windowmill.windowing.kernels.combine import Bools
from windowmill.windowing.kernels.layout import Layout
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.watermark import AFTER, COMMIT_SHIFT

if TYPE_CHECKING:
    from windowmill.windowing.layouts import StateLayout

_BUCKET = pa.field(BUCKET, pa.int32())
#: Columns that separate the parts' rows, or that reads filter by. They come first: Delta keeps statistics of the first columns only.
_LEADING = (BUCKET, KIND, SEQUENCE, SLICE, LEVEL, REACHING, CLOSED, GAP, NODE_LEVEL, FIRST, LAST, BATCH)


#: Columns by which rows are sorted, where a table has them.
SORTED_BY = (KIND, LEVEL, NODE_LEVEL, REACHING, SLICE, LAST, BUCKET)


def order_of(columns: Sequence[str], *, of_batch: bool = False) -> list[str]:
    """The columns by which rows of a table with these ``columns`` are sorted.

    Rows that are read together are then stored together, so statistics exclude most files and pages from a read of few rows. The files of a
    batch (``of_batch``) are not sorted if no read filters by kind, level or family of slices.
    """
    if of_batch and not {KIND, LEVEL, NODE_LEVEL, REACHING} & set(columns):
        return []
    return [name for name in SORTED_BY if name in columns]


def number_of_rows(table: DeltaTable) -> int:
    return sum(file["num_records"] for file in files_of(table))


def slice_schema(
    keys: dict[str, pa.DataType],
    layout: Layout,
    *,
    nodes: bool = False,
    known: Sequence[str] = (),
    intervals: bool = False,
    revises: bool = False,
) -> pa.Schema:
    """Schema of slices: keys, start of the slice, ``_closed``, batch, partials.

    Only windows that end after ``_closed`` count the slice; null means all. ``nodes`` adds ``_level``, which is 0 for slices; other rows
    are nodes, see :mod:`windowmill.windowing.grids`. ``known`` adds the spans of the windows of these names, in rows of their own.
    ``intervals`` adds ``_reaching``, which is 1 for events that began before the slice and last into it, and 0 for others. ``revises`` adds
    ``_arrival``, the moment at which the late rows of the slice arrived; null for rows in time.
    """
    own = [SLICE, *([LEVEL] if nodes else []), *([REACHING] if intervals else []), CLOSED, *([ARRIVAL] if revises else [])]
    own += [*span_columns(known), BATCH]
    return pa.schema([*keys.items(), *((name, pa.int64()) for name in own), *layout.stored_columns])


def has_nodes(path: str) -> bool:
    """Whether the state table at ``path`` has the column of nodes; batches that do not replace the whole state do not add it."""
    return LEVEL in newest(path).schema().to_arrow().names


def own_entries(*, with_positions: bool) -> Where:
    """The entries of the log; in a table that also has rows over positions, which have a kind, too, the rows without a sequence."""
    return Present(KIND) & Present(SEQUENCE, present=False) if with_positions else Present(KIND)


def entries_before(columns: Collection[str], batch: int) -> Where:
    """The entries of the log from batches before ``batch``, in a table with these ``columns``."""
    return rows_before(batch) & own_entries(with_positions=SEQUENCE in columns)


def of_keys(log: pa.Table, touched: pa.Table, keys: Sequence[str], watermark: int) -> pa.Table:
    """The entries of the keys that are in ``touched`` or due by ``watermark``; O(n) in entries and rows."""
    if not keys:
        return log
    codes, n_keys = codes_of([log, touched], keys)
    marks = log.append_column(ROW_KEY, pa.array(codes[: log.num_rows])).filter(pc.equal(log.column(KIND), KEY_ENTRY)).sort_by(BATCH)
    due = np.full(n_keys, AFTER, np.int64)
    # The last value assigned counts: that of a key's latest entry.
    due[marks.column(ROW_KEY).to_numpy()] = marks.column(DUE).to_numpy()
    wanted = due <= watermark
    wanted[codes[log.num_rows :]] = True
    return log.filter(pa.array(wanted[codes[: log.num_rows]]))


def is_log(path: str) -> bool:
    """Whether the state table at ``path`` is a log of live rows and nothing else."""
    names = newest(path).schema().to_arrow().names
    return KIND in names and not {SEQUENCE, SLICE, GAP} & set(names)


def joint_schema(pipeline: Pipeline, parts: Sequence[pa.Schema]) -> pa.Schema:
    """Schema of the state table of a pipeline's ``parts``: keys and their bucket, leading columns, spans, others, checksum.

    Raises ``SpecError`` if a column would mean different things, or differ from another in case alone.
    """
    n_keys = len(pipeline.keys)
    if len(parts) == 1:
        own = list(parts[0])
        return pa.schema([*own[:n_keys], *([_BUCKET] if n_keys else []), *own[n_keys:]])
    found: dict[str, pa.Field] = {}
    spans = span_columns([window.name for window in pipeline.windows if window.fills_gaps])
    for field in (field for schema in parts for field in schema):
        same = found.setdefault(field.name.lower(), field)
        # Live rows may store a column of the source whose name is that of a column of spans.
        if (same.name, same.type) != (field.name, field.type) or (same is not field and field.name in spans):
            raise SpecError(
                f"pipeline {pipeline.pipeline}: two columns of the state would be named {field.name!r}; rename a window, or a "
                "column in the source"
            )
    if n_keys:
        found[BUCKET] = _BUCKET
    first = [name for name in (*map(str.lower, pipeline.keys), *_LEADING, *spans) if name in found]
    rest = [name for name in found if name not in (*first, SUM)]
    return pa.schema([found[name] for name in (*first, *rest, SUM)])


def keys_of(schema: pa.Schema) -> list[str]:
    """The key columns of a state table: they come first. Columns of parts that a changed spec has added come last."""
    return list(takewhile(lambda name: name not in (*_LEADING, SUM), schema.names))


def own_rows(layout: StateLayout, layouts: Collection[StateLayout], spans: Sequence[str] = ()) -> Where:
    """The rows of the part with this ``layout``, in a table of parts with these ``layouts``.

    Rows of spans belong to the slices; each has a value in one of the columns ``spans``.
    """
    if len(layouts) == 1:
        return EVERYTHING
    own = {
        "slices": Present(SLICE) | rows_of_spans(spans),
        "sessions": Present(GAP),
        "positions": Present(SEQUENCE),
        "live rows": own_entries(with_positions="positions" in layouts),
    }
    return own[layout]


def replacing(path: str, built: Changes | None, taken: Changes | None = None) -> Changes | None:
    """The changes that replace rows of the state at ``path`` by those that a batch has ``built``; null for none.

    ``taken``: the changes that take these rows out, as of :func:`taken_out`; null for all rows.
    """
    if not is_table(path):
        return built
    table = newest(path)
    if taken is None:
        taken = Changes(removes=tuple(str(file["path"]) for file in files_of(table)))
    elif built is None and not taken.removes:
        return None
    if built is None:
        built = Changes.of(pa.schema(table.schema().to_arrow()))
    return replace(built, kept=taken.kept, removes=taken.removes)


def rows_numbered(path: str, commit: int) -> int:
    """The first free row number in ``commit``: one more than the greatest that the state at ``path`` holds; 0 if it holds none."""
    if not is_table(path):
        return 0
    with reporting_damage(path):
        table = newest(path)
        schema = pa.schema([field for field in pa.schema(table.schema().to_arrow()) if field.name == NUMBER_OF])
        columns = [read_file(table.table_uri, file, schema, schema.names).column(NUMBER_OF) for file in files_of(table) if len(schema)]
    first = commit << COMMIT_SHIFT
    numbers = [column.drop_null().to_numpy() for column in columns]
    return max((int(own.max()) + 1 - first for each in numbers if len(own := each[each >> COMMIT_SHIFT == commit])), default=0)


def taken_out(
    path: str, may_hold: Callable[[Mapping[str, Any]], bool], chosen: Callable[[pa.Table], Bools], *, batch: int, attempt: str
) -> Changes:
    """Take rows out of the state at ``path``: rewrites the files that have any.

    - ``may_hold``: whether a file may have such rows.
    - ``chosen``: mask of these rows.
    """
    if not is_table(path):
        return Changes()
    removes = list[str]()
    with reporting_damage(path):
        table = newest(path)
        schema = pa.schema(table.schema().to_arrow())
        with FileWriter(path, schema, batch=batch, attempt=attempt, task=0, order=order_of(schema.names)) as writer:
            for file in filter(may_hold, files_of(table)):
                rows = read_file(table.table_uri, file, schema, schema.names)
                goes = chosen(rows)
                if goes.any():
                    removes.append(str(file["path"]))
                    writer.write(rows.filter(pa.array(~goes)))
    return Changes(kept=writer.close(), removes=tuple(removes))
