"""Terms: parts of a condition as SQL of one dialect, each with the condition under which it fails, and their casts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import reduce
from typing import Any, Literal

import pyarrow as pa
from sqlglot import exp

from windowmill.jobs.instants import instant_us

Kind = Literal["int", "float", "decimal", "text", "bool", "instant", "null"]
Dialect = Literal["spark", "duckdb"]
LEAST, GREATEST = -(2**63), 2**63 - 1
#: Digits of Spark's greatest decimals.
MAX_DIGITS = 38
#: What Spark trims of a text before it reads a number: control characters too, for whole numbers also DEL.
_TRIMMED: Mapping[Kind, str] = {"int": r"[\x00-\x20\x7F]*", "float": r"[\x00-\x20]*"}
_WHOLE = r"[+-]?[0-9]+"
#: Java reads the suffixes of its own literals, such as ``1d``, and takes a sign before ``NaN`` only in this spelling.
_NUMBER = r"([+-]?(([0-9]+[.]?[0-9]*|[.][0-9]+)([eE][+-]?[0-9]+)?[dDfF]?|[iI][nN][fF]|[iI][nN][fF][iI][nN][iI][tT][yY]|NaN)|[nN][aA][nN])"
#: Digits of the decimals that Spark casts a whole number to.
_DIGITS_OF_WHOLE = 20
_DAY_US, _HOUR_US, _MINUTE_US = 86_400_000_000, 3_600_000_000, 60_000_000
#: Part of the time of day -> length of the whole that it is a part of, and of its unit, in microseconds.
_CLOCK_US: Mapping[str, tuple[int, int]] = {"hour": (_DAY_US, _HOUR_US), "minute": (_HOUR_US, _MINUTE_US)}
#: Operation -> its SQL in Spark, and in DuckDB.
_SQL: Mapping[str, tuple[str, str]] = {
    "+": ("try_add({0}, {1})", "TRY({0} + {1})"),
    "-": ("try_subtract({0}, {1})", "TRY({0} - {1})"),
    "*": ("try_multiply({0}, {1})", "TRY({0} * {1})"),
    "/": ("try_divide({0}, {1})", "({0} / {1})"),
    "%": ("try_mod({0}, {1})", "({0} % {1})"),
    "div": ("({0} div {1})", "({0} // {1})"),
    # DuckDB's cast rounds.
    "truncated": ("TRY_CAST({0} AS BIGINT)", "TRY_CAST(trunc({0}) AS BIGINT)"),
    "instant": ("timestamp_micros({0})", "make_timestamp(CAST({0} AS BIGINT))"),
    "matches": ("rlike({0}, {1})", "regexp_matches({0}, {1})"),
    "starts with": ("startswith({0}, {1})", "starts_with({0}, {1})"),
    "ends with": ("endswith({0}, {1})", "ends_with({0}, {1})"),
    "contains": ("contains({0}, {1})", "contains({0}, {1})"),
    # DuckDB would also trim the spaces of other scripts.
    "trim": ("{1}({0})", "{1}({0}, ' ')"),
    "text as int": ("{0}", "regexp_replace({0}, '{1}', '', 'g')"),
    "text as float": ("{0}", "regexp_replace(regexp_replace({0}, '{1}', '', 'g'), '([0-9.])[dDfF]$', '\\1')"),
}


def in_sql(dialect: Dialect, operation: str, *operands: object) -> str:
    """``operation`` in the SQL of ``dialect``."""
    return _SQL[operation][dialect == "duckdb"].format(*operands)


class NotCommon(Exception):  # noqa: N818 - names the part of a condition that is outside the common subset
    """A condition is outside the common subset; the message names the part that is."""


@dataclass(frozen=True, slots=True)
class Term:
    """A part of a condition as SQL.

    Attributes
    ----------
    kind
        Type of its value.
    value
        SQL of its value; null where the evaluation fails.
    failed
        SQL that is true where the evaluation fails, and never null; ``None`` if it cannot fail.
    literal
        Value of a literal; ``None`` for other terms.
    """

    kind: Kind
    value: str
    failed: str | None = None
    literal: Any = None


ZERO = Term("int", "CAST(0 AS BIGINT)")


def kind_of(type_: pa.DataType) -> Kind | None:
    """Kind of a column's values in conditions; ``None`` for types outside the common subset."""
    if pa.types.is_boolean(type_):
        return "bool"
    if pa.types.is_signed_integer(type_):
        return "int"
    if pa.types.is_float32(type_) or pa.types.is_float64(type_):
        return "float"
    if pa.types.is_string(type_) or pa.types.is_large_string(type_):
        return "text"
    if pa.types.is_null(type_):
        return "null"
    return "instant" if pa.types.is_timestamp(type_) else None


def truth(term: Term) -> Term:
    """``term`` if it is a condition; raises ``NotCommon`` if not."""
    if term.kind not in ("bool", "null"):
        raise NotCommon(f"{term.kind} where a condition is expected")
    return term


def checked(kind: Kind, value: str, good: str, *terms: Term) -> Term:
    """``value`` where ``good`` holds; where it does not and no term is null, the evaluation fails."""
    known = " AND ".join(f"{term.value} IS NOT NULL" for term in terms)
    failed = f"({known} AND NOT coalesce({good}, FALSE))"
    return Term(kind, f"(CASE WHEN {good} THEN {value} END)", either(*(term.failed for term in terms), failed))


def either(*failed: str | None) -> str | None:
    """SQL that is true where any of ``failed`` holds; ``None`` if all are ``None``."""
    conditions = [each for each in dict.fromkeys(failed) if each is not None]
    return None if not conditions else reduce(lambda one, other: f"({one} OR {other})", conditions)


def where(failed: str | None, reached: str) -> str | None:
    """``failed``, restricted to rows where ``reached`` holds."""
    return None if failed is None else f"({reached} AND {failed})"


def literal(dialect: Dialect, node: exp.Literal) -> Term:
    """A literal; raises ``NotCommon`` for a number beyond the dialects' types."""
    if node.is_string:
        return Term("text", exp.Literal.string(node.this).sql(dialect), literal=node.this)
    text = str(node.this)
    if text.isdigit():
        if int(text) > GREATEST:
            raise NotCommon(text)
        return Term("int", f"CAST({int(text)} AS BIGINT)", literal=int(text))
    if "e" in text.lower():
        return Term("float", f"CAST('{text}' AS DOUBLE)", literal=float(text))
    if len(text) - 1 > MAX_DIGITS:
        raise NotCommon(text)
    return Term("decimal", text, literal=text)


_T = exp.DataType.Type
_TYPES: Mapping[Any, tuple[Kind, str]] = {
    _T.BIGINT: ("int", "BIGINT"),
    _T.INT: ("int", "INT"),
    _T.SMALLINT: ("int", "SMALLINT"),
    _T.TINYINT: ("int", "TINYINT"),
    _T.DOUBLE: ("float", "DOUBLE"),
    _T.TIMESTAMP: ("instant", "TIMESTAMP"),
    _T.TIMESTAMPTZ: ("instant", "TIMESTAMP"),
    **dict.fromkeys((_T.TEXT, _T.VARCHAR), ("text", "STRING")),
}


def cast(dialect: Dialect, term: Term, node: exp.Cast) -> Term:
    """``term`` cast as ``node`` says; raises as :func:`as_kind`."""
    wanted = _TYPES.get(node.to.this)
    if wanted is None:
        raise NotCommon(f"a cast to {node.to.sql('spark')}")
    kind, type_ = wanted
    if term.kind == "null":
        return Term(kind, f"CAST(NULL AS {type_})")
    try:
        result = as_kind(dialect, term, kind)
    except ValueError:
        if not isinstance(node, exp.TryCast):
            raise
        return Term(kind, f"CAST(NULL AS {type_})")
    if kind == "int" and type_ != "BIGINT":
        bits = {"INT": 31, "SMALLINT": 15, "TINYINT": 7}[type_]
        result = checked("int", result.value, f"{result.value} BETWEEN {-(2**bits)} AND {2**bits - 1}", result)
    return Term(result.kind, result.value, None if isinstance(node, exp.TryCast) else result.failed)


def as_kind(dialect: Dialect, term: Term, kind: Kind) -> Term:
    """``term`` cast to ``kind`` as Spark casts it.

    Raises ``NotCommon`` if the dialects differ, and ``ValueError`` for a literal that has no value of that kind.
    """
    if term.kind in (kind, "null"):
        return term
    x = term.value
    match term.kind, kind:
        case "decimal", "float":
            # As a text: DuckDB would divide the digits by a power of ten, and round twice.
            return Term("float", f"CAST('{term.literal}' AS DOUBLE)")
        case "int", "float":
            return Term("float", f"CAST({x} AS DOUBLE)", term.failed)
        case "float", "int":
            inside = f"({x} >= CAST('-9223372036854775808' AS DOUBLE) AND {x} < CAST('9223372036854775808' AS DOUBLE))"
            return checked("int", in_sql(dialect, "truncated", x), inside, term)
        case "decimal", "int":
            whole = int(Decimal(term.literal))
            if not LEAST <= whole <= GREATEST:
                raise ValueError(f"{term.literal} exceeds 64 bits")
            return Term("int", f"CAST({whole} AS BIGINT)", literal=whole)
        case "text", "int":
            return _parsed(dialect, "int", "BIGINT", _WHOLE, term)
        case "text", "float":
            return _parsed(dialect, "float", "DOUBLE", _NUMBER, term)
        case "text", "instant" if term.literal is not None:
            try:
                at = instant_us(term.literal)
            except ValueError as err:
                raise NotCommon(f"{term.literal!r} as an instant") from err
            return Term("instant", in_sql(dialect, "instant", at))
    raise NotCommon(f"a cast of {term.kind} to {kind}")


def _parsed(dialect: Dialect, kind: Kind, type_: str, form: str, term: Term) -> Term:
    pattern = f"^{_TRIMMED[kind]}{form}{_TRIMMED[kind]}$"
    if term.literal is not None and not re.search(pattern, term.literal):
        raise ValueError(f"{term.literal!r} is no {'whole number' if kind == 'int' else 'number'}")
    matches = in_sql(dialect, "matches", term.value, exp.Literal.string(pattern).sql(dialect))
    value = f"TRY_CAST({in_sql(dialect, f'text as {kind}', term.value, _TRIMMED[kind])} AS {type_})"
    return checked(kind, value, f"({matches} AND {value} IS NOT NULL)", term)


def alike(dialect: Dialect, left: Term, right: Term) -> tuple[Term, Term]:
    """Both operands cast as Spark casts them for a comparison: a text to the type of the number or instant on the other side."""
    kinds = {left.kind, right.kind} - {"null"}
    if len(kinds) < 2:
        return left, right
    if kinds == {"int", "decimal"}:
        for decimal in (left, right):
            if decimal.kind == "decimal":
                _check_digits(str(decimal.literal))
        return left, right
    wanted: Kind
    if kinds == {"text", "int"}:
        wanted = "int"
    elif kinds <= {"int", "float", "decimal", "text"} and "float" in kinds:
        wanted = "float"
    elif kinds == {"text", "instant"}:
        wanted = "instant"
    else:
        raise NotCommon(f"a comparison of {' and '.join(sorted(kinds))}")
    return as_kind(dialect, left, wanted), as_kind(dialect, right, wanted)


def _check_digits(decimal: str) -> None:
    """Raise ``NotCommon`` for a decimal of so many digits that no decimal type of both dialects holds it and every whole number."""
    whole, _, rest = decimal.lstrip("-").partition(".")
    if max(_DIGITS_OF_WHOLE, len(whole)) + len(rest) > MAX_DIGITS:
        raise NotCommon(f"{decimal} beside a whole number")


def overflowing(dialect: Dialect, sign: str, left: Term, right: Term) -> Term:
    """A sum, difference or product of whole numbers, which fails where it exceeds 64 bits."""
    value = in_sql(dialect, sign, left.value, right.value)
    return checked("int", value, f"{value} IS NOT NULL", left, right)


def compared(dialect: Dialect, sign: str, left: Term, right: Term) -> Term:
    """A comparison by Spark's ``sign``."""
    left, right = alike(dialect, left, right)
    written = "IS NOT DISTINCT FROM" if sign == "<=>" else sign
    return Term("bool", f"({left.value} {written} {right.value})", either(left.failed, right.failed))


def common_kind(terms: Sequence[Term]) -> Kind:
    """The kind of all ``terms`` that are not null; raises ``NotCommon`` if they differ."""
    kinds = {term.kind for term in terms} - {"null"}
    if len(kinds) > 1:
        raise NotCommon(f"a choice of {' and '.join(sorted(kinds))}")
    return kinds.pop() if kinds else "null"


def part_of_instant(dialect: Dialect, name: str, instant: str) -> str:
    """A part of an instant in UTC, such as its year or hour, as a whole number."""
    if dialect == "spark":
        return f"CAST({_in_utc(name, instant)} AS BIGINT)"
    value = f"CAST({name}({_finite(instant)}) AS BIGINT)"
    # Sunday is 1 in Spark, 0 in DuckDB.
    return f"({value} + 1)" if name == "dayofweek" else value


def _in_utc(name: str, instant: str) -> str:
    """A part of an instant in Spark's SQL. Its own functions of instants take the session's zone."""
    us = f"unix_micros({instant})"
    if name in _CLOCK_US:
        whole, unit = _CLOCK_US[name]
        return f"(pmod({us}, {whole}L) div {unit}L)"
    day = f"({us} div {_DAY_US}L - CASE WHEN {us} % {_DAY_US}L < 0 THEN 1 ELSE 0 END)"
    return f"{name}(date_from_unix_date(CAST({day} AS INT)))"


def _finite(instant: str) -> str:
    """``instant``, or one with the same parts where DuckDB takes it for infinite: the greatest count of microseconds, or its negative."""
    nearest = "make_timestamp(CAST({}9223372036854775806 AS BIGINT))"
    before, after = (f"WHEN {instant} = TIMESTAMP '{sign}infinity' THEN {nearest.format(sign)}" for sign in ("-", ""))
    return f"(CASE {before} {after} ELSE {instant} END)"
