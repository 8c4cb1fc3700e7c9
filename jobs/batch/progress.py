"""Reports the progress of a run: a live line on a terminal, plain lines elsewhere, and the seconds of each step."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from rich.console import Console

from windowmill.windowing.redaction import redacted


class Progress:
    """Writes to standard error; ``timings`` adds up the seconds of each step, and each step runs within ``around`` of its name.

    ``written`` puts variables of the environment, as the spec names them, in the place of their values.
    """

    def __init__(self, console: Console | None = None, written: Callable[[str], str] = str) -> None:
        self._console = console or Console(stderr=True, highlight=False, soft_wrap=True)
        self._written = written
        self.timings: dict[str, float] = {}
        self.around: Callable[[str], AbstractContextManager[object]] = nullcontext

    def say(self, text: str) -> None:
        """Print ``text`` as one plain line, with credentials redacted."""
        self._console.print(redacted(self._written(text)), markup=False)

    @contextmanager
    def step(self, name: str, doing: str) -> Iterator[None]:
        """Time the step ``name``, and show ``doing`` while it lasts."""
        begun = time.perf_counter()
        if self._console.is_terminal:
            with self._console.status(redacted(f"{name}: {doing}")), self.around(name):
                yield
        else:
            with self.around(name):
                yield
        self.timings[name] = self.timings.get(name, 0.0) + time.perf_counter() - begun
        self.say(f"  {name:<11}{doing}  ({self.timings[name]:.1f} s)")
