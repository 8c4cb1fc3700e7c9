"""Logic: and, or, not, null tests, comparisons, ranges and lists."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from sqlglot import exp

from windowmill.jobs.conditions.sql.casts import alike
from windowmill.jobs.conditions.sql.terms import Dialect, NotCommon, Term, either, truth, where

if TYPE_CHECKING:
    from windowmill.jobs.conditions.sql.translation import Rule, Translation

_COMPARISONS: Mapping[type, str] = {
    exp.EQ: "=",
    exp.NEQ: "<>",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
    exp.NullSafeEQ: "<=>",
}


def _conjunction(translation: Translation, node: exp.And) -> Term:
    one, other = truth(translation.term(node.left)), truth(translation.term(node.right))
    return Term("bool", f"({one.value} AND {other.value})", either(one.failed, where(other.failed, f"({one.value}) IS NOT FALSE")))


def _disjunction(translation: Translation, node: exp.Or) -> Term:
    one, other = truth(translation.term(node.left)), truth(translation.term(node.right))
    return Term("bool", f"({one.value} OR {other.value})", either(one.failed, where(other.failed, f"({one.value}) IS NOT TRUE")))


def _negation(translation: Translation, node: exp.Not) -> Term:
    term = truth(translation.term(node.this))
    return Term("bool", f"(NOT {term.value})", term.failed)


def _null_test(translation: Translation, node: exp.Is) -> Term:
    if not isinstance(node.expression, exp.Null):
        raise NotCommon(f"{node.sql('spark')!r}")
    term = translation.term(node.this)
    return Term("bool", f"({term.value} IS NULL)", term.failed)


def _compare(translation: Translation, node: exp.Binary) -> Term:
    return _compared(translation.dialect, _COMPARISONS[type(node)], translation.term(node.left), translation.term(node.right))


def _compared(dialect: Dialect, sign: str, left: Term, right: Term) -> Term:
    left, right = alike(dialect, left, right)
    written = "IS NOT DISTINCT FROM" if sign == "<=>" else sign
    return Term("bool", f"({left.value} {written} {right.value})", either(left.failed, right.failed))


def _between(translation: Translation, node: exp.Between) -> Term:
    term, low, high = (translation.term(node.args[name]) for name in ("this", "low", "high"))
    above, below = _compared(translation.dialect, ">=", term, low), _compared(translation.dialect, "<=", term, high)
    return Term("bool", f"({above.value} AND {below.value})", either(above.failed, below.failed))


def _membership(translation: Translation, node: exp.In) -> Term:
    term = translation.term(node.this)
    one_of = [_compared(translation.dialect, "=", term, translation.term(item)) for item in node.expressions]
    if len({translation.term(item).kind for item in node.expressions} - {"null"}) > 1:
        raise NotCommon("a list of different types")
    return Term("bool", f"({' OR '.join(one.value for one in one_of)})", either(*(one.failed for one in one_of)))


RULES: Mapping[type, Rule] = {
    exp.And: _conjunction,
    exp.Or: _disjunction,
    exp.Not: _negation,
    exp.Is: _null_test,
    **dict.fromkeys(_COMPARISONS, _compare),
    exp.Between: _between,
    exp.In: _membership,
}
