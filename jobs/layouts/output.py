"""The output of a batch: result rows, rows of the state, quarantined rows, and counts; and how a task returns it to the driver, as JSON.

Each row that a batch reads is applied, quarantined or a duplicate, and :func:`check_balance` verifies that the counts say so.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windowmill.checkpoints.batches import Changes
from windowmill.checkpoints.data_files import DataFile
from windowmill.jobs.conditions.truths import Conditions, every_condition
from windowmill.jobs.json_lines import to_json
from windowmill.jobs.layouts.input import Emission, TableInput
from windowmill.jobs.layouts.limits import OnlySparkError, TooLargeError
from windowmill.jobs.sources.unusable_rows import REASONS, TOO_LATE, details_of, failure_of, with_texts
from windowmill.windowing import errors
from windowmill.windowing.bounds import PRINTABLE
from windowmill.windowing.columnar.added_columns import (
    FILE,
    KIND,
    ORDER,
    REASON,
    RETRACTED,
    ROW,
    SEQUENCE,
    SLICE,
    TIME,
    UNREAD,
    VERSION,
    WATERMARK_OF,
)
from windowmill.windowing.columnar.positions import NODE
from windowmill.windowing.columnar.slices import number_of_nodes
from windowmill.windowing.counts import Counts, WindowRows
from windowmill.windowing.errors import WindowmillError

if TYPE_CHECKING:
    from windowmill.checkpoints.batches import Plan
    from windowmill.jobs.layouts.base import Part
    from windowmill.windowing.spec import Pipeline

#: The column of a task's result, as :func:`encoded`.
RETURNED = pa.schema([("returned", pa.binary())])

T = TypeVar("T", bound=type)

_RETURNED = (Changes, DataFile, Counts, WindowRows, Emission, TooLargeError, OnlySparkError)
_KNOWN: dict[str, type] = {kind.__name__: kind for kind in _RETURNED}
_KNOWN |= {name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, errors.WindowmillError)}
_SEQUENCES = {kind.__name__: kind for kind in (tuple, list, set, frozenset)}
#: The table that rows are for: ``retracted`` are rows of the sink that retract windows; ``seen`` are entries of remembered rows;
#: ``refused`` are numbers of refused rows, or of duplicates, which only this batch reads.
Role = Literal["sink", "retracted", "state", "seen", "quarantine", "refused"]
#: Number of rows by kind: slices and nodes over them, nodes of FlatFAT trees (leaves included), and what else the state holds.
Restored = Mapping[str, int]
SLICES, SLICE_NODES, FLATFAT, OTHERS = "slices", "slice_nodes", "flatfat_nodes", "others"
#: Columns of a row to quarantine: the sentence about the condition that fails on it, and the row as JSON.
FAILURE, JSON = "_failure", "_json"


def returnable(kind: T) -> T:
    """Tasks may return values of this dataclass or error; a class decorator."""
    _KNOWN[kind.__name__] = kind
    return kind


@returnable
@dataclass(frozen=True)
class Output:
    """What tasks have written and counted."""

    files: Mapping[Role, tuple[DataFile, ...]] = field(default_factory=dict)
    counts: Counts = field(default_factory=Counts)  #: Of the rows of one layout, or of all.
    refused: int = 0  #: Number of rows that the layout refused because they came too late.
    executors: frozenset[str] = frozenset()  #: One text for each process that ran tasks.

    def __add__(self, other: Output) -> Output:
        return Output(
            {role: self.files.get(role, ()) + other.files.get(role, ()) for role in (*self.files, *other.files)},
            self.counts + other.counts,
            self.refused + other.refused,
            self.executors | other.executors,
        )


@dataclass(frozen=True, slots=True)
class Published:
    """The result rows that a batch publishes, where it does not publish all: those of ``windows`` that end after an instant."""

    windows: tuple[str, ...]
    after: int

    def of(self, rows: pa.Table) -> pa.Table:
        """Those of ``rows``, result rows of one window of the spec."""
        if not rows.num_rows or rows.column("window")[0].as_py() not in self.windows:
            return rows.slice(0, 0)
        return rows.filter(pc.greater(rows.column("window_end").cast(pa.int64()), self.after))


class RowWriter(ABC):
    """Takes the rows that parts compute; ``counts`` are those of the result rows so far."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = Counts()

    def results(self, rows: pa.Table) -> None:
        """Write result rows, all of one window of the spec; those with ``RETRACTED`` retract windows."""
        if not rows.num_rows:
            return
        ends = pc.min_max(rows.column("window_end").cast(pa.int64())).as_py()
        written = WindowRows(rows.num_rows, ends["min"], ends["max"])
        self.counts += Counts(windows={rows.column("window")[0].as_py(): written})
        self.write("retracted" if RETRACTED in rows.column_names else "sink", rows)

    def state(self, rows: pa.Table | None) -> None:
        if rows is not None and rows.num_rows:
            self.write("state", rows)

    @abstractmethod
    def write(self, role: Role, rows: pa.Table) -> None:
        """Write ``rows`` to the table of this role."""


def combine_counts(parts: Sequence[Part], done: Sequence[Output], refused: int) -> Output:
    """The output of all ``parts``, each of which has ``done`` one; ``refused`` is the number of new rows that all of them refused."""
    every = sum(done, Output())
    # Parts on grids do not report refused rows; any other part refuses exactly the rows that it does not count.
    decisive = next((each for part, each in zip(parts, done, strict=True) if not part.grids), None)
    if decisive is None:
        return every
    # Each part counts all rows: the numbers of one are the batch's. A row that another part takes is late.
    rows = {name: getattr(decisive.counts, name) + decisive.refused - refused for name in ("rows_applied", "rows_late")}
    return replace(every, refused=refused, counts=replace(every.counts, **rows))


def check_balance(batch: TableInput, counts: Counts) -> None:
    """Raise ``WindowmillError`` if the rows of ``batch`` do not balance."""
    read = counts.rows_read
    by_log, is_known = sum(file.rows or 0 for file in batch.reading.files), all(file.rows is not None for file in batch.reading.files)
    may_be_fewer = not all(file.is_counted for file in batch.reading.files)
    is_balanced = counts.rows_kept == counts.rows_applied + counts.rows_quarantined + counts.duplicates
    if not is_balanced or (is_known and (read > by_log or (read < by_log and not may_be_fewer))):
        raise WindowmillError(
            f"pipeline {batch.pipeline.pipeline}: batch {batch.plan.batch} read {read} rows of {by_log} in the log, applied "
            f"{counts.rows_applied}, quarantined {counts.rows_quarantined}, and left out {counts.filtered} by filters and "
            f"{counts.duplicates} as duplicates: they must balance, so nothing was published; please report this"
        )


def restored_kinds(stored: pa.Table | None) -> Restored:
    """The rows of one part that this process, or a task, has restored, by kind; without kinds that it has none of."""
    if stored is None or not stored.num_rows:
        return {}
    if SEQUENCE in stored.column_names:
        n, kinds = pc.sum(pc.equal(stored.column(KIND), NODE)).as_py() or 0, (FLATFAT, OTHERS)
    elif SLICE in stored.column_names:
        n, kinds = number_of_nodes(stored), (SLICE_NODES, SLICES)
    else:
        n, kinds = 0, (FLATFAT, OTHERS)
    return {kind: rows for kind, rows in zip(kinds, (n, stored.num_rows - n), strict=True) if rows}


def quarantine_schema(pipeline: Pipeline) -> pa.Schema:
    instant = pa.int64() if pipeline.time.integer_axis else pa.timestamp("us", "UTC")
    return pa.schema(
        [
            ("pipeline", pa.string()),
            ("generation", pa.string()),
            ("batch", pa.int64()),
            ("reason", pa.string()),
            ("detail", pa.string()),
            ("source_version", pa.int64()),
            ("source_file", pa.string()),
            ("source_row", pa.int64()),
            ("event_time", instant),
            ("watermark", instant),
            ("row", pa.string()),
        ]
    )


@dataclass(frozen=True, slots=True)
class QuarantineRows:
    """Makes the rows of the quarantine table of a batch; picklable."""

    pipeline: Pipeline
    plan: Plan
    paths: Sequence[str]  #: The path of each file that the batch reads; none where the rows have been written to files of their own.

    def of(self, rows: pa.Table, columns: list[str]) -> pa.Table:
        """The rows of the table for ``rows`` with these ``columns`` of the source, each of which has a reason."""
        # A condition that only Spark evaluates fails on no row here: it would have failed Spark's job.
        conditions = Conditions.of(every_condition(self.pipeline), {name: rows.schema.field(name).type for name in columns})
        nothing = pa.scalar(None, pa.string())
        failures = [pc.if_else(truth.failed, failure_of(text), nothing) for text, truth in conditions.over(rows).items()]
        failure = pc.coalesce(*failures) if failures else pa.nulls(rows.num_rows, pa.string())
        chosen = rows.select([name for name in (REASON, VERSION, FILE, ROW, TIME, WATERMARK_OF, UNREAD) if name in rows.column_names])
        chosen = chosen.append_column(FAILURE, failure)
        return self.entries(chosen.append_column(JSON, pa.array(to_json(rows.select(columns)), pa.string())))

    def entries(self, rows: pa.Table) -> pa.Table:
        """The rows of the table, from the columns that say what is wrong with each row.

        ``rows``: reason, version and event time of each row, the watermark that it found if it is late, what in it could not be read, the
        sentence about the condition that fails on it, and the row as JSON; with ``paths`` the index of its file, and its number in it.
        """
        n, reason = rows.num_rows, rows.column(REASON)
        known = pa.array([each.detail for each in REASONS.values()]).take(pc.index_in(reason, pa.array(REASONS)).combine_chunks())
        row, unread = rows.column(JSON), pa.nulls(n, pa.string())
        if UNREAD in rows.column_names:
            unread = pa.array(details_of(rows.column(UNREAD)), pa.string())
            row = pa.array(with_texts(row, rows.column(UNREAD)), pa.string())
        found = pa.chunked_array([pa.nulls(n, pa.int64())])
        if WATERMARK_OF in rows.column_names:
            found = pc.if_else(pc.equal(reason, TOO_LATE), rows.column(WATERMARK_OF), pa.scalar(None, pa.int64()))
        values = {
            "pipeline": pa.repeat(self.pipeline.pipeline, n),
            "generation": pa.repeat(self.plan.generation, n),
            "batch": pa.repeat(pa.scalar(self.plan.batch, pa.int64()), n),
            "reason": reason,
            "detail": pc.coalesce(unread, known, rows.column(FAILURE)),
            "source_version": rows.column(VERSION),
            "source_file": pa.array(self.paths, pa.string()).take(rows.column(FILE)) if self.paths else pa.nulls(n, pa.string()),
            "source_row": rows.column(ROW) if self.paths else pa.nulls(n, pa.int64()),
            "event_time": self._instant(rows.column(TIME)),
            "watermark": self._instant(found),
            "row": row,
        }
        return pa.table(values)

    def _instant(self, points: pa.ChunkedArray) -> pa.ChunkedArray:
        # Python cannot represent all years, so such times are null here; the column ``row`` still has them.
        if self.pipeline.time.integer_axis:
            return points
        least, greatest = PRINTABLE
        printable = pc.and_(pc.greater_equal(points, least), pc.less_equal(points, greatest))
        return pc.if_else(printable, points, pa.scalar(None, pa.int64())).cast(pa.timestamp("us", "UTC"))


def chosen_rows(rows: pa.Table, chosen: pa.Table, on: Sequence[str]) -> pa.Table:
    """Those of ``rows`` that are ``chosen`` by the columns ``on``, with the other columns that they have there, too."""
    # Arrow joins no columns of nested types.
    at = rows.select(on).append_column(ORDER, pa.array(np.arange(len(rows)))).join(chosen, list(on), join_type="inner")
    found = rows.take(at.column(ORDER))
    for name in chosen.column_names:
        place = found.schema.get_field_index(name)
        found = found.append_column(name, at.column(name)) if place < 0 else found.set_column(place, name, at.column(name))
    return found


def encoded(value: object) -> bytes:
    """``value`` as JSON; raises ``TypeError`` if it is of another class."""
    return json.dumps(_plain(value)).encode()


def decoded(text: bytes) -> Any:
    return _value(json.loads(text))


def encode_result(value: object) -> Iterator[pa.RecordBatch]:
    """The row that a task yields to return ``value`` to the driver."""
    yield pa.record_batch([pa.array([encoded(value)], pa.binary())], schema=RETURNED)


def collect_results(frame: Any) -> list[Any]:
    """Run the tasks of ``frame``, a DataFrame whose rows are those of :func:`encode_result`, and decode their results."""
    return [decoded(bytes(row[0])) for row in frame.collect()]


def _plain(value: Any) -> Any:
    kind = type(value).__name__
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.integer):
        return int(value)
    if isinstance(value, Mapping):
        return {"": "map", "cells": {name: _plain(cell) for name, cell in value.items()}}
    if kind in _SEQUENCES:
        return {"": kind, "items": [_plain(item) for item in value]}
    if _KNOWN.get(kind) is not type(value):
        raise TypeError(f"a task cannot return a {kind}")
    if isinstance(value, Exception):
        return {"": kind, "text": str(value)}
    assert is_dataclass(value)
    return {"": kind, "cells": {each.name: _plain(getattr(value, each.name)) for each in fields(value)}}


def _value(plain: Any) -> Any:
    if not isinstance(plain, dict):
        return plain
    kind = plain[""]
    if kind == "map":
        return {name: _value(cell) for name, cell in plain["cells"].items()}
    if kind in _SEQUENCES:
        return _SEQUENCES[kind](_value(item) for item in plain["items"])
    if "text" in plain:
        return _KNOWN[kind](plain["text"])
    return _KNOWN[kind](**{name: _value(cell) for name, cell in plain["cells"].items()})
