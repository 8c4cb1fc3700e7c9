"""Parses JSON objects, one a line or a message, into columns."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.json as pa_json

from windowmill.jobs.sources.csv_rows import Cells
from windowmill.jobs.sources.text_lines import DECODER, MAX_DEPTH, after_spaces, check_depth, deep_recursion, may_be_deep
from windowmill.jobs.sources.text_values import MAY_BE_LONG, WrittenFloat

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

    Raises
    ------
    ValueError, RecursionError
        If it is no object, or no UTF-8.
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
