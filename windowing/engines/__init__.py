"""The engines, one file each: algorithms that maintain the aggregate of a sliding window."""

from __future__ import annotations

from typing import Any

from windowmill.windowing.algebra import Aggregate, P
from windowmill.windowing.engines.base import Combines, Engine, InvariantError, Setting, Snapshot
from windowmill.windowing.engines.daba import Daba
from windowmill.windowing.engines.dyadic import Dyadic
from windowmill.windowing.engines.epochs import Epochs
from windowmill.windowing.engines.flatfat import FlatFat
from windowmill.windowing.engines.reactive import ReactiveAggregator
from windowmill.windowing.engines.recompute import Recompute
from windowmill.windowing.engines.subtract import SubtractOnEvict
from windowmill.windowing.engines.two_stacks import TwoStacks
from windowmill.windowing.errors import PluginError
from windowmill.windowing.registry import Registry

#: Engines by name, in the order in which ``explain`` lists them.
ENGINES: Registry[type[Engine[Any]]] = Registry(
    "engine", {engine.name: engine for engine in (Recompute, SubtractOnEvict, TwoStacks, Daba, Epochs, ReactiveAggregator, Dyadic)}
)


def register_engine(engine: type[Engine[Any]], module: str) -> None:
    """Add an engine; ``module`` is the name of the module that registers it.

    Raises
    ------
    PluginError
        If its name is taken, or the class has no ``name`` or ``cost``.
    """
    for attribute in ("name", "cost"):
        if getattr(engine, attribute, None) is None:
            raise PluginError(f"plugin {module!r}: the engine {engine.__name__} has no {attribute}; set it as an attribute of the class")
    ENGINES.register(engine.name, engine, module)


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


__all__ = [
    "ENGINES",
    "Combines",
    "Daba",
    "Dyadic",
    "Engine",
    "Epochs",
    "FlatFat",
    "InvariantError",
    "ReactiveAggregator",
    "Recompute",
    "Setting",
    "Snapshot",
    "SubtractOnEvict",
    "TwoStacks",
    "admissible",
    "build",
    "register_engine",
]
