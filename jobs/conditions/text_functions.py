"""Functions of texts, by characters."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from windowmill.jobs.conditions.choices import choice, is_null
from windowmill.jobs.conditions.evaluated import Computed, Value, applied, by_rows, by_value, either, outside, without
from windowmill.jobs.conditions.functions import Call, calls, function, literal_of, text, whole
from windowmill.jobs.conditions.patterns import like_pattern, pattern_of, replacement_of
from windowmill.jobs.conditions.value_types import BINARY, BOOL, INT, LONG, TEXT

_TEXTS = pa.list_(TEXT)


@function("length", "char_length", "character_length", "len", takes=[text])
def _length(texts: pa.Array) -> Computed:
    return pc.utf8_length(texts)


@calls("octet_length", "bit_length")
def _bytes(call: Call) -> Value:
    [value] = call.values(1, 1)
    bits = 8 if call.name == "bit_length" else 1
    own = value if value.kind == BINARY else text(value)
    return applied(lambda array: pc.multiply(pc.binary_length(array), pa.scalar(bits, INT)), [own])


@function("initcap", takes=[text])
def _initcap(texts: pa.Array) -> Computed:
    return by_value(
        texts, lambda each: " ".join(word[:1].title() + word.lower()[len(word[:1].lower()) :] for word in each.split(" ")), TEXT
    )


@function("chr", "char", takes=[whole(LONG)])
def _chr(numbers: pa.Array) -> Computed:
    return by_value(numbers, lambda each: chr(each % 256) if each >= 0 else "", TEXT)


def _cased(ascii_kernel: Callable[[pa.Array], pa.Array], whole_text: Callable[[str], str]) -> Callable[[pa.Array], Computed]:
    def cased(texts: pa.Array) -> Computed:
        if pc.all(pc.string_is_ascii(texts)).as_py() is not False:
            return ascii_kernel(texts)
        return by_value(texts, whole_text, TEXT)[0]

    return cased


_lowered = function("lower", "lcase", takes=[text])(_cased(pc.ascii_lower, str.lower))
function("upper", "ucase", takes=[text])(_cased(pc.ascii_upper, str.upper))


_TRIMS = {"both": pc.utf8_trim, "leading": pc.utf8_ltrim, "trailing": pc.utf8_rtrim}


def trimmed(side: str, subject: Value, characters: Value | None) -> Value:
    """``trim(side characters from subject)``; of spaces unless characters are given."""
    given = " " if characters is None else literal_of(characters, "trim")
    return applied(lambda texts: _TRIMS[side](texts, given) if given else texts, [text(subject)])


@calls("btrim", "ltrim", "rtrim")
def _trim(call: Call) -> Value:
    values = call.values(1, 2)
    # Hive's order: ltrim(characters, text).
    subject, *characters = values if call.name == "btrim" else values[::-1]
    side = {"btrim": "both", "ltrim": "leading", "rtrim": "trailing"}[call.name]
    return trimmed(side, subject, characters[0] if characters else None)


@calls("substring", "substr")
def _substring(call: Call) -> Value:
    given = call.values(2, 3)
    subject, start, *rest = text(given[0]), *map(whole(), given[1:])
    bounds = [value.literal for value in (start, *rest)]
    if all(isinstance(bound, int) for bound in bounds) and bounds[0] >= 0 and min(bounds) >= 0:
        first = max(0, bounds[0] - 1)
        stop = [min(first + bounds[1], 2**31 - 1)] if rest else []
        return applied(lambda texts, *_: pc.utf8_slice_codeunits(texts, first, *stop), [subject, start, *rest])
    return applied(lambda *arrays: by_rows(_sliced, TEXT, *arrays), [subject, start, *rest])


def _sliced(whole_text: str, start: int, length: int = 2**31 - 1) -> str:
    first = start - 1 if start > 0 else len(whole_text) + start if start < 0 else 0
    return whole_text[max(0, first) : max(0, min(first + length, 2**31 - 1))] if length > 0 else ""


@function("left", takes=[text, whole()])
def _left(texts: pa.Array, lengths: pa.Array) -> Computed:
    return by_rows(lambda each, length: each[: max(0, length)], TEXT, texts, lengths)


@function("right", takes=[text, whole()])
def _right(texts: pa.Array, lengths: pa.Array) -> Computed:
    return by_rows(lambda each, length: each[-length:] if length > 0 else "", TEXT, texts, lengths)


@calls("concat")
def _concat(call: Call) -> Value:
    values = [text(value) for value in call.values(1)]
    failed = either(*(value.failed for value in values))
    found = pc.binary_join_element_wise(*(value.array for value in values), "")
    return Value(found, failed)


@calls("concat_ws")
def _concat_with(call: Call) -> Value:
    values = [value if value.kind == _TEXTS else text(value) for value in call.values(2)]
    if any(value.kind == _TEXTS for value in values):
        return _joined_items(values)
    separator, first, *parts = (value.array for value in values)
    joined = first
    for part in parts:
        both = pc.binary_join_element_wise(joined, part, separator)
        joined = pc.coalesce(both, joined, part)
    joined = pc.if_else(pc.is_null(separator), pa.scalar(None, TEXT), pc.fill_null(joined, ""))
    failed = either(*(value.failed for value in values))
    return Value(without(joined, failed), failed)


def _joined_items(values: Sequence[Value]) -> Value:
    """Texts, and items of arrays of texts, joined by the separator, which comes first; nulls are left out."""
    failed = either(*(value.failed for value in values))
    rows = zip(*(value.array.to_pylist() for value in values), strict=True)
    each_row = ((row[0], [item for part in row[1:] for item in (part if isinstance(part, list) else [part])]) for row in rows)
    found = [None if separator is None else separator.join(item for item in items if item is not None) for separator, items in each_row]
    return Value(without(pa.array(found, TEXT), failed), failed)


@calls("array_join")
def _array_join(call: Call) -> Value:
    items, separator = call.values(2, 2)
    if items.kind != _TEXTS:
        raise call.refused(items)
    return applied(lambda *arrays: _joined_items([text(separator), *map(Value, arrays[:1])]).array, [items, text(separator)])


@function("replace", takes=[text, text, text], least=2)
def _replace(texts: pa.Array, parts: pa.Array, others: pa.Array | None = None) -> Computed:
    others = pa.repeat(pa.scalar(""), len(texts)) if others is None else others
    return by_rows(lambda each, part, other: each.replace(part, other) if part else each, TEXT, texts, parts, others)


@function("startswith", takes=[text, text])
def _starts(texts: pa.Array, parts: pa.Array) -> Computed:
    return by_rows(str.startswith, BOOL, texts, parts)


@function("endswith", takes=[text, text])
def _ends(texts: pa.Array, parts: pa.Array) -> Computed:
    return by_rows(str.endswith, BOOL, texts, parts)


@function("contains", takes=[text, text])
def _contains(texts: pa.Array, parts: pa.Array) -> Computed:
    return by_rows(lambda each, part: part in each, BOOL, texts, parts)


@function("instr", takes=[text, text])
def _instr(texts: pa.Array, parts: pa.Array) -> Computed:
    return by_rows(lambda each, part: each.find(part) + 1, INT, texts, parts)


@calls("locate", "position")
def _locate(call: Call) -> Value:
    part, each, *rest = call.values(2, 3)
    start = whole()(rest[0]) if rest else call.own.constant(1, INT)
    # Spark finds nothing from a start before 1, or from null, and an empty text at place 1.
    found = applied(lambda *arrays: by_rows(_place_of, INT, *arrays), [text(part), text(each), start])
    return choice([is_null(start)], [call.own.constant(0, INT), found])


def _place_of(part: str, each: str, start: int) -> int:
    return 0 if start < 1 else each.find(part, start - 1) + 1 if part else 1


@function("repeat", takes=[text, whole()])
def _repeat(texts: pa.Array, times: pa.Array) -> Computed:
    return by_rows(lambda each, count: each * max(0, count), TEXT, texts, times)


@function("reverse", takes=[text])
def _reverse(texts: pa.Array) -> Computed:
    return pc.utf8_reverse(texts)


@function("lpad", takes=[text, whole(), text], least=2)
def _left_pad(texts: pa.Array, lengths: pa.Array, pads: pa.Array | None = None) -> Computed:
    return by_rows(
        lambda each, length, pad: _padding(each, length, pad) + each[: max(0, length)], TEXT, texts, lengths, _pads(pads, len(texts))
    )


@function("rpad", takes=[text, whole(), text], least=2)
def _right_pad(texts: pa.Array, lengths: pa.Array, pads: pa.Array | None = None) -> Computed:
    return by_rows(
        lambda each, length, pad: each[: max(0, length)] + _padding(each, length, pad), TEXT, texts, lengths, _pads(pads, len(texts))
    )


def _pads(pads: pa.Array | None, n: int) -> pa.Array:
    return pa.repeat(pa.scalar(" "), n) if pads is None else pads


def _padding(each: str, length: int, pad: str) -> str:
    missing = max(0, length - len(each)) if pad else 0
    return (pad * (missing // max(1, len(pad)) + 1))[:missing]


@function("translate", takes=[text, text, text])
def _translate(texts: pa.Array, found: pa.Array, others: pa.Array) -> Computed:
    def translated(each: str, one: str, other: str) -> str:
        table: dict[int, str | None] = {}
        for number, character in enumerate(one):
            table.setdefault(ord(character), other[number] if number < len(other) else None)
        return each.translate(table)

    return by_rows(translated, TEXT, texts, found, others)


@function("ascii", takes=[text])
def _ascii(texts: pa.Array) -> Computed:
    return by_value(texts, lambda each: ord(each[0]) if each else 0, INT)


@function("split_part", takes=[text, text, whole()])
def _split_part(texts: pa.Array, delimiters: pa.Array, numbers: pa.Array) -> Computed:
    def part(each: str, delimiter: str, number: int) -> str:
        if number == 0:
            raise ValueError(number)
        parts = each.split(delimiter) if delimiter else [each]
        index = number - 1 if number > 0 else len(parts) + number
        return parts[index] if 0 <= index < len(parts) else ""

    return by_rows(part, TEXT, texts, delimiters, numbers)


@function("substring_index", takes=[text, text, whole()])
def _substring_index(texts: pa.Array, delimiters: pa.Array, counts: pa.Array) -> Computed:
    def before(each: str, delimiter: str, count: int) -> str:
        if not delimiter or not count:
            return ""
        parts = each.split(delimiter) if count > 0 else None
        if parts is not None:
            return delimiter.join(parts[:count])
        return delimiter.join(each.rsplit(delimiter, -count)[count:])

    return by_rows(before, TEXT, texts, delimiters, counts)


def like(subject: Value, pattern: Value, escape: str, *, ignore_case: bool) -> Value:
    """``subject LIKE pattern ESCAPE escape``, or ILIKE."""
    subject, written = text(subject), literal_of(pattern, "like")
    if len(escape) != 1:
        raise outside("an escape of other than one character")
    own = like_pattern(written.lower() if ignore_case else written, escape)

    def matches(texts: pa.Array) -> Computed:
        return pc.match_substring_regex(_lowered(texts) if ignore_case else texts, own)

    return applied(matches, [subject])


@calls("like", "ilike")
def _like(call: Call) -> Value:
    values = call.values(2, 3)
    escape = literal_of(values[2], call.name) if len(values) > 2 else "\\"
    return like(values[0], values[1], escape, ignore_case=call.name == "ilike")


@calls("rlike", "regexp", "regexp_like")
def _matches(call: Call) -> Value:
    subject, written = call.values(2, 2)
    pattern = pattern_of(literal_of(written, call.name))
    if pattern.re2 is not None:
        re2 = pattern.re2
        return applied(lambda texts: pc.match_substring_regex(texts, re2), [text(subject)])
    return applied(lambda texts: by_value(texts, lambda each: pattern.compiled.search(each) is not None, BOOL), [text(subject)])


@calls("regexp_extract")
def _extract(call: Call) -> Value:
    subject, written, *rest = call.values(2, 3)
    compiled, group = pattern_of(literal_of(written, call.name)).compiled, rest[0].literal if rest else 1
    if not isinstance(group, int) or not 0 <= group <= compiled.groups:
        raise outside("regexp_extract() of a group that the pattern does not have")

    def extracted(each: str) -> str:
        found = compiled.search(each)
        return "" if found is None else found[group] or ""

    return applied(lambda texts: by_value(texts, extracted, TEXT), [text(subject)])


@calls("regexp_replace")
def _regexp_replace(call: Call) -> Value:
    subject, written, other = call.values(3, 3)
    compiled = pattern_of(literal_of(written, call.name)).compiled
    replaced = replacement_of(literal_of(other, call.name), compiled)
    return applied(lambda texts: by_value(texts, lambda each: compiled.sub(replaced, each), TEXT), [text(subject)])


@calls("regexp_count", "regexp_substr", "regexp_instr")
def _regexp_found(call: Call) -> Value:
    subject, written = call.values(2, 2)
    compiled = pattern_of(literal_of(written, call.name)).compiled

    def found(each: str) -> int | str | None:
        if call.name == "regexp_count":
            return sum(1 for _ in compiled.finditer(each))
        first = compiled.search(each)
        if call.name == "regexp_instr":
            return 0 if first is None else len(each[: first.start()].encode("utf-16-le")) // 2 + 1  # as Java counts
        return None if first is None else first[0]

    return applied(lambda texts: by_value(texts, found, TEXT if call.name == "regexp_substr" else INT), [text(subject)])


@calls("split")
def _split(call: Call) -> Value:
    subject, written, *rest = call.values(2, 3)
    pattern = literal_of(written, call.name)
    compiled, limit = pattern_of(pattern).compiled, rest[0].literal if rest else -1
    if not isinstance(limit, int):
        raise outside("split() with a limit that is no constant")

    def pieces(each: str) -> list[str]:
        return list(each) if not pattern and each and limit <= 0 else _split_by(compiled, each, limit)

    return applied(lambda texts: by_rows(pieces, _TEXTS, texts), [text(subject)])


def _split_by(compiled: re.Pattern[str], each: str, limit: int) -> list[str]:
    """The parts of a text, as Java's ``String.split`` makes them; a limit of 0 or less counts as none."""
    parts, place = list[str](), 0
    for found in compiled.finditer(each):
        if 0 < limit <= len(parts) + 1:
            break
        if place == 0 and found.start() == found.end() == 0:
            continue
        parts.append(each[place : found.start()])
        place = found.end()
    return [*parts, each[place:]]
