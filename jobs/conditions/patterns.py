"""Regular expressions of Java as those of Python and of RE2, as far as all of them mean the same."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from windowmill.jobs.conditions.evaluated import OutsideError

_ENDS = "\\n\\r\\x85\\u2028\\u2029"
#: The end, or before the last line's end: ``$`` in Java.
_DOLLAR = r"(?:(?<!\r)(?=\n\Z)|(?=(?:\r\n|[\r\x85\u2028\u2029])?\Z))"
_DOLLAR_OF_RE2 = r"(?:\r\n|[\n\r\x{85}\x{2028}\x{2029}])?\z"
_NAMED = {
    "Alpha": "a-zA-Z",
    "Digit": "0-9",
    "Alnum": "a-zA-Z0-9",
    "Upper": "A-Z",
    "Lower": "a-z",
    "Space": " \\t-\\r",
    "XDigit": "0-9a-fA-F",
    "ASCII": "\\x00-\\x7f",
    "Punct": "!-/:-@\\[-`{-~",
}
#: Numbers that are no digits, such as \u00b2 and \u00bd, and accents that follow their letter.
_NO_DIGITS = "\u00b2\u00b3\u00b9\u00bc-\u00be\u2070\u2074-\u2079\u2080-\u2089\u2150-\u2182\u2185-\u2189\u2460-\u249b\u2776-\u2793\u3007"
_ACCENTS = "\u0300-\u036f\u0591-\u05bd\u064b-\u065f\u20d0-\u20dc"
_TOKEN = re.compile(
    r"(?P<escape>\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|p\{\w+\}|k<\w+>|.))|(?P<group>\((?:\?(?:<[A-Za-z]\w*>|<[=!]|[:=!>]|[is]+\)))?)"
    r"|(?P<class>\[\^?)|(?P<count>\{[0-9]+(?:,[0-9]*)?\}|[*+?])(?P<kind>[+?]?)|(?P<other>.)",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Pattern:
    """A pattern of Java.

    Attributes
    ----------
    compiled
        The same for Python, over texts.
    re2
        One for RE2 that finds something in the same texts; null if RE2 cannot.
    """

    compiled: re.Pattern[str]
    re2: str | None


@lru_cache(1_000)
def pattern_of(text: str) -> Pattern:
    """The pattern written ``text``; raises ``OutsideError`` if it may mean something else here than in Java, or nothing."""
    flags, rest = re.ASCII, text
    if found := re.match(r"\(\?([is]+)\)", text):
        rest = text[found.end() :]
        flags |= (re.IGNORECASE if "i" in found[1] else 0) | (re.DOTALL if "s" in found[1] else 0)
    try:
        pieces = list(_pieces(rest, every="s" in (found[1] if found else "")))
        compiled = re.compile("".join(python for python, _ in pieces), flags)
    except (re.error, OverflowError) as err:
        raise _refused(text) from err
    except ValueError as err:
        raise OutsideError(f"the pattern {text!r} ({err})") from err
    ours = None if any(re2 is None for _, re2 in pieces) or re.search(r"\{[0-9]{4,}", rest) else "".join(re2 or "" for _, re2 in pieces)
    if ours is not None and flags & re.IGNORECASE:
        # RE2 would take letters of other scripts for those of ASCII.
        ours = None
    return Pattern(compiled, ours)


def _refused(text: str) -> OutsideError:
    return OutsideError(f"the pattern {text!r}")


def _pieces(text: str, *, every: bool) -> Iterator[tuple[str, str | None]]:
    """Each part of the pattern for Python and for RE2; ``every`` where a dot takes the ends of lines too."""
    place, depth, quantified = 0, 0, False
    while place < len(text):
        found = _TOKEN.match(text, place)
        assert found is not None
        place, after = found.end(), text[found.end() :]
        kind, piece = str(found.lastgroup), found[0]
        if found["count"]:
            if not quantified:
                raise ValueError("a quantifier of nothing, or of another")
            yield piece, None if found["kind"] == "+" else piece
            quantified = False
            continue
        quantified = True
        if kind == "escape":
            yield _escape(piece)
        elif kind == "group":
            if piece.endswith(")"):
                raise ValueError("flags behind the beginning")
            depth, quantified = depth + 1, False
            yield _group(piece)
        elif kind == "class":
            own, place = _class(text, found.start())
            yield own, own
        elif piece == ".":
            yield ("(?s:.)", "(?s:.)") if every else (f"[^{_ENDS}]", r"[^\n\r\x{85}\x{2028}\x{2029}]")
        elif piece == "$":
            yield _DOLLAR, _DOLLAR_OF_RE2 if not after or (depth == 0 and after[0] == "|") else None
            quantified = False
        elif piece == "{":
            raise ValueError("a brace that is no quantifier")
        else:
            depth -= piece == ")"
            quantified = piece not in "|^"
            plain = piece if piece in ")|^" else re.escape(piece) if piece.isascii() and not piece.isalnum() else piece
            yield plain, plain


def _group(piece: str) -> tuple[str, str | None]:
    if piece in ("(", "(?:"):
        return piece, piece
    if piece in ("(?=", "(?!", "(?<=", "(?<!", "(?>"):
        return piece, None
    return f"(?P<{piece[3:]}", f"(?P<{piece[3:]}"


_SIMPLE = {"t": "\\t", "n": "\\n", "r": "\\r", "f": "\\f", "a": "\\x07", "e": "\\x1b"}


def _boundary(letter: str) -> str:
    word = rf"[^\W{_NO_DIGITS}]|[{_ACCENTS}]"
    behind, ahead = (f"(?<={word})", f"(?<!{word})"), (f"(?={word})", f"(?!{word})")
    ahead = ahead if letter == "B" else ahead[::-1]
    return f"(?u:{behind[0]}{ahead[0]}|{behind[1]}{ahead[1]})"


def _escape(piece: str) -> tuple[str, str | None]:
    letter = piece[1:2]
    if letter in "dDwW" and letter:
        return piece, piece
    if letter in ("s", "S"):
        # RE2 leaves out the vertical tab.
        own = "[^ \\t-\\r]" if letter == "S" else "[ \\t-\\r]"
        return own, own
    if letter in ("b", "B"):
        # To Java, words consist of letters, digits and accents of all scripts, but not of other numbers.
        return _boundary(letter), None
    if letter == "A":
        return piece, piece
    if letter in ("z", "Z"):
        return (r"\Z", r"\z") if letter == "z" else (_DOLLAR, None)
    if letter in _SIMPLE:
        return _SIMPLE[letter], _SIMPLE[letter]
    if letter in ("x", "u"):
        return piece, "\\x{" + piece[2:] + "}"
    if letter == "p" and piece[3:-1] in _NAMED:
        own = f"[{_NAMED[piece[3:-1]]}]"
        return own, own
    if letter == "k":
        return f"(?P={piece[3:-1]})", None
    if letter.isdigit() and letter != "0":
        return piece, None
    if not letter or letter.isalnum():
        raise ValueError(f"{piece} is not the same here")
    return re.escape(letter), re.escape(letter)


def _class(text: str, start: int) -> tuple[str, int]:
    """The class of characters that begins at ``start``, and the place behind it."""
    place = start + 1
    own = "["
    if text[place : place + 1] == "^":
        own, place = "[^", place + 1
    if text[place : place + 1] in ("]", ""):
        raise ValueError("an empty class")
    while text[place : place + 1] != "]":
        character = text[place : place + 1]
        if not character or character == "[" or text[place : place + 2] == "&&":
            raise ValueError("a class within a class, or one without an end")
        if character == "\\":
            found = re.compile(r"\\(?:x[0-9a-fA-F]{2}|p\{\w+\}|.)", re.DOTALL).match(text, place)
            if found is None:
                raise ValueError("a class without an end")
            own += _escape_in_class(found[0])
            place = found.end()
            continue
        own += character if character.isalnum() or character in "-_ " or not character.isascii() else "\\" + character
        place += 1
    return own + "]", place + 1


def _escape_in_class(piece: str) -> str:
    letter = piece[1:2]
    if letter == "s":
        return " \\t-\\r"
    if letter == "p" and piece[3:-1] in _NAMED:
        return _NAMED[piece[3:-1]]
    if letter in _SIMPLE:
        return _SIMPLE[letter]
    if letter in "dDwWx" and letter:
        return piece
    if not letter or letter.isalnum():
        raise ValueError(f"{piece} is not the same here")
    return "\\" + letter


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
