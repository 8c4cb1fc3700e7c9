"""What waits in the source of a pipeline for its next run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from windowmill.checkpoints.catalog_tables import located
from windowmill.checkpoints.ledger import Ledger
from windowmill.jobs.sources.kinds import is_located, open_source
from windowmill.windowing.errors import SourceError, WindowmillError

if TYPE_CHECKING:
    from windowmill.jobs.sources.base import LoggedVersion
    from windowmill.windowing.spec import Pipeline


def waiting(pipeline: Pipeline, ledger: Ledger) -> tuple[int | None, tuple[LoggedVersion, ...]]:
    """Number of the source's versions that no batch has read, and those of them that changed rows; null where it is not known."""
    last, pipeline = ledger.last_commit, located(pipeline)
    if not is_located(pipeline.source):
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
