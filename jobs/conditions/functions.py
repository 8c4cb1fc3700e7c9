"""The functions of Spark SQL that are evaluated here, by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from windowmill.jobs.conditions.casts import cast
from windowmill.jobs.conditions.evaluated import Computed, Value, applied, by_rows, by_value, outside
from windowmill.jobs.conditions.value_types import BINARY, DOUBLE, FLOAT, INT, NULL, TEXT, is_whole

if TYPE_CHECKING:
    from sqlglot import exp

    from windowmill.jobs.conditions.evaluator import Evaluator


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
