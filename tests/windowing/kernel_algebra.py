"""Aggregates with recipes as lift, combine and lower of single partials, by the kernels of runs: for tests of laws and of rounding."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from windowmill.windowing.aggregates import aggregate_for
from windowmill.windowing.algebra import Aggregate, Args, Field, Position
from windowmill.windowing.catalogue import parse_aggregate
from windowmill.windowing.columnar.added_columns import TIME
from windowmill.windowing.columnar.slice_partials import combine_numbers
from windowmill.windowing.kernels.combine import Floats, Ints
from windowmill.windowing.kernels.layout import Layout
from windowmill.windowing.kernels.lift import WEIGHT, arenas, lift_runs, stored
from windowmill.windowing.kernels.recipes import lower
from windowmill.windowing.kernels.slices import combine_runs
from windowmill.windowing.slicing.leaves import Windows
from windowmill.windowing.specfile import parse_pipeline

#: Arrow types by the names of :data:`windowmill.windowing.aggregates.VALUE_TYPES`.
ARROW = {
    "float64": pa.float64(),
    "int64": pa.int64(),
    "decimal": pa.decimal128(38, 2),
    "bool": pa.bool_(),
    "string": pa.string(),
    "any": pa.timestamp("us", "UTC"),
}
_EXACT = {"rows", "count", "sum_int", "sum_decimal", "histogram", "least", "greatest", "count_least", "count_greatest"}
_TIE = "tie"


class Kernels:
    """An aggregate over columns of given types. A partial is a row of the state: one value for each column that the aggregate needs."""

    def __init__(self, written: dict[str, Any], types: Sequence[str]) -> None:
        self.spec = parse_aggregate(written)
        self._columns = dict(zip(self.spec.columns, (ARROW[kind] for kind in types), strict=True))
        time = {"column": "t", "end": "e", "tie_break": [_TIE]}
        windows = [{"name": "w", "type": "tumbling", "size": "1 hour"}]
        pipeline = parse_pipeline({"pipeline": "p", "time": time, "windows": windows, "aggregates": {"tested": written}})
        self.layout = Layout.of(pipeline, self._columns | {_TIE: pa.int64()})
        self._program = self.layout.program()
        [self._result] = self.layout.results
        self._schema = pa.schema([(field.name, field.type) for field in self.layout.fields])
        # Of each slice the state also has the number of its rows.
        self._fields = [field for field in self.layout.fields if field.atom in self._result.atoms]

    @cached_property
    def aggregate(self) -> Aggregate[Any]:
        """The aggregate, with ``combine`` and ``unite`` by the kernels."""
        kinds = {self.layout.atoms[atom].kind for atom in self._result.atoms}
        name = self.spec.function
        return Aggregate(
            name,
            kind=name,
            fields=tuple(Field(field.name, "any") for field in self._fields),
            identity=self._identity(),
            lift=lambda args, at: self.partials([args], at=[at])[0],
            combine=lambda older, newer: self._unite((older, newer)),
            unite=self._unite,
            lower=self._lower,
            commutative=not any(self.layout.atoms[atom].ordered for atom in self._result.atoms),
            positioned=any(self.layout.atoms[atom].ordered for atom in self._result.atoms),
            idempotent=kinds <= {"least", "greatest"},
            exact=kinds <= _EXACT,
        )

    def partials(self, rows: Sequence[Args], size: int = 1, at: Sequence[Position] | None = None) -> list[tuple[Any, ...]]:
        """The partials of slices of ``size`` rows each, which have the positions ``at``."""
        table = self._table(rows, at or [(place, ()) for place in range(len(rows))])
        bounds = np.array([*range(0, len(rows), size), len(rows)], np.int64)
        ints, floats = lift_runs(self.layout.lifting, table, bounds)
        return self._rows_of(stored(self.layout, ints, floats, table, time=TIME, ties=(_TIE,)))

    def windows(self, rows: Sequence[Args], lo: Sequence[int], hi: Sequence[int]) -> list[Any]:
        """The results of windows of ``rows[lo:hi]``, one after another, by two stacks over stored partials."""
        table = self._state(self.partials(rows))
        zeros, ranges = np.zeros(len(lo), np.int64), (np.arange(len(rows)), np.array(lo, np.int64), np.array(hi, np.int64))
        ints, floats = combine_numbers(self.layout, *arenas(self.layout, table), Windows.of(zeros, zeros, zeros, ranges=ranges))
        return self._results(ints, floats, table)

    def _table(self, rows: Sequence[Args], at: Sequence[Position]) -> pa.Table:
        """Rows as slices are lifted from them; a further argument is how long an event lasts."""
        columns = {name: pa.array([row[place] for row in rows], kind) for place, (name, kind) in enumerate(self._columns.items())}
        columns[TIME] = pa.array([time for time, _ in at], pa.int64())
        columns[_TIE] = pa.array([ties[0][-1] if ties and len(ties[0]) > 1 else None for _, ties in at], pa.int64())
        if self.spec.declaration.clipped:
            columns[WEIGHT] = pa.array([row[-1] for row in rows], pa.int64())
        return pa.table(columns)

    def _identity(self) -> tuple[Any, ...]:
        [nothing] = self.partials([(None,) * (len(self._columns) + self.spec.declaration.clipped)])
        return (0,) if not self._columns else nothing

    def _rows_of(self, columns: dict[str, pa.Array]) -> list[tuple[Any, ...]]:
        cells = [columns[field.name].to_pylist() for field in self._fields]
        return [tuple(tuple(cell) if isinstance(cell, list) else cell for cell in row) for row in zip(*cells, strict=True)]

    def _state(self, partials: Sequence[tuple[Any, ...]]) -> pa.Table:
        """The partials as rows of the state."""
        held = dict(zip((field.name for field in self._fields), zip(*partials, strict=True), strict=True))
        return pa.table([pa.array(held.get(name, [0] * len(partials)), kind) for name, kind in self._kinds], schema=self._schema)

    @property
    def _kinds(self) -> Iterable[tuple[str, pa.DataType]]:
        return zip(self._schema.names, self._schema.types, strict=True)

    def _unite(self, partials: Iterable[tuple[Any, ...]]) -> tuple[Any, ...]:
        held = list(partials)
        if not held:
            return self.aggregate.identity
        table, ends = self._state(held), np.array([0, len(held)], np.int64)
        ints, floats = combine_runs(self._program, ends[:1], ends[1:], *arenas(self.layout, table))
        [combined] = self._rows_of(stored(self.layout, ints, floats, table))
        return combined

    def _lower(self, partial: tuple[Any, ...]) -> Any:
        table = self._state([partial])
        [found] = self._results(*arenas(self.layout, table), table)
        return found

    def _results(self, ints: Ints, floats: Floats, table: pa.Table) -> list[Any]:
        return list(lower(self.layout, ints, floats, table)["tested"].to_pylist())


def made_of(written: dict[str, Any], types: Sequence[str]) -> Aggregate[Any]:
    """The aggregate as runs compute it: by kernels, or by its algebra where its partials are Python objects."""
    spec = parse_aggregate(written)
    return aggregate_for(spec, list(types)) if spec.declaration.partial == "objects" else Kernels(written, types).aggregate
