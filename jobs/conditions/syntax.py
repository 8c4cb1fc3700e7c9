"""Parses conditions: every call is a call by the name that was written, whatever it is called in other dialects."""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any

import sqlglot
from sqlglot import exp
from sqlglot.dialects.dialect import Dialect

from windowmill.windowing.errors import SpecError, first_line

#: Calls that have a syntax of their own.
_OWN_SYNTAX = ("CAST", "TRY_CAST", "EXTRACT", "TRIM", "SUBSTRING", "SUBSTR", "POSITION")


@cache
def dialect(name: str) -> Any:
    """Sqlglot's dialect ``name`` for texts of Spark: since 4.0 a doubled quote within a text is one quote."""
    base: Any = Dialect.get_or_raise(name)
    tokenizer = type("Tokenizer", (base.tokenizer_class,), {"STRING_ESCAPES": ["\\", "'", '"']})
    # sqlglot parses this function as AT TIME ZONE, which Spark does not have.
    own = {"FUNCTIONS": {name: function for name, function in base.parser_class.FUNCTIONS.items() if name != "FROM_UTC_TIMESTAMP"}}
    # sqlglot registers dialects by the names of their classes.
    return type(f"Quoted{name}", (type(base),), {"Tokenizer": tokenizer, "Parser": type("Parser", (base.parser_class,), own)})


@cache
def _dialect() -> Any:
    # sqlglot's Databricks dialect distinguishes cast from try_cast; its Spark dialect parses both as try_cast.
    base = dialect("databricks")
    parser = base.parser_class
    own = {
        "FUNCTIONS": {},
        "NO_PAREN_FUNCTIONS": {},
        "NO_PAREN_FUNCTION_PARSERS": {name: parser.NO_PAREN_FUNCTION_PARSERS[name] for name in ("ANY", "CASE", "IF")},
        "FUNCTION_PARSERS": {name: parser.FUNCTION_PARSERS[name] for name in _OWN_SYNTAX},
    }
    return type("Conditions", (base,), {"Parser": type("Parser", (parser,), own)})


@lru_cache(1_000)
def parsed(condition: str, named: str | None = None) -> exp.Expr:
    """The tree of an expression, by one of sqlglot's own dialects if one is named; raises ``SpecError`` if it is no Spark SQL."""
    return _parse(condition, dialect(named) if named else _dialect())


@lru_cache(1_000)
def columns_of(condition: str) -> frozenset[str]:
    """Names of the columns that ``condition`` reads; of a field in a column that of the column."""
    found = _parse(condition, dialect("spark")).find_all(exp.Column)
    return frozenset(column.parts[0].name for column in found if not _is_parameter(column))


def _is_parameter(column: exp.Column) -> bool:
    """Whether ``column`` is a parameter of a lambda in other case, which Spark ignores."""
    name, lambda_ = column.parts[0].name.lower(), column.find_ancestor(exp.Lambda)
    while lambda_ is not None:
        if any(parameter.name.lower() == name for parameter in lambda_.expressions):
            return True
        lambda_ = lambda_.find_ancestor(exp.Lambda)
    return False


def _parse(condition: str, own: Any) -> exp.Expr:
    try:
        return sqlglot.parse_one(condition, read=own)
    except (sqlglot.errors.SqlglotError, RecursionError) as err:
        raise SpecError(f"condition {condition!r}: not a Spark SQL condition ({first_line(err)}); correct it in the spec") from err
