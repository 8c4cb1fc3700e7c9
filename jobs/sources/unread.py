"""Polls a pipeline's source for versions that the pipeline has not read. No JVM, and nothing is written."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

from windowmill.checkpoints.delta_tables import KeptTable, tables_kept
from windowmill.checkpoints.ledger import Ledger
from windowmill.checkpoints.own_tables import own_tables
from windowmill.checkpoints.protocol import outstanding
from windowmill.jobs.runnables import runnable_of
from windowmill.jobs.sources.base import LoggedVersion, SourceTable, open_source, probe_source, shared_identity
from windowmill.jobs.sources.chains import UpstreamSink, read_through
from windowmill.jobs.sources.reading import moves_on, starting_version
from windowmill.windowing.errors import LedgerBehindError, SourceError, SourceMissingError, SourceRangeGoneError, WindowmillError
from windowmill.windowing.fields import Source
from windowmill.windowing.spec import Pipeline


@dataclass(frozen=True, slots=True)
class UnreadRows:
    """What a run would take up.

    ``version``: the source's newest version.
    ``planned``: the last version that a batch in the ledger covers; −1 if there is none.
    ``open``: whether the newest batch is held, or lacks commits: a run is about to make them, or has died.
    """

    version: int
    planned: int
    open: bool


class SourceProbe:
    """Probes a source, as often as it is called, for all pipelines that read it.

    Its result is the argument of :meth:`SourceWatch.poll`. A probe that finds nothing changed costs a few file lookups.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._kept: dict[str, KeptTable] = {}

    def __call__(self) -> Any:
        with tables_kept(self._kept):
            return probe_source(self._source)


class SourceWatch:
    """Polls a pipeline's source and ledger; a poll that finds nothing changed costs a few file lookups.

    Raises ``SpecError`` if runs do not support the spec.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self._runnable = runnable_of(pipeline)
        self._kept: dict[str, KeptTable] = {}
        self._ledger: Ledger | None = None
        #: Table id, newest version, and last version read (none if nothing has been), when the last poll found no rows.
        self._without_rows: tuple[str, int, int | None] | None = None
        #: Number and verdict of the newest batch, when the last poll found all its commits.
        self._published: tuple[int, str] | None = None

    @property
    def source(self) -> Source:
        """The pipeline's source."""
        return self._runnable.source

    @property
    def source_identity(self) -> Hashable:
        """Equal for watches that may share a :class:`SourceProbe`."""
        return shared_identity(self.source)

    def poll(self, probed: Any = None) -> UnreadRows | None:
        """What a run would take up now; ``None`` if the source has no new rows and no batch is open.

        New versions without rows, as OPTIMIZE and the like make them, do not count. Nor do versions that change rows, if the spec ignores
        these. A problem that the run itself would report, such as a replaced table, counts.

        ``probed``: the present result of a :class:`SourceProbe`; null to read the source's log.
        Raises ``SourceMissingError`` if there is no table at the source's path; ``SourceError`` or ``LedgerError`` if source or ledger
        cannot be read.
        """
        with tables_kept(self._kept):
            if self.source.pipeline is not None:
                return self._poll_published()
            source = open_source(self._runnable.pipeline, probed)
            ledger = self._refreshed()
            newest, last = ledger.newest_kept, ledger.last_commit
            unread = UnreadRows(source.version, newest.plan.to_version if newest else -1, self._is_open(ledger))
            if unread.open or (newest and newest.plan.source_id != source.table_id):
                return unread
            after = last.plan.to_version if last else None
            seen = (source.table_id, source.version, after)
            if source.version == after or seen == self._without_rows:
                return None
            if (after is not None and source.version < after) or self._has_rows(source, after):
                return unread
            self._without_rows = seen
            return None

    def _poll_published(self) -> UnreadRows | None:
        """As :meth:`poll`, of a source that is another pipeline, whose batches are the versions; also if the watermark would move on."""
        pipeline, ledger = self._runnable.pipeline, self._refreshed()
        read, is_open = read_through(pipeline), self._is_open(ledger)
        try:
            published = UpstreamSink.of(pipeline)
        except LedgerBehindError:  # the run says what to do
            return UnreadRows(-1, read, open=True)
        if published is None:
            return UnreadRows(-1, read, open=True) if is_open else None
        unread = UnreadRows(published.batch, read, is_open)
        if is_open or published.batch != read:
            return unread
        source, last = open_source(pipeline), ledger.last_commit
        waits = last is None or moves_on(pipeline, ledger, source.complete) or self._has_rows(source, last.to_version)
        return unread if waits else None

    def _refreshed(self) -> Ledger:
        if self._ledger is None:
            self._ledger = Ledger.open(self._runnable.pipeline)
        else:
            self._ledger.refresh()
        return self._ledger

    def _is_open(self, ledger: Ledger) -> bool:
        newest = ledger.newest
        if newest is None or (newest.number, newest.verdict) == self._published:
            return False
        try:
            lacking = newest.status == "held" or bool(outstanding(ledger, own_tables(self._runnable)))
        except WindowmillError:  # the run says what to do
            return True
        self._published = None if lacking else (newest.number, newest.verdict)
        return lacking

    def _has_rows(self, source: SourceTable, after: int | None) -> bool:
        """Whether a version after ``after``, or after the start of a pipeline that has never run, has rows to read."""
        if after is None:
            try:
                after = starting_version(self._runnable, source) - 1
            except SourceRangeGoneError:
                return True
            except SourceError:  # the version or instant at which the pipeline starts is still to come
                return False
        try:
            return any(map(self._counts, source.versions(after, source.version)))
        except SourceMissingError:
            raise
        except SourceError:  # a log that has been cleaned up or is damaged: the run says what to do
            return True

    def _counts(self, version: LoggedVersion) -> bool:
        if version.changes:
            return self._runnable.source.changes != "ignore"
        return any(file.rows != 0 for file in version.added)
