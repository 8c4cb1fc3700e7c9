"""What rows of a source go through before windows see them: computed columns and filters, in the order of the spec.

A row on which an expression fails goes no further: it is kept, with the reason in ``UNREAD``, for quarantine. So is a row that could not be
read, which goes through none.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from windowmill.jobs.conditions.checks import columns_of
from windowmill.jobs.conditions.evaluated import Mask, OutsideError, Value, check_storable, mask_of
from windowmill.jobs.conditions.evaluator import spark_kind, step_value, type_of_cast
from windowmill.jobs.conditions.truths import read_by, whole
from windowmill.jobs.sources.unusable_rows import BAD_COLUMN, BAD_CONDITION, SHOWN, failure_of, unread_text
from windowmill.windowing.columnar.added_columns import CORRUPT, UNREAD
from windowmill.windowing.errors import SourceSchemaError, SpecError, no_column
from windowmill.windowing.spec import Pipeline, RowStep, quoted_path

#: Beginnings of the paths of fields in which a column has a type of its own: as a text, 9 comes after 10.
_TYPED = ("aggregates.", "windows.", "time.tie_break.")


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

        Raises, naming the field: ``SourceSchemaError`` for an expression over a column that does not exist; ``SpecError`` for one whose
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
            missing = next((name for name in sorted(columns_of(step.text)) if name.lower() not in lower), None)
            if missing is not None:
                raise SourceSchemaError(f"{where}: {no_column('the source', missing, list(known))}")
            used = read_by([step.text], known)
            unlike = next((name for name in used if name.lower() in not_here), None)
            value, why = (
                (None, f"column {unlike!r}") if unlike is not None else _over_none(step, {name: known[name] for name in used}, where)
            )
            if value is None:
                outside[step.field] = f"only Spark evaluates {why}"
            may_fail |= value is not None and value.failed is not None
            if step.column is None:
                continue
            kind = _cast_type(step, where, why) if value is None else value.kind
            check_storable(kind, step.text, where)
            if step.column in typed and step.text == quoted_path(step.column) and _is_in_json(step.column, known[used[0]]):
                raise SpecError(
                    f"{where}: {step.column!r} is a field of JSON, a text; give it a type by a step, such as {{columns: {{value: "
                    f'"cast({step.column} as double)"}}}}, and name that column'
                )
            for name in [name for name in known if name.lower() == step.column.lower()]:
                del known[name]
                made.pop(name, None)
            known[step.column] = made[step.column] = kind
            not_here.discard(step.column.lower())
        return cls(steps, made, outside, may_fail)

    def after(self, names: Sequence[str]) -> list[str]:
        """The columns ``names`` of a source and those that steps make, which take the place of theirs of the same name in any case."""
        made = {name.lower() for name in self.made}
        return [*(name for name in names if name.lower() not in made), *self.made]

    def columns_read(self, wanted: Sequence[str], names: Sequence[str]) -> list[str]:
        """Those of the source's columns ``names`` that are needed for the columns ``wanted`` behind the steps, and for the steps."""
        needed = {name.lower() for name in wanted}
        for step in reversed([_of_literal_name(each, names) for each in self.steps]):
            # All steps are evaluated, also for columns that nobody wants: a row on which one fails is quarantined.
            if step.column is not None:
                needed.discard(step.column.lower())
            needed |= {name.lower() for name in columns_of(step.text)}
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
            used = {name: whole(columns[name]) for name in read_by([step.text], columns)}
            value = _value_of(step, used, n)
            failed = np.zeros(n, np.bool_) if value.failed is None else value.failed & on
            refused |= {index: _refusal(step, used, index) for index in np.flatnonzero(failed).tolist()}
            on &= ~failed
            if step.column is None:
                holds = mask_of(value.array.fill_null(False))
                # Rows that could not be read are left out only by a filter on what they held.
                kept &= holds | (failed if CORRUPT in used else ~on)
                on &= holds
                continue
            columns = {name: column for name, column in columns.items() if name.lower() != step.column.lower()}
            columns[step.column] = value.array
        if refused:
            unread = pa.array([refused.get(index, text) for index, text in enumerate(unread.to_pylist())], pa.string())
        return columns, unread, kept


def _value_of(step: RowStep, columns: Mapping[str, pa.Array], n: int) -> Value:
    return step_value(step.text, columns, n, is_filter=step.column is None)


def _over_none(step: RowStep, types: Mapping[str, pa.DataType], where: str) -> tuple[Value | None, str]:
    """The value of a step over no rows, which shows its type; if only Spark evaluates the step, null and the part that is the reason."""
    try:
        return _value_of(step, {name: pa.nulls(0, spark_kind(kind)) for name, kind in types.items()}, 0), ""
    except OutsideError as err:
        return None, str(err)
    except RecursionError:
        raise SpecError(f"{where}: its parts lie too deep within one another; write it flat") from None


def _of_literal_name(step: RowStep, known: Collection[str]) -> RowStep:
    """``step``, which reads a column with dots in its name, and no field of a struct, where one of ``known`` has the name of the path."""
    path = step.text.replace("`", "")
    return step._replace(text=f"`{path}`") if "." in path and path in known and step.text == quoted_path(path) else step


def _is_in_json(path: str, kind: pa.DataType) -> bool:
    """Whether the field ``path``, whose first name is a column of type ``kind``, is one of a JSON object that a text holds."""
    for name in path.split(".")[1:]:
        if not pa.types.is_struct(kind):
            return bool(pa.types.is_string(spark_kind(kind)))
        kind = next(field.type for field in kind if field.name.lower() == name.lower())
    return False


def _cast_type(step: RowStep, where: str, why: str) -> pa.DataType:
    """The type to which an expression is cast that only Spark evaluates."""
    kind = type_of_cast(step.text)
    if kind is None:
        raise SpecError(f"{where}: got {step.text!r}, of which only Spark evaluates {why}; give its type: cast({step.text} as …)")
    return kind


def _refusal(step: RowStep, columns: Mapping[str, pa.Array], index: int) -> str:
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
