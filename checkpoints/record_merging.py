"""Chooses which files of the ledger to merge. There are two levels, so each record is rewritten at most twice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from windowmill.checkpoints.record_files import RecordFile, packed
from windowmill.checkpoints.records import Record

#: Number of files of one level merged into one of the next; files of the last level are final.
FAN, LAST_LEVEL = 32, 2
#: Maximum number of files in one merge.
_MERGED_FILES = 2_048
#: Maximum number of characters of record bodies in a merged file, unless a single record has more.
_MERGED_CHARACTERS = 16 << 20


def to_merge(files: Sequence[RecordFile]) -> list[RecordFile]:
    """The ``files`` to merge now, in order; none while there are few appended files and all of them have checksums."""
    appended = [file for file in files if file.level == 0]
    if len(appended) < FAN and all(file.has_checksum for file in appended):
        return []
    merged = [file for file in files if 0 < file.level < LAST_LEVEL]
    chosen = [*merged, *appended] if len(merged) >= FAN - 1 else appended
    return chosen[:_MERGED_FILES]


def merged_files(records: Sequence[Record], *, last: bool) -> Iterator[tuple[RecordFile, bytes]]:
    """Pack ``records`` into files of up to ``FAN * FAN`` records; ``last`` says that some were merged before."""
    start = size = 0
    for n, record in enumerate(records):
        if n > start and (n - start >= FAN * FAN or size + len(record.body) > _MERGED_CHARACTERS):
            yield packed(records[start:n], LAST_LEVEL)
            start, size = n, 0
        size += len(record.body)
    yield packed(records[start:], LAST_LEVEL if last or len(records) - start >= FAN * FAN else 1)
