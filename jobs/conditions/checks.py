"""Checks that a text is a condition with the same result on every engine: Spark SQL over one row, with the same result at every retry.

So it must name no instant by the clock: Spark replaces 'now', 'today', 'tomorrow', 'yesterday' and 'epoch' where a constant becomes a date
or an instant, by a cast that is written or by one that it adds. Without the types of the columns it is not known whether ``x = 'today'``
compares dates or texts, so one side must be a text on its face.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING

from windowmill.jobs.column_names import TAKEN
from windowmill.jobs.conditions.syntax import dialect
from windowmill.jobs.conditions.written import CHANGING, LAMBDAS, MAKING_ROWS, OF_MANY_ROWS, function_problems, written_problem

if TYPE_CHECKING:
    from sqlglot import Token, exp

    from windowmill.windowing.spec import Pipeline

_LONGEST = 10_000
_STRAY_LAMBDA = "a lambda (x -> …) is given where no function takes one; take it out"
#: Columns that Spark adds to rows: the path and size of their file, which OPTIMIZE changes, and the grouping of an aggregation.
_HIDDEN = {"_metadata", "grouping__id"}
#: Spark also takes a zone behind the word, and trims control characters.
_BY_CLOCK = re.compile(
    r"[\x00-\x20\x7f]*(epoch|now|today|tomorrow|yesterday)[ \t]*"
    r"(?:[A-Z]{1,3}|[A-Za-z_]+/[A-Za-z_/+-]+|(?:UTC|GMT|UT)?[+-][0-9:]+)?[\x00-\x20\x7f]*",
    re.IGNORECASE,
)


def conditions_by_field(pipeline: Pipeline) -> Iterator[tuple[str, str]]:
    """Every condition on the source's rows, as pairs (path of the field, text)."""
    if pipeline.source is not None and pipeline.source.filter is not None:
        yield "source.filter", pipeline.source.filter
    for index, window in enumerate(pipeline.windows):
        for name, text in window.conditions().items():
            yield f"windows.{index}.{name}", text
    for name, aggregate in pipeline.aggregates.items():
        if aggregate.where is not None:
            yield f"aggregates.{name}.where", aggregate.where


def condition_problem(text: str) -> str | None:
    """Why ``text`` is not a condition over one row, and the remedy; null if it is one."""
    if not text.strip():
        return "got a blank; expected a Spark SQL condition, or leave the field out"
    if len(text) > _LONGEST:
        return f"{len(text)} characters; expected at most {_LONGEST}"
    if not text.replace("\n", "").replace("\t", "").replace("\r", "").isprintable():
        return "holds a character that cannot be printed; take it out"
    got = f"got {text[:120]!r}"
    tree = _parsed(text)
    if isinstance(tree, str):
        return f"{got}; {tree}"
    problem = _form_problem(tree) or parts_problem(tree, text)
    return None if problem is None else f"{got}; {problem}"


def parts_problem(tree: exp.Expr, text: str) -> str | None:
    """Why a part of the condition ``text`` means nothing in Spark, or not the same at each run; null if none. ``tree`` is its tree."""
    tokens = _tokens(text)
    return _first_problem(tree) or written_problem(text, tokens) or _arrow_problem(tree, tokens)


def _first_problem(tree: exp.Expr) -> str | None:
    return next((problem for node in tree.walk() if (problem := _node_problem(node)) is not None), None)


def _arrow_problem(tree: exp.Expr, tokens: Sequence[Token]) -> str | None:
    from sqlglot import exp

    # sqlglot reads an arrow that begins no lambda as a step into JSON, as other dialects write it.
    arrows = sum(token.token_type.name == "ARROW" for token in tokens)
    return None if arrows == len(list(tree.find_all(exp.Lambda))) else _STRAY_LAMBDA


def _tokens(text: str) -> Sequence[Token]:
    import sqlglot

    return sqlglot.tokenize(text, read=dialect("spark"))


def _parsed(text: str) -> exp.Expr | str:
    """The parse tree of ``text``, or the problem with it."""
    import sqlglot

    # sqlglot warns on standard error about texts that it takes for commands, which are refused below anyway.
    logging.getLogger("sqlglot").setLevel(logging.ERROR)
    try:
        statements = [statement for statement in sqlglot.parse(text, read=dialect("spark")) if statement is not None]
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
        return "a statement or a list is no condition"
    if isinstance(tree, exp.Literal | exp.Interval | exp.Null | exp.Neg | exp.Lambda) or _is_value(tree):
        return "a value is no condition; compare it with something"
    return None


def _is_value(node: exp.Expr) -> bool:
    """Whether ``node`` is no truth on its face."""
    from sqlglot import exp

    if isinstance(node, exp.Cast):
        return bool(node.to.this != exp.DataType.Type.BOOLEAN)
    arithmetic = (exp.Add, exp.Sub, exp.Mul, exp.Div, exp.Mod, exp.IntDiv, exp.DPipe)
    bits = (exp.BitwiseAnd, exp.BitwiseOr, exp.BitwiseXor, exp.BitwiseNot, exp.BitwiseLeftShift, exp.BitwiseRightShift)
    return isinstance(node, (*arithmetic, *bits))


def _node_problem(node: exp.Expr) -> str | None:
    from sqlglot import exp

    if isinstance(node, exp.Query | exp.Subquery | exp.Values | exp.Table):
        return "a condition reads one row; it has no subquery"
    if isinstance(node, exp.Placeholder | exp.Parameter | exp.SessionParameter):
        return "a parameter is never given a value; write the value, or ${NAME} for the environment's"
    if isinstance(node, exp.Window):
        return "a window function (OVER) needs other rows; a condition reads one row"
    if isinstance(node, exp.Filter | exp.WithinGroup | exp.Distinct | exp.Order | exp.IgnoreNulls | exp.RespectNulls):
        return "FILTER, DISTINCT, ORDER BY and the like choose among many rows; a condition reads one row"
    if isinstance(node, exp.Star):
        return "* means columns that depend on the engine; name the columns"
    if isinstance(node, exp.Column):
        return _column_problem(node)
    return _function_problem(node) or _lambda_problem(node) or _operand_problem(node) or _spelling_problem(node) or clock_problem(node)


def _column_problem(node: exp.Column) -> str | None:
    name = node.parts[0].name.lower()
    if name in _HIDDEN:
        return f"{name} is a hidden column, whose values are not the source's; a condition reads the source's own columns"
    if not name.startswith("_"):
        return None

    if name in TAKEN:
        return f"the column {name!r} is windowmill's own; a condition reads the source's columns"
    return None


def _function_problem(node: exp.Expr) -> str | None:
    from sqlglot import exp

    names = _names(node)
    if not names:
        return None
    if names == {"all"}:
        return "all() needs many rows; a condition reads one row"
    if type(node).__name__.startswith("Current"):
        return next(function_problems({min(names & CHANGING, default="current_timestamp")}))
    if isinstance(node, exp.UDTF):
        return f"{min(names)}() makes several rows of one; a condition says yes or no"
    if isinstance(node, exp.AggFunc):
        return f"{min(names)}() needs many rows; a condition reads one row"
    # A node may have names of other dialects in addition to Spark's own; the words that were written are checked elsewhere.
    return next(function_problems(names), None) if names & (CHANGING | MAKING_ROWS | OF_MANY_ROWS) else None


def _lambda_problem(node: exp.Expr) -> str | None:
    from sqlglot import exp

    takes = next((LAMBDAS[name] for name in sorted(_names(node)) if name in LAMBDAS), ())
    given = [child for child in node.iter_expressions() if isinstance(child, exp.Lambda)]
    if isinstance(node.this, exp.Query | exp.Values):
        return None  # EXISTS (SELECT …), which is refused as a subquery
    if not given and (not takes or "array_sort" in _names(node)):
        return None
    if not takes or isinstance(node, exp.Lambda):
        return _STRAY_LAMBDA
    if not given or len(given) > len(takes):
        return f"{min(_names(node) & LAMBDAS.keys())}() takes a lambda such as x -> x > 1; give it one"
    for lambda_, counts in zip(given, takes, strict=False):
        if len(lambda_.expressions) not in counts:
            name, wanted = min(_names(node) & LAMBDAS.keys()), " or ".join(map(str, sorted(counts)))
            return f"a lambda of {name}() has {len(lambda_.expressions)} parameters; expected {wanted}"
    return None


def _operand_problem(node: exp.Expr) -> str | None:
    """Whether a comparison has a comparison as its operand without parentheses, where Spark's order of evaluation is another."""
    from sqlglot import exp

    comparisons = (exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE, exp.NullSafeEQ, exp.NullSafeNEQ)
    predicates = (*comparisons, exp.Is, exp.In, exp.Between, exp.Like, exp.ILike)
    if not isinstance(node, predicates):
        return None
    if any(isinstance(operand, (*predicates, exp.Not, exp.And, exp.Or)) for operand in node.iter_expressions()):
        return "two comparisons stand side by side; put one of them in parentheses"
    return None


def _spelling_problem(node: exp.Expr) -> str | None:
    """What sqlglot knows from other dialects."""
    from sqlglot import exp

    foreign = (exp.SimilarTo, exp.Glob, exp.JSON, exp.AtTimeZone, exp.Slice, exp.Overlaps, exp.JSONBExtract, exp.National)
    if isinstance(node, foreign) or (isinstance(node, exp.Between) and node.args.get("symmetric")):
        return f"{node.key.upper()} is no Spark SQL; use one of Spark's own functions"
    if isinstance(node, exp.If) and isinstance(node.this.unnest(), exp.Null):
        return "null is no condition; write false"
    if isinstance(node, exp.In) and not node.expressions and not node.args.get("query"):
        return "IN takes a list of values in parentheses, such as v in (1, 2)"
    if isinstance(node, exp.Cast) and node.args.get("format"):
        return "a cast has no FORMAT in Spark SQL; use to_timestamp, to_date or to_number"
    if isinstance(node, exp.DataType) and node.this in exp.DataType.UNSIGNED_INTEGER_TYPES:
        return "Spark SQL has no unsigned types; cast to bigint or decimal(20, 0)"
    return None


def _names(node: exp.Expr) -> set[str]:
    """The names of the function ``node`` in lower case; empty if it is not a function."""
    from sqlglot import exp

    if isinstance(node, exp.Anonymous):
        return {str(node.this).lower()}
    if isinstance(node, exp.Any | exp.All):
        return set() if isinstance(node.parent, exp.Like | exp.ILike) else {"any"}
    # sqlglot also represents operators such as AND as functions.
    if isinstance(node, exp.Func) and not isinstance(node, exp.Connector | exp.Cast | exp.Case | exp.If):
        return {name.lower() for name in node.sql_names()}
    return set()


def clock_problem(node: exp.Expr) -> str | None:
    """Why the constant ``node`` may be an instant by the clock, and the remedy; null if it is not, or if it is no whole constant."""
    if not is_text(node) or not _is_constant(node) or _in_constant(node) or _as_text(node):
        return None
    text = _value(node)
    if text is None:
        return "a text that is computed from constants may be an instant by the clock; write it as one text"
    found = _BY_CLOCK.fullmatch(text)
    if found is None:
        return None
    if found[1].lower() == "epoch":
        return f"{text!r} names an instant only in constants; write '1970-01-01', or for a text string(…) = {text!r}"
    return (
        f"{text!r} is another instant at each run; conditions must hold of the same rows when a run is repeated; "
        f"write the instant itself, or for a text string(…) = {text!r}"
    )


def _value(node: exp.Expr) -> str | None:
    """The text of a constant; null if it is not plain to see."""
    from sqlglot import exp

    if isinstance(node, exp.Literal):
        return str(node.this)
    if isinstance(node, exp.Paren | exp.Collate) or (isinstance(node, exp.Cast) and is_text(node.this)):
        return _value(node.this)
    if isinstance(node, exp.Concat | exp.DPipe):
        parts = [_value(part) for part in (node.expressions or (node.this, node.expression))]
        return None if None in parts else "".join(filter(None, parts))
    return None


def is_text(node: exp.Expr) -> bool:
    """Whether ``node`` is a text whatever the types of the columns."""
    from sqlglot import exp

    if isinstance(node, exp.Paren):
        return is_text(node.this)
    if isinstance(node, exp.Literal):
        return bool(node.is_string)
    if isinstance(node, exp.Cast):
        return node.to.this in exp.DataType.TEXT_TYPES
    if isinstance(node, exp.Case | exp.If | exp.Coalesce | exp.Nullif | exp.Greatest | exp.Least):
        branches = node.args.get("ifs") or [node]
        values = [branch.args.get("true") for branch in branches] + [node.args.get("default"), node.args.get("false")]
        values += [node.this if not isinstance(node, exp.Case | exp.If) else None, *node.expressions]
        given = [value for value in values if value is not None]
        return bool(given) and all(is_text(value) for value in given)
    return isinstance(node, _making_texts()) or (isinstance(node, exp.Anonymous) and str(node.this).lower() in _NAMED)


#: Functions that take a text, or a value of any type as it is.
_TAKING_TEXTS = frozenset(
    """
    array_contains array_position array_remove ascii element_at find_in_set get_json_object hash instr length levenshtein locate
    map_contains_key position regexp_count regexp_instr regexp_split sha sha1 sha2 soundex split xxhash64
    """.split()  # noqa: SIM905 - quotes and commas would double the length
)
#: Functions of texts that sqlglot has no type for.
_NAMED = frozenset({"string", "format_string", "printf", "char", "elt", "btrim", "date_format", "url_decode", "url_encode", "mask"})


@cache
def _making_texts() -> tuple[type, ...]:
    from sqlglot import exp

    names = (
        *(
            "Concat",
            "ConcatWs",
            "DPipe",
            "Lower",
            "Upper",
            "Trim",
            "Substring",
            "SubstringIndex",
            "Replace",
            "Initcap",
            "Left",
            "Right",
            "Pad",
        ),
        *(
            "Repeat",
            "Collate",
            "RegexpReplace",
            "RegexpExtract",
            "TimeToStr",
            "JSONExtractScalar",
            "Reverse",
            "Translate",
            "Overlay",
            "Chr",
            "SplitPart",
        ),
        *("FormatNumber", "MD5", "Hex"),
    )
    return tuple(getattr(exp, name) for name in names if hasattr(exp, name))


def _is_constant(node: exp.Expr) -> bool:
    from sqlglot import exp

    return node.find(exp.Column) is None


def _in_constant(node: exp.Expr) -> bool:
    """Whether a greater text is computed of the constant ``node`` from constants alone: that is what counts."""
    from sqlglot import exp

    parent = node.parent
    while isinstance(parent, exp.Paren):
        parent = parent.parent
    return parent is not None and is_text(parent) and _is_constant(parent)


def _as_text(node: exp.Expr) -> bool:
    """Whether Spark leaves a text at ``node`` a text."""
    from sqlglot import exp

    parent = node.parent
    while isinstance(parent, exp.Paren):
        node, parent = parent, parent.parent
    while isinstance(parent, exp.Any | exp.All | exp.Tuple):
        node, parent = parent, parent.parent
    if isinstance(parent, exp.Like | exp.ILike | exp.RegexpLike | exp.Bracket | exp.StartsWith | exp.EndsWith | exp.Contains | exp.Length):
        return True
    if isinstance(parent, exp.EQ | exp.NEQ | exp.LT | exp.LTE | exp.GT | exp.GTE | exp.NullSafeEQ | exp.NullSafeNEQ):
        other = parent.right if parent.left is node else parent.left
        return is_text(other)
    if isinstance(parent, exp.Between):
        return is_text(parent.this) and all(is_text(parent.args[name]) for name in ("low", "high"))
    if isinstance(parent, exp.In):
        return is_text(parent.this) and all(map(is_text, parent.expressions))
    if isinstance(parent, exp.Anonymous):
        return str(parent.this).lower() in _TAKING_TEXTS or is_text(parent)
    if isinstance(parent, exp.Func) and _TAKING_TEXTS & {name.lower() for name in parent.sql_names()}:
        return True
    return parent is not None and is_text(parent) and not isinstance(parent, exp.Cast)
