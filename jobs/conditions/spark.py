"""Evaluates conditions in Spark so that a condition that fails on a row fails only that row, not the job."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F

from windowmill.jobs.conditions.duckdb import columns_of, conditions_of, translated
from windowmill.jobs.conditions.written import OF_ONE_ROW
from windowmill.windowing.errors import UnsupportedError

if TYPE_CHECKING:
    from pyspark.sql import Column

    from windowmill.jobs.conditions.terms import Term
    from windowmill.windowing.spec import Pipeline


#: Parts of the names of types and functions whose result may depend on the session's zone.
_ABOUT_TIME = re.compile("csv|date|day|hour|interval|json|minute|month|quarter|second|time|unix|variant|week|xml|year|zone")


def truth(condition: str, types: Mapping[str, pa.DataType]) -> Column:
    """Whether ``condition`` holds over columns of ``types``; null or false where it cannot be evaluated."""
    term = _term(condition, types)
    # Conditions that cannot fail, or that cannot be translated, go to Spark as written; but try_cast is null exactly where cast fails, and
    # what Spark makes of an instant depends on the session's zone.
    if term is None or (term.failed is None and "try_cast" not in condition.lower() and not _reads_instants(condition, types)):
        return F.expr(condition)
    return F.expr(term.value)


def failure(condition: str, types: Mapping[str, pa.DataType]) -> Column | None:
    """Whether ``condition`` cannot be evaluated on a row; ``None`` if it always can, or if it is outside the common subset."""
    sql = _failure_sql(condition, types)
    return None if sql is None else F.expr(sql)


def failing(conditions: Sequence[str], types: Mapping[str, pa.DataType]) -> Mapping[str, Column]:
    """:func:`failure` of each condition that can fail."""
    failures = {condition: failure(condition, types) for condition in conditions}
    return {condition: column for condition, column in failures.items() if column is not None}


def asks_zone(pipeline: Pipeline, types: Mapping[str, pa.DataType]) -> str | None:
    """A condition of the spec, without the filter, that Spark evaluates as written and whose truth may depend on the session's zone."""
    return next((condition for condition in conditions_of(pipeline) if _asks_zone(condition, types)), None)


def _asks_zone(condition: str, types: Mapping[str, pa.DataType]) -> bool:
    if _term(condition, types) is not None:
        return False
    named = {name.lower() for name in columns_of(condition)}
    read = " ".join(str(kind) for name, kind in types.items() if name.lower() in named)
    words = set(re.findall(r"\w+", condition.lower())) - (named - OF_ONE_ROW)
    return "timestamp" in read or any(map(_ABOUT_TIME.search, words))


def any_failure(pipeline: Pipeline, types: Mapping[str, pa.DataType]) -> str | None:
    """SQL of whether a condition of the spec, including the filter, cannot be evaluated on a row; ``None`` if none can fail."""
    failures = [sql for condition in every_condition(pipeline) if (sql := _failure_sql(condition, types)) is not None]
    return " OR ".join(failures) or None


def every_condition(pipeline: Pipeline) -> tuple[str, ...]:
    """The distinct conditions in the spec, the source's filter first."""
    own = (pipeline.source.filter,) if pipeline.source is not None and pipeline.source.filter else ()
    return tuple(dict.fromkeys((*own, *conditions_of(pipeline))))


def _reads_instants(condition: str, types: Mapping[str, pa.DataType]) -> bool:
    named = {name.lower() for name in columns_of(condition)}
    return any(pa.types.is_timestamp(kind) and name.lower() in named for name, kind in types.items())


def _failure_sql(condition: str, types: Mapping[str, pa.DataType]) -> str | None:
    term = _term(condition, types)
    return None if term is None or term.failed is None else f"coalesce({term.failed}, false)"


def _term(condition: str, types: Mapping[str, pa.DataType]) -> Term | None:
    try:
        return translated(condition, types, "spark")[0]
    except UnsupportedError:
        return None
