"""What computing a batch needs, and what it gives; both travel between the driver and a task."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from windowmill.checkpoints.batches import Changes
from windowmill.checkpoints.places import Runnable
from windowmill.checkpoints.plans import Plan
from windowmill.checkpoints.stores import Options, options_of
from windowmill.jobs.layouts.emission import Emission
from windowmill.jobs.layouts.input import TableInput
from windowmill.jobs.layouts.returning import returnable
from windowmill.jobs.sources.base import Reading, SourceTable
from windowmill.jobs.sources.plain_rows import NO_ANSWERS, Answers, PlainRows
from windowmill.windowing.columnar.checksums import RowCheck
from windowmill.windowing.counts import Counts

if TYPE_CHECKING:
    from windowmill.checkpoints.state.readers import DeltaState
    from windowmill.jobs.layouts.base import Part

#: Times a step; takes its name and what it does.
Step = Callable[[str, str], AbstractContextManager[Any]]


def untimed(_name: str, _doing: str) -> AbstractContextManager[Any]:
    """A step that nothing times."""
    return nullcontext()


@dataclass(frozen=True)
class Job:
    """All that computing a batch needs; picklable.

    Attributes
    ----------
    source
        The source with the columns that the plan has pinned.
    reading
        What the plan reads of it.
    check
        Verifies rows of the state.
    windows
        Names of the spec's windows where the sink may hold rows of others, which the spec has dropped; null where it holds none.
    options
        For each place in object storage, the settings of its client; they hold credentials.
    answers
        What Spark has said of conditions that only it evaluates.
    """

    runnable: Runnable
    plan: Plan
    source: SourceTable
    reading: Reading
    check: RowCheck
    windows: tuple[str, ...] | None
    options: Mapping[str, Options]
    answers: Answers = NO_ANSWERS

    @classmethod
    def of(
        cls, runnable: Runnable, plan: Plan, source: SourceTable, reading: Reading, check: RowCheck, windows: tuple[str, ...] | None = None
    ) -> Job:
        """The job of ``plan``, with what this process knows of the places in object storage."""
        every = (runnable.source_path, runnable.sink_path, runnable.places.root)
        options = {place: found for place in every if (found := options_of(place)) is not None}
        return cls(runnable, plan, source, reading, check, windows, options)

    @property
    def paths(self) -> tuple[str, ...]:
        """The path of each file that the batch reads, by which quarantine names it; none for files of its own."""
        return () if self.plan.restates else tuple(file.path for file in self.reading.files)

    @cached_property
    def input(self) -> TableInput:
        """The batch's new rows and the progress before it."""
        plain = PlainRows.of(self.runnable.pipeline, self.source, self.reading, self.answers)
        return TableInput.of(self.runnable, self.plan, self.source, self.reading, plain, self.check)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "input"}

    @property
    def state(self) -> DeltaState:
        """The state before the batch."""
        from windowmill.checkpoints.state.readers import DeltaState  # the driver of a task reads no state

        return DeltaState(self.runnable.places.state, self.check, replaced=self.plan.replaces_state)

    def parts(self) -> list[Part]:
        """The parts of the pipeline."""
        from windowmill.jobs.layouts.choose import parts_of

        return parts_of(self.input, self.state)

    def computed(self, parts: Sequence[Part]) -> list[Part]:
        """Those of ``parts`` that the batch computes: all but those of which a changed spec keeps what the state has stored."""
        return [part for part in parts if part.way not in self.plan.keeps]


@returnable
@dataclass(frozen=True)
class ComputedBatch:
    """What computing a batch gives.

    Attributes
    ----------
    changes
        What the batch changes in each table, by role; a role in which it changes nothing is missing.
    executors
        One text for each process that ran tasks.
    in_one_process
        Whether one process computed all of it.
    seen
        Greatest event time of the rows read; null for none.
    """

    emission: Emission
    counts: Counts
    changes: Mapping[str, Changes]
    executors: frozenset[str] = frozenset()
    in_one_process: bool = False
    seen: int | None = None
