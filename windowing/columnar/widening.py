"""Partials of a column that has been widened: which stored columns stay what they are, and what sums of whole numbers become."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Self

import pyarrow as pa

from windowmill.windowing.aggregates.values import WIDE
from windowmill.windowing.kernels.layout import HIGH, Layout, StoredField
from windowmill.windowing.kernels.recipes import integer_of

#: One more than the greatest unscaled decimal of 38 digits.
_DECIMALS = 10**38
_Fields = Mapping[str, StoredField]


@dataclass(frozen=True, slots=True)
class WiderPartials:
    """How partials of a narrower layout are read in a wider one of the same spec."""

    #: For each column of the wider layout, that of the narrower one which holds the same, maybe in a narrower type.
    same: Mapping[str, str]
    #: Columns, by role, of sums that are of floats or decimals now, each with those in which they were of whole numbers.
    sums: Sequence[tuple[_Fields, _Fields]]

    @classmethod
    def between(cls, narrow: Layout | None, wide: Layout | None) -> Self | None:
        """From the layout ``narrow`` to ``wide``, null for no partials; null if a partial does not follow from the stored ones."""
        if narrow is None or wide is None:
            return cls({}, ())
        places = {atom: place for place, atom in enumerate(narrow.atoms)}
        same = wide.columns_among(narrow)
        sums: list[tuple[_Fields, _Fields]] = []
        for index, atom in enumerate(wide.atoms):
            own, whole = wide.fields_of(index), replace(atom, kind="sum_int")
            if atom in places:
                if atom.kind == "sum_decimal" and own[""].type != narrow.fields_of(places[atom])[""].type:
                    return None  # what its other column counts is in units of the last digit
            elif atom.kind in ("sum_float", "sum_decimal") and whole in places:
                sums.append((own, narrow.fields_of(places[whole])))
            else:
                return None
        return cls(same, sums) if all(held.name in same for held in wide.objects) else None

    @property
    def replaced(self) -> set[str]:
        """Columns of the narrower layout that the wider one goes without."""
        return {*self.same.values(), *(field.name for _, whole in self.sums for field in whole.values())} - self.same.keys()

    def replacing(self, stored: Collection[str]) -> set[str]:
        """Columns of the wider layout that take the place of others among the ``stored`` ones."""
        found = {name for name, own in self.same.items() if own != name and own in stored}
        return found | {field.name for wide, whole in self.sums if whole[""].name in stored for field in wide.values()}

    def columns(self, rows: pa.Table) -> dict[str, pa.Array]:
        """The partials of stored ``rows`` under the names of the wider layout."""
        found = {name: rows.column(own) for name, own in self.same.items() if own in rows.column_names}
        for wide, whole in self.sums:
            if whole[""].name in rows.column_names:
                found |= _converted(_whole_numbers(rows, whole), wide)
        return found


def _whole_numbers(rows: pa.Table, fields: _Fields) -> list[int | None]:
    """The sums of whole numbers, of any size; null in rows without one."""
    lows, high = rows.column(fields[""].name).to_pylist(), fields[HIGH].name
    # Tables that were made before sums had high bits lack them.
    highs = rows.column(high).to_pylist() if high in rows.column_names else [None] * len(lows)
    return [low if low is None or high is None else integer_of([low, high]) for low, high in zip(lows, highs, strict=True)]


def _converted(sums: Sequence[int | None], fields: _Fields) -> dict[str, pa.Array]:
    if "sum" in fields:
        rounded = [None if each is None else float(each) for each in sums]
        errors = [None if each is None or near is None else float(each - int(near)) for each, near in zip(sums, rounded, strict=True)]
        found: dict[str, list[object]] = {"carry": [None if each is None else 0 for each in sums], "sum": [*rounded], "error": [*errors]}
    else:
        scale = fields[""].type.scale
        unscaled = [None if each is None else each * 10**scale for each in sums]
        parts = [None if each is None else divmod(each, _DECIMALS) if abs(each) >= _DECIMALS else (0, each) for each in unscaled]
        found = {
            "": [None if each is None else Decimal(each[1]).scaleb(-scale, WIDE) for each in parts],
            HIGH: [None if each is None or not each[0] else each[0] for each in parts],
        }
    return {field.name: pa.array(found[role], field.type) for role, field in fields.items()}
