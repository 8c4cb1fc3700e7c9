"""Where the conditions of a spec hold, and where they fail: over Arrow tables, in this process or in a task."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windowmill.jobs.conditions.evaluated import NoValueError, OutsideError
from windowmill.jobs.conditions.functions import FUNCTIONS
from windowmill.windowing.errors import SpecError, UnsupportedError

if TYPE_CHECKING:
    from windowmill.jobs.conditions.evaluated import Value
    from windowmill.windowing.spec import Pipeline


def conditions_by_field(pipeline: Pipeline) -> Iterator[tuple[str, str]]:
    """Every condition on the source's rows, as pairs (path of the field, text)."""
    if pipeline.source is not None and pipeline.source.filter is not None:
        yield "source.filter", pipeline.source.filter
    for index, window in enumerate(pipeline.windows):
        for name, text in window.conditions().items():
            yield f"windows.{index}.{name}", text
    for name, aggregate in pipeline.aggregates.items():
        if aggregate.where is not None:
            yield f"aggregates.{name}.where", aggregate.where


def columns_of(condition: str) -> frozenset[str]:
    """Names of the columns that ``condition`` reads; of a field in a column that of the column."""
    # Loads the parser, which a spec without conditions does without; so do other imports within functions here.
    from windowmill.jobs.conditions import syntax

    return syntax.columns_of(condition)


def every_condition(pipeline: Pipeline) -> tuple[str, ...]:
    """The distinct conditions in the spec, the source's filter first."""
    own = (pipeline.source.filter,) if pipeline.source is not None and pipeline.source.filter else ()
    return tuple(dict.fromkeys((*own, *pipeline.conditions())))


@dataclass(frozen=True, slots=True)
class Truth:
    """A condition evaluated over n rows, each array of shape (n,): where it is true (not null), and where its evaluation failed."""

    holds: pa.BooleanArray
    failed: pa.BooleanArray


@dataclass(frozen=True)
class Conditions:
    """Conditions over columns of given types; small and picklable.

    Attributes
    ----------
    texts
        Those that are evaluated over Arrow tables.
    outside
        For each other condition, why only Spark evaluates it.
    may_fail
        Whether a row may exist on which one of ``texts`` fails.
    """

    texts: Sequence[str]
    outside: Mapping[str, str] = field(default_factory=dict)
    may_fail: bool = False

    @classmethod
    def of(cls, conditions: Sequence[str], types: Mapping[str, pa.DataType]) -> Conditions:
        """``conditions`` over columns of ``types``; raises ``SpecError`` for one that is no Spark SQL."""
        why = {condition: problem for condition in conditions if (problem := outside_problem(condition, types)) is not None}
        texts = [condition for condition in conditions if condition not in why]
        return cls(texts, why, any(may_fail(condition, types) for condition in texts))

    def over(self, rows: pa.Table) -> dict[str, Truth]:
        """Evaluate each condition of ``texts`` over ``rows``."""
        return {condition: _truth(condition, rows) for condition in self.texts}


def evaluate(conditions: Sequence[str], rows: pa.Table) -> dict[str, Truth]:
    """Evaluate each condition over ``rows`` as Spark would.

    Raises
    ------
    SpecError
        If a condition is not Spark SQL.
    UnsupportedError
        If only Spark evaluates it over columns of these types.
    """
    if rows.num_rows:
        found = Conditions.of(conditions, dict(zip(rows.schema.names, rows.schema.types, strict=True)))
        for condition, why in found.outside.items():
            raise UnsupportedError(f"condition {condition!r}: {why}; use --engine spark")
    return {condition: _truth(condition, rows) for condition in conditions}


def _truth(condition: str, rows: pa.Table) -> Truth:
    n = rows.num_rows
    if not n:
        return Truth(pa.array([], pa.bool_()), pa.array([], pa.bool_()))
    wanted = {name.lower() for name in columns_of(condition)}
    columns = {name: rows.column(name).combine_chunks() for name in rows.column_names if name.lower() in wanted}
    value = value_of(condition, columns, n)
    return Truth(pc.fill_null(value.array, False), pa.array(np.zeros(n, np.bool_) if value.failed is None else value.failed))


def value_of(condition: str, columns: Mapping[str, pa.Array], n: int) -> Value:
    """A condition over ``n`` rows of ``columns``; raises ``OutsideError``, and ``SpecError`` for a constant that cannot be what it must."""
    from windowmill.jobs.conditions.evaluator import Evaluator
    from windowmill.jobs.conditions.syntax import parsed

    try:
        return Evaluator({name: spark_array(array) for name, array in columns.items()}, n).truth(parsed(condition))
    except NoValueError as err:
        raise SpecError(f"condition {condition!r}: {err}; correct it in the spec") from err


def spark_array(array: pa.Array) -> pa.Array:
    """``array`` in the type that Spark's type has here: texts and lists with small offsets, times in microseconds."""
    kind = spark_kind(array.type)
    array = array if kind == array.type else array.cast(kind)
    if not pa.types.is_string(kind):
        return array
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:  # bytes that are no UTF-8, of which Java makes the same characters
        return pa.array([None if each is None else each.decode("utf-8", "replace") for each in array.cast(pa.binary()).to_pylist()], kind)
    return array


def spark_kind(kind: pa.DataType) -> pa.DataType:
    """The Arrow type that represents the Spark type of ``kind``."""
    if pa.types.is_dictionary(kind):
        return spark_kind(kind.value_type)
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz and "UTC")
    if pa.types.is_large_list(kind):
        return pa.list_(kind.value_type)
    return kind


@lru_cache(1_000)
def _refusal(condition: str) -> str | None:
    from windowmill.jobs.conditions.checks import parts_problem
    from windowmill.jobs.conditions.syntax import parsed

    return parts_problem(parsed(condition, "databricks"), condition)


def outside_problem(condition: str, types: Mapping[str, pa.DataType]) -> str | None:
    """Why only Spark evaluates ``condition`` over columns of ``types``; null if it is evaluated over Arrow tables too.

    Raises
    ------
    SpecError
        If it is no Spark SQL, or a constant in it cannot be what it must.
    """
    return _outside(condition, _read_by(condition, types))[0]


def may_fail(condition: str, types: Mapping[str, pa.DataType]) -> bool:
    """Whether a row may exist on which ``condition``, which is not outside, fails."""
    return _outside(condition, _read_by(condition, types))[1]


def _read_by(condition: str, types: Mapping[str, pa.DataType]) -> tuple[tuple[str, pa.DataType], ...]:
    wanted = {name.lower() for name in columns_of(condition)}
    return tuple((name, kind) for name, kind in types.items() if name.lower() in wanted)


@lru_cache(1_000)
def _outside(condition: str, types: tuple[tuple[str, pa.DataType], ...]) -> tuple[str | None, bool]:
    problem = _refusal(condition)
    if problem is not None:
        return problem, False
    try:
        empty = {name: pa.nulls(0, spark_kind(kind)) for name, kind in types}
        return None, value_of(condition, empty, 0).failed is not None
    except OutsideError as err:
        return f"only Spark evaluates {err}", False
    except RecursionError:
        return "its parts lie too deep within one another; write it flat", False


def outside_by_field(pipeline: Pipeline, types: Mapping[str, pa.DataType] | None = None) -> dict[str, str]:
    """Why only Spark evaluates a condition, by the path of its field; without the columns' ``types``, as far as they do not decide."""
    reasons = (
        (where, _outside_whatever(text) if types is None else outside_problem(text, types)) for where, text in conditions_by_field(pipeline)
    )
    return {where: f"{why}; `compute: local` and `windowmill try` refuse it" for where, why in reasons if why is not None}


@lru_cache(1_000)
def _outside_whatever(condition: str) -> str | None:
    """Why only Spark evaluates ``condition`` whatever the types of its columns; null if that is not known."""
    from sqlglot import exp

    from windowmill.jobs.conditions.evaluator import Evaluator
    from windowmill.jobs.conditions.syntax import parsed

    try:
        tree = parsed(condition)
        names = [f"{name}()" for call in tree.find_all(exp.Anonymous) if (name := str(call.this).lower()) not in FUNCTIONS]
        if names:
            return f"only Spark evaluates {', '.join(dict.fromkeys(names))}"
        Evaluator({name: pa.nulls(0) for name in columns_of(condition)}, 0).truth(tree)
    except OutsideError as err:
        return None if err.by_type else f"only Spark evaluates {err}"
    except (SpecError, NoValueError, RecursionError):
        pass
    return None
