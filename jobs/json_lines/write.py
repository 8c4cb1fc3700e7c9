"""Writes rows as JSON lines, and as JSON in the form that Spark's ``to_json`` gives them."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from windowmill.jobs.conditions.truths import instants_of
from windowmill.jobs.json_lines.read import plain
from windowmill.windowing.spec import Pipeline

if TYPE_CHECKING:
    from windowmill.windowing.columnar.results import Column

_YEAR = re.compile(r"^-?\d+")
#: Rows joined at once: the text has tens of megabytes, so the allocator can reuse its memory for each block.
_BLOCK_ROWS = 100_000
#: Range of magnitudes, [least, greatest), of which Arrow writes floats as Python does.
_PLAIN = (1e-4, 1e9)


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
        pieces.append([f"{lead}:{text}" for text in _spark_texts(rows.column(name))])
    return ["{" + ",".join(row) + "}" for row in zip(*pieces, strict=True)]


def _spark_texts(column: pa.ChunkedArray) -> list[str]:
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
            own = _spark_texts(pa.chunked_array([pc.struct_field(values, at)]))
            pieces.append([f"{json.dumps(field.name, ensure_ascii=False)}:{text}" for text in own])
        rows = ["{" + ",".join(row) + "}" for row in zip(*pieces, strict=True)] if pieces else ["{}"] * len(values)
        return [row if known else "null" for row, known in zip(rows, values.is_valid().to_pylist(), strict=True)]
    offsets = values.offsets.to_numpy()
    children = [values.keys, values.items] if pa.types.is_map(values.type) else [values.values]
    inner = [_spark_texts(pa.chunked_array([child[offsets[0] : offsets[-1]]])) for child in children]
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


def result_lines(rows: Sequence[Mapping[str, Any]], pipeline: Pipeline) -> Iterator[bytes | pa.Buffer]:
    """Result rows as JSON lines, in pieces to write one after another. Instants in ``rows`` are microseconds."""
    instants = instants_of(pipeline)
    stamped = {name for name in pipeline.keys if name in instants}
    stamped |= {name for name, spec in pipeline.aggregates.items() if spec.declaration.picks and spec.columns[-1] in instants}
    if not pipeline.time.integer_axis:
        stamped |= {"window_start", "window_end"}
    columns: Mapping[str, Column] | None = getattr(rows, "columns", None)
    if columns is not None:
        yield from _by_column(columns, len(rows), stamped)
        return
    for row in rows:
        members = (f"{json.dumps(name, ensure_ascii=False)}: {_json(value, name in stamped)}" for name, value in row.items())
        yield ("{" + ", ".join(members) + "}\n").encode()


def _by_column(columns: Mapping[str, Column], n_rows: int, stamped: set[str]) -> Iterator[pa.Buffer]:
    for begin in range(0, n_rows, _BLOCK_ROWS):
        pieces: list[Any] = []
        for name, column in columns.items():
            lead = ("{" if not pieces else ", ") + json.dumps(name, ensure_ascii=False) + ": "
            pieces += [pa.scalar(lead), _texts(column[begin : begin + _BLOCK_ROWS], name in stamped)]
        lines = pc.binary_join_element_wise(*pieces, pa.scalar("}\n"), pa.scalar(""))
        # The array's texts are contiguous in its buffer, which is the output.
        _, ends, texts = lines.buffers()
        yield texts.slice(0, int(np.frombuffer(ends, np.int32)[len(lines)]))


def _texts(column: Column, instant: bool) -> pa.Array:
    """Each value as JSON text."""
    if isinstance(column, list):
        return _each(column, instant)
    kind = column.type
    if instant and pa.types.is_integer(kind):
        # Many rows share a window's bounds, and formatting an instant takes longer than a dictionary lookup.
        known = column.dictionary_encode()
        return _or_null(_stamps(known.dictionary).take(known.indices))
    if pa.types.is_integer(kind):
        return _or_null(column.cast(pa.string()))
    if pa.types.is_boolean(kind):
        return _or_null(pc.if_else(column, "true", "false"))
    if pa.types.is_floating(kind):
        return _or_null(_floats(column))
    if pa.types.is_string(kind):
        known = column.dictionary_encode()
        return _or_null(pa.array([_json(value, False) for value in known.dictionary.to_pylist()], pa.string()).take(known.indices))
    return _each(column.to_pylist(), instant)


def _each(values: list[Any], instant: bool) -> pa.Array:
    return pa.array([_json(value, instant) for value in values], pa.string())


def _json(value: Any, instant: bool) -> str:
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, list) and any(isinstance(each, Decimal) for each in value):
        return f"[{', '.join(_json(each, instant) for each in value)}]"
    return json.dumps(plain(value, instant), ensure_ascii=False)


def _or_null(texts: pa.Array) -> pa.Array:
    return pc.fill_null(texts, "null") if texts.null_count else texts


def _floats(column: pa.Array) -> pa.Array:
    values = np.asarray(pc.fill_null(column, 1.5).to_numpy(zero_copy_only=False))
    texts, size = column.cast(pa.string()), np.abs(values)
    with np.errstate(invalid="ignore"):
        whole, unusual = values == np.floor(values), ~((size >= _PLAIN[0]) & (size < _PLAIN[1])) & ~((values == 0.0) & ~np.signbit(values))
    if whole.any():
        texts = pc.if_else(pa.array(whole & ~unusual), pc.binary_join_element_wise(texts, ".0", ""), texts)
    if unusual.any():
        written = pa.array([_json(float(value), False) for value in values[unusual]], pa.string())
        texts = pc.replace_with_mask(texts, pa.array(unusual), written)
    return texts


def _stamps(column: pa.Array) -> pa.Array:
    """:func:`.iso` of each value. Arrow prints instants as Python does only for years that Python's dates have."""
    seconds = pc.divide(column, 1_000_000)
    fine = column.cast(pa.timestamp("us")).cast(pa.string())
    if pc.all(pc.equal(pc.multiply(seconds, 1_000_000), column)).as_py():
        texts = seconds.cast(pa.timestamp("s")).cast(pa.string())
    else:
        exact = pc.equal(pc.multiply(seconds, 1_000_000), column)
        texts = pc.if_else(exact, pc.utf8_slice_codeunits(fine, 0, -7), fine)
    return pc.binary_join_element_wise(pa.scalar('"'), pc.binary_replace_slice(texts, 10, 11, "T"), pa.scalar('Z"'), pa.scalar(""))
