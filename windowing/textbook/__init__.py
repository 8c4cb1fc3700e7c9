"""The engines of the literature, one file each: a sliding window over one key, with any aggregate.

They are what kernels are compared with, and ``explain`` weighs them. No run computes with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from windowmill.windowing.algebra import Aggregate, P
from windowmill.windowing.costs import Cost
from windowmill.windowing.textbook.base import Combines, Engine, EngineState, Setting
from windowmill.windowing.textbook.dyadic import Dyadic
from windowmill.windowing.textbook.epochs import Epochs
from windowmill.windowing.textbook.reactive import ReactiveAggregator
from windowmill.windowing.textbook.simple import Recompute, SubtractOnEvict
from windowmill.windowing.textbook.stacks import Daba, TwoStacks

#: Engines by name, in the order in which ``explain`` lists them.
ENGINES: Mapping[str, type[Engine[Any]]] = {
    engine.name: engine for engine in (Recompute, SubtractOnEvict, TwoStacks, Daba, Epochs, ReactiveAggregator, Dyadic)
}


def build(name: str, aggregate: Aggregate[P], **options: int) -> Engine[P]:
    """A new engine of the type ``name`` with an empty window.

    Raises
    ------
    AlgebraError
        If the engine needs a property that ``aggregate`` does not have.
    """
    return ENGINES[name](aggregate, **options)


def admissible(aggregate: Aggregate[Any]) -> list[str]:
    """Names of the engines that ``aggregate``'s algebra allows.

    Examples
    --------
    >>> from windowmill.windowing.aggregates import aggregate_for
    >>> from windowmill.windowing.catalogue import parse_aggregate
    >>> "subtract" in admissible(aggregate_for(parse_aggregate({"max": "delay"}), ["int64"]))
    False
    """
    return [name for name, engine in ENGINES.items() if all(getattr(aggregate, needed) for needed in engine.needs)]


def engine_cost(engine: str, n: float | None, m: float | None) -> Cost:
    """Combines per window of an engine, of n leaves in a window of which m are new."""
    combines = ENGINES[engine].cost
    return Cost(combines.formula, round(max(0.0, combines.count(n, m)), 2) if n and m else None)


__all__ = [
    "ENGINES",
    "Combines",
    "Daba",
    "Dyadic",
    "Engine",
    "EngineState",
    "Epochs",
    "ReactiveAggregator",
    "Recompute",
    "Setting",
    "SubtractOnEvict",
    "TwoStacks",
    "admissible",
    "build",
    "engine_cost",
]
