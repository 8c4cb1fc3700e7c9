"""Shares of a batch's rows, as a spec writes them: ``1 %``, ``0.5%``, ``0.005`` or ``never``."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema

from windowmill.windowing.fields import SpecMapping

_PERCENT = re.compile(r"(\d{1,3}(?:\.\d{1,12})?)\s*%")
_EXPECTED = "expected a percentage such as 1 %, a share from 0 to less than 1, or never"


def _share(value: object) -> float | None:
    if value is None or value == "never":
        return None
    if isinstance(value, str) and (percent := _PERCENT.fullmatch(value.strip())) and float(percent[1]) <= 100:
        # Not divided by 100, which would round again: 7 rows of 1,000 are not more than 0.7 %.
        return float(f"{percent[1]}e-2")
    # 1 could be meant as 1 % or as all rows.
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1:
        return float(value)
    raise ValueError(_EXPECTED)


def percentage(share: float | None) -> str:
    """``share`` as a spec writes it; of null, ``never``.

    >>> percentage(0.01), percentage(0.125), percentage(1.0), percentage(None)
    ('1 %', '12.5 %', '100 %', 'never')
    """
    return "never" if share is None else f"{share * 100:.12g} %"


Share = Annotated[
    float | None,
    BeforeValidator(_share),
    PlainSerializer(percentage, return_type=str),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "pattern": rf"^(\s*{_PERCENT.pattern}\s*|never)$"},
                {"type": "number", "minimum": 0, "exclusiveMaximum": 1},
                {"type": "null"},
            ]
        }
    ),
]


class QuarantineLimits(SpecMapping):
    """Shares of a batch's rows above which quarantined rows, for whatever reason, are a warning, or hold the batch."""

    warn: Share = 0.01
    hold: Share = 0.1

    def problem(self) -> str | None:
        """Why the limits contradict each other, beginning with the field; null if they do not."""
        if self.warn is None or self.hold is None or self.warn <= self.hold:
            return None
        warn, hold = percentage(self.warn), percentage(self.hold)
        if "hold" in self.model_fields_set:
            return f"hold: got {hold}; expected at least the share of warn ({warn}), or never"
        return f"warn: got {warn}; expected at most the share of hold ({hold} by default); raise hold, too"
