"""What the families share: argument types, comparison with NaN greatest, keys for distinct values."""

from __future__ import annotations

import math
from decimal import Context
from typing import Any

from windowmill.windowing.algebra import is_nan
from windowmill.windowing.catalogue import AggregateSpec
from windowmill.windowing.errors import SpecError

#: Types of argument columns. Every whole-number type is ``int64``; what is not named (timestamps, dates, binary …) is ``any``.
VALUE_TYPES = ("bool", "int64", "float64", "decimal", "string", "any")

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
#: Spark's widest decimal, and digits enough for sums of any number of decimals, which are carried exactly.
DECIMAL_DIGITS = 38
WIDE = Context(prec=2 * DECIMAL_DIGITS + 24)


def require_number(spec: AggregateSpec, types: tuple[str, ...]) -> None:
    """Refuse columns that hold no numbers; ``any`` is let through and taken as float64.

    Raises ``SpecError`` naming function, column and type.
    """
    for column, type_ in zip(spec.columns, types, strict=True):
        if type_ in ("string", "bool"):
            raise SpecError(
                f"{spec.function}: column {column!r} holds {type_}; expected numbers. Cast it in the source, or choose another column"
            )


def less_nan_greatest(a: Any, b: Any) -> bool:
    """Strict order of values of any type that has one, with NaN greatest and equal to itself."""
    return bool(a < b) or (is_nan(b) and not is_nan(a))


def positive_zero(value: Any) -> Any:
    """``value`` with -0.0 taken as 0.0: they are equal, so which one survives must not depend on the order of combining."""
    return 0.0 if isinstance(value, float) and value == 0.0 else value


def frozen_value(value: Any) -> Any:
    """A hashable stand-in for ``value`` under which equal values are equal; lists and structs become tuples."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else positive_zero(value)
    if isinstance(value, list | tuple):
        return tuple(map(frozen_value, value))
    if isinstance(value, dict):
        return tuple((name, frozen_value(item)) for name, item in sorted(value.items()))
    return value
