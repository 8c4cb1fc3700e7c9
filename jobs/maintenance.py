"""Keeping a pipeline's tables small: expired slices go, small files are merged, files no version needs are vacuumed. No JVM."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from deltalake import DeltaTable

from checkpoints.lease import lease
from checkpoints.ledger import Ledger
from checkpoints.places import Places
from checkpoints.state import compact_log, compact_slices, is_log
from jobs import planning, staging
from jobs.progress import Progress
from jobs.runs import LEASE_WAIT_SECONDS
from jobs.tell import Answer
from windowing.hopping import Grids
from windowing.spec import Pipeline

#: Readers of an older version, and a retry that looks one up, have this long.
RETENTION_HOURS = 168


@dataclass(frozen=True, slots=True)
class Kept:
    """What maintenance did to one table."""

    table: str
    rows_expired: int = 0
    files_before: int = 0
    files_after: int = 0
    files_vacuumed: int = 0


def maintain(pipeline: Pipeline, progress: Progress) -> Answer:
    """Expire, compact and vacuum; waits for a run that is under way, and keeps later ones waiting while it lasts."""
    planning.check_runnable(pipeline)
    places = Places.of(pipeline)
    done = []
    with lease(places.root, wait_seconds=LEASE_WAIT_SECONDS, on_wait=progress.say):
        staging.clear(f"{places.root}/.staging")
        ledger = Ledger.open(pipeline)
        for name, path in (("state", places.state), ("sink", pipeline.sink.path if pipeline.sink else None), *_own(places)):
            if path is not None and DeltaTable.is_deltatable(path):
                with progress.step(name, f"tidy {path}"):
                    done.append(_tidy(name, path, _compact_state(pipeline, ledger) if name == "state" else _compact))
    lines = [
        f"{kept.table}: {kept.rows_expired:,} rows expired, {kept.files_before} files now {kept.files_after}, "
        f"{kept.files_vacuumed} old files removed"
        for kept in done
    ]
    data = [{field: getattr(kept, field) for field in Kept.__slots__} for kept in done]
    return Answer(data, "\n".join(lines) or f"{pipeline.pipeline}: no tables yet, nothing to tidy")


def _own(places: Places) -> list[tuple[str, str]]:
    return [("quarantine", places.quarantine), ("quality", places.quality), ("ledger", places.ledger)]


def _compact_state(pipeline: Pipeline, ledger: Ledger) -> Callable[[str], int]:
    def compact(path: str) -> int:
        if is_log(path):
            return compact_log(path, len(ledger.batches()) - (ledger.open_batch is not None)) + _compact(path)
        return compact_slices(path, _needed_from(pipeline, ledger))

    return compact


def _needed_from(pipeline: Pipeline, ledger: Ledger) -> int | None:
    """Start of the first slice that a window still to come can hold, if it is known."""
    last = ledger.last_commit
    if last is None or last.outcome is None or last.outcome.emitted is None:
        return None
    return Grids.of(pipeline).first_slice_after(last.outcome.emitted)


def _compact(path: str) -> int:
    DeltaTable(path).optimize.compact()
    return 0


def _tidy(name: str, path: str, compact: Callable[[str], int]) -> Kept:
    """``compact`` rewrites the table's files, and tells how many rows went."""
    before = len(DeltaTable(path).file_uris())
    rows = compact(path)
    removed = DeltaTable(path).vacuum(retention_hours=RETENTION_HOURS, dry_run=False)
    return Kept(name, rows, before, len(DeltaTable(path).file_uris()), len(removed))
