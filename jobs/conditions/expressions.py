"""Aggregates that a spec computes of the keys and the other aggregates of a result row: ``rate: {expr: "late / flights"}``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from windowmill.jobs.conditions.truths import expression_value, read_by
from windowmill.windowing.columnar.added_columns import RETRACTED
from windowmill.windowing.columnar.results import result_schema
from windowmill.windowing.columnar.rows import plain
from windowmill.windowing.errors import SpecError
from windowmill.windowing.spec import Pipeline


@dataclass(frozen=True)
class Expressions:
    """Expressions over result rows, in the spec's order, each of which may use those before it; small and picklable.

    ``schema``: columns of the sink, theirs included.
    """

    texts: Mapping[str, str]
    schema: pa.Schema

    @classmethod
    def of(cls, pipeline: Pipeline, types: Mapping[str, pa.DataType]) -> Expressions:
        """Those of ``pipeline`` over source columns of ``types``.

        Raises ``SpecError``, naming the field, for one that only Spark evaluates over the columns of a result row, or that has no type.
        """
        rows = result_schema(pipeline, types)
        if not any(each.expr for each in pipeline.aggregates.values()):
            return cls({}, rows)
        columns, texts = {field.name: pa.array([], field.type) for field in rows}, dict[str, str]()
        for name, spec in pipeline.aggregates.items():
            if spec.expr is not None:
                texts[name] = spec.expr
                columns[name] = _evaluated(f"pipeline {pipeline.pipeline}: aggregates.{name}.expr", spec.expr, columns)
        order = [*rows.names[: rows.get_field_index("revision") + 1], *pipeline.aggregates, "batch"]
        return cls(texts, pa.schema([(name, columns[name].type) for name in order]))

    def over(self, rows: pa.Table) -> pa.Table:
        """``rows`` of windows with the columns of ``schema``, and ``RETRACTED`` if they have it.

        A value is null where its evaluation fails, and of a window that is retracted.
        """
        if not self.texts:
            return rows
        from windowmill.jobs.conditions.evaluated import mask_of, without  # loads the parser

        columns, n = {name: rows.column(name) for name in rows.column_names}, rows.num_rows
        retracted = mask_of(rows.column(RETRACTED)) if RETRACTED in columns else None
        for name, text in self.texts.items():
            kind = self.schema.field(name).type
            used = {each: columns[each].combine_chunks() for each in read_by([text], columns)}
            found = expression_value(text, used, n).array if n else pa.nulls(0, kind)
            columns[name] = pa.chunked_array([without(found, retracted).cast(kind)])
        own = [*(name for name in self.schema.names if name in columns), *([RETRACTED] if RETRACTED in columns else [])]
        return pa.table({name: columns[name] for name in own})

    def of_records(self, records: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Their values for result rows that are mappings, in which instants may be integers along the axis, as those here are."""
        if not self.texts or not records:
            return [{} for _ in records]
        fields = [field for field in self.schema if field.name in records[0] and field.name not in self.texts]
        rows = pa.table({field.name: pa.array([record[field.name] for record in records], field.type) for field in fields})
        if RETRACTED in records[0]:
            rows = rows.append_column(RETRACTED, pa.array([record[RETRACTED] for record in records], pa.bool_()))
        found = {name: plain(column).to_pylist() for name, column in zip(self.texts, self.over(rows).select(list(self.texts)), strict=True)}
        return [dict(zip(found, values, strict=True)) for values in zip(*found.values(), strict=True)]


def _evaluated(where: str, text: str, columns: Mapping[str, pa.Array]) -> pa.Array:
    """``text``, the expression of the field ``where``, over no rows: it shows the type; raises as :meth:`Expressions.of`."""
    from windowmill.jobs.conditions.evaluated import OutsideError, check_storable  # loads the parser

    try:
        found = expression_value(text, {name: columns[name] for name in read_by([text], columns)}, 0).array
    except OutsideError as err:
        raise SpecError(f"{where}: got {text!r}, of which this process does not evaluate {err}; write it otherwise") from err
    check_storable(found.type, text, where)
    return found
