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
    if translation.dialect == "spark":
        return Term("int", f"CAST({_in_utc(name, term.value)} AS BIGINT)", term.failed)
    value = f"CAST({name}({_finite(term.value)}) AS BIGINT)"
    # Sunday is 1 in Spark, 0 in DuckDB.
    return Term("int", f"({value} + 1)" if name == "dayofweek" else value, term.failed)


def _in_utc(name: str, instant: str) -> str:
    """A part of an instant in Spark's SQL. Its own functions of instants take the session's zone."""
    us = f"unix_micros({instant})"
    if name in _CLOCK_US:
        whole, unit = _CLOCK_US[name]
        return f"(pmod({us}, {whole}L) div {unit}L)"
    day = f"({us} div {_DAY_US}L - CASE WHEN {us} % {_DAY_US}L < 0 THEN 1 ELSE 0 END)"
    return f"{name}(date_from_unix_date(CAST({day} AS INT)))"


_DAY_US, _HOUR_US, _MINUTE_US = 86_400_000_000, 3_600_000_000, 60_000_000
#: Of a part of the clock's time: what it is a part of, and its unit.
_CLOCK_US: Mapping[str, tuple[int, int]] = {"hour": (_DAY_US, _HOUR_US), "minute": (_HOUR_US, _MINUTE_US)}


def _finite(instant: str) -> str:
    """An instant with the same parts for DuckDB, which takes the greatest count of microseconds, and its negative, for infinite."""
    nearest = "make_timestamp(CAST({}9223372036854775806 AS BIGINT))"
    before, after = (f"WHEN {instant} = TIMESTAMP '{sign}infinity' THEN {nearest.format(sign)}" for sign in ("-", ""))
    return f"(CASE {before} {after} ELSE {instant} END)"


RULES: Mapping[type, Rule] = dict.fromkeys(_PARTS, _instant_part)
