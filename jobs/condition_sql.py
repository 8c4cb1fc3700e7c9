"""Conditions in the common subset of Spark SQL and DuckDB, translated with what Spark's ANSI mode would fail on told apart.

Both dialects get their SQL from here, term by term, so that they agree on every row: a term is its value, and whether it has failed
(a cast of a text that is no number, a division by zero, an overflow), which makes the value null. Whatever is not listed here is not
translated: Spark evaluates it as it stands, and ``windowmill try`` refuses it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, Literal

import pyarrow as pa
from sqlglot import exp

from windowmill.jobs.instants import instant_us

Kind = Literal["int", "float", "decimal", "text", "bool", "instant", "null"]
Dialect = Literal["spark", "duckdb"]
_LEAST, _GREATEST = -(2**63), 2**63 - 1
#: Regular expressions that are the same to Java and to RE2: no escapes, no groups but plain ones, no class within a class.
_PLAIN_PATTERN = re.compile(
    r"(?:[A-Za-z0-9 _,:;@#%/<>!='\"~.^$|-]|\((?!\?)|\)|\[\^?[A-Za-z0-9 _,:;.-]+\]|[*+?](?![*+?])|\{[0-9,]+\}(?![*+?]))+"
).fullmatch
#: What the parts of a node may be called; one that says more is not known here.
_ARGUMENTS = {
    *("this", "expression", "expressions", "to", "ifs", "default", "true", "false", "low", "high"),
    *("start", "length", "position", "is_string", "table"),
}
#: What else the parts of some nodes may be called.
_MORE_ARGUMENTS: Mapping[type[exp.Expr], frozenset[str]] = {exp.Like: frozenset({"negate"}), exp.TryCast: frozenset({"safe"})}
#: Characters of SQL; terms that can fail stand in it more than once.
_LONGEST = 100_000
_WHOLE = r"^[ ]*[+-]?[0-9]+[ ]*$"
_NUMBER = r"^[ ]*[+-]?(([0-9]+[.]?[0-9]*|[.][0-9]+)([eE][+-]?[0-9]+)?|[iI][nN][fF]|[iI][nN][fF][iI][nN][iI][tT][yY]|[nN][aA][nN])[ ]*$"


class NotCommon(Exception):  # noqa: N818 - says what of a condition is outside the common subset
    """A condition is outside the common subset; the message says by what."""


@dataclass(frozen=True, slots=True)
class Term:
    """A part of a condition as SQL.

    Attributes
    ----------
    failed
        SQL that is true where the term cannot be evaluated, and never null; ``None`` where it always can.
    literal
        Its value, of a literal.
    """

    kind: Kind
    value: str
    failed: str | None = None
    literal: Any = None


def kind_of(type_: pa.DataType) -> Kind | None:
    """What a column's values are to conditions; ``None`` for types that the common subset does not have."""
    if pa.types.is_boolean(type_):
        return "bool"
    if pa.types.is_signed_integer(type_):
        return "int"
    if pa.types.is_float32(type_) or pa.types.is_float64(type_):
        return "float"
    if pa.types.is_string(type_) or pa.types.is_large_string(type_):
        return "text"
    if pa.types.is_null(type_):
        return "null"
    return "instant" if pa.types.is_timestamp(type_) else None


@dataclass
class Translation:
    """One condition over columns of given types, in one dialect.

    Attributes
    ----------
    plain_texts
        Texts that must hold nothing but printable ASCII for the condition to be the same in both dialects.
    """

    dialect: Dialect
    types: Mapping[str, pa.DataType]
    plain_texts: list[str] = field(default_factory=list)

    def condition(self, tree: exp.Expr) -> Term:
        """The condition's truth; raises ``NotCommon``, and ``ValueError`` for a literal that can never be read as what it stands for."""
        term = self._bool(self._term(tree))
        if len(term.value) + len(term.failed or "") > _LONGEST:
            raise NotCommon("a condition of such length")
        return term

    def _term(self, node: exp.Expr) -> Term:
        rule = _RULES.get(type(node))
        more = {name for name, value in node.args.items() if value not in (None, False, [])} - _ARGUMENTS
        if rule is None or more - _MORE_ARGUMENTS.get(type(node), frozenset()):
            raise NotCommon(f"{node.sql('spark')!r}")
        return rule(self, node)

    def _bool(self, term: Term) -> Term:
        if term.kind not in ("bool", "null"):
            raise NotCommon(f"{term.kind} where a condition is expected")
        return term

    def _texts(self, *nodes: exp.Expr) -> list[Term]:
        terms = [self._term(node) for node in nodes]
        if any(term.kind != "text" for term in terms):
            raise NotCommon("a text function of something else")
        return terms

    # Leaves

    def literal(self, node: exp.Literal) -> Term:
        if node.is_string:
            return Term("text", exp.Literal.string(node.this).sql(self.dialect), literal=node.this)
        text = str(node.this)
        if text.isdigit():
            if int(text) > _GREATEST:
                raise NotCommon(text)
            return Term("int", f"CAST({int(text)} AS BIGINT)", literal=int(text))
        if "e" in text.lower():
            return Term("float", f"CAST('{text}' AS DOUBLE)", literal=float(text))
        return Term("decimal", text, literal=text)

    def column(self, node: exp.Column) -> Term:
        if node.table:
            raise NotCommon(f"{node.sql('spark')!r}")
        same = [name for name in self.types if name == node.name] or [name for name in self.types if name.lower() == node.name.lower()]
        kind = kind_of(self.types[same[0]]) if len(same) == 1 else None
        if kind is None:
            raise NotCommon(f"column {node.name!r}")
        name = exp.column(same[0], quoted=True).sql(self.dialect)
        types = {"int": "BIGINT", "float": "DOUBLE", "instant": "TIMESTAMP"}
        return Term(kind, f"CAST({name} AS {types[kind]})" if kind in types else name)

    def paren(self, node: exp.Paren) -> Term:
        return self._term(node.this)

    # Truth

    def conjunction(self, node: exp.And) -> Term:
        one, other = self._bool(self._term(node.left)), self._bool(self._term(node.right))
        return Term("bool", f"({one.value} AND {other.value})", _either(one.failed, _where(other.failed, f"({one.value}) IS NOT FALSE")))

    def disjunction(self, node: exp.Or) -> Term:
        one, other = self._bool(self._term(node.left)), self._bool(self._term(node.right))
        return Term("bool", f"({one.value} OR {other.value})", _either(one.failed, _where(other.failed, f"({one.value}) IS NOT TRUE")))

    def negation(self, node: exp.Not) -> Term:
        term = self._bool(self._term(node.this))
        return Term("bool", f"(NOT {term.value})", term.failed)

    def boolean(self, node: exp.Boolean) -> Term:
        return Term("bool", "TRUE" if node.this else "FALSE")

    def null(self, _node: exp.Null) -> Term:
        return Term("null", "NULL")

    def null_test(self, node: exp.Is) -> Term:
        if not isinstance(node.expression, exp.Null):
            raise NotCommon(f"{node.sql('spark')!r}")
        term = self._term(node.this)
        return Term("bool", f"({term.value} IS NULL)", term.failed)

    def compare(self, node: exp.Binary) -> Term:
        return self._compared(_COMPARISONS[type(node)], self._term(node.left), self._term(node.right))

    def _compared(self, sign: str, left: Term, right: Term) -> Term:
        left, right = self._alike(left, right)
        written = "IS NOT DISTINCT FROM" if sign == "<=>" else sign
        return Term("bool", f"({left.value} {written} {right.value})", _either(left.failed, right.failed))

    def between(self, node: exp.Between) -> Term:
        term, low, high = (self._term(node.args[name]) for name in ("this", "low", "high"))
        above, below = self._compared(">=", term, low), self._compared("<=", term, high)
        return Term("bool", f"({above.value} AND {below.value})", _either(above.failed, below.failed))

    def membership(self, node: exp.In) -> Term:
        term = self._term(node.this)
        one_of = [self._compared("=", term, self._term(item)) for item in node.expressions]
        if len({self._term(item).kind for item in node.expressions} - {"null"}) > 1:
            raise NotCommon("a list of different types")
        return Term("bool", f"({' OR '.join(one.value for one in one_of)})", _either(*(one.failed for one in one_of)))

    def _alike(self, left: Term, right: Term) -> tuple[Term, Term]:
        """Both as Spark compares them: texts as the numbers, or the instants, that they stand beside."""
        kinds = {left.kind, right.kind} - {"null"}
        if len(kinds) < 2 or kinds == {"int", "decimal"}:
            return left, right
        wanted: Kind
        if kinds == {"text", "int"}:
            wanted = "int"
        elif kinds <= {"int", "float", "decimal", "text"} and "float" in kinds:
            wanted = "float"
        elif kinds == {"text", "instant"}:
            wanted = "instant"
        else:
            raise NotCommon(f"a comparison of {' and '.join(sorted(kinds))}")
        return self._as(left, wanted), self._as(right, wanted)

    # Casts

    def cast(self, node: exp.Cast) -> Term:
        wanted = _TYPES.get(node.to.this)
        term = self._term(node.this)
        if wanted is None:
            raise NotCommon(f"a cast to {node.to.sql('spark')}")
        kind, type_ = wanted
        found = self._as(term, kind)
        if kind == "int" and type_ != "BIGINT":
            bits = {"INT": 31, "SMALLINT": 15, "TINYINT": 7}[type_]
            found = self._checked("int", found.value, f"{found.value} BETWEEN {-(2**bits)} AND {2**bits - 1}", found)
        return Term(found.kind, found.value, None if isinstance(node, exp.TryCast) else found.failed)

    def _as(self, term: Term, kind: Kind) -> Term:
        if term.kind in (kind, "null"):
            return term
        x = term.value
        match term.kind, kind:
            case "int" | "decimal", "float":
                return Term("float", f"CAST({x} AS DOUBLE)", term.failed)
            case "float", "int":
                # Towards zero, as Spark does; DuckDB rounds.
                inside = f"({x} >= CAST('-9223372036854775808' AS DOUBLE) AND {x} < CAST('9223372036854775808' AS DOUBLE))"
                whole = f"TRY_CAST(trunc({x}) AS BIGINT)" if self.dialect == "duckdb" else f"TRY_CAST({x} AS BIGINT)"
                return self._checked("int", whole, inside, term)
            case "decimal", "int":
                return Term("int", f"CAST({int(float(term.literal))} AS BIGINT)", term.failed)
            case "text", "int":
                return self._parsed("int", f"TRY_CAST(trim({x}) AS BIGINT)", _WHOLE, term)
            case "text", "float":
                return self._parsed("float", f"TRY_CAST(trim({x}) AS DOUBLE)", _NUMBER, term)
            case "text", "instant" if term.literal is not None:
                try:
                    at = instant_us(term.literal)
                except ValueError as err:
                    raise NotCommon(f"{term.literal!r} as an instant") from err
                return Term("instant", f"timestamp_micros({at})" if self.dialect == "spark" else f"make_timestamp(CAST({at} AS BIGINT))")
        raise NotCommon(f"a cast of {term.kind} to {kind}")

    def _parsed(self, kind: Kind, value: str, pattern: str, term: Term) -> Term:
        if term.literal is not None and not re.search(pattern, term.literal):
            raise ValueError(f"{term.literal!r} is no {'whole number' if kind == 'int' else 'number'}")
        matches = "rlike" if self.dialect == "spark" else "regexp_matches"
        shaped = f"({matches}({term.value}, '{pattern}') AND {value} IS NOT NULL)"
        return self._checked(kind, value, shaped, term)

    def _checked(self, kind: Kind, value: str, good: str, *terms: Term) -> Term:
        """``value`` where ``good`` holds; where it does not though no term is null, it has failed."""
        known = " AND ".join(f"{term.value} IS NOT NULL" for term in terms)
        failed = f"({known} AND NOT coalesce({good}, FALSE))"
        return Term(kind, f"(CASE WHEN {good} THEN {value} END)", _either(*(term.failed for term in terms), failed))

    # Numbers

    def _numbers(self, node: exp.Binary) -> tuple[Kind, Term, Term]:
        left, right = self._term(node.left), self._term(node.right)
        kinds = {left.kind, right.kind}
        if kinds == {"int"}:
            return "int", left, right
        if "float" in kinds and kinds <= {"int", "float", "decimal"}:
            return "float", self._as(left, "float"), self._as(right, "float")
        raise NotCommon(f"arithmetic of {' and '.join(sorted(kinds))}")

    def arithmetic(self, node: exp.Binary) -> Term:
        kind, left, right = self._numbers(node)
        sign, name = {exp.Add: ("+", "try_add"), exp.Sub: ("-", "try_subtract"), exp.Mul: ("*", "try_multiply")}[type(node)]
        if kind == "float":
            return Term("float", f"({left.value} {sign} {right.value})", _either(left.failed, right.failed))
        return self._overflowing(name, sign, left, right)

    def _overflowing(self, name: str, sign: str, left: Term, right: Term) -> Term:
        value = f"{name}({left.value}, {right.value})" if self.dialect == "spark" else f"TRY({left.value} {sign} {right.value})"
        return self._checked("int", value, f"{value} IS NOT NULL", left, right)

    def negative(self, node: exp.Neg) -> Term:
        term = self._term(node.this)
        if term.literal is not None and term.kind in ("int", "decimal", "float"):
            return Term(term.kind, f"(-{term.value})", literal=f"-{term.literal}" if term.kind == "decimal" else -term.literal)
        if term.kind == "float":
            return Term("float", f"(-{term.value})", term.failed)
        if term.kind == "int":
            return self._overflowing("try_subtract", "-", Term("int", "CAST(0 AS BIGINT)"), term)
        raise NotCommon(f"- of {term.kind}")

    def divided(self, node: exp.Binary) -> Term:
        kind, left, right = self._numbers(node)
        if isinstance(node, exp.Div):
            left, right = self._as(left, "float"), self._as(right, "float")
            value = f"try_divide({left.value}, {right.value})" if self.dialect == "spark" else f"({left.value} / {right.value})"
            return self._checked("float", value, f"{right.value} <> 0", left, right)
        if isinstance(node, exp.Mod):
            # By -1 the one overflow there is; the rest is 0 then.
            rest = f"try_mod({left.value}, {right.value})" if self.dialect == "spark" else f"({left.value} % {right.value})"
            value = rest if kind == "float" else f"(CASE WHEN {right.value} = -1 THEN {left.value} * 0 ELSE {rest} END)"
            return self._checked(kind, value, f"{right.value} <> 0", left, right)
        if kind != "int":
            raise NotCommon("div of floats")
        least = f"({left.value} = CAST('{_LEAST}' AS BIGINT) AND {right.value} = -1)"
        value = f"({left.value} {'div' if self.dialect == 'spark' else '//'} {right.value})"
        return self._checked("int", value, f"({right.value} <> 0 AND NOT {least})", left, right)

    def absolute(self, node: exp.Abs) -> Term:
        term = self._term(node.this)
        if term.kind == "float":
            return Term("float", f"abs({term.value})", term.failed)
        if term.kind != "int":
            raise NotCommon(f"abs of {term.kind}")
        negated = self._overflowing("try_subtract", "-", Term("int", "CAST(0 AS BIGINT)"), term)
        value = f"(CASE WHEN {term.value} < 0 THEN {negated.value} ELSE {term.value} END)"
        return Term("int", value, _either(term.failed, f"({term.value} IS NOT NULL AND {value} IS NULL)"))

    def is_nan(self, node: exp.IsNan) -> Term:
        term = self._term(node.this)
        if term.kind != "float":
            raise NotCommon(f"isnan of {term.kind}")
        return Term("bool", f"coalesce(isnan({term.value}), FALSE)", term.failed)

    # Texts

    def like(self, node: exp.Like) -> Term:
        text, pattern = self._texts(node.this, node.expression)
        if pattern.literal is None or "\\" in pattern.literal:
            raise NotCommon("LIKE with an escape, or a pattern that is no literal")
        return Term("bool", f"({text.value} {'NOT ' if node.args.get('negate') else ''}LIKE {pattern.value})", text.failed)

    def regular(self, node: exp.RegexpLike) -> Term:
        text, pattern = self._texts(node.this, node.expression)
        if pattern.literal is None or not _PLAIN_PATTERN(pattern.literal):
            raise NotCommon("RLIKE with more than characters, classes and single quantifiers")
        self.plain_texts.append(text.value)
        name = "rlike" if self.dialect == "spark" else "regexp_matches"
        return Term("bool", f"{name}({text.value}, {pattern.value})", text.failed)

    def length(self, node: exp.Length) -> Term:
        [text] = self._texts(node.this)
        return Term("int", f"CAST(length({text.value}) AS BIGINT)", text.failed)

    def letter_case(self, node: exp.Lower | exp.Upper) -> Term:
        [text] = self._texts(node.this)
        self.plain_texts.append(text.value)
        return Term("text", f"{'lower' if isinstance(node, exp.Lower) else 'upper'}({text.value})", text.failed)

    def trim(self, node: exp.Trim) -> Term:
        if node.args.get("expression"):
            raise NotCommon("trim of other characters than spaces")
        [text] = self._texts(node.this)
        side = {"LEADING": "ltrim", "TRAILING": "rtrim"}.get(str(node.args.get("position") or "").upper(), "trim")
        return Term("text", f"{side}({text.value})", text.failed)

    def substring(self, node: exp.Substring) -> Term:
        [text] = self._texts(node.this)
        start, length = (node.args.get(name) for name in ("start", "length"))
        bounds = [self._term(bound) for bound in (start, length) if bound is not None]
        if start is None or any(bound.kind != "int" or bound.literal is None or not 0 <= bound.literal < 2**31 for bound in bounds):
            raise NotCommon("substring with bounds that are no literals from 0")
        # Characters count from 1; 0 means 1 in Spark.
        whole = ", ".join([text.value, str(max(1, bounds[0].literal)), *(str(bound.literal) for bound in bounds[1:])])
        return Term("text", f"substring({whole})", text.failed)

    def part_test(self, node: exp.Func) -> Term:
        text, part = self._texts(node.this, node.expression)
        spark, duckdb = {exp.StartsWith: ("startswith", "starts_with"), exp.EndsWith: ("endswith", "ends_with")}.get(
            type(node), ("contains", "contains")
        )
        name = spark if self.dialect == "spark" else duckdb
        return Term("bool", f"{name}({text.value}, {part.value})", _either(text.failed, part.failed))

    # Choices

    def coalesce(self, node: exp.Coalesce) -> Term:
        terms = [self._term(each) for each in (node.this, *node.expressions)]
        kind = self._same(terms)
        failed, before = terms[0].failed, terms[0].value
        for term in terms[1:]:
            failed = _either(failed, _where(term.failed, f"{before} IS NULL"))
            before = f"coalesce({before}, {term.value})"
        return Term(kind, f"coalesce({', '.join(term.value for term in terms)})", failed)

    def choice(self, node: exp.If | exp.Case) -> Term:
        if node.args.get("this") is not None and isinstance(node, exp.Case):
            raise NotCommon("CASE of a value")
        branches = node.args["ifs"] if isinstance(node, exp.Case) else [node]
        last = node.args.get("default" if isinstance(node, exp.Case) else "false")
        tests = [self._bool(self._term(branch.this)) for branch in branches]
        values = [self._term(branch.args["true"]) for branch in branches]
        otherwise = Term("null", "NULL") if last is None else self._term(last)
        kind = self._same([*values, otherwise])
        failed = otherwise.failed
        for test, value in reversed(list(zip(tests, values, strict=True))):
            failed = _either(test.failed, _where(value.failed, f"({test.value}) IS TRUE"), _where(failed, f"({test.value}) IS NOT TRUE"))
        arms = " ".join(f"WHEN {test.value} THEN {value.value}" for test, value in zip(tests, values, strict=True))
        return Term(kind, f"(CASE {arms} ELSE {otherwise.value} END)", failed)

    def null_if(self, node: exp.Nullif) -> Term:
        left, right = self._term(node.this), self._term(node.expression)
        if left.kind != right.kind:
            raise NotCommon(f"nullif of {left.kind} and {right.kind}")
        return Term(left.kind, f"nullif({left.value}, {right.value})", _either(left.failed, right.failed))

    def _same(self, terms: Sequence[Term]) -> Kind:
        kinds = {term.kind for term in terms} - {"null"}
        if len(kinds) > 1:
            raise NotCommon(f"a choice of {' and '.join(sorted(kinds))}")
        return kinds.pop() if kinds else "null"

    # Instants

    def instant_part(self, node: exp.Func) -> Term:
        inner = node.this
        term = self._term(inner.this if isinstance(inner, exp.TsOrDsToDate) else inner)
        if term.kind != "instant":
            raise NotCommon(f"a part of {term.kind}")
        name = _PARTS[type(node)]
        value = f"CAST({name}({term.value}) AS BIGINT)"
        # Sunday is 1 in Spark, 0 in DuckDB.
        return Term("int", f"({value} + 1)" if name == "dayofweek" and self.dialect == "duckdb" else value, term.failed)


def _either(*failed: str | None) -> str | None:
    known = [each for each in dict.fromkeys(failed) if each is not None]
    return None if not known else reduce(lambda one, other: f"({one} OR {other})", known)


def _where(failed: str | None, reached: str) -> str | None:
    return None if failed is None else f"({reached} AND {failed})"


_COMPARISONS: Mapping[type, str] = {exp.NullSafeEQ: "<=>"} | {
    exp.EQ: "=",
    exp.NEQ: "<>",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
    exp.NullSafeEQ: "<=>",
}
_T = exp.DataType.Type
_TYPES: Mapping[Any, tuple[Kind, str]] = {
    _T.BIGINT: ("int", "BIGINT"),
    _T.INT: ("int", "INT"),
    _T.SMALLINT: ("int", "SMALLINT"),
    _T.TINYINT: ("int", "TINYINT"),
    _T.DOUBLE: ("float", "DOUBLE"),
    _T.TIMESTAMP: ("instant", "TIMESTAMP"),
    _T.TIMESTAMPTZ: ("instant", "TIMESTAMP"),
    **dict.fromkeys((_T.TEXT, _T.VARCHAR), ("text", "STRING")),
}
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
_RULES: Mapping[type, Callable[[Translation, Any], Term]] = {
    exp.Literal: Translation.literal,
    exp.Column: Translation.column,
    exp.Paren: Translation.paren,
    exp.Boolean: Translation.boolean,
    exp.Null: Translation.null,
    exp.And: Translation.conjunction,
    exp.Or: Translation.disjunction,
    exp.Not: Translation.negation,
    exp.Is: Translation.null_test,
    **dict.fromkeys(_COMPARISONS, Translation.compare),
    exp.Between: Translation.between,
    exp.In: Translation.membership,
    exp.Cast: Translation.cast,
    exp.TryCast: Translation.cast,
    **dict.fromkeys((exp.Add, exp.Sub, exp.Mul), Translation.arithmetic),
    **dict.fromkeys((exp.Div, exp.Mod, exp.IntDiv), Translation.divided),
    exp.Neg: Translation.negative,
    exp.Abs: Translation.absolute,
    exp.IsNan: Translation.is_nan,
    exp.Like: Translation.like,
    exp.RegexpLike: Translation.regular,
    exp.Length: Translation.length,
    exp.Lower: Translation.letter_case,
    exp.Upper: Translation.letter_case,
    exp.Trim: Translation.trim,
    exp.Substring: Translation.substring,
    **dict.fromkeys((exp.StartsWith, exp.EndsWith, exp.Contains), Translation.part_test),
    exp.Coalesce: Translation.coalesce,
    exp.If: Translation.choice,
    exp.Case: Translation.choice,
    exp.Nullif: Translation.null_if,
    **dict.fromkeys(_PARTS, Translation.instant_part),
}
