"""The table of remembered rows: an entry for each applied row of ``dedup``, with the row's id and time, until it expires. No JVM.

Entries never change. Files are sorted by the high half of the id, which is a hash: the differences of its values in order take few bits. A
batch searches files for the ids of its rows. A Bloom filter in each file says which of them it may hold. Of the row groups that may hold
these the batch reads the high halves, and the rest of an entry only where the high half is one of its own.

A file goes with the batch after which all its entries have expired; entries have expired if their time lies before an instant. Small files
are merged, the newest first, when there are more than :data:`FEW_FILES`, so that an entry is rewritten a logarithmic number of times, and
files hold entries of similar times. Full files are not rewritten.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from windowmill.checkpoints.batches import Changes
from windowmill.checkpoints.data_files import ROWS_PER_FILE, DataFile, Packing, index_of, write_files
from windowmill.checkpoints.delta_tables import check_format, files_of, newest
from windowmill.checkpoints.savepoints import Savepoint, saved_rows
from windowmill.checkpoints.state.reading import open_file, reporting_damage
from windowmill.checkpoints.stores import is_table, store_of
from windowmill.windowing.axis import AXIS_BEGIN, AXIS_END
from windowmill.windowing.columnar.added_columns import ID_HIGH, ID_LOW, TIME
from windowmill.windowing.columnar.duplicates import ENTRIES
from windowmill.windowing.slicing.edges import each_of

if TYPE_CHECKING:
    from windowmill.windowing.kernels.combine import Bools, Ints

#: Column by which the rows of a file are sorted; different ids with the same high half are rare.
ORDER = (ID_HIGH,)
#: Bits of a filter for each value, and those of them that a value sets: 1 value in 200 seems to be held that is not.
BITS, PROBES = 16, 4
#: Bits of a word.
_WORD = 64
#: Small files that are not merged.
FEW_FILES = 8
#: Most rows that are merged at a time, in memory.
MERGED_ROWS = 2 * ROWS_PER_FILE


def _filter_of(rows: pa.Table) -> bytes:
    return filter_of(rows.column(ID_HIGH).to_numpy())


PACKING = Packing({ID_HIGH: "DELTA_BINARY_PACKED", ID_LOW: "PLAIN", TIME: "DELTA_BINARY_PACKED"}, 16 << 10, _filter_of)


@dataclass(frozen=True, slots=True)
class SeenTable:
    """The table at ``path``, which there need not be; small and picklable."""

    path: str

    def matching(self, high: Ints, since: int) -> pa.Table:
        """The entries whose high half is one of ``high``, which are in ascending order, and whose time is at or after ``since``."""
        if not is_table(self.path) or not len(high):
            return ENTRIES.empty_table()
        with reporting_damage(self.path, "seen"):
            table = newest(self.path)
            check_format(table, "seen")
            files = [file for file in files_of(table) if greatest_time(file) >= since]
            with ThreadPoolExecutor(2) as threads:  # one decodes while another waits for storage
                parts = list(threads.map(lambda file: _matching(table.table_uri, file, high), files))
        found = pa.concat_tables([ENTRIES.empty_table(), *parts])
        return found.filter(pc.greater_equal(found.column(TIME), since))

    def changes(self, adds: Sequence[DataFile], since: int, *, batch: int, attempt: str, rebuilt: bool) -> Changes | None:
        """The changes by which a batch remembers the entries ``adds``, and forgets those with times before ``since``; null for none.

        ``rebuilt``: whether the entries take the place of all others.
        """
        if rebuilt:
            return self.replaced_by(adds)
        if not is_table(self.path):
            return Changes.of(ENTRIES, adds) if adds else None
        with reporting_damage(self.path, "seen"):
            table = newest(self.path)
            files = sorted(files_of(table), key=greatest_time)
            expired = [file for file in files if greatest_time(file) < since]
            merged = to_merge(files[len(expired) :])
            rows = _entries(table.table_uri, merged, since)
            kept = write_files(self.path, ENTRIES, rows, batch=batch, attempt=attempt, task=1, order=ORDER, packing=PACKING)
        removes = tuple(str(file["path"]) for file in (*expired, *merged))
        return Changes.of(ENTRIES, adds, kept=kept, removes=removes) if adds or removes else None

    def replaced_by(self, adds: Sequence[DataFile]) -> Changes | None:
        """The changes by which the entries ``adds`` take the place of all others; null for none."""
        removes = [str(file["path"]) for file in files_of(newest(self.path))] if is_table(self.path) else []
        return Changes.of(ENTRIES, adds, removes=removes, replaces=(AXIS_BEGIN, AXIS_END)) if adds or removes else None

    def written(self, entries: pa.Table, *, batch: int, attempt: str) -> tuple[DataFile, ...]:
        """Write ``entries`` to files of the table, which no commit has added yet."""
        return write_files(self.path, ENTRIES, [entries], batch=batch, attempt=attempt, order=ORDER, packing=PACKING)


def restored(folder: str, entry: Savepoint, path: str, *, batch: int, attempt: str) -> Changes | None:
    """What the restoration of the savepoint ``entry`` below ``folder`` changes in the table at ``path``; null for nothing.

    Raises ``SavepointError`` if a file of the savepoint is gone or damaged.
    """
    adds: list[DataFile] = []
    for number, (name, n_rows) in enumerate(entry.remembered.items()):
        rows = [saved_rows(folder, entry, name, n_rows)]
        adds += write_files(path, ENTRIES, rows, batch=batch, attempt=attempt, task=number, order=ORDER, packing=PACKING)
    return SeenTable(path).replaced_by(adds)


def greatest_time(file: Mapping[str, Any]) -> int:
    """The greatest time of an entry of ``file``, an entry of the log; the end of the axis if its statistics do not say."""
    found = file.get(f"max.{TIME}")
    return AXIS_END if found is None else int(found)


def to_merge(files: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Those of ``files``, which are in order of their times, that become one: none, or at least two of those that are not full."""
    small = [file for file in files if file["num_records"] < ROWS_PER_FILE]
    if len(small) <= FEW_FILES:
        return []
    taken, rows = list[Mapping[str, Any]](), 0
    for file in reversed(small):
        own = int(file["num_records"])
        if taken and (own > 2 * rows or rows + own > MERGED_ROWS):
            break
        taken, rows = [file, *taken], rows + own
    return taken if len(taken) > 1 else []


@contextmanager
def _opened(uri: str, file: Mapping[str, Any]) -> Iterator[tuple[pa.NativeFile, pq.ParquetFile]]:
    with store_of(uri).open_input_file(file["path"]) as opened:
        yield opened, open_file(uri, file, "seen", opened)


def _entries(uri: str, files: Sequence[Mapping[str, Any]], since: int) -> Iterator[pa.Table]:
    """The entries of ``files`` with times at or after ``since``."""
    for file in files:
        with _opened(uri, file) as (_, opened):
            rows = opened.read(columns=ENTRIES.names, use_threads=False).cast(ENTRIES)
        yield rows.filter(pc.greater_equal(rows.column(TIME), since))


def _matching(uri: str, file: Mapping[str, Any], high: Ints) -> pa.Table:
    """The entries of ``file`` whose high half is one of ``high``."""
    with _opened(uri, file) as (content, opened):
        sizes = opened.metadata
        if (index := index_of(content, sizes)) is not None:
            high = high[may_hold(index, high)]
        groups = [number for number in range(sizes.num_row_groups) if _spans(sizes.row_group(number), high)]
        if not groups:
            return ENTRIES.empty_table()
        own = opened.read_row_groups(groups, columns=[ID_HIGH], use_threads=False).column(ID_HIGH).to_numpy()
        places = _places(own, high, is_sorted=sizes.row_group(0).sorting_columns != ())
        begins = np.cumsum([0, *(sizes.row_group(number).num_rows for number in groups)])
        holding, of_place = np.unique(np.searchsorted(begins, places, side="right") - 1, return_inverse=True)
        if not len(holding):
            return ENTRIES.empty_table()
        rest = opened.read_row_groups([groups[place] for place in holding.tolist()], columns=[ID_LOW, TIME], use_threads=False)
        skipped = begins[holding] - np.cumsum([0, *(begins[holding + 1] - begins[holding])[:-1]])
        found = rest.take(pa.array(places - skipped[of_place]))
        return pa.table([pa.array(own[places]), *found.columns], schema=ENTRIES)


def _spans(group: Any, high: Ints) -> bool:
    """Whether a row group may hold one of the values ``high`` by its statistics."""
    span = group.column(0).statistics
    if span is None or not span.has_min_max:
        return True
    first = np.searchsorted(high, span.min)
    return bool(first < len(high) and high[first] <= span.max)


def _places(own: Ints, high: Ints, *, is_sorted: bool) -> Ints:
    """The places, in order, of those of ``own`` that are among ``high``, which are in ascending order."""
    if not is_sorted:  # others have rewritten the file
        return np.flatnonzero(high[np.minimum(np.searchsorted(high, own), len(high) - 1)] == own)
    first, behind = (np.searchsorted(own, high, side=side) for side in ("left", "right"))
    index, nth = each_of(behind - first)
    return np.asarray(first[index] + nth, np.int64)


def filter_of(high: Ints) -> bytes:
    """A Bloom filter of the hashes ``high``: words of 8 bytes. Each hash sets bits of one word.

    Blocked as in Putze, Sanders and Singler, "Cache-, Hash- and Space-Efficient Bloom Filters" (2007), section 2.1.
    """
    words = np.zeros(max(1, -(-len(high) * BITS // _WORD)), "<u8")
    np.bitwise_or.at(words, *_bits_in(len(words), high))
    return words.tobytes()


def may_hold(filtered: bytes, high: Ints) -> Bools:
    """Mask of those of ``high`` that may be among the ``filtered`` hashes."""
    words = np.frombuffer(filtered, "<u8")
    places, bits = _bits_in(len(words), high)
    return np.asarray(words[places] & bits == bits, np.bool_)


def _bits_in(n_words: int, high: Ints) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    """The word of each hash in a filter of so many words, by its upper half, and the bits that it sets there, by its lower half."""
    unsigned = high.view(np.uint64)
    chosen = (unsigned >> np.uint64(8 * n) & np.uint64(_WORD - 1) for n in range(PROBES))
    bits = reduce(np.bitwise_or, (np.left_shift(np.uint64(1), place) for place in chosen))
    return (unsigned >> np.uint64(32)) * np.uint64(n_words) >> np.uint64(32), bits
