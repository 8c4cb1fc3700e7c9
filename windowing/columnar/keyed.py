"""The windows of a pipeline over the live rows of some keys: new rows in, windows that are complete out.

Keys do not know of each other, so that any share of them may be worked on alone, wherever its rows are.
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
from windowmill.windowing.columnar.rows import KEY, Keys, in_order, kept
from windowmill.windowing.errors import StateError
from windowmill.windowing.kernels.combine import Ints
from windowmill.windowing.slicing.leaves import Applied
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.watermark import AFTER, Clock

#: Leaves from which windows are worth a thread each: kernels run without the interpreter's lock.
_THREAD_LEAVES = 50_000
_T = TypeVar("_T")


@dataclass(frozen=True)
class Step:
    """What new rows, or a later watermark, have brought.

    Attributes
    ----------
    chunks
        Windows that are complete, with their aggregates.
    refused
        Numbers of the new rows that no window took.
    due
        For each key the watermark from which on it has work to do though no row of its arrives; ``AFTER`` if never.
    """

    chunks: list[Chunk]
    refused: Ints
    due: Ints


class KeyedWindows:
    """Live rows and what each window remembers of each key.

    All of it is what :meth:`snapshot` gives as tables; windows made anew and given them by :meth:`restore` go on as if nothing had
    happened.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._slicers = [window.slicer(pipeline) for window in pipeline.windows]
        self._rows: pa.Table | None = None
        self._aggregation: Aggregation | None = None
        self.keys: Keys | None = None

    def learn(self, columns: Mapping[str, pa.Array], n_rows: int) -> Ints:
        """Index of each row's key; ``columns`` are the key columns of the rows, by name."""
        if self.keys is None:
            self.keys = Keys(pa.table({name: column[:0] for name, column in columns.items()}))
        return self.keys.learn(columns, n_rows)

    def advance(self, fresh: pa.Table | None, first_new: int, clock: Clock) -> Step:
        """Take ``fresh`` rows in and the windows out that are complete by ``clock``.

        Parameters
        ----------
        fresh
            Live columns, conditions and :data:`~windowmill.windowing.columnar.rows.OWN` columns, in the order of arrival; their keys are
            learnt.
        first_new
            Smallest number of a fresh row; those that stay from before have smaller ones.
        """
        if fresh is not None:
            self._rows = fresh if self._rows is None else pa.concat_tables([self._rows, fresh])
        if self._rows is None or self.keys is None:
            return Step([], np.empty(0, np.int64), np.empty(0, np.int64))
        if self._aggregation is None:
            self._aggregation = Aggregation(self._pipeline, {field.name: field.type for field in self._rows.schema})
        leaves = in_order(self._rows, len(self.keys), self._pipeline.time.tie_break, first_new)
        lifted = self._aggregation.over(leaves)
        live, counted, refused = (np.zeros(len(leaves), np.bool_) for _ in range(3))
        due = np.full(leaves.n_keys, AFTER, np.int64)
        found: list[Chunk] = []

        def one(index: int) -> tuple[Applied, Ints, list[Chunk]]:
            slicer, chunks = self._slicers[index], []
            applied = slicer.apply(leaves, clock)
            for windows in applied.windows:
                if len(windows):
                    values, flips = lifted.combine(windows)
                    slicer.flipped(windows, flips)
                    chunks.append(Chunk(index, windows, values))
            return applied, slicer.due(leaves, applied, clock), chunks

        for applied, next_due, chunks in self._each_window(one, len(leaves)):
            live |= applied.kept
            counted |= applied.counted
            refused |= applied.refused
            due = np.minimum(due, next_due)
            found += chunks
        self._rows = kept(self._rows, leaves, live)
        return Step(found, leaves.number[refused & ~counted], due)

    def _each_window(self, one: Callable[[int], _T], n_leaves: int) -> Iterable[_T]:
        """``one`` of each window's index, in order; at the same time where that is worth a thread and no user's code runs."""
        own_code = any(window.functions() for window in self._pipeline.windows) or any(
            spec.use for spec in self._pipeline.aggregates.values()
        )
        if own_code or n_leaves < _THREAD_LEAVES or len(self._slicers) == 1:
            return map(one, range(len(self._slicers)))
        with ThreadPoolExecutor(min(len(self._slicers), os.cpu_count() or 1)) as threads:
            return list(threads.map(one, range(len(self._slicers))))

    def snapshot(self) -> dict[str, pa.Table]:
        """``rows``, ``keys``, and each window's tables as ``window <index> <table>``; nothing before the first row.

        Of a window's tables, ``keys`` has a row for each key, in order; the others tell of live rows, by their ``number``.
        """
        if self._rows is None or self.keys is None:
            return {}
        tables = {"rows": self._rows, "keys": self.keys.table}
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
        missing = {"rows", "keys"} - set(tables)
        if missing:
            raise StateError(f"state: table {min(missing)!r} is missing; rebuild the state from the source")
        self._rows, self.keys = tables["rows"], Keys(tables["keys"])
        for index, slicer in enumerate(self._slicers):
            prefix = f"window {index} "
            slicer.restore({name.removeprefix(prefix): table for name, table in tables.items() if name.startswith(prefix)})


def live_columns(pipeline: Pipeline, columns: Iterable[str]) -> list[str]:
    """Those of the source's ``columns`` that windows and aggregates look at again after a row has arrived."""
    if any(window.reads_whole_rows for window in pipeline.windows):
        return list(columns)
    names = [*pipeline.time.tie_break, *(name for spec in pipeline.aggregates.values() for name in spec.columns)]
    names += [use.column for window in pipeline.windows for use in window.columns().values()]
    return list(dict.fromkeys(names))


__all__ = ["KEY", "KeyedWindows", "Step", "live_columns"]
