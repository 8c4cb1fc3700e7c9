"""Terms: parts of a condition as SQL, each with the condition under which it fails."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import Any, Literal

import pyarrow as pa

Kind = Literal["int", "float", "decimal", "text", "bool", "instant", "null"]
Dialect = Literal["spark", "duckdb"]
LEAST, GREATEST = -(2**63), 2**63 - 1
#: Digits of Spark's greatest decimals.
MAX_DIGITS = 38


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
