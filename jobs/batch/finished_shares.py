"""Computes a batch that reads only the source share by share of the keys, and keeps what is finished for the next attempt.

Keys do not depend on each other, so the files of a share of them are final as soon as they are written.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from windowmill.checkpoints.data_files import missing, remove
from windowmill.checkpoints.finished import Notes
from windowmill.checkpoints.places import Runnable
from windowmill.checkpoints.plans import Plan
from windowmill.jobs.layouts.output import Output, Role
from windowmill.jobs.layouts.returning import decoded, encoded

#: Called with a share that is finished: its name, the number of finished ones and of all, and an estimate of the seconds left.
OnFinished = Callable[[str, int, int, float], None]


@dataclass
class FinishedShares:
    """The shares of the batch of ``plan``."""

    notes: Notes
    plan: Plan
    say: OnFinished
    _files: list[tuple[Mapping[Role, str], Output]] = field(default_factory=list)

    @classmethod
    def of(cls, runnable: Runnable, plan: Plan, say: OnFinished) -> FinishedShares | None:
        """Those of a batch that reads all its rows from the source, as they were read before; null for any other."""
        return cls(Notes(runnable.places.finished), plan, say) if plan.recomputes else None

    def outputs(self, shares: Mapping[str, Callable[[], Output]], tables: Mapping[Role, str]) -> list[Output]:
        """What ``shares`` compute, by their names, one after the other; ``tables`` are the places of the tables of their files."""
        self.notes.begin(self.plan)
        found = {name: output for name in shares if (output := self._noted(name, tables)) is not None}
        begun, n_found = time.perf_counter(), len(found)
        for name, compute in shares.items():
            if name in found:
                continue
            found[name] = compute()
            self.notes.write(name, encoded(found[name]))
            left = (time.perf_counter() - begun) / (len(found) - n_found) * (len(shares) - len(found))
            self.say(name, len(found), len(shares), left)
        self._files = [(tables, output) for output in found.values()]
        return [found[name] for name in shares]

    def clear(self) -> None:
        """Drop the notes of a batch that has been recorded, and the files that only its attempts needed."""
        for tables, output in self._files:
            with suppress(OSError):
                remove(tables["refused"], output.files.get("refused", ()))
        self.notes.clear()

    def _noted(self, name: str, tables: Mapping[Role, str]) -> Output | None:
        """The output of a share that is finished, if all its files are there."""
        noted = self.notes.read(name)
        if noted is None:
            return None
        output: Output = decoded(noted)
        return None if any(missing(tables[role], files) for role, files in output.files.items()) else output
