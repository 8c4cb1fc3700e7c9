"""Rules: expectations over the rows of a batch, and limits on the share of rows that a batch quarantined.

Result rows do not contain that share, so Great Expectations cannot check it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Origin = Literal["spec", "always"]
Severity = Literal["critical", "warning", "info"]
#: Type of the rule that the quarantined share of a batch's rows, from 0 to 1, is at most ``max_value``.
QUARANTINED_RATE = "expect_quarantined_rate_to_be_below"


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One expectation over the rows of a batch.

    Attributes
    ----------
    index
        Position in the suite; for a rule of the spec, also its position under ``expectations``.
    origin
        ``spec``, or ``always`` for rules that every pipeline has.
    type
        Its snake_case name in Great Expectations.
    column
        Columns that it checks, separated by commas; ``None`` for rules about the whole batch.
    arguments
        Arguments by their names in Great Expectations, including columns.
    severity
        ``critical`` holds the batch, ``warning`` flags it, ``info`` is recorded.
    """

    index: int
    origin: Origin
    type: str
    column: str | None
    arguments: Mapping[str, Any]
    severity: Severity


@dataclass(frozen=True)
class Loss:
    """The rows that a batch quarantined, for a message.

    Attributes
    ----------
    reasons
        Number of rows by reason.
    remedies
        What to do about each reason, with the words of the spec.
    examples
        A few of the rows: key, time and reason.
    """

    reasons: Mapping[str, int]
    remedies: tuple[str, ...] = ()
    examples: tuple[Mapping[str, Any], ...] = ()

    def describe(self) -> str:
        """Counts and remedies in one line, without values of the rows.

        >>> Loss({"too_late": 4_000, "null_time": 2}, ("time.disorder: 1 hour would keep all",)).describe()
        '4,000 too_late, 2 null_time; time.disorder: 1 hour would keep all'
        """
        counts = sorted(self.reasons.items(), key=lambda pair: (-pair[1], pair[0]))
        return "; ".join([", ".join(f"{count:,} {reason}" for reason, count in counts), *self.remedies])


def is_rate(rule: Rule) -> bool:
    """Whether the rule checks a batch's row counts instead of its result rows."""
    return rule.type == QUARANTINED_RATE


def rate_problems(written: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    """Errors in the arguments of a rate rule, as pairs (field, message)."""
    for name in written:
        if name != "max_value":
            yield name, f"unknown argument of {QUARANTINED_RATE}; its only argument is max_value"
    value = written.get("max_value")
    if value is None:
        yield "max_value", f"missing; {QUARANTINED_RATE} requires it"
    elif isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        yield "max_value", f"got {value!r}; expected a share from 0 to 1, such as 0.01 for 1 %"


def quarantined_rate(rows_read: int, rows_quarantined: int) -> float:
    """The share of the rows read that were quarantined; 0 if none were read.

    >>> quarantined_rate(200, 3)
    0.015
    """
    return rows_quarantined / rows_read if rows_read else 0.0
