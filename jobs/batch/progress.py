"""What a run reports: a line for each step, the batches that it committed, and warnings about them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Literal

from rich.console import Console
from rich.text import Text

from windowmill.checkpoints.batches import Batch, Outcome, Plan
from windowmill.checkpoints.places import Places
from windowmill.jobs.short_texts import PlainConsole, in_lines
from windowmill.windowing.counts import Counts
from windowmill.windowing.redaction import redacted
from windowmill.windowing.spec import Pipeline

if TYPE_CHECKING:
    from rich.status import Status


#: Publish the held batch anyway, or commit it without its rows.
Ruling = Literal["release", "discard"]


#: Windows that a line about late rows names.
_MAX_NAMED = 5


class Progress:
    """Writes to standard error; ``timings`` adds up the seconds of each step.

    ``committed`` has the batches of the last call, also where an error has ended it. ``written`` puts variables of the environment,
    as the spec names them, in the place of their values.
    """

    def __init__(self, console: Console | None = None, written: Callable[[str], str] = str) -> None:
        self._console = console or PlainConsole(stderr=True)
        self._written = written
        self.timings: dict[str, float] = {}
        self.committed: list[CommittedBatch] = []
        self.current = ""  #: The step that runs; empty between steps.
        self.on_step: Callable[[str], None] | None = None  #: Called with :attr:`current` when it changes.
        self._shown: Status | None = None

    def say(self, text: str) -> None:
        """Print ``text`` as one plain line, with credentials redacted; a terminal shows it in several that end between words."""
        line = redacted(self._written(text))
        if self._console.is_terminal:
            line = in_lines(line, self._console.width, then=" " * (len(line) - len(line.lstrip()) + 2))
        self._console.print(line, markup=False)

    def finished(self, what: str, n: int, of: int, seconds_left: float) -> None:
        """Report that ``what``, piece ``n`` of a step, is finished: a terminal shows it in place of the step."""
        left = f", about {timedelta(seconds=round(seconds_left))} left" if n < of else ""
        text = f"{what} finished: {n} of {of} ({n / of:.0%}){left}"
        if self._shown is not None:
            self._shown.update(Text(redacted(text)))
        else:
            self.say(f"  {text}")

    @contextmanager
    def step(self, name: str, doing: str) -> Iterator[None]:
        """Time the step ``name``, and show ``doing`` while it runs."""
        begun, before = time.perf_counter(), self.current
        with ExitStack() as stack:
            if self._console.is_terminal:
                self._shown = stack.enter_context(self._console.status(Text(redacted(f"{name}: {doing}"))))
            try:
                self.current = name
                if self.on_step is not None:
                    self.on_step(name)
                yield
            finally:
                self._shown, self.current = None, before
                if self.on_step is not None:
                    self.on_step(before)
        self.timings[name] = self.timings.get(name, 0.0) + time.perf_counter() - begun
        self.say(f"  {name:<11}{doing}  ({self.timings[name]:.1f} s)")


@dataclass(frozen=True)
class Restated:
    """The result of a restatement: numbers of keys touched (null for all), of windows that changed, and of retracted ones among them."""

    keys: int | None
    windows: int
    retracted: int

    def describe(self) -> str:
        """The result in words.

        >>> Restated(2, 5, 1).describe(), Restated(None, 1, 0).describe()
        ('2 keys touched, 5 windows changed (1 retracted)', 'all keys touched, 1 window changed (0 retracted)')
        """
        keys = "all keys" if self.keys is None else f"{self.keys:,} key{'' if self.keys == 1 else 's'}"
        return f"{keys} touched, {self.windows:,} window{'' if self.windows == 1 else 's'} changed ({self.retracted:,} retracted)"


@dataclass(frozen=True)
class CommittedBatch:
    """A committed batch; of a restatement also its result, if this process has computed it."""

    plan: Plan
    outcome: Outcome
    restated: Restated | None = None


def late_missed(batches: Iterable[Batch]) -> Counter[str]:
    """By window name, the rows that came too late for a window that holds them, in committed ``batches``; rereads do not count."""
    first = (batch for batch in batches if batch.status == "committed" and batch.plan.builds_state and not batch.plan.replaces_state)
    return sum((Counter(batch.counts.late_missed) for batch in first), Counter())


def missed_windows(missed: Mapping[str, int]) -> str:
    """How many late rows missed windows of each name, in words; those of most rows come first.

    >>> missed_windows({"last_day": 1, "last_hour": 2})
    '2 missed a window of last_hour, 1 of last_day'
    """
    named = sorted(missed.items(), key=lambda each: -each[1])
    parts = [f"{n:,} {'of' if place else 'missed a window of'} {name}" for place, (name, n) in enumerate(named[:_MAX_NAMED])]
    return ", ".join(parts) + (f" and others of {len(named) - _MAX_NAMED} more" if len(named) > _MAX_NAMED else "")


def warnings_of(counts: Counts, pipeline: Pipeline, places: Places) -> list[str]:
    """The warnings, one line each: what happened, where to look and what to do."""
    lines, most = [], pipeline.quarantine.warn
    rate = counts.rows_quarantined / counts.rows_kept if counts.rows_kept else 0.0
    if most is not None and rate > most:
        lines.append(
            f"{counts.rows_quarantined:,} of {counts.rows_kept:,} rows read ({rate:.1%}) were quarantined, see the reasons in "
            f"{places.quarantine}; if they came too late, raise time.disorder or time.lateness, or read history that was loaded in "
            "bulk with `--arrival event_time` (run into a new sink, or backfill)"
        )
    if counts.rows_ignored:
        lines.append(
            f"{counts.rows_ignored:,} rows that the source updated or removed were ignored (source.changes: ignore): windows already "
            "computed still count them as they were"
        )
    return lines
