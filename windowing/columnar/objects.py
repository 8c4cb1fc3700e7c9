"""Partials that are Python objects: combined over the ranges of the kernels, and kept in the state as bytes.

::

    offset  0     2             4            8            12
            WP    version u16   length u32   crc32 u32    MessagePack

Numbers of the header are little-endian; length and checksum are those of what follows it. A partial is plain data: null, booleans,
numbers, decimals, texts, bytes, dates and times, and tuples, lists, sets and dictionaries of these. Equal partials give equal bytes.
Nothing in them is ever executed.

A table of such partials is an array of objects, shape (n_partials, n_columns), next to the arenas of the partials that are numbers. A
stored partial is decoded only when it is combined, because most slices of a batch are stored again unchanged.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import IntEnum
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import DecodeError, Raw, ValidationError, msgpack

from windowmill.windowing.aggregates import aggregate_for, value_types
from windowmill.windowing.aggregates.order import mergeable
from windowmill.windowing.algebra import ORIGIN, Aggregate, position
from windowmill.windowing.catalogue import AggregateSpec
from windowmill.windowing.columnar.rows import plain
from windowmill.windowing.errors import SpecError, StateCorruptError
from windowmill.windowing.kernels.combine import Ints
from windowmill.windowing.kernels.flatfat import COPIED_LEAF, COPIED_NODE
from windowmill.windowing.kernels.lift import WHOLE, condition_column, int64_of, valid_of
from windowmill.windowing.slicing.leaves import Leaves, Windows

if TYPE_CHECKING:
    from windowmill.windowing.kernels.layout import StoredObject

MAGIC, VERSION = b"WP", 1
_HEADER = struct.Struct("<2sHII")
_LEAST, _GREATEST = -(1 << 63), (1 << 64) - 1
Objects = npt.NDArray[np.object_]


class _Kind(IntEnum):
    """Types that MessagePack lacks, as its extension types."""

    FLOATS = 1
    LIST = 2
    SET = 3
    MAPPING = 4
    INTEGER = 5
    DECIMAL = 6
    DATE = 7
    DATETIME = 8
    TIME = 9
    TIMEDELTA = 10
    MUTABLE_SET = 11


class _List(list[Any]):
    """A stored list; MessagePack's own arrays are tuples."""


def encode(partial: tuple[Any, ...], aggregate: str) -> bytes:
    """``partial`` as bytes; ``aggregate`` names its aggregate in messages.

    Raises ``SpecError`` if the partial is not plain data.

    Examples
    --------
    >>> decode(encode((1, None, (0.5, 2.5), frozenset({"a"})), "mode"))
    (1, None, (0.5, 2.5), frozenset({'a'}))
    """
    try:
        body = msgpack.encode(_plain(partial))
    except (TypeError, ValueError, OverflowError, RecursionError) as err:
        raise SpecError(
            f"aggregate {aggregate}: its partial cannot be stored ({err}); let lift and combine return plain data: null, booleans, "
            "numbers, texts, bytes, dates, and tuples, lists, sets or dictionaries of these"
        ) from err
    return _HEADER.pack(MAGIC, VERSION, len(body), zlib.crc32(body)) + body


def decode(data: bytes) -> tuple[Any, ...]:
    """The partial that :func:`encode` was given.

    Raises ``StateCorruptError`` if the bytes are no partial, of another version, or damaged.
    """
    if len(data) < _HEADER.size:
        raise StateCorruptError(f"a partial of {len(data)} bytes is shorter than its header of {_HEADER.size}")
    magic, version, length, checksum = _HEADER.unpack_from(data)
    body = memoryview(data)[_HEADER.size :]
    if magic != MAGIC or version != VERSION:
        raise StateCorruptError(f"a partial begins with {bytes(data[:4])!r}; this release reads {MAGIC!r} of version {VERSION}")
    if len(body) != length or zlib.crc32(body) != checksum:
        raise StateCorruptError(f"a partial of {len(body)} bytes differs from the {length} bytes that were stored")
    try:
        partial = _restored(body)
    except (DecodeError, ValidationError, ValueError, TypeError, struct.error, ArithmeticError) as err:
        raise StateCorruptError(f"a partial of {len(body)} bytes is not readable ({err})") from err
    if type(partial) is not tuple:
        raise StateCorruptError(f"a partial is {type(partial).__name__}; expected a tuple")
    return partial


def _plain(value: Any) -> Any:
    """``value`` in the types of MessagePack, tuples as its arrays."""
    kind = type(value)
    if value is None or kind is bool or kind is float or kind is str or kind is bytes:
        return value
    if kind is int:
        return value if _LEAST <= value <= _GREATEST else _extension(_Kind.INTEGER, str(value).encode())
    if kind is tuple:
        if len(value) > 1 and set(map(type, value)) == {float}:
            return _extension(_Kind.FLOATS, np.array(value, "<f8").tobytes())
        return tuple(map(_plain, value))
    return _other(value)


def _other(value: Any) -> Any:
    if isinstance(value, np.generic):
        return _plain(value.item())
    kind = type(value)
    if kind is list:
        return _extension(_Kind.LIST, msgpack.encode(tuple(map(_plain, value))))
    if kind is set or kind is frozenset:
        # Equal sets give equal bytes: items are sorted by their bytes. Whole numbers from 0 on sort equally by value, which is faster.
        whole = bool(value) and set(map(type, value)) == {int} and min(value) >= 0 and max(value) <= _GREATEST
        items = msgpack.encode(sorted(value) if whole else [Raw(item) for item in sorted(msgpack.encode(_plain(item)) for item in value)])
        return _extension(_Kind.SET if kind is frozenset else _Kind.MUTABLE_SET, items)
    if kind is dict:
        return _extension(_Kind.MAPPING, msgpack.encode(tuple((_plain(name), _plain(item)) for name, item in value.items())))
    if isinstance(value, Decimal):
        return _extension(_Kind.DECIMAL, str(value).encode())
    for known, stored_as in ((datetime, _Kind.DATETIME), (date, _Kind.DATE), (time, _Kind.TIME)):
        if isinstance(value, known):
            return _extension(stored_as, value.isoformat().encode())
    if isinstance(value, timedelta):
        return _extension(_Kind.TIMEDELTA, msgpack.encode((value.days, value.seconds, value.microseconds)))
    bases: tuple[type, ...] = (int, float, str, bytes)
    for base in bases:
        if isinstance(value, base):
            return _plain(base(value))  # for a subclass, only the value is stored
    # A named tuple or a counter would come back without what its functions need.
    raise TypeError(f"it holds {kind.__name__}")


def _extension(kind: _Kind, data: bytes) -> msgpack.Ext:
    return msgpack.Ext(int(kind), data)


def _restored(data: bytes | memoryview) -> Any:
    return _tupled(_DECODER.decode(data))


def _tupled(value: Any) -> Any:
    kind = type(value)
    if kind is list:
        return tuple(map(_tupled, value))
    return list(value) if kind is _List else value


def _extended(code: int, data: memoryview) -> Any:
    match _Kind(code):
        case _Kind.FLOATS:
            return tuple(np.frombuffer(data, "<f8").tolist())
        case _Kind.LIST:
            return _List(_restored(data))
        case _Kind.SET:
            return frozenset(_restored(data))
        case _Kind.MUTABLE_SET:
            return set(_restored(data))
        case _Kind.MAPPING:
            return dict(_restored(data))
        case _Kind.INTEGER:
            return int(bytes(data))
        case _Kind.DECIMAL:
            return Decimal(bytes(data).decode())
        case _Kind.DATE:
            return date.fromisoformat(bytes(data).decode())
        case _Kind.DATETIME:
            return datetime.fromisoformat(bytes(data).decode())
        case _Kind.TIME:
            return time.fromisoformat(bytes(data).decode())
        case _Kind.TIMEDELTA:
            return timedelta(*_restored(data))


_DECODER = msgpack.Decoder(ext_hook=_extended)


class ObjectColumn:
    """One aggregate of the spec whose partials are objects."""

    def __init__(self, spec: AggregateSpec, types: Sequence[pa.DataType]) -> None:
        self._spec = spec
        self._aggregate: Aggregate[Any] = aggregate_for(spec, value_types(spec, types))

    def lift(self, leaves: Leaves) -> list[Any]:
        """Lift each leaf to a partial; a leaf's index is its position."""
        lift, identity = self._aggregate.lift, self._aggregate.identity
        columns = [plain(leaves.table.column(name)).to_pylist() for name in self._spec.columns]
        rows: list[tuple[Any, ...]] = list(zip(*columns, strict=True)) if columns else [()] * len(leaves)
        if self._spec.where is None:
            return [lift(row, (index, ())) for index, row in enumerate(rows)]
        holds = leaves.table.column(condition_column(self._spec.where)).to_pylist()
        return [lift(row, (index, ())) if true else identity for index, (row, true) in enumerate(zip(rows, holds, strict=True))]

    def compute(self, partials: Sequence[Any], windows: Windows) -> list[Any]:
        """The result of each window; ``partials[i]`` belongs to leaf i."""
        return [self._aggregate.lower(total) for total in combine_windows(self._aggregate, partials, windows)]


def combine_windows(aggregate: Aggregate[Any], partials: Sequence[Any], windows: Windows) -> list[Any]:
    """The partial of each window; ``partials[i]`` belongs to leaf i, and a member ~i is deducted."""
    totals = _ranges(aggregate, partials, windows)
    offsets, members = windows.member_offsets.tolist(), windows.members.tolist()
    if members:
        any_order = aggregate.positioned or aggregate.commutative
        lo, hi, sequence = windows.lo.tolist(), windows.hi.tolist(), windows.sequence
        continuing = set(np.flatnonzero(windows.continues).tolist())
        for window in range(len(windows)):
            if window in continuing:
                totals[window] = totals[window - 1]
            held = members[offsets[window] : offsets[window + 1]]
            if aggregate.deduct is not None and (gone := [partials[~leaf] for leaf in held if leaf < 0]):
                totals[window], held = aggregate.deduct(totals[window], aggregate.fold(gone)), [leaf for leaf in held if leaf >= 0]
            if held and any_order:
                totals[window] = aggregate.fold([totals[window], *(partials[leaf] for leaf in held)])
            elif held:
                whole = sorted(held + sequence[lo[window] : hi[window]].tolist())
                totals[window] = aggregate.fold(partials[leaf] for leaf in whole)
    return totals


def _ranges(aggregate: Aggregate[Any], partials: Sequence[Any], windows: Windows) -> list[Any]:
    """The partial of each window's range: by subtract-on-evict where the aggregate has a ``deduct``, else by two stacks."""
    leaves = [partials[leaf] for leaf in windows.sequence.tolist()]
    bounds = list(zip(windows.lo.tolist(), windows.hi.tolist(), strict=True))
    if aggregate.deduct is not None:
        return _deducting(aggregate, aggregate.deduct, leaves, bounds, windows.group_offsets.tolist())
    return _two_stacks(aggregate, leaves, bounds, windows)


def _deducting(
    aggregate: Aggregate[Any], deduct: Callable[[Any, Any], Any], leaves: list[Any], bounds: list[tuple[int, int]], offsets: list[int]
) -> list[Any]:
    """A running total: deducts what leaves, which is its oldest part, and combines what enters; two calls a window that moves by a leaf."""
    fold, combine = aggregate.fold, aggregate.combine
    totals: list[Any] = [aggregate.identity] * len(bounds)
    for begun, ended in pairwise(offsets):
        total, low, reached = aggregate.identity, 0, 0
        for window in range(begun, ended):
            first, stop = bounds[window]
            if first >= stop:
                continue
            if low <= first and reached <= stop and first - low < reached - first:
                if low < first:
                    total = deduct(total, fold(leaves[low:first]))
                if reached < stop:
                    total = combine(total, fold(leaves[reached:stop]))
            else:
                total = fold(leaves[first:stop])
            low, reached, totals[window] = first, stop, total
    return totals


def _two_stacks(aggregate: Aggregate[Any], leaves: list[Any], bounds: list[tuple[int, int]], windows: Windows) -> list[Any]:
    """Two stacks, combining in exactly the order of :func:`windowmill.windowing.kernels.two_stacks.fifo_ranges`."""
    combine, identity = aggregate.combine, aggregate.identity
    offsets, middles = windows.group_offsets.tolist(), windows.middles.tolist()
    totals: list[Any] = [identity] * len(bounds)
    for key, known_middle in enumerate(middles):
        middle = known_middle
        base = low = reached = -1
        front: list[Any] = []
        back = identity
        for window in range(offsets[key], offsets[key + 1]):
            first, stop = bounds[window]
            if first >= stop:
                continue
            if first < low or stop < reached or (base < 0 <= middle and stop < middle):
                totals[window] = aggregate.fold(leaves[first:stop])
                continue
            low = first
            if first >= middle or base < 0:
                middle = max(middle, stop) if first >= middle else middle
                base, reached, back = first, middle, identity
                front = leaves[first:middle]
                for index in range(len(front) - 2, -1, -1):
                    front[index] = combine(front[index], front[index + 1])
            for leaf in leaves[reached:stop]:
                back = combine(back, leaf)
            totals[window] = front[first - base] if stop == middle else combine(front[first - base], back)
            reached = stop
    return totals


class StoredObjects:
    """All columns of a layout's partials that are Python objects."""

    def __init__(self, columns: Sequence[StoredObject]) -> None:
        self._stored = columns
        self._columns = [_Column(stored) for stored in columns]

    def __reduce__(self) -> tuple[type[StoredObjects], tuple[Sequence[StoredObject]]]:
        # Aggregates are built of functions that do not pickle; each process builds its own.
        return StoredObjects, (self._stored,)

    @property
    def deducts(self) -> list[bool]:
        return [column.aggregate.deduct is not None for column in self._columns]

    def none(self, n: int) -> Objects:
        """``n`` partials that are not filled in yet."""
        return np.empty((n, len(self._columns)), np.object_)

    def lift(self, rows: pa.Table, bounds: Ints, time: str, ties: Sequence[str]) -> Objects:
        """The partials of the rows ``bounds[r]:bounds[r + 1]``, which are in (time, tie_break, arrival) order; O(n) Python calls."""
        partials = self.none(len(bounds) - 1)
        if not self._columns:
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

        Raises ``StateCorruptError`` if one is damaged.
        """
        folded = partials[bounds[:-1]]
        for index, column in enumerate(self._columns):
            for run in np.flatnonzero(np.diff(bounds) > 1).tolist():
                folded[run, index] = column.aggregate.fold(map(_decoded, partials[bounds[run] : bounds[run + 1], index]))
        return folded

    def with_nodes(self, partials: Objects, node_offsets: Ints, members: Ints) -> Objects:
        """The ``partials``, then those of nodes, each of which combines ``members`` before it; as :meth:`fold`."""
        n, parts = len(partials), np.concatenate((partials, self.none(len(node_offsets) - 1)))
        for node in range(len(parts) - n if self._columns else 0):
            of_node = parts[members[node_offsets[node] : node_offsets[node + 1]]]
            parts[n + node] = self.fold(of_node, np.array([0, len(of_node)]))[0]
        return parts

    def decode(self, partials: Objects) -> Objects:
        """The partials without bytes; raises as :meth:`fold`."""
        decoded = self.none(len(partials))
        for index in range(len(self._columns)):
            decoded[:, index] = _as_objects(list(map(_decoded, partials[:, index])))
        return decoded

    def combine_work(
        self, begun: int, ended: int, work: Ints, work_ends: Ints, roots: Ints, partials: Objects, nodes: Objects, out: Objects
    ) -> None:
        """As :func:`windowmill.windowing.kernels.flatfat.combine_work`, one Python call a combine; ``partials`` are decoded."""
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
        """For each aggregate, the results of windows with the partials ``totals``; null for an empty window."""
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
            for first, stop in pairwise(bounds.tolist())
        ]

    def _takes_each_value_once(self, rows: pa.Table) -> bool:
        """Whether a run's partial depends only on the distinct values of its one argument, not on their order and number."""
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
        # First occurrences are in the order of the runs.
        places = np.asarray(pc.unique(pa.array((run_of * n_values + codes)[counted])), np.int64)
        used, value_of = np.unique(places % n_values, return_inverse=True)
        each = [aggregate.lift((value,), ORIGIN) for value in encoded.dictionary.take(pa.array(used)).to_pylist()]
        lifted = [each[value] for value in value_of.tolist()]
        edges = np.searchsorted(places // n_values, np.arange(len(bounds))).tolist()
        return [_folded(aggregate, lifted[first:stop]) for first, stop in pairwise(edges)]


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
    """An array with one object per partial; numpy would make an array of more dimensions from tuples."""
    return np.fromiter(partials, np.object_, len(partials))
