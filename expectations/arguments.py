"""Finds arguments of a rule that no row or every row would satisfy: invalid patterns, reversed bounds."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from datetime import date
from typing import Any

#: This type has its bounds in ``quantile_ranges``.
_QUANTILES = "expect_column_quantile_values_to_be_between"


def argument_problems(rule_type: str, written: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    """Problems of the arguments ``written`` for a rule of ``rule_type``, as pairs (argument, problem and remedy)."""
    for name in ("regex", "regex_list"):
        patterns = written.get(name)
        for index, pattern in enumerate(patterns if isinstance(patterns, list) else [patterns]):
            problem = _pattern_problem(pattern) if isinstance(pattern, str) else None
            if problem:
                yield (f"{name}.{index}" if isinstance(patterns, list) else name), problem
    yield from _bound_problems(written.get("min_value"), written.get("max_value"), "min_value")
    ranges = written.get("quantile_ranges")
    listed = ranges.get("value_ranges") if isinstance(ranges, Mapping) else None
    for index, pair in enumerate(listed if isinstance(listed, list) else ()):
        if isinstance(pair, list) and len(pair) == 2:
            low, high = pair
            yield from _bound_problems(low, high, f"quantile_ranges.value_ranges.{index}")
    bounded = rule_type.endswith("_to_be_between") and rule_type != _QUANTILES
    if bounded and written.get("min_value") is None and written.get("max_value") is None:
        yield "min_value", f"missing, and so is max_value; {rule_type} needs one of them"


def _pattern_problem(pattern: str) -> str | None:
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as err:
        return f"got {pattern[:120]!r}; not a regular expression ({err}); correct it"
    return None


def _bound_problems(low: Any, high: Any, field: str) -> Iterable[tuple[str, str]]:
    for bound in (low, high):
        if isinstance(bound, float) and math.isnan(bound):
            yield field, "got .nan; nothing is greater or less than it, give a number"
            return
    if low is None or high is None:
        return
    numbers = isinstance(low, int | float) and isinstance(high, int | float)
    if not numbers and not (isinstance(low, str) and isinstance(high, str)) and not (isinstance(low, date) and type(low) is type(high)):
        if isinstance(low, str | int | float) and isinstance(high, str | int | float):
            yield field, f"got {low!r} and {high!r}; expected two numbers, or two instants"
        return
    try:
        wrong = low > high
    except TypeError:  # an instant with a zone and one without
        yield field, f"got {low!r} and {high!r}; give both a time zone, or neither"
        return
    if wrong:
        yield field, f"got {low!r}, which is greater than {high!r}; no value lies between them"
