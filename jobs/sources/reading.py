"""Selects what a batch reads from its source: versions, files, and the order in which their rows count as arrived. No JVM.

Rows arrive in log order: by version, by file within the version, by row within the file. That order is unknown if the table was compacted
and vacuumed, its log cleaned up, or rows changed before the first batch. Then a first batch reads the table's snapshot instead, and its
rows count as arrived in event-time order, so none of them is late. The plan pins the choice.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Literal

from windowmill.checkpoints.batches import Plan
from windowmill.checkpoints.places import Runnable
from windowmill.jobs.sources.base import AddedFile, LoggedVersion, Reading, SourceTable
from windowmill.windowing.errors import (
    ArrivalUnknownError,
    NonAppendCommitError,
    SourceError,
    SourceRangeGoneError,
    SpecError,
    UnsupportedError,
)
from windowmill.windowing.spec import Pipeline, Source

Arrival = Literal["log", "event_time"]


@dataclass(frozen=True, slots=True)
class Reach:
    """The versions that a batch reads: (``after``, ``through``]. Those up to ``snapshot`` are read as a snapshot of the table.

    ``snapshot`` is greater than ``through`` if the files were rewritten since, without changing rows.
    """

    after: int
    through: int
    snapshot: int | None = None


def check_source(pipeline: Pipeline, source: Source) -> None:
    """Raise ``SpecError``, naming the field, for settings of ``source`` that runs do not support or cannot read."""
    if source.changes == "restate":
        raise UnsupportedError(
            f"pipeline {pipeline.pipeline}: source.changes: restate is not supported yet; use refuse, or ignore to skip changed rows"
        )
    _starting(pipeline, source)


def next_reach(runnable: Runnable, source: SourceTable, last: Plan | None, arrival: Arrival, *, max_files: int, max_bytes: int) -> Reach:
    """The versions that the next run reads; ``last`` is the plan of the last commit."""
    if last is None:
        return _first(runnable, source, arrival, max_files=max_files, max_bytes=max_bytes)
    if arrival != "log":
        raise SpecError(
            f"pipeline {runnable.name}: --arrival {arrival} is only for history, but a batch has been committed already; omit it, "
            "or pass it to `windowmill backfill` to recompute windows"
        )
    versions = source.versions(last.to_version, source.version)
    return Reach(last.to_version, _within(runnable, source, versions, source.version, max_files, max_bytes))


def backfill_reach(runnable: Runnable, source: SourceTable, before: Sequence[Plan], arrival: Arrival) -> Reach:
    """The versions that a backfill reads: those of the earlier plans ``before`` that built the state, or all in a first batch."""
    if not before:
        return _first(runnable, source, arrival, max_files=None, max_bytes=None)
    first, through = before[0], before[-1].to_version
    if arrival == "log":
        return Reach(first.from_version, through, None if first.snapshot is None else _held(source, first.snapshot))
    if first.from_version >= 0:
        raise UnsupportedError(
            f"pipeline {runnable.name}: --arrival event_time: the pipeline began at version {first.from_version + 1} "
            "(startingVersion), but a snapshot of the table does not distinguish rows before it; backfill it in a new sink instead"
        )
    return Reach(-1, through, _held(source, through))


def reading_of(runnable: Runnable, source: SourceTable, plan: Plan | Reach) -> Reading:
    """The files that a plan reads.

    Raises
    ------
    SourceRangeGoneError
        If the log no longer contains them.
    NonAppendCommitError
        If one of the versions changed or removed rows, and the spec does not ignore changes.
    """
    reach = plan if isinstance(plan, Reach) else Reach(plan.from_version, plan.to_version, plan.snapshot)
    files = [] if reach.snapshot is None else source.snapshot(reach.snapshot)
    as_of = reach.snapshot if files and source.deletion_vectors else None
    if as_of is not None:
        files = [replace(file, rows=None) for file in files]
    settled, ignored = len(files), 0
    for version in source.versions(reach.after if reach.snapshot is None else reach.snapshot, reach.through):
        files += _appended(runnable, source, version)
        ignored += version.rows_changed
    return Reading(tuple(files), settled, as_of, ignored)


def check_readable(runnable: Runnable, source: SourceTable, reach: Reach, *, again: bool) -> Reading:
    """The files that a new plan would read; refuses a plan whose input is no longer readable.

    Parameters
    ----------
    again
        Whether earlier batches have read this input already, as in a backfill of a running pipeline.

    Raises
    ------
    SourceRangeGoneError
        If files or log entries are missing.
    ArrivalUnknownError
        If these are missing and ``again`` is true.
    """
    try:
        reading = reading_of(runnable, source, reach)
        gone = source.missing(reading.files)
        if gone is not None:
            raise SourceRangeGoneError(
                f"source {source.path}: the file {gone.path} of version {gone.version} is gone (VACUUM); bring it back, or rebuild this "
                "pipeline in a new sink with backfill; keep delta.deletedFileRetentionDuration longer than runs may pause"
            )
        return reading
    except SourceRangeGoneError as err:
        if not again or (reach.snapshot is not None and reach.snapshot >= reach.through):
            raise
        what = str(err).removeprefix(f"source {source.path}: ").split(";")[0]
        raise ArrivalUnknownError(
            f"source {source.path}: {what}, so the order in which earlier runs read the rows is no longer known; "
            "`windowmill backfill … --arrival event_time` reads the rows that the table holds in event-time order, so that none is late"
        ) from err


def _first(runnable: Runnable, source: SourceTable, arrival: Arrival, *, max_files: int | None, max_bytes: int | None) -> Reach:
    after, whole = starting_version(runnable, source) - 1, Reach(-1, source.version, source.version)
    if after >= 0:
        if arrival != "log":
            raise SpecError(f"pipeline {runnable.name}: --arrival {arrival} takes the whole table; leave out startingVersion")
        later = source.versions(after, source.version)
        return Reach(after, _within(runnable, source, later, source.version, max_files, max_bytes))
    if arrival == "event_time":
        return whole
    try:
        versions = list(source.versions(-1, source.version))
    except SourceRangeGoneError:
        return whole
    if not _log_order_known(source, versions):
        return whole
    return Reach(-1, _within(runnable, source, versions, source.version, max_files, max_bytes))


def _held(source: SourceTable, version: int) -> int:
    """A version with the rows of ``version`` whose files still exist: ``version`` itself, or a later one that only rewrote files."""
    try:
        if source.missing(source.snapshot(version)) is None:
            return version
    except SourceRangeGoneError:
        pass
    later = version
    try:
        for logged in source.versions(version, source.version):
            if logged.changes or logged.added:
                break
            later = logged.version
    except SourceRangeGoneError:
        pass
    return later


def _log_order_known(source: SourceTable, versions: Sequence[LoggedVersion]) -> bool:
    """Whether the files that ``versions`` appended hold exactly the table's rows and still exist, so that log order is known."""
    if any(version.changes for version in versions):
        return False
    appended = [file for version in versions for file in version.added]
    held = source.snapshot(source.version)
    if {file.path for file in appended} != {file.path for file in held}:
        n_rows = _rows_of(appended)
        if n_rows is None or n_rows != _rows_of(held):
            return False
    return source.missing(appended) is None


def _rows_of(files: Sequence[AddedFile]) -> int | None:
    """Number of rows of all ``files``; null if the log does not record it for every file."""
    known = [file.rows for file in files if file.rows is not None]
    return sum(known) if len(known) == len(files) else None


def _within(
    runnable: Runnable,
    source: SourceTable,
    versions: Iterable[LoggedVersion],
    through: int,
    max_files: int | None,
    max_bytes: int | None,
) -> int:
    """The last version through which the files that ``versions`` appended stay within the limits; at least one version is taken."""
    files = size = 0
    for index, version in enumerate(versions):
        added = _appended(runnable, source, version)
        files, size = files + len(added), size + sum(file.size_bytes for file in added)
        if index and ((max_files is not None and files > max_files) or (max_bytes is not None and size > max_bytes)):
            return version.version - 1
    return through


def _appended(runnable: Runnable, source: SourceTable, version: LoggedVersion) -> Sequence[AddedFile]:
    """The files of ``version`` that a batch reads; none if the version changed rows and the spec ignores changes."""
    if not version.changes:
        return version.added
    if runnable.source.changes == "ignore":
        return ()
    what = f"source {source.path}: version {version.version} ({version.operation}) changed or removed rows"
    if version.pipeline is not None:
        what += f": the windowmill pipeline {version.pipeline} replaced what it had published (backfill)"
    raise NonAppendCommitError(
        f"{what}; windows are computed from appends only: set source.changes: ignore to skip such versions, or rebuild this "
        "pipeline in a new sink with backfill, which reads the current snapshot"
    )


def starting_version(runnable: Runnable, source: SourceTable) -> int:
    """The first version that the pipeline reads."""
    start = _starting(runnable.pipeline, runnable.source)
    if start is None:
        return 0
    if isinstance(start, int):
        if start > source.version:
            raise SourceError(
                f"source {source.path}: is at version {source.version}, before source.options.startingVersion {start}; "
                "correct it, or run again once that version exists"
            )
        return start
    found = source.first_version_at(start)
    if found is None:
        raise SourceError(
            f"source {source.path}: no version was committed at or after source.options.startingTimestamp {start.isoformat()}; "
            "correct it, or run again once there is one"
        )
    return found


def _starting(pipeline: Pipeline, source: Source) -> int | datetime | None:
    version, instant = source.options.get("startingVersion"), source.options.get("startingTimestamp")
    where = f"pipeline {pipeline.pipeline}: source.options"
    if version is not None and instant is not None:
        raise SpecError(f"{where}: startingVersion and startingTimestamp are both given; remove one of them")
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
