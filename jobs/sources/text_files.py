"""Reads CSV files and JSON lines into typed columns: the same function in this process and in tasks of Spark.

Each line is a row. A line that cannot be read gets its error, in a column of its own, for the quarantine. Lines of CSV are parsed as
Spark's reader does, with a quote inside quotes doubled unless another character escapes it: by Arrow those whose quotes are regular and
that have a field for each column, the others one by one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.json as pa_json

from windowmill.jobs.sources.options import LOGICAL, lacks_column
from windowmill.jobs.sources.plain_files import constant
from windowmill.jobs.sources.text_lines import (
    BLANK,
    DECODER,
    MAX_DEPTH,
    Lines,
    after_spaces,
    check_depth,
    count_lines,
    deep_recursion,
    lines_of,
    may_be_deep,
    objects_of,
    records_of,
)
from windowmill.jobs.sources.text_values import ISO, MAY_BE_LONG, TextTimes, WrittenFloat, parsed
from windowmill.jobs.sources.unusable_rows import ExpectedColumns, unread_of
from windowmill.windowing.columnar.added_columns import UNREAD
from windowmill.windowing.errors import SourceFileError
from windowmill.windowing.fields import Source

if TYPE_CHECKING:
    from windowmill.jobs.sources.base import PlainFile
    from windowmill.jobs.sources.plain_files import Form


@dataclass(frozen=True)
class Syntax:
    """The characters of CSV, each empty if there is none; ``null`` is the text of a missing value, as is an empty field without quotes."""

    separator: str
    quote: str
    escape: str
    null: str

    @cached_property
    def _regular(self) -> str:
        """A line in which quotes surround whole fields, and are doubled in them, in the syntax of RE2."""
        s, q = (f"\\x{ord(letter):02x}" for letter in (self.separator, self.quote))
        doubled = f"|{q}{q}" if self.escape in ("", self.quote) else ""
        field = f"(?:{q}(?:[^{q}]{doubled})*{q}|[^{s}{q}][^{s}]*|)"
        return f"^{field}(?:{s}{field})*$"

    @cached_property
    def _quoted(self) -> re.Pattern[str]:
        q, e = re.escape(self.quote), re.escape(self.escape or self.quote)
        escaped = q + q if self.escape in ("", self.quote) else f"{e}(?s:.)"
        return re.compile(f"{q}((?:[^{q}{e}]|{escaped})*+)({q}?)")

    @cached_property
    def _gap(self) -> re.Pattern[str]:
        """White space behind a quoted field, which Spark leaves out."""
        blank = "".join(re.escape(chr(code)) for code in BLANK if chr(code) != self.separator)
        return re.compile(f"[{blank}]*+(?={re.escape(self.separator)}|\\Z)")

    def irregular(self, lines: Sequence[bytes], joined: bytes) -> list[int]:
        """Indices of those of ``lines`` that Arrow may not parse as Spark does."""
        escape = self.escape.encode() if self.escape != self.quote else b""
        if not any(letter and letter in joined for letter in (self.quote.encode(), escape)):
            return []
        every = pa.array(lines, pa.binary())
        regular = pc.match_substring_regex(every, self._regular) if self.quote else pa.repeat(True, len(lines))
        if escape:
            regular = pc.and_not(regular, pc.match_substring(every, escape))
        return np.flatnonzero(~regular.to_numpy(zero_copy_only=False)).tolist()

    def fields(self, line: str) -> list[str | None]:
        """The fields of a line or record; null for a missing value."""
        found: list[str | None] = []
        at = 0
        while True:
            end = line.find(self.separator, at)
            end = len(line) if end < 0 else end
            value: str | None = line[at:end] or None
            if self.quote and line.startswith(self.quote, at):
                value, end = self._value(line, at)
            found.append(None if value == self.null != "" else value)
            if end >= len(line):
                return found
            at = end + 1

    def _value(self, line: str, at: int) -> tuple[str, int]:
        """The value that begins with the quote at ``at``, and where it ends."""
        found = self._quoted.match(line, at)
        assert found is not None
        value, end = self._unescaped(found[1]), found.end()
        if not found[2]:  # it does not end
            rest = line[end:].removeprefix(self.escape) if self.escape else ""
            return value + rest or self.quote, len(line)
        if gap := self._gap.match(line, end):
            return value, gap.end()
        until = line.find(self.separator, end)
        until = len(line) if until < 0 else until
        return self.quote + value + self.quote + line[end:until], until

    def _unescaped(self, text: str) -> str:
        if self.escape in ("", self.quote):
            return text.replace(2 * self.quote, self.quote)
        return re.sub(f"{re.escape(self.escape)}([{re.escape(self.escape + self.quote)}])", r"\1", text)


@dataclass(frozen=True, slots=True)
class Cells:
    """Rows of a text file before their values are parsed.

    ``columns``: the texts of each column, or values of its own type.
    ``bad``: why a row could not be read, by its index.
    ``present``: columns for which some row has a field.
    ``order``: index of each row's line.
    """

    columns: list[pa.Array]
    bad: dict[int, str]
    present: frozenset[str]
    order: Sequence[int]


def parse_csv(lines: Sequence[bytes], syntax: Syntax, names: Sequence[str], columns: Sequence[str]) -> Cells:
    """The ``columns`` of ``lines`` of fields that have these ``names``.

    A field that a line lacks is null, and one that it has more is left out. Lines that Arrow does not parse come last.
    """
    joined = b"\n".join(lines)
    odd = syntax.irregular(lines, joined)
    if not joined.isascii() and not _is_text(joined):
        odd = sorted({*odd, *(index for index, line in enumerate(lines) if not _is_text(line))})
    left_out = set(odd)
    regular = [index for index in range(len(lines)) if index not in left_out] if odd else range(len(lines))
    texts, others = _by_arrow([lines[index] for index in regular] if odd else lines, syntax, names, columns)
    counted = {regular[place] for place in others}
    kept = [index for index in regular if index not in counted]
    present = frozenset(names if kept else ())
    odd = sorted({*odd, *counted})
    if not odd:
        return Cells(texts, {}, present, kept)
    rows: list[list[str | None]] = []
    bad: dict[int, str] = {}
    for place, index in enumerate(odd, len(kept)):
        try:
            rows.append(syntax.fields(lines[index].decode()))
        except UnicodeDecodeError as err:
            bad[place] = f"is not UTF-8 ({err.reason} at byte {err.start})"
            rows.append([])
    places = {name: place for place, name in enumerate(names)}
    parsed = [pa.array([_cell(row, places.get(name)) for row in rows], pa.string()) for name in columns]
    both = [pa.concat_arrays([own, more]) for own, more in zip(texts, parsed, strict=True)]
    return Cells(both, bad, present | set(names[: max(map(len, rows))]), [*kept, *odd])


def _is_text(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


def _cell(row: list[str | None], place: int | None) -> str | None:
    return None if place is None or place >= len(row) else row[place]


def _by_arrow(lines: Sequence[bytes], syntax: Syntax, names: Sequence[str], columns: Sequence[str]) -> tuple[list[pa.Array], list[int]]:
    """The ``columns`` of those ``lines`` that have a field for each name, and the indices of the others."""
    others: list[int] = []

    def keep(row: pa_csv.InvalidRow) -> str:
        others.append(row.number - 1)
        return "skip"

    data = b"\n".join(lines) + b"\n"
    read = pa_csv.ReadOptions(use_threads=False, block_size=len(data) + 1, column_names=list(names))
    parse = pa_csv.ParseOptions(
        delimiter=syntax.separator,
        quote_char=syntax.quote or False,
        newlines_in_values=True,
        ignore_empty_lines=False,
        invalid_row_handler=keep,
    )
    convert = pa_csv.ConvertOptions(
        column_types=dict.fromkeys(names, pa.string()),
        null_values=[syntax.null, ""],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
        include_columns=[name for name in dict.fromkeys(columns) if name in names] or list(names[:1]),
    )
    if not lines:
        return [pa.array([], pa.string()) for _ in columns], []
    table = pa_csv.read_csv(pa.BufferReader(data), read, parse, convert)
    if table.num_rows + len(others) != len(lines):  # never seen; each line is one row, whoever parses it
        return [pa.array([], pa.string()) for _ in columns], list(range(len(lines)))
    found = [table.column(name).combine_chunks() if name in names else pa.nulls(table.num_rows, pa.string()) for name in columns]
    if syntax.null:  # in quotes, too
        found = [pc.if_else(pc.equal(column, syntax.null), pa.scalar(None, pa.string()), column) for column in found]
    return found, others


#: Texts that are numbers, which JSON has no other form for.
_SPECIAL = ("NaN", "Infinity", "-Infinity")


def parse_json(lines: Sequence[bytes], kinds: Mapping[str, pa.DataType]) -> Cells:
    """The columns ``kinds`` of ``lines`` that are a JSON object each; of the others all are null.

    A value of another kind than its column's becomes the text that it has in the line.
    """
    block = b"\n".join(lines)
    return _parsed_at_once(block, lines, kinds) or _parsed_by_line(lines, kinds)


def _parsed_at_once(block: bytes, lines: Sequence[bytes], kinds: Mapping[str, pa.DataType]) -> Cells | None:
    """Columns by Arrow; null if a line may be no object, or a value is of another kind than its column."""
    if may_be_deep(block, MAX_DEPTH + len(lines) - 1) and any(map(may_be_deep, lines)):
        return None  # Arrow skips what no column needs
    if not kinds or not all(line.lstrip().startswith(b"{") and line.rstrip().endswith(b"}") for line in lines):
        return None  # Arrow takes several objects in one line, and one in several
    if not block.isascii():
        try:
            block.decode()
        except UnicodeDecodeError:
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
    if table.num_rows != len(lines):
        return None
    columns = [table.column(name).combine_chunks() for name in kinds]
    try:
        for column in columns:
            if pa.types.is_decimal(column.type):
                column.validate(full=True)  # reading counts the digits behind the point alone
    except pa.ArrowInvalid:
        return None
    absent = {name for name, column in zip(kinds, columns, strict=True) if column.null_count == len(column)}
    # They may have the column, as null. What has no escapes has its name as it is.
    if any(b"\\u" in block or json.dumps(name, ensure_ascii=False).encode() in block for name in absent):
        return Cells(columns, {}, _present(lines, kinds), range(len(lines)))
    return Cells(columns, {}, frozenset(kinds) - absent, range(len(lines)))


def _present(lines: Sequence[bytes], kinds: Mapping[str, pa.DataType]) -> frozenset[str]:
    found: set[str] = set()
    for line in lines:
        with deep_recursion(line):
            found |= kinds.keys() & members(line).keys()
        if len(found) == len(kinds):
            break
    return frozenset(found)


def _arrow_kind(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_integer(kind):
        return pa.int64()
    if pa.types.is_floating(kind):
        return pa.float64()
    return kind if pa.types.is_boolean(kind) or pa.types.is_decimal(kind) else pa.string()


def _parsed_by_line(lines: Sequence[bytes], kinds: Mapping[str, pa.DataType]) -> Cells:
    rows: list[Mapping[str, str | None]] = []
    bad: dict[int, str] = {}
    text_of = {name: partial(_text_of, kind) for name, kind in kinds.items()}
    for index, line in enumerate(lines):
        try:
            with deep_recursion(line):
                own = members(line)
                rows.append({name: text_of[name](own[name]) for name in kinds if name in own})
        except (ValueError, RecursionError) as err:
            bad[index] = f"is no JSON object ({why_no_object(err)})"
            rows.append({})
    present = frozenset(name for row in rows for name in row)
    return Cells([pa.array([row.get(name) for row in rows], pa.string()) for name in kinds], bad, present, range(len(lines)))


def why_no_object(err: Exception) -> str:
    """What is wrong with a text that is no JSON object."""
    if isinstance(err, UnicodeEncodeError):
        return "half a surrogate pair"
    if isinstance(err, UnicodeDecodeError):
        return f"not UTF-8: {err.reason} at byte {err.start}"
    if isinstance(err, json.JSONDecodeError):
        return f"{err.msg} at character {err.pos}"
    return "nested too deeply" if isinstance(err, RecursionError) else str(err)


def members(line: bytes) -> dict[str, str]:
    """The members of a JSON object, each value as the text that it has there; the last one of those of equal names.

    Raises ``ValueError`` or ``RecursionError`` if it is no object, or no UTF-8.
    """
    text = line.decode()
    check_depth(text)
    at = after_spaces(text, 0)
    if text[at : at + 1] != "{":
        raise json.JSONDecodeError("Expecting an object", text, at)
    found: dict[str, str] = {}
    at = after_spaces(text, at + 1)
    while text[at : at + 1] != "}" or found:
        if text[at : at + 1] != '"':
            raise json.JSONDecodeError("Expecting a name in double quotes", text, at)
        name, at = DECODER.raw_decode(text, at)
        at = after_spaces(text, at)
        if text[at : at + 1] != ":":
            raise json.JSONDecodeError("Expecting ':'", text, at)
        begin = after_spaces(text, at + 1)
        _, at = DECODER.raw_decode(text, begin)
        found[name] = text[begin:at]
        at = after_spaces(text, at)
        if text[at : at + 1] != ",":
            break
        at = after_spaces(text, at + 1)
    if text[at : at + 1] != "}":
        raise json.JSONDecodeError("Expecting ',' or '}'", text, at)
    if after_spaces(text, at + 1) != len(text):
        raise json.JSONDecodeError("Expecting nothing behind the object", text, at + 1)
    return found


def json_object(line: bytes) -> dict[str, Any] | None:
    """The JSON object of a line, whose columns are wanted; null if it is none."""
    try:
        text = line.decode()
        row = json.loads(text, parse_float=WrittenFloat) if MAY_BE_LONG(text) else orjson.loads(line)
    except ValueError:
        try:
            row = json.loads(line)  # takes NaN and Infinity, too
        except (ValueError, RecursionError):
            return None
    return row if isinstance(row, dict) else None


def _text_of(kind: pa.DataType, value: str) -> str | None:
    """The text of a JSON value for :func:`.parsed`: of a string what it holds if its column takes strings."""
    if value == "null":
        return None
    if not value.startswith('"'):
        nested = pa.types.is_string(kind) and value.startswith(("{", "["))
        return json.dumps(json.loads(value), separators=(",", ":"), ensure_ascii=False) if nested else value
    held = str(json.loads(value, strict=True))
    held.encode()  # half a surrogate pair is no character
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind) or (pa.types.is_floating(kind) and held not in _SPECIAL):
        return value
    return held


@dataclass(frozen=True, slots=True)
class TextForm:
    """How the text files of a source are read; the names are those of Spark's options.

    ``columns``: columns of the files in their order, if they have no header.
    ``times``: what texts are dates and instants.
    ``expected``: what the spec uses of the rows.
    ``may_lack``: whether a file may lack a column that the spec uses.
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
    expected: ExpectedColumns = field(default_factory=ExpectedColumns)
    may_lack: bool = False

    @property
    def syntax(self) -> Syntax:
        """The characters of CSV."""
        return Syntax(self.separator, self.quote, self.escape, self.null)

    def batches(self, file: PlainFile, form: Form, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The ``columns`` of all rows of ``file``, in order; ``UNREAD`` is null for a row that could be read."""
        return OpenText(file, form).batches(columns)

    def lines(self, path: str) -> Iterator[Lines]:
        """The lines of the file that are rows, and before them those that name the columns."""
        if self.format == "json":
            return objects_of(path)
        return records_of(path, self.separator, self.quote, self.escape) if self.multi_line else lines_of(path)

    def count(self, path: str) -> int:
        """Number of rows of the file."""
        return max(0, count_lines(self.lines(path)) - self.header)


class OpenText:
    """A CSV file, or one of JSON lines.

    Raises ``SourceFileError`` if it cannot be read as such a file, or a CSV file has two columns of one name; ``SourceSchemaError`` if it
    lacks a column that the spec uses.
    """

    def __init__(self, file: PlainFile, form: Form) -> None:
        assert isinstance(file.row_form, TextForm)
        self._file, self._form, self._text = file, form, file.row_form

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The ``columns`` of all rows, in order."""
        expected = self._text.expected.among(self._file.names) if UNREAD in columns else ExpectedColumns()
        stored = [name for name in dict.fromkeys([*columns, *expected.names]) if name in self._file.names]
        missing, n_rows = set(expected.names), 0
        for lines, cells in self._cells(stored):
            texts = {name: self._without_empty(name, column) for name, column in zip(stored, cells.columns, strict=True)}
            own = {name: parsed(column, self._form.types[name], self._text.times) for name, column in texts.items()}
            if UNREAD in columns:
                where, line = partial(self._place_of, lines, cells), partial(_line_of, lines, cells)
                own[UNREAD] = unread_of(texts, own, expected, cells.bad, where, line, len(lines.texts))
            missing, n_rows = missing - cells.present, n_rows + len(lines.texts) - len(cells.bad)
            yield pa.record_batch(
                [own[name] if name in own else self._constant(name, len(lines.texts)) for name in columns], names=list(columns)
            )
        if missing and n_rows and not self._text.may_lack:
            raise lacks_column(self._file.path, min(missing, key=expected.names.index))

    def _place_of(self, lines: Lines, cells: Cells, index: int) -> str:
        return f"{self._file.path}, line {lines.numbers[cells.order[index]]}"

    def _without_empty(self, name: str, texts: pa.Array) -> pa.Array:
        """``texts`` of a column; null for an empty field in quotes of one that holds no texts."""
        if self._text.format != "csv" or pa.types.is_string(self._form.types[name]):
            return texts
        return pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts)

    def _constant(self, name: str, n_rows: int) -> pa.Array:
        return pa.repeat(constant(self._file.constants.get(name), self._form.types[name]), n_rows)

    def _cells(self, columns: Sequence[str]) -> Iterator[tuple[Lines, Cells]]:
        """Successive lines of the file, and the ``columns`` of their rows."""
        lines = self._text.lines(self._file.path)
        if self._text.format == "json":
            kinds = {name: self._form.types.get(name, pa.string()) for name in columns}
            yield from ((some, parse_json(some.texts, kinds)) for some in lines if some.texts)
            return
        names, syntax = list(self._text.columns), self._text.syntax
        if self._text.header:
            names, lines = without_header(self._file.path, lines, syntax)
        yield from ((some, parse_csv(some.texts, syntax, names, columns)) for some in lines if some.texts and names)


def _line_of(lines: Lines, cells: Cells, index: int) -> bytes:
    return lines.texts[cells.order[index]]


def without_header(path: str, lines: Iterator[Lines], syntax: Syntax) -> tuple[list[str], Iterator[Lines]]:
    """The names of columns in the first one of ``lines``, and the others; no names if there are none."""
    for some in lines:
        if some.texts:
            try:
                names = [name or f"_c{place}" for place, name in enumerate(syntax.fields(some.texts[0].decode()))]
            except UnicodeDecodeError as err:
                raise SourceFileError(
                    f"source file {path}: line {some.numbers[0]}: the header is not UTF-8 ({err.reason} at byte {err.start}); write the "
                    "file in UTF-8"
                ) from err
            twice = next((name for name in names if names.count(name) > 1), None)
            if twice is not None:
                raise SourceFileError(f"source file {path}: two of its columns are named {twice!r}; rename one")
            return names, chain([Lines(some.texts[1:], some.numbers[1:])], lines)
    return [], lines


def first_lines(path: str, most: int) -> list[str]:
    """The first lines of a text file that are not blank."""
    return [line.decode(errors="replace") for some in islice(lines_of(path), 1) for line in some.texts[:most]]


#: Size of a text file whose lines are counted.
_COUNTED_BYTES = 64 << 20


def text_form(settings: Source, columns: Sequence[str], expected: ExpectedColumns | None = None) -> TextForm | None:
    """How the files of the source are read; null for Parquet.

    ``columns``: those of the source that are not partitions.
    ``expected``: what the spec uses of the rows.
    """
    if settings.format == "parquet":
        return None
    given = settings.options
    used: dict[str, Any] = {"times": TextTimes.of(settings), "expected": expected or ExpectedColumns()}
    used["may_lack"] = LOGICAL[given.get("mergeSchema", "false").lower()]
    if settings.format == "json":
        return TextForm("json", **used)
    header = LOGICAL[given.get("header", "false").lower()]
    return TextForm(
        "csv",
        header=header,
        separator=given.get("sep", ",").replace("\\t", "\t"),
        quote=given.get("quote", '"'),
        escape=given.get("escape", ""),
        null=given.get("nullValue", ""),
        multi_line=LOGICAL[given.get("multiLine", "false").lower()],
        columns=() if header else tuple(columns),
        **used,
    )


def rows_in_text(path: str, settings: Source, size: int) -> int | None:
    """Number of rows of a text file; null if it is too large to be counted, or cannot be opened.

    Raises ``SourceFileError`` if it cannot be read as text.
    """
    form = text_form(settings, ())
    assert form is not None
    try:
        return None if size > _COUNTED_BYTES else form.count(path)
    except (OSError, pa.ArrowException):  # whoever reads it says what is wrong
        return None
