"""Savepoints: a pipeline that has gone back to one goes on as if the batches since had never been, wherever the restoration fails."""

from __future__ import annotations

import errno
import json
import re
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.faults.dying import DiedError, arm
from tests.faults.pipelines import PIPELINES, Story, undisturbed
from tests.faults.world import UNMET
from tests.jobs.reporting import Page
from tests.latest import latest
from tests.matrices import crossed
from tests.spark.harness import AGGREGATES, BASE, differences, in_order, quiet
from windowmill.checkpoints.ledger import Ledger
from windowmill.checkpoints.places import Places
from windowmill.checkpoints.stores import store_of
from windowmill.jobs.batch import loop
from windowmill.jobs.batch import maintenance_batches as savepoints
from windowmill.jobs.batch.planning import NOTHING_ACCEPTED
from windowmill.jobs.cli import main
from windowmill.jobs.commands import maintenance_command
from windowmill.jobs.commands.maintenance_command import maintain
from windowmill.jobs.commands.summaries import history_of, status_of
from windowmill.jobs.runnables import runnable_of
from windowmill.windowing.axis import AXIS_BEGIN
from windowmill.windowing.errors import HeldError, OutOfTurnError, SavepointError, SpecChangedError, SpecError, StateError

FEW = PIPELINES["slices"]["aggregates"]
MORE = {"name": "more", "type": "tumbling", "size": "20 minutes"}
#: The end of an interval, not the source, moves the watermark of the last: batches that read the same again in another cut differ.
NAMES = [name for name in PIPELINES if name != "vouched"]


pytestmark = pytest.mark.local


def quarantined(story: Story) -> Counter[Any]:
    return Counter((row["reason"], row["row"]) for row in story.bench.quarantine())


def saved(name: str, folder: Path) -> Story:
    """The pipeline with a savepoint after its first version, and a batch more."""
    folder.mkdir()
    story = Story.of(name, folder)
    for version in range(2):
        story.land(version)
        story.run()
        if not version:
            savepoints.create(story.bench.pipeline, quiet(), "first")
    return story


def restore(story: Story, name: str = "first") -> None:
    savepoints.restore(story.bench.pipeline, quiet(), name)


def cleaned(table: str) -> None:
    """Remove what the newest version of ``table`` does not name, after its files have been joined."""
    DeltaTable(table).optimize.compact()
    DeltaTable(table).vacuum(0, dry_run=False, enforce_retention_duration=False)


def finish(story: Story) -> None:
    story.run()
    story.land(2)
    story.run()


def check_equal(story: Story, clean: Story) -> None:
    assert differences(story.bench.rows(), clean.bench.rows()) == []
    assert quarantined(story) == quarantined(clean)
    mine, other = (Ledger.open(each.bench.pipeline).totals.counts for each in (story, clean))
    for name in ("rows_read", "rows_applied", "rows_late", "quarantined"):
        assert getattr(mine, name) == getattr(other, name), name


@pytest.mark.parametrize("name", NAMES)
def test_runs_after_a_restoration_give_what_undisturbed_ones_give(tmp_path, prepared, name):
    clean, story = prepared.original(undisturbed, name), prepared.copy(tmp_path / "story", saved, name)
    before = story.bench.rows()
    restore(story)
    assert len(story.bench.rows()) < len(before)
    status = status_of(story.bench.pipeline).data
    assert (status["source_version"], status["versions_waiting"]) == (0, 1)
    assert status["compute"] == {"engine": "local"}
    finish(story)
    check_equal(story, clean)
    assert [row["action"] for row in history_of(story.bench.pipeline, 9, timings=False).data] == ["run", "run", "restore", "run", "run"]
    assert Ledger.open(story.bench.pipeline).batches(), "the ledger can be read as a whole"


DEATHS = ["batch.before", "batch.lost", "batch.after", "sink.before", "sink.lost", "quarantine.before", "state.before", "state.after"]


@pytest.mark.parametrize(("name", "place"), crossed(["slices", "mixed"], DEATHS))
def test_a_restoration_that_dies_anywhere_is_finished_or_never_was(tmp_path, prepared, name, place):
    clean, story = prepared.original(undisturbed, name), prepared.copy(tmp_path / "story", saved, name)
    before = story.bench.rows()
    arm(place)
    try:
        restore(story)
    except DiedError:
        if place == "batch.before":
            assert differences(story.bench.rows(), before) == []
            restore(story)
        if place == "sink.before":
            assert DeltaTable(story.bench.sink).optimize.compact()["numFilesRemoved"] > 1, "others may rewrite the files meanwhile"
    else:
        assert place != "sink.before"
    finish(story)
    check_equal(story, clean)


@pytest.mark.spark
def test_batches_of_spark_go_back_and_on(spark, tmp_path, monkeypatch):
    monkeypatch.setenv("WINDOWMILL_COMPUTE", "spark")
    clean, story = undisturbed("mixed", tmp_path / "clean"), saved("mixed", tmp_path / "story")
    restore(story)
    finish(story)
    check_equal(story, clean)


def test_a_savepoint_outlives_vacuum_and_compaction(tmp_path, prepared, monkeypatch):
    monkeypatch.setattr("windowmill.checkpoints.delta_tables.RETENTION_HOURS", 0)
    clean, story = prepared.original(undisturbed, "mixed"), prepared.copy(tmp_path / "story", saved, "mixed")
    maintain(story.bench.pipeline, quiet())
    for table in (story.bench.sink, Places.of(story.bench.pipeline).state):
        cleaned(table)
    restore(story)
    finish(story)
    check_equal(story, clean)


def test_a_pipeline_goes_back_twice_and_not_to_what_was_undone(tmp_path, prepared):
    clean, story = prepared.original(undisturbed, "slices"), prepared.copy(tmp_path / "story", saved, "slices")
    pipeline = story.bench.pipeline
    savepoints.create(pipeline, quiet(), "second")
    restore(story)
    with pytest.raises(SavepointError, match="batch 1, of which it is, was undone by a restoration since"):
        restore(story, "second")
    story.run()
    savepoints.create(pipeline, quiet(), "third")
    restore(story)
    finish(story)
    check_equal(story, clean)
    assert list(savepoints.listed(runnable_of(pipeline))) == ["first", "second", "third"]


def test_a_backfill_in_between_keeps_what_was_published_before(tmp_path, prepared):
    clean, story = prepared.original(undisturbed, "slices"), prepared.copy(tmp_path / "story", saved, "slices")
    ends = [row["window_end"] for row in story.bench.rows()]
    loop.backfill(story.bench.pipeline, quiet(), begin=min(ends), end=max(ends))
    restore(story)
    finish(story)
    assert differences(story.bench.rows(), clean.bench.rows(), tolerance=1e-11) == []
    loop.backfill(story.bench.pipeline, quiet(), begin=min(ends), end=max(ends))
    assert differences(story.bench.rows(), clean.bench.rows(), tolerance=1e-11) == []


def backfill(story: Story) -> None:
    """Backfill all windows."""
    loop.backfill(story.bench.pipeline, quiet(), begin=0, end=2 * BASE)


def add_window(story: Story, *, history: int | None) -> None:
    """Apply a spec with another window, of which rows that end after ``history`` are published."""
    story.bench.changes["windows"] = [*story.bench.spec["windows"], MORE]
    assert loop.apply(story.bench.pipeline, quiet(), history=history) is not None


def test_a_second_way_back_keeps_what_a_backfill_before_the_first_has_published(tmp_path, prepared):
    clean, story = prepared.original(undisturbed, "slices"), prepared.copy(tmp_path / "story", saved, "slices")
    backfill(story)
    restore(story)
    once = story.bench.rows()
    story.run()
    restore(story)
    assert once
    assert differences(story.bench.rows(), once) == []
    finish(story)
    assert differences(story.bench.rows(), clean.bench.rows(), tolerance=1e-11) == []


def test_a_second_way_back_brings_back_what_a_backfill_of_a_changed_spec_has_replaced(tmp_path, prepared):
    clean, story = prepared.original(undisturbed, "slices"), prepared.copy(tmp_path / "story", saved, "slices")
    add_window(story, history=None)
    savepoints.create(story.bench.pipeline, quiet(), "changed")
    backfill(story)
    restore(story, "changed")
    restore(story)
    del story.bench.changes["windows"]
    finish(story)
    check_equal(story, clean)


def test_a_backfill_of_a_changed_spec_that_was_discarded_has_replaced_nothing(tmp_path, prepared):
    clean, story = prepared.original(undisturbed, "slices"), prepared.copy(tmp_path / "story", saved, "slices")
    add_window(story, history=AXIS_BEGIN)
    story.bench.changes["expectations"] = UNMET
    with pytest.raises(HeldError):
        backfill(story)
    story.bench.run(ruling="discard")
    restore(story)
    for name in ("windows", "expectations"):
        del story.bench.changes[name]
    finish(story)
    check_equal(story, clean)


def test_windows_that_a_backfill_has_brought_are_restated_behind_a_way_back(tmp_path, prepared):
    shown = []
    for way in ("on", "back"):
        story = prepared.copy(tmp_path / way, saved, "slices")
        bench = story.bench
        bench.changes["source"] = {"path": bench.source, "changes": "restate"}
        add_window(story, history=None)
        savepoints.create(bench.pipeline, quiet(), "second")
        backfill(story)
        if way == "back":
            restore(story, "second")
        DeltaTable(bench.source).update(predicate="i > 1", updates={"v": "41.5"})
        assert [batch.plan.action for batch in story.run()] == ["restate"]
        shown.append(in_order(bench.pipeline, latest(bench.pipeline, bench.rows())))
    assert differences(*shown, tolerance=1e-11) == []


def test_a_restatement_in_between_is_undone(tmp_path, prepared):
    clean, story = prepared.original(undisturbed, "slices"), prepared.copy(tmp_path / "story", saved, "slices")
    assert len(loop.restate(story.bench.pipeline, quiet(), ends=(0, None))) == 1
    restore(story)
    finish(story)
    check_equal(story, clean)


#: Fields of a changed spec, applied between a savepoint and the way back to it, by the windows of the old one.
CHANGED: dict[str, Callable[[list[Any]], dict[str, Any]]] = {
    "another aggregate": lambda _: {"aggregates": AGGREGATES},
    "fewer aggregates": lambda _: {"aggregates": {name: FEW[name] for name in ("n", "low")}},
    "another window": lambda windows: {"windows": [*windows, MORE]},
    "a window less": lambda windows: {"windows": windows[1:]},
    "a window of another size": lambda windows: {"windows": [{**windows[0], "size": "20 minutes"}, *windows[1:]]},
}


@pytest.mark.parametrize(
    ("name", "change"), [*(("slices", change) for change in CHANGED), ("mixed", "a window of another size"), ("revise", "fewer aggregates")]
)
def test_a_savepoint_brings_its_spec_back_over_an_applied_change(tmp_path, prepared, monkeypatch, name, change):
    monkeypatch.setattr("windowmill.checkpoints.delta_tables.RETENTION_HOURS", 0)
    clean, story = prepared.original(undisturbed, name), prepared.copy(tmp_path / "story", saved, name)
    bench, old = story.bench, dict(story.bench.changes)
    new = CHANGED[change](bench.spec["windows"])
    bench.changes |= new
    assert loop.apply(bench.pipeline, quiet(), history=AXIS_BEGIN) is not None
    if change == "another aggregate":
        bench.changes["aggregates"] = FEW  # and a change back, which replaces what the first has published
        assert loop.apply(bench.pipeline, quiet(), history=AXIS_BEGIN) is not None
        bench.changes |= new
        assert loop.apply(bench.pipeline, quiet(), history=AXIS_BEGIN) is not None
    maintain(bench.pipeline, quiet())
    for path in (bench.sink, Places.of(bench.pipeline).state):
        DeltaTable(path).vacuum(0, dry_run=False, enforce_retention_duration=False)
    done = maintenance_command.savepoint_of(bench.pipeline, quiet(), "restore", "first", NOTHING_ACCEPTED)
    assert "put the old values into its file before the next run" in done.text
    assert ("windows" if "windows" in new else "aggregates") in done.data["spec_differs"]
    with pytest.raises(SpecChangedError, match="put the old ones back, or see what the change does by `windowmill plan SPEC`"):
        story.run()
    bench.changes.clear()
    bench.changes |= old
    finish(story)
    mine, others = story.bench.rows(), clean.bench.rows()
    shown = [[{name: row[name] for name in others[0]} for row in rows] for rows in (mine, others)]
    assert differences(*shown, tolerance=1e-11) == []
    assert quarantined(story) == quarantined(clean)
    savepoints.drop(bench.pipeline, quiet(), "first")
    assert not any(path.is_file() for path in Path(Places.of(bench.pipeline).savepoints).rglob("*"))


def test_an_old_file_that_is_back_already_is_restored_too(tmp_path, prepared):
    clean, story = prepared.original(undisturbed, "slices"), prepared.copy(tmp_path / "story", saved, "slices")
    story.bench.changes["aggregates"] = AGGREGATES
    assert loop.apply(story.bench.pipeline, quiet(), history=AXIS_BEGIN) is not None
    ends = [row["window_end"] for row in story.bench.rows()]
    loop.backfill(story.bench.pipeline, quiet(), begin=min(ends), end=max(ends))
    story.bench.changes["aggregates"] = FEW
    done = maintenance_command.savepoint_of(story.bench.pipeline, quiet(), "restore", "first", NOTHING_ACCEPTED)
    assert "spec_differs" not in done.data
    finish(story)
    others = clean.bench.rows()
    assert differences([{name: row[name] for name in others[0]} for row in story.bench.rows()], others, tolerance=1e-11) == []


def corrected(name: str, folder: Path) -> Story:
    """As :func:`saved`, with rows of both versions changed and restated since, and rows appended and changed after that."""
    story = saved(name, folder)
    story.bench.changes["source"] = {"path": story.bench.source, "changes": "restate"}
    for where in ("i > 1", "i < -1"):
        DeltaTable(story.bench.source).update(predicate=where, updates={"v": "41.5"})
        story.run()
    DeltaTable(story.bench.source).delete("i = 0")
    story.bench.land(story.versions[2][:40])
    story.run()
    return story


def never_restored(name: str, folder: Path) -> Story:
    """The pipeline of :func:`corrected` after runs over all versions."""
    story = corrected(name, folder)
    finish_corrected(story)
    return story


def finish_corrected(story: Story) -> None:
    story.run()
    story.bench.land(story.versions[2][40:])
    story.run()


def check_shows_the_same(story: Story, clean: Story) -> None:
    shown = [in_order(each.bench.pipeline, latest(each.bench.pipeline, each.bench.rows())) for each in (story, clean)]
    assert differences(*shown, tolerance=1e-11) == []
    assert quarantined(story) == quarantined(clean)


@pytest.mark.parametrize("name", ["slices", "sessions", "mixed", "revise"])
def test_runs_after_a_restoration_take_changed_rows_up_in_their_turn(tmp_path, prepared, name):
    clean, story = prepared.original(never_restored, name), prepared.copy(tmp_path / "story", corrected, name)
    restore(story)
    # Changes that follow one another are one restatement now.
    assert [batch.plan.action for batch in story.run()] == ["run", "restate", "run"]
    finish_corrected(story)
    check_shows_the_same(story, clean)


@pytest.mark.parametrize("place", ["batch.before", "batch.after", "sink.before", "state.after"])
@pytest.mark.parametrize("step", ["restore", "run"])
def test_a_restoration_over_changed_rows_and_the_runs_after_it_may_die_anywhere(tmp_path, prepared, step, place):
    clean, story = prepared.original(never_restored, "slices"), prepared.copy(tmp_path / "story", corrected, "slices")
    if step == "restore":
        arm(place)
    try:
        restore(story)
    except DiedError:
        if place == "batch.before":
            restore(story)
    if step == "run":
        # The run, the restatement and the run after it, which leaves the state as it is: the rows that were appended behind deleted ones
        # have been restated with them.
        for _ in range(2 if place.startswith("state") else 3):
            arm(place)
            with pytest.raises(DiedError):
                story.run()
    finish_corrected(story)
    check_shows_the_same(story, clean)


def test_changed_rows_stand_in_the_way_where_runs_do_not_restate_them_or_their_files_are_gone(tmp_path, prepared):
    story = prepared.copy(tmp_path / "story", corrected, "slices")
    source = story.bench.changes.pop("source")
    told = r"version 2 \(UPDATE\) changed or removed rows after it was made; set source.changes to restate, .*again"
    with pytest.raises(SavepointError, match=f"savepoint first: {told}"):
        restore(story)
    story.bench.changes["source"] = source
    DeltaTable(story.bench.source).vacuum(0, dry_run=False, enforce_retention_duration=False)
    before = story.bench.rows()
    with pytest.raises(SavepointError, match=r"no longer gives what came after version 0 \(the file .* is gone.*; restore a later"):
        restore(story)
    assert differences(story.bench.rows(), before) == []


def test_what_cannot_be_gone_back_to_is_refused_and_nothing_changes(tmp_path, prepared):
    story = prepared.copy(tmp_path / "story", saved, "sessions")
    pipeline, before = story.bench.pipeline, story.tables()
    with pytest.raises(SavepointError, match="savepoint other: bench has no such savepoint; it has first"):
        savepoints.restore(pipeline, quiet(), "other")
    with pytest.raises(SavepointError, match="savepoint first: bench has one of this name"):
        savepoints.create(pipeline, quiet(), "first")
    with pytest.raises(SpecError, match="expected at most 63 letters"):
        savepoints.create(pipeline, quiet(), "../first")
    ends = [row["window_end"] for row in story.bench.rows()]
    copy = story.copied_to(tmp_path / "copy")
    loop.backfill(copy.bench.pipeline, quiet(), begin=min(ends), end=max(ends))
    with pytest.raises(SavepointError, match="the backfill of batch 2 has replaced rows"):
        savepoints.restore(copy.bench.pipeline, quiet(), "first")
    cleaned(story.bench.source)
    with pytest.raises(SavepointError, match="no longer gives what came after version 0"):
        savepoints.restore(pipeline, quiet(), "first")
    assert story.tables() == before
    assert savepoints.drop(pipeline, quiet(), "first").batch == 0
    assert not savepoints.listed(runnable_of(pipeline))
    assert not Path(Places.of(pipeline).savepoints, "first").exists()


def test_another_meaning_or_a_damaged_savepoint_is_refused(tmp_path, prepared):
    story = prepared.copy(tmp_path / "story", saved, "slices")
    pipeline, folder = story.bench.pipeline, Path(Places.of(story.bench.pipeline).savepoints, "first")
    story.bench.changes["keys"] = []
    with pytest.raises(SpecChangedError, match="source, steps, dedup, keys, time, windows, aggregates or emit differ"):
        restore(story)
    del story.bench.changes["keys"]
    kept = next(folder.glob("*.parquet"))
    kept.unlink()
    kept.write_bytes(b"damaged")
    before = story.tables()
    with pytest.raises(SavepointError, match=r"cannot be read .*; restore another savepoint"):
        savepoints.restore(pipeline, quiet(), "first")
    assert story.tables() == before


#: What a full disk, a power loss or another release leaves in the place of an entry.
TORN = {"empty": "", "cut": '{"name": "s9", "cr', "a list": "[]", "zeros": "\0" * 64, "other format": "{}", "no time": None}


@pytest.mark.covers("D8")
@pytest.mark.parametrize("torn", TORN)
def test_a_damaged_savepoint_stops_nothing_and_can_be_dropped(tmp_path, prepared, torn):
    story = prepared.copy(tmp_path / "story", saved, "slices")
    pipeline, folder = story.bench.pipeline, Path(Places.of(story.bench.pipeline).savepoints)
    text = TORN[torn]
    if text is None:
        text = json.dumps(json.loads((folder / "first" / "savepoint.json").read_text()) | {"created_at": "yesterday"})
    (folder / "s9").mkdir()
    (folder / "s9" / "savepoint.json").write_text(text)
    story.bench.changes["savepoints"] = {"every": "1 day"}
    spec = str(story.spec_file())
    assert list(savepoints.listed(runnable_of(pipeline))) == ["first"]
    with pytest.raises(SavepointError, match=r"savepoint s9: .*; drop it"):
        savepoints.restore(pipeline, quiet(), "s9")
    with pytest.raises(SavepointError, match="has one of this name"):
        savepoints.create(pipeline, quiet(), "s9")
    for command in (["create", "second"], ["list"], ["restore", "first"], ["drop", "first"]):
        assert main(["savepoint", spec, *command]) == 0
    assert main(["maintain", spec]) == 0
    assert main(["savepoint", spec, "drop", "s9"]) == 0
    assert not (folder / "s9").exists()
    assert savepoints.damaged(runnable_of(pipeline)) == {}


def test_an_entry_that_cannot_be_read_now_is_not_taken_for_a_damaged_one(tmp_path, prepared, monkeypatch):
    story = prepared.copy(tmp_path / "story", saved, "slices")

    def fails(*_: Any, **__: Any) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    def failing(place: str) -> Any:
        return SimpleNamespace(get_file_info=store_of(place).get_file_info, open_input_file=fails)

    monkeypatch.setattr("windowmill.checkpoints.savepoints.store_of", failing)
    with pytest.raises(StateError, match=r"savepoint first: .*Too many open files\); run again"):
        savepoints.listed(runnable_of(story.bench.pipeline))


@pytest.mark.covers("D9")
@pytest.mark.parametrize(
    ("days", "made"),
    [
        (["20260301", "20260309", "20260317"], [["20260301"], ["20260301", "20260309"], ["20260309", "20260317"]]),
        (["20420301", "20260309", "20260317"], [["20420301"], ["20420301", "20260309"], ["20260309", "20260317"]]),
    ],
    ids=["in order", "a clock that was ahead"],
)
def test_maintenance_makes_savepoints_and_keeps_the_newest(tmp_path, monkeypatch, days, made):
    story = Story.of("slices", tmp_path)
    story.bench.changes["savepoints"] = {"every": "7 days", "keep": 2}
    pipeline, kept = story.bench.pipeline, list[str]()
    for version, (day, wanted) in enumerate(zip(days, made, strict=True)):
        story.land(version)
        story.run()
        monkeypatch.setattr("windowmill.jobs.batch.maintenance_batches._now", lambda day=day: datetime.fromisoformat(f"{day}T000000Z"))
        told = [[line for line in str(maintain(pipeline, quiet()).text).splitlines() if line.startswith("savepoint")] for _ in range(2)]
        dropped = [f"savepoint auto-{each}T000000Z: dropped" for each in kept if each not in wanted]
        assert told == [[f"savepoint auto-{day}T000000Z: made", *dropped], []]
        kept = wanted
        assert list(savepoints.listed(runnable_of(pipeline))) == [f"auto-{each}T000000Z" for each in wanted]


def test_no_savepoint_before_the_first_batch(tmp_path):
    story = Story.of("slices", tmp_path)
    story.land(0)
    with pytest.raises(OutOfTurnError, match="has committed no batch"):
        savepoints.create(story.bench.pipeline, quiet(), "early")


def test_the_report_counts_no_batch_that_a_savepoint_has_undone(tmp_path, prepared):
    story = prepared.copy(tmp_path / "story", saved, "slices")
    pipeline = story.bench.pipeline
    before = Page.of(pipeline)
    assert before.data["bars"]["read"]["labels"] == [0, 1]
    savepoints.restore(pipeline, quiet(), "first")
    story.run()
    page = Page.of(pipeline)
    read = page.data["bars"]["read"]
    assert (read["labels"], read["series"][0]["values"]) == ([0, 2, 3], [80, 0, 80])
    assert "1 batch that a savepoint has undone is not counted on this page; windowmill history SPEC lists all" in page.words
    assert page.values("id", "tr") == ["batch-3", "batch-2", "batch-0"], "the restoration among them"
    passed = [int(re.search(r"passed (\d+)", each.words)[1]) for each in (before, page)]
    assert passed[0] == passed[1], "outcomes of rules"


def test_the_command_makes_lists_restores_and_drops(tmp_path, prepared, capsys):
    story = prepared.copy(tmp_path / "story", saved, "slices")
    spec = str(story.spec_file())

    def told(*arguments: str) -> Any:
        assert main(["savepoint", spec, *arguments, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    assert (told("create", "second")["status"], [each["name"] for each in told("list")]) == ("made", ["first", "second"])
    assert all(each[name].endswith("Z") for each in told("list") for name in ("created_at", "seen", "emitted"))
    assert told("restore", "first") == {
        "pipeline": "bench", "status": "restored", "name": "first", "batch": 2, "from_version": 1, "to_version": 0,
    }  # fmt: skip
    assert (told("drop", "second")["status"], [each["name"] for each in told("list")]) == ("dropped", ["first"])
    for wrong in (["create"], ["restore", "second"], ["list", "first"]):
        assert main(["savepoint", spec, *wrong]) == 2
        assert capsys.readouterr().err.startswith("windowmill: savepoint ")
