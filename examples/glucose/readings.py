"""Readings of three patients over three days, made by a seeded generator: meals, more readings while glucose is high, a silent sensor."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pyarrow as pa

from examples.deliveries import Delivery

_BEGIN = datetime(2024, 3, 4, tzinfo=UTC)
_DAYS = 3
#: Hours of the day at which meals begin, and the rise in mg/dL that follows each.
_MEALS = ((7.5, 70.0), (12.5, 90.0), (19.0, 80.0))
#: Mean of a patient without meals, and how strongly glucose answers to one.
_PATIENTS = {"ann": (95.0, 0.6), "ben": (120.0, 1.0), "cem": (140.0, 1.3)}
_HELD_AT_MOST = timedelta(minutes=15)
#: Ben's sensor loses its skin contact.
_SILENT = (_BEGIN + timedelta(days=1, hours=2), _BEGIN + timedelta(days=1, hours=5))


def _glucose(patient: str, at: datetime) -> float:
    base, answer = _PATIENTS[patient]
    hour = at.hour + at.minute / 60
    rises = (rise * answer * math.exp(-((hour - meal - 1) ** 2) / 0.8) for meal, rise in _MEALS)
    return base + sum(rises)


def _readings(patient: str, dice: random.Random) -> Iterator[tuple[datetime, int]]:
    at = _BEGIN
    while at < _BEGIN + timedelta(days=_DAYS):
        value = round(_glucose(patient, at) + dice.gauss(0, 3))
        if patient != "ben" or not _SILENT[0] <= at < _SILENT[1]:
            yield at, value
        # A sensor reads each minute while glucose is high, which is why a plain mean is too high.
        at += timedelta(minutes=1 if value > 180 else 5)


def deliveries() -> list[Delivery]:
    """A delivery each day; those of the last hours of the second day come with the third, from a phone that was switched off."""
    dice, rows = random.Random(20240304), []
    for patient in _PATIENTS:
        taken = list(_readings(patient, dice))
        following = [at for at, _ in taken[1:]] + [_BEGIN + timedelta(days=_DAYS)]
        rows += [(patient, at, min(after, at + _HELD_AT_MOST), value) for (at, value), after in zip(taken, following, strict=True)]
    days: list[list[tuple[str, datetime, datetime, int]]] = [[] for _ in range(_DAYS)]
    for row in sorted(rows, key=lambda row: (row[1], row[0])):
        patient, at = row[0], row[1]
        day = (at - _BEGIN).days
        was_off = patient == "cem" and day == 1 and at.hour >= 21
        days[day + was_off].append(row)
    return [Delivery(f"{_BEGIN + timedelta(days=day):%A}", _table(sorted(rows, key=lambda row: row[1]))) for day, rows in enumerate(days)]


def _table(rows: list[tuple[str, datetime, datetime, int]]) -> pa.Table:
    patients, taken_at, until, values = (list(column) for column in zip(*rows, strict=True))
    return pa.table(
        {
            "patient": patients,
            "taken_at": pa.array(taken_at, pa.timestamp("us", "UTC")),
            "until": pa.array(until, pa.timestamp("us", "UTC")),
            "mg_dl": pa.array(values, pa.int32()),
            "in_range": pa.array([1 if 70 <= value <= 180 else 0 for value in values], pa.int32()),
        }
    )
