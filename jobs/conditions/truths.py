"""Where the conditions of a spec hold, and where they fail: over Arrow tables, in this process or in a task."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windowmill.windowing.errors import UnsupportedError
from windowmill.windowing.spec import Pipeline

if TYPE_CHECKING:
    from windowmill.jobs.conditions.evaluated import Value


def conditions_by_field(pipeline: Pipeline) -> Iterator[tuple[str, str]]:
    """Every condition on the rows that windows see, and the source's own filter, as pairs (path of the field, text)."""
    if pipeline.own_filter is not None:
        yield "source.filter", pipeline.own_filter
    for index, window in enumerate(pipeline.windows):
        for name, text in window.conditions().items():
            yield f"windows.{index}.{name}", text
    for name, aggregate in pipeline.aggregates.items():
        if aggregate.where is not None:
            yield f"aggregates.{name}.where", aggregate.where


def _evaluator() -> Any:
    from windowmill.jobs.conditions import evaluator  # loads the parser, which a spec without conditions does without

    return evaluator


def columns_of(condition: str) -> frozenset[str]:
    """Names of the columns that ``condition`` reads; of a field in a column that of the column."""
    from windowmill.jobs.conditions import checks

    return checks.columns_of(condition)


def read_by(conditions: Iterable[str], names: Iterable[str]) -> list[str]:
    """Those of the columns ``names`` that ``conditions`` read, in any case."""
    read = {name.lower() for condition in conditions for name in columns_of(condition)}
    return [name for name in names if name.lower() in read]


def value_of(condition: str, columns: Mapping[str, pa.Array], n: int) -> Value:
    """A condition over ``n`` rows of ``columns``; raises ``OutsideError``, and ``SpecError`` for a constant that cannot be what it must."""
    found: Value = _evaluator().value_of(condition, columns, n)
    return found


def expression_value(text: str, columns: Mapping[str, pa.Array], n: int) -> Value:
    """An expression of any type over ``n`` rows of ``columns``; raises as :func:`value_of`."""
    found: Value = _evaluator().expression_value(text, columns, n)
    return found


def every_condition(pipeline: Pipeline) -> tuple[str, ...]:
    """The distinct conditions in the spec, the source's own filter first; those of steps are none of them."""
    own = (pipeline.own_filter,) if pipeline.own_filter else ()
    return tuple(dict.fromkeys((*own, *pipeline.conditions())))


@dataclass(frozen=True, slots=True)
class Truth:
    """A condition evaluated over n rows, each array of shape (n,): where it is true (not null), and where its evaluation failed."""

    holds: pa.BooleanArray
    failed: pa.BooleanArray


@dataclass(frozen=True)
class Conditions:
    """Conditions over columns of given types; small and picklable.

    ``texts``: those that are evaluated over Arrow tables.
    ``outside``: for each other condition, why only Spark evaluates it.
    ``may_fail``: whether a row may exist on which one of ``texts`` fails.
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

    Raises ``SpecError`` if a condition is not Spark SQL; ``UnsupportedError`` if only Spark evaluates it over columns of these types.
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
    columns = {name: whole(rows.column(name)) for name in read_by([condition], rows.column_names)}
    value = value_of(condition, columns, n)
    return Truth(pc.fill_null(value.array, False), pa.array(np.zeros(n, np.bool_) if value.failed is None else value.failed))


def whole(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """``column`` as one array; Arrow would copy a single chunk."""
    if isinstance(column, pa.Array):
        return column
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def outside_problem(condition: str, types: Mapping[str, pa.DataType]) -> str | None:
    """Why only Spark evaluates ``condition`` over columns of ``types``; null if it is evaluated over Arrow tables too.

    Raises ``SpecError`` if it is no Spark SQL, or a constant in it cannot be what it must.
    """
    return _outside(condition, types)[0]


def may_fail(condition: str, types: Mapping[str, pa.DataType]) -> bool:
    """Whether a row may exist on which ``condition``, which is not outside, fails."""
    return _outside(condition, types)[1]


def _outside(condition: str, types: Mapping[str, pa.DataType]) -> tuple[str | None, bool]:
    found: tuple[str | None, bool] = _evaluator().outside_over(
        condition, tuple((name, types[name]) for name in read_by([condition], types))
    )
    return found


def outside_by_field(pipeline: Pipeline, types: Mapping[str, pa.DataType] | None = None) -> dict[str, str]:
    """Why only Spark evaluates a condition, by the path of its field, over columns of ``types``.

    With null for ``types``: conditions and steps that only Spark evaluates whatever the types. With types no steps: for them see
    ``RowSteps.outside``.
    """
    found: dict[str, str | None] = {}
    if types is None:
        for step in pipeline.row_steps:
            for text in step.texts:
                found[step.field] = found.get(step.field) or _evaluator().outside_whatever(text, is_condition=text in step.filters)
    for where, text in conditions_by_field(pipeline):
        found[where] = _evaluator().outside_whatever(text) if types is None else outside_problem(text, types)
    return refused_here(found)


def refused_here(found: Mapping[str, str | None]) -> dict[str, str]:
    """For each field with a reason why only Spark evaluates it, the sentence that says so."""
    return {where: f"{why}; `compute: local` and `windowmill try` refuse it" for where, why in found.items() if why is not None}


def instants_of(pipeline: Pipeline) -> set[str]:
    """Names of the columns, as windows see them, that hold instants."""
    if pipeline.time.integer_axis:
        return set()
    uses = (use for window in pipeline.windows for use in window.columns().values())
    of_windows = {use.column for use in uses if use.required == "instant"}
    axis = {pipeline.time.column, *([pipeline.time.end] if pipeline.time.end else [])}
    return of_windows | axis if pipeline.time.unit is None else of_windows - axis


def columns_in_conditions(pipeline: Pipeline) -> set[str]:
    """Names of the columns that conditions and steps read."""
    texts = [text for _, text in conditions_by_field(pipeline)] + [text for step in pipeline.row_steps for text in step.texts]
    return {name for text in texts for name in columns_of(text)}


def required_columns(pipeline: Pipeline) -> tuple[dict[str, str], dict[str, str]]:
    """The source columns that the pipeline reads, each with the path of the first field that names it; and the types that it requires.

    A type is ``instant``, ``integer``, ``number`` or ``boolean``; columns of any type are not among the second.
    """
    uses: dict[str, str] = {}
    for aggregate in pipeline.aggregates.values():
        if (takes := aggregate.declaration.takes) in ("number", "boolean"):
            uses |= dict.fromkeys(aggregate.columns, takes)
    for window in pipeline.windows:
        uses |= {use.column: "number" for use in window.columns().values()}  # or an instant, as below; an integer axis has none
    axis = [pipeline.time.column, *([pipeline.time.end] if pipeline.time.end else [])]
    uses |= dict.fromkeys(axis, "integer") | dict.fromkeys(instants_of(pipeline), "instant")
    named = [
        *pipeline.named_columns(),
        *((where, name) for where, text in conditions_by_field(pipeline) for name in sorted(columns_of(text))),
    ]
    for step in reversed(pipeline.row_steps):
        # In place of the columns that a step makes, the source has those that it reads; they may be of any type.
        made = {name.lower() for name in step.makes}
        named = [(where, name) for where, name in named if name.lower() not in made]
        uses = {name: use for name, use in uses.items() if name.lower() not in made}
        named += [(step.field, name) for name in sorted({name for text in step.texts for name in columns_of(text)})]
    fields: dict[str, str] = {}
    for where, name in named:
        fields.setdefault(name, where)
    return fields, uses
