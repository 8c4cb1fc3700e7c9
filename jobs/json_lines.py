"""JSON lines: reads them into typed columns, and writes rows in the same form or in that of Spark's ``to_json``.

JSON has no instants and no NaN. Instants are ISO-8601 texts, in UTC unless they state an offset, and printed with ``Z``. The floats that
JSON lacks are read and written as the texts ``"NaN"``, ``"Infinity"`` and ``"-Infinity"``.
"""

from __future__ import annotations

import base64
import codecs
import io
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cached_property
from types import NoneType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pa_json

from windowmill.jobs.conditions.truths import instants_of, required_columns
from windowmill.jobs.instants import instant_us, instants
from windowmill.jobs.sources.text_lines import MAX_DEPTH, check_depth, deep_recursion, may_be_deep
from windowmill.jobs.sources.text_values import EXACT, ISO, MAY_BE_LONG, TextTimes, WrittenFloat, number_type
from windowmill.jobs.sources.unusable_rows import BAD_TIME, CANNOT_CAST
from windowmill.windowing.axis import from_us
from windowmill.windowing.errors import SourceSchemaError
from windowmill.windowing.spec import Pipeline

if TYPE_CHECKING:
    from windowmill.windowing.columnar.results import Column

#: Number of leading rows from which column types are guessed.
SAMPLE_ROWS = 1_000
#: Bytes, and rows, that are read at once.
_BLOCK_BYTES, _BLOCK_ROWS = 1 << 22, 1 << 14
#: The texts of the floats that JSON lacks.
SPECIAL = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
#: The first whole number that is too long for a decimal.
_TOO_LONG = 10**38
#: Matches a whole number that may be no floating-point number.
_LONG_WHOLE = re.compile(rb"(?<![0-9.])[0-9]{16,}+(?![.eE])").search
_TYPES = {"instant": pa.string(), "integer": pa.int64(), "boolean": pa.bool_(), "text": pa.string()}
_YEAR = re.compile(r"^-?\d+")
#: Rows joined at once: the text has tens of megabytes, so the allocator can reuse its memory for each block.
_WRITTEN_ROWS = 100_000
#: Range of magnitudes, [least, greatest), in which Arrow writes floats as Python does.
_SAME_FLOATS = (1e-4, 1e9)


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
    """The columns ``names`` of the objects in ``data``, of the types that ``uses`` require; ``None`` if rows must be read one by one."""
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
        if uses.get(name) is None and pa.types.is_string(column.type) and pc.any(pc.is_in(column, pa.array(list(SPECIAL)))).as_py():
            return None  # a text may be for a float that JSON lacks
        columns[name] = instants(column) if uses.get(name) == "instant" else column
    return pa.table(columns)


@dataclass(slots=True)
class RefusedRow:
    """A row that is not a usable event: its line number from 1, the reason, and the row itself."""

    line: int
    reason: str
    detail: str | None
    row: object


@dataclass(slots=True)
class JsonRows:
    """The rows of an input that could be read, in the order of the input."""

    table: pa.Table  #: The columns that the pipeline reads, n rows; instants are timestamps without zone (UTC), integer axes int64.
    #: ``lines``, ``raw``: line number from 1 and JSON object of each row; length n.
    lines: Sequence[int]
    raw: Sequence[dict[str, Any]]
    refused: list[RefusedRow] = field(default_factory=list)  #: Rows that could not be read.

    def where(self, mask: pa.BooleanArray) -> JsonRows:
        kept = np.flatnonzero(mask.to_numpy(zero_copy_only=False))
        numbers: list[int] = kept.tolist()
        raw = self.raw.take(kept) if isinstance(self.raw, JsonLines) else [self.raw[index] for index in numbers]
        return JsonRows(self.table.filter(mask), [self.lines[index] for index in numbers], raw, self.refused)


def read_rows(data: bytes, pipeline: Pipeline) -> JsonRows:
    """Parse JSON lines into the columns that ``pipeline`` reads. A column has one type, inferred from all its rows.

    A pipeline with custom windows reads all columns, since those that their functions use are unknown.
    """
    data = data.removeprefix(codecs.BOM_UTF8)
    if not data.isascii():
        data.decode()
    fields, uses = required_columns(pipeline)
    whole = any(window.reads_whole_rows for window in pipeline.windows)
    times = TextTimes.of(pipeline.source)
    table = None if whole or times != ISO else read_blocks(data, list(fields), uses)
    if table is not None:
        return JsonRows(table, range(1, table.num_rows + 1), JsonLines(data, range(table.num_rows)))
    return _read_each(io.StringIO(data.decode(), newline=None), fields, uses, times, whole=whole)


def _read_each(
    lines: Iterable[str], fields: Mapping[str, str], uses: Mapping[str, str], times: TextTimes = ISO, *, whole: bool
) -> JsonRows:
    """Read row by row: the columns that the spec's ``fields`` name, and all other columns if functions get ``whole`` rows."""
    numbers: list[int] = []
    raw: list[dict[str, Any]] = []
    refused: list[RefusedRow] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = _parsed(line)
        except (ValueError, RecursionError) as err:
            refused.append(RefusedRow(number, "bad_json", str(err) or "nested too deeply", line.rstrip("\n")))
            continue
        if isinstance(row, dict):
            numbers.append(number)
            raw.append(row)
        else:
            refused.append(RefusedRow(number, "bad_json", "expected an object of columns", row))
    present = dict.fromkeys(name for row in raw for name in row) if raw else fields
    for name, where in fields.items():
        if name not in present:
            raise SourceSchemaError(
                f"{where}: column {name!r} is in none of the {len(raw)} rows; the rows have {', '.join(sorted(present))}; correct the spec"
            )
    names = list(dict.fromkeys([*fields, *present])) if whole else list(fields)
    wrong: dict[int, tuple[str, str]] = {}
    columns = {}
    for name in names:
        values = [row.get(name) for row in raw]
        by_pattern = uses.get(name) == "instant" and times != ISO
        columns[name] = _by_pattern(name, values, times, wrong) if by_pattern else _column(name, values, uses.get(name), wrong)
    table = pa.table(columns) if columns else pa.table({"": pa.nulls(len(raw))})
    if wrong:
        good = [index for index in range(len(raw)) if index not in wrong]
        refused += [RefusedRow(numbers[index], reason, detail, raw[index]) for index, (reason, detail) in wrong.items()]
        table, numbers, raw = table.take(pa.array(good, pa.int64())), [numbers[index] for index in good], [raw[index] for index in good]
    return JsonRows(table, numbers, raw, refused)


def _parsed(line: str) -> Any:
    check_depth(line)
    if not MAY_BE_LONG(line):
        try:
            return orjson.loads(line)
        except orjson.JSONDecodeError:
            # Python's own parser takes three times as long, but reads NaN, and its messages say more.
            pass
    with deep_recursion(line.encode("utf-8", "surrogatepass")):
        return json.loads(line, parse_float=WrittenFloat)


def _column(name: str, values: list[Any], use: str | None, wrong: dict[int, tuple[str, str]], first: int = 0) -> pa.Array:
    """``values`` of the rows from ``first`` on as a column; a value that cannot be cast becomes null, with a reason in ``wrong``."""
    kinds = {float if each is WrittenFloat else each for each in set(map(type, values))} - {NoneType}
    # Truth counts as 0 and 1 where numbers do; among numbers it is no number.
    use = "boolean" if use == "number" and kinds == {bool} else use or _inferred(values, kinds)
    if len(kinds) == 1 and (column := _of_one_type(values, kinds.pop(), use)) is not None:
        return column
    if use == "instant" and len(values) > _BLOCK_ROWS:
        # Arrow reads instants ten times faster than Python: only blocks with an unusual instant go to Python.
        begins = range(0, len(values), _BLOCK_ROWS)
        return pa.concat_arrays([_column(name, values[begin : begin + _BLOCK_ROWS], use, wrong, begin) for begin in begins])
    cast, kind, wanted = _CASTS[use]
    cells: list[Any] = []
    for index, value in enumerate(values, first):
        try:
            cells.append(None if value is None else cast(value))
        except (ValueError, OverflowError):
            cells.append(None)
            reason = BAD_TIME if use in ("instant", "integer") else CANNOT_CAST
            wrong.setdefault(index, (reason, f"{name}: got {json.dumps(value)}; expected {wanted}"))
    return _numbers(cells) if kind is None else pa.array(cells, kind)


def _numbers(cells: list[int | float | None]) -> pa.Array:
    """Numbers in the type in which whole ones stay as they are."""
    if not any(isinstance(cell, int) and abs(cell) > EXACT for cell in cells):
        whole = not any(isinstance(cell, float) for cell in cells)
        return pa.array(cells, pa.int64()) if whole else pa.array([None if cell is None else float(cell) for cell in cells], pa.float64())
    kind = number_type({repr(cell) for cell in cells if cell is not None})
    if pa.types.is_decimal(kind):
        return pa.array([None if cell is None else Decimal(repr(cell)) for cell in cells], kind)
    return pa.array(cells, pa.int64()) if pa.types.is_int64(kind) else pa.array([None if cell is None else float(cell) for cell in cells])


def _by_pattern(name: str, values: list[Any], times: TextTimes, wrong: dict[int, tuple[str, str]]) -> pa.Array:
    """``values`` as instants by the patterns of the source's options; null, with a reason in ``wrong``, for one that is none."""
    found = times.on_axis(pa.array([value if isinstance(value, str) else None for value in values], pa.string()))
    for index, (value, is_read) in enumerate(zip(values, found.is_valid().to_pylist(), strict=True)):
        if value is not None and not is_read:
            expected = " or ".join(filter(None, (times.timestamp, times.date)))
            wrong.setdefault(index, (BAD_TIME, f"{name}: got {json.dumps(value)}; expected a text such as {expected}"))
    return found.cast(pa.timestamp("us"))


def _of_one_type(values: list[Any], type_: type, use: str) -> pa.Array | None:
    """The column, converted as a whole if all values have the type that ``use`` requires; ``None`` if each must be cast by itself."""
    wanted = _KINDS.get((use, type_))
    if wanted is None:
        return None
    try:
        column = pa.array(values, wanted)
        return instants(column) if use == "instant" else column
    except (pa.ArrowInvalid, OverflowError, UnicodeEncodeError):
        return None


def _inferred(values: list[Any], kinds: set[type]) -> str:
    if kinds == {bool}:
        return "boolean"
    numbers = bool(kinds & {int, float}) and kinds <= {int, float, str}
    if numbers and any(isinstance(value, int) and abs(value) >= _TOO_LONG for value in values):
        return "text"
    if numbers and all(value in SPECIAL for value in values if isinstance(value, str)):
        return "number"
    return "text"


def _instant(value: Any) -> int:
    # A bare number could count seconds, milliseconds or microseconds: time.unit must say which.
    if not isinstance(value, str):
        raise ValueError
    return instant_us(value)


def _integer(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value) or not -(2**63) <= value < 2**63:
        raise ValueError
    return int(value)


def _number(value: Any) -> int | float:
    if isinstance(value, str) and value in SPECIAL:
        return SPECIAL[value]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError
    if isinstance(value, int) and abs(value) >= _TOO_LONG:
        raise ValueError
    return value


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError
    return value


def _text(value: Any) -> str:
    text = (
        value
        if isinstance(value, str)
        else repr(value)
        if isinstance(value, WrittenFloat)
        else json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    )
    # JSON can contain half a surrogate pair, which is not a character: encoding it raises an error.
    text.encode()
    return text


#: For each use of a column: the cast of a value, the Arrow type (null: that of :func:`_numbers`), the wording in messages.
_CASTS: Mapping[str, tuple[Callable[[Any], Any], pa.DataType | None, str]] = {
    "instant": (_instant, pa.timestamp("us"), "an ISO-8601 instant such as 2013-01-01T00:00:00Z; for numbers, set time.unit"),
    "integer": (_integer, pa.int64(), "a whole number, as time.unit says"),
    "number": (_number, None, "a number"),
    "boolean": (_boolean, pa.bool_(), "true or false"),
    "text": (_text, pa.string(), "a text"),
}

#: Arrow type of a column by its use, if all its values have one Python type.
_KINDS: Mapping[tuple[str, type], pa.DataType] = {
    ("instant", str): pa.string(),
    ("integer", int): pa.int64(),
    ("number", int): pa.int64(),
    ("number", float): pa.float64(),
    ("boolean", bool): pa.bool_(),
    ("text", str): pa.string(),
}


def refused_lines(refused: Iterable[RefusedRow]) -> Iterator[str]:
    for row in refused:
        shown = {"line": row.line, "reason": row.reason, "detail": row.detail, "row": plain(row.row, False)}
        yield json.dumps({name: value for name, value in shown.items() if name != "detail" or value}, ensure_ascii=False)


def plain(value: Any, instant: bool) -> Any:
    """``value`` in the types of JSON: instants, and floats that JSON lacks, as texts."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, list | tuple):
        return [plain(item, instant) for item in value]
    if isinstance(value, dict):
        return {name: plain(item, instant) for name, item in value.items()}
    if instant and value is not None:
        return iso(value)
    return value


def iso(t_us: int) -> str:
    """The instant ``t_us`` in ISO-8601; microseconds only if they are not zero.

    >>> iso(0)
    '1970-01-01T00:00:00Z'
    """
    return from_us(t_us).isoformat().replace("+00:00", "Z")


def has_spark_json(kinds: Iterable[pa.DataType]) -> bool:
    """Whether :func:`to_json` takes columns of these types."""
    return all(map(_has_spark_json, kinds))


def _has_spark_json(kind: pa.DataType) -> bool:
    if pa.types.is_nested(kind):
        known = pa.types.is_list(kind) or pa.types.is_struct(kind) or pa.types.is_map(kind)
        return known and all(_has_spark_json(kind.field(at).type) for at in range(kind.num_fields))
    return pa.types.is_timestamp(kind) or pa.types.is_date32(kind) or any(holds(kind) for holds, _ in _SPARK_FORMS)


def to_json(rows: pa.Table) -> list[str]:
    """Each row as a JSON object, nulls included."""
    pieces = []
    for name in rows.column_names:
        lead = json.dumps(name, ensure_ascii=False)
        pieces.append([f"{lead}:{text}" for text in _spark_texts(rows.column(name))])
    return ["{" + ",".join(row) + "}" for row in zip(*pieces, strict=True)]


def _spark_texts(column: pa.ChunkedArray) -> list[str]:
    kind = column.type
    if pa.types.is_nested(kind):
        return _spark_nested(column.combine_chunks())
    if pa.types.is_timestamp(kind):
        millis = pc.fill_null(column.cast(pa.int64()), 0).to_numpy() // 1_000  # Spark cuts off microseconds
        return _spark_instants(millis.view("M8[ms]"), column, "Z" if kind.tz else "")
    if pa.types.is_date32(kind):
        days = pc.fill_null(column.cast(pa.int32()), 0).to_numpy().astype(np.int64)
        return _spark_instants(days.view("M8[D]"), column, "")
    if pa.types.is_string(kind):
        column = column.cast(pa.binary())  # Spark takes bytes that are not UTF-8 for U+FFFD
    text = next(text for holds, text in _SPARK_FORMS if holds(kind))
    return ["null" if value is None else text(value) for value in column.to_pylist()]


def _spark_nested(values: pa.Array) -> list[str]:
    if pa.types.is_struct(values.type):
        pieces = []
        for at, inner in enumerate(values.type):
            own = _spark_texts(pa.chunked_array([pc.struct_field(values, at)]))
            pieces.append([f"{json.dumps(inner.name, ensure_ascii=False)}:{text}" for text in own])
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


def _spark_instants(values: npt.NDArray[np.datetime64], column: pa.ChunkedArray, zone: str) -> list[str]:
    return [
        f'"{_YEAR.sub(_signed, text)}{zone}"' if known else "null"
        for text, known in zip(np.datetime_as_string(values).tolist(), column.is_valid().to_pylist(), strict=True)
    ]


def _signed(year: re.Match[str]) -> str:
    """The year as Java writes it: at least four digits, and a sign for more, and before the year 0."""
    number = int(year[0])
    return f"{number:+05d}" if not 0 <= number <= 9_999 else f"{number:04d}"


def _spark_number(value: float | np.floating[Any]) -> str:
    if np.isfinite(value):
        return str(value)
    return '"NaN"' if np.isnan(value) else f'"{"-" if value < 0 else ""}Infinity"'


def _spark_text(value: bytes) -> str:
    return json.dumps(value.decode(errors="replace"), ensure_ascii=False)


_SPARK_FORMS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[Any], str]], ...] = (
    (pa.types.is_integer, str),
    (pa.types.is_boolean, lambda value: "true" if value else "false"),
    (pa.types.is_string, _spark_text),
    (pa.types.is_float64, _spark_number),
    (pa.types.is_float32, lambda value: _spark_number(np.float32(value))),  # the digits that identify it among numbers of 32 bits
    (pa.types.is_decimal, str),
    (pa.types.is_binary, lambda value: f'"{base64.b64encode(value).decode()}"'),
)


def result_lines(rows: Sequence[Mapping[str, Any]], pipeline: Pipeline, instants: Iterable[str] = ()) -> Iterator[bytes | pa.Buffer]:
    """Result rows as JSON lines, in pieces to write one after another. Instants in ``rows`` are microseconds.

    ``instants`` are columns of these that steps make.
    """
    columns_of_instants = instants_of(pipeline).union(instants)
    stamped = {name for name in pipeline.keys if name in columns_of_instants}
    stamped |= {name for name, spec in pipeline.aggregates.items() if spec.declaration.picks and spec.columns[-1] in columns_of_instants}
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
    for begin in range(0, n_rows, _WRITTEN_ROWS):
        pieces: list[Any] = []
        for name, column in columns.items():
            lead = ("{" if not pieces else ", ") + json.dumps(name, ensure_ascii=False) + ": "
            pieces += [pa.scalar(lead), _texts(column[begin : begin + _WRITTEN_ROWS], name in stamped)]
        lines = pc.binary_join_element_wise(*pieces, pa.scalar("}\n"), pa.scalar(""))
        # The array's texts are contiguous in its buffer, which is the output.
        _, ends, texts = lines.buffers()
        yield texts.slice(0, int(np.frombuffer(ends, np.int32)[len(lines)]))


def _texts(column: Column, instant: bool) -> pa.Array:
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
        whole, alike = values == np.floor(values), (size >= _SAME_FLOATS[0]) & (size < _SAME_FLOATS[1])
        unusual = ~alike & ~((values == 0.0) & ~np.signbit(values))
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
