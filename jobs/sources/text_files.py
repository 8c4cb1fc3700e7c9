"""Reads CSV files and JSON lines into typed columns: the same function in this process and in tasks of Spark.

Each line is a row. One that cannot be read is given with what is wrong with it, in a column of its own, for the quarantine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Literal

import pyarrow as pa
import pyarrow.compute as pc

from windowmill.jobs.column_names import UNREAD
from windowmill.jobs.sources.folder_options import lacks_column
from windowmill.jobs.sources.plain_files import constant
from windowmill.jobs.sources.text_lines import Lines, count_lines, lines_of, objects_of, records_of
from windowmill.jobs.sources.text_rows import Cells, Syntax, parse_csv, parse_json
from windowmill.jobs.sources.text_values import ISO, TextTimes, parsed
from windowmill.jobs.sources.unread_rows import ExpectedColumns, unread_of
from windowmill.windowing.errors import SourceFileError

if TYPE_CHECKING:
    from windowmill.jobs.sources.base import PlainFile
    from windowmill.jobs.sources.plain_files import Form


@dataclass(frozen=True, slots=True)
class TextForm:
    """How the text files of a source are read; the names are those of Spark's options.

    Attributes
    ----------
    columns
        Columns of the files in their order, if they have no header.
    times
        What texts are dates and instants.
    expected
        What the spec uses of the rows.
    may_lack
        Whether a file may lack a column that the spec uses.
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

    Raises
    ------
    SourceFileError
        If it cannot be read as such a file, or a CSV file has two columns of one name.
    SourceSchemaError
        If it lacks a column that the spec uses.
    """

    def __init__(self, file: PlainFile, form: Form) -> None:
        assert isinstance(file.text, TextForm)
        self._file, self._form, self._text = file, form, file.text

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The ``columns`` of all rows, in order."""
        expected = self._text.expected.among(self._file.names) if UNREAD in columns else ExpectedColumns()
        stored = [name for name in dict.fromkeys([*columns, *expected.names]) if name in self._file.names]
        missing, n_rows = set(expected.names), 0
        for lines, cells in self._cells(stored):
            texts = {name: self._without_empty(name, column) for name, column in zip(stored, cells.columns, strict=True)}
            own = {name: parsed(column, self._form.types[name], self._text.times) for name, column in texts.items()}
            if UNREAD in columns:
                where = partial(self._place_of, lines, cells)
                unread = unread_of(texts, own, expected, cells.bad, where, partial(_line_of, lines, cells))
                own[UNREAD] = pa.nulls(len(lines.texts), pa.string()) if unread is None else unread
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
