"""Conditions in Spark, such that one that fails on a row fails that row, and not the job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F

from windowmill.jobs.conditions.duckdb import conditions_of, translated
from windowmill.windowing.errors import UnsupportedError

if TYPE_CHECKING:
    from pyspark.sql import Column

    from windowmill.jobs.conditions.sql.terms import Term
    from windowmill.windowing.spec import Pipeline


def truth(condition: str, types: Mapping[str, pa.DataType]) -> Column:
    """Whether ``condition`` holds over columns of ``types``; null or false where it cannot be evaluated."""
    term = _term(condition, types)
    # What cannot fail is left to Spark as it was written.
    return F.expr(condition if term is None or term.failed is None else term.value)


def failure(condition: str, types: Mapping[str, pa.DataType]) -> Column | None:
    """Whether ``condition`` cannot be evaluated on a row; ``None`` where it always can, or where only Spark itself would know."""
    told = _failure_sql(condition, types)
    return None if told is None else F.expr(told)


def failing(conditions: Sequence[str], types: Mapping[str, pa.DataType]) -> Mapping[str, Column]:
    """:func:`failure` of those of ``conditions`` that can fail."""
    found = {condition: failure(condition, types) for condition in conditions}
    return {condition: column for condition, column in found.items() if column is not None}


def any_failure(pipeline: Pipeline, types: Mapping[str, pa.DataType]) -> str | None:
    """Whether a condition of the spec, its filter included, cannot be evaluated on a row, in SQL; ``None`` where all always can."""
    told = [sql for condition in every_condition(pipeline) if (sql := _failure_sql(condition, types)) is not None]
    return " OR ".join(told) or None


def every_condition(pipeline: Pipeline) -> tuple[str, ...]:
    """Every condition in the spec, each once, the source's filter first."""
    own = (pipeline.source.filter,) if pipeline.source is not None and pipeline.source.filter else ()
    return tuple(dict.fromkeys((*own, *conditions_of(pipeline))))


def _failure_sql(condition: str, types: Mapping[str, pa.DataType]) -> str | None:
    term = _term(condition, types)
    return None if term is None or term.failed is None else f"coalesce({term.failed}, false)"


def _term(condition: str, types: Mapping[str, pa.DataType]) -> Term | None:
    try:
        return translated(condition, types, "spark")[0]
    except UnsupportedError:
        return None
