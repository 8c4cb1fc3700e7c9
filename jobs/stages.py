"""The two stages of a batch: events into slices by Spark's partial aggregation, slices into windows by the kernels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from checkpoints.state import BATCH, CLOSED, SLICE, state_schema
from jobs.arrival import slice_start
from jobs.sources import REASON, TIME
from windowing.axis import Edges, Grid
from windowing.kernels.columns import arenas, key_offsets, lower
from windowing.kernels.hopping import NEVER_CLOSED, hopping_windows
from windowing.kernels.layout import Atom, Layout

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

#: Slices gathered before a kernel call: enough to make the call's fixed cost vanish, few enough to stay small in a worker.
CHUNK_ROWS = 200_000


@dataclass(frozen=True)
class WindowStage:
    """What an executor needs to turn slices into result rows; small and picklable."""

    keys: tuple[str, ...]
    layout: Layout
    grids: tuple[tuple[str, Grid], ...]
    after: int
    through: int
    batch: int
    instants: bool
    schema: pa.Schema


def sink_schema(keys: Mapping[str, pa.DataType], layout: Layout, *, instants: bool) -> pa.Schema:
    """Columns of the sink: keys, window, its bounds, trigger, revision, the aggregates in the spec's order, batch."""
    bound = pa.timestamp("us", "UTC") if instants else pa.int64()
    return pa.schema(
        [
            *keys.items(),
            ("window", pa.string()),
            ("window_start", bound),
            ("window_end", bound),
            ("trigger", pa.int64()),
            ("revision", pa.int64()),
            *((result.name, result.type) for result in layout.results),
            ("batch", pa.int64()),
        ]
    )


def lift(
    rows: DataFrame, keys: Sequence[str], layout: Layout, edges: Edges, ties: Sequence[str], anchors: Mapping[str, float], batch: int
) -> DataFrame:
    """One row per key and slice with the partials of its usable rows; columns as ``state_schema`` and ``_late_rows``.

    Parameters
    ----------
    anchors
        Per column of floating-point moments, a value near its values: moments are taken of the differences from it.
    """
    expressions: list[Column] = []
    for index, atom in enumerate(layout.atoms):
        lifted = _lift(atom, ties, anchors)
        expressions += [lifted[role].alias(stored.name) for role, stored in layout.fields_of(index).items()]
    sliced = rows.where(F.col(REASON).isNull()).withColumn(SLICE, slice_start(edges, F.col(TIME)))
    grouped = sliced.groupBy(*(F.col(quoted(key)) for key in keys), SLICE, CLOSED)
    return grouped.agg(F.lit(batch).cast("long").alias(BATCH), *expressions, F.count_if("_late").alias("_late_rows"))


def _lift(atom: Atom, ties: Sequence[str], anchors: Mapping[str, float]) -> dict[str, Column]:
    """Spark aggregates of an atom's stored columns, by role."""
    condition = F.expr(atom.where) if atom.where else F.lit(True)
    columns = [F.when(condition, F.col(quoted(name))) if atom.where else F.col(quoted(name)) for name in atom.columns]
    match atom.kind:
        case "rows":
            return {"": F.count("*")}
        case "count":
            return {"": F.count(columns[0]) if columns else F.count_if(condition)}
        case "sum_int":
            return {"": F.coalesce(F.sum(columns[0].cast("long")), F.lit(0))}
        case "sum_float":
            return {"sum": F.coalesce(F.sum(columns[0].cast("double")), F.lit(0.0)), "error": F.lit(0.0)}
        case "moments":
            anchor = anchors.get(atom.columns[0], 0.0)
            shifted = columns[0].cast("double") - F.lit(anchor)
            n = F.count(shifted)
            m2 = F.coalesce(F.var_pop(shifted) * n, F.lit(0.0))
            return {"n": n, "anchor": F.lit(anchor), "mean": F.coalesce(F.avg(shifted), F.lit(0.0)), "m2": m2}
        case _:
            return _lift_row(atom, columns, ties)


def _lift_row(atom: Atom, columns: list[Column], ties: Sequence[str]) -> dict[str, Column]:
    if not atom.ordered:
        return {"value": F.min(columns[0]) if atom.kind == "least" else F.max(columns[0])}
    at, order = F.col(TIME).alias("at"), [F.col(quoted(name)).alias(f"tie{i}") for i, name in enumerate(ties)]
    by = [columns[0].alias("by")] if len(columns) == 2 else []
    payload = F.when(columns[0].isNotNull(), F.struct(*by, at, *order, columns[-1].alias("value")))
    if atom.kind == "least" or not by:
        chosen = F.min(payload) if atom.kind == "least" else F.max(payload)
    else:
        # The greatest `by`, and of its rows the earliest: the tie columns count backwards.
        backwards = F.struct(by[0], (-F.col(TIME)).alias("at"), *(_descending(column).alias(f"tie{i}") for i, column in enumerate(order)))
        chosen = F.max_by(payload, F.when(columns[0].isNotNull(), backwards))
    return {role: chosen[role] for role in (*(["by"] if by else []), "at", *(f"tie{i}" for i in range(len(ties))), "value")}


def _descending(column: Column) -> Column:
    # Complemented hexadecimal digits sort backwards; the end mark puts a longer text before its own beginning.
    return F.concat(F.translate(F.hex(column.cast("string")), "0123456789ABCDEF", "FEDCBA9876543210"), F.lit("G"))


def windows(slices: DataFrame, stage: WindowStage, partitions: int) -> DataFrame:
    """Result rows of every window of ``stage.grids`` that ends in (``after``, ``through``]; columns as ``stage.schema``."""
    by_key = slices.repartition(partitions, *(F.col(quoted(key)) for key in stage.keys)) if stage.keys else slices.repartition(1)
    ordered = by_key.sortWithinPartitions(*(F.col(quoted(key)) for key in stage.keys), SLICE, CLOSED, BATCH)
    return ordered.mapInArrow(partial(window_rows, stage), from_arrow_schema(stage.schema))


def window_rows(stage: WindowStage, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Slices of whole keys in, result rows out; runs in an executor over one sorted Spark partition."""
    columns = [*stage.keys, SLICE, CLOSED, *(stored.name for stored in stage.layout.fields)]
    for slices in _whole_keys(batches, stage.keys):
        table = slices.select(columns)
        offsets = key_offsets(table, stage.keys)
        ints, floats = arenas(stage.layout, table)
        starts = table.column(SLICE).to_numpy()
        closed = pc.fill_null(table.column(CLOSED), int(NEVER_CLOSED)).to_numpy()
        for name, grid in stage.grids:
            key, ends, out_ints, out_floats, overflow = hopping_windows(
                stage.layout.program(), offsets, starts, closed, ints, floats, grid.size, grid.hop, grid.origin, stage.after, stage.through
            )
            if len(key):
                results = lower(stage.layout, out_ints, out_floats, table, overflow)
                keys = table.select(list(stage.keys)).take(pa.array(offsets[key])) if stage.keys else None
                yield from _result_rows(stage, keys, name, grid, ends, results).to_batches(CHUNK_ROWS)


def _result_rows(
    stage: WindowStage, keys: pa.Table | None, name: str, grid: Grid, ends: np.ndarray, results: dict[str, pa.Array]
) -> pa.Table:
    n = len(ends)
    values = {column: keys.column(column) for column in stage.keys} if keys is not None else {}
    values |= {"window": pa.repeat(name, n), "window_start": pa.array(ends - grid.size), "window_end": pa.array(ends)}
    values |= {"trigger": pa.nulls(n, pa.int64()), "revision": pa.repeat(0, n), **results, "batch": pa.repeat(stage.batch, n)}
    return pa.table([values[field.name].cast(field.type) for field in stage.schema], schema=stage.schema)


def _whole_keys(batches: Iterator[pa.RecordBatch], keys: Sequence[str]) -> Iterator[pa.Table]:
    """Gather batches into tables that never cut a key's rows in two."""
    waiting: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        waiting.append(batch)
        rows += batch.num_rows
        if rows >= CHUNK_ROWS and keys:
            table = pa.Table.from_batches(waiting)
            cut = int(key_offsets(table, keys)[-2])
            if cut:
                yield table.slice(0, cut).combine_chunks()
                waiting = table.slice(cut).combine_chunks().to_batches()
            rows = table.num_rows - cut
    if rows:
        yield pa.Table.from_batches(waiting).combine_chunks()


def quoted(name: str) -> str:
    """A column name as Spark SQL writes it."""
    return "`" + name.replace("`", "``") + "`"


__all__ = ["WindowStage", "lift", "sink_schema", "state_schema", "windows"]
