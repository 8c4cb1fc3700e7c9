"""Tells what the next run will find: versions that wait, and why it would refuse or fail. No JVM, and nothing is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

from windowmill.jobs.batch import planning
from windowmill.jobs.batch.engine import compute_of, refused_locally
from windowmill.jobs.commands.terminal import as_written
from windowmill.jobs.sources.kinds import KINDS, open_source
from windowmill.jobs.spec_checks import runnable_of
from windowmill.windowing.errors import SourceError, WindowmillError

if TYPE_CHECKING:
    from windowmill.checkpoints.ledger import Ledger
    from windowmill.checkpoints.runnable import Runnable
    from windowmill.jobs.sources.base import LoggedVersion, Reading, SourceTable
    from windowmill.windowing.spec import Pipeline

#: Versions that the text of ``status`` names.
_MAX_NAMED = 5


@dataclass(frozen=True, slots=True)
class NextRun:
    """What a run that began now would find.

    Attributes
    ----------
    waiting
        Number of the source's versions that no batch has read; null if it is not known.
    changing
        Those of them that update or remove rows.
    error
        Why the run would end without a batch; null if nothing is known to be in its way.
    """

    waiting: int | None = None
    changing: tuple[LoggedVersion, ...] = ()
    error: WindowmillError | None = None

    @classmethod
    def of(cls, pipeline: Pipeline, ledger: Ledger) -> NextRun:
        """Look at the pipeline's spec, source and tables as a run does before it makes its plan."""
        error: WindowmillError | None = None
        try:
            runnable = runnable_of(pipeline)
            if ledger.held_batch:
                planning.check_tables(runnable, ledger, planning.NOTHING_ACCEPTED)
            else:
                takes = partial(_check_local, runnable, ledger.count)
                planning.next_run(runnable, ledger, interval_end=datetime.now(UTC), on_reading=takes)
        except WindowmillError as err:
            error = err
        return cls(*_unread(pipeline, ledger), error)

    def told_waiting(self) -> str | None:
        """The versions that wait, for people."""
        if self.waiting is None or not self.changing:
            return None if self.waiting is None else f"{self.waiting:,}"
        return f"{self.waiting:,}, of which {_told(self.changing)}"

    def told_error(self) -> str | None:
        """What the run would end with, for people."""
        return None if self.error is None else f"would end with exit code {self.error.exit_code}: {as_written(str(self.error))}"


def _check_local(runnable: Runnable, batch: int, source: SourceTable, reading: Reading) -> None:  # noqa: ARG001 - planning gives both
    """Refuse new files that are too many, or too large, where ``compute`` is ``local``."""
    if compute_of(runnable.pipeline) != "local":
        return
    from windowmill.jobs.ways import limits  # imports numba

    try:
        limits.check_files(reading.files, None)
    except limits.TooLargeError as err:
        raise refused_locally(runnable.pipeline, batch, str(err)) from err


def _unread(pipeline: Pipeline, ledger: Ledger) -> tuple[int | None, tuple[LoggedVersion, ...]]:
    last = ledger.last_commit
    if pipeline.source is None or pipeline.source.path is None or pipeline.source.format not in KINDS:
        return None, ()
    try:
        source = open_source(pipeline)
    except WindowmillError:
        return None, ()
    if last is None:  # a first batch reads the table as it is
        return source.version + 1, ()
    if last.plan.source_id != source.table_id or source.version < last.to_version:
        return None, ()
    waiting = source.version - last.to_version
    try:
        return waiting, tuple(version for version in source.versions(last.to_version, source.version) if version.changes)
    except SourceError:  # some versions are gone, which the run's own error says
        return waiting, ()


def _told(versions: Sequence[LoggedVersion]) -> str:
    if len(versions) == 1:
        [version] = versions
        return f"version {version.version} is {'an' if version.operation[:1] in 'AEIOU' else 'a'} {version.operation}"
    named = ", ".join(f"{version.version} ({version.operation})" for version in versions[:_MAX_NAMED])
    return f"versions {named}{' and more' if len(versions) > _MAX_NAMED else ''} change rows"
