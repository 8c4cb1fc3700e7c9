"""A changed spec is applied: the tables are those of a rebuild, now and after later runs. No Spark."""

from __future__ import annotations

import io
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import time_ns
from types import SimpleNamespace
from typing import Any

import pytest
from deltalake import DeltaTable
from rich.console import Console

from tests.faults.dying import DiedError, arm
from tests.spark.harness import AGGREGATES, BASE, MINUTE, TIME, Bench, Row, differences, events, quiet
from windowmill.checkpoints import failpoints
from windowmill.checkpoints.ledger import Ledger
from windowmill.jobs.batch import applying, loop, planning
from windowmill.jobs.batch.progress import Progress
from windowmill.windowing.axis import AXIS_BEGIN, DAY_US
from windowmill.windowing.errors import (
    CodeChangedError,
    ForeignWriteError,
    HeldError,
    OutOfTurnError,
    SpecChangedError,
    SpecError,
    UnsupportedError,
)

SLOTS = {"name": "slots", "type": "tumbling", "size": "10 minutes"}
ROLLING = {"name": "rolling", "type": "hopping", "size": "47 minutes", "hop": "7 minutes"}
VISITS = {"name": "visits", "type": "session", "gap": "9 minutes"}
LAST_FIVE = {"name": "last_five", "type": "sliding", "evict": {"count": 5}, "trigger": {"count": 2}}
BAND = {"name": "band", "type": "sliding", "evict": {"delta": {"column": "v", "by": 30}}, "trigger": {"count": 3}}
SPANS = {"name": "spans", "type": "snapshot"}
FEW = {name: AGGREGATES[name] for name in ("n", "total", "low")}
ROWS = events(93, 400)
#: Where a batch may die: before its record, and between the commits that follow from it.
PLACES = ("compute.begin", "batch.before", "batch.after", "sink.before", "sink.after", "state.before", "state.after")

#: Kinds of changes: the spec before and after.
CHANGES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "a grid added": ({"windows": [SLOTS]}, {"windows": [SLOTS, ROLLING]}),
    "a grid dropped": ({"windows": [SLOTS, ROLLING]}, {"windows": [ROLLING]}),
    "a size changed": ({"windows": [SLOTS, ROLLING]}, {"windows": [SLOTS | {"size": "15 minutes"}, ROLLING]}),
    "sessions added": ({"windows": [SLOTS]}, {"windows": [SLOTS, VISITS]}),
    "a gap changed": ({"windows": [VISITS]}, {"windows": [VISITS | {"gap": "4 minutes"}]}),
    "policies added": ({"windows": [SLOTS]}, {"windows": [LAST_FIVE, BAND, SLOTS]}),
    "an eviction changed": ({"windows": [LAST_FIVE]}, {"windows": [LAST_FIVE | {"evict": {"count": 3}}]}),
    "live rows added": ({"windows": [SLOTS]}, {"windows": [SLOTS, SPANS]}),
    "live rows in place of sessions": ({"windows": [VISITS]}, {"windows": [SPANS]}),
    "policies dropped beside live rows": ({"windows": [LAST_FIVE, SPANS]}, {"windows": [SPANS]}),
    "live rows dropped beside policies": ({"windows": [LAST_FIVE, SPANS]}, {"windows": [LAST_FIVE]}),
    "an aggregate added": ({"windows": [SLOTS, VISITS, LAST_FIVE]}, {"aggregates": FEW | {"spread": AGGREGATES["spread"]}}),
    "an aggregate that keeps live rows": ({"windows": [SLOTS]}, {"aggregates": FEW | {"closing": AGGREGATES["closing"]}}),
    "an aggregate dropped": ({"windows": [SLOTS, VISITS]}, {"aggregates": {"n": FEW["n"], "low": FEW["low"]}}),
    "arguments changed": ({"windows": [SLOTS, BAND]}, {"aggregates": FEW | {"total": {"sum": "v", "where": "v > 50"}}}),
    "all at once": (
        {"windows": [SLOTS, VISITS]},
        {"windows": [ROLLING, SLOTS | {"size": "5 minutes"}], "aggregates": {"n": FEW["n"], "big": AGGREGATES["big"]}},
    ),
}


def bench_of(folder: Path, changes: dict[str, Any]) -> Bench:
    folder.mkdir(exist_ok=True)
    return Bench(folder, {"aggregates": FEW} | changes)


pytestmark = pytest.mark.local


def apply(bench: Bench, changes: dict[str, Any], *, history: int | None = AXIS_BEGIN) -> Any:
    bench.changes = bench.changes | changes
    return loop.apply(bench.pipeline, quiet(), history=history)


def run_and_apply(bench: Bench, after: dict[str, Any], rows: list[Row]) -> tuple[list[Row], Any]:
    """Two runs, the change, and two more runs; returns the rows before the change, and the batch that made it."""
    quarter = len(rows) // 4
    for n in range(2):
        bench.land(rows[n * quarter : (n + 1) * quarter])
        bench.run()
    before = bench.rows()
    done = apply(bench, after)
    assert differences(of(bench, bench.rows()), bench.expected(rows[: 2 * quarter]).rows) == []
    for n in range(2, 4):
        bench.land(rows[n * quarter : (n + 1) * quarter])
        bench.run()
    return before, done


def of(bench: Bench, rows: list[Row]) -> list[Row]:
    """The rows of windows that the spec has."""
    names = {window["name"] for window in bench.spec["windows"]}
    return [row for row in rows if row["window"] in names]


#: Changes of pipelines that revise.
REVISED = ("a grid added", "a gap changed", "an aggregate added", "all at once")


@pytest.mark.parametrize(("kind", "emit"), [*((kind, "final") for kind in CHANGES), *((kind, "revise") for kind in REVISED)])
def test_a_changed_spec_gives_the_tables_of_a_rebuild(tmp_path, kind, emit):
    before, after = CHANGES[kind]
    bench = bench_of(tmp_path / "b", before | {"emit": emit})
    dropped, done = run_and_apply(bench, after, ROWS)
    assert (done.plan.action, done.plan.batch) == ("apply", 2)
    assert differences(of(bench, bench.rows()), bench.expected(ROWS).rows) == []
    # What is no longer in the spec stays as it was published.
    names = {window["name"] for window in bench.spec["windows"]}
    left = [row for row in bench.rows() if row["window"] not in names]
    assert differences(left, [row for row in dropped if row["window"] not in names]) == []


def grown(folder: Path, **changes: Any) -> Bench:
    """A pipeline after two runs."""
    bench = bench_of(folder, {"windows": [SLOTS, VISITS]} | changes)
    for n in range(2):
        bench.land(ROWS[n * 100 : (n + 1) * 100])
        bench.run()
    return bench


def test_a_run_says_what_has_changed_and_refuses_until_it_is_applied(tmp_path, prepared):
    bench, said = prepared.copy(tmp_path / "b", grown), io.StringIO()
    before = bench.rows()
    bench.changes |= {"windows": [SLOTS, ROLLING]}
    with pytest.raises(SpecChangedError, match=r"`windowmill plan SPEC`, and carry it out by `windowmill apply SPEC`") as refused:
        loop.run(bench.pipeline, Progress(Console(file=said)))
    assert refused.value.exit_code == 2
    assert said.getvalue().splitlines() == ["  window rolling: filled: new", "  window visits: dropped: no longer in the spec"]
    assert differences(bench.rows(), before) == []
    apply(bench, {})
    assert bench.run() == []
    bench.changes |= {"windows": [SLOTS, VISITS]}
    with pytest.raises(SpecChangedError, match=r"windows\.rolling was .* and is not given"):
        bench.run()


def test_only_windows_after_the_instant_asked_for_are_filled(tmp_path, prepared):
    bench = prepared.copy(tmp_path / "b", grown)
    before = bench.rows()
    middle = sorted(row["window_end"] for row in before)[len(before) // 2]
    done = apply(bench, {"windows": [SLOTS, ROLLING], "aggregates": FEW | {"spread": AGGREGATES["spread"]}}, history=middle)
    wanted = bench.expected(ROWS[:200]).rows
    found = of(bench, bench.rows())
    assert differences([row for row in found if row["window_end"] > middle], [row for row in wanted if row["window_end"] > middle]) == []
    old = [row for row in found if row["window_end"] <= middle]
    assert differences(old, [row for row in before if row["window_end"] <= middle and row["window"] == "slots"]) == []
    assert {row["spread"] for row in old} == {None}
    assert done.outcome.counts.rows_published == len(found) - len(old)
    visits = ([row for row in rows if row["window"] == "visits"] for rows in (bench.rows(), before))
    assert differences(*visits) == []


def test_without_history_rows_begin_with_the_next_window(tmp_path, prepared):
    bench = prepared.copy(tmp_path / "b", grown)
    before, emitted = bench.rows(), Ledger.open(bench.pipeline).newest.outcome.emitted
    done = apply(bench, {"windows": [SLOTS, ROLLING], "aggregates": {"n": FEW["n"], "high": AGGREGATES["high"]}}, history=None)
    assert done.outcome.counts.rows_published == 0
    assert differences(bench.rows(), before) == []
    bench.land(ROWS[200:])
    bench.run()
    new, wanted = ([row for row in rows if row["window_end"] > emitted] for rows in (of(bench, bench.rows()), bench.expected(ROWS).rows))
    assert differences(new, wanted) == []


def test_a_window_that_was_dropped_may_come_back(tmp_path, prepared):
    bench = prepared.copy(tmp_path / "b", grown)
    apply(bench, {"windows": [SLOTS]})
    bench.land(ROWS[200:300])
    bench.run()
    apply(bench, {"windows": [VISITS, SLOTS]})
    bench.land(ROWS[300:])
    bench.run()
    assert differences(bench.rows(), bench.expected(ROWS).rows) == []


def test_the_order_of_windows_and_of_aggregates_plans_nothing(tmp_path, prepared):
    bench = prepared.copy(tmp_path / "b", grown)
    assert apply(bench, {"windows": [VISITS, SLOTS], "aggregates": dict(reversed(FEW.items())), "schedule": "@daily"}) is None
    bench.land(ROWS[200:])
    bench.run()
    assert differences(bench.rows(), bench.expected(ROWS).rows) == []


@pytest.mark.parametrize(
    "changes",
    [{"keys": ["k"]}, {"emit": "revise"}, {"time": TIME | {"lateness": "1 hour"}}, {"source": {"path": "SOURCE", "filter": "v > 1"}}],
)
def test_keys_time_filter_and_emit_make_another_pipeline(tmp_path, prepared, changes):
    bench = prepared.copy(tmp_path / "b", grown)
    if "source" in changes:
        changes = {"source": changes["source"] | {"path": bench.source}}
    with pytest.raises(
        SpecChangedError, match=r"they make another pipeline: put the old ones back, or give the new definition its own sink"
    ):
        apply(bench, changes)
    assert Ledger.open(bench.pipeline).count == 2


def test_a_column_of_another_type_is_refused_before_anything_is_written(tmp_path, prepared):
    bench = prepared.copy(tmp_path / "b", grown)
    with pytest.raises(UnsupportedError, match=r"its column n is now of type long, the results have double; .* another name"):
        apply(bench, {"aggregates": FEW | {"n": {"mean": "v"}}})
    assert Ledger.open(bench.pipeline).count == 2


def test_a_run_applies_what_only_adds_if_the_spec_says_so(tmp_path, prepared):
    bench = prepared.copy(tmp_path / "b", grown, apply="auto")
    bench.changes |= {"windows": [SLOTS, VISITS, LAST_FIVE]}
    bench.land(ROWS[200:])
    assert [done.plan.action for done in bench.run()] == ["apply", "run"]
    assert differences(bench.rows(), bench.expected(ROWS).rows) == []
    bench.changes |= {"windows": [SLOTS, VISITS]}
    with pytest.raises(SpecChangedError):
        bench.run()


@pytest.mark.parametrize("place", PLACES)
def test_a_change_that_is_killed_is_finished_by_whoever_comes_next(tmp_path, prepared, place):
    bench, after = prepared.copy(tmp_path / "b", grown), {"windows": [SLOTS, ROLLING], "aggregates": FEW | {"spread": AGGREGATES["spread"]}}
    before = bench.rows()
    arm(place)
    with pytest.raises(DiedError):
        apply(bench, after)
    failpoints.disarm()
    recorded = Ledger.open(bench.pipeline).count == 3
    assert recorded == (place not in ("compute.begin", "validate.begin", "record.begin", "batch.before"))
    if not recorded:
        assert differences(bench.rows(), before) == []
        with pytest.raises(SpecChangedError):
            bench.run()
    bench.land(ROWS[200:300])
    if recorded:  # a run makes the commits that are missing
        bench.run()
    apply(bench, {})
    bench.land(ROWS[300:])
    bench.run()
    assert differences(of(bench, bench.rows()), bench.expected(ROWS).rows) == []
    assert [batch.action for batch in Ledger.open(bench.pipeline).batches()].count("apply") == 1


def test_what_the_source_no_longer_tells_in_order_is_read_in_order_of_event_time(tmp_path, prepared):
    bench = prepared.copy(tmp_path / "b", grown)
    DeltaTable(bench.source).optimize.compact()
    DeltaTable(bench.source).vacuum(0, dry_run=False, enforce_retention_duration=False)
    done = apply(bench, {"windows": [SLOTS, VISITS, ROLLING]})
    assert (done.plan.arrival, done.outcome.counts.rows_late) == ("event_time", 0)
    assert {row["window"] for row in bench.rows()} == {"slots", "visits", "rolling"}


def test_vouched_intervals_close_windows_to_the_rows_that_they_closed_them_to(tmp_path):
    time = {"column": "t", "tie_break": ["id"], "watermark": "data_interval_end", "lateness": "5 minutes"}
    ends = [datetime.fromtimestamp(BASE / 1e6, UTC) + timedelta(minutes=minutes) for minutes in (100, 220, 340, 460)]
    found = []
    for name, windows in (("changed", [SLOTS]), ("rebuilt", [SLOTS, ROLLING])):
        bench = bench_of(tmp_path / name, {"time": time, "windows": windows})
        for n, end in enumerate(ends):
            if n == 2 and name == "changed":
                apply(bench, {"windows": [SLOTS, ROLLING]})
            bench.land(ROWS[n * 100 : (n + 1) * 100])
            bench.run(interval_end=end)
        found.append(bench.rows())
    assert differences(*found) == []


def test_edited_code_is_a_change_of_what_uses_it(tmp_path, monkeypatch):
    module = tmp_path / "own_sums.py"
    code = "class Total:\n    def lift(self, v): return v\n    def combine(self, a, b): return a + b\n"
    module.write_text(f"{code}    def lower(self, total): return total\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    bench = grown(tmp_path / "b", aggregates={"n": FEW["n"], "own": {"use": "own_sums:Total", "args": ["i"]}})
    before = bench.rows()
    module.write_text(f"{code}    def lower(self, total): return total * 2\n")
    del sys.modules["own_sums"]
    bench.land(ROWS[200:])
    with pytest.raises(CodeChangedError, match="`windowmill apply SPEC` recomputes"):
        bench.run()
    changes = applying.changes_of(bench.pipeline, Ledger.open(bench.pipeline))
    assert [(each.name, each.fate) for each in changes.aggregates] == [("n", "kept"), ("own", "filled")]
    assert [each.fate for each in changes.windows] == ["kept", "kept"]
    apply(bench, {})
    doubled = [row | {"own": None if row["own"] is None else str(2 * int(row["own"]))} for row in before]
    assert differences(bench.rows(), doubled) == []
    assert apply(bench, {}) is None


def test_a_held_batch_comes_first(tmp_path, prepared):
    bench = prepared.copy(tmp_path / "b", grown)
    bench.changes |= {"expectations": [{"type": "expect_column_values_to_be_between", "column": "n", "max_value": 0}]}
    bench.land(ROWS[200:])
    with pytest.raises(HeldError):
        bench.run()
    with pytest.raises(OutOfTurnError, match="batch 2 is held; release, discard or abandon it"):
        apply(bench, {"windows": [SLOTS]})


def test_a_change_that_a_rule_holds_waits_and_may_be_abandoned(tmp_path, prepared):
    bench = prepared.copy(tmp_path / "b", grown)
    before = bench.rows()
    rule = {"type": "expect_column_values_to_be_between", "column": "big", "max_value": 0}
    with pytest.raises(HeldError):
        apply(bench, {"aggregates": FEW | {"big": AGGREGATES["big"]}, "expectations": [rule]})
    assert differences(bench.rows(), before) == []
    loop.abandon(bench.pipeline, quiet())
    bench.changes |= {"aggregates": FEW, "expectations": []}
    bench.land(ROWS[200:])
    bench.run()
    assert differences(bench.rows(), bench.expected(ROWS).rows) == []


def test_rows_that_have_been_quarantined_are_not_quarantined_again(tmp_path, prepared, monkeypatch):
    bench, now = prepared.copy(tmp_path / "b", grown), time_ns()
    bench.land([ROWS[200] | {"t": now // 1_000 + 3 * DAY_US, "id": "in the future"}, *ROWS[200:300]])
    bench.run()
    # Later on it would not be in the future.
    monkeypatch.setattr(planning, "time", SimpleNamespace(time_ns=lambda: now + 9_000 * DAY_US))
    before = bench.quarantine()
    assert {row["reason"] for row in before} == {"future_time", "null_time", "too_late"}
    done = apply(bench, {"windows": [SLOTS, VISITS, ROLLING]})
    assert bench.quarantine() == before
    assert done.outcome.counts.rows_quarantined == len(before)
    assert done.outcome.seen == Ledger.open(bench.pipeline).batches()[2].outcome.seen
    totals = Ledger.open(bench.pipeline).totals
    assert (totals.counts.rows_read, totals.counts.rows_quarantined) == (301, len(before))
    bench.land(ROWS[300:])
    bench.run()
    bench.commits = [commit for place, commit in enumerate(bench.commits) if place != 200]
    assert differences(bench.rows(), bench.expected(ROWS).rows) == []


def test_the_history_of_a_pipeline_that_began_with_a_backfill_begins_there(tmp_path):
    bench = bench_of(tmp_path / "b", {"windows": [SLOTS]})
    bench.land(ROWS[:200])
    begin = BASE + 60 * MINUTE
    loop.backfill(bench.pipeline, quiet(), begin=begin, end=BASE + 90 * MINUTE)
    bench.run()
    apply(bench, {"windows": [SLOTS, ROLLING], "aggregates": FEW | {"spread": AGGREGATES["spread"]}})
    bench.land(ROWS[200:])
    bench.run()
    wanted = [row for row in bench.expected(ROWS).rows if row["window_end"] > begin]
    assert differences(bench.rows(), wanted) == []


def test_a_spec_that_no_batch_could_execute_is_refused(tmp_path, prepared):
    bench = prepared.copy(tmp_path / "b", grown)
    rule = {"type": "expect_column_values_to_be_between", "column": "nowhere", "max_value": 0}
    with pytest.raises(SpecError, match="nowhere"):
        apply(bench, {"windows": [SLOTS], "expectations": [rule]})
    assert Ledger.open(bench.pipeline).count == 2


def test_a_change_that_a_rule_holds_may_be_released(tmp_path, prepared):
    bench = prepared.copy(tmp_path / "b", grown)
    rule = {"type": "expect_column_values_to_be_between", "column": "big", "max_value": 0}
    with pytest.raises(HeldError):
        apply(bench, {"windows": [SLOTS, ROLLING], "aggregates": FEW | {"big": AGGREGATES["big"]}, "expectations": [rule]})
    [done] = bench.run(ruling="release")
    bench.changes |= {"expectations": []}
    assert (done.plan.action, done.outcome.verdict) == ("apply", "released")
    bench.land(ROWS[200:])
    bench.run()
    assert differences(of(bench, bench.rows()), bench.expected(ROWS).rows) == []


def test_changes_by_others_are_accepted_where_asked_for(tmp_path, prepared):
    bench = prepared.copy(tmp_path / "b", grown)
    DeltaTable(bench.sink).delete("n = 1")
    with pytest.raises(ForeignWriteError):
        apply(bench, {"windows": [SLOTS, VISITS, ROLLING], "aggregates": FEW | {"big": AGGREGATES["big"]}})
    assert loop.apply(bench.pipeline, quiet(), history=AXIS_BEGIN, accept_changes=True) is not None
    assert differences(bench.rows(), bench.expected(ROWS[:200]).rows) == []
