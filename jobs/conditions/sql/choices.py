"""COALESCE, IF, CASE and NULLIF: terms that choose among values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from sqlglot import exp

from windowmill.jobs.conditions.sql.terms import Kind, NotCommon, Term, either, truth, where

if TYPE_CHECKING:
    from windowmill.jobs.conditions.sql.translation import Rule, Translation


def _coalesce(translation: Translation, node: exp.Coalesce) -> Term:
    terms = [translation.term(each) for each in (node.this, *node.expressions)]
    kind = _same(terms)
    failed, before = terms[0].failed, terms[0].value
    for term in terms[1:]:
        failed = either(failed, where(term.failed, f"{before} IS NULL"))
        before = f"coalesce({before}, {term.value})"
    return Term(kind, f"coalesce({', '.join(term.value for term in terms)})", failed)


def _choice(translation: Translation, node: exp.If | exp.Case) -> Term:
    if node.args.get("this") is not None and isinstance(node, exp.Case):
        raise NotCommon("CASE of a value")
    branches = node.args["ifs"] if isinstance(node, exp.Case) else [node]
    last = node.args.get("default" if isinstance(node, exp.Case) else "false")
    if any(isinstance(branch.this.unnest(), exp.Null) for branch in branches):
        raise NotCommon("null as the test of a choice")
    tests = [truth(translation.term(branch.this)) for branch in branches]
    values = [translation.term(branch.args["true"]) for branch in branches]
    otherwise = Term("null", "NULL") if last is None else translation.term(last)
    kind = _same([*values, otherwise])
    failed = otherwise.failed
    for test, value in reversed(list(zip(tests, values, strict=True))):
        failed = either(test.failed, where(value.failed, f"({test.value}) IS TRUE"), where(failed, f"({test.value}) IS NOT TRUE"))
    arms = " ".join(f"WHEN {test.value} THEN {value.value}" for test, value in zip(tests, values, strict=True))
    return Term(kind, f"(CASE {arms} ELSE {otherwise.value} END)", failed)


def _null_if(translation: Translation, node: exp.Nullif) -> Term:
    left, right = translation.term(node.this), translation.term(node.expression)
    if left.kind != right.kind:
        raise NotCommon(f"nullif of {left.kind} and {right.kind}")
    return Term(left.kind, f"nullif({left.value}, {right.value})", either(left.failed, right.failed))


def _same(terms: Sequence[Term]) -> Kind:
    kinds = {term.kind for term in terms} - {"null"}
    if len(kinds) > 1:
        raise NotCommon(f"a choice of {' and '.join(sorted(kinds))}")
    return kinds.pop() if kinds else "null"


RULES: Mapping[type, Rule] = {
    exp.Coalesce: _coalesce,
    exp.If: _choice,
    exp.Case: _choice,
    exp.Nullif: _null_if,
}
