"""Divides rows by a hash of their key, the same in every process, so that all rows of a key meet in one place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa

from windowmill.windowing.columnar.checksums import row_checksums
from windowmill.windowing.kernels.slices import by_key


def in_buckets(rows: pa.Table, keys: Sequence[str], n_buckets: int) -> Iterator[tuple[int, pa.Table]]:
    """The rows of each bucket that has some, in the order of ``rows``; equal keys have the same bucket in every table. O(n + n_buckets).

    ``keys`` are the names of the key columns; without any, all rows are in bucket 0.
    """
    if not keys or n_buckets == 1:
        if rows.num_rows:
            yield 0, rows
        return
    # Python's own hash of a text differs from process to process.
    hashes = row_checksums(rows.select(keys)).to_numpy().view(np.uint64)
    order, offsets = by_key((hashes % np.uint64(n_buckets)).astype(np.int64), n_buckets)
    ordered = rows.take(pa.array(order))
    for number, (begin, end) in enumerate(pairwise(offsets.tolist())):
        if begin < end:
            yield number, ordered.slice(begin, end - begin)
