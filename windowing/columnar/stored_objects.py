"""The stored partials that are Python objects: lifted from rows, folded, combined into windows, and kept as bytes.

A table of such partials is an array of objects, shape (n_partials, n_columns), next to the arenas of the partials that are numbers. A
partial that was read stays bytes until it is combined, because most slices of a batch are stored again as they were.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from windowmill.windowing.aggregates import aggregate_for
from windowmill.windowing.aggregates.order import mergeable
from windowmill.windowing.algebra import ORIGIN, Aggregate, position
from windowmill.windowing.columnar.objects import combine_windows
from windowmill.windowing.columnar.partial_bytes import decode, encode
from windowmill.windowing.columnar.rows import plain
from windowmill.windowing.kernels.columns import int64_of, valid_of
from windowmill.windowing.kernels.combine import Ints
from windowmill.windowing.kernels.lift import WHOLE, condition_column
from windowmill.windowing.kernels.tries import COPIED_LEAF, COPIED_NODE
from windowmill.windowing.slicing.leaves import Windows

if TYPE_CHECKING:
    from windowmill.windowing.kernels.layout import StoredObject

Objects = npt.NDArray[np.object_]


class StoredObjects:
    """All columns of a layout's partials that are Python objects."""

    def __init__(self, columns: Sequence[StoredObject]) -> None:
        self._stored = columns
        self._columns = [_Column(stored) for stored in columns]

    def __reduce__(self) -> tuple[type[StoredObjects], tuple[Sequence[StoredObject]]]:
        # Aggregates are built of functions that do not pickle; each process builds its own.
        return StoredObjects, (self._stored,)

    def __len__(self) -> int:
        return len(self._columns)

    @property
    def deducts(self) -> list[bool]:
        """Of each column, whether its partials can be deducted."""
        return [column.aggregate.deduct is not None for column in self._columns]

    def none(self, n: int) -> Objects:
        """``n`` partials that are not filled in yet."""
        return np.empty((n, len(self)), np.object_)

    def lift(self, rows: pa.Table, bounds: Ints, time: str, ties: Sequence[str]) -> Objects:
        """The partials of the rows ``bounds[r]:bounds[r + 1]``, which are in (time, tie_break, arrival) order; O(n) Python calls."""
        partials = self.none(len(bounds) - 1)
        if not len(self):
            return partials
        positions = _positions(rows, time, ties) if any(column.stored.ordered for column in self._columns) else []
        for index, column in enumerate(self._columns):
            partials[:, index] = _as_objects(column.lift(rows, bounds, positions))
        return partials

    def read(self, slices: pa.Table) -> Objects:
        """The partials of stored slices, as bytes."""
        partials = self.none(slices.num_rows)
        for index, column in enumerate(self._columns):
            partials[:, index] = _as_objects(slices.column(column.stored.name).to_pylist())
        return partials

    def write(self, partials: Objects) -> dict[str, pa.Array]:
        """The partials as columns of bytes; raises ``SpecError`` if one is not plain data."""
        return {
            column.stored.name: pa.array(
                [partial if type(partial) is bytes else encode(partial, column.first) for partial in partials[:, index]], pa.binary()
            )
            for index, column in enumerate(self._columns)
        }

    def fold(self, partials: Objects, bounds: Ints) -> Objects:
        """Combine the partials of each run ``bounds[r]:bounds[r + 1]`` in order; O(n) combines.

        Raises
        ------
        StateCorruptError
            If one is damaged.
        """
        folded = partials[bounds[:-1]]
        for index, column in enumerate(self._columns):
            for run in np.flatnonzero(np.diff(bounds) > 1).tolist():
                folded[run, index] = column.aggregate.fold(map(_decoded, partials[bounds[run] : bounds[run + 1], index]))
        return folded

    def with_nodes(self, partials: Objects, node_offsets: Ints, members: Ints) -> Objects:
        """The ``partials``, then those of nodes, each of which combines ``members`` before it; as :meth:`fold`."""
        n, parts = len(partials), np.concatenate((partials, self.none(len(node_offsets) - 1)))
        for node in range(len(parts) - n if len(self) else 0):
            of_node = parts[members[node_offsets[node] : node_offsets[node + 1]]]
            parts[n + node] = self.fold(of_node, np.array([0, len(of_node)]))[0]
        return parts

    def decode(self, partials: Objects) -> Objects:
        """The partials without bytes; raises as :meth:`fold`."""
        decoded = self.none(len(partials))
        for index in range(len(self)):
            decoded[:, index] = _as_objects(list(map(_decoded, partials[:, index])))
        return decoded

    def combine_work(
        self, begun: int, ended: int, work: Ints, work_ends: Ints, roots: Ints, partials: Objects, nodes: Objects, out: Objects
    ) -> None:
        """As :func:`windowmill.windowing.kernels.tries.combine_work`, one Python call a combine; ``partials`` are decoded."""
        done = 0
        for total in range(begun, ended):
            for node, left, right in work[done : work_ends[total]].tolist():
                if right == COPIED_LEAF:
                    nodes[node] = partials[left]
                elif right == COPIED_NODE:
                    nodes[node] = nodes[left]
                else:
                    for index, column in enumerate(self._columns):
                        nodes[node, index] = column.aggregate.combine(nodes[left, index], nodes[right, index])
            done = int(work_ends[total])
            if roots[total] > 0:
                out[total] = nodes[roots[total]]

    def lowered(self, totals: Objects) -> dict[str, list[Any]]:
        """The results of windows by aggregate, whose partials are ``totals``; null for an empty one."""
        results: dict[str, list[Any]] = {}
        for index, column in enumerate(self._columns):
            empty = column.aggregate.identity
            found = [empty if total is None else total for total in totals[:, index]]
            results |= {name: [aggregate.lower(total) for total in found] for name, aggregate in column.aggregates.items()}
        return results

    def compute(self, partials: Objects, windows: Windows, moved: Windows | None = None) -> dict[str, list[Any]]:
        """The results of each window by aggregate; leaf i of ``windows`` has ``partials[i]``, which are decoded.

        ``moved`` are the same windows for columns whose partials can be deducted, with members to deduct.
        """
        results: dict[str, list[Any]] = {}
        for index, (column, deducts) in enumerate(zip(self._columns, self.deducts, strict=True)):
            given = moved if deducts and moved is not None else windows
            totals = combine_windows(column.aggregate, partials[:, index].tolist(), given)
            results |= {name: [aggregate.lower(total) for total in totals] for name, aggregate in column.aggregates.items()}
        return results


class _Column:
    """One column of partials, and how each aggregate that shares it lowers them."""

    def __init__(self, stored: StoredObject) -> None:
        self.stored = stored
        self.aggregates = {name: mergeable(aggregate_for(spec, stored.types)) for name, spec in stored.results}
        self.first = next(iter(self.aggregates))
        self.aggregate: Aggregate[Any] = self.aggregates[self.first]

    def lift(self, rows: pa.Table, bounds: Ints, positions: Sequence[Any]) -> list[Any]:
        if self._takes_each_value_once(rows):
            return self._lift_values(rows, bounds)
        aggregate, spec = self.aggregate, self.stored.spec
        columns = [plain(rows.column(name)).to_pylist() for name in spec.columns]
        arguments: list[tuple[Any, ...]] = list(zip(*columns, strict=True)) if columns else [()] * rows.num_rows
        counted = [True] * rows.num_rows if spec.where is None else rows.column(condition_column(spec.where)).to_pylist()
        if WHOLE in rows.column_names:
            counted = [holds and whole for holds, whole in zip(counted, rows.column(WHOLE).to_pylist(), strict=True)]
        places = positions if self.stored.ordered else [ORIGIN] * rows.num_rows
        return [
            _folded(aggregate, [aggregate.lift(arguments[row], places[row]) for row in range(first, stop) if counted[row]])
            for first, stop in itertools.pairwise(bounds.tolist())
        ]

    def _takes_each_value_once(self, rows: pa.Table) -> bool:
        """Whether the partial of a run follows from the distinct values of its one argument, whatever their order and number."""
        columns, aggregate = self.stored.spec.columns, self.aggregate
        if len(columns) != 1 or pa.types.is_nested(rows.schema.field(columns[0]).type) or WHOLE in rows.column_names:
            return False
        return aggregate.idempotent and aggregate.commutative and not self.stored.ordered

    def _lift_values(self, rows: pa.Table, bounds: Ints) -> list[Any]:
        """As :meth:`lift`, but each distinct value is lifted once, and is combined once into each run."""
        spec, aggregate = self.stored.spec, self.aggregate
        encoded = plain(rows.column(spec.columns[0])).dictionary_encode()
        codes, n_values = int64_of(encoded.indices.cast(pa.int64())), max(1, len(encoded.dictionary))
        counted = valid_of(encoded.indices).astype(bool)
        if spec.where is not None:
            counted &= rows.column(condition_column(spec.where)).combine_chunks().fill_null(False).to_numpy(zero_copy_only=False)
        run_of = np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))
        # First occurrences stand in the order of the runs.
        places = np.asarray(pc.unique(pa.array((run_of * n_values + codes)[counted])), np.int64)
        used, value_of = np.unique(places % n_values, return_inverse=True)
        each = [aggregate.lift((value,), ORIGIN) for value in encoded.dictionary.take(pa.array(used)).to_pylist()]
        lifted = [each[value] for value in value_of.tolist()]
        edges = np.searchsorted(places // n_values, np.arange(len(bounds))).tolist()
        return [_folded(aggregate, lifted[first:stop]) for first, stop in itertools.pairwise(edges)]


def _folded(aggregate: Aggregate[Any], partials: list[Any]) -> Any:
    """The partial of a run; that of a single row is not copied."""
    return partials[0] if len(partials) == 1 else aggregate.fold(partials)


def _positions(rows: pa.Table, time: str, ties: Sequence[str]) -> list[Any]:
    columns = [plain(rows.column(name)).to_pylist() for name in ties]
    tied = zip(*columns, strict=True) if columns else [()] * rows.num_rows
    return [position(at, values) for at, values in zip(rows.column(time).to_pylist(), tied, strict=True)]


def _decoded(partial: Any) -> Any:
    return decode(partial) if type(partial) is bytes else partial


def _as_objects(partials: list[Any]) -> Objects:
    """An array of one object per partial, which are tuples; numpy would make of them an array of more dimensions."""
    return np.fromiter(partials, np.object_, len(partials))
