"""Registries of what is built in and what plugins add, and imports of what users name as ``module:name``.

Plugins are named by installed distributions (entry points of the group ``windowmill.plugins``) and by the environment variable
``WINDOWMILL_PLUGINS``. A registry imports them when it is asked for something that is not built in.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Generic, TypeVar

from windowmill.windowing.errors import PluginError, SpecError, first_line
from windowmill.windowing.settings import PLUGINS

#: Group of entry points whose values name modules.
GROUP = "windowmill.plugins"
T = TypeVar("T")
#: A notebook or script that is running: its cells may run again, and no other process can import it.
RUNNING = "__main__"


def imported(place: str) -> Any:
    """The object that ``module:name`` names; its module is imported if it has not been.

    Raises ``AttributeError`` if the module has no such object; otherwise whatever importing the module raises.
    """
    module, _, name = place.partition(":")
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found


def imported_for(field: str, place: str) -> Any:
    """The object that ``module:name`` names in a spec's ``field``; raises ``SpecError`` if it cannot be imported."""
    try:
        return imported(place)
    except (ImportError, AttributeError) as err:
        raise SpecError(f"{field}: {place!r} cannot be imported ({err}); put its folder on PYTHONPATH or correct the name") from err


@dataclass(frozen=True, slots=True)
class Plugin:
    """A module that registers something, and what names it, for messages."""

    module: str
    named_by: str


class _Imports:
    """What this process has imported. A failure is kept: importing the module again would register half of its names twice."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.begun = False
        self.failure: PluginError | None = None


_imports = _Imports()


def named_plugins() -> list[Plugin]:
    """The plugins of this process, each once, those of ``WINDOWMILL_PLUGINS`` first; nothing is imported."""
    found = {plugin.module: plugin for plugin in reversed(list(_named()))}
    return list(reversed(found.values()))


def _named() -> Iterator[Plugin]:
    for name in (PLUGINS.given() or "").split(","):
        if name.strip():
            yield Plugin(name.strip(), PLUGINS.name)
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.value):
        # Of a value that names no module, the import reports the error and the plugin.
        module = point.module if point.pattern.match(point.value) else point.value
        yield Plugin(module, f"the distribution {point.dist.name}" if point.dist else f"the entry points {GROUP}")


def import_plugins() -> None:
    """Import every plugin, the first time that this is called in the process.

    Raises ``PluginError`` if one cannot be imported, or registers a name that is taken; also at each later call.
    """
    with _imports.lock:
        if not _imports.begun:
            # Set first: a plugin may ask a registry while it is imported.
            _imports.begun = True
            try:
                for plugin in named_plugins():
                    _import(plugin)
            except PluginError as err:
                _imports.failure = err
            except KeyboardInterrupt:
                _imports.failure = PluginError("the import of plugins was interrupted, and some are missing; start this process again")
                raise
        if _imports.failure is not None:
            raise _imports.failure


def _import(plugin: Plugin) -> None:
    # As modules of `use:`, plugins are also looked for in the working directory; last, so that they hide nothing.
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    try:
        importlib.import_module(plugin.module)
    except PluginError:
        raise
    # A user's module runs here and may raise anything.
    except (Exception, SystemExit) as err:
        remedy = f"or take it out of {PLUGINS.name}" if plugin.named_by == PLUGINS.name else f"or uninstall {plugin.named_by}"
        raise PluginError(
            f"plugin {plugin.module!r}, named by {plugin.named_by}, cannot be imported ({type(err).__name__}: {first_line(err)}); "
            f"correct it, put its folder on PYTHONPATH, {remedy}"
        ) from err


class Registry(Mapping[str, T], Generic[T]):
    """Things of one kind by name, the built-in ones first.

    Plugins are imported when a name is asked for that is not built in, or all names are. So a pipeline that uses none of them neither waits
    for them nor fails with them, and since no plugin can take a built-in name, what a name means does not depend on when they are imported.

    Attributes
    ----------
    kind
        What the things are, for messages: ``aggregate``.
    built_in
        Windowmill's own; no plugin is imported.
    """

    def __init__(self, kind: str, built_in: Mapping[str, T]) -> None:
        self.kind = kind
        self.built_in = dict(built_in)
        self._added: dict[str, tuple[T, str]] = {}
        _registries.append(self)

    def register(self, name: str, thing: T, module: str) -> None:
        """Add ``thing``; ``module`` is the name of the module that registers it.

        Raises ``PluginError`` if the name is taken.
        """
        owner = "windowmill itself" if name in self.built_in else self._added[name][1] if name in self._added else None
        if owner is not None and not owner == module == RUNNING:
            raise PluginError(f"plugin {module!r}: the {self.kind} {name!r} is registered by {owner} already; give it another name")
        self._added[name] = thing, module

    def build_in(self, name: str, thing: T) -> None:
        """Add one of windowmill's own, as its module is imported."""
        self.built_in[name] = thing

    def imported(self) -> tuple[str, ...]:
        """The names known so far; no plugin is imported."""
        return (*self.built_in, *self._added)

    def module_of(self, name: str) -> str | None:
        """The module that has registered ``name``; none if it is built in or unknown."""
        if name in self.built_in:
            return None
        import_plugins()
        return self._added[name][1] if name in self._added else None

    def added(self) -> dict[str, str]:
        """The names that plugins have added, and the modules that did."""
        return {name: module for name, (_, module) in self._added.items()}

    def __getitem__(self, name: str) -> T:
        if name in self.built_in:
            return self.built_in[name]
        import_plugins()
        return self._added[name][0]

    def __iter__(self) -> Iterator[str]:
        import_plugins()
        return iter([*self.built_in, *self._added])

    def __len__(self) -> int:
        import_plugins()
        return len(self.built_in) + len(self._added)


#: Every registry of this process. One that a plugin has added to is among them.
_registries: list[Registry[Any]] = []


def all_added() -> list[tuple[str, str, str]]:
    """Kind, name and module of everything that plugins have added.

    Raises ``PluginError`` if one of them cannot be imported, or registers a name that is taken.
    """
    import_plugins()
    return [(registry.kind, name, module) for registry in _registries for name, module in registry.added().items()]


def resolve(part: T | str) -> T:
    """``part`` itself, or the object that ``"module:name"`` names, imported now.

    Raises ``PluginError`` if there is no such module, or no such name in it.
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
