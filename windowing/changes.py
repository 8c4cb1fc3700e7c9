"""What a changed spec means for a pipeline that runs: which of its windows and aggregates are kept, filled or dropped, and why."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from windowmill.windowing.meanings import differences, parts_of, variables
from windowmill.windowing.spec import Pipeline

#: What becomes of a window or an aggregate: ``filled`` is new, or means something else than before.
Fate = Literal["kept", "filled", "dropped"]
#: Fields that hold windows and aggregates; a change of any other field of a meaning makes another pipeline.
FIELDS = ("windows", "aggregates")


@dataclass(frozen=True, slots=True)
class SpecChange:
    """What becomes of a window or an aggregate; ``known`` is whether the pipeline had one of this name before."""

    name: str
    fate: Fate
    why: str
    known: bool = True


@dataclass(frozen=True, slots=True)
class SpecChanges:
    """What a changed spec means for a pipeline that runs.

    Attributes
    ----------
    others
        The differences in keys, time, filter and emit, each with the old and the new value; with any of them the spec cannot be applied.
    """

    windows: tuple[SpecChange, ...]
    aggregates: tuple[SpecChange, ...]
    others: tuple[str, ...] = ()

    @property
    def only_add(self) -> bool:
        """Whether all that was there is kept."""
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

    Parameters
    ----------
    edited
        For a window or an aggregate, each by its field and its name, why it computes something else although the spec says the same.
    same_variables
        Whether all variables have the values that they had before. Otherwise whatever names one counts as changed.
    """
    now, actual = pipeline.shown_meaning(), pipeline.meaning()
    found: dict[str, list[SpecChange]] = {}
    for field in FIELDS:
        old, new, values = (parts_of(meaning.get(field)) or {} for meaning in (before, now, actual))

        def why(name: str, field: str = field, old: Any = old, new: Any = new, values: Any = values) -> str | None:
            reason = _why(old[name], new[name], values[name], where=f"{field}.{name}", same_variables=same_variables)
            return reason or edited.get((field, name))

        found[field] = [
            *_present(old, new, why),
            *(SpecChange(name, "dropped", "no longer in the spec") for name in old if name not in new),
        ]
    rest = ({name: value for name, value in meaning.items() if name not in FIELDS} for meaning in (before, now, actual))
    reason = _why(*rest, where="", same_variables=same_variables)
    return SpecChanges(tuple(found["windows"]), tuple(found["aggregates"]), () if reason is None else (reason,))


def _present(old: Collection[str], new: Collection[str], why: Callable[[str], str | None]) -> list[SpecChange]:
    changes = []
    for name in new:
        reason = why(name) if name in old else "new"
        changes.append(SpecChange(name, "kept" if reason is None else "filled", reason or "same meaning", name in old))
    return changes


def _why(before: Any, now: Any, actual: Any, *, where: str, same_variables: bool) -> str | None:
    """How two values of a spec differ, in words; null if they mean the same."""
    found = differences(before, now, actual)
    if not found and not same_variables:
        found = [f"{place or where}: the value of {name} may be another one" for place, name in variables(now)]
    return "; ".join(found) or None
