"""From the aggregates of a spec to the columns of their partials.

An aggregate is made of *atoms*: a number of rows, a sum, moments, a best row. Aggregates share the atoms that they have in common (a
mean and a standard deviation of one column need one count), and an atom is stored as typed columns anyone can read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from windowing.catalogue import AggregateSpec
from windowing.errors import SpecError, UnsupportedError
from windowing.spec import Pipeline

AtomKind = Literal["rows", "count", "sum_int", "sum_float", "moments", "least", "greatest"]

#: Operations of the compiled kernels, by atom kind.
OPERATIONS: Mapping[str, int] = {"rows": 0, "count": 0, "sum_int": 0, "sum_float": 1, "moments": 2, "greatest": 3, "least": 4}
_WIDTHS = {0: (1, 0), 1: (0, 2), 2: (1, 3), 3: (4, 0), 4: (4, 0)}


@dataclass(frozen=True, slots=True)
class Atom:
    """A piece of a partial with one way to combine.

    ``least`` and ``greatest`` keep the row that comes first or last by the ``by`` columns, ties going to the earlier row in
    (time, tie_break) order where ``ordered``; ``columns`` are then (by, value), or (value,) when the value itself decides.
    """

    kind: AtomKind
    columns: tuple[str, ...] = ()
    where: str | None = None
    ordered: bool = False


@dataclass(frozen=True, slots=True)
class StoredField:
    """A column of a stored partial."""

    name: str
    type: pa.DataType
    atom: int
    role: str


@dataclass(frozen=True, slots=True)
class Result:
    """A column of the sink: which function of which atoms."""

    name: str
    function: str
    atoms: tuple[int, ...]
    type: pa.DataType


@dataclass(frozen=True)
class Layout:
    """How the partials of a pipeline are stored, combined and lowered; a function of the spec and the source's column types."""

    atoms: tuple[Atom, ...]
    fields: tuple[StoredField, ...]
    results: tuple[Result, ...]

    @classmethod
    def of(cls, pipeline: Pipeline, types: Mapping[str, pa.DataType]) -> Layout:
        """Lay out ``pipeline`` over source columns of ``types``.

        Raises
        ------
        SpecError
            If a column does not exist or has a type that the aggregate cannot take.
        """
        atoms: dict[Atom, int] = {Atom("rows"): 0}
        results = []
        for name, spec in pipeline.aggregates.items():
            missing = next((column for column in spec.columns if column not in types), None)
            if missing is not None:
                raise SpecError(
                    f"pipeline {pipeline.pipeline}: aggregates.{name}: the source has no column {missing!r}; its columns are "
                    f"{', '.join(sorted(types))}"
                )
            if spec.function not in _RECIPES:
                raise UnsupportedError(
                    f"pipeline {pipeline.pipeline}: aggregates.{name}: {spec.function} does not run on Spark yet; these do: "
                    f"{', '.join(sorted(_RECIPES))}"
                )
            try:
                needed, result_type = _RECIPES[spec.function](spec, [types[column] for column in spec.columns])
            except TypeError as err:
                raise SpecError(f"pipeline {pipeline.pipeline}: aggregates.{name}: {err}") from err
            indexes = tuple(atoms.setdefault(atom, len(atoms)) for atom in needed)
            results.append(Result(name, spec.function, indexes, result_type))
        ordered = tuple(atoms)
        return cls(ordered, tuple(_stored_fields(ordered, pipeline, types)), tuple(results))

    def program(self) -> npt.NDArray[np.int64]:
        """One line an atom: operation, first int column, first float column; shape (n_atoms, 3)."""
        lines, ints, floats = [], 0, 0
        for atom in self.atoms:
            operation = OPERATIONS[atom.kind]
            lines.append((operation, ints, floats))
            ints, floats = ints + _WIDTHS[operation][0], floats + _WIDTHS[operation][1]
        return np.array(lines, np.int64)

    def widths(self) -> tuple[int, int]:
        """Number of int and of float columns of a partial."""
        pairs = [_WIDTHS[OPERATIONS[atom.kind]] for atom in self.atoms]
        return sum(ints for ints, _ in pairs), sum(floats for _, floats in pairs)

    def fields_of(self, atom: int) -> dict[str, StoredField]:
        """The stored columns of one atom by role."""
        return {stored.role: stored for stored in self.fields if stored.atom == atom}


def _stored_fields(atoms: tuple[Atom, ...], pipeline: Pipeline, types: Mapping[str, pa.DataType]) -> list[StoredField]:
    # Spark's column names do not tell upper from lower case; those of windowmill's own begin with an underscore.
    names: set[str] = {key.lower() for key in pipeline.keys}
    found: list[StoredField] = []
    for index, atom in enumerate(atoms):
        label = re.sub(r"\W", "_", "_".join((atom.kind, *atom.columns)) + ("_where" if atom.where else ""))
        label = label if label.lower() not in names else f"{label}_{index}"
        names.add(label.lower())
        found += [StoredField(f"{label}__{role}" if role else label, kind, index, role) for role, kind in _roles(atom, pipeline, types)]
    return found


def _roles(atom: Atom, pipeline: Pipeline, types: Mapping[str, pa.DataType]) -> list[tuple[str, pa.DataType]]:
    if atom.kind in ("rows", "count", "sum_int"):
        return [("", pa.int64())]
    if atom.kind == "sum_float":
        return [("sum", pa.float64()), ("error", pa.float64())]
    if atom.kind == "moments":
        return [("n", pa.int64()), ("anchor", pa.float64()), ("mean", pa.float64()), ("m2", pa.float64())]
    roles = [("by", types[atom.columns[0]])] if len(atom.columns) == 2 else []
    if atom.ordered:
        roles += [("at", pa.int64()), *((f"tie{i}", types[column]) for i, column in enumerate(pipeline.time.tie_break))]
    return [*roles, ("value", types[atom.columns[-1]])]


_Recipe = Callable[[AggregateSpec, list[pa.DataType]], tuple[list[Atom], pa.DataType]]


def _count(spec: AggregateSpec, _types: list[pa.DataType]) -> tuple[list[Atom], pa.DataType]:
    if not spec.columns and not spec.where:
        return [Atom("rows")], pa.int64()
    return [Atom("count", spec.columns, spec.where)], pa.int64()


def _sum(spec: AggregateSpec, types: list[pa.DataType]) -> tuple[list[Atom], pa.DataType]:
    count = Atom("count", spec.columns, spec.where)
    if pa.types.is_integer(types[0]):
        return [count, Atom("sum_int", spec.columns, spec.where)], pa.int64()
    _require_float(spec, types[0])
    return [count, Atom("sum_float", spec.columns, spec.where)], pa.float64()


def _mean(spec: AggregateSpec, types: list[pa.DataType]) -> tuple[list[Atom], pa.DataType]:
    return _sum(spec, types)[0], pa.float64()


def _moments(spec: AggregateSpec, types: list[pa.DataType]) -> tuple[list[Atom], pa.DataType]:
    if not pa.types.is_integer(types[0]):
        _require_float(spec, types[0])
    return [Atom("moments", spec.columns, spec.where)], pa.float64()


def _require_float(spec: AggregateSpec, kind: pa.DataType) -> None:
    if not pa.types.is_floating(kind):
        raise TypeError(
            f"{spec.function} of column {spec.columns[0]!r} of type {kind}; expected integers or floating point, cast it in "
            "a view of the source"
        )


def _extreme(kind: AtomKind) -> _Recipe:
    return lambda spec, types: ([Atom(kind, spec.columns, spec.where)], types[0])


def _arg(kind: AtomKind) -> _Recipe:
    return lambda spec, types: ([Atom(kind, spec.columns, spec.where, ordered=True)], types[1])


def _end(kind: AtomKind) -> _Recipe:
    return lambda spec, types: ([Atom(kind, spec.columns, spec.where, ordered=True)], types[0])


def _bool(kind: AtomKind) -> _Recipe:
    def recipe(spec: AggregateSpec, types: list[pa.DataType]) -> tuple[list[Atom], pa.DataType]:
        if not pa.types.is_boolean(types[0]):
            raise TypeError(f"{spec.function} of column {spec.columns[0]!r} of type {types[0]}; expected booleans")
        return [Atom(kind, spec.columns, spec.where)], pa.bool_()

    return recipe


def _range(spec: AggregateSpec, types: list[pa.DataType]) -> tuple[list[Atom], pa.DataType]:
    if not pa.types.is_integer(types[0]):
        _require_float(spec, types[0])
    return [Atom("least", spec.columns, spec.where), Atom("greatest", spec.columns, spec.where)], types[0]


_RECIPES: Mapping[str, _Recipe] = {
    "count": _count,
    "sum": _sum,
    "mean": _mean,
    "min": _extreme("least"),
    "max": _extreme("greatest"),
    "range": _range,
    "arg_min": _arg("least"),
    "arg_max": _arg("greatest"),
    "first": _end("least"),
    "last": _end("greatest"),
    "bool_and": _bool("least"),
    "bool_or": _bool("greatest"),
    **dict.fromkeys(("var_samp", "var_pop", "stddev_samp", "stddev_pop"), _moments),
}
