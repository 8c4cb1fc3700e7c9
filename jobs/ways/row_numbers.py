"""Numbers of rows, ascending in order of arrival over all batches, and the same on Spark and in this process: the state keeps them."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

from windowmill.jobs.sources.columns import FILE, ROW

if TYPE_CHECKING:
    import pyarrow as pa

    from windowmill.jobs.ways.input import Input
    from windowmill.windowing.kernels.combine import Ints

#: Number of low bits of a row's number that count rows within a batch; the bits above hold the batch number.
BATCH_SHIFT = 43
#: Number of low bits of a row's number that count rows within a Spark partition, where the input is a single batch.
ROW_BITS = 33
#: Smallest block in rows, and greatest number of blocks: larger batches get larger blocks, so that the driver collects little.
BLOCK_ROWS = 4_096
MAX_BLOCKS = 50_000


def block_rows(batch: Input) -> int:
    """Number of successive rows of a file in a block."""
    return max(BLOCK_ROWS, batch.expected_rows // MAX_BLOCKS)


def starts_of(blocks: Mapping[int, int], rows: int) -> tuple[int, ...]:
    """Offset of each file, in order: greater than the number of every row in earlier files.

    Parameters
    ----------
    blocks
        For each file with rows, the index of its last block.
    rows
        Number of rows in a block.
    """
    ends = [(blocks.get(file, -1) + 1) * rows for file in range(1 + max(blocks, default=-1))]
    return (0, *accumulate(ends))[:-1]


def numbers_of(rows: pa.Table, batch: Input) -> Ints:
    """Number of each of the ``rows`` of ``batch``."""
    file, row = rows.column(FILE).to_numpy(), rows.column(ROW).to_numpy()
    n, size = int(file.max()) + 1 if len(file) else 0, block_rows(batch)
    last = np.full(n, -1, np.int64)
    np.maximum.at(last, file, row // size)
    starts = np.array(starts_of({each: int(block) for each, block in enumerate(last) if block >= 0}, size), np.int64)
    return np.asarray((batch.batch << BATCH_SHIFT) + starts[file] + row, np.int64)
