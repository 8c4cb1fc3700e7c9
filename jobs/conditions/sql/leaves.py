"""Literals, columns and constants: the leaves of a condition."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from sqlglot import exp

from windowmill.jobs.conditions.sql.terms import GREATEST, MAX_DIGITS, NotCommon, Term, kind_of
from windowmill.jobs.instants import local_time_sql

if TYPE_CHECKING:
    from windowmill.jobs.conditions.sql.translation import Rule, Translation


def _literal(translation: Translation, node: exp.Literal) -> Term:
    if node.is_string:
        return Term("text", exp.Literal.string(node.this).sql(translation.dialect), literal=node.this)
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


def _column(translation: Translation, node: exp.Column) -> Term:
    if node.table:
        raise NotCommon(f"{node.sql('spark')!r}")
    matches = [name for name in translation.types if name == node.name] or [
        name for name in translation.types if name.lower() == node.name.lower()
    ]
    kind = kind_of(translation.types[matches[0]]) if len(matches) == 1 else None
    if kind is None:
        raise NotCommon(f"column {node.name!r}")
    name = exp.column(matches[0], quoted=True).sql(translation.dialect)
    types = {"int": "BIGINT", "float": "DOUBLE", "instant": "TIMESTAMP"}
    if kind == "instant" and translation.dialect == "spark" and translation.types[matches[0]].tz is None:
        return Term(kind, f"timestamp_micros({local_time_sql(name)})")
    return Term(kind, f"CAST({name} AS {types[kind]})" if kind in types else name)


def _paren(translation: Translation, node: exp.Paren) -> Term:
    return translation.term(node.this)


def _boolean(_translation: Translation, node: exp.Boolean) -> Term:
    return Term("bool", "TRUE" if node.this else "FALSE")


def _null(_translation: Translation, _node: exp.Null) -> Term:
    return Term("null", "NULL")


RULES: Mapping[type, Rule] = {
    exp.Literal: _literal,
    exp.Column: _column,
    exp.Paren: _paren,
    exp.Boolean: _boolean,
    exp.Null: _null,
}
