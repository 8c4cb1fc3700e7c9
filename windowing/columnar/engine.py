"""One run of a pipeline over an input fed in batches."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import pyarrow as pa

from windowing.columnar.aggregation import Aggregation
from windowing.columnar.results import Chunk, ResultTable, ordered
from windowing.columnar.rows import KEY, NUMBER, TIME, UNTIL, WATERMARK, Keys, in_order, kept, plain
from windowing.errors import StateError
from windowing.kernels.columns import int64_of, valid_of
from windowing.kernels.combine import Bools, Ints
from windowing.kernels.lift import condition_column
from windowing.policies import PolicySlicer
from windowing.slicing.customs import CustomSlicer
from windowing.slicing.grids import GridSlicer
from windowing.slicing.revised import RevisedSlicer
from windowing.slicing.shapes import CountSlicer, SessionSlicer, SnapshotSlicer
from windowing.slicing.windows import Applied, Slicer
from windowing.spec import Count, Cumulative, Custom, Hopping, Pipeline, Session, Sliding, Snapshot, Tumbling, Window
from windowing.watermark import AFTER, Clock

_PROGRESS = ("seen", "fed")
#: Leaves from which windows are worth a thread each: kernels run without the interpreter's lock.
_THREAD_LEAVES = 50_000
_T = TypeVar("_T")


@dataclass
class Found:
    """Results so far: windows with their aggregates, and (number of the row, reason) of quarantined rows."""

    chunks: list[Chunk] = field(default_factory=list)
    quarantined: list[tuple[int, str]] = field(default_factory=list)


class ColumnarEngine:
    """The kernels' engine: batches in, result rows out at the end.

    Between batches it holds live rows and a few numbers a key and window, all of which :meth:`snapshot` gives as tables; an engine
    made anew and given them by :meth:`restore` goes on as if nothing had happened.

    Parameters
    ----------
    latest
        The greatest event time that is accepted, where the pipeline bounds it.
    found
        Where results are gathered; an engine that goes on for another is given its.
    """

    def __init__(self, pipeline: Pipeline, latest: float = math.inf, found: Found | None = None) -> None:
        self._pipeline, self._latest = pipeline, AFTER if latest == math.inf else int(latest)
        self._slicers = [slicer_for(window, pipeline) for window in pipeline.windows]
        self._clock = Clock.of(pipeline)
        self._fed = 0
        self._rows: pa.Table | None = None
        self._keys: Keys | None = None
        self._aggregation: Aggregation | None = None
        self._found = found if found is not None else Found()

    def feed(self, rows: pa.Table, conditions: Mapping[str, pa.BooleanArray]) -> None:
        """Take the next rows in the order of arrival, with the truth of each condition of the spec."""
        columns = {name: plain(rows.column(name)) for name in rows.column_names}
        time, until, usable = self._usable(columns)
        self._clock, watermark = self._clock.arrive(time, usable)
        chosen = np.flatnonzero(usable)
        keys = {name: columns[name].take(pa.array(chosen)) for name in self._pipeline.keys}
        if self._keys is None:
            self._keys = Keys(pa.table({name: column[:0] for name, column in keys.items()}))
        own = {
            KEY: self._keys.learn(keys, len(chosen)),
            NUMBER: self._fed + chosen,
            TIME: time[usable],
            UNTIL: until[usable],
            WATERMARK: watermark[usable],
        }
        live = self._columns(columns) | {condition_column(text): plain(mask) for text, mask in conditions.items()}
        fresh = pa.table(
            {name: column.take(pa.array(chosen)) for name, column in live.items()}
            | {name: pa.array(values, pa.int64()) for name, values in own.items()}
        )
        first_new, self._fed = self._fed, self._fed + rows.num_rows
        self._rows = fresh if self._rows is None else pa.concat_tables([self._rows, fresh])
        self._advance(first_new)

    def finish(self, *, final: bool) -> tuple[ResultTable, list[tuple[int, str]]]:
        """Every row that the input has brought, and (number, reason) of those quarantined; ``final`` ends the input first."""
        if final and self._rows is not None:
            self._clock = self._clock.end()
            self._advance(self._fed)
        keys = self._keys.table if self._keys is not None else pa.table({})
        names = [window.name for window in self._pipeline.windows]
        return ordered(self._found.chunks, names, list(self._pipeline.aggregates), keys), sorted(self._found.quarantined)

    def _usable(self, columns: Mapping[str, pa.Array]) -> tuple[Ints, Ints, Bools]:
        """Start and end of each row's event, and which rows are events; quarantines the others."""
        time_column = columns[self._pipeline.time.column]
        until_column = columns[self._pipeline.time.end] if self._pipeline.time.end else time_column
        time, until = int64_of(time_column), int64_of(until_column)
        known = valid_of(time_column) & valid_of(until_column)
        backwards, future = known & (until < time), known & (until >= time) & (time > self._latest)
        for mask, reason in ((~known, "null_time"), (backwards, "end_before_time"), (future, "future_time")):
            self._found.quarantined += [(self._fed + int(row), reason) for row in np.flatnonzero(mask)]
        return time, until, known & ~backwards & ~future

    def _columns(self, columns: Mapping[str, pa.Array]) -> dict[str, pa.Array]:
        """The columns that windows and aggregates look at again."""
        if any(isinstance(window, Custom) for window in self._pipeline.windows):
            return dict(columns)
        names = [*self._pipeline.time.tie_break, *(name for spec in self._pipeline.aggregates.values() for name in spec.columns)]
        for window in self._pipeline.windows:
            policies = [getattr(window, "evict", None), getattr(window, "trigger", None)]
            names += [policy.delta.column for policy in policies if policy is not None and policy.delta is not None]
        return {name: columns[name] for name in dict.fromkeys(names)}

    def _advance(self, first_new: int) -> None:
        assert self._rows is not None
        assert self._keys is not None
        if self._aggregation is None:
            self._aggregation = Aggregation(self._pipeline, {field.name: field.type for field in self._rows.schema})
        leaves = in_order(self._rows, len(self._keys), self._pipeline.time.tie_break, first_new)
        lifted = self._aggregation.over(leaves)
        live, counted, refused = (np.zeros(len(leaves), np.bool_) for _ in range(3))

        def one(index: int) -> tuple[Applied, list[Chunk]]:
            slicer, chunks = self._slicers[index], []
            applied = slicer.apply(leaves, self._clock)
            for windows in applied.windows:
                if len(windows):
                    values, flips = lifted.combine(windows)
                    slicer.flipped(windows, flips)
                    chunks.append(Chunk(index, windows, values))
            return applied, chunks

        for applied, chunks in self._each_window(one, len(leaves)):
            live |= applied.kept
            counted |= applied.counted
            refused |= applied.refused
            self._found.chunks += chunks
        self._found.quarantined += [(int(number), "too_late") for number in leaves.number[refused & ~counted]]
        self._rows = kept(self._rows, leaves.number[live])

    def _each_window(self, one: Callable[[int], _T], n_leaves: int) -> Iterable[_T]:
        """``one`` of each window's index, in order; at the same time where that is worth a thread and no user's code runs."""
        own_code = any(isinstance(window, Custom) for window in self._pipeline.windows) or any(
            spec.use for spec in self._pipeline.aggregates.values()
        )
        if own_code or n_leaves < _THREAD_LEAVES or len(self._slicers) == 1:
            return map(one, range(len(self._slicers)))
        with ThreadPoolExecutor(min(len(self._slicers), os.cpu_count() or 1)) as threads:
            return list(threads.map(one, range(len(self._slicers))))

    def snapshot(self) -> dict[str, pa.Table]:
        """All that later batches depend on, as tables by name; none before the first batch."""
        if self._rows is None or self._keys is None:
            return {}
        tables = {"rows": self._rows, "keys": self._keys.table, "progress": pa.table({"seen": [self._clock.seen], "fed": [self._fed]})}
        for index, slicer in enumerate(self._slicers):
            tables |= {f"window {index} {name}": table for name, table in slicer.snapshot().items()}
        return tables

    def restore(self, tables: Mapping[str, pa.Table]) -> None:
        """Take over what :meth:`snapshot` gave.

        Raises
        ------
        StateError
            If a table is missing.
        """
        if not tables:
            return
        missing = {"rows", "keys", "progress"} - set(tables)
        if missing:
            raise StateError(f"state: table {min(missing)!r} is missing; rebuild the state from the source")
        self._rows, self._keys = tables["rows"], Keys(tables["keys"])
        seen, self._fed = (tables["progress"].column(name)[0].as_py() for name in _PROGRESS)
        self._clock = Clock(self._clock.disorder, self._clock.lateness, self._clock.moves, seen)
        for index, slicer in enumerate(self._slicers):
            prefix = f"window {index} "
            slicer.restore({name.removeprefix(prefix): table for name, table in tables.items() if name.startswith(prefix)})


def slicer_for(window: Window, pipeline: Pipeline) -> Slicer:
    """What cuts rows into the windows of ``window``."""
    if isinstance(window, Tumbling | Hopping | Cumulative) and window.size is not None:
        return GridSlicer(window, pipeline)
    if isinstance(window, Tumbling | Sliding):
        return PolicySlicer(window, pipeline)
    if pipeline.emit == "revise":
        return RevisedSlicer(window, pipeline)
    if isinstance(window, Session):
        return SessionSlicer(window, pipeline)
    if isinstance(window, Snapshot):
        return SnapshotSlicer(window, pipeline)
    if isinstance(window, Count):
        return CountSlicer(window, pipeline)
    return CustomSlicer(window, pipeline)
