"""The windows of a pipeline over the live rows of some keys: takes new rows, returns complete windows.

Keys are independent, so any subset of them can be processed alone, on any machine.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import pyarrow as pa

from windowmill.windowing.columnar.aggregation import Aggregation
from windowmill.windowing.columnar.results import Chunk
from windowmill.windowing.columnar.rows import Keys, in_order, kept, with_keys
from windowmill.windowing.errors import StateError
from windowmill.windowing.kernels.combine import Ints
from windowmill.windowing.slicing.leaves import BatchEffect
from windowmill.windowing.slicing.slicers import slicer_of
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.watermark import AFTER, Clock

#: Number of leaves from which each window gets a thread; kernels release the interpreter's lock.
_THREAD_LEAVES = 50_000
_T = TypeVar("_T")


@dataclass(frozen=True)
class Step:
    """The effect of new rows or of a later watermark.

    Attributes
    ----------
    chunks
        Complete windows with their aggregates.
    refused
        Numbers of the new rows that no window took.
    due
        For each key, the watermark from which it has work even if none of its rows arrive; ``AFTER`` for never.
    missed
        By window name, the number of new rows that came too late for a window that holds them.
    """

    chunks: list[Chunk]
    refused: Ints
    due: Ints
    missed: Mapping[str, int]


class KeyedWindows:
    """Live rows, and the state of each window and key.

    :meth:`snapshot` returns all of it as tables; a new object continues from them after :meth:`restore`.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._slicers = [slicer_of(window, pipeline) for window in pipeline.windows]
        self._rows: pa.Table | None = None
        self._aggregation: Aggregation | None = None
        self.keys: Keys | None = None

    def learn(self, columns: Mapping[str, pa.Array], n_rows: int) -> Ints:
        """Index of each row's key, int64, shape (n_rows,); adds new keys. ``columns`` are the key columns of the rows, by name."""
        if self.keys is None:
            self.keys = Keys(pa.table({name: column[:0] for name, column in columns.items()}))
        return self.keys.learn(columns, n_rows)

    def advance(self, fresh: pa.Table | None, first_new: int, clock: Clock) -> Step:
        """Add ``fresh`` rows and return the windows that are complete at ``clock``; O(n log n) in live rows.

        Parameters
        ----------
        fresh
            Live columns, conditions and the own columns of :mod:`.rows`, in order of arrival; their keys are
            known from :meth:`learn`.
        first_new
            Smallest number of a fresh row; all older rows have smaller ones.
        """
        if fresh is not None:
            # The state keeps a key column once, as a key; an aggregate over it must not depend on whether a row came from there.
            fresh = with_keys(fresh, self._pipeline.keys)
            self._rows = fresh if self._rows is None else pa.concat_tables([self._rows, fresh])
        if self._rows is None or self.keys is None:
            return Step([], np.empty(0, np.int64), np.empty(0, np.int64), {})
        if self._aggregation is None:
            self._aggregation = Aggregation(self._pipeline, {field.name: field.type for field in self._rows.schema})
        leaves = in_order(self._rows, len(self.keys), self._pipeline.time.tie_break, first_new)
        lifted = self._aggregation.over(leaves)
        live, counted, refused = (np.zeros(len(leaves), np.bool_) for _ in range(3))
        due = np.full(leaves.n_keys, AFTER, np.int64)
        complete: list[Chunk] = []
        missed: dict[str, int] = {}

        def advance_one(index: int) -> tuple[BatchEffect, Ints, list[Chunk]]:
            slicer, chunks = self._slicers[index], []
            applied = slicer.apply(leaves, clock)
            for windows in applied.windows:
                if len(windows):
                    values, flips = lifted.combine(windows)
                    slicer.flipped(windows, flips)
                    chunks.append(Chunk(index, windows, values))
            return applied, slicer.due(leaves, applied, clock), chunks

        each = self._each_window(advance_one, len(leaves))
        for window, (applied, next_due, chunks) in zip(self._pipeline.windows, each, strict=True):
            live |= applied.kept
            counted |= applied.counted
            refused |= applied.refused
            due = np.minimum(due, next_due)
            complete += chunks
            if applied.n_missed:
                missed[window.name] = applied.n_missed
        self._rows = kept(self._rows, leaves, live)
        return Step(complete, leaves.number[refused & ~counted], due, missed)

    def _each_window(self, call: Callable[[int], _T], n_leaves: int) -> Iterable[_T]:
        """Results of ``call`` for each window's index, in order; in threads if there are many leaves and no user code runs."""
        own_code = any(window.functions() for window in self._pipeline.windows) or any(
            spec.use for spec in self._pipeline.aggregates.values()
        )
        if own_code or n_leaves < _THREAD_LEAVES or len(self._slicers) == 1:
            return map(call, range(len(self._slicers)))
        with ThreadPoolExecutor(min(len(self._slicers), os.cpu_count() or 1)) as threads:
            return list(threads.map(call, range(len(self._slicers))))

    def snapshot(self) -> dict[str, pa.Table]:
        """The tables ``rows``, ``keys``, and each window's as ``window <index> <table>``; empty before the first row.

        A window's table ``keys`` has one row per key, in key order. Its other tables hold facts about live rows, by their ``number``.
        """
        if self._rows is None or self.keys is None:
            return {}
        tables = {"rows": self._rows, "keys": self.keys.table}
        for index, slicer in enumerate(self._slicers):
            tables |= {f"window {index} {name}": table for name, table in slicer.snapshot().items()}
        return tables

    def restore(self, tables: Mapping[str, pa.Table]) -> None:
        """Continue from the tables of :meth:`snapshot`.

        Raises
        ------
        StateError
            If a table is missing.
        """
        missing = {"rows", "keys"} - set(tables)
        if missing:
            raise StateError(f"state: table {min(missing)!r} is missing; rebuild the state from the source")
        self._rows, self.keys = tables["rows"], Keys(tables["keys"])
        for index, slicer in enumerate(self._slicers):
            prefix = f"window {index} "
            slicer.restore({name.removeprefix(prefix): table for name, table in tables.items() if name.startswith(prefix)})


def live_columns(pipeline: Pipeline, columns: Iterable[str]) -> list[str]:
    """The source's ``columns`` that windows and aggregates still read after a row has arrived."""
    if any(window.reads_whole_rows for window in pipeline.windows):
        return list(columns)
    names = [*pipeline.time.tie_break, *(name for spec in pipeline.aggregates.values() for name in spec.columns)]
    names += [use.column for window in pipeline.windows for use in window.columns().values()]
    return list(dict.fromkeys(names))
