"""The aggregates that a spec may name, each declared once, a file per family."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from windowmill.windowing.aggregates import counts, extremes, logic, order, own, quantiles, sketches, spread, sums
from windowmill.windowing.aggregates.values import VALUE_TYPES, Builder
from windowmill.windowing.algebra import Aggregate
from windowmill.windowing.catalogue import AggregateSpec
from windowmill.windowing.errors import SpecError

BUILDERS: Mapping[str, Builder] = {
    **counts.BUILDERS,
    **sums.BUILDERS,
    **extremes.BUILDERS,
    **spread.BUILDERS,
    **order.BUILDERS,
    **quantiles.BUILDERS,
    **sketches.BUILDERS,
    **logic.BUILDERS,
    "use": own.build,
}


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
    return BUILDERS[spec.function](spec, tuple(types))


__all__ = ["BUILDERS", "VALUE_TYPES", "aggregate_for"]
