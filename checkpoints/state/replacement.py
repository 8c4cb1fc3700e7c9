"""Replaces all rows of a state table in one commit: by those that a batch has built, and copies of the rows of other keys."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from windowmill.checkpoints.batches import Changes
from windowmill.checkpoints.data_files import DataFile, FileWriter
from windowmill.checkpoints.delta_tables import newest
from windowmill.checkpoints.state.base import files_of, order_of
from windowmill.checkpoints.state.reading import read_file, reporting_damage
from windowmill.checkpoints.stores import is_table
from windowmill.windowing.columnar.added_columns import NUMBER_OF
from windowmill.windowing.columnar.rows import are_among
from windowmill.windowing.watermark import COMMIT_SHIFT


def replacing(path: str, built: Changes | None, kept: tuple[DataFile, ...] = ()) -> Changes | None:
    """The changes of the state at ``path`` by which the rows that a batch has ``built`` replace all that are there.

    Parameters
    ----------
    built
        What the batch adds; null for nothing.
    kept
        Files with rows that stay, as of :func:`keep`.
    """
    if not is_table(path):
        return built
    table = newest(path)
    removes = tuple(str(file["path"]) for file in files_of(table))
    if built is None:
        built = Changes.of(pa.schema(table.schema().to_arrow()))
    return replace(built, kept=kept, removes=removes)


def rows_numbered(path: str, commit: int) -> int:
    """One more than the greatest place among the rows of ``commit`` that the state at ``path`` holds; 0 if it holds none of them."""
    if not is_table(path):
        return 0
    with reporting_damage(path):
        table = newest(path)
        schema = pa.schema([field for field in pa.schema(table.schema().to_arrow()) if field.name == NUMBER_OF])
        columns = [read_file(table.table_uri, file, schema, schema.names).column(NUMBER_OF) for file in files_of(table) if len(schema)]
    first = commit << COMMIT_SHIFT
    numbers = [column.drop_null().to_numpy() for column in columns]
    return max((int(own.max()) + 1 - first for each in numbers if len(own := each[each >> COMMIT_SHIFT == commit])), default=0)


def keep(path: str, touched: pa.Table, *, batch: int, attempt: str) -> tuple[DataFile, ...]:
    """Copy the rows of the state at ``path`` whose keys are not ``touched`` to files of their own; returns these.

    ``touched`` has the key columns alone, which are the first of the state, whatever it calls them. Without key columns nothing stays.
    """
    if not is_table(path) or not touched.num_columns:
        return ()
    with reporting_damage(path):
        table = newest(path)
        schema = pa.schema(table.schema().to_arrow())
        keys = schema.names[: touched.num_columns]
        own = touched.rename_columns(keys).cast(pa.schema([schema.field(name) for name in keys]))
        with FileWriter(path, schema, batch=batch, attempt=attempt, task=0, order=order_of(schema.names)) as writer:
            for file in files_of(table):
                rows = read_file(table.table_uri, file, schema, schema.names)
                writer.write(rows.filter(pa.array(~are_among(rows, own, keys))))
    return writer.close()
