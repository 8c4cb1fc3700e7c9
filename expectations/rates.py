"""Rules about what a batch read and could not apply; no result row tells that, so Great Expectations has no part in them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from expectations.rule import Rule

#: Share of a batch's rows read, from 0 to 1, that were quarantined: at most ``max_value``.
QUARANTINED_RATE = "expect_quarantined_rate_to_be_below"


def is_rate(rule: Rule) -> bool:
    """Whether the rule is about a batch's counts and not about its result rows."""
    return rule.type == QUARANTINED_RATE


def problems(written: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    """What is wrong with the arguments of a rate rule: field and message."""
    for name in written:
        if name != "max_value":
            yield name, f"unknown argument of {QUARANTINED_RATE}; its own is max_value"
    value = written.get("max_value")
    if value is None:
        yield "max_value", f"missing; {QUARANTINED_RATE} needs it"
    elif isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        yield "max_value", f"got {value!r}; expected a share from 0 to 1, such as 0.01 for 1 %"


def quarantined_rate(rows_read: int, rows_quarantined: int) -> float:
    """The share of the rows read that were quarantined; 0 where none were read."""
    return rows_quarantined / rows_read if rows_read else 0.0
