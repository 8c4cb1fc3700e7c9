"""Runs a pipeline by the parts of a run over a state in memory, as ``windowmill try`` does, over tables."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from windowmill.jobs.commands.try_command import KernelEngine, TryBatch
from windowmill.windowing.spec import Pipeline

_NONE: Mapping[str, pa.BooleanArray] = {}


class KernelRun:
    """Takes tables of rows in order of arrival.

    Parameters
    ----------
    latest
        Greatest accepted event time.
    """

    def __init__(self, pipeline: Pipeline, latest: float = math.inf) -> None:
        self._engine, self._fed = KernelEngine(pipeline, latest), 0

    def feed(self, rows: pa.Table, conditions: Mapping[str, pa.BooleanArray] = _NONE, commits: np.ndarray | None = None) -> None:
        """A batch of ``rows`` with the truth of each condition; each row is a commit unless ``commits`` are given."""
        places = np.arange(self._fed, self._fed + rows.num_rows)
        self._engine.feed(TryBatch(rows, conditions, places if commits is None else commits))
        self._fed += rows.num_rows

    def finish(self, *, final: bool) -> tuple[list[dict[str, Any]], list[tuple[int, str]]]:
        """All result rows, and number and reason of each row that is set aside; ``final`` completes all windows."""
        results = self._engine.finish(final=final)
        return [dict(row) for row in results.rows], list(results.quarantined)
