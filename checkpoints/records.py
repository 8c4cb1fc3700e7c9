"""A record of the ledger: its fields, its checksum, and what the ledger asks of the place that keeps records."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Protocol

from windowing.errors import LedgerCorruptError

#: Records of this format and later carry their number and checksum.
SUMMED_FORMAT = 2


@dataclass(frozen=True, slots=True)
class Record:
    """One record of the ledger; ``body`` is JSON.

    Attributes
    ----------
    number
        Place in the ledger, from 0; null in records of format 1.
    sum
        Checksum of all other fields; null in records of format 1.
    """

    format: int
    kind: str
    batch: int
    attempt: str
    at: datetime
    body: str
    number: int | None = None
    sum: int | None = None


class RecordStore(Protocol):
    """What the ledger needs of the place that keeps its records."""

    def load(self) -> list[Record]:
        """The records of the newest batches, in order; later appends are fenced against this moment.

        Of each batch told all records are told; where the ledger is short these are all batches.
        """

    def read(self, first: int, before: int) -> list[Record]:
        """The records of the batches from ``first`` until ``before``, in order, as they stood at the last :meth:`load`."""

    def append(self, record: Record) -> None:
        """Add ``record``.

        Raises
        ------
        FencedError
            If another record has landed since :meth:`load`.
        StorageFullError, LedgerError
            If ``record`` could not be written; the ledger is as it was.
        """


def sealed(record: Record, number: int) -> Record:
    """``record`` as the ledger's ``number``-th, with its checksum."""
    numbered = replace(record, number=number)
    return replace(numbered, sum=checksum(numbered))


def checksum(record: Record) -> int:
    """64 bits over all fields of ``record`` but its checksum, as a signed integer."""
    instant = (record.at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    fields = [record.format, record.kind, record.batch, record.attempt, instant, record.body, record.number]
    return int.from_bytes(hashlib.blake2b(json.dumps(fields).encode(), digest_size=8).digest(), "big", signed=True)


def check_record(record: Record, place: str) -> None:
    """Refuse a record that is not as it was written; ``place`` names the file in the message. Raises ``LedgerCorruptError``."""
    expected = {"format": int, "kind": str, "batch": int, "attempt": str, "at": datetime, "body": str}
    wrong = [name for name, kind in expected.items() if not isinstance(getattr(record, name), kind)]
    if wrong:
        raise LedgerCorruptError(f"{place}: a record of batch {record.batch} has no {wrong[0]}; restore the folder from a copy")
    summed = record.format >= SUMMED_FORMAT or record.sum is not None or record.number is not None
    if summed and (record.number is None or record.sum != checksum(record)):
        raise LedgerCorruptError(
            f"{place}: the {record.kind} of batch {record.batch} is damaged (its checksum does not match); restore the folder from a copy"
        )
