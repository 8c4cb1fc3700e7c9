"""Pipelines that tests begin from: a function runs each of them once, and a test gets a copy of its tables."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any


class Prepared:
    """The pipelines that functions have made below ``root``, by the functions and their arguments.

    A function is called with these and with ``folder``, which does not exist yet. What it returns has ``copied_to(folder)``.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._made: dict[tuple[str, ...], Any] = {}

    def original(self, make: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """The pipeline that ``make`` has made, for tests that only read it."""
        key = (make.__module__, make.__qualname__, repr(args), repr(options))
        if key not in self._made:
            self._made[key] = make(*args, folder=self._root / str(len(self._made)), **options)
        return self._made[key]

    def copy(self, folder: Path, make: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """A copy of that pipeline in ``folder``."""
        return self.original(make, *args, **options).copied_to(folder)
