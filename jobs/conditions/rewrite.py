"""Rewrites conditions in the common subset of Spark SQL and DuckDB, and marks the rows on which Spark's ANSI mode would fail.

Both dialects get their SQL from here, term by term, so that they agree on every row. A term has a value and a failure condition: where the
evaluation fails (a cast of a text that is not a number, a division by zero, an overflow), the value is null. A condition with a node that
has no rule is not rewritten: Spark evaluates it as written, and ``windowmill try`` refuses it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import pyarrow as pa
from sqlglot import exp

from windowmill.jobs.conditions.terms import (
    LEAST,
    ZERO,
    Dialect,
    Kind,
    NotCommon,
    Term,
    as_kind,
    cast,
    checked,
    common_kind,
    compared,
    either,
    in_sql,
    kind_of,
    literal,
    overflowing,
    part_of_instant,
    truth,
    where,
)
from windowmill.jobs.instants import local_time_sql

#: Names of a node's arguments that rules handle; a node with another argument is not translated.
_ARGUMENTS = {
    *("this", "expression", "expressions", "to", "ifs", "default", "true", "false", "low", "high"),
    *("start", "length", "position", "is_string", "table"),
}
#: Further arguments that the rules of some nodes handle.
_MORE_ARGUMENTS: Mapping[type[exp.Expr], frozenset[str]] = {exp.Like: frozenset({"negate"}), exp.TryCast: frozenset({"safe"})}
#: Limit on the SQL in characters; a term that can fail occurs in it more than once.
_LONGEST = 100_000


@dataclass
class Rewrite:
    """One condition over columns of given types, in one dialect.

    Attributes
    ----------
    plain_texts
        SQL of texts on whose value the dialects agree only if it is printable ASCII.
    """

    dialect: Dialect
    types: Mapping[str, pa.DataType]
    plain_texts: list[str] = field(default_factory=list)

    def condition(self, tree: exp.Expr) -> Term:
        """Translate the whole condition.

        Raises ``NotCommon`` outside the common subset, and ``ValueError`` for a literal that has no value of the required type.
        """
        term = truth(self.term(tree))
        if len(term.value) + len(term.failed or "") > _LONGEST:
            raise NotCommon("a condition of such length")
        return term

    def term(self, node: exp.Expr) -> Term:
        """Translate a part of the condition; raises as :meth:`condition`."""
        rule = _RULES.get(type(node))
        more = {name for name, value in node.args.items() if value not in (None, False, [])} - _ARGUMENTS
        if rule is None or more - _MORE_ARGUMENTS.get(type(node), frozenset()):
            raise NotCommon(f"{node.sql('spark')!r}")
        return rule(self, node)


#: Rewrites a node of the types for which it is registered.
Rule = Callable[[Rewrite, Any], Term]
_RULES: dict[type, Rule] = {}


def _rule(*nodes: type) -> Callable[[Rule], Rule]:
    def register(rule: Rule) -> Rule:
        _RULES.update(dict.fromkeys(nodes, rule))
        return rule

    return register


@_rule(exp.Literal)
def _literal(rewrite: Rewrite, node: exp.Literal) -> Term:
    return literal(rewrite.dialect, node)


@_rule(exp.Column)
def _column(rewrite: Rewrite, node: exp.Column) -> Term:
    if node.table:
        raise NotCommon(f"{node.sql('spark')!r}")
    matches = [name for name in rewrite.types if name == node.name] or [name for name in rewrite.types if name.lower() == node.name.lower()]
    kind = kind_of(rewrite.types[matches[0]]) if len(matches) == 1 else None
    if kind is None:
        raise NotCommon(f"column {node.name!r}")
    name = exp.column(matches[0], quoted=True).sql(rewrite.dialect)
    types = {"int": "BIGINT", "float": "DOUBLE", "instant": "TIMESTAMP"}
    if kind == "instant" and rewrite.dialect == "spark" and rewrite.types[matches[0]].tz is None:
        return Term(kind, f"timestamp_micros({local_time_sql(name)})")
    return Term(kind, f"CAST({name} AS {types[kind]})" if kind in types else name)


@_rule(exp.Paren)
def _paren(rewrite: Rewrite, node: exp.Paren) -> Term:
    return rewrite.term(node.this)


@_rule(exp.Boolean, exp.Null)
def _constant(_rewrite: Rewrite, node: exp.Boolean | exp.Null) -> Term:
    return Term("null", "NULL") if isinstance(node, exp.Null) else Term("bool", "TRUE" if node.this else "FALSE")


_COMPARISONS: Mapping[type, str] = {
    exp.EQ: "=",
    exp.NEQ: "<>",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
    exp.NullSafeEQ: "<=>",
}


@_rule(exp.And, exp.Or)
def _connection(rewrite: Rewrite, node: exp.Connector) -> Term:
    one, other = truth(rewrite.term(node.left)), truth(rewrite.term(node.right))
    word, decided = ("AND", "FALSE") if isinstance(node, exp.And) else ("OR", "TRUE")
    failed = either(one.failed, where(other.failed, f"({one.value}) IS NOT {decided}"))
    return Term("bool", f"({one.value} {word} {other.value})", failed)


@_rule(exp.Not)
def _negation(rewrite: Rewrite, node: exp.Not) -> Term:
    term = truth(rewrite.term(node.this))
    return Term("bool", f"(NOT {term.value})", term.failed)


@_rule(exp.Is)
def _null_test(rewrite: Rewrite, node: exp.Is) -> Term:
    if not isinstance(node.expression, exp.Null):
        raise NotCommon(f"{node.sql('spark')!r}")
    term = rewrite.term(node.this)
    return Term("bool", f"({term.value} IS NULL)", term.failed)


@_rule(*_COMPARISONS)
def _compare(rewrite: Rewrite, node: exp.Binary) -> Term:
    return compared(rewrite.dialect, _COMPARISONS[type(node)], rewrite.term(node.left), rewrite.term(node.right))


@_rule(exp.Between)
def _between(rewrite: Rewrite, node: exp.Between) -> Term:
    term, low, high = (rewrite.term(node.args[name]) for name in ("this", "low", "high"))
    above, below = compared(rewrite.dialect, ">=", term, low), compared(rewrite.dialect, "<=", term, high)
    return Term("bool", f"({above.value} AND {below.value})", either(above.failed, below.failed))


@_rule(exp.In)
def _membership(rewrite: Rewrite, node: exp.In) -> Term:
    term = rewrite.term(node.this)
    one_of = [compared(rewrite.dialect, "=", term, rewrite.term(item)) for item in node.expressions]
    if len({rewrite.term(item).kind for item in node.expressions} - {"null"}) > 1:
        raise NotCommon("a list of different types")
    return Term("bool", f"({' OR '.join(one.value for one in one_of)})", either(*(one.failed for one in one_of)))


@_rule(exp.Cast, exp.TryCast)
def _cast(rewrite: Rewrite, node: exp.Cast) -> Term:
    return cast(rewrite.dialect, rewrite.term(node.this), node)


def _numbers(rewrite: Rewrite, node: exp.Binary) -> tuple[Kind, Term, Term]:
    left, right = rewrite.term(node.left), rewrite.term(node.right)
    kinds = {left.kind, right.kind}
    if kinds == {"int"}:
        return "int", left, right
    if "float" in kinds and kinds <= {"int", "float", "decimal"}:
        return "float", as_kind(rewrite.dialect, left, "float"), as_kind(rewrite.dialect, right, "float")
    raise NotCommon(f"arithmetic of {' and '.join(sorted(kinds))}")


@_rule(exp.Add, exp.Sub, exp.Mul)
def _arithmetic(rewrite: Rewrite, node: exp.Binary) -> Term:
    kind, left, right = _numbers(rewrite, node)
    sign = {exp.Add: "+", exp.Sub: "-", exp.Mul: "*"}[type(node)]
    if kind == "float":
        if _has_single(rewrite, node.left) and _has_single(rewrite, node.right):
            raise NotCommon("arithmetic of single precision")
        return Term("float", f"({left.value} {sign} {right.value})", either(left.failed, right.failed))
    return overflowing(rewrite.dialect, sign, left, right)


def _has_single(rewrite: Rewrite, node: exp.Expr) -> bool:
    """Whether ``node`` reads a column of single precision. Spark adds and multiplies two of them in single precision, too."""
    names = {column.name.lower() for column in node.find_all(exp.Column)}
    return any(pa.types.is_float32(kind) and name.lower() in names for name, kind in rewrite.types.items())


@_rule(exp.Neg)
def _negative(rewrite: Rewrite, node: exp.Neg) -> Term:
    term = rewrite.term(node.this)
    if term.literal is not None and term.kind in ("int", "decimal", "float"):
        return Term(term.kind, f"(-{term.value})", literal=str(-Decimal(term.literal)) if term.kind == "decimal" else -term.literal)
    if term.kind == "float":
        return Term("float", f"(-{term.value})", term.failed)
    if term.kind == "int":
        return overflowing(rewrite.dialect, "-", ZERO, term)
    raise NotCommon(f"- of {term.kind}")


@_rule(exp.Div, exp.Mod, exp.IntDiv)
def _divided(rewrite: Rewrite, node: exp.Binary) -> Term:
    kind, left, right = _numbers(rewrite, node)
    if isinstance(node, exp.Div):
        left, right = as_kind(rewrite.dialect, left, "float"), as_kind(rewrite.dialect, right, "float")
        return checked("float", in_sql(rewrite.dialect, "/", left.value, right.value), f"{right.value} <> 0", left, right)
    if isinstance(node, exp.Mod):
        # The remainder by -1 is 0, but computing it overflows for the least integer.
        rest = in_sql(rewrite.dialect, "%", left.value, right.value)
        value = rest if kind == "float" else f"(CASE WHEN {right.value} = -1 THEN {left.value} * 0 ELSE {rest} END)"
        return checked(kind, value, f"{right.value} <> 0", left, right)
    if kind != "int":
        raise NotCommon("div of floats")
    least = f"({left.value} = CAST('{LEAST}' AS BIGINT) AND {right.value} = -1)"
    return checked("int", in_sql(rewrite.dialect, "div", left.value, right.value), f"({right.value} <> 0 AND NOT {least})", left, right)


@_rule(exp.Abs)
def _absolute(rewrite: Rewrite, node: exp.Abs) -> Term:
    term = rewrite.term(node.this)
    if term.kind == "float":
        return Term("float", f"abs({term.value})", term.failed)
    if term.kind != "int":
        raise NotCommon(f"abs of {term.kind}")
    negated = overflowing(rewrite.dialect, "-", ZERO, term)
    value = f"(CASE WHEN {term.value} < 0 THEN {negated.value} ELSE {term.value} END)"
    return Term("int", value, either(term.failed, f"({term.value} IS NOT NULL AND {value} IS NULL)"))


@_rule(exp.IsNan)
def _is_nan(rewrite: Rewrite, node: exp.IsNan) -> Term:
    term = rewrite.term(node.this)
    if term.kind != "float":
        raise NotCommon(f"isnan of {term.kind}")
    return Term("bool", f"coalesce(isnan({term.value}), FALSE)", term.failed)


#: Regular expressions that mean the same to Java and to RE2: no escapes, only plain groups, no nested classes.
_PLAIN_PATTERN = re.compile(
    r"(?:[A-Za-z0-9 _,:;@#%/<>!='\"~.^$|-]|\((?!\?)|\)|\[\^?[A-Za-z0-9 _,:;.-]+\]|[*+?](?![*+?])|\{[0-9,]+\}(?![*+?]))+"
).fullmatch


def _texts(rewrite: Rewrite, *nodes: exp.Expr) -> list[Term]:
    terms = [rewrite.term(node) for node in nodes]
    if any(term.kind != "text" for term in terms):
        raise NotCommon("a text function of something else")
    return terms


@_rule(exp.Like)
def _like(rewrite: Rewrite, node: exp.Like) -> Term:
    text, pattern = _texts(rewrite, node.this, node.expression)
    if pattern.literal is None or "\\" in pattern.literal:
        raise NotCommon("LIKE with an escape, or a pattern that is no literal")
    return Term("bool", f"({text.value} {'NOT ' if node.args.get('negate') else ''}LIKE {pattern.value})", text.failed)


@_rule(exp.RegexpLike)
def _regular(rewrite: Rewrite, node: exp.RegexpLike) -> Term:
    text, pattern = _texts(rewrite, node.this, node.expression)
    if pattern.literal is None or not _PLAIN_PATTERN(pattern.literal):
        raise NotCommon("RLIKE with more than characters, classes and single quantifiers")
    rewrite.plain_texts.append(text.value)
    return Term("bool", in_sql(rewrite.dialect, "matches", text.value, pattern.value), text.failed)


@_rule(exp.Length)
def _length(rewrite: Rewrite, node: exp.Length) -> Term:
    [text] = _texts(rewrite, node.this)
    return Term("int", f"CAST(length({text.value}) AS BIGINT)", text.failed)


@_rule(exp.Lower, exp.Upper)
def _letter_case(rewrite: Rewrite, node: exp.Lower | exp.Upper) -> Term:
    [text] = _texts(rewrite, node.this)
    rewrite.plain_texts.append(text.value)
    return Term("text", f"{node.key}({text.value})", text.failed)


@_rule(exp.Trim)
def _trim(rewrite: Rewrite, node: exp.Trim) -> Term:
    if node.args.get("expression"):
        raise NotCommon("trim of other characters than spaces")
    [text] = _texts(rewrite, node.this)
    side = {"LEADING": "ltrim", "TRAILING": "rtrim"}.get(str(node.args.get("position") or "").upper(), "trim")
    return Term("text", in_sql(rewrite.dialect, "trim", text.value, side), text.failed)


@_rule(exp.Substring)
def _substring(rewrite: Rewrite, node: exp.Substring) -> Term:
    [text] = _texts(rewrite, node.this)
    start, length = (node.args.get(name) for name in ("start", "length"))
    bounds = [rewrite.term(bound) for bound in (start, length) if bound is not None]
    if start is None or any(bound.kind != "int" or bound.literal is None or not 0 <= bound.literal < 2**31 for bound in bounds):
        raise NotCommon("substring with bounds that are no literals from 0")
    # Characters count from 1; 0 means 1 in Spark.
    whole = ", ".join([text.value, str(max(1, bounds[0].literal)), *(str(bound.literal) for bound in bounds[1:])])
    return Term("text", f"substring({whole})", text.failed)


_PART_TESTS: Mapping[type, str] = {exp.StartsWith: "starts with", exp.EndsWith: "ends with", exp.Contains: "contains"}


@_rule(*_PART_TESTS)
def _part_test(rewrite: Rewrite, node: exp.Func) -> Term:
    text, part = _texts(rewrite, node.this, node.expression)
    return Term("bool", in_sql(rewrite.dialect, _PART_TESTS[type(node)], text.value, part.value), either(text.failed, part.failed))


@_rule(exp.Coalesce)
def _coalesce(rewrite: Rewrite, node: exp.Coalesce) -> Term:
    terms = [rewrite.term(each) for each in (node.this, *node.expressions)]
    kind = common_kind(terms)
    failed, before = terms[0].failed, terms[0].value
    for term in terms[1:]:
        failed = either(failed, where(term.failed, f"{before} IS NULL"))
        before = f"coalesce({before}, {term.value})"
    return Term(kind, f"coalesce({', '.join(term.value for term in terms)})", failed)


@_rule(exp.If, exp.Case)
def _choice(rewrite: Rewrite, node: exp.If | exp.Case) -> Term:
    if node.args.get("this") is not None and isinstance(node, exp.Case):
        raise NotCommon("CASE of a value")
    branches = node.args["ifs"] if isinstance(node, exp.Case) else [node]
    last = node.args.get("default" if isinstance(node, exp.Case) else "false")
    if any(isinstance(branch.this.unnest(), exp.Null) for branch in branches):
        raise NotCommon("null as the test of a choice")
    tests = [truth(rewrite.term(branch.this)) for branch in branches]
    values = [rewrite.term(branch.args["true"]) for branch in branches]
    otherwise = Term("null", "NULL") if last is None else rewrite.term(last)
    kind = common_kind([*values, otherwise])
    failed = otherwise.failed
    for test, value in reversed(list(zip(tests, values, strict=True))):
        failed = either(test.failed, where(value.failed, f"({test.value}) IS TRUE"), where(failed, f"({test.value}) IS NOT TRUE"))
    arms = " ".join(f"WHEN {test.value} THEN {value.value}" for test, value in zip(tests, values, strict=True))
    return Term(kind, f"(CASE {arms} ELSE {otherwise.value} END)", failed)


@_rule(exp.Nullif)
def _null_if(rewrite: Rewrite, node: exp.Nullif) -> Term:
    left, right = rewrite.term(node.this), rewrite.term(node.expression)
    if left.kind != right.kind:
        raise NotCommon(f"nullif of {left.kind} and {right.kind}")
    return Term(left.kind, f"nullif({left.value}, {right.value})", either(left.failed, right.failed))


_PARTS: Mapping[type, str] = {
    exp.Year: "year",
    exp.Month: "month",
    exp.Day: "day",
    exp.DayOfMonth: "day",
    exp.DayOfWeek: "dayofweek",
    exp.Hour: "hour",
    exp.Minute: "minute",
    exp.DayOfYear: "dayofyear",
    exp.Quarter: "quarter",
}


@_rule(*_PARTS)
def _instant_part(rewrite: Rewrite, node: exp.Func) -> Term:
    inner = node.this
    term = rewrite.term(inner.this if isinstance(inner, exp.TsOrDsToDate) else inner)
    if term.kind != "instant":
        raise NotCommon(f"a part of {term.kind}")
    return Term("int", part_of_instant(rewrite.dialect, _PARTS[type(node)], term.value), term.failed)
