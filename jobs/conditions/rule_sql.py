"""Checks of the SQL in rules: a condition on the rows that a rule is about, and a query for the rows that break it.

Spark runs both in the driver or in a shared Connect server, with the rights of that process. So they may read, and call Spark's own
functions; none of them calls Java, starts a program or changes anything.
"""

from __future__ import annotations

import logging
import re
import string
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

import sqlglot
from sqlglot import Token, exp

from windowmill.jobs.conditions.checks import CHANGING, MAKING_ROWS, OF_MANY_ROWS, OF_ONE_ROW, condition_problem
from windowmill.jobs.conditions.syntax import dialect

_LONGEST = 10_000
#: Functions of :data:`.CHANGING` that a query may call: a rule may compare results with the time of its run.
_CLOCK = frozenset(
    {"curdate", "current_date", "current_time", "current_timestamp", "current_timezone", "getdate", "localtime", "localtimestamp", "now"}
)
_REFUSED = (CHANGING - _CLOCK) | {"identifier"}
_KNOWN = OF_ONE_ROW | OF_MANY_ROWS | MAKING_ROWS | _CLOCK
#: For Spark, unlike sqlglot, such a comment goes on in the next line.
_CONTINUED = re.compile(r"--[^\r\n]*\\\r?\n")
_NO_CONTINUATION = "a comment's line ends with a backslash; take it out"


def rule_sql_problems(arguments: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What speaks against the SQL among the ``arguments`` of a rule, as pairs (argument, problem and remedy)."""
    for text in _conditions_in(arguments.get("row_condition")):
        problem = _NO_CONTINUATION if _CONTINUED.search(text) else condition_problem(text)
        if problem is not None:
            yield "row_condition", problem
    query = arguments.get("unexpected_rows_query")
    if isinstance(query, str):
        problem = query_problem(query)
        if problem is not None:
            yield "unexpected_rows_query", f"got {query[:120]!r}; {problem}"


def _conditions_in(condition: object) -> Iterator[str]:
    """The SQL texts of a condition in the form of Great Expectations, which may combine several."""
    if isinstance(condition, Mapping):
        if isinstance(condition.get("pass_through_filter"), str):
            yield condition["pass_through_filter"]
        parts = condition.get("conditions")
        for part in parts if isinstance(parts, list) else ():
            yield from _conditions_in(part)


def query_problem(query: str) -> str | None:
    """Why ``query`` is not one SELECT over ``{batch}`` by functions of Spark SQL, and the remedy; null if it is one."""
    if len(query) > _LONGEST:
        return f"{len(query)} characters; expected at most {_LONGEST}"
    text = _over_batch(query)
    if text is None:
        return "expected SQL over {batch}, as in SELECT * FROM {batch} WHERE …, without other braces"
    if _CONTINUED.search(query):
        return _NO_CONTINUATION
    logging.getLogger("sqlglot").setLevel(logging.ERROR)  # it warns on standard error about statements, which are refused below
    try:
        spark = dialect("spark")
        trees, tokens = [tree for tree in sqlglot.parse(text, read=spark) if tree is not None], sqlglot.tokenize(text, read=spark)
    except (sqlglot.errors.SqlglotError, RecursionError, IndexError):
        return "not a query of Spark SQL that can be checked; correct it, or write it in a simpler form"
    if len(trees) != 1 or not isinstance(trees[0], sqlglot.exp.Query):
        return "expected one SELECT"
    return _tree_problem(trees[0]) or _call_problem(tokens)


def _over_batch(query: str) -> str | None:
    """``query`` as Great Expectations fills it; null if braces hold something else than ``batch``, or nothing names it."""
    try:
        parts = list(string.Formatter().parse(query))
    except ValueError:
        return None
    named = [(name, form, conversion) for _, name, form, conversion in parts if name is not None]
    if not named or any(each != ("batch", "", None) for each in named):
        return None
    return "".join(f"{literal}{'' if name is None else '(batch)'}" for literal, name, *_ in parts)


def _tree_problem(tree: exp.Expr) -> str | None:
    for node in tree.walk():
        if isinstance(node, exp.QueryTransform):
            return "TRANSFORM … USING starts a program; a rule only reads"
        if isinstance(node, exp.DDL | exp.DML | exp.Command):
            return "expected one SELECT; a rule only reads"
        if isinstance(node, exp.Anonymous) and node.name.lower() not in _KNOWN | _REFUSED:
            return f"{node.name[:60]}() is no function of Spark SQL; use one of Spark's own"
    return None


def _call_problem(tokens: list[Token]) -> str | None:
    for token, after in pairwise(tokens):
        if after.token_type.name == "L_PAREN" and token.token_type.name != "STRING" and token.text.lower() in _REFUSED:
            return f"{token.text.lower()}() depends on more than the rows, or calls Java; a rule calls other functions of Spark SQL"
    return None
