"""The ledger, a redo log: the plan, outcome and files of every batch, in one small Delta table per pipeline. No JVM.

Records are only appended. Each batch has one record, its commit point: the files that it names have been written, and the next process
makes the commits that the tables lack. If a critical expectation holds back a batch, *rulings* follow its record; the last one publishes or
drops the batch. An append succeeds only if no other record was added since the ledger was read: the Delta version is the fence, and of two
concurrent writers exactly one wins.

Opening a ledger reads only the newest batches; older ones are read on demand. So the cost of a run does not grow with the ledger. If a
batch has too many files for its record, the record names a manifest that lists them, with its digest: a file in the folder
``<ledger>.manifests``.

Before an attempt records its batch, it may leave notes of what it has finished (:class:`Notes`), so that the next attempt at the batch does
not compute that again. Notes have a folder of their own, and name files that no record names yet. They are valid for one plan, which is
noted, too.
"""

from __future__ import annotations

import hashlib
import json
import sys
import uuid
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, fields, is_dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cache, lru_cache
from itertools import groupby
from typing import Any, TypeVar

import pyarrow.fs as pa_fs
from pydantic import TypeAdapter, ValidationError

from windowmill.checkpoints.batches import KINDS, Batch, Changes, LastWrite, Outcome, Plan, Status
from windowmill.checkpoints.failpoints import reach
from windowmill.checkpoints.places import Places
from windowmill.checkpoints.records import FORMAT, DeltaRecords, LedgerRecord
from windowmill.checkpoints.stores import make_folder, remedy, remove_folder, store_of, use_options_of
from windowmill.windowing.counts import Totals
from windowmill.windowing.errors import FencedError, LedgerCorruptError, LedgerError, SpecChangedError, first_line
from windowmill.windowing.spec import Pipeline, compare, describe_difference

#: Kinds of records: of a batch, and of a ruling on a held batch.
BATCH, RULING = "batch", "ruling"
#: Name in the body of a record: who ruled, or asked for the batch.
BY = "by"
#: Names in the body of a record. Totals are sums over all committed batches up to this one.
PLAN, OUTCOME, CHANGES, MANIFEST, TOTALS = "plan", "outcome", "changes", "manifest", "totals"
#: Number of batches whose records are read at a time. A record takes kilobytes, most of them for the source's schema.
READ_AT_ONCE = 4_096
#: What to do about a spec that makes another pipeline.
NEW_SINK = "give the new definition its own sink and backfill it there"
#: Greatest number of files whose entries, of about a kilobyte each, a record itself holds.
MAX_FILES = 32
_parser: Callable[[Any], TypeAdapter[Any]] = cache(TypeAdapter)


def status_of(verdict: str) -> Status:
    return "held" if verdict == "held" else "abandoned" if verdict == "abandoned" else "committed"


def stored(part: Plan | Outcome) -> dict[str, Any]:
    """The fields of a plan, with its action, or of an outcome, as a record has them."""
    action = {} if isinstance(part, Outcome) else {"action": part.action}
    optional = [each for each in fields(part) if each.metadata.get("optional")]
    absent = [each.name for each in optional if getattr(part, each.name) in (each.default, {})]
    return {name: value for name, value in asdict(part).items() if name not in absent} | action


def totals_of(batches: Iterable[Batch], before: Totals | None = None) -> Totals:
    """The totals ``before`` plus those of ``batches``."""
    totals = before or Totals()
    for batch in batches:
        if batch.status == "committed":
            totals = batch.plan.totals_after(totals, batch.counts)
    return totals


def recorded_totals(records: Sequence[LedgerRecord], path: str) -> tuple[int, Totals] | None:
    """The batch number and totals of the newest record among ``records`` that has totals; batches that are held or abandoned have none."""
    for record in reversed(records):
        totals = _parsed(record, path).get(TOTALS)
        if totals is not None:
            return record.batch, _built(Totals, totals, record, path)
    return None


def assemble(records: Sequence[LedgerRecord], path: str, *, integer_axis: bool) -> list[Batch]:
    """The batches described by ``records``, oldest first; all records of each batch must be given, in order.

    Raises ``LedgerCorruptError`` if a record is missing, duplicated, damaged or contradicts the others.
    """
    batches: list[Batch] = []
    last: Batch | None = None
    for number, group in groupby(records, key=lambda record: record.batch):
        expected = batches[-1].number + 1 if batches else number
        if number > expected or (batches and batches[-1].status == "held"):
            missing = f"batch {expected}" if number > expected else f"the ruling on batch {expected - 1}"
            raise _corrupt(path, f"{missing} is missing")
        if number < expected:
            raise _corrupt(path, f"records of batch {number} are among those of batch {expected - 1}")
        batch = _batch(tuple(group), path, integer_axis=integer_axis)
        _check_order(last, batch, path)
        batches.append(batch)
        if batch.status == "committed" and batch.plan.builds_state:
            last = batch
    return batches


def check_joined(older: Sequence[Batch], newer: Sequence[Batch], path: str) -> None:
    """Refuse ``newer`` batches that do not continue the ``older`` ones; both as returned by :func:`assemble`."""
    if not older or not newer:
        return
    if older[-1].number + 1 != newer[0].number:
        raise _corrupt(path, f"batch {older[-1].number + 1} is missing")
    if older[-1].status == "held":
        raise _corrupt(path, f"the ruling on batch {older[-1].number} is missing")
    last = next((batch for batch in reversed(older) if batch.status == "committed" and batch.plan.builds_state), None)
    following = next((batch for batch in newer if batch.plan.builds_state), None)
    if following is not None:
        _check_order(last, following, path)


@lru_cache(maxsize=64)  # a run reads its newest records three times
def _batch(records: tuple[LedgerRecord, ...], path: str, *, integer_axis: bool) -> Batch:
    first, *rulings = records
    number, end = first.batch, records[-1]
    if first.kind != BATCH or any(record.kind != RULING for record in rulings):
        raise _corrupt(path, f"batch {number} has records of the kinds {', '.join(repr(record.kind) for record in records)}")
    bodies = [_parsed(record, path) for record in records]
    outcomes: list[Outcome] = [_built(Outcome, body.get(OUTCOME), record, path) for body, record in zip(bodies, records, strict=True)]
    if any(status_of(outcome.verdict) != "held" for outcome in outcomes[:-1]):
        raise _corrupt(path, f"batch {number} has a ruling, but was not held")
    values = bodies[0].get(PLAN)
    kind = KINDS.get(str(values.get("action"))) if isinstance(values, dict) else None
    if kind is None:
        raise _corrupt(path, f"the {first.kind} of batch {number} has no plan of a known kind")
    plan: Plan = _built(kind, values, first, path)
    # The schema takes kilobytes and is the same in nearly all batches, which so share one copy.
    plan = replace(plan, source_schema=sys.intern(plan.source_schema))
    if plan.batch != number or (plan.to_version < plan.from_version and not plan.goes_back):
        raise _corrupt(path, f"the plan of batch {number} is for batch {plan.batch}, versions {plan.from_version} to {plan.to_version}")
    if status_of(outcomes[-1].verdict) == "committed" and TOTALS not in bodies[-1]:
        raise _corrupt(path, f"the {end.kind} of batch {number} has no totals")
    changes = [_changes(body, record, path) for body, record in zip(bodies, records, strict=True)]
    manifest = bodies[0].get(MANIFEST)
    if manifest is not None and not (isinstance(manifest, list) and len(manifest) == 2 and all(isinstance(part, str) for part in manifest)):
        raise _corrupt(path, f"batch {number} has no readable manifest")
    by = bodies[-1].get(BY)
    if not (by is None or isinstance(by, str)):
        raise _corrupt(path, f"the {end.kind} record of batch {number} names {by!r} for who ruled")
    return Batch(
        plan,
        outcomes[-1],
        status_of(outcomes[-1].verdict),
        end.at,
        changes[0],
        None if manifest is None else (manifest[0], manifest[1]),
        [each["quality"] for each in changes[1:] if "quality" in each],
        sum(outcome.verdict == "held" for outcome in outcomes),
        integer_axis,
        by,
    )


def _changes(body: Mapping[str, Any], record: LedgerRecord, path: str) -> dict[str, Changes]:
    found = body.get(CHANGES)
    if not isinstance(found, dict):
        raise _corrupt(path, f"the {record.kind} record of batch {record.batch} has no changes")
    return {role: _built(Changes, values, record, path) for role, values in found.items()}


def _check_order(last: Batch | None, batch: Batch, path: str) -> None:
    """Refuse a ``batch`` that does not continue ``last``, the newest batch before it that advanced the pipeline."""
    if last is None or not batch.plan.builds_state:
        return
    if batch.plan.generation != last.plan.generation:
        raise _corrupt(path, f"batch {batch.number} is of another ledger (generation {batch.plan.generation}, not {last.plan.generation})")
    if batch.from_version != last.to_version:
        raise _corrupt(
            path, f"batch {batch.number} reads from version {batch.from_version}, but batch {last.number} read to {last.to_version}"
        )
    if batch.plan.goes_back:
        return
    watermarks = [(batch.plan.seen, batch.plan.emitted)]
    if batch.status == "committed":
        watermarks.append((batch.outcome.seen, batch.outcome.emitted))
    # A plan may omit these values; an outcome may not.
    for later, may_be_null in zip(watermarks, (True, False), strict=False):
        for name, before, after in zip(("seen", "emitted"), (last.outcome.seen, last.outcome.emitted), later, strict=True):
            if before is not None and (after < before if after is not None else not may_be_null):
                raise _corrupt(path, f"the watermark goes back at batch {batch.number} ({name} {after}, {before} before it)")


def _parsed(record: LedgerRecord, path: str) -> dict[str, Any]:
    try:
        body = json.loads(record.body)
    except (ValueError, RecursionError) as err:
        raise _corrupt(path, f"the {record.kind} of batch {record.batch} cannot be read ({err})") from err
    if not isinstance(body, dict):
        raise _corrupt(path, f"the {record.kind} of batch {record.batch} is not an object")
    return body


def _built(kind: type, values: Any, record: LedgerRecord, path: str) -> Any:
    """Build the dataclass ``kind`` from JSON ``values``, which must have all fields in their types; an integer is accepted for a float."""
    subject = f"the {record.kind} of batch {record.batch}"
    if not isinstance(values, dict):
        raise _corrupt(path, f"{subject} has no {kind.__name__.lower()}")
    missing = next((each.name for each in fields(kind) if each.name not in values and not each.metadata.get("optional")), None)
    if missing is not None:
        raise _corrupt(path, f"{subject} has no {missing}")
    try:
        built = _parser(kind).validate_json(json.dumps(values), strict=True)
    except ValidationError as err:
        [first, *_] = err.errors()
        if not first["loc"]:  # a text that is not valid Unicode, or values nested too deep
            raise _corrupt(path, f"{subject} cannot be read ({first['msg']})") from err
        name = first["loc"][0]
        raise _corrupt(path, f"{subject} has a {name} of the wrong type ({type(values[name]).__name__})") from err
    missing = _missing(built, values)
    if missing is not None:
        raise _corrupt(path, f"{subject} has no {missing}")
    return built


def _missing(built: Any, values: Any) -> str | None:
    """The first field, at any depth, of the dataclasses in ``built`` that is missing in the ``values`` from which it was built."""
    within = built
    if is_dataclass(built):
        held = [each.name for each in fields(built) if each.name in values or not each.metadata.get("optional")]
        within = {name: getattr(built, name) for name in held}
    if not isinstance(within, Mapping):
        return None
    return next((name for name in within if name not in values), None) or next(
        (found for name in within if (found := _missing(within[name], values[name])) is not None), None
    )


def _corrupt(path: str, what: str) -> LedgerCorruptError:
    return LedgerCorruptError(f"ledger {path}: {what}; restore the folder from a copy, nothing has been changed")


class Ledger:
    """A pipeline's ledger, as of the last read."""

    def __init__(self, path: str, *, integer_axis: bool = False, records: DeltaRecords | None = None) -> None:
        self.path = path
        self._integer_axis = integer_axis
        self._store = DeltaRecords(path) if records is None else records
        self._new_generation = uuid.uuid4().hex[:12]
        #: The newest batches, without gaps; older ones are loaded on demand.
        self._batches: list[Batch] = []
        #: Records loaded by the last :meth:`refresh`.
        self._records: list[LedgerRecord] = []
        #: Last writes given to :meth:`note`, for the next record.
        self._noted: dict[str, LastWrite | None] = {}
        #: Who has asked for the next batch, for its record.
        self.asked_by: str | None = None
        self.refresh()

    @classmethod
    def open(cls, pipeline: Pipeline) -> Ledger:
        """The ledger of ``pipeline``; an empty one if it has never run."""
        use_options_of(pipeline)
        return cls(Places.of(pipeline).ledger, integer_axis=pipeline.time.integer_axis)

    def refresh(self) -> None:
        """Reread the newest batches.

        Raises ``LedgerError`` if the ledger cannot be read, or was written by a newer windowmill; ``LedgerCorruptError`` if a record is
        missing, duplicated or damaged.
        """
        records = self._store.load()
        self._batches = assemble(records, self.path, integer_axis=self._integer_axis)
        self._records = records
        newest = self._batches[-1] if self._batches else None
        self.newest: Batch | None = newest
        #: Number of batches, a held one included; also the number of the next batch.
        self.count = newest.number + 1 if newest else 0
        #: The batch that a critical expectation holds back: recorded, but not published.
        self.held_batch = newest if newest and newest.status == "held" else None

    def batches(self) -> list[Batch]:
        """All batches, oldest first; reads the whole ledger."""
        self._load_from(0)
        last = recorded_totals(self._records, self.path)
        if last and last[1] != totals_of(batch for batch in self._batches if batch.number <= last[0]):
            raise LedgerCorruptError(
                f"ledger {self.path}: the totals in the record of batch {last[0]} do not match the batches; restore the folder from a copy"
            )
        return list(self._batches)

    def recent(self, last: int) -> list[Batch]:
        """The newest ``last`` batches, oldest first, or all if there are fewer."""
        return self.since(max(0, self.count - last))

    def since(self, first: int) -> list[Batch]:
        self._load_from(first)
        return [batch for batch in self._batches if batch.number >= first]

    @property
    def totals(self) -> Totals:
        """Sums over all committed batches."""
        last = recorded_totals(self._records, self.path)
        if last is None:  # no commit yet
            return totals_of(self.batches())
        return totals_of((batch for batch in self._batches if batch.number > last[0]), last[1])

    @property
    def newest_kept(self) -> Batch | None:
        """The newest batch that was not abandoned."""
        return self._newest_that(lambda batch: batch.status != "abandoned")

    @property
    def last_commit(self) -> Batch | None:
        """The newest committed batch that advanced the pipeline; backfills of a running pipeline do not."""
        return self._newest_that(lambda batch: batch.status == "committed" and batch.plan.builds_state)

    def _newest_that(self, fits: Callable[[Batch], bool]) -> Batch | None:
        looked_at = 0
        while True:
            unseen = self._batches[: len(self._batches) - looked_at]
            found = next(filter(fits, reversed(unseen)), None)
            if found is not None or not self._batches or self._batches[0].number == 0:
                return found
            looked_at = len(self._batches)
            self._load_from(max(0, self.count - 4 * looked_at))

    @property
    def next_commit(self) -> int:
        """Number of the first batch that has not been committed."""
        return self.count - (self.held_batch is not None)

    def changes_of(self, batch: Batch) -> Mapping[str, Changes]:
        """What ``batch`` changes in its tables, by role; raises ``LedgerCorruptError`` if its manifest is gone or damaged."""
        if batch.manifest is None:
            return batch.changes
        content = read_manifest(self.path, *batch.manifest).decode()
        record = LedgerRecord(FORMAT, "manifest", batch.number, batch.attempt, batch.ended_at, content)
        return _changes(_parsed(record, self.path), record, self.path)

    def written(self) -> dict[str, LastWrite]:
        """The last known write to each of the pipeline's tables, by role: from the last record, or given to :meth:`note` since."""
        recorded: dict[str, LastWrite | None] = dict(self.newest.outcome.written) if self.newest else {}
        return {role: written for role, written in (recorded | self._noted).items() if written is not None}

    def note(self, role: str, written: LastWrite | None) -> None:
        """Note the last write to a table for the next record; null forgets the earlier writes to the table."""
        self._noted[role] = written

    @property
    def generation(self) -> str:
        """Identity of this ledger; before the first plan, the identity that the plan will record."""
        return self.newest.plan.generation if self.newest else self._new_generation

    def as_computed(self, pipeline: Pipeline) -> Pipeline | None:
        """``pipeline`` with the meaning by which its last batch computed state and results; the spec may have changed since.

        Null if this meaning is unknown because its variables have other values now.
        """
        last = self.last_commit
        if last is None or pipeline.means(last.plan.definition, last.plan.meaning):
            return pipeline
        if not pipeline.has_variables_of(last.plan.definition, last.plan.meaning):
            return None
        meant = pipeline.meaning_as(last.plan.definition)
        return pipeline.model_copy(
            update={name: getattr(meant, name) for name in ("source", "steps", "keys", "time", "windows", "aggregates", "emit")}
        )

    def check_meaning(self, pipeline: Pipeline) -> None:
        """Refuse a spec whose results would not be consistent with those already published; raises ``SpecChangedError``."""
        last = self.newest_kept
        if last is None or pipeline.means(last.plan.definition, last.plan.meaning):
            return
        difference = describe_difference(last.plan.definition, pipeline.shown_meaning(), pipeline.meaning())
        same_variables = pipeline.has_variables_of(last.plan.definition, last.plan.meaning)
        others = compare(last.plan.definition, pipeline, {}, same_variables=same_variables).others
        change = NEW_SINK if others else "see what the change does by `windowmill plan SPEC`, and carry it out by `windowmill apply SPEC`"
        remedy = f"put the old ones back, or {change}"
        if last.status == "held":
            remedy = f"batch {last.number} is held: put the old ones back, release, discard or abandon it, and then change the spec"
        raise SpecChangedError(
            f"pipeline {pipeline.pipeline}: source, steps, dedup, keys, time, windows, aggregates or emit differ from those that built "
            f"{self.path} (last batch {last.number}){f': {difference}' if difference else ''}; {remedy}"
        )

    def record(self, plan: Plan, outcome: Outcome, changes: Mapping[str, Changes], at: datetime) -> None:
        """Record a batch: its commit point, unless its verdict is ``held``.

        Raises ``FencedError`` if another attempt has recorded first.
        """
        if self.held_batch is not None or plan.batch != self.count:
            raise FencedError(f"ledger {self.path}: batch {plan.batch} has been recorded by another attempt; nothing more to do")
        body: dict[str, Any] = {PLAN: stored(plan), CHANGES: {role: asdict(each) for role, each in changes.items()}}
        if self.asked_by is not None:
            body[BY] = self.asked_by
        if sum(len(each.files) + len(each.removes) for each in changes.values()) > MAX_FILES:
            manifest = {CHANGES: body[CHANGES]}
            body |= {CHANGES: {}, MANIFEST: write_manifest(self.path, plan.batch, plan.attempt, json.dumps(manifest).encode())}
        self._append(BATCH, plan, replace(outcome, written=self.written()), body, at)

    def rule(self, outcome: Outcome, validation: Changes | None, at: datetime, by: str | None = None) -> None:
        """Record a ruling on the held batch, with what its validation adds to the quality table and who ruled; raises as :meth:`record`."""
        held = self.held_batch
        if held is None:
            raise FencedError(f"ledger {self.path}: no batch is held any more; another attempt has been here")
        # Keep the writes before the batch, since which no other commit can have been made, and add the changes that the user has accepted:
        # these have no digest. Nor has the batch's own write if maintenance has removed the log, so that write is left out.
        others = {role: written for role, written in self.written().items() if written.batch != held.number}
        accepted = {role: written for role, written in others.items() if written.digest is None}
        outcome = replace(outcome, written=held.outcome.written | accepted)
        body = {CHANGES: {} if validation is None else {"quality": asdict(validation)}, BY: by}
        self._append(RULING, held.plan, outcome, body, at)

    def _append(self, kind: str, plan: Plan, outcome: Outcome, body: dict[str, Any], at: datetime) -> None:
        body[OUTCOME] = stored(outcome)
        if status_of(outcome.verdict) == "committed":
            body[TOTALS] = asdict(plan.totals_after(self.totals, outcome.published_counts))
        # A ruling has an id of its own, which distinguishes it from a ruling by another attempt.
        record = LedgerRecord(FORMAT, kind, plan.batch, plan.attempt if kind == BATCH else uuid.uuid4().hex[:12], at, json.dumps(body))
        try:
            assemble([*self._records, record], self.path, integer_axis=self._integer_axis)
        except LedgerCorruptError as err:
            # With this record the ledger could never be read again.
            raise LedgerError(f"the {kind} record of batch {plan.batch} does not fit the ledger, nothing was written ({err})") from err
        reach(f"{kind}.before")
        try:
            self._store.append(record)
            reach(f"{kind}.lost")
        except Exception:
            # After any error the append may have succeeded and only its response been lost. Errors of object stores, delta-rs and Arrow
            # have no common base class; and a batch that is recorded, but is taken for unrecorded, would be computed twice.
            with suppress(LedgerError):  # the original error is reported
                self.refresh()
            if not self._holds(record):
                raise
        else:
            self.refresh()
        reach(f"{kind}.after")

    def _holds(self, record: LedgerRecord) -> bool:
        found = self._store.read(record.batch, record.batch + 1)
        return any((known.kind, known.attempt) == (record.kind, record.attempt) for known in found)

    def _load_from(self, first: int) -> None:
        have = self._batches[0].number if self._batches else 0
        while first < have:
            start = max(first, have - READ_AT_ONCE)
            older = assemble(self._store.read(start, have), self.path, integer_axis=self._integer_axis)
            check_joined(older, self._batches, self.path)
            self._batches[:0] = older
            have = start


def _manifests_of(ledger: str) -> str:
    return f"{ledger.rstrip('/')}.manifests"


def write_manifest(ledger: str, batch: int, attempt: str, content: bytes) -> tuple[str, str]:
    """Write a batch's manifest; returns its name and digest."""
    name = f"b{batch:06d}-{attempt}.json.z"
    make_folder(_manifests_of(ledger))
    with store_of(_manifests_of(ledger)).open_output_stream(name, buffer_size=1 << 16) as stream:
        stream.write(zlib.compress(content))
    return name, hashlib.sha256(content).hexdigest()


def read_manifest(ledger: str, name: str, digest: str) -> bytes:
    """The content of a manifest; raises ``LedgerCorruptError`` if it is missing, or has another digest."""
    try:
        with store_of(_manifests_of(ledger)).open_input_file(name) as stream:
            content = zlib.decompress(stream.read())
    except (OSError, zlib.error) as err:
        raise LedgerCorruptError(
            f"ledger {ledger}: the manifest {name} cannot be read ({first_line(err)}); "
            + remedy(err, f"restore the folder {_manifests_of(ledger)} from a copy")
        ) from err
    if hashlib.sha256(content).hexdigest() != digest:
        raise LedgerCorruptError(f"ledger {ledger}: the manifest {name} is damaged; restore the folder {_manifests_of(ledger)} from a copy")
    return content


def remove_manifest(ledger: str, name: str) -> None:
    store_of(_manifests_of(ledger)).delete_file(name)


def prune_manifests(ledger: str, hours: int) -> int:
    """Remove all manifests but the newest that are older than ``hours``, or of any age for 0; returns their number."""
    store = store_of(_manifests_of(ledger))
    found = sorted(store.get_file_info(pa_fs.FileSelector("", allow_not_found=True)), key=lambda info: str(info.base_name))
    limit = datetime.now(UTC) - timedelta(hours=hours)
    old = [info for info in found[:-1] if not hours or (info.mtime is not None and info.mtime < limit)]
    for info in old:
        store.delete_file(info.path)
    return len(old)


#: Fields that may differ between plans of two attempts at one batch; each attempt at the first batch has a generation of its own.
_FIELDS_OF_ATTEMPT = ("attempt", "now_us", "generation")

P = TypeVar("P", bound=Plan)


class Notes:
    """The notes in the folder ``place``."""

    def __init__(self, place: str) -> None:
        self._place = place

    def resumed(self, plan: P) -> P:
        """``plan`` with the ``now_us`` by which the attempt that left the notes judged event times, if that attempt had the same plan."""
        noted = self.read(PLAN)
        if noted is None:
            return plan
        known = json.loads(noted)
        return replace(plan, now_us=known["now_us"]) if known["digest"] == _digest(plan) else plan

    def begin(self, plan: Plan) -> None:
        """Drop all notes, unless an attempt with this ``plan`` and its ``now_us`` has left them."""
        if self.read(PLAN) != _note_of(plan):
            self.clear()
            self.write(PLAN, _note_of(plan))

    def expire(self, batch: int) -> None:
        """Drop all notes, unless an attempt at this batch has left them."""
        noted = self.read(PLAN)
        if noted is None or json.loads(noted)["batch"] != batch:
            self.clear()

    def read(self, name: str) -> bytes | None:
        """The note ``name``; null if there is none, or it was not written completely."""
        try:
            with store_of(self._place).open_input_stream(f"{name}.json") as stream:
                digest, _, body = stream.read().partition(b"\n")
        except FileNotFoundError:
            return None
        return body if digest == _checksum(body) else None

    def write(self, name: str, body: bytes) -> None:
        make_folder(self._place)
        with store_of(self._place).open_output_stream(f"{name}.json") as stream:
            stream.write(_checksum(body) + b"\n" + body)

    def clear(self) -> None:
        remove_folder(self._place)


def _digest(plan: Plan) -> str:
    fields = {name: value for name, value in stored(plan).items() if name not in _FIELDS_OF_ATTEMPT}
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


def _note_of(plan: Plan) -> bytes:
    return json.dumps({"digest": _digest(plan), "batch": plan.batch, "now_us": plan.now_us}).encode()


def _checksum(body: bytes) -> bytes:
    return hashlib.sha256(body).hexdigest().encode()
