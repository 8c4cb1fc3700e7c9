"""Numbers of rows, ascending in order of arrival over all batches, and the same on Spark and in this process: the state keeps them.

The high bits of a number are the number of the row's commit (:data:`windowmill.windowing.watermark.COMMIT_SHIFT`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from windowmill.jobs.sources.columns import FILE, ROW
from windowmill.windowing.columnar.added_columns import NUMBER_OF
from windowmill.windowing.errors import LimitExceededError
from windowmill.windowing.watermark import COMMIT_SHIFT

if TYPE_CHECKING:
    import pyarrow as pa

    from windowmill.jobs.layouts.input import Input
    from windowmill.windowing.kernels.combine import Ints

#: Greatest number of a commit.
_MAX_COMMIT = (1 << 62 - COMMIT_SHIFT) - 1


def starts_of(rows: Sequence[int], commits: Sequence[int], first_row: int = 0) -> Ints:
    """Number before the first row of each file; int64, shape (n_files,).

    Parameters
    ----------
    rows
        For each file, one more than the greatest index of a row in it.
    commits
        The number of each file's commit, ascending; empty if each file is a commit.
    first_row
        The place of the first row among those of its commit.

    Raises
    ------
    LimitExceededError
        If a commit has more rows than can be numbered, or there were more commits.
    """
    through, commit = np.cumsum(np.array(rows, np.int64)), np.array((commits or range(len(rows)))[: len(rows)], np.int64)
    before = through - np.array(rows, np.int64)
    before -= before[np.searchsorted(commit, commit)]
    before[commit == commit[:1]] += first_row
    if len(rows) and int((before + rows).max()) > 1 << COMMIT_SHIFT:
        raise LimitExceededError(f"a commit of the source has more than {1 << COMMIT_SHIFT:,} rows; append them in several commits")
    if len(rows) and int(commit[-1]) > _MAX_COMMIT:
        raise LimitExceededError(
            f"version {int(commit[-1]):,} of the source: rows can be numbered up to version {_MAX_COMMIT:,}; copy them into a new "
            "table, or number the versions of a source of your own from 0"
        )
    return (commit << COMMIT_SHIFT) + before


def numbers_of(rows: pa.Table, batch: Input) -> Ints:
    """Number of each of the ``rows`` of ``batch``."""
    if NUMBER_OF in rows.column_names:
        return np.asarray(rows.column(NUMBER_OF).to_numpy(), np.int64)
    file, row = rows.column(FILE).to_numpy(), rows.column(ROW).to_numpy()
    counts = np.zeros(int(file.max()) + 1 if len(file) else 0, np.int64)
    np.maximum.at(counts, file, row + 1)
    return np.asarray(starts_of(counts.tolist(), batch.commits, batch.first_row)[file] + row, np.int64)
