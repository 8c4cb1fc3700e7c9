"""Texts that Spark takes for an instant by the clock: 'now', 'today', 'tomorrow', 'yesterday', and 'epoch'.

Spark replaces such a text where a constant becomes a date or an instant, by a cast that is written or by one that it adds. Without the
types of the columns nothing tells whether ``x = 'today'`` compares dates or texts, so one side must be a text on its face.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlglot import exp

#: Spark also takes a zone behind the word, and trims control characters.
_BY_CLOCK = re.compile(
    r"[\x00-\x20\x7f]*(epoch|now|today|tomorrow|yesterday)[ \t]*"
    r"(?:[A-Z]{1,3}|[A-Za-z_]+/[A-Za-z_/+-]+|(?:UTC|GMT|UT)?[+-][0-9:]+)?[\x00-\x20\x7f]*",
    re.IGNORECASE,
)


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
    """Whether ``node`` stands where Spark leaves a text a text."""
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
