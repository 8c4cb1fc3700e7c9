"""What a reader has chosen to see of the results: aggregates, and keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from windowmill.jobs.report.queries import literal
from windowmill.jobs.report.result_rows import text_of
from windowmill.windowing.errors import SpecError
from windowmill.windowing.spec import Pipeline


@dataclass(frozen=True, slots=True)
class ChartSelection:
    """Aggregates and keys to draw.

    Attributes
    ----------
    aggregates
        Their names, in the order of the charts; empty for those that the report chooses.
    keys
        By key column the values wanted, as text; null for null. Empty for those that the report chooses.
    """

    aggregates: tuple[str, ...] = ()
    keys: Mapping[str, tuple[str | None, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, pipeline: Pipeline, aggregates: Sequence[str], keys: Sequence[str]) -> ChartSelection:
        """The choice by options of a command: names of aggregates, and ``NAME=VALUE`` or ``NAME`` of key columns.

        Raises
        ------
        SpecError
            If the pipeline has no aggregate or key column of that name.
        """
        for name in aggregates:
            if name not in pipeline.aggregates:
                raise SpecError(f"report --aggregate: got {name!r}; expected one of {', '.join(pipeline.aggregates)}")
        chosen: dict[str, tuple[str | None, ...]] = {}
        for given in keys:
            name, equals, value = given.partition("=")
            if name not in pipeline.keys:
                expected = (
                    f"NAME=VALUE with a key column: {', '.join(pipeline.keys)}" if pipeline.keys else "none: the pipeline has no keys"
                )
                raise SpecError(f"report --key: got {given!r}; expected {expected}")
            chosen[name] = (*chosen.get(name, ()), value if equals else None)
        return cls(tuple(dict.fromkeys(aggregates)), chosen)

    @property
    def conditions(self) -> list[str]:
        """Conditions on result rows in SQL, all of which hold for the chosen keys."""
        equal = {
            name: [f"({text_of(name)} IS NOT DISTINCT FROM {literal(value)})" for value in values] for name, values in self.keys.items()
        }
        return [f"({' OR '.join(parts)})" for parts in equal.values()]

    def describe(self) -> str:
        """The keys in words; empty if none are chosen.

        >>> ChartSelection(keys={"origin": ("JFK", "LGA"), "carrier": (None,)}).describe()
        'origin JFK or LGA, carrier null'
        """
        return ", ".join(
            f"{name} {' or '.join('null' if value is None else value for value in values)}" for name, values in self.keys.items()
        )
