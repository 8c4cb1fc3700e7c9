"""Imports of what users name: objects as ``module:name``, and plugins, which add aggregates, window types, engines, sources and commands.

Plugins are named by installed distributions (entry points of the group ``windowmill.plugins``) and by the environment variable
``WINDOWMILL_PLUGINS``. A registry (:mod:`windowmill.windowing.registry`) imports them when it is asked for something that is not built in.
"""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from windowmill.windowing.errors import PluginError, SpecError, first_line
from windowmill.windowing.settings import PLUGINS

#: Group of entry points whose values name modules.
GROUP = "windowmill.plugins"


def imported(place: str) -> Any:
    """The object that ``module:name`` names; its module is imported if it has not been.

    Raises
    ------
    AttributeError
        If the module has no such object; otherwise whatever importing the module raises.
    """
    module, _, name = place.partition(":")
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found


def imported_for(field: str, place: str) -> Any:
    """The object that ``module:name`` names in a spec's ``field``.

    Raises
    ------
    SpecError
        If it cannot be imported.
    """
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
        # A value that names no module has none to give; importing it says so, and whose it is.
        module = point.module if point.pattern.match(point.value) else point.value
        yield Plugin(module, f"the distribution {point.dist.name}" if point.dist else f"the entry points {GROUP}")


def import_plugins() -> None:
    """Import every plugin, the first time that this is called in the process.

    Raises
    ------
    PluginError
        If one cannot be imported, or registers a name that is taken; also at each later call.
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
