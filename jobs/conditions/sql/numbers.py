"""Arithmetic that fails where Spark's would: on overflow and on division by zero."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import TYPE_CHECKING

import pyarrow as pa
from sqlglot import exp

from windowmill.jobs.conditions.sql.casts import as_kind
from windowmill.jobs.conditions.sql.terms import LEAST, Dialect, Kind, NotCommon, Term, checked, either

if TYPE_CHECKING:
    from windowmill.jobs.conditions.sql.translation import Rule, Translation


def _numbers(translation: Translation, node: exp.Binary) -> tuple[Kind, Term, Term]:
    left, right = translation.term(node.left), translation.term(node.right)
    kinds = {left.kind, right.kind}
    if kinds == {"int"}:
        return "int", left, right
    if "float" in kinds and kinds <= {"int", "float", "decimal"}:
        return "float", as_kind(translation.dialect, left, "float"), as_kind(translation.dialect, right, "float")
    raise NotCommon(f"arithmetic of {' and '.join(sorted(kinds))}")


def _arithmetic(translation: Translation, node: exp.Binary) -> Term:
    kind, left, right = _numbers(translation, node)
    sign, name = {exp.Add: ("+", "try_add"), exp.Sub: ("-", "try_subtract"), exp.Mul: ("*", "try_multiply")}[type(node)]
    if kind == "float":
        if _has_single(translation, node.left) and _has_single(translation, node.right):
            raise NotCommon("arithmetic of single precision")
        return Term("float", f"({left.value} {sign} {right.value})", either(left.failed, right.failed))
    return _overflowing(translation.dialect, name, sign, left, right)


def _has_single(translation: Translation, node: exp.Expr) -> bool:
    """Whether ``node`` reads a column of single precision. Spark adds and multiplies two of them in single precision, too."""
    names = {column.name.lower() for column in node.find_all(exp.Column)}
    return any(pa.types.is_float32(kind) and name.lower() in names for name, kind in translation.types.items())


def _overflowing(dialect: Dialect, name: str, sign: str, left: Term, right: Term) -> Term:
    value = f"{name}({left.value}, {right.value})" if dialect == "spark" else f"TRY({left.value} {sign} {right.value})"
    return checked("int", value, f"{value} IS NOT NULL", left, right)


def _negative(translation: Translation, node: exp.Neg) -> Term:
    term = translation.term(node.this)
    if term.literal is not None and term.kind in ("int", "decimal", "float"):
        return Term(term.kind, f"(-{term.value})", literal=str(-Decimal(term.literal)) if term.kind == "decimal" else -term.literal)
    if term.kind == "float":
        return Term("float", f"(-{term.value})", term.failed)
    if term.kind == "int":
        return _overflowing(translation.dialect, "try_subtract", "-", Term("int", "CAST(0 AS BIGINT)"), term)
    raise NotCommon(f"- of {term.kind}")


def _divided(translation: Translation, node: exp.Binary) -> Term:
    kind, left, right = _numbers(translation, node)
    if isinstance(node, exp.Div):
        left, right = as_kind(translation.dialect, left, "float"), as_kind(translation.dialect, right, "float")
        value = f"try_divide({left.value}, {right.value})" if translation.dialect == "spark" else f"({left.value} / {right.value})"
        return checked("float", value, f"{right.value} <> 0", left, right)
    if isinstance(node, exp.Mod):
        # The remainder by -1 is 0, but computing it overflows for the least integer.
        rest = f"try_mod({left.value}, {right.value})" if translation.dialect == "spark" else f"({left.value} % {right.value})"
        value = rest if kind == "float" else f"(CASE WHEN {right.value} = -1 THEN {left.value} * 0 ELSE {rest} END)"
        return checked(kind, value, f"{right.value} <> 0", left, right)
    if kind != "int":
        raise NotCommon("div of floats")
    least = f"({left.value} = CAST('{LEAST}' AS BIGINT) AND {right.value} = -1)"
    value = f"({left.value} {'div' if translation.dialect == 'spark' else '//'} {right.value})"
    return checked("int", value, f"({right.value} <> 0 AND NOT {least})", left, right)


def _absolute(translation: Translation, node: exp.Abs) -> Term:
    term = translation.term(node.this)
    if term.kind == "float":
        return Term("float", f"abs({term.value})", term.failed)
    if term.kind != "int":
        raise NotCommon(f"abs of {term.kind}")
    negated = _overflowing(translation.dialect, "try_subtract", "-", Term("int", "CAST(0 AS BIGINT)"), term)
    value = f"(CASE WHEN {term.value} < 0 THEN {negated.value} ELSE {term.value} END)"
    return Term("int", value, either(term.failed, f"({term.value} IS NOT NULL AND {value} IS NULL)"))


def _is_nan(translation: Translation, node: exp.IsNan) -> Term:
    term = translation.term(node.this)
    if term.kind != "float":
        raise NotCommon(f"isnan of {term.kind}")
    return Term("bool", f"coalesce(isnan({term.value}), FALSE)", term.failed)


RULES: Mapping[type, Rule] = {
    **dict.fromkeys((exp.Add, exp.Sub, exp.Mul), _arithmetic),
    **dict.fromkeys((exp.Div, exp.Mod, exp.IntDiv), _divided),
    exp.Neg: _negative,
    exp.Abs: _absolute,
    exp.IsNan: _is_nan,
}
