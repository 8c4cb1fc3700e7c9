"""What `windowmill try` asks of an engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa


@dataclass(frozen=True, slots=True)
class TryBatch:
    """Neighbouring rows of an input.

    Attributes
    ----------
    rows
        Typed columns; instants as timestamps without zone (UTC), integer axes as int64.
    conditions
        For each condition of the spec whether it is true of each row.
    commits
        Number of each row's commit, ascending, also from batch to batch; int64, shape (n_rows,). No commit is split between batches.
    """

    rows: pa.Table
    conditions: Mapping[str, pa.BooleanArray]
    commits: np.ndarray


@dataclass(frozen=True, slots=True)
class Results:
    """What an engine makes of its input.

    Attributes
    ----------
    rows
        Result rows in (key, window, window_end, trigger, revision, window_start) order, nulls first; instants in microseconds.
    quarantined
        (position of the row in all that was fed, reason).
    """

    rows: Sequence[Mapping[str, Any]]
    quarantined: Sequence[tuple[int, str]]


class TryEngine(Protocol):
    """One run of a pipeline over an input fed in batches; how it is cut makes no difference to the results."""

    def feed(self, batch: TryBatch) -> None:
        """Take the next rows in the order of arrival."""

    def finish(self, *, final: bool) -> Results:
        """Every row that the input has brought; ``final`` takes the watermark to infinity first."""
