"""The sink: result rows leave in one idempotent Delta commit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from deltalake import DeltaTable

from checkpoints.appending import LITTLE_ROWS, append_once, landed, writer_once
from windowing.axis import from_us
from windowing.errors import SinkError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


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
) -> int:
    """Write ``rows`` as batch ``batch`` and give the sink's version.

    Parameters
    ----------
    rows
        A table where they are few and the sink is there already (:func:`takes_table`), else a DataFrame.
    replaces
        (begin, end] of the window ends whose rows are replaced (a backfill of a running pipeline); by default rows are appended.
    instants
        Whether window ends are timestamps; else integers.

    Raises
    ------
    SinkError
        If the commit did not land.
    """
    if isinstance(rows, pa.Table):
        append_once(path, rows, app_id=app_id, version=batch, metadata=metadata)
    else:
        writer = writer_once(rows, count, app_id=app_id, version=batch, metadata=metadata)
        if replaces is None:
            writer.mode("append").save(path)
        else:
            begin, end = (_literal(bound, instants) for bound in replaces)
            writer.mode("overwrite").option("replaceWhere", f"window_end > {begin} AND window_end <= {end}").save(path)
    version = landed(path, app_id=app_id, version=batch)
    if version is None:
        raise SinkError(f"sink {path}: the commit of batch {batch} did not land; run again")
    return version


def takes_table(path: str, count: int, replaces: tuple[int, int] | None) -> bool:
    """Whether :func:`publish` takes ``count`` rows as a table: a commit without Spark, which creates no sink and replaces no rows."""
    return replaces is None and count <= LITTLE_ROWS and DeltaTable.is_deltatable(path)


def _literal(bound: int, instants: bool) -> str:
    return f"TIMESTAMP '{from_us(bound):%Y-%m-%d %H:%M:%S.%f} UTC'" if instants else str(bound)
