"""Compile every kernel once and leave the code in numba's cache: ``python -m windowmill.windowing.kernels``."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from windowmill.windowing.columnar import added_columns as added
from windowmill.windowing.columnar import grid_windows, position_batch, sessions, slices
from windowmill.windowing.columnar.added_columns import ROW_KEY, ROW_NUMBER, ROW_TIME, ROW_UNTIL, ROW_WATERMARK
from windowmill.windowing.columnar.hashes import row_checksums
from windowmill.windowing.columnar.keyed import KeyedWindows
from windowmill.windowing.columnar.known_spans import span_columns
from windowmill.windowing.columnar.positions import PositionStage, PositionState
from windowmill.windowing.columnar.results import result_schema
from windowmill.windowing.grids import Grids
from windowmill.windowing.kernels.event_bounds import SessionLimits
from windowmill.windowing.kernels.layout import Layout
from windowmill.windowing.kernels.slices import hopping_windows
from windowmill.windowing.specfile import parse_pipeline
from windowmill.windowing.watermark import AFTER, Clock, LatenessRule

_WINDOWS: list[dict[str, Any]] = [{"type": "session", "gap": 2, "max_size": 9}, {"type": "snapshot"}, {"type": "count", "count": 2}]
_AGGREGATES: dict[str, dict[str, Any]] = {"n": {"count": "*"}, "deviation": {"stddev_samp": "v"}, "level": {"time_weighted_mean": "v"}}


def _live_rows() -> None:
    """Two batches and the end of the input, so that every kernel gets arrays of the types that runs pass."""
    pipeline = parse_pipeline(
        {
            "pipeline": "warm",
            "keys": ["k"],
            "time": {"column": "t", "end": "e", "unit": "none", "disorder": 1, "lateness": 1},
            "windows": [{"name": f"w{index}", **window} for index, window in enumerate(_WINDOWS)],
            "aggregates": _AGGREGATES,
        }
    )
    rule, clock, stored = LatenessRule.of(pipeline), Clock(1), dict[str, pa.Table]()
    for first in (0, 20):
        keyed, times = KeyedWindows(pipeline), np.arange(first, first + 9)
        if stored:
            keyed.restore(stored)
        watermarks = rule.at_arrival(times, times, clock.seen)
        clock = Clock(rule.lateness, first + 8, rule.watermark(first + 8), clock.watermark)
        own = {
            ROW_KEY: keyed.learn({"k": pa.array(["a", "b", "a"] * 3)}, 9),
            ROW_NUMBER: times,
            ROW_TIME: times,
            ROW_UNTIL: times,
            ROW_WATERMARK: watermarks,
        }
        keyed.advance(pa.table({"v": np.arange(9.0)} | own), first, clock)
        stored = keyed.snapshot()
    keyed.advance(None, AFTER, replace(clock, watermark=AFTER))


def _slice(*, revises: bool) -> None:
    """The kernels of runs on Spark, over slices that come in order and not, with and without late rows."""
    windows: list[dict[str, Any]] = [{"name": "w", "type": "hopping", "size": 5, "hop": 2}]
    windows += [] if revises else [{"name": "e", "type": "tumbling", "size": 1, "empty": "emit"}]
    spec = {"pipeline": "warm", "time": {"column": "t", "unit": "none"}, "windows": windows, "aggregates": {"mean": {"mean": "v"}}}
    pipeline = parse_pipeline(spec)
    layout, grids = Layout.of(pipeline, {"t": pa.int64(), "v": pa.float64()}), Grids.of(pipeline)
    arrival = [added.ARRIVAL] if revises else []
    own = [(name, pa.int64()) for name in (added.SLICE, added.CLOSED, *arrival, *span_columns(grids.known), added.BATCH)]
    schema = pa.schema([*own, *layout.stored_columns])
    stage = slices.SliceStage((), (), layout, grids.edges, 0, schema, revises=revises, known=grids.known)
    rows = pa.table({added.TIME: [3, 1, 3], added.CLOSED: pa.array([None, None, 5], pa.int64()), "v": [1.0, 2.0, 3.0]})
    if revises:
        rows = rows.append_column(added.ARRIVAL, pa.array([None, None, 2], pa.int64()))
    parts = list(slices.sliced(stage, rows.to_batches()))
    names = ("window", "window_start", "window_end", "trigger", "revision", "mean", "batch")
    results = pa.schema(list(zip(names, (pa.string(), *[pa.int64()] * 4, pa.float64(), pa.int64()), strict=True)))
    revising = slices.Revising(2, -9) if revises else None
    list(grid_windows.combined(slices.WindowStage(stage, grids.named, -9, 9, -9, results, revising=revising), parts * 2))


def _sessions() -> None:
    """The kernels of sessions over fragments, with and without a greatest size, as each of two batches calls them."""
    windows: list[dict[str, Any]] = [{"name": "w", "type": "session", "gap": 2}, {"name": "c", "type": "session", "gap": 2, "max_size": 9}]
    spec = {"pipeline": "warm", "time": {"column": "t", "unit": "none"}, "windows": windows, "aggregates": {"mean": {"mean": "v"}}}
    pipeline, types = parse_pipeline(spec), {"t": pa.int64(), "v": pa.float64()}
    layout, limits = Layout.of(pipeline, types), (("w", SessionLimits(2, AFTER)), ("c", SessionLimits(2, 9)))
    read, schema = sessions.row_schema(pipeline, types, layout), sessions.fragment_schema({}, layout, cuts=True)
    stored: pa.Table = schema.empty_table()
    for batch in range(2):
        closed = 8 * batch
        stage = sessions.SessionStage(
            (), (), layout, limits, batch, closed, closed + 6, closed, closed + 6, None, True, read, schema, result_schema(pipeline, types)
        )
        rows = [{"v": 1.0, "_time": at, "_number": at, "_closed": at + 1, "_late": True} for at in range(closed, closed + 8)]
        done = sessions.advance(stage, pa.Table.from_pylist(rows, schema=read), stored)
        assert done.state is not None
        stored = pa.concat_tables([stored, done.state.select(schema.names)])


def _positions() -> None:
    """The kernels of windows over positions, which restore nodes and complete others, or have all tuples at once."""
    windows = [
        {"name": "w", "type": "sliding", "evict": {"count": 3}, "trigger": {"count": 2}},
        {"name": "d", "type": "sliding", "evict": {"delta": {"column": "v", "by": 1}}, "trigger": {"count": 2}},
    ]
    spec = {"pipeline": "warm", "time": {"column": "t", "unit": "none"}, "windows": windows, "aggregates": {"mean": {"mean": "v"}}}
    pipeline, types = parse_pipeline(spec), {"t": pa.int64(), "v": pa.float64()}
    layout = Layout.of(pipeline, types)
    state = PositionState(pipeline, types, layout)
    stored: pa.Table = state.stored_schema.empty_table()
    for batch in range(2):
        clock, first = Clock(0, 8 * batch + 9, 8 * batch + 9, 8 * batch), 8 * batch
        own = {added.WATERMARK_OF: None, added.LATE: False}
        rows = [{"v": 1.0, added.TIME: at, added.NUMBER_OF: at} | own for at in range(first, first + 8)]
        stage = PositionStage(pipeline, layout, state, batch, clock, None, True, result_schema(pipeline, types))
        done = position_batch.advance(stage, pa.Table.from_pylist(rows, schema=state.rows), stored)
        stored = stored if done.state is None else pa.concat_tables([stored, done.state])
        position_batch.advance(replace(stage, keep=False, bounded=True), pa.Table.from_pylist(rows, schema=state.rows), stored.slice(0, 0))


def warm() -> float:
    """Compile (or load) the kernels; seconds it took."""
    begun = time.perf_counter()
    _slice(revises=False)
    _slice(revises=True)
    _sessions()
    _positions()
    # Checksums, with nulls and without, of a column as Arrow holds it.
    row_checksums(pa.table({"n": [1, None], "v": [0.5, None], "k": ["a", None], "l": [[1], None]}))
    _live_rows()
    return time.perf_counter() - begun


def stale_code() -> list[Path]:
    """Files of compiled code, if one of them is older than a source.

    Numba compares a kernel with its own file, not with those of its helpers: code of old helpers stays in use, or fails with
    ``Can't get attribute``. An installation writes all sources again; ``git pull`` does not.
    """
    folder = Path(__file__).parent
    compiled_in = Path(hopping_windows.dispatcher.stats.cache_path)
    newest = max(source.stat().st_mtime for source in folder.glob("*.py"))
    compiled = [*compiled_in.glob("*.nbi"), *compiled_in.glob("*.nbc")]
    return compiled if any(file.stat().st_mtime < newest for file in compiled) else []


def forget_stale() -> None:
    for file in stale_code():
        file.unlink(missing_ok=True)


if __name__ == "__main__":
    forget_stale()
    print(f"kernels ready after {warm():.1f} s", file=sys.stderr)
