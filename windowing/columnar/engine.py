"""Runs a pipeline in memory over an input that arrives in batches."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from windowmill.windowing.bounds import accepted_times
from windowmill.windowing.columnar.keyed import KeyedWindows, live_columns
from windowmill.windowing.columnar.results import Chunk, ResultTable, ordered
from windowmill.windowing.columnar.rows import KEY, NUMBER, TIME, UNTIL, WATERMARK, plain
from windowmill.windowing.errors import StateError
from windowmill.windowing.kernels.columns import int64_of, valid_of
from windowmill.windowing.kernels.combine import Bools, Ints
from windowmill.windowing.kernels.lift import condition_column
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.watermark import AFTER, COMMIT_SHIFT, Clock


@dataclass
class Found:
    """Results so far: windows with their aggregates, and (row number, reason) of each quarantined row."""

    chunks: list[Chunk] = field(default_factory=list)
    quarantined: list[tuple[int, str]] = field(default_factory=list)


class ColumnarEngine:
    """The engine built on the kernels: takes batches, and returns the result rows at the end.

    Between batches it holds live rows and a few numbers per key and window. :meth:`snapshot` returns all of them as tables; a new engine
    continues from them after :meth:`restore`.

    Parameters
    ----------
    latest
        Greatest accepted event time, if the pipeline bounds it.
    found
        Collects results; an engine that continues another one shares its collection.
    """

    def __init__(self, pipeline: Pipeline, latest: float = math.inf, found: Found | None = None) -> None:
        self._pipeline, self._latest = pipeline, AFTER if latest == math.inf else int(latest)
        self._accepted = accepted_times(pipeline)
        self._windows = KeyedWindows(pipeline)
        self._clock = Clock.of(pipeline)
        self._fed = 0
        self._found = found if found is not None else Found()

    def feed(self, rows: pa.Table, conditions: Mapping[str, pa.BooleanArray], commits: Ints | None = None) -> None:
        """Take the next rows, in order of arrival, with the value of each condition of the spec for them.

        ``commits`` are the numbers of the rows' commits, ascending, also from call to call, int64, shape (n_rows,); without them each row
        is a commit. No commit is split between two calls.
        """
        columns = {name: plain(rows.column(name)) for name in rows.column_names}
        time, until, usable = self._usable(columns)
        places = np.arange(self._fed, self._fed + rows.num_rows)
        # Positions of rows in the input ascend within a commit, and identify the rows that are refused.
        numbers = ((places if commits is None else commits) << COMMIT_SHIFT) + places
        self._clock, watermark = self._clock.arrive(time, usable, numbers)
        chosen = np.flatnonzero(usable)
        keys = {name: columns[name].take(pa.array(chosen)) for name in self._pipeline.keys}
        own = {
            KEY: self._windows.learn(keys, len(chosen)),
            NUMBER: numbers[usable],
            TIME: time[usable],
            UNTIL: until[usable],
            WATERMARK: watermark[usable],
        }
        live = {name: columns[name] for name in live_columns(self._pipeline, columns)}
        live |= {condition_column(text): plain(mask) for text, mask in conditions.items()}
        fresh = pa.table(
            {name: column.take(pa.array(chosen)) for name, column in live.items()}
            | {name: pa.array(values, pa.int64()) for name, values in own.items()}
        )
        self._fed += rows.num_rows
        self._advance(fresh, int(numbers[0]) if len(numbers) else AFTER)

    def finish(self, *, final: bool) -> tuple[ResultTable, list[tuple[int, str]]]:
        """All result rows, and (row number, reason) of each quarantined row; with ``final``, first move the watermark to infinity."""
        if final:
            self._clock = self._clock.end()
            self._advance(None, AFTER)
        keys = self._windows.keys.table if self._windows.keys is not None else pa.table({})
        names = [window.name for window in self._pipeline.windows]
        return ordered(self._found.chunks, names, list(self._pipeline.aggregates), keys), sorted(self._found.quarantined)

    def _usable(self, columns: Mapping[str, pa.Array]) -> tuple[Ints, Ints, Bools]:
        """Start and end of each row's event, and a mask of valid rows; quarantines the others."""
        time_column = columns[self._pipeline.time.column]
        until_column = columns[self._pipeline.time.end] if self._pipeline.time.end else time_column
        time, until = int64_of(time_column), int64_of(until_column)
        known = valid_of(time_column) & valid_of(until_column)
        least, greatest = self._accepted
        inside = (np.minimum(time, until) >= least) & (np.maximum(time, until) <= greatest)
        usable = np.ones(len(time), np.bool_)
        checks = {"null_time": known, "time_out_of_range": inside, "end_before_time": until >= time, "future_time": time <= self._latest}
        for reason, passed in checks.items():
            self._found.quarantined += [(self._fed + int(row), reason) for row in np.flatnonzero(usable & ~passed)]
            usable &= passed
        return time, until, usable

    def _advance(self, fresh: pa.Table | None, first_new: int) -> None:
        step = self._windows.advance(fresh, first_new, self._clock)
        self._clock = self._clock.passed()
        self._found.chunks += step.chunks
        self._found.quarantined += [(int(place), "too_late") for place in step.refused & ((1 << COMMIT_SHIFT) - 1)]

    def snapshot(self) -> dict[str, pa.Table]:
        """The state as tables by name; empty before the first batch."""
        tables = self._windows.snapshot()
        return {**tables, "progress": pa.table({"seen": [self._clock.seen], "fed": [self._fed]})} if tables else {}

    def restore(self, tables: Mapping[str, pa.Table]) -> None:
        """Continue from the tables of :meth:`snapshot`.

        Raises
        ------
        StateError
            If a table is missing.
        """
        if not tables:
            return
        if "progress" not in tables:
            raise StateError("state: table 'progress' is missing; rebuild the state from the source")
        self._windows.restore(tables)
        seen, self._fed = (tables["progress"].column(name)[0].as_py() for name in ("seen", "fed"))
        self._clock = replace(Clock.of(self._pipeline), seen=seen).passed()
