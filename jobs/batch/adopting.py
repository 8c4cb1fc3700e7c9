"""Compares the rows that an earlier attempt wrote with those that this attempt computed. Used only after a crash."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING

import pyarrow as pa
from deltalake import QueryBuilder
from pyspark.sql import functions as F
from pyspark.sql.types import FractionalType

from windowmill.checkpoints.quoting import backquoted
from windowmill.checkpoints.stores import table_at
from windowmill.windowing.columnar.added_columns import SUM

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def same_rows(mine: DataFrame, theirs: DataFrame, *, partials: bool = False) -> bool:
    """Whether both hold the same multiset of rows in the columns of ``mine``; NaN equals NaN.

    One attempt may have run in Spark and the other in the driver, so the last bits of floats may differ. If the rows are not bit-identical,
    floats are compared to nine decimals of their scientific notation, and checksums are ignored. With ``partials`` the rows are state. A
    stored sum has its rounding error beside it, of which no digit needs to agree, so floats of state are ignored as well.
    """
    if any(name not in theirs.columns for name in mine.columns):
        return False
    theirs = theirs.select(*(theirs[backquoted(name)].cast(mine.schema[name].dataType).alias(name) for name in mine.columns))
    return _equal(mine, theirs) or _equal(_comparable(mine, partials=partials), _comparable(theirs, partials=partials))


def _equal(mine: DataFrame, theirs: DataFrame) -> bool:
    return mine.exceptAll(theirs).isEmpty() and theirs.exceptAll(mine).isEmpty()


def _comparable(rows: DataFrame, *, partials: bool) -> DataFrame:
    """``rows`` without checksums, and with floats rounded, or dropped if they are ``partials``."""
    columns = []
    for field in rows.schema:
        column = F.col(backquoted(field.name))
        if field.name == SUM or (partials and isinstance(field.dataType, FractionalType)):
            continue
        columns.append(F.format_string("%.9e", column.cast("double")) if isinstance(field.dataType, FractionalType) else column)
    return rows.select(*columns)


def same_quarantined(mine: pa.Table, path: str, batch: int) -> bool:
    """Whether the rows of ``batch`` in the quarantine table at ``path``, with their reasons, are those of ``mine``.

    Read by delta-rs, because Spark cannot read quarantine tables of the first release. One attempt may have run in Spark and the other in
    the driver, so numbers in a row's JSON may have other digits of the same value: 1.0E7 and 10000000.0.
    """
    query = f"SELECT reason, source_version, row FROM quarantine WHERE batch = {batch}"
    theirs = pa.table(QueryBuilder().register("quarantine", table_at(path)).execute(query).read_all())
    return _counted(mine.select(theirs.schema.names)) == _counted(theirs)


def _counted(rows: pa.Table) -> Counter[tuple[object, ...]]:
    found = rows.to_pydict()
    found["row"] = [json.dumps(json.loads(row, parse_float=_rounded)) for row in found["row"]]
    return Counter(zip(*found.values(), strict=True))


def _rounded(number: str) -> str:
    # Spark and this process may write the same 32-bit float with digits that differ after the seventh.
    return f"{float(number):.6e}"
