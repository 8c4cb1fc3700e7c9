"""Checks that a text is a condition that every engine evaluates alike: Spark SQL over one row, with the same result at every retry."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlglot import exp

_LONGEST = 10_000
#: Functions whose result differs between calls, sessions or machines: a retry would choose other rows.
_CHANGING = {
    "curdate", "current_catalog", "current_database", "current_date", "current_schema", "current_time", "current_timestamp",
    "current_timezone", "current_user", "getdate", "input_file_block_length", "input_file_block_start", "input_file_name",
    "java_method", "localtime", "localtimestamp", "monotonically_increasing_id", "now", "rand", "randn", "random", "randstr",
    "reflect", "session_user", "shuffle", "spark_partition_id", "try_reflect", "uniform", "user", "uuid", "version",
}  # fmt: skip
#: Functions of many rows that sqlglot takes for functions of one row, or does not know.
_OF_MANY_ROWS = {
    "any", "bit_and", "bit_or", "bit_xor", "bitmap_construct_agg", "bitmap_or_agg", "bool_and", "bool_or", "count_min_sketch", "cume_dist",
    "dense_rank", "every", "grouping", "grouping_id", "histogram_numeric", "hll_sketch_agg", "hll_union_agg", "kurtosis", "lag", "lead",
    "listagg", "max_by", "mean", "min_by", "mode", "nth_value", "ntile", "percent_rank", "percentile", "percentile_approx", "rank",
    "regr_avgx", "regr_avgy", "regr_count", "regr_intercept", "regr_r2", "regr_slope", "regr_sxx", "regr_sxy", "regr_syy", "row_number",
    "session_window", "skewness", "some", "string_agg", "try_avg", "try_sum", "window", "window_time",
}  # fmt: skip
#: Functions that make several rows of one.
_MANY_FROM_ONE = {"explode", "explode_outer", "inline", "inline_outer", "json_tuple", "posexplode", "posexplode_outer", "stack"}


def condition_problem(text: str) -> str | None:
    """Why ``text`` is not a condition over one row, and the remedy; null if it is one."""
    if not text.strip():
        return "got a blank; expected a Spark SQL condition, or leave the field out"
    if len(text) > _LONGEST:
        return f"{len(text)} characters; expected at most {_LONGEST}"
    if not text.replace("\n", "").replace("\t", "").replace("\r", "").isprintable():
        return "holds a character that cannot be printed; take it out"
    tree = _parsed(text)
    got = f"got {text[:120]!r}"
    if isinstance(tree, str):
        return f"{got}; {tree}"
    problem = _form_problem(tree)
    if problem is None:
        for node in tree.walk():
            problem = _node_problem(node)
            if problem is not None:
                break
    return None if problem is None else f"{got}; {problem}"


def _parsed(text: str) -> exp.Expr | str:
    """The parse tree of ``text``, or the problem with it."""
    import sqlglot

    # sqlglot warns on standard error about texts that it takes for commands, which are refused below anyway.
    logging.getLogger("sqlglot").setLevel(logging.ERROR)
    try:
        statements = [statement for statement in sqlglot.parse(text, read="spark") if statement is not None]
    except sqlglot.errors.TokenError:
        return "not a Spark SQL condition (a quote is not closed, or a character is none of SQL's); correct it"
    except sqlglot.errors.SqlglotError as err:
        return f"not a Spark SQL condition ({_first(err)}); correct it"
    except RecursionError:
        return "its parts lie too deep within one another; write it flat"
    if not statements:
        return "nothing but a comment; expected a Spark SQL condition"
    return statements[0] if len(statements) == 1 else "expected one condition, without a semicolon"


def _first(err: Exception) -> str:
    # "Required keyword" names classes of sqlglot. Later lines quote parts of the text, which may come from the environment.
    line = str(err).splitlines()[0].rstrip(".")[:200]
    position = re.search(r"Line (\d+), Col: (\d+)", line)
    what = "something is missing" if line.startswith("Required keyword") else line.partition(". Line")[0]
    return f"{what} near line {position[1]}, character {position[2]}" if position else what


def _form_problem(tree: exp.Expr) -> str | None:
    from sqlglot import exp

    if isinstance(tree, exp.Query):
        return "a condition reads one row; it has no SELECT"
    if isinstance(tree, exp.Alias):
        return "not a Spark SQL condition (two names stand side by side); correct it"
    if not isinstance(tree, exp.Condition) or isinstance(tree, exp.Star):
        return "a statement or a list stands where a condition should"
    if isinstance(tree, exp.Literal | exp.Interval | exp.Null) or (isinstance(tree, exp.Neg) and isinstance(tree.this, exp.Literal)):
        return "a value stands where a condition should; compare it with something"
    return None


def _node_problem(node: exp.Expr) -> str | None:
    from sqlglot import exp

    if isinstance(node, exp.Query | exp.Subquery):
        return "a condition reads one row; it has no subquery"
    if isinstance(node, exp.Placeholder | exp.Parameter | exp.SessionParameter):
        return "a parameter is never given a value; write the value, or ${NAME} for the environment's"
    if isinstance(node, exp.Window):
        return "a window function (OVER) needs other rows; a condition reads one row"
    names = _names(node)
    if not names:
        return None
    if names & _CHANGING or type(node).__name__.startswith("Current"):
        name = min(names & _CHANGING, default=min(names))
        return f"{name}() gives another answer at each run; conditions must hold of the same rows when a run is repeated"
    if names & _MANY_FROM_ONE or isinstance(node, exp.UDTF):
        return f"{min(names)}() makes several rows of one; a condition says yes or no"
    if isinstance(node, exp.AggFunc) or names & _OF_MANY_ROWS:
        return f"{min(names)}() needs many rows; a condition reads one row"
    return None


def _names(node: exp.Expr) -> set[str]:
    """The names of the function ``node`` in lower case; empty if it is not a function."""
    from sqlglot import exp

    if isinstance(node, exp.Anonymous):
        return {str(node.this).lower()}
    if isinstance(node, exp.Any):
        return {"any"}
    # sqlglot also represents operators such as AND as functions.
    if isinstance(node, exp.Func) and not isinstance(node, exp.Connector | exp.Cast | exp.Case | exp.If):
        return {name.lower() for name in node.sql_names()}
    return set()
