"""Builds batches from ledger records and validates every record; an invalid one is refused with the number of its batch."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from functools import cache
from itertools import groupby
from typing import Any

from pydantic import TypeAdapter, ValidationError

from windowmill.checkpoints.batches import Batch, Changes, Outcome, Status
from windowmill.checkpoints.plans import KINDS, Plan
from windowmill.checkpoints.records import FORMAT, LedgerRecord
from windowmill.windowing.counts import Totals
from windowmill.windowing.errors import LedgerCorruptError

#: A record of a batch, and one of a ruling on a held batch.
BATCH, RULING = "batch", "ruling"
#: Part of a ruling that names who ruled.
BY = "by"
#: Names in the body of a record. Totals are sums over all committed batches up to this one.
PLAN, OUTCOME, CHANGES, MANIFEST, TOTALS = "plan", "outcome", "changes", "manifest", "totals"


def status_of(verdict: str) -> Status:
    """The status of a batch whose last record has this verdict."""
    return "held" if verdict == "held" else "abandoned" if verdict == "abandoned" else "committed"


def add_batch(totals: Totals, plan: Plan, outcome: Outcome) -> Totals:
    """The ``totals`` after one more committed batch."""
    return plan.totals_after(totals, outcome.published_counts)


def stored(plan: Plan) -> dict[str, Any]:
    """The stored form of ``plan``."""
    return asdict(plan) | {"action": plan.action}


def totals_of(batches: Iterable[Batch], before: Totals | None = None) -> Totals:
    """The totals ``before`` plus those of ``batches``."""
    totals = before or Totals()
    for batch in batches:
        if batch.status == "committed":
            totals = add_batch(totals, batch.plan, batch.outcome)
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

    Raises
    ------
    LedgerCorruptError
        If a record is missing, duplicated, damaged or contradicts the others.
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
        batch = _batch(list(group), path, integer_axis=integer_axis)
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


def _batch(records: Sequence[LedgerRecord], path: str, *, integer_axis: bool) -> Batch:
    first, *rulings = records
    number, end = first.batch, records[-1]
    if first.kind != BATCH or any(record.kind != RULING for record in rulings):
        raise _corrupt(path, f"batch {number} has records of the kinds {', '.join(repr(record.kind) for record in records)}")
    bodies = [_parsed(record, path) for record in records]
    outcomes = [_outcome(body, record, path) for body, record in zip(bodies, records, strict=True)]
    if any(status_of(outcome.verdict) != "held" for outcome in outcomes[:-1]):
        raise _corrupt(path, f"batch {number} has a ruling, but was not held")
    plan = _plan(bodies[0].get(PLAN), first, path)
    if plan.batch != number or (plan.to_version < plan.from_version and not plan.goes_back):
        raise _corrupt(path, f"the plan of batch {number} is for batch {plan.batch}, versions {plan.from_version} to {plan.to_version}")
    if status_of(outcomes[-1].verdict) == "committed" and TOTALS not in bodies[-1]:
        raise _corrupt(path, f"the {end.kind} of batch {number} has no totals")
    changes = [_changes(body, record, path) for body, record in zip(bodies, records, strict=True)]
    manifest = bodies[0].get(MANIFEST)
    if manifest is not None and not (isinstance(manifest, list) and len(manifest) == 2 and all(isinstance(part, str) for part in manifest)):
        raise _corrupt(path, f"batch {number} has no readable manifest")
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
        _ruled_by(bodies[-1], end, path),
    )


def _ruled_by(body: Mapping[str, Any], record: LedgerRecord, path: str) -> str | None:
    by = body.get(BY)
    if not (by is None or isinstance(by, str)):
        raise _corrupt(path, f"the {record.kind} record of batch {record.batch} names {by!r} for who ruled")
    return by


def _outcome(body: Mapping[str, Any], record: LedgerRecord, path: str) -> Outcome:
    outcome: Outcome = _built(Outcome, body.get(OUTCOME), record, path)
    return outcome


def _changes(body: Mapping[str, Any], record: LedgerRecord, path: str) -> dict[str, Changes]:
    found = body.get(CHANGES)
    if not isinstance(found, dict):
        raise _corrupt(path, f"the {record.kind} record of batch {record.batch} has no changes")
    return {role: _built(Changes, values, record, path) for role, values in found.items()}


def changes_in(content: bytes, batch: Batch, path: str) -> dict[str, Changes]:
    """The changes in a manifest of ``batch``."""
    record = LedgerRecord(FORMAT, "manifest", batch.number, batch.attempt, batch.ended_at, content.decode())
    return _changes(_parsed(record, path), record, path)


def _plan(values: Any, record: LedgerRecord, path: str) -> Plan:
    kind = KINDS.get(str(values.get("action"))) if isinstance(values, dict) else None
    if kind is None:
        raise _corrupt(path, f"the {record.kind} of batch {record.batch} has no plan of a known kind")
    plan: Plan = _built(kind, values, record, path)
    # Kilobytes, and the same in nearly all batches.
    return replace(plan, source_schema=sys.intern(plan.source_schema))


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
    """Build the dataclass ``kind`` from JSON ``values``: all its fields, each of its type; an integer is accepted for a float."""
    subject = f"the {record.kind} of batch {record.batch}"
    if not isinstance(values, dict):
        raise _corrupt(path, f"{subject} has no {kind.__name__.lower()}")
    missing = next((each.name for each in fields(kind) if each.name not in values), None)
    if missing is not None:
        raise _corrupt(path, f"{subject} has no {missing}")
    try:
        built = _parser(kind).validate_json(json.dumps(values), strict=True)
    except ValidationError as err:
        [first, *_] = err.errors()
        if not first["loc"]:  # a text that is no Unicode, or values nested too deep
            raise _corrupt(path, f"{subject} cannot be read ({first['msg']})") from err
        name = first["loc"][0]
        raise _corrupt(path, f"{subject} has a {name} of the wrong type ({type(values[name]).__name__})") from err
    missing = _missing(asdict(built), values)
    if missing is not None:
        raise _corrupt(path, f"{subject} has no {missing}")
    return built


def _missing(whole: Any, values: Any) -> str | None:
    """The first field of the dataclasses ``whole``, as dicts, that the ``values`` they were built from lack, at any depth."""
    if not isinstance(whole, dict):
        return None
    return next((name for name in whole if name not in values), None) or next(
        (found for name in whole if (found := _missing(whole[name], values[name])) is not None), None
    )


@cache
def _parser(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _corrupt(path: str, what: str) -> LedgerCorruptError:
    return LedgerCorruptError(f"ledger {path}: {what}; restore the folder from a copy, nothing has been changed")
