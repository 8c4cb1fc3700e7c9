"""Runs a pipeline by the parts of a run over a state in memory, as ``windowmill try`` does, over tables."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa

from windowmill.jobs.commands.try_engine import Batch
from windowmill.jobs.commands.try_kernel import KernelEngine
from windowmill.jobs.ways import choose
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.ways import Parts, Rows, divide

_NONE: Mapping[str, pa.BooleanArray] = {}


class KernelRun:
    """Takes tables of rows in order of arrival.

    Parameters
    ----------
    latest
        Greatest accepted event time.
    by_rows
        Whether all windows go by live rows, as some do over events that last; otherwise each goes its own way.
    """

    def __init__(self, pipeline: Pipeline, latest: float = math.inf, *, by_rows: bool = False) -> None:
        self._engine, self._fed = KernelEngine(pipeline, latest), 0
        self._divide = (lambda given, _: Parts(rows=Rows(given))) if by_rows else divide

    def feed(self, rows: pa.Table, conditions: Mapping[str, pa.BooleanArray] = _NONE, commits: np.ndarray | None = None) -> None:
        """A batch of ``rows`` with the truth of each condition; each row is a commit unless ``commits`` are given."""
        places = np.arange(self._fed, self._fed + rows.num_rows)
        with patch.object(choose, "divide", self._divide):
            self._engine.feed(Batch(rows, conditions, places if commits is None else commits))
        self._fed += rows.num_rows

    def finish(self, *, final: bool) -> tuple[list[dict[str, Any]], list[tuple[int, str]]]:
        """All result rows, and number and reason of each row that is set aside; ``final`` completes all windows."""
        with patch.object(choose, "divide", self._divide):
            results = self._engine.finish(final=final)
        return [dict(row) for row in results.rows], list(results.quarantined)
