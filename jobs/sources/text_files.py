"""Reads CSV files and JSON lines into typed columns: the same function in this process and in tasks of Spark.

A value that its column's type does not take becomes null, as in Spark's PERMISSIVE mode, and so does each column of a line that is no JSON
object.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import orjson
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.json as pa_json

from windowmill.checkpoints.stores import filesystem_of
from windowmill.jobs.sources.plain_files import constant
from windowmill.jobs.sources.text_times import ISO, TextTimes
from windowmill.jobs.sources.text_values import parsed
from windowmill.windowing.errors import SourceError, first_line

if TYPE_CHECKING:
    from windowmill.jobs.sources.base import PlainFile
    from windowmill.jobs.sources.plain_files import Form

_BLOCK_BYTES = 4 << 20
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class TextForm:
    """How the text files of a source are read; the names are those of Spark's options.

    Attributes
    ----------
    columns
        Columns of the files in their order, if they have no header.
    times
        What texts are dates and instants.
    """

    format: Literal["csv", "json"]
    header: bool = False
    separator: str = ","
    quote: str = '"'
    escape: str = ""
    null: str = ""
    multi_line: bool = False
    columns: tuple[str, ...] = ()
    times: TextTimes = ISO

    def batches(self, file: PlainFile, form: Form, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The ``columns`` of all rows of ``file``, in order."""
        return OpenText(file, form).batches(columns)


class OpenText:
    """A CSV file, or one of JSON lines.

    Raises
    ------
    SourceError
        If it is not UTF-8, or a CSV file has two columns of one name.
    """

    def __init__(self, file: PlainFile, form: Form) -> None:
        assert isinstance(file.text, TextForm)
        self._file, self._form, self._text = file, form, file.text

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The ``columns`` of all rows, in order."""
        stored = [name for name in columns if name in self._file.names]
        for cells, n_rows in self.texts(stored):
            own = dict(zip(stored, cells, strict=True))
            yield pa.record_batch(
                [
                    parsed(own[name], self._form.types[name], self._text.times)
                    if name in own
                    else pa.repeat(constant(self._file.constants.get(name), self._form.types[name]), n_rows)
                    for name in columns
                ],
                names=list(columns),
            )

    def texts(self, columns: Sequence[str]) -> Iterator[tuple[list[pa.Array], int]]:
        """The ``columns`` of successive rows before their values are parsed, and the number of these rows."""
        try:
            yield from _csv(self._file.path, self._text, columns) if self._text.format == "csv" else self._json(columns)
        except (UnicodeDecodeError, pa.ArrowInvalid, csv.Error) as err:
            raise SourceError(
                f"source file {self._file.path}: cannot be read as {self._text.format} in UTF-8 ({first_line(err)}); correct or remove it, "
                "or correct source.options"
            ) from err

    def _json(self, columns: Sequence[str]) -> Iterator[tuple[list[pa.Array], int]]:
        kinds = {name: self._form.types.get(name, pa.string()) for name in columns}
        for block in _lines(self._file.path):
            yield _parsed_at_once(block, kinds) or _parsed_by_line(block, kinds)


def _csv(path: str, form: TextForm, columns: Sequence[str]) -> Iterator[tuple[list[pa.Array], int]]:
    names, skipped = (csv_header(path, form), 1) if form.header else (list(form.columns), 0)
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise SourceError(f"source file {path}: two of its columns are named {twice!r}; rename one")
    odd: list[str] = []

    def keep(row: pa_csv.InvalidRow) -> str:
        odd.append(row.text)
        return "skip"

    parse = pa_csv.ParseOptions(
        delimiter=form.separator,
        quote_char=form.quote or False,
        escape_char=form.escape or False,
        newlines_in_values=form.multi_line,
        invalid_row_handler=keep,
    )
    convert = pa_csv.ConvertOptions(
        column_types=dict.fromkeys(names, pa.string()),
        null_values=[form.null],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
        include_columns=[name for name in columns if name in names] or names[:1],
    )
    read = pa_csv.ReadOptions(use_threads=False, block_size=_BLOCK_BYTES, column_names=names, skip_rows=skipped)
    if not names:
        return
    with _stream(path) as stream:
        try:
            reader = pa_csv.open_csv(stream, read, parse, convert)
        except pa.ArrowInvalid as err:
            if "Empty CSV" not in str(err):
                raise
            reader = iter(())
        for batch in reader:
            yield [batch.column(name) if name in names else pa.nulls(batch.num_rows, pa.string()) for name in columns], batch.num_rows
    if odd:
        yield _padded(odd, names, columns, form), len(odd)


def _padded(lines: Sequence[str], names: Sequence[str], columns: Sequence[str], form: TextForm) -> list[pa.Array]:
    """Rows with too few or too many fields: fields that are missing are null, and surplus ones are left out."""
    quoting = {"quotechar": form.quote} if form.quote else {"quoting": csv.QUOTE_NONE}
    rows = list(csv.reader(lines, delimiter=form.separator, escapechar=form.escape or None, **quoting))
    places = {name: place for place, name in enumerate(names)}

    def cell(row: list[str], place: int | None) -> str | None:
        return None if place is None or place >= len(row) or row[place] == form.null else row[place]

    return [pa.array([cell(row, places.get(name)) for row in rows], pa.string()) for name in columns]


def csv_header(path: str, form: TextForm) -> list[str]:
    """The fields of the first line of a CSV file; none if it is empty."""
    with _stream(path) as stream:
        line = next(_split(stream), b"").split(b"\n")[0].removeprefix(_BYTE_ORDER_MARK).decode().rstrip("\r")
    quoting = {"quotechar": form.quote} if form.quote else {"quoting": csv.QUOTE_NONE}
    return next(csv.reader([line], delimiter=form.separator, escapechar=form.escape or None, **quoting), [])


def first_lines(path: str, most: int) -> list[str]:
    """The first lines of a text file, without what ends them."""
    with _stream(path) as stream:
        block = next(_split(stream), b"").removeprefix(_BYTE_ORDER_MARK)
    return block.decode(errors="replace").splitlines()[:most]


def _stream(path: str) -> Any:
    store, own = filesystem_of(path)
    return store.open_input_stream(own)  # decompresses .gz, .bz2 and the like by the path


def _split(stream: Any) -> Iterator[bytes]:
    """Blocks of whole lines."""
    rest = b""
    while block := stream.read(_BLOCK_BYTES):
        end = block.rfind(b"\n") + 1
        if not end:
            rest += block
            continue
        yield rest + block[:end]
        rest = block[end:]
    if rest:
        yield rest


def _lines(path: str) -> Iterator[bytes]:
    with _stream(path) as stream:
        for number, block in enumerate(_split(stream)):
            yield block if number else block.removeprefix(_BYTE_ORDER_MARK)


def _parsed_at_once(block: bytes, kinds: dict[str, pa.DataType]) -> tuple[list[pa.Array], int] | None:
    """Columns of JSON lines by Arrow; null if a line is no object, or a value is of another kind than its column."""
    if not kinds or not block.strip():
        return None
    schema = pa.schema([(name, _arrow_kind(kind)) for name, kind in kinds.items()])
    try:
        table = pa_json.read_json(
            pa.BufferReader(block),
            pa_json.ReadOptions(use_threads=False, block_size=len(block) + 1),
            pa_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
        )
    except pa.ArrowInvalid:
        return None
    # Arrow takes several objects in one line.
    if table.num_rows != sum(1 for line in block.split(b"\n") if line.strip()):
        return None
    return [table.column(name).combine_chunks() for name in kinds], table.num_rows


def _arrow_kind(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_integer(kind):
        return pa.int64()
    if pa.types.is_floating(kind):
        return pa.float64()
    return kind if pa.types.is_boolean(kind) else pa.string()


def _parsed_by_line(block: bytes, kinds: dict[str, pa.DataType]) -> tuple[list[pa.Array], int]:
    rows = [json_object(line) or {} for line in block.split(b"\n") if line.strip()]
    return _texts_of(rows, kinds), len(rows)


def _texts_of(rows: Sequence[dict[str, Any]], kinds: dict[str, pa.DataType]) -> list[pa.Array]:
    text_of = {name: _text_of(kind) for name, kind in kinds.items()}
    return [pa.array([None if (v := row.get(name)) is None else text_of[name](v) for row in rows], pa.string()) for name in kinds]


def json_columns(values: Sequence[bytes | None], kinds: dict[str, pa.DataType]) -> tuple[list[pa.Array], pa.Array]:
    """The columns of values that are a JSON object each, before their values are parsed, and the texts of those that are none.

    These are null in all columns. The text of a missing value is empty.
    """
    if kinds and all(values) and not any(b"\n" in value for value in values if value):
        parsed_at_once = _parsed_at_once(b"\n".join(value for value in values if value), kinds)
        if parsed_at_once is not None and parsed_at_once[1] == len(values):
            return parsed_at_once[0], pa.nulls(len(values), pa.string())
    rows = [json_object(value) if value else None for value in values]
    corrupt = [(value or b"").decode(errors="replace") if row is None else None for row, value in zip(rows, values, strict=True)]
    return _texts_of([row or {} for row in rows], kinds), pa.array(corrupt, pa.string())


def json_rows(path: str) -> Iterator[dict[str, Any]]:
    """The objects of a file of JSON lines; an empty one for a line that is none."""
    for block in _lines(path):
        yield from (json_object(line) or {} for line in block.split(b"\n") if line.strip())


def json_object(line: bytes) -> dict[str, Any] | None:
    """The JSON object of a line; null if it is none."""
    try:
        row = orjson.loads(line)
    except orjson.JSONDecodeError:
        try:
            row = json.loads(line)  # takes NaN and Infinity, too
        except ValueError:
            return None
    return row if isinstance(row, dict) else None


def _text_of(kind: pa.DataType) -> Callable[[Any], str | None]:
    """What makes a text of a JSON value, for :func:`.parsed`; null for a value that is not of this kind."""
    if pa.types.is_string(kind):
        return lambda value: value if isinstance(value, str) else json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    if pa.types.is_boolean(kind):
        return lambda value: str(value).lower() if isinstance(value, bool) else None
    if pa.types.is_integer(kind):
        return lambda value: str(value) if isinstance(value, int) and not isinstance(value, bool) else None
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return _number
    return lambda value: value if isinstance(value, str) else None


def _number(value: Any) -> str | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value if isinstance(value, str) else repr(value)
