"""Limits that a pipeline's rules set to the values of an aggregate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from windowmill.expectations.suites import rules
from windowmill.jobs.report.texts import short
from windowmill.windowing.spec import Pipeline

_BETWEEN = "expect_column_values_to_be_between"
#: Severities, the gravest first.
SEVERITIES = ("critical", "warning", "info")


@dataclass(frozen=True, slots=True)
class Limit:
    """A rule that the values of a column lie between two bounds; null where there is none."""

    severity: str
    least: float | None
    greatest: float | None

    def excess(self, value: float) -> float:
        """By how much ``value`` lies outside; 0 if it is inside.

        >>> Limit("warning", None, 180.0).excess(200.0)
        20.0
        """
        below = self.least - value if self.least is not None else 0.0
        above = value - self.greatest if self.greatest is not None else 0.0
        return max(below, above, 0.0)

    def describe(self) -> str:
        """The rule in a few words.

        >>> Limit("warning", -120.0, None).describe()
        'at least −120 [warning]'
        """
        parts = [f"{words} {short(bound)}" for words, bound in (("at least", self.least), ("at most", self.greatest)) if bound is not None]
        return f"{', '.join(parts)} [{self.severity}]"


def limits_of(pipeline: Pipeline, aggregate: str) -> list[Limit]:
    """Limits of ``aggregate`` for every window, the gravest first; a rule with a condition on the row sets none."""
    return sorted(
        (
            Limit(rule.severity, _number(rule.arguments.get("min_value")), _number(rule.arguments.get("max_value")))
            for rule in rules(pipeline)
            if rule.type == _BETWEEN and rule.arguments.get("column") == aggregate and not rule.arguments.get("row_condition")
        ),
        key=lambda limit: SEVERITIES.index(limit.severity),
    )


def broken_limit(limits: Sequence[Limit], value: float) -> Limit | None:
    """The gravest of the ``limits`` that ``value`` breaks."""
    return next((limit for limit in limits if limit.excess(value) > 0), None)


def _number(bound: object) -> float | None:
    return float(bound) if isinstance(bound, int | float) else None
