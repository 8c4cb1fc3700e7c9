"""Builds batches from ledger records and validates every record; an invalid one is refused with the number of its batch."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from itertools import groupby
from types import UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from windowmill.checkpoints.batches import BackfillPlan, Batch, Commit, Plan, Status
from windowmill.checkpoints.records import SUMMED_FORMAT, Record
from windowmill.checkpoints.stored_plans import ADDED_TO_FORMAT_2, StoredPlan
from windowmill.windowing.errors import LedgerCorruptError, LedgerError, OutdatedLedgerError

#: Increased when the meaning of records changes; an older windowmill refuses a newer ledger.
FORMAT = 3
#: Status of a batch after a record of each kind.
STATUS: Mapping[str, Status] = {"plan": "open", "held": "held", "commit": "committed", "abandoned": "abandoned"}
#: Name of the running totals in the body of a commit.
TOTALS = "totals"


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over all committed batches; rows that a backfill of a running pipeline reread count once.

    ``rows_published`` counts what batches have written, so rows that a backfill published anew count twice; the sink has fewer.
    """

    batches: int = 0
    backfills: int = 0
    rows_read: int = 0
    rows_applied: int = 0
    rows_late: int = 0
    rows_quarantined: int = 0
    rows_published: int = 0
    rows_ignored: int = 0

    def plus(self, plan: Plan, outcome: Commit) -> Totals:
        """The totals after one more committed batch."""
        counted = outcome if plan.builds_state else Commit(outcome.seen, outcome.emitted, outcome.verdict)
        return Totals(
            self.batches + 1,
            self.backfills + isinstance(plan, BackfillPlan),
            self.rows_read + counted.rows_read,
            self.rows_applied + counted.rows_applied,
            self.rows_late + counted.rows_late,
            self.rows_quarantined + counted.rows_quarantined,
            self.rows_published + outcome.rows_published,
            self.rows_ignored + counted.rows_ignored,
        )


def totals_of(batches: Iterable[Batch], before: Totals | None = None) -> Totals:
    """The totals ``before`` plus those of ``batches``."""
    totals = before or Totals()
    for batch in batches:
        if batch.status == "committed" and batch.outcome is not None:
            totals = totals.plus(batch.plan, batch.outcome)
    return totals


def recorded_totals(records: Sequence[Record], path: str) -> tuple[int, Totals] | None:
    """The batch number and totals of the newest commit among ``records`` that has totals."""
    for record in reversed(records):
        if record.kind == "commit" and record.format >= SUMMED_FORMAT:
            totals = _parsed(record, path).get(TOTALS)
            return record.batch, _built(Totals, totals, record, path)
    return None


def assemble(records: Sequence[Record], path: str, *, integer_axis: bool) -> list[Batch]:
    """The batches described by ``records``, oldest first; all records of each batch must be given, in order.

    Raises
    ------
    LedgerError
        If a newer windowmill wrote one of them.
    OutdatedLedgerError
        If an older one did.
    LedgerCorruptError
        If a record is missing, duplicated, damaged or contradicts the others.
    """
    other = next((record.format for record in records if record.format != FORMAT), FORMAT)
    if other > FORMAT:
        raise LedgerError(f"ledger {path}: holds format {other}, this windowmill reads format {FORMAT}; upgrade windowmill on this machine")
    if other < FORMAT:
        raise OutdatedLedgerError(
            f"ledger {path}: holds format {other} of a version before the first release, this windowmill reads format {FORMAT}; give the "
            "pipeline a new sink and backfill it there"
        )
    batches: list[Batch] = []
    last: Batch | None = None
    for number, group in groupby(records, key=lambda record: record.batch):
        expected = batches[-1].number + 1 if batches else number
        if number > expected or (batches and batches[-1].status not in ("committed", "abandoned")):
            missing = f"the plan of batch {expected}" if number > expected else f"the commit of batch {expected - 1}"
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
        raise _corrupt(path, f"the plan of batch {older[-1].number + 1} is missing")
    if older[-1].status not in ("committed", "abandoned"):
        raise _corrupt(path, f"the commit of batch {older[-1].number} is missing")
    last = next((batch for batch in reversed(older) if batch.status == "committed" and batch.plan.builds_state), None)
    following = next((batch for batch in newer if batch.plan.builds_state), None)
    if following is not None:
        _check_order(last, following, path)


def _batch(records: Sequence[Record], path: str, *, integer_axis: bool) -> Batch:
    number = records[0].batch
    by_kind: dict[str, list[Record]] = {kind: [] for kind in STATUS}
    for record in records:
        if record.kind not in by_kind:
            raise _corrupt(path, f"batch {number} has a record of the unknown kind {record.kind!r}")
        by_kind[record.kind].append(record)
    plans, held, *ends = by_kind.values()
    final = [record for kind in ends for record in kind]
    if not plans:
        raise _corrupt(path, f"the plan of batch {number} is missing")
    if len(plans) > 1 or len(final) > 1:
        raise _corrupt(path, f"batch {number} has two {'plans' if len(plans) > 1 else 'commits' if len(ends[0]) > 1 else 'ends'}")
    if records[0].kind != "plan" or (final and records[-1] is not final[0]):
        raise _corrupt(path, f"the records of batch {number} are not in order")
    plan = _plan(plans[0], path)
    if plan.batch != number or plan.to_version < plan.from_version:
        raise _corrupt(path, f"the plan of batch {number} is for batch {plan.batch}, versions {plan.from_version} to {plan.to_version}")
    end = records[-1] if len(records) > 1 else None
    outcomes = [_built(Commit, _parsed(record, path), record, path) for record in records[1:] if record.kind != "abandoned"]
    outcome = outcomes[-1] if outcomes and STATUS[records[-1].kind] != "abandoned" else None
    if end is None:
        return Batch(plan, plans[0].at, None, "open", None, 0, integer_axis)
    return Batch(plan, plans[0].at, outcome, STATUS[end.kind], end.at, len(held), integer_axis, end.attempt)


def _plan(record: Record, path: str) -> Plan:
    stored: StoredPlan = _built(StoredPlan, _parsed(record, path), record, path)
    try:
        return stored.plan()
    except ValueError as err:
        raise _corrupt(path, f"the plan of batch {record.batch} {err}") from err


def _check_order(last: Batch | None, batch: Batch, path: str) -> None:
    """Refuse a ``batch`` that does not continue ``last``, the newest batch before it that advanced the pipeline."""
    if last is None or last.outcome is None or not batch.plan.builds_state:
        return
    if batch.plan.generation != last.plan.generation:
        raise _corrupt(path, f"batch {batch.number} is of another ledger (generation {batch.plan.generation}, not {last.plan.generation})")
    if batch.from_version != last.to_version:
        raise _corrupt(
            path, f"batch {batch.number} reads from version {batch.from_version}, but batch {last.number} read to {last.to_version}"
        )
    watermarks = [(batch.plan.seen, batch.plan.emitted)]
    if batch.status == "committed" and batch.outcome is not None:
        watermarks.append((batch.outcome.seen, batch.outcome.emitted))
    # A plan may omit these values; an outcome may not.
    for later, may_be_null in zip(watermarks, (True, False), strict=False):
        for name, before, after in zip(("seen", "emitted"), (last.outcome.seen, last.outcome.emitted), later, strict=True):
            if before is not None and (after < before if after is not None else not may_be_null):
                raise _corrupt(path, f"the watermark goes back at batch {batch.number} ({name} {after}, {before} before it)")


def _parsed(record: Record, path: str) -> dict[str, Any]:
    try:
        body = json.loads(record.body)
    except (ValueError, RecursionError) as err:
        raise _corrupt(path, f"the {record.kind} of batch {record.batch} cannot be read ({err})") from err
    if not isinstance(body, dict):
        raise _corrupt(path, f"the {record.kind} of batch {record.batch} is not an object")
    return body


def _built(kind: type, values: Any, record: Record, path: str) -> Any:
    """Build a ``kind`` from ``values``; records may lack fields that were added later and have defaults."""
    subject = f"the {record.kind} of batch {record.batch}"
    if not isinstance(values, dict):
        raise _corrupt(path, f"{subject} has no {kind.__name__.lower()}")
    chosen = {}
    for name, (fits, required) in _fields(kind).items():
        if name not in values:
            if required or (record.format >= SUMMED_FORMAT and name not in ADDED_TO_FORMAT_2):
                raise _corrupt(path, f"{subject} has no {name}")
            continue
        if not fits(values[name]):
            raise _corrupt(path, f"{subject} has a {name} of the wrong type ({type(values[name]).__name__})")
        chosen[name] = values[name]
    if "source_schema" in chosen:  # kilobytes, and the same in nearly all batches
        chosen["source_schema"] = sys.intern(chosen["source_schema"])
    return kind(**chosen)


@cache
def _fields(kind: type) -> dict[str, tuple[Callable[[Any], bool], bool]]:
    """For each field of ``kind``: a type check for its JSON value, and whether it is required (has no default)."""
    hints = get_type_hints(kind)
    return {f.name: (_fit(hints[f.name]), f.default is MISSING and f.default_factory is MISSING) for f in fields(kind)}


def _fit(hint: Any) -> Callable[[Any], bool]:
    """A check that a JSON value fits the type ``hint``; a list is accepted for a tuple, an integer for a float."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return lambda value: value in arguments
    if origin is UnionType:
        ways = [_fit(argument) for argument in arguments]
        return lambda value: any(fits(value) for fits in ways)
    if origin is list:
        each = _fit(arguments[0])
        return lambda value: isinstance(value, list) and all(map(each, value))
    if origin is tuple:
        parts = [_fit(argument) for argument in arguments]
        return lambda value: isinstance(value, list) and len(value) == len(parts) and all(f(v) for f, v in zip(parts, value, strict=True))
    if origin is dict:
        each = _fit(arguments[1])
        return lambda value: isinstance(value, dict) and all(map(each, value.values()))
    if is_dataclass(hint) and isinstance(hint, type):
        return lambda value: isinstance(value, dict) and all(n in value and fits(value[n]) for n, (fits, _) in _fields(hint).items())
    if hint is float:
        return lambda value: isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return lambda value: isinstance(value, int) and not isinstance(value, bool)
    return lambda value: isinstance(value, hint)


def _corrupt(path: str, what: str) -> LedgerCorruptError:
    return LedgerCorruptError(f"ledger {path}: {what}; restore the folder from a copy, nothing has been changed")
