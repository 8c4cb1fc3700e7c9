"""Adding aggregates, window types, source kinds and commands to windowmill from outside.

A plugin is a module that calls the functions below when it is imported. It is named in the environment variable ``WINDOWMILL_PLUGINS``
(names of modules, separated by commas, found in the working directory too), or by an installed distribution::

    [project.entry-points."windowmill.plugins"]
    shop = "shop.windows"

Every process of windowmill imports it by itself when it is needed: command line, notebook, Airflow task, Python worker of Spark
(docs/contributing.md shows each of the five; docs/decisions/0008 says why it is so).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

from windowmill.windowing.registry import calling_module

if TYPE_CHECKING:
    from collections.abc import Callable

    from windowmill.jobs.sources.base import AddedFile, LoggedVersion, Reading, SourceKind, SourceTable
    from windowmill.windowing.algebra import Aggregate, Field
    from windowmill.windowing.catalogue import AggregateSpec, Declaration, Option
    from windowmill.windowing.kernels.recipes import Atom, Partials, Recipe, numeric
    from windowmill.windowing.windows.types import PluginWindow as Window

F = TypeVar("F", bound="Callable[..., Any]")
W = TypeVar("W", bound="Window")

__all__ = [
    "AddedFile",
    "Aggregate",
    "AggregateSpec",
    "Atom",
    "Declaration",
    "Field",
    "LoggedVersion",
    "Option",
    "Partials",
    "Reading",
    "Recipe",
    "SourceKind",
    "SourceTable",
    "Window",
    "numeric",
    "register_aggregate",
    "register_command",
    "register_source",
    "register_window",
]

_HOMES = {
    **dict.fromkeys(("Aggregate", "Field"), "windowmill.windowing.algebra"),
    **dict.fromkeys(("AggregateSpec", "Declaration", "Option"), "windowmill.windowing.catalogue"),
    **dict.fromkeys(("Atom", "Partials", "Recipe", "numeric"), "windowmill.windowing.kernels.recipes"),
    **dict.fromkeys(("AddedFile", "LoggedVersion", "Reading", "SourceTable"), "windowmill.jobs.sources.base"),
    "SourceKind": "windowmill.jobs.sources.base",
    "Window": "windowmill.windowing.windows.types",
}


#: What is called otherwise there.
_CALLED = {"Window": "PluginWindow"}


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
        If the name is taken, or it has a name or columns that no spec can write.
    """
    from windowmill.windowing import catalogue

    catalogue.register_aggregate(declaration, calling_module())
    return declaration


def register_source(kind: SourceKind) -> SourceKind:
    """Let specs name a kind of source in ``source.format``.

    Parameters
    ----------
    kind
        Its name, how it opens a source (a :class:`SourceTable`), and the names of its own options.

    Raises
    ------
    PluginError
        If the name is taken.
    """
    from windowmill.jobs.sources.base import KINDS

    KINDS.register(kind.name, kind, calling_module())
    return kind


def register_window(kind: type[W]) -> type[W]:
    """Let specs name a type of windows; a decorator of its class, a :class:`Window` with all of its abstract methods.

    Raises
    ------
    TypeError
        If the class leaves a method out, or does not say what specs call it.
    PluginError
        If the name is taken.
    """
    from windowmill.windowing.windows.base import register

    return register(kind)


def register_command(name: str) -> Callable[[F], F]:
    """Add the command ``windowmill <name>``; a decorator of a function as typer takes it: its docstring is the command's help.

    What it returns is the exit code if it is a whole number; a :class:`windowmill.windowing.errors.WindowmillError` that it raises is
    printed in one line, like those of other commands.

    Raises
    ------
    PluginError
        If the name is taken.
    """
    module = calling_module()

    def register(function: F) -> F:
        from windowmill.jobs.commands import COMMANDS

        COMMANDS.register(name, function, module)
        return function

    return register


def __getattr__(name: str) -> Any:
    # Loaded when asked for: `windowmill validate` reads declarations, and computes nothing.
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), _CALLED.get(name, name))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
