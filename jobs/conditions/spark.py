"""Evaluates conditions where Spark has the rows, so that a condition that fails on a row fails only that row, not the job.

Spark itself evaluates what cannot fail and asks for no zone; tasks of Python evaluate what else there is a rule for. A condition that only
Spark evaluates goes to it as it is written.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import arrow_udf

from windowmill.checkpoints.quoting import backquoted
from windowmill.jobs.conditions.truths import columns_of, every_condition, may_fail, outside_problem, read_by, value_of

if TYPE_CHECKING:
    from pyspark.sql import Column

    from windowmill.windowing.spec import Pipeline


_HOLDS, _FAILS = 1, 2
#: Parts of the names of types and functions whose result may depend on the session's zone.
_ABOUT_TIME = re.compile("csv|date|day|hour|interval|json|minute|month|quarter|second|time|unix|variant|week|xml|year|zone")


def judged(condition: str, types: Mapping[str, pa.DataType]) -> tuple[Column, Column | None]:
    """Whether ``condition`` holds over columns of ``types``, and whether it cannot be evaluated on a row, evaluated once.

    The former is null or false where it cannot be evaluated; the latter is null if it always can, or if only Spark evaluates it.
    """
    if outside_problem(condition, types) is not None or not (may_fail(condition, types) or _is_about_time(condition, types)):
        return F.expr(condition), None
    found = _by_arrow(condition, types)
    return found == _HOLDS, found == _FAILS if may_fail(condition, types) else None


def truth(condition: str, types: Mapping[str, pa.DataType]) -> Column:
    """The former of :func:`judged`."""
    return judged(condition, types)[0]


def failing(conditions: Sequence[str], types: Mapping[str, pa.DataType]) -> Mapping[str, Column]:
    """Whether each condition that can fail does so on a row."""
    failures = {condition: judged(condition, types)[1] for condition in conditions}
    return {condition: column for condition, column in failures.items() if column is not None}


def any_failure(pipeline: Pipeline, types: Mapping[str, pa.DataType]) -> Column | None:
    """Whether a condition of the spec, including the filter, cannot be evaluated on a row; ``None`` if none can fail."""
    failures = failing(every_condition(pipeline), types)
    return reduce(lambda one, other: one | other, failures.values()) if failures else None


def _by_arrow(condition: str, types: Mapping[str, pa.DataType]) -> Column:
    """``_HOLDS`` or ``_FAILS`` where ``condition`` does, evaluated by a task of Python."""
    names = read_by([condition], types)

    def found(*given: pa.Array) -> pa.Array:
        n = len(given[0])
        value = value_of(condition, dict(zip(names, given, strict=False)), n)
        holds = pc.fill_null(value.array, False).cast(pa.int8())
        return holds if value.failed is None else pc.if_else(pa.array(value.failed), pa.scalar(_FAILS, pa.int8()), holds)

    # PySpark advises against the function type, which its stubs want. A function of no column would not know the number of rows.
    function = arrow_udf(found, "tinyint")  # type: ignore[call-overload]
    column: Column = function(*(F.col(backquoted(name)) for name in names) if names else (F.lit(0),))
    return column


def asks_zone(pipeline: Pipeline, types: Mapping[str, pa.DataType]) -> str | None:
    """A condition of the spec, without the filter, that Spark evaluates as written and whose truth may depend on the session's zone."""
    for condition in pipeline.conditions():
        if outside_problem(condition, types) is not None and _is_about_time(condition, types):
            return condition
    return None


def _is_about_time(condition: str, types: Mapping[str, pa.DataType]) -> bool:
    from windowmill.jobs.conditions.checks import OF_ONE_ROW  # loads the parser

    words = set(re.findall(r"\w+", condition.lower())) - ({name.lower() for name in columns_of(condition)} - OF_ONE_ROW)
    return any("timestamp" in str(types[name]) for name in read_by([condition], types)) or any(map(_ABOUT_TIME.search, words))
