"""Casts, explicit and implicit: Spark casts a text to the type of the number or instant that it is compared with."""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from sqlglot import exp

from windowmill.jobs.conditions.sql.terms import GREATEST, LEAST, MAX_DIGITS, Dialect, Kind, NotCommon, Term, checked
from windowmill.jobs.instants import instant_us

if TYPE_CHECKING:
    from windowmill.jobs.conditions.sql.translation import Rule, Translation

#: What Spark trims of a text before it reads a number: control characters too, for whole numbers also DEL.
_TRIMMED: Mapping[Kind, str] = {"int": r"[\x00-\x20\x7F]*", "float": r"[\x00-\x20]*"}
_WHOLE = r"[+-]?[0-9]+"
#: Java takes the suffixes of its own literals, and a sign before NaN where that is written as its own.
_NUMBER = r"([+-]?(([0-9]+[.]?[0-9]*|[.][0-9]+)([eE][+-]?[0-9]+)?[dDfF]?|[iI][nN][fF]|[iI][nN][fF][iI][nN][iI][tT][yY]|NaN)|[nN][aA][nN])"
#: Digits of the decimals that Spark casts a whole number to.
_DIGITS_OF_WHOLE = 20
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


def _cast(translation: Translation, node: exp.Cast) -> Term:
    wanted = _TYPES.get(node.to.this)
    term = translation.term(node.this)
    if wanted is None:
        raise NotCommon(f"a cast to {node.to.sql('spark')}")
    kind, type_ = wanted
    if term.kind == "null":
        return Term(kind, f"CAST(NULL AS {type_})")
    try:
        result = as_kind(translation.dialect, term, kind)
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
            # Truncate towards zero as Spark does: DuckDB's cast rounds.
            inside = f"({x} >= CAST('-9223372036854775808' AS DOUBLE) AND {x} < CAST('9223372036854775808' AS DOUBLE))"
            truncated = f"TRY_CAST(trunc({x}) AS BIGINT)" if dialect == "duckdb" else f"TRY_CAST({x} AS BIGINT)"
            return checked("int", truncated, inside, term)
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
            return Term("instant", f"timestamp_micros({at})" if dialect == "spark" else f"make_timestamp(CAST({at} AS BIGINT))")
    raise NotCommon(f"a cast of {term.kind} to {kind}")


def _parsed(dialect: Dialect, kind: Kind, type_: str, form: str, term: Term) -> Term:
    pattern = f"^{_TRIMMED[kind]}{form}{_TRIMMED[kind]}$"
    if term.literal is not None and not re.search(pattern, term.literal):
        raise ValueError(f"{term.literal!r} is no {'whole number' if kind == 'int' else 'number'}")
    if dialect == "spark":
        matches, text = f"rlike({term.value}, '{pattern.replace(chr(92), chr(92) * 2)}')", term.value
    else:
        matches, text = f"regexp_matches({term.value}, '{pattern}')", f"regexp_replace({term.value}, '{_TRIMMED[kind]}', '', 'g')"
        if kind == "float":
            text = f"regexp_replace({text}, '([0-9.])[dDfF]$', '\\1')"
    value = f"TRY_CAST({text} AS {type_})"
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
    """Raise ``NotCommon`` for a decimal that no whole number can be compared with in a decimal type of both dialects."""
    whole, _, rest = decimal.lstrip("-").partition(".")
    if max(_DIGITS_OF_WHOLE, len(whole)) + len(rest) > MAX_DIGITS:
        raise NotCommon(f"{decimal} beside a whole number")


RULES: Mapping[type, Rule] = {exp.Cast: _cast, exp.TryCast: _cast}
