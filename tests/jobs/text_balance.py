"""Draws text files as teams write them, and says by plain Python which rows they hold, without any of the reader's code."""

from __future__ import annotations

import bz2
import gzip
import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

#: What a row holds: key, value, and the reason if it is quarantined.
Found = tuple[str | None, int | None, str | None]

#: Number of different sets of options.
SYNTAXES = 48
_ENDS = ("\n", "\r\n", "\r")
_CODECS: tuple[Callable[[bytes], bytes], ...] = (
    lambda data: data,
    lambda data: gzip.compress(data[: len(data) // 2]) + gzip.compress(data[len(data) // 2 :]),
    bz2.compress,
    lambda data: pa.compress(data, "zstd", asbytes=True) if data else data,
    lambda data: b"\x50\x2a\x4d\x18\x04\0\0\0skip" + pa.compress(data, "zstd", asbytes=True) if data else data,
)
_WORDS = ("a", "b", "ä", "😀", " ", "5", "-", "x y", "\u2028", "\u00a0", "#", "NA", "\0")
_VALUES = ("0", "7", "-12", "30.0", "+5", "1e2", "9223372036854775807", "", "20.5", "9223372036854775808", "many", " 8 ", "1_0", "0x1")


@dataclass(frozen=True)
class Drawn:
    """A text file: its bytes before they are compressed, the options by which it is read, and what it holds."""

    format: str
    plain: bytes
    rows: list[Found]
    options: dict[str, Any] = field(default_factory=dict)
    codec: int = 0

    @property
    def data(self) -> bytes:
        """What the file holds."""
        return _CODECS[self.codec](self.plain)


def drawn(seed: int) -> Drawn:
    """The file of this ``seed``; files whose seeds are equal modulo ``SYNTAXES`` have the same options."""
    draw = random.Random(seed)
    return _json(draw) if seed % SYNTAXES % 3 == 0 else _csv(draw, random.Random(seed % SYNTAXES))


def _value_of(text: str | None) -> tuple[int | None, str | None]:
    """A field as a whole number of 64 bits, and the reason if it is none."""
    text = None if text is None or text == "" else text
    if text is None:
        return None, None
    plain = text.strip(" \t\r\n").removeprefix("+")
    try:
        number = int(plain) if "_" not in plain else None
    except ValueError:
        number = int(float(plain)) if plain in ("30.0", "1e2") else None
    if number is None or not -(2**63) <= number < 2**63:
        return None, "cannot_cast"
    return number, None


def _csv(draw: random.Random, syntax: random.Random) -> Drawn:
    separator, quote = syntax.choice(",;\t|"), syntax.choice("\"'")
    escape, header, multi = syntax.choice(["", "", "\\"]), syntax.random() < 0.5, syntax.random() < 0.4
    null, end, is_latin = syntax.choice(["", "", "NA"]), draw.choice(_ENDS), draw.random() < 0.1
    lines, rows = [], []
    for _ in range(draw.randrange(12)):
        if not multi and draw.random() < 0.3:
            line = "".join(
                draw.choice(["a", "1", quote, quote, separator, separator, " ", escape or "b"]) for _ in range(draw.randrange(9))
            )
            fields = fields_of(line, separator, quote, escape)
        else:
            words = [word for word in _WORDS if not is_latin or word.isascii() or word == "ä"]  # never UTF-8 by chance
            words += [separator, quote, escape, end if multi else ""]
            fields, line = _written(draw, words, separator, quote, escape, end if multi else "")
        if draw.random() < 0.1:
            lines.append("" if multi else draw.choice(["", " ", "\t  "]))
        lines.append(line)
        is_blank = not line if multi else all(ord(letter) <= 32 for letter in line)
        if not is_blank:
            cells = [None if null and cell == null else cell for cell in fields]
            value, reason = _value_of(cells[1] if len(cells) > 1 else None)
            is_bad = is_latin and not line.isascii()
            rows.append((None, None, "bad_row") if is_bad else (cells[0] if cells else None, value, reason))
    begin = [f"k{separator}v"] if header else []
    if begin and draw.random() < 0.2:
        begin.insert(0, "")
    text = end.join([*begin, *lines]) + draw.choice(["", end]) * bool(begin or lines)
    data = text.encode("latin-1", "replace") if is_latin else draw.choice([b"", b"\xef\xbb\xbf"]) + text.encode()
    options = {"sep": separator, "quote": quote, "escape": escape, "header": header, "multiLine": multi, "nullValue": null}
    return Drawn("csv", data, rows, options, draw.randrange(len(_CODECS)))


def _written(draw: random.Random, words: list[str], separator: str, quote: str, escape: str, end: str) -> tuple[list[str | None], str]:
    """A row that is written as it should be, and its text."""
    key = "".join(draw.choice(words) for _ in range(draw.randrange(5)))
    if quote in key or (escape and escape in key):
        key = key.replace("\0", "")  # before a quote in quotes Spark's parser takes it for an escape
    fields: list[str | None] = [key, draw.choice(_VALUES), *draw.choices(["", "z"], k=draw.choice([0, 0, 0, 1]))]
    texts = []
    for place, cell in enumerate(fields):
        assert cell is not None
        if any(letter in cell for letter in (separator, quote, "\n", "\r")) or (escape and escape in cell) or draw.random() < 0.2:
            inner = cell.replace(escape, 2 * escape).replace(quote, escape + quote) if escape else cell.replace(quote, 2 * quote)
            texts.append(quote + inner + quote)
            fields[place] = cell.replace(end, "\n") if end else cell
        else:
            texts.append(cell)
            fields[place] = cell or None
    return fields, separator.join(texts)


def fields_of(line: str, separator: str, quote: str, escape: str) -> list[str | None]:
    """The fields of a line of any characters, letter by letter, as Spark's reader finds them."""
    fields: list[str | None] = []
    at = 0
    while True:
        if line[at : at + 1] == quote:
            value, at = _quoted(line, at + 1, separator, quote, escape)
            fields.append(value)
        else:
            begin = at
            while at < len(line) and line[at] != separator:
                at += 1
            fields.append(line[begin:at] or None)
        if at >= len(line):
            return fields
        at += 1


def _quoted(line: str, at: int, separator: str, quote: str, escape: str) -> tuple[str, int]:
    value = ""
    while at < len(line):
        letter, after = line[at], line[at + 1 : at + 2]
        if escape and letter == escape:
            if after in (quote, escape) and after:
                value, at = value + after, at + 2
            elif after:
                value, at = value + letter, at + 1
            else:
                at += 1
        elif letter != quote:
            value, at = value + letter, at + 1
        elif not escape and after == quote:
            value, at = value + quote, at + 2
        else:
            gap = at + 1
            while gap < len(line) and line[gap] != separator and ord(line[gap]) <= 32:
                gap += 1
            if gap >= len(line) or line[gap] == separator:
                return value, gap
            until = at + 1
            while until < len(line) and line[until] != separator:
                until += 1
            return quote + value + quote + line[at + 1 : until], until
    return value or quote, at


def _json(draw: random.Random) -> Drawn:
    texts, rows = [], []
    is_array = draw.random() < 0.2
    for number in range(draw.randrange(12)):
        text, found = _object(draw, is_array=is_array, is_first=is_array and not number)
        texts.append(text)
        rows.append(found)
    end = draw.choice(_ENDS)
    if is_array:
        data = ("[" + f",{draw.choice(['', end])}".join(texts) + "]").encode("utf-8", "surrogateescape") + draw.choice([b"", end.encode()])
    else:
        blank = draw.choice(["", "", f" {end}"])
        data = "".join(f"{blank}{text}{end}" for text in texts).encode("utf-8", "surrogateescape")
    return Drawn("json", draw.choice([b"", b"\xef\xbb\xbf"]) + data, rows, {}, draw.randrange(len(_CODECS)))


def _object(draw: random.Random, *, is_array: bool, is_first: bool) -> tuple[str, Found]:
    if draw.random() < 0.15 and not is_first:
        bad = (
            ["7", '"a"', "null", "[1]", "true"]
            if is_array
            else ['{"k": "a"', '{"k": "\udcff"}', "[" * 3_000, '{"k": "a"} {"k": "b"}', "{k: 1}", '{"k": "a\0"}', '{"k": \0"a"}']
        )
        return draw.choice([*bad, '{"k": "\\ud83d"}']), (None, None, "bad_row")
    key = draw.choice(["a", "ä", "😀", 'q"\\', "a\nb", "", None, 7, True, 1.5])
    value = draw.choice([7, 30.0, 9223372036854775807, -9223372036854775808, 20.5, 9223372036854775808, "7", "", True, [1], None])
    members = [("k", key), ("v", value), ("other", draw.choice([{"k": 1}, [1, 2], "\ud83d", None]))]
    draw.shuffle(members)
    if draw.random() < 0.2:
        members = [member for member in members if member[0] != draw.choice("kv")]
    text = json.dumps(dict(members), ensure_ascii=any(own == "\ud83d" for _, own in members) or draw.random() < 0.5, indent=None)
    row = dict(members)
    held, number = row.get("k"), row.get("v")
    fits = number is None or (type(number) in (int, float) and number == int(number) and -(2**63) <= number < 2**63)
    shown = held if held is None or isinstance(held, str) else json.dumps(held)
    return text, (shown, int(number) if fits and number is not None else None, None if fits else "cannot_cast")
