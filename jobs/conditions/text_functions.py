"""Functions of texts, by characters, and of bytes; Java's regular expressions as those of Python and RE2, as far as all mean the same."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import pyarrow as pa
import pyarrow.compute as pc

from windowmill.jobs.conditions.casts import literal_of, text, whole
from windowmill.jobs.conditions.evaluated import (
    BOOL,
    INT,
    LONG,
    TEXT,
    Call,
    Computed,
    OutsideError,
    Value,
    applied,
    by_rows,
    by_value,
    calls,
    each_row,
    either,
    function,
    outside,
    without,
)
from windowmill.jobs.conditions.numbers import choice, is_null

_ENDS = "\\n\\r\\x85\\u2028\\u2029"
#: The end, or before the last line's end: ``$`` in Java.
_DOLLAR = r"(?:(?<!\r)(?=\n\Z)|(?=(?:\r\n|[\r\x85\u2028\u2029])?\Z))"
_DOLLAR_OF_RE2 = r"(?:\r\n|[\n\r\x{85}\x{2028}\x{2029}])?\z"
#: Numbers that are no digits, such as \u00b2 and \u00bd, and accents that follow their letter.
_NO_DIGITS = "\u00b2\u00b3\u00b9\u00bc-\u00be\u2070\u2074-\u2079\u2080-\u2089\u2150-\u2182\u2185-\u2189\u2460-\u249b\u2776-\u2793\u3007"
_ACCENTS = "\u0300-\u036f\u0591-\u05bd\u064b-\u065f\u20d0-\u20dc"
#: What words consist of to Java: letters, digits and accents of all scripts, but not other numbers.
_WORD = rf"[^\W{_NO_DIGITS}]|[{_ACCENTS}]"
#: What letters behind a backslash mean to Python and to RE2, which leaves the vertical tab out of spaces.
_ESCAPES: dict[str, tuple[str, str | None]] = {
    **{letter: (f"\\{letter}", f"\\{letter}") for letter in "tnrdDwW"},
    "s": ("[ \\t-\\r]", "[ \\t-\\r]"),
    "S": ("[^ \\t-\\r]", "[^ \\t-\\r]"),
    "b": (f"(?u:(?<={_WORD})(?!{_WORD})|(?<!{_WORD})(?={_WORD}))", None),
}
_IN_CLASSES = {**{letter: f"\\{letter}" for letter in "tnrdDwW"}, "s": " \\t-\\r"}
_TOKEN = re.compile(
    r"\\(?P<escape>.)|\[(?P<class>\^?+(?:[^\[\]\\]|\\.)+)\]|(?P<group>\((?:\?:|(?!\?)))"
    r"|(?P<count>(?:[*+?]|\{[0-9]+(?:,[0-9]*)?\})\??)|(?P<other>[^\\\[(*+?{])",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Pattern:
    """A pattern of Java.

    ``compiled``: the same for Python, over texts.
    ``re2``: one for RE2 that finds something in the same texts; null if RE2 cannot.
    """

    compiled: re.Pattern[str]
    re2: str | None


@lru_cache(1_000)
def pattern_of(text: str) -> Pattern:
    """The pattern written ``text``; raises ``OutsideError`` if it may mean something else here than in Java, or nothing."""
    rest = text.removeprefix("(?i)")
    try:
        pieces = list(_pieces(rest))
        compiled = re.compile("".join(python for python, _ in pieces), re.ASCII if rest == text else re.ASCII | re.IGNORECASE)
    except (re.error, OverflowError, ValueError) as err:
        raise outside(f"the pattern {text!r}", instead=r"one of classes, groups, quantifiers, anchors and \d, \w, \s, \b") from err
    # RE2 would take letters of other scripts for those of ASCII, and repeats nothing more than 1,000 times.
    if rest != text or any(re2 is None for _, re2 in pieces) or re.search(r"\{[0-9]{4,}", rest):
        return Pattern(compiled, None)
    return Pattern(compiled, "".join(re2 or "" for _, re2 in pieces))


def _pieces(text: str) -> Iterator[tuple[str, str | None]]:
    """Each part of a pattern for Python and for RE2; raises ``ValueError`` for one that is not known here."""
    place, depth, repeatable = 0, 0, False
    while place < len(text):
        found = _TOKEN.match(text, place)
        if found is None or (found["count"] and not repeatable):
            raise ValueError(text[place:])
        place, piece = found.end(), found[0]
        repeatable = not (found["count"] or found["group"] or piece in "|^$")
        depth += bool(found["group"]) - (piece == ")")
        if found["escape"]:
            yield _ESCAPES.get(found["escape"]) or (_plain(found["escape"]),) * 2
        elif found["class"]:
            own = _class(found["class"])
            yield own, own
        elif piece == ".":
            yield f"[^{_ENDS}]", r"[^\n\r\x{85}\x{2028}\x{2029}]"
        elif piece == "$":
            yield _DOLLAR, _DOLLAR_OF_RE2 if place == len(text) or (depth == 0 and text[place] == "|") else None
        else:
            own = piece if found["group"] or found["count"] or piece in ")|^" or piece.isalnum() else re.escape(piece)
            yield own, own


def _plain(character: str) -> str:
    if character.isalnum():
        raise ValueError(character)
    return re.escape(character)


def _class(text: str) -> str:
    """The class of characters that is written ``text`` between its brackets."""
    if "&&" in text:
        raise ValueError(text)
    own = "[^" if text[0] == "^" else "["
    for escape, character in re.findall(r"\\(.)|(.)", text.removeprefix("^"), re.DOTALL):
        if escape:
            own += _IN_CLASSES.get(escape) or _plain(escape)
        else:
            own += character if character.isalnum() or character in "-_ " or not character.isascii() else "\\" + character
    return own + "]"


def replacement_of(text: str, pattern: re.Pattern[str]) -> Callable[[re.Match[str]], str]:
    """What Java puts in the place of a match for a replacement ``text``; raises ``OutsideError`` if it would refuse it."""
    pieces: list[str | int] = []
    place = 0
    while place < len(text):
        character = text[place]
        if character == "\\" and place + 1 < len(text):
            pieces.append(text[place + 1])
            place += 2
        elif character == "$" and (found := re.compile(r"\$([0-9]+)").match(text, place)):
            number, digits = int(found[1][0]), 1
            while digits < len(found[1]) and int(found[1][: digits + 1]) <= pattern.groups:
                digits += 1
                number = int(found[1][:digits])
            if number > pattern.groups:
                raise OutsideError(f"the replacement {text!r}")
            pieces.append(number)
            place += 1 + digits
        elif character in "$\\":
            raise OutsideError(f"the replacement {text!r}")
        else:
            pieces.append(character)
            place += 1
    return lambda match: "".join(piece if isinstance(piece, str) else match[piece] or "" for piece in pieces)


def like_pattern(text: str, escape: str) -> str:
    """A pattern of LIKE as one of RE2 over whole texts; raises ``OutsideError`` for an escape of something else, which Spark refuses."""
    found, place = "(?s)\\A", 0
    while place < len(text):
        character = text[place]
        if character == escape:
            if place + 1 == len(text) or text[place + 1] not in ("%", "_", escape):
                raise OutsideError(f"the pattern {text!r}, whose escape is of none of its signs,")
            place += 1
            found += _quoted(text[place])
        else:
            found += {"%": ".*", "_": "."}.get(character, _quoted(character))
        place += 1
    return found + "\\z"


def _quoted(character: str) -> str:
    return character if character.isalnum() or not character.isascii() or character == "\n" else f"\\x{{{ord(character):x}}}"


_TEXTS = pa.list_(TEXT)


function("length", "char_length", "character_length", "len", takes=[text])(pc.utf8_length)
function("reverse", takes=[text])(pc.utf8_reverse)


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


@calls("concat")
def _concat(call: Call) -> Value:
    values = [text(value) for value in call.values(1)]
    failed = either(*(value.failed for value in values))
    found = pc.binary_join_element_wise(*(value.array for value in values), "")
    return Value(found, failed)


@calls("concat_ws")
def _concat_with(call: Call) -> Value:
    given = call.values(2)
    if any(pa.types.is_list(value.kind) for value in given):
        raise call.refused(*given)
    values = [text(value) for value in given]
    separator, joined, *parts = (value.array for value in values)
    for part in parts:
        # Arrow's own join without nulls drops rows of nulls alone.
        joined = pc.coalesce(pc.binary_join_element_wise(joined, part, separator), joined, part)
    joined = pc.if_else(pc.is_null(separator), pa.scalar(None, TEXT), pc.fill_null(joined, ""))
    failed = either(*(value.failed for value in values))
    return Value(without(joined, failed), failed)


@calls("locate", "position")
def _locate(call: Call) -> Value:
    part, each, *rest = call.values(2, 3)
    start = whole()(rest[0]) if rest else call.own.constant(1, INT)
    # Spark finds nothing from a start before 1, or from null, and an empty text at place 1.
    found = applied(lambda *arrays: by_rows(_place_of, INT, *arrays), [text(part), text(each), start])
    return choice([is_null(start)], [call.own.constant(0, INT), found])


def _place_of(part: str, each: str, start: int) -> int:
    return 0 if start < 1 else each.find(part, start - 1) + 1 if part else 1


def _padding(each: str, length: int, pad: str) -> str:
    missing = max(0, length - len(each)) if pad else 0
    return (pad * (missing // max(1, len(pad)) + 1))[:missing]


def _initcap(each: str) -> str:
    return " ".join(word[:1].title() + word.lower()[len(word[:1].lower()) :] for word in each.split(" "))


def _translated(each: str, one: str, other: str) -> str:
    table: dict[int, str | None] = {}
    for number, character in enumerate(one):
        table.setdefault(ord(character), other[number] if number < len(other) else None)
    return each.translate(table)


def _part(each: str, delimiter: str, number: int) -> str:
    if number == 0:
        raise ValueError(number)
    parts = each.split(delimiter) if delimiter else [each]
    index = number - 1 if number > 0 else len(parts) + number
    return parts[index] if 0 <= index < len(parts) else ""


def _before(each: str, delimiter: str, count: int) -> str:
    if not delimiter or not count:
        return ""
    return delimiter.join(each.split(delimiter)[:count] if count > 0 else each.rsplit(delimiter, -count)[count:])


each_row("initcap", of=_initcap, takes=[text])
each_row("chr", "char", of=lambda number: chr(number % 256) if number >= 0 else "", takes=[whole(LONG)])
each_row("ascii", of=lambda each: ord(each[0]) if each else 0, takes=[text], kind=INT)
each_row("left", of=lambda each, length: each[: max(0, length)], takes=[text, whole()])
each_row("right", of=lambda each, length: each[-length:] if length > 0 else "", takes=[text, whole()])
each_row("repeat", of=lambda each, count: each * max(0, count), takes=[text, whole()])
each_row("replace", of=lambda each, part, other="": each.replace(part, other) if part else each, takes=[text] * 3, least=2)
each_row(
    "lpad", of=lambda each, length, pad=" ": _padding(each, length, pad) + each[: max(0, length)], takes=[text, whole(), text], least=2
)
each_row(
    "rpad", of=lambda each, length, pad=" ": each[: max(0, length)] + _padding(each, length, pad), takes=[text, whole(), text], least=2
)
each_row("translate", of=_translated, takes=[text] * 3)
each_row("split_part", of=_part, takes=[text, text, whole()])
each_row("substring_index", of=_before, takes=[text, text, whole()])
each_row("startswith", of=str.startswith, takes=[text] * 2, kind=BOOL)
each_row("endswith", of=str.endswith, takes=[text] * 2, kind=BOOL)
each_row("contains", of=str.__contains__, takes=[text] * 2, kind=BOOL)
each_row("instr", of=lambda each, part: each.find(part) + 1, takes=[text] * 2, kind=INT)


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


@calls("split")
def _split(call: Call) -> Value:
    subject, written, *rest = call.values(2, 3)
    pattern = literal_of(written, call.name)
    compiled, limit = pattern_of(pattern).compiled, rest[0].literal if rest else -1
    if not isinstance(limit, int):
        raise outside("split() with a limit that is no constant")

    def pieces(each: str) -> list[str]:
        return list(each) if not pattern and each and not 0 < limit < len(each) else _split_by(compiled, each, limit)

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
