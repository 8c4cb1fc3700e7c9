"""What a batch reads of a source as teams keep it: compacted, vacuumed, with its log cleaned up, with rows changed."""

from __future__ import annotations

import errno
import json
import os
import shutil
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError, TableNotFoundError

from tests.checkpoints.records import plan
from tests.specs import SECONDS, TENS, a_spec
from windowmill.checkpoints.batches import Plan, RestatePlan
from windowmill.checkpoints.places import Runnable
from windowmill.jobs.layouts.input import _closed_by_file
from windowmill.jobs.runnables import runnable_of
from windowmill.jobs.sources import delta_log, reading
from windowmill.jobs.sources.base import Reading
from windowmill.jobs.sources.delta_log import read_source_table
from windowmill.jobs.sources.reading import Limits, VersionRange, backfill_versions, check_readable, next_change, next_versions, reading_of
from windowmill.windowing.axis import AXIS_BEGIN
from windowmill.windowing.errors import (
    ArrivalUnknownError,
    NonAppendCommitError,
    OutOfTurnError,
    SourceError,
    SourceFeatureError,
    SourceRangeGoneError,
    SpecError,
    UnsupportedError,
)
from windowmill.windowing.specfile import parse_pipeline

#: Fields of a plan that a test does not give.
PINNED = ("batch", "attempt", "generation", "source_id", "now_us", "meaning", "source_schema")
LIMITS = {"files": 10_000, "size_bytes": 1 << 40}


def _runnable(path: Path, **source: Any) -> Runnable:
    pipeline = parse_pipeline(a_spec(source={"path": str(path)} | source, time=SECONDS, windows=[TENS], sink={"path": str(path) + ".sink"}))
    return runnable_of(pipeline)


def _land(path: Path, values: list[int], **options: Any) -> None:
    write_deltalake(str(path), pa.table({"t": values, "p": [str(v % 2) for v in values]}), mode="append", **options)


@pytest.fixture
def table(tmp_path) -> Path:
    """Three versions of two rows each."""
    path = tmp_path / "source"
    for values in ([1, 2], [5, 6], [3, 4]):
        _land(path, values)
    return path


def _next(runnable: Runnable, before: Plan | None, arrival: reading.Arrival = "log", **limits: int) -> tuple[VersionRange, Reading]:
    """The versions that a run reads behind ``before``, and what it reads of them."""
    source = read_source_table(runnable.source_path)
    versions = next_versions(runnable, source, before, arrival, limits=Limits(**(LIMITS | limits)))
    check_readable(runnable, source, versions, again=False)
    return versions, reading_of(runnable, source, versions)


def _first(runnable: Runnable, arrival: reading.Arrival = "log", **limits: int) -> tuple[VersionRange, Reading]:
    return _next(runnable, None, arrival, **limits)


def _again(path: Path, before: list[Plan], arrival: reading.Arrival, **source: Any) -> tuple[VersionRange, Reading]:
    """The versions that a backfill behind ``before`` reads, and what it reads of them."""
    runnable, table = _runnable(path, **source), read_source_table(str(path))
    versions = backfill_versions(runnable, table, before, arrival)
    return versions, check_readable(runnable, table, versions, again=True)


def _plan(**values: Any) -> Plan:
    return plan(0, **values)


def _plans(*versions: int) -> list[Plan]:
    """Plans that go from each of ``versions`` to the next."""
    return [_plan(from_version=begin, to_version=end) for begin, end in pairwise(versions)]


def _vacuum(path: Path) -> None:
    DeltaTable(str(path)).vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False, full=True)


def _clean_log(path: Path) -> None:
    DeltaTable(str(path)).create_checkpoint()
    for entry in sorted((path / "_delta_log").glob("*.json"))[:-1]:
        entry.unlink()


def _rows(path: Path, found: Reading) -> list[int]:
    return [t for file in found.files for t in pq.read_table(path / file.path).column("t").to_pylist()]


@pytest.mark.covers("S9")
def test_a_first_batch_takes_rows_in_the_order_of_the_log(table, tmp_path):
    versions, found = _first(_runnable(table))
    assert versions == VersionRange(-1, 2, None)
    assert found.snapshot_files == 0
    assert _rows(table, found) == [1, 2, 5, 6, 3, 4]
    assert _first(_runnable(table), files=2)[0] == VersionRange(-1, 1, None)
    size = sum(file.stat().st_size for file in table.glob("*.parquet")) // 3
    assert _first(_runnable(table), size_bytes=size * 2 + 10)[0].through == 1
    moved = Path(shutil.move(table, tmp_path / "moved"))
    assert _rows(moved, _first(_runnable(moved))[1]) == [1, 2, 5, 6, 3, 4], "a copy reads its own files"


@pytest.mark.covers("S5")
def test_compaction_alone_leaves_the_order_of_arrival(table):
    DeltaTable(str(table)).optimize.compact()
    versions, found = _first(_runnable(table))
    assert versions == VersionRange(-1, 3, None)
    assert _rows(table, found) == [1, 2, 5, 6, 3, 4]


def _compacted(path: Path) -> None:
    DeltaTable(str(path)).optimize.compact()
    _vacuum(path)


def _deleted(path: Path) -> None:
    DeltaTable(str(path)).delete("t = 5")


def _all_of_it(path: Path) -> None:
    _deleted(path)
    _compacted(path)
    _clean_log(path)


@pytest.mark.covers("S1", "S4")
@pytest.mark.parametrize(
    ("trouble", "left"),
    [(_compacted, 6), (_clean_log, 6), (_deleted, 5), (_all_of_it, 5)],
    ids=["compacted and vacuumed", "log cleaned up", "rows deleted", "all of it"],
)
def test_a_first_batch_reads_the_snapshot_where_arrival_is_no_longer_told(table, trouble, left):
    trouble(table)
    version = DeltaTable(str(table)).version()
    versions, found = _first(_runnable(table))
    assert versions == VersionRange(-1, version, version)
    assert found.snapshot_files == len(found.files) > 0
    assert sorted(_rows(table, found)) == [t for t in range(1, 7) if left == 6 or t != 5]
    assert found == _first(_runnable(table))[1], "a retry reads the same files in the same order"


def test_a_first_batch_by_event_time_when_asked(table):
    versions, found = _first(_runnable(table), "event_time")
    assert versions == VersionRange(-1, 2, 2)
    assert found.snapshot_files == 3
    with pytest.raises(SpecError, match="for history, but a batch has been committed"):
        _next(_runnable(table), *_plans(-1, 1), "event_time")


@pytest.mark.covers("S4")
def test_changed_rows_are_refused_or_ignored_and_counted(table):
    """What is appended after a version that changed rows is read, whatever comes between."""
    for appended, deleted in ((7, "t = 1"), (8, "t in (2, 5)")):
        _land(table, [appended])
        DeltaTable(str(table)).delete(deleted)
    _land(table, [9])
    with pytest.raises(NonAppendCommitError, match=r"version 4 \(DELETE\).*`windowmill restate`.*source.changes to restate.*ignore"):
        _next(_runnable(table), *_plans(-1, 2))
    runnable = _runnable(table, changes="ignore")
    versions, found = _next(runnable, *_plans(-1, 2))
    assert versions == VersionRange(2, 7, None)
    assert (_rows(table, found), found.rows_ignored) == ([7, 8, 9], 3)
    assert runnable.pipeline.meaning_hash() == _runnable(table).pipeline.meaning_hash()


def test_a_restore_brings_back_rows_that_have_been_read(table):
    DeltaTable(str(table)).delete("t < 3")
    DeltaTable(str(table)).restore(2)
    runnable = _runnable(table, changes="ignore")
    found = reading_of(runnable, read_source_table(str(table)), VersionRange(2, 4))
    assert found.files == ()
    assert found.rows_ignored == 4


def test_a_replaced_range_of_a_windowmill_sink_is_named(table):
    told = CommitProperties(custom_metadata={"userMetadata": json.dumps({"pipeline": "upstream", "generation": "g", "batch": 3})})
    rows = pa.table({"t": [5], "p": ["1"]})
    write_deltalake(str(table), rows, mode="overwrite", predicate="t = 5", commit_properties=told)
    with pytest.raises(NonAppendCommitError, match=r"pipeline upstream replaced what it had published \(backfill\)"):
        reading_of(_runnable(table), read_source_table(str(table)), VersionRange(2, 3))


def test_the_next_change_is_told_with_those_that_follow_it(table):
    _deleted(table)
    DeltaTable(table).delete("t = 1")
    _land(table, [7, 8])
    DeltaTable(table).delete("t = 7")
    source = read_source_table(str(table))
    assert [next_change(source, after) for after in (0, 3, 4, 6)] == [(3, 4), (4, 4), (6, 6), None]


@pytest.mark.covers("S1")
@pytest.mark.parametrize("trouble", [_compacted, _clean_log], ids=["compacted and vacuumed", "log cleaned up"])
def test_a_backfill_of_a_running_pipeline_needs_the_order_of_arrival(table, trouble):
    before = _plans(-1, 1, 2)
    assert _again(table, before, "log")[0] == VersionRange(-1, 2, None)
    trouble(table)
    _land(table, [9])
    with pytest.raises(ArrivalUnknownError, match=r"--arrival event_time"):
        _again(table, before, "log")


def test_a_backfill_by_event_time_reads_what_has_been_committed(table):
    versions, found = _again(table, _plans(-1, 1), "event_time")
    assert versions == VersionRange(-1, 1, 1)
    assert sorted(_rows(table, found)) == [1, 2, 5, 6]


@pytest.mark.covers("S5")
def test_a_snapshot_whose_files_were_rewritten_is_read_from_the_new_ones(table):
    before = [_plan(from_version=-1, to_version=2, snapshot=2)]
    assert _again(table, before, "log")[0] == VersionRange(-1, 2, 2)
    _compacted(table)
    _land(table, [9])
    for arrival in ("log", "event_time"):
        versions, found = _again(table, before, arrival)
        assert versions.through == 2 < (versions.snapshot or 0) < read_source_table(str(table)).version
        assert sorted(_rows(table, found)) == [1, 2, 3, 4, 5, 6]
        assert found.snapshot_files == len(found.files)


def _updated(path: Path) -> None:
    DeltaTable(str(path)).update(predicate="t = 5", updates={"p": "'9'"})


def _updated_and_appended(path: Path) -> None:
    _updated(path)
    _land(path, [8, 7])


def _compacted_and_appended(path: Path) -> None:
    DeltaTable(str(path)).optimize.compact()
    _land(path, [9])


UPDATE = "source version 3 (UPDATE) changed rows"
#: A restatement, also one of rows that came too late, after which no version has changed rows.
RESTATED = RestatePlan(**{name: getattr(_plan(), name) for name in PINNED} | {"from_version": 2, "to_version": 2, "snapshot": 2})


@pytest.mark.covers("S4")
@pytest.mark.parametrize(
    ("change", "before", "versions", "why", "rows"),
    [
        (_compacted_and_appended, _plans(-1, 1, 2), VersionRange(-1, 2, None), None, [1, 2, 5, 6, 3, 4]),
        (
            *(_updated_and_appended, _plans(-1, 2, 4), VersionRange(-1, 4, 3)),
            *(f"{UPDATE}: rows through version 3 count as the table holds them now", [1, 2, 3, 4, 5, 6, 8, 7]),
        ),
        # Also where the spec refuses such versions, so that no run has read past them.
        (_deleted, _plans(-1, 2), VersionRange(-1, 2, 3), "source version 3 (DELETE) changed rows: ", [1, 2, 3, 4, 6]),
        (
            *(_updated, _plans(-1, 1), VersionRange(-1, 1, None)),
            *(f"{UPDATE} after rows that are still unread, and is left out; run the pipeline first", [1, 2, 5, 6]),
        ),
        (
            *(lambda path: _land(path, [8, 7]), [*_plans(-1, 2), RESTATED, *_plans(2, 3)], VersionRange(-1, 3, 2)),
            *("a restatement has read the source again: rows through version 2 count", [1, 2, 3, 4, 5, 6, 8, 7]),
        ),
    ],
    ids=["only appended", "changed, and appended after it", "changed after the last run", "changed after unread rows", "restated"],
)
def test_a_backfill_reads_changed_rows_as_they_are_now_and_later_ones_in_the_order_of_the_log(table, change, before, versions, why, rows):
    change(table)
    chosen, found = _again(table, before, "current", changes="ignore" if change is _updated_and_appended else "refuse")
    assert chosen == versions
    assert chosen.why is None if why is None else (chosen.why or "").startswith(why)
    of_snapshot = sum(file.rows or 0 for file in found.files[: found.snapshot_files])
    read = _rows(table, found)
    assert [*sorted(read[:of_snapshot]), *read[of_snapshot:]] == rows
    assert found.commits[-1] == max(versions.through, versions.snapshot or 0)


@pytest.mark.covers("S1", "S4")
@pytest.mark.parametrize("trouble", [_compacted, _clean_log, _all_of_it], ids=["compacted and vacuumed", "log cleaned up", "changed, too"])
def test_a_backfill_reads_the_table_where_the_order_of_arrival_is_no_longer_known(table, trouble):
    trouble(table)
    before = _plans(-1, 1, 2, *[DeltaTable(str(table)).version()] * (trouble is _all_of_it))
    versions, found = _again(table, before, "current")
    assert versions.after == -1
    assert versions.snapshot is not None
    assert "as the table holds them now, in event-time order" in (versions.why or "")
    assert sorted(_rows(table, found)) == [t for t in range(1, 7) if trouble is not _all_of_it or t != 5]


def test_a_backfill_reads_the_newest_snapshot_where_files_after_a_change_are_gone(table):
    _updated_and_appended(table)
    _compacted(table)
    versions, found = _again(table, _plans(-1, 2, 4), "current", changes="ignore")
    assert (versions.through, versions.snapshot) == (4, DeltaTable(str(table)).version())
    assert (found.snapshot_files, sorted(_rows(table, found))) == (1, [1, 2, 3, 4, 5, 6, 7, 8])


@pytest.mark.covers("S1")
@pytest.mark.parametrize("history", ["current", "event_time"])
def test_a_backfill_waits_for_a_run_where_the_table_can_only_be_read_with_rows_that_no_run_has_read(table, history):
    _land(table, [9])
    _clean_log(table)
    with pytest.raises(OutOfTurnError, match=r"the table at version 2, .*, and version 3 has rows .*; `windowmill run` the pipeline first"):
        _again(table, _plans(-1, 2), history)
    versions, found = _again(table, _plans(-1, 2, 3), history)
    assert versions == VersionRange(-1, 3, 3)
    assert sorted(_rows(table, found)) == [1, 2, 3, 4, 5, 6, 9]


@pytest.mark.covers("S1")
@pytest.mark.parametrize("history", ["current", "event_time"])
def test_a_backfill_of_which_no_run_brings_back_the_files_is_not_to_wait_for_one(table, history):
    (table / read_source_table(str(table)).snapshot(0)[0].path).unlink()
    _land(table, [9])
    with pytest.raises(SourceRangeGoneError, match=r"the file .* is gone"):
        _again(table, _plans(-1, 2), history)


def test_a_backfill_from_a_starting_version_cannot_read_a_snapshot(table):
    assert _again(table, _plans(0, 2), "current")[0] == VersionRange(0, 2, None)
    _updated(table)
    with pytest.raises(UnsupportedError, match=r"version 3 \(UPDATE\) changed rows.*\(startingVersion\).*--as-arrived"):
        _again(table, _plans(0, 2), "current")


def test_a_backfill_reads_a_first_snapshot_and_then_the_log(table):
    _compacted(table)
    _land(table, [8, 7])
    version = DeltaTable(str(table)).version()
    _, found = _again(table, [_plan(from_version=-1, to_version=3, snapshot=3), *_plans(3, version)], "log")
    assert found.snapshot_files == 1
    assert _rows(table, found)[-2:] == [8, 7]
    assert [file.version for file in found.files] == [3, version]


@pytest.mark.covers("S1")
def test_a_file_that_is_gone_is_found_before_anything_is_planned(table):
    source = read_source_table(str(table))
    [file] = reading_of(_runnable(table), source, VersionRange(1, 2)).files
    (table / file.path).unlink()
    with pytest.raises(SourceRangeGoneError, match=f"file {file.path} of version 2 is gone"):
        check_readable(_runnable(table), source, VersionRange(1, 2), again=False)


def test_dates_before_year_1_do_not_keep_a_table_from_being_read(tmp_path):
    path = tmp_path / "source"
    days = pa.array([-719_529, 0], pa.int32()).cast(pa.date32())
    write_deltalake(str(path), pa.table({"t": [1, 2], "day": days, "at": days.cast(pa.timestamp("us", "UTC"))}))
    versions, found = _first(_runnable(path))
    assert (versions.through, len(found.files)) == (0, 1)


def test_files_are_known_by_their_full_path(tmp_path):
    path = tmp_path / "source"
    values = ["a b", "x%y", "ü", "h#h", "q?q", "p+q", "a=b", "s/t", "[g]*"]
    write_deltalake(str(path), pa.table({"t": range(len(values)), "p": values}), partition_by=["p"])
    for uri in (str(path), path.as_uri()):
        source = read_source_table(uri)
        found = reading_of(_runnable(path), source, VersionRange(-1, 0))
        assert source.missing(found.files) is None
        assert {file.partition["p"] for file in found.files} == set(values)
        assert {file.path for file in source.snapshot(0)} == {file.path for file in found.files}


def test_starting_version_and_timestamp(table):
    assert _first(_runnable(table, options={"startingVersion": 1}))[0] == VersionRange(0, 2, None)
    entries = sorted((table / "_delta_log").glob("*.json"))
    for day, entry in enumerate(entries, 1):
        at = datetime(2024, 3, day, tzinfo=UTC).timestamp()
        os.utime(entry, (at, at))
    assert _first(_runnable(table, options={"startingTimestamp": "2024-03-02"}))[0] == VersionRange(0, 2, None)
    assert _first(_runnable(table, options={"startingTimestamp": "2024-03-02T00:00:01Z"}))[0] == VersionRange(1, 2, None)
    with pytest.raises(SourceError, match="no version was committed at or after"):
        _first(_runnable(table, options={"startingTimestamp": "2024-03-04"}))
    with pytest.raises(SourceError, match="is at version 2"):
        _first(_runnable(table, options={"startingVersion": "7"}))
    source = read_source_table(str(table))
    entries[0].unlink()
    with pytest.raises(SourceRangeGoneError, match="log of version 0 is gone, so it is unknown"):
        source.first_version_at(datetime(2024, 2, 1, tzinfo=UTC))


@pytest.mark.parametrize(
    ("hours", "recorded_from", "since", "first"),
    [
        *((hours, None, since, first) for hours, since, first in [
            ((0, 2, 1, 3), 1.5, 1),  # a clock set back: what came after the version at 2 o'clock came later
            ((0, 2, 1, 3), 1, 1),
            ((0, 2, 1, 3), 0, 0),
            ((0, 2, 1, 3), 2.5, 3),
            ((3, 0, 1, 2), 3, 0),
            ((3, 0, 1, 2), 3 + 2 / 3_600_000, 2),  # each version counts as a millisecond later than the one before
            ((0, 1, 2, 2), 3, None),
        ]),
        # Times in commits go before those of files.
        *(((0, 1, 2, 3), recorded, since, first) for recorded in (0, 2) for since, first in [(0, 0), (1, 1), (1.5, 2), (3, 3), (4, None)]),
    ],
)  # fmt: skip
def test_versions_are_chosen_by_times_that_never_go_back(tmp_path, hours, recorded_from, since, first):
    epoch = datetime(2024, 3, 1, tzinfo=UTC).timestamp()
    for version, hour in enumerate(hours):
        _land(tmp_path / "source", [version])
        entry, at = tmp_path / f"source/_delta_log/{version:020d}.json", epoch + hour * 3_600
        is_recorded = recorded_from is not None and version >= recorded_from
        if is_recorded:
            actions = [json.loads(line) for line in entry.read_text().splitlines()]
            next(action["commitInfo"] for action in actions if "commitInfo" in action)["inCommitTimestamp"] = int(at * 1_000)
            entry.write_text("\n".join(map(json.dumps, actions)))
        os.utime(entry, (epoch if is_recorded else at,) * 2)
    assert read_source_table(str(tmp_path / "source")).first_version_at(datetime.fromtimestamp(epoch + since * 3_600, UTC)) == first


class _Failing:
    """A store that fails to open log entries."""

    def __init__(self, store: Any, err: OSError) -> None:
        self._store, self._err = store, err

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def open_input_file(self, name: str) -> Any:
        raise self._err


@pytest.mark.covers("S10")
@pytest.mark.parametrize("code", [errno.EMFILE, errno.EIO, errno.EACCES, errno.ETIMEDOUT, None])
@pytest.mark.parametrize(
    "ask",
    [
        lambda source: list(source.versions(-1, 2)),
        lambda source: source.actions(1),
        lambda source: source.mark(1),
        lambda source: source.first_version_at(datetime(2024, 1, 1, tzinfo=UTC)),
        lambda source: check_readable(_runnable(Path(source.path)), source, VersionRange(-1, 2), again=False),
        lambda source: check_readable(_runnable(Path(source.path)), source, VersionRange(-1, 2), again=True),
        lambda source: next_versions(_runnable(Path(source.path)), source, None, "log", limits=Limits()),
    ],
    ids=["versions", "actions", "mark", "start", "a plan", "a backfill", "a first batch"],
)
def test_an_entry_that_cannot_be_read_now_is_not_taken_for_one_that_is_gone(table, monkeypatch, code, ask):
    source, store = read_source_table(str(table)), delta_log.store_of
    err = OSError(code, "no answer") if code else OSError("Generic S3 error: no answer")
    monkeypatch.setattr(delta_log, "store_of", lambda place: _Failing(store(place), err))
    with pytest.raises(
        SourceError, match=r"cannot be read now \(.*no answer\); (give the user of this run the permission, .*)?run again"
    ) as raised:
        ask(source)
    assert raised.value.exit_code == 1


@pytest.mark.covers("S10")
@pytest.mark.parametrize(
    ("err", "says"),
    [
        (OSError("Kernel error -> Generic LocalFileSystem error\n ↳ Too many open files (os error 24)"), "run again"),
        (DeltaError("Kernel error: Generic S3 error: 503 Slow Down"), "run again"),
        (OSError("Generic S3 error: Client error with status 400: ExpiredToken"), "run again; if it stays, check"),
        (TableNotFoundError("Generic delta kernel error: No files in log segment"), "raise delta.logRetentionDuration"),
        (DeltaError("Generic delta kernel error: Expected contiguous commit files, but found gap"), "raise delta.logRetentionDuration"),
        (FileNotFoundError(errno.ENOENT, "no such file"), "raise delta.logRetentionDuration"),
    ],
)
def test_a_snapshot_that_cannot_be_read_now_is_not_taken_for_one_that_is_gone(table, monkeypatch, err, says):
    def fails(*_: Any) -> None:
        raise err

    source = read_source_table(str(table))
    monkeypatch.setattr(delta_log, "at_version", fails)
    with pytest.raises(SourceError, match=says) as raised:
        source.snapshot(1)
    assert raised.value.exit_code == (1 if says.startswith("run again") else 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"foo": "bar"}, "options.foo: unknown; the options of a Delta source are maxBytesPerTrigger"),
        ({"ignoreChanges": True}, "set source.changes: ignore instead"),
    ],
    ids=str,
)
def test_options_that_are_refused(table, options, message):
    with pytest.raises(SpecError, match=message):
        _runnable(table, options=options)


def _with_protocol(path: Path, reader: list[str], writer: list[str]) -> None:
    entry = path / "_delta_log" / f"{0:020d}.json"
    actions = [json.loads(line) for line in entry.read_text().splitlines()]
    for action in actions:
        if "protocol" in action:
            features = {"readerFeatures": reader, "writerFeatures": [*reader, *writer]}
            action["protocol"] = {"minReaderVersion": 3, "minWriterVersion": 7} | features
    entry.write_text("\n".join(map(json.dumps, actions)) + "\n")


@pytest.mark.parametrize(
    ("feature", "told"),
    [(name, name) for name in ("variantType", "timeTravelToTomorrow")]
    + [(name, "catalog-managed table") for name in ("catalogManaged", "catalogOwned-preview")],
)
def test_a_reader_feature_that_is_not_known_is_refused_by_name(table, feature, told):
    _with_protocol(table, [feature], ["inCommitTimestamp"])
    with pytest.raises(SourceFeatureError, match=told):
        read_source_table(str(table))


def test_a_damaged_log_entry_is_named(table):
    source = read_source_table(str(table))
    (table / "_delta_log" / f"{2:020d}.json").write_text("")
    with pytest.raises(SourceError, match="log entry of version 2 is damaged"):
        reading_of(_runnable(table), source, VersionRange(1, 2))


def test_a_table_whose_versions_do_not_bring_all_rows_is_read_as_it_stands(table):
    """A clone's first version may name files without saying that data changed."""
    entry = table / "_delta_log" / f"{0:020d}.json"
    entry.write_text(entry.read_text().replace('"dataChange":true', '"dataChange":false'))
    assert _first(_runnable(table))[0] == VersionRange(-1, 2, 2)


def test_each_file_of_a_backfill_met_what_the_batch_met_that_read_it_first():
    files: Any = [SimpleNamespace(version=version) for version in (2, 2, 3, 4, 5)]
    told = {"range_from": 0, "range_to": 300, "found_closed": [(2, None), (4, 100), (5, 200)], "builds_state": False}
    backfill = _plan(action="backfill", from_version=-1, to_version=5, **told)
    met = {snapshot_files: _closed_by_file(backfill, Reading(tuple(files), snapshot_files)) for snapshot_files in (0, 2, 5)}
    assert met[0] == met[2] == (AXIS_BEGIN, AXIS_BEGIN, 100, 100, 200)
    assert met[5] == (AXIS_BEGIN,) * 5, "by event time no row is late"


@pytest.mark.covers("S4")
def test_a_snapshot_with_deletion_vectors_is_read_by_delta(table):
    """Its files hold rows that have been deleted, and how many of them is not known before they are read."""
    source = replace(read_source_table(str(table)), deletion_vectors=True)
    found = reading_of(_runnable(table), source, VersionRange(-1, 2, 1))
    assert (found.snapshot_files, found.as_of) == (2, 1)
    assert [file.rows for file in found.files] == [None, None, 2]
    assert reading_of(_runnable(table), source, VersionRange(0, 2)).as_of is None, "what the log appends has all its rows"


@pytest.mark.covers("S4")
def test_a_version_that_adds_a_deletion_vector_changes_rows(table, monkeypatch):
    added = {"path": "part-0.parquet", "size": 1, "stats": '{"numRecords": 5}', "partitionValues": {}, "dataChange": True}
    vector = {"storageType": "u", "pathOrInlineDv": "x", "cardinality": 2}
    entries = [[{"add": added}], [{"add": added | {"deletionVector": vector}}]]
    monkeypatch.setattr(delta_log.DeltaSource, "actions", lambda _, version: entries[version])
    plain, hidden = read_source_table(str(table)).versions(-1, 1)
    assert (plain.changes, plain.added[0].rows) == (False, 5)
    assert (hidden.changes, hidden.added[0].rows) == (True, 3)


@pytest.mark.covers("D7")
def test_a_source_whose_first_log_entries_are_gone_is_refused(tmp_path):
    """delta-rs opens it, without the first rows, if a later entry tells the columns."""
    path = tmp_path / "source"
    for value in range(2):
        write_deltalake(str(path), pa.table({"t": [value]}), mode="append")
    DeltaTable(str(path)).alter.set_table_properties({"delta.appendOnly": "true"})
    first, last = (path / "_delta_log" / f"{version:020d}.json" for version in (0, 2))
    last.write_text("\n".join([last.read_text(), *(line for line in first.read_text().splitlines() if '"protocol"' in line)]))
    first.unlink()
    with pytest.raises(SourceError, match="the first entries of its log are gone"):
        read_source_table(str(path))


def test_a_log_entry_that_is_gone_before_it_was_read_is_refused(table):
    for value in (7, 8):
        _land(table, [value])
    (table / "_delta_log" / f"{3:020d}.json").unlink()
    with pytest.raises(SourceError, match="cannot be read"):
        _next(_runnable(table), *_plans(-1, 2))
