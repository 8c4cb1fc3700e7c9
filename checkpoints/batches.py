"""The outcome of a batch, the files of its tables, and both with its plan: the values stored in the ledger's records."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Literal

import pyarrow as pa
from deltalake import Schema

from windowmill.checkpoints.data_files import DataFile, stored_type
from windowmill.checkpoints.plans import Plan
from windowmill.windowing.axis import from_us
from windowmill.windowing.counts import Counts

Status = Literal["held", "committed", "abandoned"]


@dataclass(frozen=True, slots=True)
class Changes:
    """What a batch changes in one table, by one commit."""

    #: Files of new rows.
    adds: tuple[DataFile, ...] = ()
    #: Files with rows that no rule judges: those of removed files that stay (a backfill), retracted windows (a restatement).
    kept: tuple[DataFile, ...] = ()
    #: Paths of the files that ``adds`` and ``kept`` replace, as the table names them; without ``replaces`` these are all files.
    removes: tuple[str, ...] = ()
    #: Range (begin, end] of window ends whose rows are replaced; null to append.
    replaces: tuple[int, int] | None = None
    #: The table's schema (Delta JSON), from which it is made, or widened. Null in a record if the table had all columns.
    schema: str | None = None
    #: Names of the windows whose rows of the range ``replaces`` are meant; null for all.
    windows: tuple[str, ...] | None = None
    #: Whether columns are added to a sink that lacks some. Other tables of a pipeline are always widened.
    widens: bool = False

    @classmethod
    def of(
        cls,
        schema: pa.Schema,
        adds: Iterable[DataFile] = (),
        *,
        kept: Iterable[DataFile] = (),
        removes: Iterable[str] = (),
        replaces: tuple[int, int] | None = None,
        windows: tuple[str, ...] | None = None,
        widens: bool = False,
    ) -> Changes:
        """Changes of a table with the columns ``schema``, all nullable."""
        stored = pa.schema([pa.field(field.name, stored_type(field.type)) for field in schema])
        return cls(tuple(adds), tuple(kept), tuple(removes), replaces, Schema.from_arrow(stored).to_json(), windows, widens)

    @property
    def files(self) -> tuple[DataFile, ...]:
        """The files that the commit adds."""
        return self.adds + self.kept

    @property
    def digest(self) -> str:
        """Digest of the files added, as of the commit (:func:`digest_of`)."""
        return digest_of(identity_of({"path": file.path}) for file in self.files)


def identity_of(file: Mapping[str, object]) -> str:
    """Identifies the rows of a file by its action in a log: with another deletion vector, the same path holds other rows."""
    deleted = file.get("deletionVector")
    vector = deleted if isinstance(deleted, dict) else {}
    return f"{file['path']} {vector.get('storageType', '')}{vector.get('pathOrInlineDv', '')}@{vector.get('offset', '')}"


def digest_of(identities: Iterable[str]) -> str:
    """SHA-256 of files, each identified by :func:`identity_of`; 16 hexadecimal digits."""
    return hashlib.sha256("\n".join(sorted(identities)).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class LastWrite:
    """The last write to one of the pipeline's own tables; the next batch verifies the table against it."""

    #: The batch that last wrote to the table.
    batch: int
    #: Delta id of the table, and the version that the commit created.
    table_id: str
    version: int
    #: Digest of the files added; null if others have changed the table since, and the user has accepted it.
    digest: str | None


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a batch."""

    #: Greatest event time so far, and the instant through which all windows are in the sink; null for none.
    seen: int | None
    emitted: int | None
    #: That of its validation, or of the ruling on it.
    verdict: str
    #: Its rows, as they were computed.
    counts: Counts = field(default_factory=Counts)
    #: Seconds by step.
    timings: dict[str, float] = field(default_factory=dict)
    #: What computed the batch: ``{"engine": "local"}``, or Spark's application with its numbers of jobs, stages, tasks and executors.
    compute: dict[str, Any] = field(default_factory=dict)
    #: ``processor_seconds`` (of the client alone as ``client_processor_seconds``), ``bytes_read`` of the source's files, ``bytes_written``,
    #: and the ``state_bytes`` after the batch.
    used: dict[str, float] = field(default_factory=dict)
    #: By role, the last write to that table by the batches before this one; this batch's own commits are made after the record, and found
    #: by their transactions.
    written: dict[str, LastWrite] = field(default_factory=dict)

    @property
    def published_counts(self) -> Counts:
        """Its rows, without result rows if these are not published: the batch is held, discarded or abandoned."""
        return replace(self.counts, windows={}) if self.verdict in ("held", "discarded", "abandoned") else self.counts


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch as ``history`` shows it: its plan, its outcome so far, and the files of its tables."""

    plan: Plan
    outcome: Outcome
    status: Status
    #: When it was recorded; if it was held, when it was last ruled on.
    ended_at: datetime
    #: By role, what the batch changes in its tables; of a batch of many files only in its ``manifest``.
    changes: Mapping[str, Changes] = field(default_factory=dict)
    #: Name and digest of the file that holds the changes; null if the record does.
    manifest: tuple[str, str] | None = None
    #: Changes of the quality table by later validations of a held batch, oldest first.
    validations: Sequence[Changes] = ()
    #: How often a validation has held it.
    holds: int = 0
    integer_axis: bool = False
    #: Who released, discarded or abandoned it, or approved the change of the spec that it carries out; null if nobody was named.
    ruled_by: str | None = None

    number = property(lambda self: self.plan.batch)
    action = property(lambda self: self.plan.action)
    from_version = property(lambda self: self.plan.from_version)
    to_version = property(lambda self: self.plan.to_version)
    attempt = property(lambda self: self.plan.attempt)
    verdict = property(lambda self: self.outcome.verdict)
    planned_at = property(lambda self: from_us(self.plan.now_us))
    committed_at = property(lambda self: self.ended_at if self.status == "committed" else None)

    @property
    def counts(self) -> Counts:
        return self.outcome.published_counts

    @property
    def left_out(self) -> tuple[str, ...]:
        """Roles of the tables that the ruling ``discarded`` leaves as they are: the state, too, where it is to fit rows of the past."""
        if self.verdict != "discarded":
            return ()
        return ("sink", "state") if self.is_backfill and self.plan.replaces_state else ("sink",)

    @property
    def is_backfill(self) -> bool:
        return self.plan.range is not None

    @property
    def seen(self) -> datetime | int | None:
        """Greatest event time after the batch."""
        return self._instant(self.outcome.seen)

    @property
    def emitted(self) -> datetime | int | None:
        """Every window that ends at or before this instant is in the sink."""
        return self._instant(self.outcome.emitted if self.status == "committed" else self.plan.emitted)

    def _instant(self, t: int | None) -> datetime | int | None:
        return t if t is None or self.integer_axis else from_us(t)


def undone_of(batches: Iterable[Batch]) -> frozenset[int]:
    """Numbers of the batches among these, which have no gaps, that a later one of them has undone, as a restoration does."""
    listed = list(batches)
    counting = {batch.number for batch in effective_batches(listed, restorations=True)}
    return frozenset(batch.number for batch in listed if batch.status == "committed" and batch.number not in counting)


def effective_batches(batches: Iterable[Batch], *, restorations: bool = False) -> list[Batch]:
    """The committed ``batches`` of a ledger that no restoration has undone, oldest first; with ``restorations``, or without."""
    left: list[Batch] = []
    for batch in batches:
        if batch.status != "committed":
            continue
        if (kept := batch.plan.kept_batch) is not None:
            left = [earlier for earlier in left if earlier.number <= kept]
        left.append(batch)
    return [batch for batch in left if restorations or not batch.plan.goes_back]


def state_plans(batches: Iterable[Batch]) -> list[Plan]:
    """The plans of those of ``batches`` that count, oldest first, which build the state."""
    return [batch.plan for batch in effective_batches(batches) if batch.plan.builds_state]
