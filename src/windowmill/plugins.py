"""Adding aggregates to windowmill from outside.

A plugin is a module that calls the functions below when it is imported. It is named in the environment variable ``WINDOWMILL_PLUGINS``
(names of modules, separated by commas, found in the working directory too), or by an installed distribution::

    [project.entry-points."windowmill.plugins"]
    shop = "shop.windows"

Every process of windowmill imports it by itself when it is needed: command line, notebook, Airflow task, Python worker of Spark
(docs/decisions/0008).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from windowmill.windowing.registry import calling_module

if TYPE_CHECKING:
    from windowmill.windowing.algebra import Aggregate, Field
    from windowmill.windowing.catalogue import AggregateSpec, Declaration, Option
    from windowmill.windowing.kernels.lower import Partials
    from windowmill.windowing.kernels.recipes import Atom, Recipe, numeric

__all__ = [
    "Aggregate",
    "AggregateSpec",
    "Atom",
    "Declaration",
    "Field",
    "Option",
    "Partials",
    "Recipe",
    "numeric",
    "register_aggregate",
]

_HOMES = {
    **dict.fromkeys(("Aggregate", "Field"), "windowmill.windowing.algebra"),
    **dict.fromkeys(("AggregateSpec", "Declaration", "Option"), "windowmill.windowing.catalogue"),
    **dict.fromkeys(("Atom", "Recipe", "numeric"), "windowmill.windowing.kernels.recipes"),
    "Partials": "windowmill.windowing.kernels.lower",
}


def register_aggregate(declaration: Declaration) -> Declaration:
    """Let specs name an aggregate.

    Parameters
    ----------
    declaration
        All that windowmill knows of it. With a ``recipe`` of existing atoms it runs in the compiled kernels and over slices; without, its
        partials are Python objects, and its results must be of type ``bool``, ``int64``, ``float64``, ``string``, ``same`` or ``list<…>``
        of these.

    Raises
    ------
    PluginError
        If the name is taken, or is none that a spec can write.
    """
    from windowmill.windowing import catalogue

    catalogue.register_aggregate(declaration, calling_module())
    return declaration


def __getattr__(name: str) -> Any:
    # Loaded when asked for: `windowmill validate` reads declarations, and computes nothing.
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
