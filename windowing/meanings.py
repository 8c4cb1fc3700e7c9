"""Compares what two specs mean: which fields differ, with both values."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from windowmill.windowing.yamltext import VARIABLE

#: A field that a spec leaves out.
_ABSENT = object()
#: Limits on the differences, and on the characters of a value, in a message.
_MAX_NAMED, _SHOWN = 5, 80


def describe_difference(before: Mapping[str, Any], now: Mapping[str, Any], actual: Mapping[str, Any]) -> str | None:
    """The differences between two specs in one line, each as field, old and new value; null if none is known.

    Parameters
    ----------
    before, now
        What the specs mean, with variables as written (:meth:`windowmill.windowing.spec.Pipeline.shown_meaning`).
    actual
        As ``now``, with the values of variables.

    Examples
    --------
    >>> describe_difference({"time": {"column": "t", "disorder": "1 hour"}}, *2 * ({"time": {"column": "t"}, "emit": "revise"},))
    'time.disorder was "1 hour" and is not given; emit was not given and is "revise"'
    """
    found = differences(before, now, actual)
    if not found:
        # As written they are the same, so the value of a variable must differ.
        found = [f"{where}: the value of {name} is another one" for where, name in variables(now)]
    more = f"; and {len(found) - _MAX_NAMED} more" if len(found) > _MAX_NAMED else ""
    return "; ".join(found[:_MAX_NAMED]) + more or None


def differences(before: Any, now: Any, actual: Any) -> list[str]:
    """The differences between two values of a spec, each as field, old and new value; arguments as those of :func:`describe_difference`."""
    return [
        f"{f'{where} ' if where else ''}was {_shown(old)} and is {_shown(new)}" for where, old, new in _differences(before, now, actual, "")
    ]


def _differences(before: Any, now: Any, actual: Any, where: str) -> Iterator[tuple[str, Any, Any]]:
    # A text that now comes from the environment may still be the same.
    if before in (now, actual):
        return
    parts = [parts_of(value) for value in (before, now, actual)]
    old, new, new_actual = parts
    if old is None or new is None or new_actual is None:
        yield where, before, now
        return
    names = list(dict.fromkeys([*old, *new]))
    for name in names:
        old_part, new_part, actual_part = (part.get(name, _ABSENT) for part in (old, new, new_actual))
        yield from _differences(old_part, new_part, actual_part, f"{where}.{name}" if where else name)


def parts_of(value: Any) -> Mapping[str, Any] | None:
    """The fields of ``value``, or its items by their names; null if it has neither."""
    if isinstance(value, Mapping):
        return value
    if isinstance(value, list) and value and all(isinstance(item, Mapping) and "name" in item for item in value):
        return {item["name"]: item for item in value}
    return None


def variables(value: Any, where: str = "") -> Iterator[tuple[str, str]]:
    """The variables in the texts of ``value``, each with the path of its field."""
    if isinstance(value, str):
        for name in VARIABLE.findall(value):
            yield where, f"${{{name}}}"
    elif isinstance(value, list) and parts_of(value) is None:
        for item in value:
            yield from variables(item, where)
    for name, item in (parts_of(value) or {}).items():
        yield from variables(item, f"{where}.{name}" if where else name)


def _shown(value: Any) -> str:
    if value is _ABSENT:
        return "not given"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
