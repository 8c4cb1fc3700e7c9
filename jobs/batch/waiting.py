"""What waits in the source of a pipeline for its next run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from windowmill.checkpoints.catalog_tables import located
from windowmill.checkpoints.ledger import Ledger
from windowmill.jobs.sources.kinds import is_located, open_source
from windowmill.windowing.errors import SourceError, WindowmillError

if TYPE_CHECKING:
    from windowmill.jobs.sources.base import LoggedVersion, SourceTable
    from windowmill.windowing.spec import Pipeline


@dataclass(frozen=True, slots=True)
class Waiting:
    """The versions of a source that no batch has read.

    Attributes
    ----------
    n
        Their number; null if it is not known.
    source
        The table that has them; null where a first batch reads it as it is, or where nothing is known.
    """

    n: int | None = None
    source: SourceTable | None = None

    @classmethod
    def of(cls, pipeline: Pipeline, ledger: Ledger) -> Waiting:
        """Look at the source of ``pipeline``."""
        last, pipeline = ledger.last_commit, located(pipeline)
        if not is_located(pipeline.source):
            return cls()
        try:
            source = open_source(pipeline)
        except WindowmillError:
            return cls()
        if last is None:
            return cls(source.version + 1)
        if last.plan.source_id != source.table_id or source.version < last.to_version:
            return cls()
        return cls(source.version - last.to_version, source)

    def changing(self) -> tuple[LoggedVersion, ...]:
        """Those that update or remove rows; none where some are gone, which the run's own error says."""
        if not self.n or self.source is None:
            return ()
        through = self.source.version
        try:
            return tuple(version for version in self.source.versions(through - self.n, through) if version.changes)
        except SourceError:
            return ()
