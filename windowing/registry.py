"""Registries: what is built in by its name, and what plugins add to it."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any, Generic, TypeVar

from windowmill.windowing.errors import PluginError, first_line
from windowmill.windowing.imports import import_plugins, imported

T = TypeVar("T")

#: A notebook or script that is running: its cells may run again, and no other process can import it.
RUNNING = "__main__"


class Registry(Mapping[str, T], Generic[T]):
    """Things of one kind by name, the built-in ones first.

    Plugins are imported when a name is asked for that is not built in, or all names are. So a pipeline that uses none of them neither waits
    for them nor fails with them, and since no plugin can take a built-in name, what a name means does not depend on when they are imported.

    Attributes
    ----------
    kind
        What the things are, for messages: ``aggregate``.
    """

    def __init__(self, kind: str, built_in: Mapping[str, T]) -> None:
        self.kind = kind
        self._built_in = dict(built_in)
        self._added: dict[str, tuple[T, str]] = {}
        _registries.append(self)

    def register(self, name: str, thing: T, module: str) -> None:
        """Add ``thing``; ``module`` is the name of the module that registers it.

        Raises
        ------
        PluginError
            If the name is taken.
        """
        owner = "windowmill itself" if name in self._built_in else self._added[name][1] if name in self._added else None
        if owner is not None and not owner == module == RUNNING:
            raise PluginError(f"plugin {module!r}: the {self.kind} {name!r} is registered by {owner} already; give it another name")
        self._added[name] = thing, module

    def build_in(self, name: str, thing: T) -> None:
        """Add one of windowmill's own, as its module is imported."""
        self._built_in[name] = thing

    def built_in(self) -> Mapping[str, T]:
        """Windowmill's own; no plugin is imported."""
        return self._built_in

    def imported(self) -> tuple[str, ...]:
        """The names known so far; no plugin is imported."""
        return (*self._built_in, *self._added)

    def module_of(self, name: str) -> str | None:
        """The module that has registered ``name``; none if it is built in or unknown."""
        if name in self._built_in:
            return None
        import_plugins()
        return self._added[name][1] if name in self._added else None

    def added(self) -> dict[str, str]:
        """The names that plugins have added, and the modules that did."""
        return {name: module for name, (_, module) in self._added.items()}

    def __getitem__(self, name: str) -> T:
        if name in self._built_in:
            return self._built_in[name]
        import_plugins()
        return self._added[name][0]

    def __iter__(self) -> Iterator[str]:
        import_plugins()
        return iter([*self._built_in, *self._added])

    def __len__(self) -> int:
        import_plugins()
        return len(self._built_in) + len(self._added)


#: Every registry of this process. One that a plugin has added to is among them.
_registries: list[Registry[Any]] = []


def all_added() -> list[tuple[str, str, str]]:
    """Kind, name and module of everything that plugins have added.

    Raises
    ------
    PluginError
        If one of them cannot be imported, or registers a name that is taken.
    """
    import_plugins()
    return [(registry.kind, name, module) for registry in _registries for name, module in registry.added().items()]


def resolve(part: T | str) -> T:
    """``part`` itself, or the object that ``"module:name"`` names, imported now.

    Raises
    ------
    PluginError
        If there is no such module, or no such name in it.
    """
    if not isinstance(part, str):
        return part
    try:
        found: T = imported(part)
    except (ImportError, AttributeError, ValueError) as err:
        raise PluginError(
            f"{part!r} cannot be imported ({type(err).__name__}: {first_line(err)}); correct it where the plugin registers it, as in "
            '"module:name", or put its folder on PYTHONPATH'
        ) from err
    return found


def calling_module() -> str:
    """Name of the module that called the function which calls this one."""
    frame = inspect.currentframe()
    for _ in range(2):
        frame = frame.f_back if frame is not None else None
    return str(frame.f_globals["__name__"]) if frame is not None else RUNNING
