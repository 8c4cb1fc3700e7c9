"""The algebra of the aggregates, a file per family; the catalogue's declarations name it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from windowmill.windowing.aggregates.values import VALUE_TYPES
from windowmill.windowing.algebra import Aggregate
from windowmill.windowing.catalogue import AggregateSpec
from windowmill.windowing.errors import SpecError
from windowmill.windowing.registry import resolve


def aggregate_for(spec: AggregateSpec, types: Sequence[str]) -> Aggregate[Any]:
    """The aggregate that ``spec`` asks for over columns of the given types.

    Parameters
    ----------
    spec
        As read from the pipeline.
    types
        One of ``VALUE_TYPES`` for each of ``spec.columns``: ``int64`` for any whole number, ``any`` for what is not listed.

    Raises
    ------
    SpecError
        If the function cannot take columns of these types.

    Examples
    --------
    >>> longest = aggregate_for(AggregateSpec(function="max", columns=("delay",)), ["int64"])
    >>> longest.lower(longest.of([(3,), (None,), (7,)]))
    7
    """
    if len(types) != len(spec.columns) or not set(types) <= set(VALUE_TYPES):
        raise SpecError(
            f"{spec.function}: got types {list(types)} for columns {list(spec.columns)}; expected one of {', '.join(VALUE_TYPES)} for each"
        )
    return resolve(spec.declaration.algebra)(spec, tuple(types))


__all__ = ["VALUE_TYPES", "aggregate_for"]
