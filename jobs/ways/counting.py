"""Counting what a batch's pass over its keys has come to: result rows by window, and totals of all else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

#: Rows of a window of the spec, and its first and last window end.
Span = tuple[int, int, int]
#: By the window's name.
Windows = dict[str, Span]


def count(worked: DataFrame, totals: Mapping[str, Column], *, rows_in: str = "") -> tuple[dict[Any, Span], dict[str, int]]:
    """Compute ``worked``, which is cached, and count it: spans by what its column ``window`` holds, and totals.

    Parameters
    ----------
    totals
        Aggregates over the rows that are no result rows: those without a window.
    rows_in
        Where a row has its result row: a struct and a dot; by default among its columns.
    """
    end = F.col(f"{rows_in}window_end")
    end = F.unix_micros(end) if dict(worked.select(end).dtypes)["window_end"] == "timestamp" else end
    spans = [F.count("*").alias("n"), F.min(end).alias("low"), F.max(end).alias("high")]
    asked = [column.alias(name) for name, column in totals.items()]
    windows, found = {}, dict.fromkeys(totals, 0)
    for row in worked.groupBy(F.col(f"{rows_in}window").alias("window")).agg(*spans, *asked).collect():
        if row["window"] is not None:
            windows[row["window"]] = (row["n"], row["low"], row["high"])
        else:
            found = {name: row[name] or 0 for name in totals}
    return windows, found
