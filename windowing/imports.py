"""Objects that a spec or a declaration names as ``module:name``."""

from __future__ import annotations

import importlib
from typing import Any

from windowmill.windowing.errors import SpecError


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
