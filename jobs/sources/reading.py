"""Selects what a batch reads from its source: versions, files, and the order in which their rows count as arrived. No JVM.

Rows arrive in log order: by version, by file within the version, by row within the file. That order is unknown if the table was compacted
and vacuumed, its log cleaned up, or rows changed before the first batch. Then a first batch reads the table's snapshot instead, and its
rows count as arrived in event-time order, so none of them is late. The plan pins the choice.

A backfill of a running pipeline reads the rows that the table holds now. Where versions have only appended rows, these are the rows that
earlier batches read, in the same order. A version that changed rows is read as a snapshot, and the rows after it in log order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Literal

from windowmill.checkpoints.batches import Plan
from windowmill.checkpoints.ledger import Ledger
from windowmill.checkpoints.places import Runnable
from windowmill.jobs.sources.base import AddedFile, LoggedVersion, Reading, SourceTable
from windowmill.jobs.sources.options import instant_of
from windowmill.windowing.errors import (
    ArrivalUnknownError,
    NonAppendCommitError,
    OutOfTurnError,
    SourceError,
    SourceRangeGoneError,
    SpecError,
    UnsupportedError,
)
from windowmill.windowing.grids import Grids
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.watermark import LatenessRule

Arrival = Literal["log", "event_time"]
#: What a backfill reads: ``current``, the rows that the table holds now; ``log``, those that earlier batches read; ``counted``, those that
#: count since the last restatement; ``event_time``, a snapshot in event-time order.
History = Literal["current", "log", "counted", "event_time"]


@dataclass(frozen=True, slots=True)
class VersionRange:
    """The versions that a batch reads: (``after``, ``through``]. Those up to ``snapshot`` are read as a snapshot of the table.

    ``snapshot`` is greater than ``through`` if later versions rewrote files, or changed rows. ``why`` is a sentence for the user, where a
    backfill reads other rows than earlier batches, or in another order.
    """

    after: int
    through: int
    snapshot: int | None = None
    why: str | None = field(default=None, compare=False)


#: Files, bytes and rows of one batch; a larger backlog is split into several.
_DEFAULT_LIMITS = {"maxFilesPerTrigger": 10_000, "maxBytesPerTrigger": 8 << 30, "maxOffsetsPerTrigger": None}


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of what a batch reads; null for no limit. A version is never divided."""

    files: int | None = None
    size_bytes: int | None = None
    rows: int | None = None

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Limits:
        """The limits in the source's ``options`` (``maxFilesPerTrigger``, ``maxBytesPerTrigger``; of topics ``maxOffsetsPerTrigger``)."""
        return cls(*(int(options[name]) if name in options else most for name, most in _DEFAULT_LIMITS.items()))

    def are_exceeded_by(self, files: Sequence[AddedFile]) -> bool:
        """Whether ``files`` are more than a batch reads, as far as the source knows their rows."""
        counts = (len(files), sum(file.size_bytes for file in files), sum(file.rows or 0 for file in files))
        limits = (self.files, self.size_bytes, self.rows)
        return any(most is not None and count > most for count, most in zip(counts, limits, strict=True))


def next_versions(
    runnable: Runnable, source: SourceTable, last: Plan | None, arrival: Arrival, *, limits: Limits, through: int | None = None
) -> VersionRange:
    """The versions that the next run reads; ``last`` is the plan of the last commit, ``through`` the last version to read, if given."""
    if last is None:
        return _first(runnable, source, arrival, limits)
    if arrival != "log":
        raise SpecError(
            f"pipeline {runnable.name}: --arrival {arrival} is only for history, but a batch has been committed already; omit it, "
            "or pass it to `windowmill backfill` to recompute windows"
        )
    through = source.version if through is None else through
    versions = source.versions(last.to_version, through)
    return VersionRange(last.to_version, _within(runnable, source, versions, through, limits))


def next_change(source: SourceTable, after: int) -> tuple[int, int] | None:
    """The first version after ``after`` that changed rows, and the last one that did before another appends some; null if none did."""
    first = last = None
    for version in source.versions(after, source.version):
        if version.changes:
            first, last = version.version if first is None else first, version.version
        elif version.added and first is not None:
            break
    return None if first is None or last is None else (first, last)


def backfill_versions(runnable: Runnable, source: SourceTable, before: Sequence[Plan], history: History) -> VersionRange:
    """The versions that a backfill reads: those of the earlier plans ``before`` that built the state, or all in a first batch."""
    if not before:
        return _first(runnable, source, "event_time" if history == "event_time" else "log", Limits())
    first, through = before[0], before[-1].to_version
    as_arrived = VersionRange(first.from_version, through, None if first.snapshot is None else unchanged_since(source, first.snapshot))
    rebuilt = next((plan for plan in reversed(before) if plan.recounts), None)
    if history == "counted" and rebuilt is not None and rebuilt.snapshot is not None:
        return VersionRange(-1, through, unchanged_since(source, rebuilt.snapshot))
    if history in ("log", "counted"):
        return as_arrived
    restated = next((plan.snapshot for plan in reversed(before) if plan.replaces_state and plan.snapshot is not None), None)
    current = history == "current"
    versions = _current(runnable, source, as_arrived, restated) if current else VersionRange(-1, through, _last_read(source, through))
    if versions.after < first.from_version:
        asked = "--arrival event_time" if history == "event_time" else versions.why
        raise UnsupportedError(
            f"pipeline {runnable.name}: {asked}: the pipeline began at version {first.from_version + 1} "
            "(startingVersion), but a snapshot of the table does not distinguish rows before it; backfill it in a new sink instead"
            + ("" if history == "event_time" else ", or give --as-arrived to read what earlier batches read")
        )
    return versions


def restated_versions(source: SourceTable, after: int, through: int | None, *, goes_on: bool) -> VersionRange:
    """The versions that a restatement reads, after earlier batches have read through ``after``.

    It reads the table as it was at version ``through``, null for ``after`` itself. If files of that version are gone and ``goes_on`` is
    true, it reads the first later version that is readable.
    """
    to_version = after if through is None else through
    if not source.is_restatable:
        return VersionRange(after, to_version, to_version)
    if goes_on:
        to_version = first_readable(source, after)
    return VersionRange(after, to_version, unchanged_since(source, to_version))


def refuse_purged(runnable: Runnable, before: Sequence[Plan], history: History) -> None:
    """Refuse to read the rows that the earlier plans ``before`` have read, if one of them has purged some."""
    purged = next((plan for plan in before if plan.purges), None)
    if purged is not None and history == "log":
        raise UnsupportedError(
            f"pipeline {runnable.name}: batch {purged.batch} has purged keys, whose rows --as-arrived would bring back; leave it out"
        )


def _current(runnable: Runnable, source: SourceTable, as_arrived: VersionRange, restated: int | None) -> VersionRange:
    """The versions of ``as_arrived`` with their rows as the table holds them now.

    Later versions that changed rows count too, up to the first unread version that appended rows. ``restated`` is the version whose
    snapshot the last restatement read, null if none did; at least that version is read, so that its results stay.
    """
    through, base = as_arrived.through, as_arrived.after if as_arrived.snapshot is None else as_arrived.snapshot
    changed, later = _changed_since(source, through)
    known = True
    if changed is None:
        try:
            changed = next((version for version in reversed(list(source.versions(base, through))) if version.changes), None)
            known = changed is not None or restated is not None or _is_readable(runnable, source, as_arrived)
        except SourceRangeGoneError:
            known = False
    if known and changed is None and restated is None:
        return replace(as_arrived, why=later)
    newest = max(-1 if changed is None else changed.version, -1 if restated is None else restated)
    snapshot = unchanged_since(source, newest if known else through)
    if not _is_readable(runnable, source, VersionRange(-1, through, snapshot)):
        snapshot = _last_read(source, max(through, snapshot))
    what = "the order in which earlier batches read the rows is no longer known"
    if changed is not None:
        what = _describe_change(changed)
    elif known:
        what = "a restatement has read the source again"
    counted = f"rows through version {min(through, snapshot)} count as the table holds them now, in event-time order, none of them late"
    return VersionRange(-1, through, snapshot, "; ".join(filter(None, (f"{what}: {counted}", later))))


def _last_read(source: SourceTable, version: int) -> int:
    """As :func:`unchanged_since`; refuses a ``version`` whose rows can only be read together with later, unread ones."""
    found = unchanged_since(source, version)
    if found < source.version and not _exists(source, found) and _exists(source, source.version):
        raise OutOfTurnError(
            f"source {source.path}: the table at version {version}, through which runs have read, can no longer be reconstructed, and "
            f"version {source.version} has rows that no run has read; `windowmill run` the pipeline first, then backfill"
        )
    return found


def _changed_since(source: SourceTable, through: int) -> tuple[LoggedVersion | None, str | None]:
    """The last version after ``through`` that changed rows, before any that appended some; and a sentence on a later one that did."""
    changed, unread = None, False
    for version in source.versions(through, source.version):
        if version.changes and unread:
            return changed, f"{_describe_change(version)} after rows that are still unread, and is left out; run the pipeline first"
        changed = version if version.changes else changed
        unread = unread or (bool(version.added) and not version.changes)
    return changed, None


def _describe_change(version: LoggedVersion) -> str:
    return f"source version {version.version} ({version.operation}) changed rows"


def _is_readable(runnable: Runnable, source: SourceTable, versions: VersionRange) -> bool:
    """Whether the log and the files of ``versions`` still exist."""
    try:
        return source.missing(reading_of(runnable, source, versions).files) is None
    except SourceRangeGoneError:
        return False


def reading_of(runnable: Runnable, source: SourceTable, plan: Plan | VersionRange) -> Reading:
    """The files that a plan reads.

    Raises ``SourceRangeGoneError`` if the log no longer contains them; ``NonAppendCommitError`` if one of the versions changed or removed
    rows, and the spec does not ignore changes.
    """
    versions = plan if isinstance(plan, VersionRange) else VersionRange(plan.reads_from, plan.to_version, plan.snapshot)
    files = [] if versions.snapshot is None else source.snapshot(versions.snapshot)
    as_of = versions.snapshot if files and source.deletion_vectors else None
    if as_of is not None:
        files = [replace(file, rows=None) for file in files]
    snapshot_files, ignored = len(files), 0
    for version in source.versions(versions.after if versions.snapshot is None else versions.snapshot, versions.through):
        files += _appended(runnable, source, version)
        ignored += version.rows_changed
    return Reading(tuple(files), snapshot_files, as_of, ignored)


def check_readable(runnable: Runnable, source: SourceTable, versions: VersionRange, *, again: bool) -> Reading:
    """The files that a new plan would read; refuses a plan whose input is no longer readable.

    ``again``: whether earlier batches have read this input already, as in a backfill of a running pipeline.
    Raises ``SourceRangeGoneError`` if files or log entries are missing; ``ArrivalUnknownError`` if these are missing and ``again`` is true.
    """
    try:
        reading = reading_of(runnable, source, versions)
        gone = source.missing(reading.files)
        if gone is not None:
            raise SourceRangeGoneError(
                f"source {source.path}: the {source.unit} {gone.path} of version {gone.version} is gone {source.when_missing()}"
            )
        source.check(reading)
        return reading
    except SourceRangeGoneError as err:
        if not again or (versions.snapshot is not None and versions.snapshot >= versions.through):
            raise
        what = str(err).removeprefix(f"source {source.path}: ").split(";")[0]
        raise ArrivalUnknownError(
            f"source {source.place}: {what}, so the order in which earlier runs read the rows is no longer known; "
            "`windowmill backfill …` without --as-arrived, or with --arrival event_time, reads the rows that the table holds"
        ) from err


def _first(runnable: Runnable, source: SourceTable, arrival: Arrival, limits: Limits) -> VersionRange:
    after, whole = starting_version(runnable, source) - 1, VersionRange(-1, source.version, source.version)
    if after >= 0:
        if arrival != "log":
            raise SpecError(f"pipeline {runnable.name}: --arrival {arrival} takes the whole table; leave out startingVersion")
        later = source.versions(after, source.version)
        return VersionRange(after, _within(runnable, source, later, source.version, limits))
    if arrival == "event_time":
        return whole
    try:
        versions = list(source.versions(-1, source.version))
    except SourceRangeGoneError:
        return whole
    if not _log_order_known(source, versions):
        return whole
    return VersionRange(-1, _within(runnable, source, versions, source.version, limits))


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


def _within(runnable: Runnable, source: SourceTable, versions: Iterable[LoggedVersion], through: int, limits: Limits) -> int:
    """The last version through which the files that ``versions`` appended stay within the limits; at least one version is taken."""
    read: list[AddedFile] = []
    for index, version in enumerate(versions):
        read += _appended(runnable, source, version)
        if index and limits.are_exceeded_by(read):
            return version.version - 1
    return through


def _appended(runnable: Runnable, source: SourceTable, version: LoggedVersion) -> Sequence[AddedFile]:
    """The files of ``version`` that a batch reads; none if the version changed rows and the spec ignores changes."""
    if not version.changes:
        return version.added
    if runnable.source.changes == "ignore":
        return ()
    what = f"source {source.place}: version {version.version} ({version.operation}) changed or removed rows"
    if version.pipeline is not None:
        what += f": the windowmill pipeline {version.pipeline} replaced what it had published (backfill)"
    raise NonAppendCommitError(f"{what}; {source.when_changed(version)}")


def starting_version(runnable: Runnable, source: SourceTable) -> int:
    """The first version that the pipeline reads."""
    version, instant = (runnable.source.options.get(name) for name in ("startingVersion", "startingTimestamp"))
    if version is not None:
        start = int(version)
        if start > source.version:
            raise SourceError(
                f"source {source.path}: is at version {source.version}, before source.options.startingVersion {start}; "
                "correct it, or run again once that version exists"
            )
        return start
    if instant is None:
        return 0
    since = instant_of(instant)
    found = source.first_version_at(since)
    if found is None:
        raise SourceError(
            f"source {source.path}: no version was committed at or after source.options.startingTimestamp {since.isoformat()}; "
            "correct it, or run again once there is one"
        )
    return found


def unchanged_since(source: SourceTable, version: int) -> int:
    """A version with the rows of ``version`` whose files still exist: ``version`` itself, or a later one that only rewrote files."""
    if _exists(source, version):
        return version
    later = version
    with suppress(SourceRangeGoneError):
        for logged in source.versions(version, source.version):
            if logged.changes or logged.added:
                break
            later = logged.version
    return later


def first_readable(source: SourceTable, after: int) -> int:
    """The first version with existing files among ``after`` and the later ones that changed rows; if none has, the newest version.

    The files of an earlier version are gone once VACUUM has removed what a later one replaced.
    """
    candidates = [after]
    with suppress(SourceRangeGoneError):  # where the log no longer has them
        candidates += [version.version for version in source.versions(after, source.version) if version.changes]
    return next((version for version in candidates if _exists(source, unchanged_since(source, version))), source.version)


def _exists(source: SourceTable, version: int) -> bool:
    try:
        return source.missing(source.snapshot(version)) is None
    except SourceRangeGoneError:
        return False


def moves_on(pipeline: Pipeline, ledger: Ledger, asserted: int | None) -> bool:
    """Whether a run without new rows would still complete windows, because a later data interval advances the watermark."""
    last = ledger.last_commit
    if asserted is None or last is None or last.outcome is None:
        return False
    emitted, rule = last.outcome.emitted, LatenessRule.of(pipeline)
    if emitted is None:
        return True
    # Revised rows first appear when the watermark passes a window's end, final rows when the window is closed.
    shown = (emitted, rule.closed(asserted))
    if rule.revises:
        reached = last.outcome.watermark_by(rule)
        shown = (reached if last.outcome.shown is None else last.outcome.shown, max(reached, asserted))
    try:
        grids = Grids.of(pipeline)
    except UnsupportedError:
        grids = None
    # Windows that are not on a grid may end at any instant.
    if grids is None or any(window.joins_by_gap for window in pipeline.windows):
        return shown[0] < shown[1]
    return any(grid.count_ends(*shown) for grid in grids.grids)
