"""Checks a condition as it is written: sqlglot parses more than Spark does, and its tree no longer tells which words were used."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from windowmill.jobs.conditions.functions import CHANGING, MAKING_ROWS, OF_MANY_ROWS, OF_ONE_ROW

if TYPE_CHECKING:
    from sqlglot import Token

#: Words before a parenthesis that are no function there.
_WORDS = frozenset(
    """
    all and any as between both case cast distinct div else end escape exists extract from in interval ilike is leading like not on or
    overlay placing position regexp rlike some substr substring then timestampadd timestampdiff trailing trim try_cast values when
    """.split()  # noqa: SIM905 - quotes and commas would double the length
)
#: Words before a text that are no type or prefix there; sqlglot would read ``json 'x'`` as a cast.
_BEFORE_TEXT = _WORDS | {"date", "timestamp", "timestamp_ltz", "timestamp_ntz", "r", "x", "collate"}
#: Types of Spark's casts.
_TYPES = frozenset(
    """
    array bigint binary boolean byte char character date dec decimal double float int integer interval long map numeric real short smallint
    string struct timestamp timestamp_ltz timestamp_ntz tinyint varchar variant void
    """.split()  # noqa: SIM905
)
_OPERATORS = frozenset("= == <> != < <= > >= <=> + - * / % ~ & | ^ || << >> >>> -> ( ) [ ] , . :: ! : ;".split())  # noqa: SIM905
#: Functions that take a unit as a word, and the units.
_OF_UNITS = frozenset({"date_add", "date_diff", "dateadd", "datediff", "timestampadd", "timestampdiff"})
_UNITS = frozenset({"microsecond", "millisecond", "second", "minute", "hour", "day", "dayofyear", "week", "month", "quarter", "year"})
_NUMBER = re.compile(r"(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
#: Digits of Spark's greatest decimal.
_MAX_DIGITS = 38


def written_problem(text: str, tokens: Sequence[Token]) -> str | None:
    """Why Spark would not take a condition ``text`` of these ``tokens``, and the remedy; null if nothing speaks against it."""
    return next(_problems(text, tokens), None)


def _problems(text: str, tokens: Sequence[Token]) -> Iterator[str]:
    between = zip([0, *(token.end + 1 for token in tokens)], [*(token.start for token in tokens), len(text)], strict=True)
    if any("/*+" in text[begin:end] for begin, end in between):
        yield "a hint (/*+ … */) belongs to a query; take it out"
    for number, token in enumerate(tokens):
        kind, after = token.token_type.name, tokens[number + 1] if number + 1 < len(tokens) else None
        before = tokens[number - 1] if number else None
        if kind == "SEMICOLON":
            yield "expected one condition, without a semicolon"
        elif kind == "NUMBER":
            yield from _number_problems(token)
        elif kind == "L_BRACKET" and (before is None or not _ends_a_value(before)):
            yield "a list is written array(1, 2) in Spark SQL, not in brackets"
        elif kind == "L_BRACKET" and after is not None and after.token_type.name == "R_BRACKET":
            yield "empty brackets stand for nothing in Spark SQL; a list's type is written array<int>"
        elif kind == "L_BRACE":
            yield "a struct or map is written named_struct('a', 1) or map('a', 1) in Spark SQL, not in braces"
        elif kind in ("ISNULL", "NOTNULL") and (after is None or after.token_type.name != "L_PAREN"):
            yield f"{token.text} behind a value is no Spark SQL; write is null or is not null"
        elif kind == "FARROW":
            yield "an argument is given by name; give it by its place"
        elif kind == "WITH":
            yield "WITH is no part of a Spark SQL condition; an instant's type is timestamp"
        elif kind in ("HEX_STRING", "BIT_STRING") and token.text and not _is_quoted(token):
            yield "a number in hexadecimal or binary is no Spark SQL; write it in decimal"
        elif kind != "STRING" and not _is_word(token) and not token.text[:1].isalnum() and _is_foreign(token):
            yield f"{token.text} is no operator of Spark SQL; use one of its functions"
    for number, (token, after) in enumerate(pairwise(tokens)):
        if token.token_type.name in ("ALIAS", "DCOLON"):
            yield from _type_problems(after)
        if not _is_word(token):
            continue
        if after.token_type.name == "L_PAREN":
            yield from _call_problems(number, tokens)
        if after.token_type.name == "STRING" and token.text.lower() not in _BEFORE_TEXT:
            yield f"{token.text} stands before a text, which Spark SQL does not know; cast the text, or take the word out"


def _is_word(token: Token) -> bool:
    return token.text[:1].isalpha() or token.text[:1] == "_" if token.token_type.name != "STRING" else False


def _is_foreign(token: Token) -> bool:
    quoted = token.token_type.name in (
        "IDENTIFIER",
        "RAW_STRING",
        "HEX_STRING",
        "BIT_STRING",
        "NATIONAL_STRING",
        "UNICODE_STRING",
        "BYTE_STRING",
    )
    return not quoted and token.text not in _OPERATORS


def _is_quoted(token: Token) -> bool:
    """Whether a HEX_STRING is written x'…', which is longer than 0x…."""
    return token.end - token.start + 1 == len(token.text) + 3


def _ends_a_value(token: Token) -> bool:
    return token.token_type.name in ("R_PAREN", "R_BRACKET", "STRING", "IDENTIFIER") or (
        _is_word(token) and token.text.lower() not in _WORDS
    )


def _number_problems(token: Token) -> Iterator[str]:
    if not _NUMBER.fullmatch(token.text):
        yield f"{token.text} is no number of Spark SQL; write its digits alone"
    elif "e" not in token.text.lower():
        whole, _, rest = token.text.partition(".")
        if max(len((whole + rest).lstrip("0")), len(rest)) > _MAX_DIGITS:
            yield f"{token.text[:12]}… has more digits than a decimal of Spark SQL, which are {_MAX_DIGITS}; shorten it"


def _type_problems(token: Token) -> Iterator[str]:
    # What stands after a number, as in 1L, is a type by sqlglot's own naming.
    if token.text.lower() not in _TYPES and token.text not in ("BD", "D", "F", "L", "S", "Y"):
        yield f"{token.text[:40]!r} is no type that Spark SQL casts to; the types are {', '.join(sorted(_TYPES))}"


def _call_problems(number: int, tokens: Sequence[Token]) -> Iterator[str]:
    token, before = tokens[number], tokens[number - 1] if number else None
    name, first = token.text.lower(), tokens[number + 2] if number + 2 < len(tokens) else None
    if name in _OF_UNITS and first is not None and first.token_type.name == "STRING" and first.text.lower() in _UNITS:
        yield f"the unit of {name}() stands without quotes in Spark SQL: {name}({first.text}, …)"
    if before is not None and before.token_type.name == "DOT":
        yield f"{token.text[:60]}() stands behind a dot; conditions call Spark's own functions, by their bare name"
    if before is not None and before.token_type.name in ("ALIAS", "DCOLON", "LT", "COLON") and name in _TYPES:
        return
    yield from function_problems({name} if name not in _WORDS else set())


def function_problems(names: set[str]) -> Iterator[str]:
    """What speaks against a function of one of these ``names``, in lower case."""
    if not names:
        return
    name = min(names)[:60]
    if names & CHANGING:
        yield f"{min(names & CHANGING)}() gives another answer at each run; conditions must hold of the same rows when a run is repeated"
    elif names & MAKING_ROWS:
        yield f"{name}() makes several rows of one; a condition says yes or no"
    elif names & OF_MANY_ROWS:
        yield f"{name}() needs many rows; a condition reads one row"
    elif not names & OF_ONE_ROW:
        from difflib import get_close_matches

        near = get_close_matches(name, OF_ONE_ROW, n=1, cutoff=0.8)
        yield f"{name}() is no function of Spark SQL over one row" + (
            f"; did you mean {near[0]}()?" if near else "; use one of Spark's own"
        )
