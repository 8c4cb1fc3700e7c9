"""Compares published values with recomputed ones: whole numbers and texts exactly, floats and sketches within a bound."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any

from windowmill.jobs.verify.published_sample import PublishedRow
from windowmill.windowing.axis import to_us

#: Relative error by which floating-point results may differ: their sums are in another order.
TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True)
class RecomputedValue:
    """A recomputed value, with the size of what cancelled out in it, and the bound of a sketch."""

    value: Any
    scale: float | None = None
    bound: float = 0.0


@dataclass(frozen=True, slots=True)
class Difference:
    """A value of a published row that is not the recomputed one; ``column`` is null if the window itself is not there."""

    column: str | None
    published: Any
    recomputed: Any


@dataclass(frozen=True)
class ComparedRow:
    """A published row and how it was recomputed.

    Attributes
    ----------
    sql
        A query that recomputes it; null if no plain query does.
    undecided
        Why its differences do not count; null if they do.
    """

    row: PublishedRow
    differences: Sequence[Difference]
    sql: str | None
    undecided: str | None = None


@dataclass
class Comparison:
    """The rows of a sample as they have been compared.

    Attributes
    ----------
    equal, compared
        Numbers of values by column.
    left_out
        What could not be compared, with why, and the number of rows.
    methods
        Numbers of rows by how they were recomputed.
    """

    rows: list[ComparedRow] = field(default_factory=list)
    equal: Counter[str] = field(default_factory=Counter)
    compared: Counter[str] = field(default_factory=Counter)
    left_out: Counter[tuple[str, str]] = field(default_factory=Counter)
    methods: Counter[str] = field(default_factory=Counter)

    @property
    def differing(self) -> list[ComparedRow]:
        """Rows that are not what the source gives."""
        return [row for row in self.rows if row.differences and row.undecided is None]

    def add(
        self, row: PublishedRow, expected: Mapping[str, RecomputedValue] | None, sql: str | None, method: str, doubt: str | None = None
    ) -> None:
        """Compare ``row`` with what was ``expected``: its values, or null if there is no such window. ``doubt`` excuses differences."""
        self.methods[method] += 1
        if expected is None:
            found = [Difference(None, "the row", "no such window")]
        else:
            found = []
            for name, wanted in expected.items():
                same = agree(row.values[name], wanted, TOLERANCE)
                self.compared[name] += 1
                self.equal[name] += same
                if not same:
                    found.append(Difference(name, row.values[name], wanted.value))
        undecided = doubt if found else None
        if undecided is not None:
            self.left_out[f"rows of {row.window}", undecided] += 1
        self.rows.append(ComparedRow(row, found, sql, undecided))


def agree(published: Any, wanted: RecomputedValue, tolerance: float) -> bool:
    """Whether a published value is the one wanted.

    >>> [agree(a, RecomputedValue(b), TOLERANCE) for a, b in ((0.1 + 0.2, 0.3), (3, 4), ([1, None], [1, None]))]
    [True, False, True]
    """
    return _agree(published, wanted.value, tolerance, wanted.scale or 0.0, wanted.bound)


def _agree(a: Any, b: Any, tolerance: float, scale: float, bound: float) -> bool:
    if a is None or b is None:
        return a is b
    a, b = (to_us(value) if isinstance(value, datetime) else value for value in (a, b))
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(_agree(a[name], b[name], tolerance, scale, bound) for name in a)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(_agree(x, y, tolerance, scale, bound) for x, y in zip(a, b, strict=True))
    numbers = isinstance(a, int | float | Decimal) and isinstance(b, int | float | Decimal)
    if not numbers or (not bound and not isinstance(a, float) and not isinstance(b, float)):
        return bool(a == b)
    x, y = float(a), float(b)
    if not (math.isfinite(x) and math.isfinite(y)):
        return x == y or (math.isnan(x) and math.isnan(y))
    return abs(x - y) <= tolerance * max(abs(x), abs(y), scale if math.isfinite(scale) else 0.0) + bound * abs(y)
