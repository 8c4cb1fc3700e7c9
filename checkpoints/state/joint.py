"""The one state table of a pipeline whose windows go several ways: its columns, which rows are whose, and its compaction.

A row belongs to one part of the pipeline. It has the columns of that part and is null in all others, so its checksum is that of its own
columns.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from deltalake import ColumnProperties, QueryBuilder, WriterProperties, write_deltalake

from windowmill.checkpoints.features import delta_rs_can_write
from windowmill.checkpoints.quoting import quoted
from windowmill.checkpoints.state.base import REWRITE, batches_of, files_of, number_of_rows, order_of
from windowmill.checkpoints.state.log import latest_entries, own_entries
from windowmill.checkpoints.state.partials import NeededRows
from windowmill.checkpoints.state.position_compaction import needed_rows, rows_of_group, search_order
from windowmill.checkpoints.state.wanted import span_condition
from windowmill.checkpoints.stores import table_at
from windowmill.windowing.columnar.added_columns import BATCH, CLOSED, KIND, LEVEL, REACHING, SLICE, SUM
from windowmill.windowing.columnar.known_spans import columns_of
from windowmill.windowing.columnar.positions import LIVE, SEQUENCE
from windowmill.windowing.columnar.session_partials import FIRST, GAP, LAST
from windowmill.windowing.errors import SpecError

if TYPE_CHECKING:
    from windowmill.windowing.spec import Pipeline
    from windowmill.windowing.ways import WayName

#: Columns that tell whose a row is, or by which rows are read: they come first, because Delta keeps statistics of the first columns only.
_LEADING = (KIND, SEQUENCE, SLICE, LEVEL, REACHING, CLOSED, GAP, FIRST, LAST, BATCH)


def joint_schema(pipeline: Pipeline, parts: Sequence[pa.Schema]) -> pa.Schema:
    """Schema of the state table of a pipeline's ``parts``: that of a single part, else keys, leading columns, spans, others, checksum.

    Raises
    ------
    SpecError
        If a column would stand for different things, or differ from another in case alone.
    """
    if len(parts) == 1:
        return parts[0]
    found: dict[str, pa.Field] = {}
    spans = columns_of([window.name for window in pipeline.windows if window.fills_gaps])
    for field in (field for schema in parts for field in schema):
        same = found.setdefault(field.name.lower(), field)
        # A column of the source that live rows store may be named like one of spans.
        if (same.name, same.type) != (field.name, field.type) or (same is not field and field.name in spans):
            raise SpecError(
                f"pipeline {pipeline.pipeline}: two columns of the state would be named {field.name!r}; rename a window, or a column in a "
                "view of the source"
            )
    clash = next((key for key in pipeline.keys if key.lower() in (*_LEADING, SUM)), None)
    if clash is not None:
        raise SpecError(
            f"pipeline {pipeline.pipeline}: keys: {clash!r} is taken by a column of the state; rename the column in the source or by a view"
        )
    first = [name for name in (*map(str.lower, pipeline.keys), *_LEADING, *spans) if name in found]
    rest = [name for name in found if name not in (*first, SUM)]
    return pa.schema([found[name] for name in (*first, *rest, SUM)])


def own_rows(way: WayName, ways: Collection[WayName], spans: Sequence[str] = ()) -> str:
    """The SQL condition for the rows of the part that goes ``way``, in a table of parts that go these ``ways``.

    Rows of spans belong to the slices; each has a value in one of the columns ``spans``.
    """
    if len(ways) == 1:
        return "true"
    if way == "live rows":
        return own_entries(beside_positions="positions" in ways).sql
    if way == "slices" and spans:
        return f"({SLICE} IS NOT NULL OR {span_condition(spans)})"
    mark = {"slices": SLICE, "sessions": GAP, "positions": SEQUENCE}[way]
    return f"{mark} IS NOT NULL"


def compact_entries(
    path: str,
    before_batch: int,
    ways: Collection[WayName],
    needed: NeededRows | None = None,
    *,
    spans: Sequence[str] = (),
    first: int | None = None,
) -> int:
    """Rewrite the table at ``path`` without rows that no later batch needs, in one commit; returns the number of rows removed. No JVM.

    These are superseded entries of the log of live rows; superseded rows of keys, applied tuples, and nodes over positions that begin
    before all windows; superseded spans. Partials of slices and sessions stay, or those that are ``needed``, if given. Rows of
    ``before_batch`` itself, which a failed attempt may have left, stay. Nodes over positions are sorted, and cut into row groups, as
    they are searched. A table with features that delta-rs cannot write is left as it is.

    Parameters
    ----------
    ways
        The ways of the parts whose rows are in the table.
    spans
        Columns of which each row of spans has a value in one.
    first
        The first batch whose rows are rewritten, and no older ones; null for all. Only where all windows go over positions.
    """
    table = table_at(path)
    if not delta_rs_can_write(table):
        return 0
    schema = pa.schema(table.schema().to_arrow())
    since = "true" if first is None else f"{BATCH} >= {first}"
    removes = first is None or all(batches_of(file)[0] >= first for file in files_of(table))
    query = _kept(schema, f"{BATCH} < {before_batch} AND {since}", before_batch, ways, needed, spans, removes=removes)
    group = rows_of_group(files_of(table)) if "positions" in ways else None
    before = number_of_rows(table)
    # Write to the version that was read: otherwise rows that another writer has appended since would be lost.
    write_deltalake(
        table,
        QueryBuilder().register("state", table).execute(query),
        mode="overwrite",
        predicate=None if first is None else since,
        commit_properties=REWRITE,
        # With properties of its own, delta-rs does not compress unless told to. Hardly any two checksums are equal.
        writer_properties=WriterProperties(
            compression="ZSTD", max_row_group_size=group, column_properties={SUM: ColumnProperties(dictionary_enabled=False)}
        ),
    )
    return before - number_of_rows(table_at(path))


def _kept(
    schema: pa.Schema,
    where: str,
    before_batch: int,
    ways: Collection[WayName],
    needed: NeededRows | None,
    spans: Sequence[str],
    *,
    removes: bool,
) -> str:
    """The SQL query for the rows for which ``where`` holds that a later batch may need, and for those of ``before_batch``.

    ``removes`` is as for :func:`.needed_rows`.
    """
    live = LIVE in schema.names
    names, keys = ", ".join(map(quoted, schema.names)), schema.names[: schema.get_field_index(KIND)]
    kept = [f"SELECT {names} FROM state WHERE {BATCH} >= {before_batch}"]
    for way in ways:
        own = f"{where} AND {own_rows(way, ways, spans)}"
        if way == "live rows":
            kept.append(f"SELECT {names} FROM ({latest_entries('state', keys, own)})")
        elif way == "positions":
            kept.append(f"SELECT {names} FROM ({needed_rows('state', keys, own, live=live, removes=removes)})")
        else:
            still = "true" if needed is None else f"({needed.sql})"
            rows = f"state WHERE {own}"
            if way == "slices" and spans:
                rows = NeededRows.all_but_old_spans(keys, spans, before_batch).latest_of(rows)
            kept.append(f"SELECT {names} FROM {rows} AND {still}")
    order = search_order(keys, live=live) if "positions" in ways else []
    order += order_of(schema.names) if len(ways) > 1 else []
    query = " UNION ALL ".join(kept)
    return f"SELECT {names} FROM ({query}) ORDER BY {', '.join(order)}" if order else query
