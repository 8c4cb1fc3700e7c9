"""What rows of a source go through before windows see them: computed columns, lookups and filters, in the order of the spec.

Each kind of step is a :class:`StepKind`, listed in :data:`KINDS`; :data:`.spark_files.BY_SPARK` lists how Spark evaluates each.

A row on which an expression fails goes no further: it is kept, with the reason in ``UNREAD``, for quarantine. So is a row that could not be
read, which goes through none.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from windowmill.checkpoints.quoting import backquoted
from windowmill.jobs.conditions.checks import columns_of
from windowmill.jobs.conditions.evaluated import Mask, OutsideError, Value, check_storable, mask_of
from windowmill.jobs.conditions.evaluator import spark_kind, step_value, type_of_cast
from windowmill.jobs.conditions.truths import read_by, whole
from windowmill.jobs.sources.unusable_rows import BAD_COLUMN, BAD_CONDITION, SHOWN, failure_of, unread_text
from windowmill.windowing.columnar.added_columns import CORRUPT, UNREAD
from windowmill.windowing.errors import SourceSchemaError, SpecError, no_column
from windowmill.windowing.fields import ExpressionStep, LookupStep, RowStep, quoted_path
from windowmill.windowing.registry import resolve
from windowmill.windowing.spec import Pipeline

#: Beginnings of the paths of fields in which a column has a type of its own: as a text, 9 comes after 10.
_TYPED = ("aggregates.", "windows.", "time.tie_break.")


class StepTypes(NamedTuple):
    """What is known of a step by the types of its columns alone."""

    made: Mapping[str, pa.DataType]  #: Type of each column that it makes.
    outside: str | None = None  #: Why only Spark evaluates it; null if it is evaluated over Arrow tables too.
    may_fail: bool = False  #: Whether a row may exist that it refuses.


class StepValues(NamedTuple):
    """What a step gives of n rows."""

    made: Mapping[str, pa.Array]  #: The columns that it makes, each of shape (n,).
    failed: Mask | None = None  #: The rows that it refuses; null for none.
    holds: Mask | None = None  #: The rows that it lets through; null for all.
    refusal: Callable[[int], str] | None = None  #: ``UNREAD`` of a row that it refuses, by its index.


class StepKind(Protocol):
    """How steps of one kind are evaluated over Arrow tables."""

    def types(self, step: Any, known: Mapping[str, pa.DataType], spark_only: Collection[str], where: str) -> StepTypes:
        """What is known of ``step`` over columns of types ``known``, those that it reads.

        ``spark_only``: columns, in lower case, of which only Spark gives expressions their values. ``where``: begins messages. Raises
        ``SpecError``, or ``SourceSchemaError`` for a column that another table does not have.
        """

    def values(self, step: Any, columns: Mapping[str, pa.Array], n: int) -> StepValues:
        """What ``step`` gives of ``n`` rows, of which ``columns`` are those that it reads; raises ``OutsideError``."""

    def sql(self, step: Any, table: str, known: Collection[str]) -> str:
        """A query of the rows of ``table``, which has ``known`` columns, in lower case, behind ``step``."""


@dataclass(frozen=True)
class RowSteps:
    """The steps of a pipeline over source columns of given types; small and picklable.

    ``made``: type of each column that a step makes, by the last step that makes it.
    ``outside``: for each step that only Spark evaluates, by the path of its field, why.
    ``may_fail``: whether a row may exist on which a step fails that is not ``outside``.
    """

    steps: Sequence[RowStep]
    made: Mapping[str, pa.DataType] = field(default_factory=dict)
    outside: Mapping[str, str] = field(default_factory=dict)
    may_fail: bool = False

    @classmethod
    def of(cls, pipeline: Pipeline, types: Mapping[str, pa.DataType], spark_only: Sequence[str] = ()) -> RowSteps:
        """The steps of ``pipeline`` over columns of ``types``; only Spark evaluates an expression that reads one of ``spark_only``.

        Raises, naming the field: ``SourceSchemaError`` for a column that does not exist; ``SpecError`` for one whose
        type is not known, or is none of a table's.
        """
        typed = {name for where, name in pipeline.named_columns() if "." in name and where.startswith(_TYPED)}
        known, made, outside, may_fail = dict(types), dict[str, pa.DataType](), dict[str, str](), False
        not_here = {name.lower() for name in spark_only}
        steps = list[RowStep]()
        for written in pipeline.row_steps:
            step = _of_literal_name(written, known)
            steps.append(step)
            where = f"pipeline {pipeline.pipeline}: {step.field}"
            lower = {name.lower() for name in known}
            read = {name for text in step.texts for name in columns_of(text)}
            missing = next((name for name in sorted(read) if name.lower() not in lower), None)
            if missing is not None:
                raise SourceSchemaError(f"{where}: {no_column('the source', missing, list(known))}")
            used = {name: known[name] for name in read_by(step.texts, known)}
            found = kind_of(step).types(step, used, not_here, where)
            if found.outside is not None:
                outside[step.field] = f"only Spark evaluates {found.outside}"
            may_fail |= found.may_fail
            for column, kind in found.made.items():
                if column in typed and step.texts == (quoted_path(column),) and _is_in_json(column, next(iter(used.values()))):
                    raise SpecError(
                        f"{where}: {column!r} is a field of JSON, a text; give it a type by a step, such as {{columns: {{value: "
                        f'"cast({column} as double)"}}}}, and name that column'
                    )
                for name in [name for name in known if name.lower() == column.lower()]:
                    del known[name]
                    made.pop(name, None)
                known[column] = made[column] = kind
                not_here.discard(column.lower())
        return cls(steps, made, outside, may_fail)

    @property
    def looked_up(self) -> frozenset[str]:
        """Names, in lower case, of the columns behind the steps whose values depend on other tables."""
        found = set[str]()
        for step in self.steps:
            made, read = {name.lower() for name in step.makes}, {name.lower() for text in step.texts for name in columns_of(text)}
            found = found | made if isinstance(step, LookupStep) or read & found else found - made
        return frozenset(found)

    def after(self, names: Sequence[str]) -> list[str]:
        """The columns ``names`` of a source and those that steps make, which take the place of theirs of the same name in any case."""
        made = {name.lower() for name in self.made}
        return [*(name for name in names if name.lower() not in made), *self.made]

    def columns_read(self, wanted: Sequence[str], names: Sequence[str]) -> list[str]:
        """Those of the source's columns ``names`` that are needed for the columns ``wanted`` behind the steps, and for the steps."""
        needed = {name.lower() for name in wanted}
        for step in reversed([_of_literal_name(each, names) for each in self.steps]):
            # All steps are evaluated, also for columns that nobody wants: a row on which one fails is quarantined.
            needed -= {name.lower() for name in step.makes}
            needed |= {name.lower() for text in step.texts for name in columns_of(text)}
        return [name for name in names if name.lower() in needed]

    def over(self, rows: pa.Table) -> pa.Table:
        """``rows`` of the source that filters leave, with the columns that steps make, and ``UNREAD``."""
        columns, unread, kept = self.computed(rows)
        found = pa.table({**columns, UNREAD: unread})
        return found if kept.all() else found.filter(pa.array(kept))

    def computed(self, rows: pa.Table) -> tuple[dict[str, pa.Array | pa.ChunkedArray], pa.Array, Mask]:
        """The columns behind the last step, ``UNREAD``, and which rows filters leave; each of shape (n,).

        Values in rows that filters do not leave mean nothing. Raises ``OutsideError`` for a step that only Spark evaluates.
        """
        n = rows.num_rows
        columns = dict(zip(rows.column_names, rows.columns, strict=True))
        unread = whole(columns.pop(UNREAD)) if UNREAD in columns else pa.nulls(n, pa.string())
        # A row is `on` until it fails or a filter takes it out: what later steps make of it does not count.
        on, kept, refused = mask_of(unread.is_null()), np.ones(n, np.bool_), dict[int, str]()
        for step in self.steps:
            used = {name: whole(columns[name]) for name in read_by(step.texts, columns)}
            found = kind_of(step).values(step, used, n)
            if found.failed is not None and found.refusal is not None:
                failed = found.failed & on
                refused |= {index: found.refusal(index) for index in np.flatnonzero(failed).tolist()}
                on &= ~failed
            else:
                failed = np.zeros(n, np.bool_)
            if found.holds is not None:
                # Rows that could not be read are left out only by a filter on what they held.
                kept &= found.holds | (failed if CORRUPT in used else ~on)
                on &= found.holds
            replaced = {name.lower() for name in found.made}
            columns = {name: column for name, column in columns.items() if name.lower() not in replaced} | dict(found.made)
        if refused:
            unread = pa.array([refused.get(index, text) for index, text in enumerate(unread.to_pylist())], pa.string())
        return columns, unread, kept


class _Expressions:
    """Computed columns and filters."""

    def types(self, step: ExpressionStep, known: Mapping[str, pa.DataType], spark_only: Collection[str], where: str) -> StepTypes:
        unlike = next((name for name in known if name.lower() in spark_only), None)
        value, why = (None, f"column {unlike!r}") if unlike is not None else _over_none(step, known, where)
        may_fail = value is not None and value.failed is not None
        outside = why if value is None else None
        if step.column is None:
            return StepTypes({}, outside, may_fail)
        kind = _cast_type(step, where, why) if value is None else value.kind
        check_storable(kind, step.text, where)
        return StepTypes({step.column: kind}, outside, may_fail)

    def values(self, step: ExpressionStep, columns: Mapping[str, pa.Array], n: int) -> StepValues:
        value = _value_of(step, columns, n)
        holds = mask_of(value.array.fill_null(False)) if step.column is None else None
        made = {} if step.column is None else {step.column: value.array}
        return StepValues(made, value.failed, holds, lambda index: _refusal(step, columns, index))

    def sql(self, step: ExpressionStep, table: str, known: Collection[str]) -> str:
        if step.column is None:
            return f"(SELECT * FROM {table} WHERE {step.text})"
        name = backquoted(step.column)
        kept = f"* EXCEPT ({name})" if step.column.lower() in known else "*"
        return f"(SELECT {kept}, {step.text} AS {name} FROM {table})"


#: What each kind of step does; a text names an object that is imported when a spec has such a step.
KINDS: Mapping[type, StepKind | str] = {ExpressionStep: _Expressions(), LookupStep: "windowmill.jobs.sources.lookups:LOOKUPS"}


def kind_of(step: RowStep) -> StepKind:
    """What steps of its kind do."""
    kind: StepKind = resolve(KINDS[type(step)])
    return kind


def _value_of(step: ExpressionStep, columns: Mapping[str, pa.Array], n: int) -> Value:
    return step_value(step.text, columns, n, is_filter=step.column is None)


def _over_none(step: ExpressionStep, types: Mapping[str, pa.DataType], where: str) -> tuple[Value | None, str]:
    """The value of a step over no rows, which shows its type; if only Spark evaluates the step, null and the part that is the reason."""
    try:
        return _value_of(step, {name: pa.nulls(0, spark_kind(kind)) for name, kind in types.items()}, 0), ""
    except OutsideError as err:
        return None, str(err)
    except RecursionError:
        raise SpecError(f"{where}: its parts lie too deep within one another; write it flat") from None


def _of_literal_name(step: RowStep, known: Collection[str]) -> RowStep:
    """``step``, which reads a column with dots in its name, and no field of a struct, where one of ``known`` has the name of the path."""
    if not isinstance(step, ExpressionStep):
        return step
    path = step.text.replace("`", "")
    return step._replace(text=f"`{path}`") if "." in path and path in known and step.text == quoted_path(path) else step


def _is_in_json(path: str, kind: pa.DataType) -> bool:
    """Whether the field ``path``, whose first name is a column of type ``kind``, is one of a JSON object that a text holds."""
    for name in path.split(".")[1:]:
        if not pa.types.is_struct(kind):
            return bool(pa.types.is_string(spark_kind(kind)))
        kind = next(field.type for field in kind if field.name.lower() == name.lower())
    return False


def _cast_type(step: ExpressionStep, where: str, why: str) -> pa.DataType:
    """The type to which an expression is cast that only Spark evaluates."""
    kind = type_of_cast(step.text)
    if kind is None:
        raise SpecError(f"{where}: got {step.text!r}, of which only Spark evaluates {why}; give its type: cast({step.text} as …)")
    return kind


def _refusal(step: ExpressionStep, columns: Mapping[str, pa.Array], index: int) -> str:
    if step.column is None:
        return unread_text(BAD_CONDITION, failure_of(step.text), {})
    values = ", ".join(f"{name} = {_shown(column[index])}" for name, column in columns.items())
    return unread_text(BAD_COLUMN, f"{step.column}: {step.text} fails on {values or 'the row'}", {})


def _shown(value: pa.Scalar) -> str:
    try:
        text = json.dumps(value.as_py(), ensure_ascii=False, default=str)
    except (OverflowError, ValueError):  # a date or an instant that Python has none for
        text = str(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"
