"""Fast reader of JSON lines: Arrow's block reader, for input with one object per line and one plain type per column.

The row-by-row reader in :mod:`windowmill.jobs.json_lines.read` takes all other input, such as a broken line, a mixed column or an instant
in an unusual form. Both give the same columns.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pa_json

from windowmill.jobs.instants import instants
from windowmill.jobs.sources.text_lines import MAX_DEPTH, may_be_deep
from windowmill.jobs.sources.text_values import EXACT

#: Number of leading rows from which column types are guessed.
SAMPLE_ROWS = 1_000
_BLOCK_BYTES = 1 << 22
#: Matches a whole number that may be no floating-point number.
_LONG_WHOLE = re.compile(rb"(?<![0-9.])[0-9]{16,}+(?![.eE])").search
_TYPES = {"instant": pa.string(), "integer": pa.int64(), "boolean": pa.bool_(), "text": pa.string()}


class JsonLines(Sequence[Any]):
    """The JSON values of the lines ``numbers`` (from 0) of ``data``, found and parsed on access."""

    def __init__(self, data: bytes, numbers: Sequence[int] | np.ndarray) -> None:
        self._data, self._numbers = data, numbers

    @cached_property
    def _begins(self) -> np.ndarray:
        ends = np.flatnonzero(np.frombuffer(self._data, np.uint8) == ord("\n"))
        return np.concatenate(([0], ends + 1))

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, index: Any) -> Any:
        begin = int(self._begins[self._numbers[index]])
        end = self._data.find(b"\n", begin)
        return json.loads(self._data[begin : end if end >= 0 else len(self._data)])

    def __iter__(self) -> Iterator[Any]:
        return (self[index] for index in range(len(self)))

    def take(self, kept: np.ndarray) -> JsonLines:
        return JsonLines(self._data, np.asarray(self._numbers)[kept])


def read_blocks(data: bytes, names: Sequence[str], uses: Mapping[str, str]) -> pa.Table | None:
    """The columns ``names`` of the objects in ``data``, one row per line; ``None`` if the input needs the row-by-row reader.

    Parameters
    ----------
    uses
        Required type of each column that has one: instant, integer, number or boolean.
    """
    guessed = _guess(data, names, uses)
    if guessed is None:
        return None
    lines = data.count(b"\n") + (not data.endswith(b"\n"))
    # Each line begins with an object. That none has two follows from the count of rows that Arrow finds.
    if data.count(b"\n{") + data.startswith(b"{") != lines:
        return None
    if may_be_deep(data, MAX_DEPTH + lines - 1) and any(map(may_be_deep, data.split(b"\n"))):
        return None
    required = {name: kind for name, kind in guessed.items() if uses.get(name) != "number"}
    for schema, others in ((guessed, "ignore"), (required, "infer")):
        parsing = pa_json.ParseOptions(explicit_schema=pa.schema(list(schema.items())), unexpected_field_behavior=others)
        try:
            table = pa_json.read_json(pa.BufferReader(data), pa_json.ReadOptions(block_size=_BLOCK_BYTES), parsing)
            return _typed(table, data, names, uses, lines)
        except pa.ArrowInvalid:
            # A column whose first rows hold integers may hold floats later; the second pass lets Arrow infer its type.
            continue
    return None


def _guess(data: bytes, names: Sequence[str], uses: Mapping[str, str]) -> dict[str, pa.DataType] | None:
    rows: list[dict[str, Any]] = []
    begin = 0
    while len(rows) < SAMPLE_ROWS and begin < len(data):
        end = data.find(b"\n", begin)
        end = len(data) if end < 0 else end
        try:
            row = json.loads(data[begin:end])
        except (ValueError, RecursionError):
            return None
        if not isinstance(row, dict):
            return None
        rows.append(row)
        begin = end + 1
    guessed: dict[str, pa.DataType] = {}
    for name in names:
        kinds = {type(row[name]) for row in rows if row.get(name) is not None}
        if uses.get(name, "number") != "number":
            guessed[name] = _TYPES[uses[name]]
        elif kinds and kinds <= {int, float}:
            guessed[name] = pa.float64() if float in kinds else pa.int64()
        elif kinds in ({str}, {bool}) and name not in uses:
            guessed[name] = pa.string() if str in kinds else pa.bool_()
        else:
            return None
    return guessed


def _typed(table: pa.Table, data: bytes, names: Sequence[str], uses: Mapping[str, str], lines: int) -> pa.Table | None:
    """The columns ``names`` of ``table`` in their final types; ``None`` if the input needs the row-by-row reader."""
    if table.num_rows != lines:
        return None
    columns = {}
    for name in names:
        column = table.column(name).combine_chunks()
        if column.null_count == len(column):
            return None
        if uses.get(name) == "number" and not (pa.types.is_int64(column.type) or pa.types.is_float64(column.type)):
            return None
        if pa.types.is_float64(column.type) and pc.max(pc.abs(column)).as_py() >= EXACT and _LONG_WHOLE(data):
            return None  # Arrow makes a float of a whole number among floats, and of one beyond 64 bits
        if uses.get(name) is None and pa.types.is_string(column.type) and _may_be_numbers(column):
            return None
        columns[name] = instants(column) if uses.get(name) == "instant" else column
    return pa.table(columns)


def _may_be_numbers(column: pa.Array) -> bool:
    """Whether the column holds a text for a float that JSON lacks."""
    return bool(pc.any(pc.is_in(column, pa.array(["NaN", "Infinity", "-Infinity"]))).as_py())
