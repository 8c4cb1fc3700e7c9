"""Windows that plain operators do not express, recomputed by the reference engine over all rows of the sampled keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark.sql import functions as F

from windowmill.checkpoints.quoting import backquoted
from windowmill.jobs.column_names import FILE, ROW
from windowmill.jobs.verify.compare import RecomputedValue
from windowmill.jobs.verify.source_rows import with_conditions
from windowmill.windowing import reference
from windowmill.windowing.axis import to_us
from windowmill.windowing.columnar.added_columns import TIME, UNTIL_OF
from windowmill.windowing.columnar.chunks import without_empty_chunks
from windowmill.windowing.columnar.rows import are_among
from windowmill.windowing.reference.events import ranks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from windowmill.jobs.verify.plain import Plain
    from windowmill.jobs.verify.published import PublishedRow
    from windowmill.jobs.verify.source_rows import Arrival
    from windowmill.windowing.windows.base import Window

#: Most rows of the sampled keys that the reference engine is given; it keeps every row and recomputes every window.
MAX_ROWS = 200_000
_COMMIT, _COUNT = "_commit", "_count"


def recomputed(
    plain: Plain, arrival: Arrival, sampled: Sequence[PublishedRow], keys: pa.Table
) -> tuple[list[dict[str, RecomputedValue] | None], np.ndarray]:
    """The values of the rows ``sampled``, each null if there is no such window; and a mask of those whose keys have too many rows."""
    # Each window is computed by itself; others would cost time.
    asked_for = {row.window for row in sampled}
    whole, read = plain.pipeline, plain.rows.read
    pipeline = whole.model_copy(update={"windows": tuple(window for window in whole.windows if window.name in asked_for)})
    rows, conditions = with_conditions(plain.of_keys(keys, arrival), whole, plain.types)
    names = list(dict.fromkeys([*plain.rows.columns, TIME, UNTIL_OF, FILE, ROW, *conditions.values()]))
    found = rows.select(*map(backquoted, names)).limit(MAX_ROWS + 1).toArrow()
    left_out = np.zeros(len(sampled), np.bool_)
    if found.num_rows > MAX_ROWS:
        if not whole.keys:
            return [None] * len(sampled), ~left_out
        fewest = _fewest(rows, whole.keys)
        left_out = ~are_among(keys, fewest, whole.keys)
        rows, _ = with_conditions(plain.of_keys(fewest, arrival), whole, plain.types)
        found = rows.select(*map(backquoted, names)).toArrow()
    # What moves the watermark: a row of the greatest event time of each commit, whatever its key.
    latest = pa.table(
        {FILE: pa.array([file for file, _ in arrival.latest], pa.int32()), ROW: pa.array([n for _, n in arrival.latest], pa.int64())}
    )
    others, _ = with_conditions(read(sorted({file for file, _ in arrival.latest}), arrival.closed), whole, plain.types)
    others = others.join(F.broadcast(plain.spark.createDataFrame(without_empty_chunks(latest))), [FILE, ROW], "left_semi")
    every = pa.concat_tables([found, others.select(*map(backquoted, names)).toArrow().cast(found.schema)])
    records, commits = _records(every, plain, conditions)
    wanted = {_place_of(row) for row in sampled}

    def asked(window: Window, fired: reference.WindowResult) -> bool:
        return (ranks(fired.key), window.name, fired.span.start, fired.span.end, fired.trigger) in wanted

    outcome = reference.evaluate(pipeline, records, commits=commits, final=False, wanted=asked)
    # In order of revisions, so that the latest one is left.
    newest = {_place(row, [row[name] for name in pipeline.keys]): row for row in outcome.rows}
    values = [newest.get(_place_of(row)) for row in sampled]
    return [None if row is None else {name: RecomputedValue(row[name]) for name in pipeline.aggregates} for row in values], left_out


def _fewest(rows: DataFrame, keys: tuple[str, ...]) -> pa.Table:
    """Those of the keys with the fewest ``rows`` whose rows together are not too many."""
    counted = rows.groupBy(*map(backquoted, keys)).agg(F.count(F.lit(1)).alias(_COUNT)).toArrow().sort_by(_COUNT)
    together = np.cumsum(counted.column(_COUNT).to_numpy())
    return counted.slice(0, int(np.searchsorted(together, MAX_ROWS, side="right"))).select(list(keys))


def _records(found: pa.Table, plain: Plain, conditions: Mapping[str, str]) -> tuple[list[reference.Record], list[int]]:
    """The rows, each once, in order of arrival, with the number of each one's commit; those of settled files arrive one by one."""
    time, files = plain.pipeline.time, plain.rows.files
    columns = {
        name: (
            found.column(name).cast(pa.int64()) if pa.types.is_timestamp(found.schema.field(name).type) else found.column(name)
        ).to_pylist()
        for name in found.column_names
    }
    every = (dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True))
    rows = list({(row[FILE], row[ROW]): row for row in every}.values())
    for row in rows:
        commit = files.commits[row[FILE]] if files.order_known else None
        row[_COMMIT] = -1 if commit is None else commit
    rows.sort(key=lambda row: (row[_COMMIT], row[TIME] if row[_COMMIT] < 0 else 0, row[FILE], row[ROW]))
    records, commits = [], []
    for number, row in enumerate(rows):
        commits.append(number if row[_COMMIT] < 0 else len(rows) + row[_COMMIT])
        # Numbers are as the reference engine takes them; instants, dates and texts of the source are on the axis in a column of their own.
        axis = {} if time.unit else {time.column: row[TIME]} | ({time.end: row[UNTIL_OF]} if time.end else {})
        values = row | axis
        records.append(reference.Record(values, frozenset(text for text, name in conditions.items() if row[name])))
    return records, commits


def _place_of(row: PublishedRow) -> tuple[Any, ...]:
    key = ranks([to_us(value) if isinstance(value, datetime) else value for value in row.key])
    return key, row.window, row.start, row.end, row.trigger


def _place(row: Mapping[str, Any], key: Sequence[Any]) -> tuple[Any, ...]:
    return ranks(key), row["window"], row["window_start"], row["window_end"], row["trigger"]
