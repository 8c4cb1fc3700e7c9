"""Keeping a pipeline's tables small: expired slices go, small files are merged, files no version needs are vacuumed. No JVM."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from deltalake import DeltaTable

from checkpoints.lease import lease
from checkpoints.ledger import Ledger
from checkpoints.places import Places
from checkpoints.state import SLICE, compact_log, is_log
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
                    log = name == "state" and is_log(path)
                    superseded = compact_log(path, len(ledger.batches()) - (ledger.open_batch is not None)) if log else 0
                    done.append(_tidy(name, path, None if log or name != "state" else _expiry(pipeline, ledger), superseded))
    lines = [
        f"{kept.table}: {kept.rows_expired:,} rows expired, {kept.files_before} files now {kept.files_after}, "
        f"{kept.files_vacuumed} old files removed"
        for kept in done
    ]
    data = [{field: getattr(kept, field) for field in Kept.__slots__} for kept in done]
    return Answer(data, "\n".join(lines) or f"{pipeline.pipeline}: no tables yet, nothing to tidy")


def _own(places: Places) -> list[tuple[str, str]]:
    return [("quarantine", places.quarantine), ("quality", places.quality), ("ledger", places.ledger)]


def _expiry(pipeline: Pipeline, ledger: Ledger) -> str | None:
    """Predicate of the slices that no window still to come can hold."""
    last = ledger.last_commit
    if last is None or last.outcome is None or last.outcome.emitted is None:
        return None
    return f"{SLICE} < {Grids.of(pipeline).first_slice_after(last.outcome.emitted)}"


def _tidy(name: str, path: str, expired: str | None, superseded: int) -> Kept:
    before = len(DeltaTable(path).file_uris())
    rows = _count(DeltaTable(path).delete(expired), "num_deleted_rows") if expired else superseded
    DeltaTable(path).optimize.compact()
    removed = DeltaTable(path).vacuum(retention_hours=RETENTION_HOURS, dry_run=False)
    return Kept(name, rows, before, len(DeltaTable(path).file_uris()), len(removed))


def _count(metrics: dict[str, Any], name: str) -> int:
    return int(metrics.get(name) or 0)
