"""What evaluates an expression over rows, and the functions of Spark SQL that it knows, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
from sqlglot import exp

from windowmill.jobs.conditions.casts import cast
from windowmill.jobs.conditions.evaluated import (
    BINARY,
    BOOL,
    DOUBLE,
    FLOAT,
    INT,
    NULL,
    TEXT,
    Computed,
    Value,
    applied,
    by_rows,
    by_value,
    is_whole,
    outside,
    repeated,
)

#: Arguments of a node that its rule handles.
_ARGUMENTS = frozenset(
    {"this", "expression", "expressions", "to", "ifs", "default", "true", "false", "low", "high", "is_string", "table", "db", "catalog"}
)
_MORE_ARGUMENTS: Mapping[type, frozenset[str]] = {
    exp.TryCast: frozenset({"safe"}),
    exp.DPipe: frozenset({"safe"}),
    exp.Interval: frozenset({"unit"}),
    exp.Trim: frozenset({"position"}),
    exp.Substring: frozenset({"start", "length"}),
    exp.StrPosition: frozenset({"substr", "position"}),
    exp.Like: frozenset({"negate"}),
    exp.ILike: frozenset({"negate"}),
}

Rule = Callable[["Evaluator", Any], Value]
_RULES: dict[type, Rule] = {}


@dataclass(frozen=True)
class Evaluator:
    """An expression's columns, as Spark's types, and the number of rows."""

    columns: Mapping[str, pa.Array]
    n: int

    def value(self, node: exp.Expr) -> Value:
        """Evaluate a part of the expression; raises ``OutsideError`` if it has no rule here."""
        rule = _RULES.get(type(node))
        more = {name for name, value in node.args.items() if value not in (None, False, [])} - _ARGUMENTS
        if rule is None or more - _MORE_ARGUMENTS.get(type(node), frozenset()):
            raise outside(node.sql("spark"))
        return rule(self, node)

    def truth(self, node: exp.Expr) -> Value:
        """Evaluate a condition."""
        return as_truth(self.value(node))

    def constant(self, constant: Any, kind: pa.DataType, unit: str | None = None) -> Value:
        """A constant of ``kind``."""
        return Value(repeated(constant, kind, self.n), None, constant, unit)


def as_truth(found: Value) -> Value:
    """A value as the truth of a condition; raises ``OutsideError`` if it is none."""
    if found.kind not in (BOOL, NULL):
        raise outside("a condition that is a value", found.kind)
    return cast(found, BOOL)


def rule(*nodes: type) -> Callable[[Rule], Rule]:
    """Registers how nodes of these types are evaluated."""

    def register(own: Rule) -> Rule:
        _RULES.update(dict.fromkeys(nodes, own))
        return own

    return register


@dataclass(frozen=True)
class Call:
    """A function's call, by the ``name`` that is written, with the nodes of its arguments."""

    own: Evaluator
    name: str
    nodes: Sequence[exp.Expr]

    def values(self, least: int, most: int | None = None) -> list[Value]:
        """The arguments; raises ``OutsideError`` if their number is not among those that the function has here."""
        if len(self.nodes) < least or (most is not None and len(self.nodes) > most):
            raise outside(f"{self.name}() of {len(self.nodes)} arguments")
        return [self.own.value(node) for node in self.nodes]

    def refused(self, *values: Value) -> Exception:
        """The error for arguments of types that are outside."""
        return outside(f"{self.name}()", *(value.kind for value in values))


Function = Callable[[Call], Value]
FUNCTIONS: dict[str, Function] = {}
#: What makes an argument's value of one that a function is given: a cast that Spark adds.
Takes = Callable[[Value], Value]


def calls(*names: str) -> Callable[[Function], Function]:
    """Registers a function of calls, which evaluates its arguments itself."""

    def register(function: Function) -> Function:
        FUNCTIONS.update(dict.fromkeys(names, function))
        return function

    return register


def function(*names: str, takes: Sequence[Takes], least: int | None = None) -> Callable[[Callable[..., Computed]], Callable[..., Computed]]:
    """Registers a function of arrays, whose result is null where an argument is; the last arguments may be missing down to ``least``."""

    def register(own: Callable[..., Computed]) -> Callable[..., Computed]:
        def evaluated(call: Call) -> Value:
            given = call.values(len(takes) if least is None else least, len(takes))
            return applied(own, [take(value) for take, value in zip(takes, given, strict=False)])

        calls(*names)(evaluated)
        return own

    return register


def each_row(*names: str, of: Callable[..., Any], takes: Sequence[Takes], kind: pa.DataType = TEXT, least: int | None = None) -> None:
    """Registers a function ``of`` a row's values in Python, none of them null, which gives one of ``kind`` or raises ``ValueError``."""
    own = (lambda array: by_value(array, of, kind)) if len(takes) == 1 else partial(by_rows, of, kind)
    function(*names, takes=takes, least=least)(own)


def of_values(name: str, count: int, of: Callable[..., Value]) -> None:
    """Registers a function ``of`` so many values."""
    calls(name)(lambda call: of(*call.values(count, count)))


def text(value: Value) -> Value:
    """An argument that is a text, or that Spark writes as one."""
    if value.kind in (FLOAT, DOUBLE, BINARY):
        raise outside("a text", value.kind, instead="a cast to decimal")
    return cast(value, TEXT)


def whole(kind: pa.DataType = INT) -> Takes:
    """An argument that is a whole number of ``kind``."""

    def take(value: Value) -> Value:
        if not (is_whole(value.kind) or value.kind in (TEXT, NULL)):
            raise outside("a whole number", value.kind)
        found = cast(value, kind)
        return Value(found.array, found.failed, value.literal)

    return take


def literal_of(value: Value, name: str) -> str:
    """The text of an argument that must be written as a constant."""
    if not isinstance(value.literal, str):
        raise outside(f"{name}() with an argument that is no constant text")
    return value.literal
