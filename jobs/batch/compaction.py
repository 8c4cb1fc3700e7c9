"""Compacts a pipeline's tables after a batch, where many small files or superseded rows would make reading them slow. No JVM."""

from __future__ import annotations

from windowmill.checkpoints.state.base import is_overgrown, is_scattered
from windowmill.checkpoints.state.joint import compact_entries
from windowmill.checkpoints.state.partials import NeededRows, compact_partials
from windowmill.checkpoints.state.position_compaction import overgrown_from
from windowmill.checkpoints.stores import is_table
from windowmill.checkpoints.upkeep import merge_if_many
from windowmill.jobs.batch.compute import ComputedBatch, Job
from windowmill.jobs.batch.progress import Progress
from windowmill.jobs.ways import limits

#: Interval in batches at which the quality and quarantine tables are compacted if they have many small files.
MERGED_EVERY = 16


def compact_tables(job: Job, computed: ComputedBatch, progress: Progress) -> None:
    """Compact the tables that have grown enough, after the batch of ``job``."""
    state = _State(job, beyond_process=not computed.in_one_process and _has_few_rows(job))
    if state.is_overgrown():
        with progress.step("compact", "entries of the state that later ones have superseded"):
            state.compact()
    if job.plan.batch % MERGED_EVERY == MERGED_EVERY - 1:
        for path in (job.runnable.places.quality, job.runnable.places.quarantine):
            merge_if_many(path)


def _has_few_rows(job: Job) -> bool:
    try:
        limits.check_files(job.reading.files, None)
    except limits.TooLargeError:
        return False
    return True


class _State:
    """The state table; ``beyond_process`` is whether one process could not compute a batch of few rows, because of state or results."""

    def __init__(self, job: Job, *, beyond_process: bool) -> None:
        parts = job.parts()
        self._path, self._batch, self._keys = job.runnable.places.state, job.plan.batch, job.runnable.pipeline.keys
        self._ways, self._spans = [part.way for part in parts], [name for part in parts for name in part.spans]
        self._beyond_process = beyond_process

    def is_overgrown(self) -> bool:
        """Whether the state has grown enough to be compacted. Reads only its Delta log, and footers of large files.

        Of slices and sessions alone only spans have, which batches look for in all files: else ``windowmill maintain`` merges these.
        """
        if not (self._has_entries or self._spans) or not is_table(self._path):
            return False
        return self._merged_from() is not None if self._has_entries else is_scattered(self._path)

    def compact(self) -> None:
        """Compact the state."""
        before = self._batch + 1
        if self._has_entries:
            compact_entries(self._path, before, self._ways, spans=self._spans, first=self._merged_from() or None)
        else:
            compact_partials(self._path, NeededRows.all_but_old_spans(self._keys, self._spans, before))

    @property
    def _has_entries(self) -> bool:
        """Whether the state has rows that are compacted together with all others."""
        return bool({"positions", "live rows"} & set(self._ways))

    def _merged_from(self) -> int | None:
        """The first batch whose rows are worth merging with those of all later ones, 0 for all; null for none."""
        if self._ways == ["positions"]:
            return overgrown_from(self._path, lay_out=self._beyond_process)
        return 0 if is_overgrown(self._path) else None
