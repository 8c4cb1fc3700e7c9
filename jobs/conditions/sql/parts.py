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
    value = f"CAST({name}({term.value}) AS BIGINT)"
    # Sunday is 1 in Spark, 0 in DuckDB.
    return Term("int", f"({value} + 1)" if name == "dayofweek" and translation.dialect == "duckdb" else value, term.failed)


RULES: Mapping[type, Rule] = dict.fromkeys(_PARTS, _instant_part)
