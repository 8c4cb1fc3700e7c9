"""Publishes result rows to the sink in one idempotent Delta commit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from windowmill.checkpoints.appending import MOST_APPENDED, append_once, writer_once
from windowmill.checkpoints.features import delta_rs_can_write
from windowmill.checkpoints.kept_tables import newest
from windowmill.checkpoints.stores import is_table
from windowmill.windowing.axis import from_us

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: Characters in names of columns that Delta takes only under column mapping.
_ONLY_MAPPED = frozenset(" ,;{}()\n\t=")


def publish(
    rows: DataFrame | pa.Table,
    count: int,
    path: str,
    *,
    app_id: str,
    batch: int,
    metadata: str,
    replaces: tuple[int, int] | None,
    instants: bool,
) -> None:
    """Write ``rows`` as batch ``batch``. Delta skips a batch that has landed already, so check afterwards whose commit landed.

    Parameters
    ----------
    rows
        A table if :func:`takes_table` says so, else a DataFrame.
    replaces
        Range (begin, end] of window ends whose rows are replaced (a backfill of a running pipeline); null to append.
    instants
        Whether window ends are timestamps rather than integers.
    """
    if isinstance(rows, pa.Table):
        append_once(path, _with_added_columns(path, rows), app_id=app_id, version=batch, metadata=metadata)
    else:
        writer = writer_once(rows, count, app_id=app_id, version=batch, metadata=metadata)
        if replaces is None:
            if not _ONLY_MAPPED.isdisjoint("".join(rows.columns)) and not is_table(path):
                writer = writer.option("delta.columnMapping.mode", "name")
            writer.mode("append").save(path)
        else:
            begin, end = (_literal(bound, instants) for bound in replaces)
            writer.mode("overwrite").option("replaceWhere", f"window_end > {begin} AND window_end <= {end}").save(path)


def takes_table(path: str, rows: pa.Table, replaces: tuple[int, int] | None) -> bool:
    """Whether :func:`publish` takes ``rows`` as a table. It then commits without Spark, to an existing sink, replacing no rows.

    Their types must be those of the sink, whose owner may have changed it: delta-rs converts values without a word, 2.75 to 2 in a column
    of integers, and Spark refuses them.
    """
    if replaces is not None or rows.num_rows > MOST_APPENDED or not is_table(path) or not delta_rs_can_write(path):
        return False
    stored = _schema_of(path)
    return all(field.name not in stored.names or stored.field(field.name).type == field.type for field in rows.schema)


def _with_added_columns(path: str, rows: pa.Table) -> pa.Table:
    """``rows`` with nulls in the columns that the owner of the table at ``path`` has added: delta-rs requires every column."""
    for field in _schema_of(path):
        if field.name not in rows.column_names:
            rows = rows.append_column(field.name, pa.nulls(rows.num_rows, field.type))
    return rows


def _schema_of(path: str) -> pa.Schema:
    return pa.schema(newest(path).schema().to_arrow())


def _literal(bound: int, instants: bool) -> str:
    return f"TIMESTAMP '{from_us(bound):%Y-%m-%d %H:%M:%S.%f} UTC'" if instants else str(bound)
