"""Functions of texts: patterns, substrings, length and letter case."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from sqlglot import exp

from windowmill.jobs.conditions.sql.terms import NotCommon, Term, either

if TYPE_CHECKING:
    from windowmill.jobs.conditions.sql.translation import Rule, Translation

#: Regular expressions that mean the same to Java and to RE2: no escapes, only plain groups, no nested classes.
_PLAIN_PATTERN = re.compile(
    r"(?:[A-Za-z0-9 _,:;@#%/<>!='\"~.^$|-]|\((?!\?)|\)|\[\^?[A-Za-z0-9 _,:;.-]+\]|[*+?](?![*+?])|\{[0-9,]+\}(?![*+?]))+"
).fullmatch


def _texts(translation: Translation, *nodes: exp.Expr) -> list[Term]:
    terms = [translation.term(node) for node in nodes]
    if any(term.kind != "text" for term in terms):
        raise NotCommon("a text function of something else")
    return terms


def _like(translation: Translation, node: exp.Like) -> Term:
    text, pattern = _texts(translation, node.this, node.expression)
    if pattern.literal is None or "\\" in pattern.literal:
        raise NotCommon("LIKE with an escape, or a pattern that is no literal")
    return Term("bool", f"({text.value} {'NOT ' if node.args.get('negate') else ''}LIKE {pattern.value})", text.failed)


def _regular(translation: Translation, node: exp.RegexpLike) -> Term:
    text, pattern = _texts(translation, node.this, node.expression)
    if pattern.literal is None or not _PLAIN_PATTERN(pattern.literal):
        raise NotCommon("RLIKE with more than characters, classes and single quantifiers")
    translation.plain_texts.append(text.value)
    name = "rlike" if translation.dialect == "spark" else "regexp_matches"
    return Term("bool", f"{name}({text.value}, {pattern.value})", text.failed)


def _length(translation: Translation, node: exp.Length) -> Term:
    [text] = _texts(translation, node.this)
    return Term("int", f"CAST(length({text.value}) AS BIGINT)", text.failed)


def _letter_case(translation: Translation, node: exp.Lower | exp.Upper) -> Term:
    [text] = _texts(translation, node.this)
    translation.plain_texts.append(text.value)
    return Term("text", f"{'lower' if isinstance(node, exp.Lower) else 'upper'}({text.value})", text.failed)


def _trim(translation: Translation, node: exp.Trim) -> Term:
    if node.args.get("expression"):
        raise NotCommon("trim of other characters than spaces")
    [text] = _texts(translation, node.this)
    side = {"LEADING": "ltrim", "TRAILING": "rtrim"}.get(str(node.args.get("position") or "").upper(), "trim")
    # DuckDB would also trim the spaces of other scripts.
    spaces = ", ' '" if translation.dialect == "duckdb" else ""
    return Term("text", f"{side}({text.value}{spaces})", text.failed)


def _substring(translation: Translation, node: exp.Substring) -> Term:
    [text] = _texts(translation, node.this)
    start, length = (node.args.get(name) for name in ("start", "length"))
    bounds = [translation.term(bound) for bound in (start, length) if bound is not None]
    if start is None or any(bound.kind != "int" or bound.literal is None or not 0 <= bound.literal < 2**31 for bound in bounds):
        raise NotCommon("substring with bounds that are no literals from 0")
    # Characters count from 1; 0 means 1 in Spark.
    whole = ", ".join([text.value, str(max(1, bounds[0].literal)), *(str(bound.literal) for bound in bounds[1:])])
    return Term("text", f"substring({whole})", text.failed)


def _part_test(translation: Translation, node: exp.Func) -> Term:
    text, part = _texts(translation, node.this, node.expression)
    spark, duckdb = {exp.StartsWith: ("startswith", "starts_with"), exp.EndsWith: ("endswith", "ends_with")}.get(
        type(node), ("contains", "contains")
    )
    name = spark if translation.dialect == "spark" else duckdb
    return Term("bool", f"{name}({text.value}, {part.value})", either(text.failed, part.failed))


RULES: Mapping[type, Rule] = {
    exp.Like: _like,
    exp.RegexpLike: _regular,
    exp.Length: _length,
    exp.Lower: _letter_case,
    exp.Upper: _letter_case,
    exp.Trim: _trim,
    exp.Substring: _substring,
    **dict.fromkeys((exp.StartsWith, exp.EndsWith, exp.Contains), _part_test),
}
