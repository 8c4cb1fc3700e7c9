"""Counts the output of a batch's pass over its keys: result rows per window, and totals of other rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

#: Number of result rows of a window of the spec, and its first and last window end.
Span = tuple[int, int, int]
#: Spans by window name.
Windows = dict[str, Span]


def count(worked: DataFrame, totals: Mapping[str, Column], *, rows_in: str = "") -> tuple[dict[Any, Span], dict[str, int]]:
    """Count results per window, and compute ``totals``, in one Spark job over ``worked``, which is cached.

    Parameters
    ----------
    totals
        Aggregates over the rows that are not result rows: those without a window.
    rows_in
        Prefix of the result row's columns: the name of a struct and a dot; by default none.
    """
    end = F.col(f"{rows_in}window_end")
    end = F.unix_micros(end) if dict(worked.select(end).dtypes)["window_end"] == "timestamp" else end
    spans = [F.count("*").alias("n"), F.min(end).alias("low"), F.max(end).alias("high")]
    aggregates = [column.alias(name) for name, column in totals.items()]
    windows, values = {}, dict.fromkeys(totals, 0)
    for row in worked.groupBy(F.col(f"{rows_in}window").alias("window")).agg(*spans, *aggregates).collect():
        if row["window"] is not None:
            windows[row["window"]] = (row["n"], row["low"], row["high"])
        else:
            values = {name: row[name] or 0 for name in totals}
    return windows, values
