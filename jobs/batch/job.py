"""The input, the parts and the result of computing a batch; input and result are sent between the driver and a task."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pyarrow as pa

from windowmill.checkpoints.batches import Changes, Plan
from windowmill.checkpoints.data_files import missing, remove
from windowmill.checkpoints.ledger import Notes
from windowmill.checkpoints.places import Runnable
from windowmill.checkpoints.state.readers import DeltaState, MemoryState, State
from windowmill.checkpoints.state.tables import joint_schema
from windowmill.checkpoints.stores import Options
from windowmill.jobs.layouts.base import Part
from windowmill.jobs.layouts.input import Emission, Input, TableInput
from windowmill.jobs.layouts.output import Output, QuarantineRows, Role, decoded, encoded, returnable
from windowmill.jobs.sources.base import Reading, SourceTable
from windowmill.jobs.sources.plain_rows import NO_ANSWERS, Answers, PlainRows
from windowmill.windowing.columnar.hashes import RowCheck
from windowmill.windowing.counts import Counts
from windowmill.windowing.layouts import divide
from windowmill.windowing.spec import Pipeline

#: Times a step; takes its name and what it does.
Step = Callable[[str, str], AbstractContextManager[Any]]
#: Called with a share that is finished: its name, the number of finished ones and of all, and an estimate of the seconds left.
OnFinished = Callable[[str, int, int, float], None]


def untimed(_name: str, _doing: str) -> AbstractContextManager[Any]:
    return nullcontext()


def parts_of(batch: Input, state: State) -> list[Part]:
    """The parts of ``batch`` over its ``state``, as :mod:`windowmill.windowing.layouts` divides the windows and ``explain`` shows."""
    divided = divide(batch.pipeline, batch.types)
    parts: list[Part] = []
    if divided.slices is not None:
        from windowmill.jobs.layouts.slices import SlicePart

        parts.append(SlicePart(batch, divided.slices, holds_nodes=state.holds_nodes))
    if divided.sessions or divided.positions or divided.rows:
        from windowmill.jobs.layouts import keyed_parts

        if divided.sessions is not None:
            parts.append(keyed_parts.SessionPart(batch, divided.sessions))
        if divided.positions is not None:
            parts.append(keyed_parts.PositionPart(batch, divided.positions))
        if divided.rows is not None:
            parts.append(keyed_parts.LiveRowPart(batch, divided.rows))
    return parts


def state_schema(pipeline: Pipeline, types: Mapping[str, pa.DataType]) -> pa.Schema:
    """The columns of the state of ``pipeline`` over source columns of ``types``; raises ``SpecError`` if names clash."""
    parts = parts_of(Input(pipeline=pipeline, types=types, builds_state=True), MemoryState())
    return joint_schema(pipeline, [part.schema for part in parts])


@dataclass(frozen=True)
class Job:
    """Everything that computing a batch needs; picklable."""

    runnable: Runnable
    plan: Plan
    source: SourceTable  #: The source with the columns that the plan has pinned.
    reading: Reading  #: The files of the source that the plan reads.
    check: RowCheck  #: Verifies rows of the state.
    #: Names of the spec's windows, if the sink may hold rows of windows that the spec has dropped; else null.
    windows: tuple[str, ...] | None
    options: Mapping[str, Options]  #: For each place in object storage, the settings of its client; they hold credentials.
    answers: Answers = NO_ANSWERS  #: Results of conditions that only Spark evaluates.

    @property
    def replaced_windows(self) -> tuple[str, ...] | None:
        """Names of the windows whose rows the batch replaces; null for all windows of the sink."""
        return self.plan.fills if self.plan.changes_spec else self.windows

    @property
    def quarantine(self) -> QuarantineRows:
        paths = () if self.plan.restates else tuple(file.path for file in self.reading.files)
        return QuarantineRows(self.runnable.pipeline, self.plan, paths)

    @cached_property
    def input(self) -> TableInput:
        plain = PlainRows.of(self.runnable.pipeline, self.source, self.reading, self.answers)
        return TableInput.of(self.runnable, self.plan, self.source, self.reading, plain, self.check)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "input"}

    @property
    def state(self) -> DeltaState:
        return DeltaState(self.runnable.places.state, self.check, replaced=self.plan.replaces_state)

    def parts(self) -> list[Part]:
        return parts_of(self.input, self.state)


@returnable
@dataclass(frozen=True)
class ComputedBatch:
    """The result of computing a batch."""

    emission: Emission
    counts: Counts
    changes: Mapping[str, Changes]  #: What the batch changes in each table, by role; a role in which it changes nothing is missing.
    executors: frozenset[str] = frozenset()  #: One text for each process that ran tasks.
    in_one_process: bool = False  #: Whether one process computed all of it.
    seen: int | None = None  #: Greatest event time of the rows read; null for none.


@dataclass
class FinishedShares:
    """Finished shares of the keys of ``plan``'s batch, which its next attempt takes as they are: keys do not depend on each other."""

    notes: Notes
    plan: Plan
    say: OnFinished
    _files: list[tuple[Mapping[Role, str], Output]] = field(default_factory=list)

    @classmethod
    def of(cls, runnable: Runnable, plan: Plan, say: OnFinished) -> FinishedShares | None:
        """Those of a batch that recomputes rows which were read before; null for other batches, which keep none."""
        return cls(Notes(runnable.places.finished), plan, say) if plan.recomputes else None

    def outputs(self, shares: Mapping[str, Callable[[], Output]], tables: Mapping[Role, str]) -> list[Output]:
        """The outputs of ``shares``, computed one after the other unless finished; ``tables`` are the paths of their files' tables."""
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
        """The output of a finished share, if all its files still exist."""
        noted = self.notes.read(name)
        if noted is None:
            return None
        output: Output = decoded(noted)
        return None if any(missing(tables[role], files) for role, files in output.files.items()) else output
