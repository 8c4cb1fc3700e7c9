"""What a batch reads of its source: how far it goes, which files it takes, and in which order their rows count as arrived. No JVM.

The order of arrival is that of the log: versions, files of a version, rows of a file. Where the log and the files no longer tell it for
every row (a compacted and vacuumed table, a log cleaned up, rows changed before the first batch), a first batch reads the table's
snapshot, and its rows count as arrived in the order of event time: none of them is late. The plan pins which of the two it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Literal

from checkpoints.batches import Plan
from jobs.delta_log import (
    AddedFile,
    LoggedVersion,
    SourceTable,
    first_version_at,
    logged_versions,
    missing_file,
    snapshot_files,
)
from windowing.errors import ArrivalUnknownError, NonAppendCommitError, SourceError, SourceRangeGoneError, SpecError, UnsupportedError
from windowing.spec import Pipeline

Arrival = Literal["log", "event_time"]


@dataclass(frozen=True, slots=True)
class Reach:
    """How far a batch reads: the versions (``after``, ``through``], those up to ``snapshot`` as the table held them then.

    ``snapshot`` is past ``through`` where the table holds the same rows then and has rewritten their files.
    """

    after: int
    through: int
    snapshot: int | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """The files that a batch reads, in the order in which their rows count as arrived.

    Attributes
    ----------
    settled
        So many of the first files are a snapshot's: their rows count as arrived in the order of event time.
    by_delta
        The version at which Delta's own reader must read the settled files, since deletion vectors may take rows out of them.
    rows_ignored
        Rows that versions inserted, updated or removed which ``source.changes: ignore`` leaves out.
    """

    files: tuple[AddedFile, ...]
    settled: int = 0
    by_delta: int | None = None
    rows_ignored: int = 0


def check_source(pipeline: Pipeline) -> None:
    """Refuse what a spec may say of its source and runs cannot do; raises ``SpecError`` naming the field."""
    if pipeline.source is not None and pipeline.source.changes == "restate":
        raise UnsupportedError(
            f"pipeline {pipeline.pipeline}: source.changes: restate is not there yet; use refuse, or ignore to go on without changed rows"
        )
    _starting(pipeline)


def next_reach(pipeline: Pipeline, source: SourceTable, last: Plan | None, arrival: Arrival, *, max_files: int, max_bytes: int) -> Reach:
    """How far the next run reads, after the plan ``last`` of those committed."""
    if last is None:
        return _first(pipeline, source, arrival, max_files=max_files, max_bytes=max_bytes)
    if arrival != "log":
        raise SpecError(
            f"pipeline {pipeline.pipeline}: --arrival {arrival} is for history, and a batch has been committed; leave it out here, "
            "or give it to `windowmill backfill` for windows already computed"
        )
    versions = logged_versions(source, last.to_version, source.version)
    return Reach(last.to_version, _within(pipeline, source, versions, source.version, max_files, max_bytes))


def backfill_reach(pipeline: Pipeline, source: SourceTable, before: Sequence[Plan], arrival: Arrival) -> Reach:
    """What a backfill reads: what the plans ``before`` it that built the state have read; of a first batch all that there is."""
    if not before:
        return _first(pipeline, source, arrival, max_files=None, max_bytes=None)
    first, through = before[0], before[-1].to_version
    if arrival == "log":
        return Reach(first.from_version, through, None if first.snapshot is None else _held(source, first.snapshot))
    if first.from_version >= 0:
        raise UnsupportedError(
            f"pipeline {pipeline.pipeline}: --arrival event_time: the pipeline began at version {first.from_version + 1} "
            "(startingVersion), and the table as it stands does not tell older rows from newer ones; backfill it in a new sink instead"
        )
    return Reach(-1, through, _held(source, through))


def reading_of(pipeline: Pipeline, source: SourceTable, plan: Plan | Reach) -> Reading:
    """The files that a plan reads.

    Raises
    ------
    SourceRangeGoneError
        If the log no longer tells of them.
    NonAppendCommitError
        If one of the versions changed or removed rows, and the spec does not ignore that.
    """
    reach = plan if isinstance(plan, Reach) else Reach(plan.from_version, plan.to_version, plan.snapshot)
    files = [] if reach.snapshot is None else snapshot_files(source, reach.snapshot)
    by_delta = reach.snapshot if files and source.deletion_vectors else None
    if by_delta is not None:
        files = [replace(file, rows=None) for file in files]
    settled, ignored = len(files), 0
    for version in logged_versions(source, reach.after if reach.snapshot is None else reach.snapshot, reach.through):
        files += _appended(pipeline, source, version)
        ignored += version.rows_changed
    return Reading(tuple(files), settled, by_delta, ignored)


def check_readable(pipeline: Pipeline, source: SourceTable, reach: Reach, *, again: bool) -> None:
    """Refuse to plan what could not be read; ``again`` says that batches before have read it, as a backfill of a running pipeline does.

    Raises
    ------
    SourceRangeGoneError
        If files or log entries are gone.
    ArrivalUnknownError
        If they are, and were read before.
    """
    try:
        reading = reading_of(pipeline, source, reach)
        gone = missing_file(source, reading.files)
        if gone is not None:
            raise SourceRangeGoneError(
                f"source {source.path}: the file {gone.path} of version {gone.version} is gone (VACUUM); bring it back, or rebuild this "
                "pipeline in a new sink with backfill; keep delta.deletedFileRetentionDuration longer than runs may pause"
            )
    except SourceRangeGoneError as err:
        if not again or (reach.snapshot is not None and reach.snapshot >= reach.through):
            raise
        what = str(err).removeprefix(f"source {source.path}: ").split(";")[0]
        raise ArrivalUnknownError(
            f"source {source.path}: {what}, so it cannot be told any more in which order the rows arrived that the runs have read; "
            "`windowmill backfill … --arrival event_time` takes the rows that the table holds in the order of their event time, none "
            "of them late"
        ) from err


def _first(pipeline: Pipeline, source: SourceTable, arrival: Arrival, *, max_files: int | None, max_bytes: int | None) -> Reach:
    after, whole = _starting_version(pipeline, source) - 1, Reach(-1, source.version, source.version)
    if after >= 0:
        if arrival != "log":
            raise SpecError(f"pipeline {pipeline.pipeline}: --arrival {arrival} takes the whole table; leave out startingVersion")
        versions = logged_versions(source, after, source.version)
        return Reach(after, _within(pipeline, source, versions, source.version, max_files, max_bytes))
    if arrival == "event_time":
        return whole
    try:
        told = list(logged_versions(source, -1, source.version))
    except SourceRangeGoneError:
        return whole
    if not _tells_order(source, told):
        return whole
    return Reach(-1, _within(pipeline, source, told, source.version, max_files, max_bytes))


def _held(source: SourceTable, version: int) -> int:
    """A version at which the table holds the rows of ``version`` in files that exist: itself, or a later one that only rewrote them."""
    try:
        if missing_file(source, snapshot_files(source, version)) is None:
            return version
    except SourceRangeGoneError:
        pass
    later = version
    try:
        for logged in logged_versions(source, version, source.version):
            if logged.changes or logged.added:
                break
            later = logged.version
    except SourceRangeGoneError:
        pass
    return later


def _tells_order(source: SourceTable, versions: Sequence[LoggedVersion]) -> bool:
    """Whether the files that ``versions`` appended hold just the rows that the table holds, and can be read."""
    if any(version.changes for version in versions):
        return False
    appended = [file for version in versions for file in version.added]
    held = snapshot_files(source, source.version)
    if {file.path for file in appended} != {file.path for file in held}:
        n_rows = _rows_of(appended)
        if n_rows is None or n_rows != _rows_of(held):
            return False
    return missing_file(source, appended) is None


def _rows_of(files: Sequence[AddedFile]) -> int | None:
    """Rows of all ``files``; null where the log does not tell it of each."""
    known = [file.rows for file in files if file.rows is not None]
    return sum(known) if len(known) == len(files) else None


def _within(
    pipeline: Pipeline,
    source: SourceTable,
    versions: Iterable[LoggedVersion],
    through: int,
    max_files: int | None,
    max_bytes: int | None,
) -> int:
    """The last version such that what ``versions`` appended through it stays within the limits; at least one version is taken."""
    files = size = 0
    for place, version in enumerate(versions):
        added = _appended(pipeline, source, version)
        files, size = files + len(added), size + sum(file.size_bytes for file in added)
        if place and ((max_files is not None and files > max_files) or (max_bytes is not None and size > max_bytes)):
            return version.version - 1
    return through


def _appended(pipeline: Pipeline, source: SourceTable, version: LoggedVersion) -> Sequence[AddedFile]:
    """The files whose rows a batch takes from ``version``: none if it changed rows and the spec ignores that."""
    if not version.changes:
        return version.added
    if pipeline.source is not None and pipeline.source.changes == "ignore":
        return ()
    what = f"source {source.path}: version {version.version} ({version.operation}) changed or removed rows"
    if version.pipeline is not None:
        what += f": the windowmill pipeline {version.pipeline} replaced what it had published (backfill)"
    raise NonAppendCommitError(
        f"{what}; windows are computed from appends only: set source.changes: ignore to go on without what it changed, or rebuild this "
        "pipeline in a new sink with backfill, which reads the table as it stands"
    )


def _starting_version(pipeline: Pipeline, source: SourceTable) -> int:
    """The first version that the pipeline reads."""
    start = _starting(pipeline)
    if start is None:
        return 0
    if isinstance(start, int):
        if start > source.version:
            raise SourceError(
                f"source {source.path}: stands at version {source.version}, before source.options.startingVersion {start}; "
                "correct it, or run again once that version is there"
            )
        return start
    found = first_version_at(source, start)
    if found is None:
        raise SourceError(
            f"source {source.path}: no version was committed at or after source.options.startingTimestamp {start.isoformat()}; "
            "correct it, or run again once there is one"
        )
    return found


def _starting(pipeline: Pipeline) -> int | datetime | None:
    options = pipeline.source.options if pipeline.source else {}
    version, instant = options.get("startingVersion"), options.get("startingTimestamp")
    where = f"pipeline {pipeline.pipeline}: source.options"
    if version is not None and instant is not None:
        raise SpecError(f"{where}: startingVersion and startingTimestamp are both given; leave one of them out")
    if version is not None:
        if not version.isdigit():
            raise SpecError(f"{where}.startingVersion: got {version!r}; expected a version of the table, such as 0")
        return int(version)
    if instant is None:
        return None
    try:
        parsed = datetime.fromisoformat(instant)
    except ValueError as err:
        raise SpecError(f"{where}.startingTimestamp: got {instant!r}; expected an instant such as 2024-03-01T00:00:00Z") from err
    return parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)
