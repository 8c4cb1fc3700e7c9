"""What commands behind one another show: restatements, backfills and late rows; small cases with their rows. No JVM."""

from __future__ import annotations

import pytest

from tests.faults.world import UNMET
from tests.jobs.days import HALF, HOURLY, LAST_2, PAIRS, VISIT, Days, at
from tests.spark.harness import quiet
from windowmill.checkpoints.ledger import Ledger
from windowmill.jobs.commands.maintenance_command import maintain
from windowmill.jobs.report import page
from windowmill.windowing.axis import to_us
from windowmill.windowing.errors import HeldError, UnsupportedError

pytestmark = pytest.mark.local


@pytest.mark.parametrize(("corrected", "total"), [(1, 36), (4, 38)], ids=["of a window that was shown", "of one that is to come"])
def test_later_windows_of_restated_keys_count_changes_that_were_ignored(tmp_path, corrected, total):
    """Wherever the restated row lies: the state of its key is that of the source."""
    days = Days(tmp_path, HOURLY, source={"changes": "ignore"})
    days.append((1, "a", "08:05", 10), (2, "a", "09:05", 20), (3, "a", "12:05", 30), (4, "a", "12:06", 5), (5, "b", "12:10", 1)).run()
    days.update("id = 3", v="31").run().update(f"id = {corrected}", v="7").restate().append((6, "b", "13:30", 1)).run()
    assert ("a", "12:00", "13:00", 2, total) in days.latest("hourly")


@pytest.mark.parametrize("late", [False, True], ids=["in order", "late"])
def test_a_backfill_gives_windows_that_are_shown_but_not_closed(tmp_path, late):
    days = Days(tmp_path, LAST_2, time={"lateness": "3 hours"}, source={"changes": "ignore"})
    days.append((1, "a", "08:05", 1), (2, "a", "09:05", 2), (3, "a", "10:05", 3))
    if late:
        days.append((4, "a", "08:30", 4))  # behind what its key has applied
    days.append((5, "a", "11:05", 5), (6, "a", "12:05", 6)).run().update("id > 0", v="v + 100").run().backfill()
    numbers = [row["trigger"] for row in sorted(days.rows("last_2"), key=lambda row: row["window_end"])]
    assert numbers == list(range(5 if late else 4)), "each number stands once"
    assert days.latest("last_2")[-1] == ("a", 4 if late else 3, "11:05", 2, 208)
    days.append((7, "a", "13:05", 7), (8, "b", "14:05", 8)).run()
    numbers = [row["trigger"] for row in sorted(days.rows("last_2"), key=lambda row: row["window_end"])]
    assert numbers == list(range(7 if late else 6)), "later runs go on from what the backfill has published"
    assert [row[2:] for row in days.latest("last_2")[-2:]] == [("12:05", 2, 211), ("13:05", 2, 113)]


def test_sessions_go_on_from_the_rows_that_a_backfill_has_counted(tmp_path):
    days = Days(tmp_path, VISIT, source={"changes": "ignore"}).append((1, "a", "08:00", 1), (2, "b", "08:40", 2))
    days.append((3, "a", "08:25", 3))  # behind the session of 08:00, which is closed
    days.run().update("id = 1", v="v + 100").run().backfill()
    assert days.latest("visit") == [], "the session that holds both rows is open"
    days.append((4, "a", "08:50", 4), (5, "b", "12:00", 5)).run()
    assert days.latest("visit") == [("a", "08:00", "09:20", 3, 108), ("b", "08:40", "09:10", 1, 2)]


@pytest.mark.parametrize("window", [LAST_2, VISIT], ids=lambda window: window["type"])
def test_a_backfill_of_rows_as_they_arrived_takes_a_restatement_back_as_a_whole_or_is_refused(tmp_path, window):
    days = Days(tmp_path, window, source={"changes": "ignore"}).append((1, "a", "08:05", 1), (2, "a", "09:05", 2), (3, "b", "09:40", 3))
    days.append((4, "a", "08:30", 4), (5, "a", "10:05", 5), (6, "b", "12:05", 6)).run()
    as_arrived = days.latest(window["name"])
    days.merge((2, "a", "08:20", 2)).run().restate(changed=(2, 2)).restate(late=True)
    restated = days.latest(window["name"])
    assert restated != as_arrived
    with pytest.raises(UnsupportedError, match=r"as they were restated since.*`windowmill restate` recomputes what has changed"):
        days.backfill(end=to_us(at("09:00")), history="log")
    assert days.latest(window["name"]) == restated
    days.backfill(history="log")
    assert days.latest(window["name"]) == as_arrived
    days.append((7, "a", "13:05", 7), (8, "b", "15:05", 8)).run()
    after = {"sliding": (3, "13:05", 2, 12), "session": ("13:05", "13:35", 1, 7)}[window["type"]]
    assert [row[1:] for row in days.latest(window["name"]) if row[0] == "a"] == [*(row[1:] for row in as_arrived if row[0] == "a"), after]


@pytest.mark.parametrize("by", ["restatement", "changed spec"])
def test_a_batch_that_numbers_published_triggers_anew_is_not_discarded(tmp_path, by):
    days = Days(tmp_path, LAST_2).append((1, "a", "08:05", 1), (2, "a", "09:05", 2), (3, "a", "10:05", 3), (4, "a", "12:05", 4)).run()
    days.spec["expectations"] = UNMET
    if by == "restatement":
        days.delete("id = 2")
    with pytest.raises(HeldError, match="`windowmill release` or `windowmill abandon` it"):
        days.run() if by == "restatement" else days.apply(LAST_2 | {"trigger": {"count": 2}})
    with pytest.raises(UnsupportedError, match="renumbers the triggers of window last_2"):
        days.run(ruling="discard")
    told = page.row_of(days.pipeline, "days.yaml", "index.html").next
    assert told == ("windowmill release days.yaml", "windowmill abandon days.yaml")
    days.run(ruling="release")
    del days.spec["expectations"]
    days.append((5, "a", "13:05", 5), (6, "a", "14:05", 6)).run()
    numbers = [row[1] for row in days.latest("last_2")]
    assert numbers == list(range(len(numbers)))


def test_a_backfill_that_is_discarded_leaves_the_state(tmp_path):
    days = Days(tmp_path, LAST_2, source={"changes": "ignore"}).append((1, "a", "08:05", 1), (2, "a", "09:05", 2), (3, "b", "09:40", 3))
    days.append((4, "a", "08:30", 4), (5, "a", "10:05", 5), (6, "b", "12:05", 6)).run().update("id = 1", v="v + 100").run()
    before = days.latest("last_2")
    days.spec["expectations"] = UNMET
    with pytest.raises(HeldError):
        days.backfill()
    days.run(ruling="discard")
    del days.spec["expectations"]
    assert days.latest("last_2") == before
    days.append((7, "a", "13:05", 7), (8, "b", "15:05", 8)).run()
    found, shown = ([row[1:] for row in rows if row[0] == "a"] for rows in (days.latest("last_2"), before))
    assert found == [*shown, (3, "13:05", 2, 12)]


@pytest.mark.parametrize("windows", [(HOURLY, VISIT), (HOURLY,)], ids=["with sessions", "on a grid"])
def test_a_backfill_gives_revised_windows_that_are_shown_but_not_closed(tmp_path, windows):
    days = Days(tmp_path, *windows, emit="revise", time={"lateness": "3 hours"}, source={"changes": "ignore"})
    days.append((1, "a", "08:05", 1), (2, "a", "09:05", 2), (3, "a", "10:05", 3)).append((4, "a", "08:10", 4), (5, "a", "12:05", 5)).run()
    days.update("id = 3", v="v + 100").run().backfill()
    wanted = [("a", "08:00", "09:00", 2, 5), ("a", "09:00", "10:00", 1, 2), ("a", "10:00", "11:00", 1, 103)]
    assert days.latest("hourly") == wanted
    sessions = [("a", "08:05", "08:40", 2, 5), ("a", "09:05", "09:35", 1, 2), ("a", "10:05", "10:35", 1, 103)]
    assert days.latest("visit") == (sessions if VISIT in windows else [])


@pytest.mark.parametrize("window", [LAST_2, HOURLY, VISIT], ids=lambda window: window["type"])
def test_a_backfill_gives_what_the_pipeline_has_shown_where_the_newest_rows_were_deleted(tmp_path, window):
    days = Days(tmp_path, window)
    days.append((1, "a", "08:05", 1), (2, "a", "09:05", 2), (3, "a", "10:05", 3), (4, "a", "11:05", 4), (5, "b", "15:00", 5)).run()
    days.delete("id = 5").run()
    before = days.latest(window["name"])
    days.backfill()
    assert (len(before), days.latest(window["name"])) == (4, before)


def test_a_backfill_does_not_bring_a_superseded_trigger_back(tmp_path):
    days = Days(tmp_path, PAIRS, time={"lateness": "3 hours"})
    days.append((1, "a", "08:05", 1), (2, "a", "08:15", 2), (3, "a", "08:25", 3), (4, "a", "10:05", 4), (5, "b", "12:05", 5)).run()
    days.merge((1, "a", "08:05", 1), (6, "a", "08:50", 6), (2, "a", "08:15", 102)).run().backfill()
    assert sorted((row["trigger"], row["revision"], row["total"]) for row in days.rows("pairs")) == [(0, 0, 103), (1, 0, 9)]


@pytest.mark.parametrize("how", ["merge", "delete"])
def test_a_row_that_the_filter_leaves_out_does_not_move_the_watermark(tmp_path, how):
    days = Days(tmp_path, HOURLY, source={"filter": "s = 'x'"})
    rows = [(1, "a", "08:05", 1, "x"), (2, "a", "09:05", 2, "x"), *([(3, "b", "15:00", 3, "test")] if how == "delete" else [])]
    days.append(*rows).run()
    if how == "merge":
        days.merge((1, "a", "08:05", 101, "x"), (3, "b", "15:00", 3, "test"))
    else:
        days.delete("id = 3").update("id = 1", v="101")
    days.run().append((4, "a", "09:10", 4, "x"), (5, "a", "09:20", 5, "x"), (6, "a", "10:30", 6, "x")).run()
    assert days.latest("hourly") == [("a", "08:00", "09:00", 1, 101), ("a", "09:00", "10:00", 3, 11)]


def test_the_latest_view_shows_a_closed_session_beside_one_that_overlaps_it_and_was_revised(tmp_path):
    days = Days(tmp_path, VISIT, emit="revise", time={"lateness": "20 minutes"})
    days.append((1, "a", "08:00", 1), (2, "b", "08:51", 2))  # through 08:31 all is closed
    days.append((3, "a", "08:25", 3), (4, "b", "08:58", 4)).append((5, "a", "08:27", 5), (6, "b", "09:05", 6)).run()
    assert [row for row in days.latest("visit") if row[0] == "a"] == [("a", "08:00", "08:30", 1, 1), ("a", "08:25", "08:57", 2, 8)]
    assert [(row["revision"], row["n"]) for row in days.rows("visit") if row["retracted"]] == [(1, None)]


@pytest.mark.parametrize("emit", ["final", "revise"])
def test_a_session_that_begins_within_one_that_was_cut_may_end_with_it(tmp_path, emit):
    days = Days(tmp_path, VISIT | {"max_size": "40 minutes"}, emit=emit)
    days.append((1, "a", "08:00", 1), (2, "a", "08:25", 2), (3, "b", "08:40", 3))  # through 08:40 all is closed
    days.append((4, "a", "08:10", 4)).append((5, "b", "12:00", 5)).run()
    assert days.latest("visit")[:2] == [("a", "08:00", "08:40", 2, 3), ("a", "08:10", "08:40", 1, 4)]


@pytest.mark.parametrize("cut", ["one batch", "a batch a version"])
@pytest.mark.parametrize("kind", ["session", "snapshot", "count"])
def test_a_window_whose_bounds_late_rows_move_is_retracted(tmp_path, kind, cut):
    others = {"snapshot": {"name": "spans", "type": "snapshot"}, "count": {"name": "twos", "type": "count", "count": 2}}
    window = others.get(kind, VISIT)
    days = Days(tmp_path, window, emit="revise", time={"lateness": "10 hours"})
    first = [(1, "a", "08:00", 1), (2, "a", "09:00", 2), (3, "b", "12:00", 3)]
    for rows in (first, [(4, "a", "08:20", 4)], [(5, "a", "08:40", 5)]):
        days.append(*rows)
        if cut != "one batch":
            days.run()
    days.run()
    found = [row for row in days.latest(window["name"]) if row[0] == "a"]
    wanted = {
        "session": [("a", "08:00", "09:30", 4, 12)],
        "snapshot": [("a", clock, clock, 1, v) for clock, v in (("08:00", 1), ("08:20", 4), ("08:40", 5), ("09:00", 2))],
        "count": [("a", "08:00", "08:20", 2, 5), ("a", "08:20", "08:40", 2, 9), ("a", "08:40", "09:00", 2, 7)],
    }[kind]
    assert found == wanted


@pytest.mark.parametrize("window", [HOURLY, VISIT, LAST_2], ids=lambda window: window["type"])
def test_rows_that_take_the_place_of_deleted_ones_are_corrections(tmp_path, window):
    days = Days(tmp_path, window, time={"lateness": "30 minutes"}, quarantine={"hold": "1 %"})
    days.append((1, "a", "08:05", 1), (2, "a", "09:05", 2), (3, "a", "10:05", 3), (4, "b", "09:10", 4), (5, "b", "15:00", 5)).run()
    days.delete("t < '2024-03-29T11:00:00Z'")
    days.append((1, "a", "08:05", 11), (2, "a", "09:05", 12), (6, "a", "09:50", 6), (3, "a", "10:05", 13), (4, "b", "09:10", 14)).run()
    assert [batch.action for batch in Ledger.open(days.pipeline).batches()] == ["run", "restate"]
    n = {"tumbling": {"a": [1, 2, 1], "b": [1]}, "session": {"a": [1, 1, 2], "b": [1]}, "sliding": {"a": [1, 2, 2, 2], "b": [1]}}
    found = days.latest(window["name"])
    assert {key: [row[3] for row in found if row[0] == key] for key in "ab"} == n[window["type"]]
    assert sum(row[4] for row in found if row[0] == "b") == 14


def test_rows_that_take_the_place_of_deleted_ones_are_corrections_behind_other_commits(tmp_path):
    days = Days(tmp_path, HOURLY, quarantine={"hold": "1 %"}).append((1, "a", "08:05", 1), (2, "a", "09:05", 2), (5, "b", "15:00", 5)).run()
    days.delete("t < '2024-03-29T11:00:00Z'").append((6, "a", "15:30", 6), (7, "b", "16:10", 7)).append((8, "a", "17:00", 8))
    days.source.optimize.compact()
    days.append((1, "a", "08:05", 11)).append((9, "b", "18:30", 9)).append((2, "a", "09:05", 12)).append((3, "a", "19:00", 3)).run()
    batches = Ledger.open(days.pipeline).batches()[1:3]
    assert [(batch.action, batch.counts.rows_quarantined) for batch in batches] == [("restate", 0), ("run", 0)]
    assert days.latest("hourly") == [
        *[("a", "08:00", "09:00", 1, 11), ("a", "09:00", "10:00", 1, 12), ("a", "15:00", "16:00", 1, 6), ("a", "17:00", "18:00", 1, 8)],
        *[("b", "15:00", "16:00", 1, 5), ("b", "16:00", "17:00", 1, 7), ("b", "18:00", "19:00", 1, 9)],
    ]


def test_late_rows_behind_a_deletion_of_others_are_late_as_ever(tmp_path):
    days = Days(tmp_path, HOURLY).append((1, "a", "08:05", 1), (2, "a", "09:05", 2), (5, "b", "15:00", 5)).run().delete("id = 2")
    days.append((6, "a", "10:05", 6), (7, "b", "15:30", 7)).run()
    assert days.latest("hourly") == [("a", "08:00", "09:00", 1, 1)]


def test_late_takes_the_rows_that_missed_some_of_their_windows(tmp_path):
    days = Days(tmp_path, HOURLY, {"name": "day", "type": "tumbling", "size": "1 day"}).append((1, "a", "08:05", 1), (2, "a", "10:05", 2))
    days.append((3, "a", "08:30", 3))  # the day takes it, the hour does not
    days.run()
    assert days.latest("hourly") == [("a", "08:00", "09:00", 1, 1)]
    days.restate(late=True)
    assert days.latest("hourly") == [("a", "08:00", "09:00", 2, 4)]
    before = Ledger.open(days.pipeline).count
    days.restate(late=True)
    assert Ledger.open(days.pipeline).count == before, "nothing is left to restate"


def test_empty_windows_that_were_retracted_come_back_under_greater_revisions(tmp_path):
    days = Days(tmp_path, HALF | {"empty": "emit"}, emit="revise", time={"lateness": "5 minutes"})
    days.append((1, "a", "08:05", 1), (2, "a", "10:40", 2)).run()
    before = days.latest("half")
    days.delete("id = 2").run()
    assert days.latest("half") == before[:1]
    days.append((2, "a", "10:40", 2)).run()
    assert days.latest("half") == before
    assert {row["revision"] for row in days.rows("half") if not row["n"] and not row["retracted"]} == {0, 2}


def test_empty_windows_of_a_key_that_comes_again_go_on_from_what_a_backfill_has_published(tmp_path, monkeypatch):
    days = Days(tmp_path, HOURLY | {"empty": "emit"}).append((1, "a", "08:05", 1), (2, "b", "12:05", 2))
    days.append((3, "a", "09:05", 3))  # too late
    days.run().update("id = 2", v="20")
    days.backfill(to_us(at("09:00")), to_us(at("10:00")))  # of the table as it is now
    assert ("a", "09:00", "10:00", 1, 3) in days.latest("hourly")
    days.run().append((4, "a", "13:05", 4), (5, "a", "14:05", 5))
    with monkeypatch.context() as during:
        during.setattr(Ledger, "batches", lambda _: pytest.fail("a run reads the whole ledger"))
        days.run()
    of_a = sorted((f"{row['window_start']:%H:%M}", row["revision"], row["n"]) for row in days.rows("hourly") if row["k"] == "a")
    assert of_a == [("08:00", 0, 1), ("09:00", 0, 1), ("09:00", 1, 0), ("10:00", 0, 0), ("11:00", 0, 0), ("12:00", 0, 0), ("13:00", 0, 1)]


def test_revisions_go_on_from_open_windows_that_a_backfill_alone_has_published(tmp_path):
    days = Days(tmp_path, HOURLY, emit="revise", time={"lateness": "10 hours"}, source={"changes": "ignore"})
    days.append((1, "a", "08:05", 1), (2, "a", "10:05", 2)).run().update("id = 1", k="'b'").run()
    days.backfill()  # of the table as it is now: no run has counted a row of b
    assert days.latest("hourly") == [("b", "08:00", "09:00", 1, 1)]
    days.append((3, "b", "08:30", 3)).run()
    assert sorted((row["revision"], row["total"]) for row in days.rows("hourly") if row["k"] == "b") == [(0, 1), (1, 3)]


@pytest.mark.parametrize("emit", ["final", "revise"])
@pytest.mark.parametrize(
    "window",
    [HOURLY, VISIT, LAST_2, {"name": "spans", "type": "snapshot"}, {"name": "ones", "type": "count", "count": 1}],
    ids=lambda window: window["name"],
)
def test_a_restatement_behind_one_that_moved_the_watermark_shows_what_has_been_shown(tmp_path, window, emit):
    days = Days(tmp_path, window, emit=emit, time={"disorder": "1 hour"})
    days.append((1, "a", "08:05", 1), (2, "a", "09:05", 2), (3, "a", "10:30", 3)).run()
    days.merge((1, "a", "08:05", 101), (4, "a", "15:05", 4)).restate()
    before = days.latest(window["name"])
    days.restate(changed=(1, 1))
    assert days.latest(window["name"]) == before
    assert len(before) == (1 if window in (HOURLY, VISIT) else 2)
    days.run()
    assert [row[4] for row in days.latest(window["name"])] == ([101, 103, 5] if window == LAST_2 else [101, 2, 3])


def test_rows_that_are_delivered_again_behind_a_backfill_that_read_their_deletion_count(tmp_path):
    days = Days(tmp_path, VISIT, time={"disorder": "1 hour", "lateness": "6 hours"})
    days.append((1, "a", "08:05", 1), (2, "a", "09:05", 2), (3, "a", "10:05", 3), (4, "b", "10:30", 4)).run().delete("id in (1, 3)")
    days.append((1, "a", "08:05", 1), (3, "a", "10:05", 33)).backfill().run().append((5, "a", "12:05", 5), (6, "b", "20:00", 6)).run()
    wanted = [("a", "08:05", "08:35", 1, 1), ("a", "09:05", "09:35", 1, 2), ("a", "10:05", "10:35", 1, 33)]
    assert days.latest("visit")[:3] == wanted


@pytest.mark.parametrize("by", ["run", "restate"])
def test_a_row_that_was_moved_ahead_of_all_counts_behind_a_backfill_that_read_its_change(tmp_path, by):
    days = Days(tmp_path, LAST_2, VISIT, source={"changes": "restate" if by == "run" else "ignore"})
    days.append((1, "a", "08:05", 1), (2, "a", "09:05", 2), (3, "b", "09:30", 3)).run().merge((1, "a", "12:05", 1)).backfill()
    if by == "restate":
        days.run().restate(changed=(1, 1))
    days.append((4, "a", "13:05", 4), (5, "b", "18:05", 5)).run()
    assert [row[1:] for row in days.latest("last_2") if row[0] == "a"] == [(0, "09:05", 1, 2), (1, "12:05", 2, 3), (2, "13:05", 2, 5)]
    assert [row[1:3] for row in days.latest("visit") if row[0] == "a"] == [("09:05", "09:35"), ("12:05", "12:35"), ("13:05", "13:35")]


@pytest.mark.parametrize("how", ["delete", "move"])
def test_a_row_that_no_batch_has_counted_moves_no_watermark_when_it_is_removed(tmp_path, how):
    days = Days(tmp_path, HOURLY, LAST_2, source={"changes": "ignore"}).append((1, "a", "08:05", 1), (2, "a", "09:05", 2)).run()
    days.merge((1, "a", "08:05", 1), (3, "a", "15:05", 3)).run()
    (days.delete("id = 3") if how == "delete" else days.merge((3, "a", "08:15", 3))).run()
    days.restate(changed=(2, 2)).run().append((4, "a", "09:30", 4), (5, "a", "10:30", 5)).run()
    n, total = (1, 1) if how == "delete" else (2, 4)
    assert days.latest("hourly") == [("a", "08:00", "09:00", n, total), ("a", "09:00", "10:00", 2, 6)]
    assert [row[2] for row in days.latest("last_2")] == ["08:05", *(["08:15"] if how == "move" else []), "09:05", "09:30"]


def test_a_held_batch_is_released_behind_maintenance_that_removes_the_log(tmp_path):
    days = Days(tmp_path, LAST_2).append((1, "a", "08:05", 1), (2, "a", "12:05", 2)).run().append((3, "a", "14:05", 4))
    days.spec["expectations"] = UNMET
    with pytest.raises(HeldError):
        days.run()
    maintain(days.pipeline, quiet(), now=True)
    days.run(ruling="release")
    assert days.latest("last_2") == [("a", 0, "08:05", 1, 1), ("a", 1, "12:05", 2, 3)]
