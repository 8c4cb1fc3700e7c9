"""Plugging in and out: registries and what has been imported are as before after each test."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from windowmill.jobs.commands import COMMANDS
from windowmill.jobs.sources.base import KINDS
from windowmill.windowing import registry as imports
from windowmill.windowing.catalogue import DECLARED
from windowmill.windowing.windows.base import TYPES

#: The plugins must not be imported but as plugins.
collect_ignore = ["toys"]
REGISTRIES = (COMMANDS, DECLARED, KINDS, TYPES)


@pytest.fixture
def plug(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes modules the plugins of this process, as if it had just begun."""

    def plug(*modules: str) -> None:
        monkeypatch.setenv("WINDOWMILL_PLUGINS", ",".join(modules))
        monkeypatch.setattr(imports, "_imports", imports._Imports())
        for each in REGISTRIES:
            monkeypatch.setattr(each, "_added", {})
        for module in modules:
            monkeypatch.delitem(sys.modules, module, raising=False)

    plug()
    return plug
