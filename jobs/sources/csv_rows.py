"""Parses lines of CSV as Spark's reader does, with a quote inside quotes doubled unless another character escapes it.

Arrow parses lines whose quotes are regular and that have a field for each column; the others are parsed one by one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from windowmill.jobs.sources.text_lines import BLANK


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

    Attributes
    ----------
    columns
        The texts of each column, or values of its own type.
    bad
        Why a row could not be read, by its index.
    present
        Columns of which some row has a field.
    order
        Index of each row's line.
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
