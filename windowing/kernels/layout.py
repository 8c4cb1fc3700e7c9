"""From the aggregates of a spec to the columns of their partials.

An aggregate is made of *atoms*: a number of rows, a sum, moments, a best row. Aggregates share the atoms that they have in common (a
mean and a standard deviation of one column need one count), and an atom is stored as typed columns anyone can read.

A column of the source may be widened later. :class:`WiderPartials` says which stored columns stay what they are then, and what sums of
whole numbers become.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cached_property
from typing import TYPE_CHECKING, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from windowmill.windowing.aggregates import aggregate_for, argument_types, value_types
from windowmill.windowing.aggregates.order import mergeable
from windowmill.windowing.algebra import WIDE
from windowmill.windowing.catalogue import AggregateSpec
from windowmill.windowing.errors import SpecError
from windowmill.windowing.kernels.recipes import CLIPPED, OPERATIONS, ROW_OPERATIONS, Atom, Lower, integer_of
from windowmill.windowing.registry import resolve

if TYPE_CHECKING:
    from windowmill.windowing.spec import Pipeline

_INT, _FLOAT = pa.int64(), pa.float64()
#: Stored columns of the atoms that are numbers, by role: the kernels' int columns, then their float columns.
NUMBERS: Mapping[str, tuple[tuple[str, pa.DataType], ...]] = {
    **dict.fromkeys(("rows", "count"), (("", _INT),)),
    **dict.fromkeys(("sum_float", "sum_product", "sum_weight", "area", "lasting"), (("carry", _INT), ("sum", _FLOAT), ("error", _FLOAT))),
    "moments": (("n", _INT), *((role, _FLOAT) for role in ("anchor", "mean", "m2"))),
    "moments4": (("n", _INT), *((role, _FLOAT) for role in ("anchor", "mean", "m2", "m3", "m4"))),
    "comoments": (("n", _INT), *((role, _FLOAT) for role in ("anchor_x", "mean_x", "anchor_y", "mean_y", "m_xx", "m_xy", "m_yy"))),
    **dict.fromkeys(("product", "magnitude"), (("n", _INT), ("zeros", _INT), ("exponent", _INT), ("mantissa", _FLOAT), ("error", _FLOAT))),
}
#: Role of what the first column of a sum has no room for, null of all but very great sums: of whole numbers the high 64 bits, where these
#: do not only repeat the sign of the low ones; of decimals how many times 10**38, unscaled, are to be added.
HIGH = "high"
#: One more than the greatest unscaled decimal of 38 digits.
_DECIMALS = 10**38


@dataclass(frozen=True, slots=True)
class ObjectAtom:
    """A partial that is a Python object: its kind, as of :class:`windowmill.windowing.algebra.Aggregate`, and the rows that count in it."""

    kind: str
    columns: tuple[str, ...]
    where: str | None


@dataclass(frozen=True, slots=True)
class StoredField:
    """A column of a stored partial."""

    name: str
    type: pa.DataType
    atom: int
    role: str


@dataclass(frozen=True, slots=True)
class StoredObject:
    """A column of stored partials that are Python objects, as bytes.

    Aggregates that lift and combine in the same way share it: all quantiles of a column.
    """

    name: str
    types: tuple[str, ...]  #: Types of its argument columns, as :func:`.value_types` names them.
    ordered: bool  #: Whether partials hold the positions of their rows in (time, tie_break) order.
    results: tuple[tuple[str, AggregateSpec], ...]  #: Name and spec of each aggregate that shares the column.

    @property
    def spec(self) -> AggregateSpec:
        """One of the aggregates: all have the same argument columns and the same condition."""
        return self.results[0][1]

    @property
    def atom(self) -> ObjectAtom:
        """What the column holds, whatever its name."""
        return ObjectAtom(mergeable(aggregate_for(self.spec, self.types)).kind, self.spec.columns, self.spec.where)


@dataclass(frozen=True, slots=True)
class Result:
    """A column of the sink: its function, the atoms, and how it is computed from these."""

    name: str
    function: str
    atoms: tuple[int, ...]
    type: pa.DataType
    lower: Lower


@dataclass(frozen=True)
class Layout:
    """How the partials of a pipeline are stored, combined and lowered; a function of the spec and the source's column types."""

    atoms: tuple[Atom, ...]
    fields: tuple[StoredField, ...]  #: Columns of stored partials that are numbers or picked values; none where leaves are rows.
    results: tuple[Result, ...]
    of_rows: bool = False  #: Whether a leaf is a row of one table sorted by key and (time, tie_break, arrival), not a stored partial.
    objects: tuple[StoredObject, ...] = ()  #: Columns of stored partials that are Python objects; none where leaves are rows.

    @classmethod
    def of(cls, pipeline: Pipeline, types: Mapping[str, pa.DataType]) -> Layout:
        """Lay out ``pipeline`` over source columns of ``types``.

        Raises ``SpecError`` if a column does not exist or has a type that the aggregate cannot take.
        """
        where = f"pipeline {pipeline.pipeline}: aggregates"
        # How many rows a slice has is stored whether an aggregate asks for it or not.
        atoms, results = _atoms(pipeline.aggregates, types, where, always=(Atom("rows"),), in_slices=True)
        objects = _stored_objects(pipeline, types, where)
        roles = [_roles(atom, pipeline, types) for atom in atoms]
        labels = label_atoms(
            [*atoms, *objects], [*([role for role, _ in kinds] for kinds in roles), *([""] for _ in objects)], pipeline.keys
        )
        fields = [
            StoredField(_column(label, role), kind, index, role)
            for index, (label, kinds) in enumerate(zip(labels, roles, strict=False))
            for role, kind in kinds
        ]
        stored = [replace(held, name=label) for label, held in zip(labels[len(atoms) :], objects.values(), strict=True)]
        return cls(atoms, tuple(fields), results, objects=tuple(stored))

    @classmethod
    def over_rows(cls, aggregates: Mapping[str, AggregateSpec], types: Mapping[str, pa.DataType], where: str) -> Layout:
        """Lay out those of ``aggregates`` whose partials are numbers, where leaves are rows; ``where`` is their place, for messages."""
        atoms, results = _atoms(aggregates, types, where)
        return cls(atoms, (), results, of_rows=True)

    @property
    def stored_columns(self) -> list[tuple[str, pa.DataType]]:
        return [*((stored.name, stored.type) for stored in self.fields), *((stored.name, pa.binary()) for stored in self.objects)]

    def columns_of(self, result: str) -> tuple[str, ...]:
        """Names of the columns of stored partials from which ``result`` is computed."""
        atoms = {atom for found in self.results if found.name == result for atom in found.atoms}
        objects = (held.name for held in self.objects if result in dict(held.results))
        return (*(stored.name for stored in self.fields if stored.atom in atoms), *objects)

    def columns_among(self, stored: Layout) -> dict[str, str]:
        """For each column of partials, the column of the layout ``stored`` with the same content, if it has one."""
        places = {atom: place for place, atom in enumerate(stored.atoms)}
        found: dict[str, str] = {}
        for index, atom in enumerate(self.atoms):
            theirs = stored.fields_of[places[atom]] if atom in places else {}
            found |= {own.name: theirs[role].name for role, own in self.fields_of[index].items() if role in theirs}
        objects = {held.atom: held for held in stored.objects}
        for held in self.objects:
            same = objects.get(held.atom)
            if same is not None and same.types == held.types:
                found[held.name] = same.name
        return found

    @property
    def source_columns(self) -> list[str]:
        names = [name for atom in self.atoms for name in atom.columns]
        return list(dict.fromkeys([*names, *(name for held in self.objects for name in held.spec.columns)]))

    @property
    def conditions(self) -> list[str]:
        texts = [*(atom.where for atom in self.atoms), *(held.spec.where for held in self.objects)]
        return list(dict.fromkeys(text for text in texts if text is not None))

    @property
    def ordered(self) -> bool:
        """Whether a partial depends on the (time, tie_break) order of its rows."""
        return any(atom.ordered for atom in self.atoms) or any(held.ordered for held in self.objects)

    @property
    def clips(self) -> bool:
        """Whether a partial weighs events by how long they last in a slice."""
        return any(atom.kind in CLIPPED for atom in self.atoms)

    @property
    def lifting(self) -> Layout:
        """The same atoms over rows, from which the stored partials are made."""
        return replace(self, fields=(), of_rows=True, objects=())

    def program(self) -> npt.NDArray[np.int64]:
        """One line an atom: operation, first int column, first float column, numbers of int and of float columns; shape (n_atoms, 5)."""
        table = ROW_OPERATIONS if self.of_rows else OPERATIONS
        lines, ints, floats = [], 0, 0
        for atom in self.atoms:
            operation, n_ints, n_floats = table[atom.kind]
            n_ints = n_ints or len(atom.edges) - 1
            lines.append((operation, ints, floats, n_ints, n_floats))
            ints, floats = ints + n_ints, floats + n_floats
        return np.array(lines, np.int64).reshape(-1, 5)

    def widths(self) -> tuple[int, int]:
        """Number of int and of float columns of a partial."""
        *_, ints, floats = self.program().sum(axis=0).tolist()
        return ints, floats

    @cached_property
    def fields_of(self) -> Sequence[Mapping[str, StoredField]]:
        """The stored columns of each atom by role."""
        found: list[dict[str, StoredField]] = [{} for _ in self.atoms]
        for stored in self.fields:
            found[stored.atom][stored.role] = stored
        return found


def _atoms(
    aggregates: Mapping[str, AggregateSpec],
    types: Mapping[str, pa.DataType],
    where: str,
    always: tuple[Atom, ...] = (),
    *,
    in_slices: bool = False,
) -> tuple[tuple[Atom, ...], tuple[Result, ...]]:
    # Truth counts as 0 and 1, but an extreme of it stays a truth.
    numbers = {name: pa.int64() if pa.types.is_boolean(kind) else kind for name, kind in types.items()}
    atoms = {atom: place for place, atom in enumerate(always)}
    results = []
    for name, spec in aggregates.items():
        declared = spec.declaration
        if declared.recipe is None or (declared.clipped and not in_slices):
            continue
        argument_types(spec, types, f"{where}.{name}")
        try:
            kinds, recipe = types if declared.picks else numbers, resolve(declared.recipe)
            needed, result_type = recipe.atoms(spec, [kinds[column] for column in spec.columns])
        except TypeError as err:
            raise SpecError(f"{where}.{name}: {err}") from err
        places = tuple(atoms.setdefault(atom, len(atoms)) for atom in needed)
        results.append(Result(name, spec.function, places, result_type, recipe.lower))
    return tuple(atoms), tuple(results)


def _stored_objects(pipeline: Pipeline, types: Mapping[str, pa.DataType], where: str) -> dict[ObjectAtom, StoredObject]:
    """The partials that are Python objects, not named yet; aggregates of one kind over the same rows share one."""
    found: dict[ObjectAtom, StoredObject] = {}
    for name, spec in pipeline.aggregates.items():
        if spec.declaration.partial != "objects":
            continue
        kinds = value_types(spec, argument_types(spec, types, f"{where}.{name}"))
        aggregate = mergeable(aggregate_for(spec, kinds))
        atom = ObjectAtom(aggregate.kind, spec.columns, spec.where)
        shared = found.get(atom, StoredObject("", kinds, aggregate.positioned, ()))
        found[atom] = replace(shared, results=(*shared.results, (name, spec)))
    return found


def label_atoms(atoms: Sequence[Atom | ObjectAtom], roles: Sequence[Sequence[str]], keys: Sequence[str]) -> list[str]:
    """The name of each atom among the columns of the state; the same whatever the order of ``atoms``.

    It says what the atom holds, as in ``sum_float_delay``. Atoms that would share a column with one another or with a key (columns ``a.b``
    and ``a_b``, or two conditions) each get a digest of what they hold behind it. Raises ``SpecError`` if two columns of the state have one
    name even so.
    """
    plain = [re.sub(r"\W", "_", "_".join((atom.kind, *atom.columns)) + ("_where" if atom.where else "")) for atom in atoms]
    # Spark's column names are case-insensitive; windowmill's own begin with an underscore.
    claims = [{_column(label, role).lower() for role in ("", *own)} for label, own in zip(plain, roles, strict=True)]
    claimed = Counter([key.lower() for key in keys] + [name for names in claims for name in names])
    labels = [
        label if all(claimed[name] == 1 for name in names) else f"{label}_{_digest(atom)}"
        for atom, label, names in zip(atoms, plain, claims, strict=True)
    ]
    stored = Counter([key.lower() for key in keys])
    stored.update(_column(label, role).lower() for label, own in zip(labels, roles, strict=True) for role in own)
    twice = next((name for name, times in stored.items() if times > 1), None)
    if twice is not None:
        raise SpecError(f"aggregates: two columns of the state would be named {twice!r}; rename a column in the source")
    return labels


def _digest(atom: Atom | ObjectAtom) -> str:
    held: list[object] = [atom.kind, list(atom.columns), atom.where]
    held += [atom.ordered, list(atom.edges)] if isinstance(atom, Atom) else []
    return hashlib.sha256(json.dumps(held).encode()).hexdigest()[:12]


def _column(label: str, role: str) -> str:
    return f"{label}__{role}" if role else label


def _roles(atom: Atom, pipeline: Pipeline, types: Mapping[str, pa.DataType]) -> list[tuple[str, pa.DataType]]:
    if atom.kind in NUMBERS:
        return list(NUMBERS[atom.kind])
    if atom.kind == "sum_int":
        return [("", pa.int64()), (HIGH, pa.int64())]
    if atom.kind == "sum_decimal":
        return [("", pa.decimal128(38, types[atom.columns[0]].scale)), (HIGH, pa.int64())]
    if atom.kind == "histogram":
        return [("", pa.list_(pa.int64()))]
    if atom.kind in ("count_least", "count_greatest"):
        return [("value", types[atom.columns[0]]), ("times", pa.int64())]
    roles = [("by", types[atom.columns[0]])] if len(atom.columns) == 2 else []
    if atom.ordered:
        roles += [("at", pa.int64()), *((f"tie{i}", types[column]) for i, column in enumerate(pipeline.time.tie_break))]
    return [*roles, ("value", types[atom.columns[-1]])]


@dataclass(frozen=True, slots=True)
class WiderPartials:
    """How partials that were stored before a column was widened are read in the wider layout of the same spec."""

    #: For each column of the wider layout, the column of the narrower one with the same content, maybe in a narrower type.
    same: Mapping[str, str]
    #: For sums that were of whole numbers and are of floats or decimals now: new columns by role, and old ones.
    sums: Sequence[tuple[Mapping[str, StoredField], Mapping[str, StoredField]]]

    @classmethod
    def between(cls, narrow: Layout | None, wide: Layout | None) -> Self | None:
        """From the layout ``narrow`` to ``wide``, null for no partials; null if a partial does not follow from the stored ones."""
        if narrow is None or wide is None:
            return cls({}, ())
        places = {atom: place for place, atom in enumerate(narrow.atoms)}
        same = wide.columns_among(narrow)
        sums: list[tuple[Mapping[str, StoredField], Mapping[str, StoredField]]] = []
        for index, atom in enumerate(wide.atoms):
            own, whole = wide.fields_of[index], replace(atom, kind="sum_int")
            if atom in places:
                if atom.kind == "sum_decimal" and own[""].type != narrow.fields_of[places[atom]][""].type:
                    return None  # what its other column counts is in units of the last digit
            elif atom.kind in ("sum_float", "sum_decimal") and whole in places:
                sums.append((own, narrow.fields_of[places[whole]]))
            else:
                return None
        return cls(same, sums) if all(held.name in same for held in wide.objects) else None

    @property
    def replaced(self) -> set[str]:
        """Columns of the narrower layout that the wider one goes without."""
        return {*self.same.values(), *(field.name for _, whole in self.sums for field in whole.values())} - self.same.keys()

    def replacing(self, stored: Collection[str]) -> set[str]:
        """Columns of the wider layout that take the place of others among the ``stored`` ones."""
        found = {name for name, own in self.same.items() if own != name and own in stored}
        return found | {field.name for wide, whole in self.sums if whole[""].name in stored for field in wide.values()}

    def columns(self, rows: pa.Table) -> dict[str, pa.Array]:
        """The partials of stored ``rows`` under the names of the wider layout."""
        found = {name: rows.column(own) for name, own in self.same.items() if own in rows.column_names}
        for wide, whole in self.sums:
            if whole[""].name in rows.column_names:
                found |= _converted(_whole_numbers(rows, whole), wide)
        return found


def _whole_numbers(rows: pa.Table, fields: Mapping[str, StoredField]) -> list[int | None]:
    """The sums of whole numbers, of any size; null in rows without one."""
    lows, high = rows.column(fields[""].name).to_pylist(), fields[HIGH].name
    # Tables that were made before sums had high bits lack them.
    highs = rows.column(high).to_pylist() if high in rows.column_names else [None] * len(lows)
    return [low if low is None or high is None else integer_of([low, high]) for low, high in zip(lows, highs, strict=True)]


def _converted(sums: Sequence[int | None], fields: Mapping[str, StoredField]) -> dict[str, pa.Array]:
    if "sum" in fields:
        rounded = [None if each is None else float(each) for each in sums]
        errors = [None if each is None or near is None else float(each - int(near)) for each, near in zip(sums, rounded, strict=True)]
        found: dict[str, list[object]] = {"carry": [None if each is None else 0 for each in sums], "sum": [*rounded], "error": [*errors]}
    else:
        scale = fields[""].type.scale
        unscaled = [None if each is None else each * 10**scale for each in sums]
        parts = [None if each is None else divmod(each, _DECIMALS) if abs(each) >= _DECIMALS else (0, each) for each in unscaled]
        found = {
            "": [None if each is None else Decimal(each[1]).scaleb(-scale, WIDE) for each in parts],
            HIGH: [None if each is None or not each[0] else each[0] for each in parts],
        }
    return {field.name: pa.array(found[role], field.type) for role, field in fields.items()}


__all__ = ["Atom", "Layout", "ObjectAtom", "Result", "StoredField", "StoredObject", "WiderPartials", "label_atoms"]
