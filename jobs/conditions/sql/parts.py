"""Parts of an instant, such as its year or hour."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from sqlglot import exp

from windowmill.jobs.conditions.sql.terms import NotCommon, Term

if TYPE_CHECKING:
    from windowmill.jobs.conditions.sql.translation import Rule, Translation

_PARTS: Mapping[type, str] = {
    exp.Year: "year",
    exp.Month: "month",
    exp.Day: "day",
    exp.DayOfMonth: "day",
    exp.DayOfWeek: "dayofweek",
    exp.Hour: "hour",
    exp.Minute: "minute",
    exp.DayOfYear: "dayofyear",
    exp.Quarter: "quarter",
}


def _instant_part(translation: Translation, node: exp.Func) -> Term:
    inner = node.this
    term = translation.term(inner.this if isinstance(inner, exp.TsOrDsToDate) else inner)
    if term.kind != "instant":
        raise NotCommon(f"a part of {term.kind}")
    name = _PARTS[type(node)]
    at = term.value if translation.dialect == "spark" else _finite(term.value)
    value = f"CAST({name}({at}) AS BIGINT)"
    # Sunday is 1 in Spark, 0 in DuckDB.
    return Term("int", f"({value} + 1)" if name == "dayofweek" and translation.dialect == "duckdb" else value, term.failed)


def _finite(instant: str) -> str:
    """An instant with the same parts for DuckDB, which takes the greatest count of microseconds, and its negative, for infinite."""
    nearest = "make_timestamp(CAST({}9223372036854775806 AS BIGINT))"
    before, after = (f"WHEN {instant} = TIMESTAMP '{sign}infinity' THEN {nearest.format(sign)}" for sign in ("-", ""))
    return f"(CASE {before} {after} ELSE {instant} END)"


RULES: Mapping[type, Rule] = dict.fromkeys(_PARTS, _instant_part)
