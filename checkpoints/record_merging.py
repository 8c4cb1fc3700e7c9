"""Which files of the ledger are merged, and into what: two levels, so that each record is rewritten twice in its life."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from checkpoints.record_files import RecordFile, packed
from checkpoints.records import Record

#: Files of a level that are merged into one of the next; files of the last level stay as they are.
FAN, LAST_LEVEL = 32, 2
#: Files that one merge takes at most: a ledger of an older windowmill has one for every record it ever wrote.
_MERGED_FILES = 2_048
#: Characters of bodies that a merged file holds at most, but for a single record's.
_MERGED_CHARACTERS = 16 << 20


def to_merge(files: Sequence[RecordFile]) -> list[RecordFile]:
    """Those of ``files``, in their order, that a merge takes now; none as long as few have been appended, all with a checksum."""
    appended = [file for file in files if file.level == 0]
    if len(appended) < FAN and all(file.has_checksum for file in appended):
        return []
    merged = [file for file in files if 0 < file.level < LAST_LEVEL]
    chosen = [*merged, *appended] if len(merged) >= FAN - 1 else appended
    return chosen[:_MERGED_FILES]


def merged_files(records: Sequence[Record], *, last: bool) -> Iterator[tuple[RecordFile, bytes]]:
    """``records`` in files of up to ``FAN * FAN``; ``last`` says that they have been merged before."""
    start = size = 0
    for n, record in enumerate(records):
        if n > start and (n - start >= FAN * FAN or size + len(record.body) > _MERGED_CHARACTERS):
            yield packed(records[start:n], LAST_LEVEL)
            start, size = n, 0
        size += len(record.body)
    yield packed(records[start:], LAST_LEVEL if last or len(records) - start >= FAN * FAN else 1)
