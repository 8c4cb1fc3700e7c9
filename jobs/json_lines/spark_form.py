"""Rows as JSON in the form that Spark's ``to_json`` gives them; a number may have other digits of the same value."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

_YEAR = re.compile(r"^-?\d+")


def takes(kinds: Iterable[pa.DataType]) -> bool:
    """Whether :func:`to_json` takes columns of these types."""
    return all(map(_takes, kinds))


def _takes(kind: pa.DataType) -> bool:
    if pa.types.is_nested(kind):
        known = pa.types.is_list(kind) or pa.types.is_struct(kind) or pa.types.is_map(kind)
        return known and all(_takes(kind.field(at).type) for at in range(kind.num_fields))
    return pa.types.is_timestamp(kind) or pa.types.is_date32(kind) or any(holds(kind) for holds, _ in _FORMS)


def to_json(rows: pa.Table) -> list[str]:
    """Each row as a JSON object, nulls included."""
    pieces = []
    for name in rows.column_names:
        lead = json.dumps(name, ensure_ascii=False)
        pieces.append([f"{lead}:{text}" for text in _texts(rows.column(name))])
    return ["{" + ",".join(row) + "}" for row in zip(*pieces, strict=True)]


def _texts(column: pa.ChunkedArray) -> list[str]:
    """Each value as JSON."""
    kind = column.type
    if pa.types.is_nested(kind):
        return _nested(column.combine_chunks())
    if pa.types.is_timestamp(kind):
        millis = pc.fill_null(column.cast(pa.int64()), 0).to_numpy() // 1_000  # Spark cuts off microseconds
        return _instants(millis.view("M8[ms]"), column, "Z" if kind.tz else "")
    if pa.types.is_date32(kind):
        days = pc.fill_null(column.cast(pa.int32()), 0).to_numpy().astype(np.int64)
        return _instants(days.view("M8[D]"), column, "")
    if pa.types.is_string(kind):
        column = column.cast(pa.binary())  # Spark takes bytes that are not UTF-8 for U+FFFD
    text = next(text for holds, text in _FORMS if holds(kind))
    return ["null" if value is None else text(value) for value in column.to_pylist()]


def _nested(values: pa.Array) -> list[str]:
    if pa.types.is_struct(values.type):
        pieces = []
        for at, field in enumerate(values.type):
            own = _texts(pa.chunked_array([pc.struct_field(values, at)]))
            pieces.append([f"{json.dumps(field.name, ensure_ascii=False)}:{text}" for text in own])
        rows = ["{" + ",".join(row) + "}" for row in zip(*pieces, strict=True)] if pieces else ["{}"] * len(values)
        return [row if known else "null" for row, known in zip(rows, values.is_valid().to_pylist(), strict=True)]
    offsets = values.offsets.to_numpy()
    children = [values.keys, values.items] if pa.types.is_map(values.type) else [values.values]
    inner = [_texts(pa.chunked_array([child[offsets[0] : offsets[-1]]])) for child in children]
    if len(inner) > 1:
        # A key is a text, whatever its type.
        texts, ends = [f"{key if key.startswith(chr(34)) else json.dumps(key)}:{item}" for key, item in zip(*inner, strict=True)], "{}"
    else:
        texts, ends = inner[0], "[]"
    return [
        f"{ends[0]}{','.join(texts[begin:end])}{ends[1]}" if known else "null"
        for begin, end, known in zip(offsets[:-1] - offsets[0], offsets[1:] - offsets[0], values.is_valid().to_pylist(), strict=True)
    ]


def _instants(values: npt.NDArray[np.datetime64], column: pa.ChunkedArray, zone: str) -> list[str]:
    return [
        f'"{_YEAR.sub(_signed, text)}{zone}"' if known else "null"
        for text, known in zip(np.datetime_as_string(values).tolist(), column.is_valid().to_pylist(), strict=True)
    ]


def _signed(year: re.Match[str]) -> str:
    """The year as Java writes it: at least four digits, and a sign for more, and before the year 0."""
    number = int(year[0])
    return f"{number:+05d}" if not 0 <= number <= 9_999 else f"{number:04d}"


def _number(value: float | np.floating[Any]) -> str:
    if np.isfinite(value):
        return str(value)
    return '"NaN"' if np.isnan(value) else f'"{"-" if value < 0 else ""}Infinity"'


def _text(value: bytes) -> str:
    return json.dumps(value.decode(errors="replace"), ensure_ascii=False)


_FORMS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[Any], str]], ...] = (
    (pa.types.is_integer, str),
    (pa.types.is_boolean, lambda value: "true" if value else "false"),
    (pa.types.is_string, _text),
    (pa.types.is_float64, _number),
    (pa.types.is_float32, lambda value: _number(np.float32(value))),  # the digits that identify it among numbers of 32 bits
    (pa.types.is_decimal, str),
    (pa.types.is_binary, lambda value: f'"{base64.b64encode(value).decode()}"'),
)
