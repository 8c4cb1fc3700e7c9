"""What commands behind one another show where the spec has changed in between; small cases with their rows. No JVM."""

from __future__ import annotations

import json
from dataclasses import replace

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.faults.world import UNMET
from tests.jobs.days import BEGIN, END, HALF, HOURLY, LAST_2, PAIRS, RISES, VISIT, Days, at
from tests.spark.harness import quiet
from tests.specs import a_spec
from windowmill.checkpoints.ledger import Ledger
from windowmill.checkpoints.places import Places
from windowmill.checkpoints.savepoints import savepoints_in
from windowmill.jobs.batch import loop, maintenance_batches, purging
from windowmill.jobs.commands.maintenance_command import maintain
from windowmill.windowing.axis import to_us
from windowmill.windowing.errors import HeldError, SavepointError, SourceSchemaError, SpecError, UnsupportedError
from windowmill.windowing.specfile import parse_pipeline

pytestmark = pytest.mark.local
SNAP, DAY = {"name": "snap", "type": "snapshot"}, {"name": "day", "type": "tumbling", "size": "1 day"}
_BUCKETS = {"name": "buckets", "type": "sliding", "evict": {"time": "1 day"}, "trigger": {"count": 1}}


def test_restatements_and_backfills_leave_rows_of_windows_that_the_spec_has_dropped(tmp_path):
    days = Days(tmp_path, HOURLY, VISIT, HALF)
    days.append((1, "a", "08:05", 10), (2, "a", "09:05", 20), (3, "a", "10:05", 30), (4, "a", "12:05", 1)).run()
    before = [days.latest(name) for name in ("visit", "half")]
    days.apply(HOURLY).update("id = 2", v="21").run()
    assert days.latest("hourly")[1] == ("a", "09:00", "10:00", 1, 21)
    days.backfill(to_us(at("08:30")), to_us(at("12:00")))
    assert [len(rows) for rows in before] == [3, 3]
    assert [days.latest(name) for name in ("visit", "half")] == before


def test_a_restatement_leaves_rows_of_a_window_that_ended_before_the_history_that_another_meaning_of_it_was_asked_for(tmp_path):
    days = Days(tmp_path, HOURLY | {"name": "w"})
    days.append((1, "a", "08:05", 10), (2, "a", "09:05", 20), (3, "a", "10:05", 30), (4, "a", "12:05", 1)).run()
    days.apply(HALF | {"name": "w"}, history=to_us(at("09:10"))).update("id < 3", v="v + 1").run()
    wanted = [("a", "08:00", "09:00", 1, 10), ("a", "09:00", "09:30", 1, 21), ("a", "10:00", "10:30", 1, 30)]
    assert days.latest("w") == wanted
    days.apply(HOURLY, history=None).update("id = 3", v="v + 1").run()
    assert days.latest("hourly") == [], "none of it was asked for"
    days.append((5, "a", "14:05", 1)).run()
    assert days.latest("hourly") == [("a", "12:00", "13:00", 1, 1)]


def test_a_restatement_computes_rows_of_another_meaning_that_a_backfill_has_brought(tmp_path):
    days = Days(tmp_path, HOURLY | {"name": "w"})
    days.append((1, "a", "08:05", 10), (2, "a", "09:05", 20), (3, "a", "10:05", 30), (4, "a", "12:05", 1)).run()
    days.apply(HALF | {"name": "w"}, history=None).backfill(end=to_us(at("09:45"))).update("id > 0", v="v + 1").run()
    old = [("a", "09:00", "10:00", 1, 20), ("a", "10:00", "11:00", 1, 30)]
    assert days.latest("w") == [("a", "08:00", "08:30", 1, 11), ("a", "09:00", "09:30", 1, 21), *old]


@pytest.mark.parametrize("is_dropped", [False, True])
def test_triggers_of_another_meaning_are_replaced_as_a_whole_or_the_changed_spec_is_refused(tmp_path, is_dropped):
    days = Days(tmp_path, LAST_2 | {"name": "w"}, HOURLY).append(*((n, "a", f"08:{n:02}", n) for n in range(1, 6))).run()
    if is_dropped:
        days.apply(HOURLY)
    before = days.latest("w")
    for history in (None, to_us(at("08:03"))):
        with pytest.raises(
            UnsupportedError, match=r"window w has published triggers under its old definition.*rename the window, or .*--history all"
        ):
            days.apply(PAIRS | {"name": "w"}, HOURLY, history=history)
    assert days.latest("w") == before
    days.apply(PAIRS | {"name": "w"}, HOURLY).append((6, "a", "08:06", 6), (7, "a", "09:07", 7)).run()
    assert days.latest("w") == [("a", 0, "08:02", 2, 3), ("a", 1, "08:04", 2, 7), ("a", 2, "08:06", 2, 11)]


def test_a_trigger_of_a_tuple_at_the_watermark_of_a_changed_spec_is_revised(tmp_path):
    days = Days(tmp_path, HOURLY).append((1, "b", "08:05", 1), (2, "b", "12:05", 2)).run().apply(HOURLY, LAST_2, history=None)
    days.append((3, "c", "14:05", 3)).run().update("id = 2", t="t + interval '5 minutes'").run()
    assert [(row["window_end"], row["revision"]) for row in days.rows("last_2")] == [(at("12:10"), 1), (at("12:05"), 0)]


def test_rows_before_a_history_that_is_ahead_of_the_watermark_are_corrected(tmp_path):
    days = Days(tmp_path, HOURLY).append((1, "a", "08:05", 1), (2, "a", "09:05", 2)).run().apply(HOURLY, HALF, history=END)
    days.append((3, "a", "10:05", 3), (4, "a", "12:05", 4)).run().update("id = 3", v="30").run()
    assert days.latest("half") == [("a", "09:00", "09:30", 1, 2), ("a", "10:00", "10:30", 1, 30)]


def test_a_changed_spec_keeps_the_state_of_kept_windows_behind_a_restatement(tmp_path):
    days = Days(tmp_path, RISES).append((1, "a", "08:05", 0), (2, "a", "09:05", 6), (3, "b", "09:30", 3))
    days.append((4, "a", "08:30", 20))  # behind what its key has applied: quarantined
    days.append((5, "a", "10:05", 12), (6, "b", "12:05", 7)).run().update("id = 3", v="1").run().apply(RISES, HOURLY)
    days.append((7, "a", "13:05", 30), (8, "b", "18:05", 11)).run()
    assert [row[:3] for row in days.latest("rises") if row[0] == "a"] == [("a", 0, "09:05"), ("a", 1, "10:05"), ("a", 2, "13:05")]
    assert ("a", "13:00", "14:00", 1, 30) in days.latest("hourly")


@pytest.mark.parametrize(
    ("new", "first"),
    [(HOURLY, [("a", "08:00"), ("b", "08:00")]), (VISIT | {"name": "brief", "gap": "5 minutes"}, [("a", "08:00"), ("a", "08:25")])],
    ids=["hourly", "brief"],
)
def test_a_changed_spec_keeps_open_sessions_behind_a_restatement(tmp_path, new, first):
    days = Days(tmp_path, VISIT).append((1, "a", "08:00", 1), (2, "b", "08:40", 2))
    days.append((3, "a", "08:25", 3))  # of no session that is open
    days.run().update("id = 2", v="102").run().apply(VISIT, new).append((4, "b", "12:00", 4)).run()
    assert [row[:2] for row in days.latest(new["name"])[:2]] == first
    assert days.latest("visit")[:2] == [("a", "08:00", "08:30", 1, 1), ("a", "08:25", "08:55", 1, 3)]


@pytest.mark.parametrize("changed", [HOURLY, VISIT, LAST_2], ids=lambda window: window["type"])
@pytest.mark.parametrize("window", [HOURLY | {"size": "1 day"}, VISIT | {"gap": "10 hours"}, _BUCKETS], ids=lambda window: window["type"])
def test_maintenance_keeps_what_the_spec_that_runs_needs_while_the_file_has_changed(tmp_path, window, changed):
    found = []
    for folder in ("as_it_was", "changed"):
        (tmp_path / folder).mkdir()
        days = Days(tmp_path / folder, window | {"name": "w"}).append((1, "a", "01:05", 1), (2, "b", "02:05", 2))
        days.append((3, "a", "06:05", 3), (4, "b", "07:05", 4)).run()
        days.spec["windows"] = [(window if folder == "as_it_was" else changed) | {"name": "w"}]
        maintain(days.pipeline, quiet())
        days.spec["windows"] = [window | {"name": "w"}]
        days.append((5, "a", "13:05", 5), (6, "b", "26:05", 6)).run().append((7, "a", "27:05", 7), (8, "b", "47:05", 8)).run()
        found.append(days.latest("w"))
    assert found[0] == found[1] != []


def test_a_new_window_is_not_filled_from_a_slice_that_it_begins_within(tmp_path):
    day = {"name": "day", "type": "hopping", "size": "2 days", "hop": "1 day"}
    days = Days(tmp_path, day).append((1, "a", "08:05", 1), (2, "a", "09:05", 2), (3, "a", "12:05", 3)).run().apply(day, HOURLY)
    assert days.latest("hourly") == [("a", "08:00", "09:00", 1, 1), ("a", "09:00", "10:00", 1, 2)]


def test_a_changed_spec_counts_no_change_that_the_batches_have_ignored(tmp_path):
    days = Days(tmp_path, HOURLY, DAY, source={"changes": "ignore"}).append((1, "a", "08:05", 1), (2, "a", "10:05", 2))
    days.append((3, "a", "08:30", 3))  # too late for the hour
    days.run().restate(late=True).update("id = 2", v="v + 100").run().apply(HOURLY, DAY, HALF).append((4, "a", "25:05", 4)).run()
    assert days.latest("day") == [("a", "00:00", "00:00", 3, 6)]
    assert [row[4] for row in days.latest("half")] == [1, 3, 2]


def test_a_changed_spec_behind_a_restatement_that_moved_the_watermark_shows_what_has_been_shown(tmp_path):
    days = Days(tmp_path, HOURLY).append((1, "a", "08:05", 1), (2, "a", "09:05", 2)).run()
    days.merge((1, "a", "08:05", 101), (3, "b", "12:05", 3)).restate().apply(HOURLY, LAST_2)
    assert (days.latest("last_2"), days.latest("hourly")) == ([("a", 0, "08:05", 1, 101)], [("a", "08:00", "09:00", 1, 101)])
    days.run()
    assert days.latest("last_2") == [("a", 0, "08:05", 1, 101), ("a", 1, "09:05", 2, 103)]
    assert days.latest("hourly") == [("a", "08:00", "09:00", 1, 101), ("a", "09:00", "10:00", 1, 2)]


@pytest.mark.parametrize(
    ("kept", "new"),
    [
        (RISES, LAST_2),
        ({"name": "spans", "type": "snapshot"}, {"name": "pairs", "type": "count", "count": 2}),
        (VISIT, VISIT | {"name": "brief", "max_size": "40 minutes"}),
        (HOURLY | {"empty": "emit"}, HALF),
    ],
    ids=["policies", "live rows", "sessions of a gap", "empty windows"],
)
def test_a_changed_spec_whose_kept_windows_would_count_late_rows_is_refused(tmp_path, kept, new):
    days = Days(tmp_path, kept).append((1, "a", "08:05", 0), (2, "a", "09:05", 6), (3, "b", "09:30", 3))
    days.append((4, "a", "08:10", 20))  # too late
    days.append((5, "a", "10:05", 12), (6, "b", "12:05", 7)).run().update("id = 3", v="1").run()
    before, batches = days.latest(kept["name"]), Ledger.open(days.pipeline).count
    refusal = f"window {kept['name']} would continue from a state that includes rows which came too late: put the old spec back"
    with pytest.raises(UnsupportedError, match=refusal):
        days.apply(kept, new)
    days.spec["windows"] = [kept]
    assert (days.latest(kept["name"]), Ledger.open(days.pipeline).count) == (before, batches)
    days.restate(late=True).apply(kept, new).append((7, "a", "13:05", 30), (8, "b", "18:05", 11)).run()
    whole = Days(tmp_path / "whole", kept, new)
    whole.append((1, "a", "08:05", 0), (2, "a", "09:05", 6), (3, "b", "09:30", 1), (4, "a", "08:10", 20), (5, "a", "10:05", 12))
    whole.append((6, "b", "12:05", 7), (7, "a", "13:05", 30), (8, "b", "18:05", 11))
    whole.run()
    assert [days.latest(window["name"]) for window in (kept, new)] == [whole.latest(window["name"]) for window in (kept, new)]


def test_a_changed_spec_whose_kept_windows_would_count_rows_that_missed_them_behind_an_earlier_change_is_refused(tmp_path):
    ticks = {"name": "ticks", "type": "sliding", "evict": {"count": 2}, "trigger": {"time": "1 hour"}}
    days = Days(tmp_path, RISES).append((1, "a", "08:05", 0), (2, "b", "12:05", 1))
    days.append((3, "a", "10:05", 9))  # in time for its key's tuples, but not for the ticks that have passed
    days.run().apply(ticks).update("id = 2", v="2").run()
    with pytest.raises(UnsupportedError, match="restate --late"):
        days.apply(ticks, RISES)
    days.spec["windows"] = [ticks]
    days.restate(late=True).apply(ticks, RISES).append((4, "b", "13:35", 4)).run()
    assert [row[-1] for row in days.latest("ticks") if row[0] == "a"][:3] == [0, 0, 9]


def test_a_changed_spec_whose_kept_windows_would_count_ignored_changes_is_refused(tmp_path):
    days = Days(tmp_path, DAY, source={"changes": "ignore"}).append((1, "a", "08:05", 1), (2, "b", "10:05", 2)).run()
    days.update("id = 1", v="v + 100").update("id = 2", v="v + 10").run().restate(changed=(2, 2))
    with pytest.raises(
        UnsupportedError, match=r"window day .* the changes of version 1 \(UPDATE\), .* `windowmill restate --from BEGIN` to count them"
    ):
        days.apply(DAY, HALF)
    days.spec["windows"] = [DAY]
    days.append((3, "b", "25:05", 3)).run()
    assert days.latest("day") == [("a", "00:00", "00:00", 1, 1), ("b", "00:00", "00:00", 1, 12)]
    days.restate(ends=(BEGIN, None)).apply(DAY, HALF)
    assert days.latest("day")[0] == ("a", "00:00", "00:00", 1, 101)
    assert [row[4] for row in days.latest("half")] == [101, 12]


@pytest.mark.parametrize("others", [False, True], ids=["deletion alone", "another change"])
def test_a_changed_spec_behind_a_purge_counts_no_change_that_the_batches_have_ignored(tmp_path, others):
    days = Days(tmp_path, HOURLY, source={"changes": "ignore"})
    days.append((1, "a", "08:05", 1), (2, "b", "08:10", 2), (3, "a", "12:05", 3)).run()
    if others:
        days.update("id = 1", v="v + 100")
    days.delete("k = 'b'").run()
    purging.purge(days.pipeline, quiet(), [{"k": "b"}])
    if others:
        refusal = (
            r"batch \d has purged keys, .* including the changes of version 1 \(UPDATE\), which no batch has counted: put the old spec back"
        )
        with pytest.raises(UnsupportedError, match=refusal):
            days.apply(HOURLY, LAST_2)
        days.spec["windows"] = [HOURLY]
        assert days.latest("hourly") == [("a", "08:00", "09:00", 1, 1)]
        days.restate(ends=(BEGIN, None)).update("id = 1", v="v + 1000").run()
    days.apply(HOURLY, LAST_2)
    total = 101 if others else 1
    assert (days.latest("hourly"), days.latest("last_2")) == ([("a", "08:00", "09:00", 1, total)], [("a", 0, "08:05", 1, total)])


def test_a_correction_leaves_rows_of_a_window_that_a_variable_has_changed_since(tmp_path):
    """As where the spec itself has changed."""
    by_variable = HOURLY | {"size": "${LENGTH}"}
    days = Days(tmp_path, by_variable)
    days.environment = {"LENGTH": "1 hour"}
    days.append((1, "a", "08:05", 10), (2, "a", "08:35", 20), (3, "a", "12:05", 30)).run()
    days.environment = {"LENGTH": "30 minutes"}
    days.apply(by_variable, history=None).append((4, "a", "14:05", 3)).update("id = 1", v="100").run()
    assert days.latest("hourly") == [("a", "08:00", "09:00", 2, 30), ("a", "12:00", "12:30", 1, 30)]


def test_triggers_that_a_variable_has_changed_are_replaced_as_a_whole_or_the_changed_spec_is_refused(tmp_path):
    by_variable = LAST_2 | {"evict": {"time": "${LENGTH}"}}
    days = Days(tmp_path, by_variable)
    days.environment = {"LENGTH": "1 hour"}
    days.append((1, "a", "08:05", 10), (2, "a", "08:40", 20), (3, "a", "12:05", 30)).run()
    days.environment = {"LENGTH": "30 minutes"}
    with pytest.raises(UnsupportedError, match="new ones would reuse their numbers"):
        days.apply(by_variable, history=None)
    days.spec["expectations"] = UNMET
    with pytest.raises(HeldError, match=r"`windowmill release` or `windowmill abandon` it"):
        days.apply(by_variable)


of_each_layout = pytest.mark.parametrize("added", [HOURLY, VISIT, SNAP], ids=["slices", "sessions", "live rows"])


@of_each_layout
def test_state_without_rows_has_the_columns_of_a_changed_spec(tmp_path, added):
    days = Days(tmp_path, LAST_2).append((1, "a", "08:05", 1), (2, "a", "08:10", 2)).run().delete().restate()
    days.apply(LAST_2, added, history=None)
    assert [days.command(name) for name in ("maintain", "state")] == [0, 0]
    days.append((3, "a", "10:05", 3), (4, "a", "14:00", 3)).run()
    assert days.latest("last_2") == [("a", 0, "10:05", 1, 3)]


@of_each_layout
def test_state_without_rows_has_the_columns_of_a_spec_that_a_restoration_brings_back(tmp_path, added):
    """The savepoint is older than the table of the state, which a batch of another spec has made."""
    days = Days(tmp_path, added, source={"filter": "v > 0"}).append((1, "a", "08:05", 0)).run()
    maintenance_batches.create(days.pipeline, quiet(), "first")
    days.apply(LAST_2, history=None).append((2, "a", "08:10", 2)).run()
    days.spec["windows"] = [added]
    maintenance_batches.restore(days.pipeline, quiet(), "first")
    assert [days.command(name) for name in ("maintain", "state")] == [0, 0]
    days.run().backfill()
    assert days.verified()[1] == []


def test_a_restoration_to_columns_that_have_another_type_since_is_refused(tmp_path):
    days = Days(tmp_path, HOURLY).append((1, "a", "08:05", 1)).run()
    maintenance_batches.create(days.pipeline, quiet(), "first")
    entry = replace(savepoints_in(Places.of(days.pipeline).savepoints)[0]["first"], schema=None, files={})
    state, schema = Places.of(days.pipeline).state, Ledger.open(days.pipeline).newest.plan.source_schema
    columns = maintenance_batches._emptied_schema(state, entry, days.pipeline, schema)
    assert columns == pa.schema(DeltaTable(state).schema().to_arrow())
    other = columns.set(columns.get_field_index("rows"), pa.field("ROWS", pa.string()))
    write_deltalake(tmp_path / "other", other.empty_table())
    with pytest.raises(SavepointError, match=r"savepoint first: the column rows of the state .* is of type string since, and was int64"):
        maintenance_batches._emptied_schema(str(tmp_path / "other"), entry, days.pipeline, schema)


@pytest.mark.parametrize("key", [None, "k=a"])
def test_slices_of_a_spec_without_nodes_are_shown_where_another_spec_has_had_nodes(tmp_path, key, capsys):
    long = {"name": "long", "type": "hopping", "size": "1 day", "hop": "5 minutes"}
    days = Days(tmp_path, HOURLY, long).append((1, "a", "08:05", 1), (2, "a", "08:10", 2)).run().apply(HOURLY, history=None)
    days.append((3, "a", "08:20", 3)).run()
    capsys.readouterr()
    assert days.command("state", "--json", *([] if key is None else ["--key", key])) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["layouts"]["slices"]["entries_needed"] > 0
    assert key is None or sum(entry["row"]["rows"] for entry in answer["entries"]["slices"]) == 3


def test_a_policy_over_a_column_that_the_source_lacks_is_refused_by_apply_as_by_run(tmp_path):
    days = Days(tmp_path, HOURLY).append((1, "a", "08:05", 1)).run()
    rises = RISES | {"trigger": {"delta": {"column": "nosuch", "by": 5}}}
    with pytest.raises(SourceSchemaError, match=r"windows.1.trigger.delta.column: .* has no column 'nosuch'"):
        days.apply(HOURLY, rises)


@pytest.mark.parametrize("key", ["_level", "_gap", "_Slice"])
def test_a_key_that_is_named_as_a_column_of_any_state_is_refused(tmp_path, key):
    write_deltalake(tmp_path / "source", pa.table({key: ["a"], "t": pa.array([at("08:05")], pa.timestamp("us", "UTC")), "v": [1]}))
    with pytest.raises(SpecError, match=f"keys: '{key}' is taken by a column of the state"):
        loop.run(parse_pipeline(a_spec(tmp_path, keys=[key], windows=[LAST_2])), quiet())


def test_a_key_of_live_rows_is_shown_by_its_name_in_the_source(tmp_path, capsys):
    times = pa.array([at("08:05"), at("08:10")], pa.timestamp("us", "UTC"))
    write_deltalake(tmp_path / "source", pa.table({"_id": ["a", "b"], "t": times, "v": [1, 2]}))
    days = Days(tmp_path, SNAP, keys=["_id"], aggregates={"n": {"count": "*"}})
    del days.spec["time"]["tie_break"]
    assert days.command("run") == 0
    capsys.readouterr()
    assert days.command("state", "--key", "_id=b", "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["key"] == {"_id": "b"}
    assert [entry["row"]["_kind"] for entry in answer["entries"]["live rows"]] == ["row", "key"]
