"""A sample of the rows that a pipeline has published, and their comparison with recomputed ones.

A hash chooses among the latest revisions, so that a seed gives the same rows again. Whole numbers and texts must be equal, floats and
sketches within a bound.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windowmill.checkpoints.stores import table_at
from windowmill.jobs.sources.table_rows import queried
from windowmill.windowing.axis import to_us
from windowmill.windowing.columnar.added_columns import RETRACTED
from windowmill.windowing.columnar.hashes import row_checksums
from windowmill.windowing.columnar.rows import distinct_values

if TYPE_CHECKING:
    from deltalake import DeltaTable

    from windowmill.windowing.kernels.checksums import Words
    from windowmill.windowing.spec import Pipeline


#: Columns that identify a window of a key.
PLACE = ("window", "window_start", "window_end", "trigger")
_HASH = "_hash"


@dataclass(frozen=True)
class PublishedRow:
    """A row of the sink; instants are integers along the axis."""

    key: tuple[Any, ...]  #: Values of the key columns.
    window: str
    start: int | None
    end: int
    trigger: int | None
    revision: int
    batch: int
    values: Mapping[str, Any]  #: Values of the aggregates, by name.


@dataclass(frozen=True)
class Sample:
    """Rows of the sink; ``keys`` has their key columns with the types of the sink, in the same order."""

    rows: Sequence[PublishedRow]
    keys: pa.Table


def sample(table: str, pipeline: Pipeline, *, number: int, seed: int, ends: tuple[int | None, int | None], through: int) -> Sample:
    """``number`` rows of the sink at ``table`` that end in ``ends`` (begin, end], of the batches ``through`` this one."""
    sink, restarting = table_at(table), [window.name for window in pipeline.windows if window.restarts_triggers]
    kept, whole = 4 * number, False
    found = pa.table({})
    # Rows that are superseded, retracted, or out of the range are among those with the least hashes, too.
    while not whole:
        rows, whole = _least(sink, pipeline, restarting, kept, seed, through)
        found = _within(_newest(rows), ends)
        if len(found) >= number:
            break
        kept *= 16
    found = found.sort_by([(_HASH, "ascending"), *((name, "ascending") for name in PLACE)]).slice(0, number)
    return Sample([_row(row, pipeline) for row in found.to_pylist()], found.select(list(pipeline.keys)))


def _least(sink: DeltaTable, pipeline: Pipeline, restarting: Sequence[str], number: int, seed: int, through: int) -> tuple[pa.Table, bool]:
    """All rows of the ``number`` windows with the least hashes, at least; and whether these are all windows."""
    there = {field.name: field.type for field in pa.schema(sink.schema().to_arrow())}
    wanted = [*pipeline.keys, *PLACE, "revision", "batch", *pipeline.aggregates, *([RETRACTED] if RETRACTED in there else [])]
    types = {name: there[name] for name in wanted}
    rows, whole = pa.schema([*types.items(), (_HASH, pa.uint64())]).empty_table(), True
    for part in queried(sink, types, f"batch <= {through}", {name: name for name in types}):
        own = pa.array(_hashes(part, pipeline.keys, restarting, seed))
        rows = pa.concat_tables([rows, part.append_column(_HASH, own)])
        hashes = distinct_values(rows.column(_HASH).to_numpy())
        if len(hashes) > number:
            rows, whole = rows.filter(pc.less(rows.column(_HASH), pa.scalar(hashes[number], pa.uint64()))), False
    return rows.combine_chunks(), whole


def _hashes(rows: pa.Table, keys: Sequence[str], restarting: Sequence[str], seed: int) -> Words:
    """A number for each row, the same for all versions of a window (:meth:`.PublishedTable.latest_sql`)."""
    numbered = pc.is_valid(rows.column("trigger"))
    no_end = pc.and_(numbered, pc.invert(pc.is_in(rows.column("window"), pa.array(list(restarting), pa.string()))))
    bounds = {name: rows.column(name) for name in ("window_start", "window_end")}
    for name, hidden in (("window_start", numbered), ("window_end", no_end)):
        bounds[name] = pc.if_else(hidden, pa.scalar(None, bounds[name].type), bounds[name])
    known_by = rows.select([*keys, "window", "trigger"])
    for name, column in bounds.items():
        known_by = known_by.append_column(name, column)
    # The finalizer of splitmix64, which makes another order of each seed.
    mixed = row_checksums(known_by).to_numpy().view(np.uint64) + np.uint64(seed * 0x9E3779B97F4A7C15 % 2**64)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(mixed ^ (mixed >> np.uint64(31)), np.uint64)


def _newest(rows: pa.Table) -> pa.Table:
    """Of each window the version that readers see, without windows that are retracted."""
    order = np.lexsort((rows.column("revision").to_numpy(), rows.column(_HASH).to_numpy()))
    hashes = rows.column(_HASH).to_numpy()[order]
    newest = rows.take(pa.array(order[np.append(hashes[1:] != hashes[:-1], True)[: len(order)]]))
    if RETRACTED not in rows.column_names:
        return newest
    return newest.filter(pc.invert(pc.fill_null(newest.column(RETRACTED), False))).drop_columns([RETRACTED])


def _within(rows: pa.Table, ends: tuple[int | None, int | None]) -> pa.Table:
    """Those of ``rows`` that end in ``ends``, with instants as integers on the axis."""
    for name in ("window_start", "window_end"):
        rows = rows.set_column(rows.schema.get_field_index(name), name, rows.column(name).cast(pa.int64()))
    begin, end = ends
    rows = rows if begin is None else rows.filter(pc.greater(rows.column("window_end"), begin))
    return rows if end is None else rows.filter(pc.less_equal(rows.column("window_end"), end))


def _row(row: Mapping[str, Any], pipeline: Pipeline) -> PublishedRow:
    return PublishedRow(
        key=tuple(row[name] for name in pipeline.keys),
        window=row["window"],
        start=row["window_start"],
        end=row["window_end"],
        trigger=row["trigger"],
        revision=row["revision"],
        batch=row["batch"],
        values={name: row[name] for name in pipeline.aggregates},
    )


#: Relative error by which floating-point results may differ: their sums are in another order.
TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True)
class RecomputedValue:
    """A recomputed value, with the size of what cancelled out in it, and the bound of a sketch."""

    value: Any
    scale: float | None = None
    bound: float = 0.0


@dataclass(frozen=True, slots=True)
class Difference:
    """A value of a published row that is not the recomputed one; ``column`` is null if the window itself is not there."""

    column: str | None
    published: Any
    recomputed: Any


@dataclass(frozen=True)
class ComparedRow:
    """A published row and how it was recomputed."""

    row: PublishedRow
    differences: Sequence[Difference]
    sql: str | None  #: A query that recomputes it; null if no plain query does.
    undecided: str | None = None  #: Why its differences do not count; null if they do.


@dataclass
class Comparison:
    """The rows of a sample as they have been compared."""

    rows: list[ComparedRow] = field(default_factory=list)
    #: ``equal``, ``compared``: numbers of values by column.
    equal: Counter[str] = field(default_factory=Counter)
    compared: Counter[str] = field(default_factory=Counter)
    left_out: Counter[tuple[str, str]] = field(default_factory=Counter)  #: What could not be compared, with why, and the number of rows.
    methods: Counter[str] = field(default_factory=Counter)  #: Numbers of rows by how they were recomputed.

    @property
    def differing(self) -> list[ComparedRow]:
        """Rows that are not what the source gives."""
        return [row for row in self.rows if row.differences and row.undecided is None]

    def add(
        self, row: PublishedRow, expected: Mapping[str, RecomputedValue] | None, sql: str | None, method: str, doubt: str | None = None
    ) -> None:
        """Compare ``row`` with what was ``expected``: its values, or null if there is no such window. ``doubt`` excuses differences."""
        self.methods[method] += 1
        if expected is None:
            found = [Difference(None, "the row", "no such window")]
        else:
            found = []
            for name, wanted in expected.items():
                same = agree(row.values[name], wanted)
                self.compared[name] += 1
                self.equal[name] += same
                if not same:
                    found.append(Difference(name, row.values[name], wanted.value))
        undecided = doubt if found else None
        if undecided is not None:
            self.left_out[f"rows of {row.window}", undecided] += 1
        self.rows.append(ComparedRow(row, found, sql, undecided))


def agree(published: Any, wanted: RecomputedValue) -> bool:
    """Whether a published value is the one wanted.

    >>> [agree(a, RecomputedValue(b)) for a, b in ((0.1 + 0.2, 0.3), (3, 4), ([1, None], [1, None]))]
    [True, False, True]
    """
    return _agree(published, wanted.value, wanted.scale or 0.0, wanted.bound)


def _agree(a: Any, b: Any, scale: float, bound: float) -> bool:
    if a is None or b is None:
        return a is b
    a, b = (to_us(value) if isinstance(value, datetime) else value for value in (a, b))
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(_agree(a[name], b[name], scale, bound) for name in a)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(_agree(x, y, scale, bound) for x, y in zip(a, b, strict=True))
    numbers = isinstance(a, int | float | Decimal) and isinstance(b, int | float | Decimal)
    if not numbers or (not bound and not isinstance(a, float) and not isinstance(b, float)):
        return bool(a == b)
    x, y = float(a), float(b)
    if not (math.isfinite(x) and math.isfinite(y)):
        return x == y or (math.isnan(x) and math.isnan(y))
    return abs(x - y) <= TOLERANCE * max(abs(x), abs(y), scale if math.isfinite(scale) else 0.0) + bound * abs(y)
