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
from windowmill.jobs.verify.source_rows import Reaches, SampledRows, with_conditions
from windowmill.windowing import reference
from windowmill.windowing.axis import AXIS_BEGIN, to_us
from windowmill.windowing.columnar.added_columns import TIME, UNTIL_OF
from windowmill.windowing.columnar.rows import codes_of, first_rows, without_empty_chunks
from windowmill.windowing.kernels.lift import condition_column
from windowmill.windowing.reference.events import ranks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from windowmill.jobs.verify.compare import PublishedRow
    from windowmill.jobs.verify.plain import Plain
    from windowmill.jobs.verify.source_rows import Arrival
    from windowmill.windowing.spec import Pipeline
    from windowmill.windowing.windows.base import Window

#: Most rows of the sampled keys that the reference engine is given for a window; it keeps every row.
MAX_ROWS = 500_000
_COMMIT, _COUNT = "_commit", "_count"


def recomputed(
    plain: Plain, arrival: Arrival, sampled: Sequence[PublishedRow], keys: pa.Table, found: SampledRows | None
) -> tuple[list[dict[str, RecomputedValue] | None], np.ndarray]:
    """The values of the rows ``sampled``, each null if there is no such window; and a mask of those whose keys have too many rows.

    ``found`` are the rows of these keys, and those by which the watermark moves; null if Spark reads them.
    """
    if found is None:
        found = _by_spark(plain, keys, arrival)
    # What moves the watermark: a row of the greatest event time of each commit, whatever its key.
    latest = set(arrival.latest)
    moving = [at in latest for at in zip(found.latest.column(FILE).to_pylist(), found.latest.column(ROW).to_pylist(), strict=True)]
    others = found.latest.filter(pa.array(moving, pa.bool_()))
    values: list[dict[str, RecomputedValue] | None] = [None] * len(sampled)
    left_out = np.zeros(len(sampled), np.bool_)
    for window in plain.pipeline.windows:
        own = [n for n, row in enumerate(sampled) if row.window == window.name]
        if not own:
            continue
        rows, too_many = _rows_of([sampled[n] for n in own], keys.take(pa.array(own)), found.rows, plain.types)
        left_out[own] = too_many
        of_window = plain.pipeline.model_copy(update={"windows": (window,)})
        for n, each in zip(own, _of_window(of_window, plain, pa.concat_tables([rows, others]), [sampled[n] for n in own]), strict=True):
            values[n] = each
    return values, left_out


def reaches(sampled: Sequence[PublishedRow], keys: pa.Table, types: Mapping[str, pa.DataType]) -> Reaches:
    """The rows by which the windows of ``sampled`` are recomputed: those of each key up to the end of its last window."""
    codes = codes_of([keys], keys.column_names)[0] if keys.num_columns else np.zeros(len(sampled), np.int64)
    ends = np.full(len(sampled), AXIS_BEGIN)
    np.maximum.at(ends, codes, [row.end + 1 for row in sampled])
    firsts = first_rows(codes)
    return Reaches.of(keys.take(pa.array(firsts)), [(AXIS_BEGIN, int(end)) for end in ends[: len(firsts)]], types)


def _rows_of(
    sampled: Sequence[PublishedRow], keys: pa.Table, rows: pa.Table, types: Mapping[str, pa.DataType]
) -> tuple[pa.Table, np.ndarray]:
    """Those of ``rows`` that decide about the windows of ``sampled``; and a mask of the windows whose keys have too many."""
    of_keys = reaches(sampled, keys, types)
    numbers, places = of_keys.pairs(rows)
    counts = np.bincount(numbers, minlength=len(of_keys))
    # The keys with the fewest rows.
    order = np.argsort(counts, kind="stable")
    few = order[np.cumsum(counts[order]) <= MAX_ROWS]
    codes = codes_of([keys], keys.column_names)[0] if keys.num_columns else np.zeros(len(sampled), np.int64)
    return rows.take(pa.array(places[np.isin(numbers, few)])), ~np.isin(codes, few)


def _of_window(
    pipeline: Pipeline, plain: Plain, rows: pa.Table, sampled: Sequence[PublishedRow]
) -> list[dict[str, RecomputedValue] | None]:
    """The values of the rows ``sampled`` of the only window of ``pipeline``, by all ``rows``."""
    records, commits = _records(rows, plain)
    wanted = {_place_of(row) for row in sampled}

    def asked(window: Window, fired: reference.WindowResult) -> bool:
        return (ranks(fired.key), window.name, fired.span.start, fired.span.end, fired.trigger) in wanted

    # The watermark is moved to the end: rows that had moved it may be gone from the source, and only published windows are asked for. So
    # may the row be gone until which ticks have shown windows.
    greatest = max(row.end for row in sampled)
    outcome = reference.evaluate(pipeline, records, commits=commits, final=True, greatest=greatest, wanted=asked)
    # In order of revisions, so that the latest one is left.
    newest = {_place(row, [row[name] for name in pipeline.keys]): row for row in outcome.rows}
    values = [newest.get(_place_of(row)) for row in sampled]
    return [None if row is None else {name: RecomputedValue(row[name]) for name in pipeline.aggregates} for row in values]


def _by_spark(plain: Plain, keys: pa.Table, arrival: Arrival) -> SampledRows:
    """The rows of these ``keys``, those with the fewest if they are too many, and the rows that move the watermark, as Spark reads them."""
    pipeline, read = plain.pipeline, plain.rows.read

    def chosen(rows: DataFrame) -> DataFrame:
        rows, conditions = with_conditions(rows, pipeline, plain.types)
        own = [F.col(backquoted(name)) for name in dict.fromkeys([*plain.rows.columns, TIME, UNTIL_OF, FILE, ROW])]
        return rows.select(*own, *(F.col(name).alias(condition_column(text)) for text, name in conditions.items()))

    rows = plain.of_keys(keys, arrival)
    found = chosen(rows).limit(MAX_ROWS + 1).toArrow()
    if found.num_rows > MAX_ROWS:
        found = chosen(plain.of_keys(_fewest(rows, pipeline.keys), arrival)).toArrow() if pipeline.keys else found.slice(0, 0)
    latest = pa.table(
        {FILE: pa.array([file for file, _ in arrival.latest], pa.int32()), ROW: pa.array([n for _, n in arrival.latest], pa.int64())}
    )
    others = read(sorted({file for file, _ in arrival.latest}), arrival.closed)
    others = others.join(F.broadcast(plain.spark.createDataFrame(without_empty_chunks(latest))), [FILE, ROW], "left_semi")
    return SampledRows(found, chosen(others).toArrow().cast(found.schema))


def _fewest(rows: DataFrame, keys: tuple[str, ...]) -> pa.Table:
    """Those of the keys with the fewest ``rows`` whose rows together are not too many."""
    counted = rows.groupBy(*map(backquoted, keys)).agg(F.count(F.lit(1)).alias(_COUNT)).toArrow().sort_by(_COUNT)
    together = np.cumsum(counted.column(_COUNT).to_numpy())
    return counted.slice(0, int(np.searchsorted(together, MAX_ROWS, side="right"))).select(list(keys))


def _records(found: pa.Table, plain: Plain) -> tuple[list[reference.Record], list[int]]:
    """The rows, each once, in order of arrival, with the number of each one's commit; those of a snapshot arrive one by one."""
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
    conditions = [(text, condition_column(text)) for text in plain.pipeline.conditions()]
    records, commits = [], []
    for number, row in enumerate(rows):
        commits.append(number if row[_COMMIT] < 0 else len(rows) + row[_COMMIT])
        # Numbers are as the reference engine takes them; instants, dates and texts of the source are on the axis in a column of their own.
        axis = {} if time.unit else {time.column: row[TIME]} | ({time.end: row[UNTIL_OF]} if time.end else {})
        values = row | axis
        records.append(reference.Record(values, frozenset(text for text, name in conditions if row[name])))
    return records, commits


def _place_of(row: PublishedRow) -> tuple[Any, ...]:
    key = ranks([to_us(value) if isinstance(value, datetime) else value for value in row.key])
    return key, row.window, row.start, row.end, row.trigger


def _place(row: Mapping[str, Any], key: Sequence[Any]) -> tuple[Any, ...]:
    return ranks(key), row["window"], row["window_start"], row["window_end"], row["trigger"]
