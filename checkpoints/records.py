"""A ledger record: its fields and checksum, and the interface of the store that holds records."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Protocol

from windowmill.windowing.errors import LedgerCorruptError, LedgerError, OutdatedLedgerError

#: The format that this release writes and reads; increased when the meaning of records changes.
FORMAT = 4


@dataclass(frozen=True, slots=True)
class LedgerRecord:
    """One record of the ledger; ``body`` is JSON.

    Attributes
    ----------
    number
        Position in the ledger, from 0; -1 until the record is sealed.
    sum
        Checksum of all other fields; null until the record is sealed.
    """

    format: int
    kind: str
    batch: int
    attempt: str
    at: datetime
    body: str
    number: int = -1
    sum: int | None = None


class RecordStore(Protocol):
    """Interface of the store in which the ledger keeps its records."""

    def load(self) -> list[LedgerRecord]:
        """The records of the newest batches, in order; later appends are fenced against this version of the store.

        Every returned batch has all its records. A short ledger is returned whole.
        """

    def read(self, first: int, before: int) -> list[LedgerRecord]:
        """The records of the batches [``first``, ``before``), in order, as of the last :meth:`load`."""

    def append(self, record: LedgerRecord) -> None:
        """Add ``record``.

        Raises
        ------
        FencedError
            If another record was appended since :meth:`load`.
        StorageFullError, LedgerError
            If ``record`` could not be written; the ledger is unchanged.
        """


def sealed(record: LedgerRecord, number: int) -> LedgerRecord:
    """``record`` with its ``number`` in the ledger and its checksum."""
    numbered = replace(record, number=number)
    return replace(numbered, sum=checksum(numbered))


def checksum(record: LedgerRecord) -> int:
    """64-bit checksum over all other fields of ``record``, as a signed integer."""
    instant = (record.at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    fields = [record.format, record.kind, record.batch, record.attempt, instant, record.body, record.number]
    return int.from_bytes(hashlib.blake2b(json.dumps(fields).encode(), digest_size=8).digest(), "big", signed=True)


def check_record(record: LedgerRecord, place: str) -> None:
    """Check that ``record`` is as it was written; ``place`` names its file in messages.

    Raises
    ------
    LedgerError
        If a newer windowmill wrote it.
    OutdatedLedgerError
        If an older one did.
    LedgerCorruptError
        If it is damaged.
    """
    expected = {"format": int, "kind": str, "batch": int, "attempt": str, "at": datetime, "body": str}
    wrong = [name for name, kind in expected.items() if not isinstance(getattr(record, name), kind)]
    if wrong:
        raise LedgerCorruptError(f"{place}: a record of batch {record.batch} has no {wrong[0]}; restore the folder from a copy")
    if record.format > FORMAT:
        raise LedgerError(f"{place}: format {record.format}, this windowmill reads format {FORMAT}; upgrade windowmill on this machine")
    if record.format < FORMAT:
        raise OutdatedLedgerError(
            f"{place}: format {record.format} of a version before the first release, this windowmill reads format {FORMAT}; give the "
            "pipeline a new sink and backfill it there"
        )
    if record.sum != checksum(record):
        raise LedgerCorruptError(
            f"{place}: the {record.kind} of batch {record.batch} is damaged (its checksum does not match); restore the folder from a copy"
        )
