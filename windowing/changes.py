"""Compares two specs: which fields differ, and which windows and aggregates of a running pipeline are kept, filled or dropped."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from windowmill.windowing.spec import VARIABLE, Pipeline

#: A field that a spec leaves out.
_ABSENT = object()
#: Limits on the differences, and on the characters of a value, in a message.
_MAX_NAMED, _SHOWN = 5, 80
#: What becomes of a window or an aggregate: ``filled`` is new, or means something else than before.
Fate = Literal["kept", "filled", "dropped"]
#: Fields that hold windows and aggregates; a change of any other field of a meaning makes another pipeline.
FIELDS = ("windows", "aggregates")


def describe_difference(before: Mapping[str, Any], now: Mapping[str, Any], actual: Mapping[str, Any]) -> str | None:
    """The differences between two specs in one line, each as field, old and new value; null if none is known.

    ``before`` and ``now`` are what the specs mean, with variables as written (:meth:`windowmill.windowing.spec.Pipeline.shown_meaning`);
    ``actual`` is as ``now``, with the values of variables.

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
    old, new, new_actual = (parts_of(value) for value in (before, now, actual))
    if old is None or new is None or new_actual is None:
        yield where, before, now
        return
    for name in dict.fromkeys([*old, *new]):
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


@dataclass(frozen=True, slots=True)
class SpecChange:
    """What becomes of a window or an aggregate; ``known`` is whether the pipeline had one of this name before."""

    name: str
    fate: Fate
    why: str
    known: bool = True


@dataclass(frozen=True, slots=True)
class SpecChanges:
    """What a changed spec means for a pipeline that runs."""

    windows: tuple[SpecChange, ...]
    aggregates: tuple[SpecChange, ...]
    #: The differences in keys, time, filter and emit, each with the old and the new value; with any of them the spec cannot be applied.
    others: tuple[str, ...] = ()

    @property
    def only_add(self) -> bool:
        return not self.others and all(each.fate == "kept" or not each.known for each in (*self.windows, *self.aggregates))

    @property
    def redefined(self) -> tuple[str, ...]:
        """The windows and aggregates, as ``windows.NAME``, that meant something else before."""
        parts = {"windows": self.windows, "aggregates": self.aggregates}
        return tuple(f"{field}.{each.name}" for field in FIELDS for each in parts[field] if each.fate == "filled" and each.known)

    @property
    def filled(self) -> tuple[str, ...]:
        """Names of the windows whose rows are recomputed: all of them if an aggregate is filled."""
        every = any(each.fate == "filled" for each in self.aggregates)
        return tuple(each.name for each in self.windows if each.fate == "filled" or (every and each.fate == "kept"))


def compare(before: Mapping[str, Any], pipeline: Pipeline, edited: Mapping[tuple[str, str], str], *, same_variables: bool) -> SpecChanges:
    """Compare ``pipeline`` with the meaning ``before``, in which variables are as written.

    ``edited`` says why windows and aggregates, by field and name, compute something else although the spec says the same.
    ``same_variables`` is whether all variables have the values that they had before. Otherwise whatever names one counts as changed.
    """
    now, actual = pipeline.shown_meaning(), pipeline.meaning()
    found: dict[str, list[SpecChange]] = {}
    for field in FIELDS:
        old, new, values = (parts_of(meaning.get(field)) or {} for meaning in (before, now, actual))
        found[field] = []
        for name in new:
            why: str | None = "new"
            if name in old:
                why = _why(old[name], new[name], values[name], where=f"{field}.{name}", same_variables=same_variables)
                why = why or edited.get((field, name))
            found[field].append(SpecChange(name, "kept" if why is None else "filled", why or "same meaning", name in old))
        found[field] += [SpecChange(name, "dropped", "no longer in the spec") for name in old if name not in new]
    rest = ({name: value for name, value in meaning.items() if name not in FIELDS} for meaning in (before, now, actual))
    reason = _why(*rest, where="", same_variables=same_variables)
    return SpecChanges(tuple(found["windows"]), tuple(found["aggregates"]), () if reason is None else (reason,))


def _why(before: Any, now: Any, actual: Any, *, where: str, same_variables: bool) -> str | None:
    """How two values of a spec differ, in words; null if they mean the same."""
    found = differences(before, now, actual)
    if not found and not same_variables:
        found = [f"{place or where}: the value of {name} may be another one" for place, name in variables(now)]
    return "; ".join(found) or None
