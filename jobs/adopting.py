"""Whether the rows that an earlier attempt wrote are those that this one computed. Asked only after a crash."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from pyspark.sql import functions as F
from pyspark.sql.types import FractionalType

from checkpoints.quoting import backquoted
from windowing.columnar.checksums import SUM

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def same_rows(mine: DataFrame, theirs: DataFrame, *, partials: bool = False) -> bool:
    """Whether the two hold the same rows, each as often, by the columns of ``mine``; NaN equals NaN.

    Of two attempts one may have worked in Spark and the other in its own process, so the last bits of floats may differ: where the rows
    are not equal to the bit, floats are compared to nine digits. ``partials`` says that the rows are state: what stands beside a sum is
    its rounding error, of which no digit has to agree, so floats and the checksums over them are left out then.
    """
    if any(name not in theirs.columns for name in mine.columns):
        return False
    theirs = theirs.select(*(theirs[backquoted(name)].cast(mine.schema[name].dataType).alias(name) for name in mine.columns))
    return _equal(mine, theirs) or _equal(_about(mine, partials=partials), _about(theirs, partials=partials))


def _equal(mine: DataFrame, theirs: DataFrame) -> bool:
    return mine.exceptAll(theirs).isEmpty() and theirs.exceptAll(mine).isEmpty()


def _about(rows: DataFrame, *, partials: bool) -> DataFrame:
    """``rows`` with their floats to nine digits, or without them."""
    columns = []
    for field in rows.schema:
        column = F.col(backquoted(field.name))
        if field.name == SUM or (partials and isinstance(field.dataType, FractionalType)):
            continue
        columns.append(F.format_string("%.9e", column.cast("double")) if isinstance(field.dataType, FractionalType) else column)
    return rows.select(*columns)


def same_quarantined(mine: pa.Table, path: str, batch: int) -> bool:
    """Whether the quarantine table at ``path`` holds of ``batch`` the rows of ``mine``, with their reasons.

    Without Spark, which cannot read quarantine tables of format 1.
    """
    query = f"SELECT reason, source_version, row FROM quarantine WHERE batch = {batch}"
    theirs = pa.table(QueryBuilder().register("quarantine", DeltaTable(path)).execute(query).read_all())
    return _counted(mine.select(theirs.schema.names)) == _counted(theirs)


def _counted(rows: pa.Table) -> Counter[tuple[object, ...]]:
    return Counter(zip(*(column.to_pylist() for column in rows.columns), strict=True))
