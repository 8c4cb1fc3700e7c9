"""A changed spec is applied: the tables are those of a rebuild, now and after later runs. No Spark.

Where the stored state is enough, no row of the source is read.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import time_ns
from types import SimpleNamespace
from typing import Any

import pytest
from deltalake import DeltaTable
from rich.console import Console

from tests.faults.dying import DiedError, arm
from tests.matrices import EVERY
from tests.spark.harness import AGGREGATES, BASE, MINUTE, TIME, Bench, Row, differences, events, quiet
from windowmill.checkpoints import failpoints
from windowmill.checkpoints.ledger import Ledger
from windowmill.jobs.batch import applying, loop, planning
from windowmill.jobs.batch.progress import Progress
from windowmill.jobs.commands.maintenance_command import maintain
from windowmill.jobs.layouts.carried import NotStoredError
from windowmill.jobs.runnables import runnable_of
from windowmill.windowing import errors
from windowmill.windowing.axis import AXIS_BEGIN, DAY_US
from windowmill.windowing.errors import HeldError, SpecChangedError

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
    "a size changed": ({"windows": [SLOTS, ROLLING]}, {"windows": [SLOTS | {"size": "15 minutes"}, ROLLING]}),
    "sessions added": ({"windows": [SLOTS]}, {"windows": [SLOTS, VISITS]}),
    "a gap changed beside sessions of a greatest size": (
        {"windows": [VISITS, VISITS | {"name": "brief", "gap": "3 minutes"}, VISITS | {"name": "cut", "max_size": "1 hour"}]},
        {"windows": [VISITS, VISITS | {"name": "brief", "gap": "4 minutes"}, VISITS | {"name": "cut", "max_size": "1 hour"}]},
    ),
    "a gap changed": ({"windows": [VISITS]}, {"windows": [VISITS | {"gap": "4 minutes"}]}),
    "policies added": ({"windows": [SLOTS]}, {"windows": [LAST_FIVE, BAND, SLOTS]}),
    "an eviction changed": ({"windows": [LAST_FIVE]}, {"windows": [LAST_FIVE | {"evict": {"count": 3}}]}),
    "live rows added": ({"windows": [SLOTS]}, {"windows": [SLOTS, SPANS]}),
    "live rows in place of sessions": ({"windows": [VISITS]}, {"windows": [SPANS]}),
    "an aggregate added": ({"windows": [SLOTS, VISITS, LAST_FIVE]}, {"aggregates": FEW | {"spread": AGGREGATES["spread"]}}),
    "an aggregate that keeps live rows": ({"windows": [SLOTS]}, {"aggregates": FEW | {"closing": AGGREGATES["closing"]}}),
    "arguments changed": ({"windows": [SLOTS, BAND]}, {"aggregates": FEW | {"total": {"sum": "v", "where": "v > 50"}}}),
    "all at once": (
        {"windows": [SLOTS, VISITS]},
        {"windows": [ROLLING, SLOTS | {"size": "5 minutes"}], "aggregates": {"n": FEW["n"], "big": AGGREGATES["big"]}},
    ),
}


pytestmark = pytest.mark.local


def bench_of(folder: Path, changes: dict[str, Any]) -> Bench:
    folder.mkdir(exist_ok=True)
    return Bench(folder, {"aggregates": FEW} | changes)


def go_on(bench: Bench, rows: list[Row] = ROWS, runs: int = 1) -> None:
    """As many runs over those of ``rows`` that have not landed yet."""
    begin = len(bench.commits)
    for n in range(runs):
        bench.land(rows[begin + n * (len(rows) - begin) // runs : begin + (n + 1) * (len(rows) - begin) // runs]).run()


def grown(changes: dict[str, Any], rows: list[Row] = ROWS, *, folder: Path) -> Bench:
    """A pipeline after two runs over half of ``rows``."""
    bench = bench_of(folder, changes)
    go_on(bench, rows[: len(rows) // 2], 2)
    return bench


@pytest.fixture
def bench(tmp_path, prepared) -> Bench:
    """A pipeline after two runs."""
    return prepared.copy(tmp_path / "b", grown, {"windows": [SLOTS, VISITS]})


def apply(bench: Bench, changes: dict[str, Any], *, history: int | None = AXIS_BEGIN) -> Any:
    bench.changes = bench.changes | changes
    return loop.apply(bench.pipeline, quiet(), history=history)


def of(bench: Bench, rows: list[Row]) -> list[Row]:
    """The rows of windows that the spec has."""
    names = {window["name"] for window in bench.spec["windows"]}
    return [row for row in rows if row["window"] in names]


def check(bench: Bench, rows: list[Row] = ROWS, *, after: int | None = None) -> None:
    """Compare the sink's rows of windows of the spec, that end ``after`` an instant, with those of a rebuild."""
    found, wanted = of(bench, bench.rows()), bench.expected(rows).rows
    if after is not None:
        found, wanted = ([row for row in each if row["window_end"] > after] for each in (found, wanted))
    assert differences(found, wanted) == []


def finish(bench: Bench) -> None:
    go_on(bench)
    check(bench)


#: Changes of pipelines that revise.
REVISED = ("a grid added", "a gap changed", "a gap changed beside sessions of a greatest size", "an aggregate added", "all at once")
WITH_SPREAD = {"aggregates": FEW | {"spread": AGGREGATES["spread"]}}


def rule(column: str) -> dict[str, Any]:
    return {"type": "expect_column_values_to_be_between", "column": column, "max_value": 0}


@pytest.mark.parametrize(("kind", "emit"), [*((kind, "final") for kind in CHANGES), *((kind, "revise") for kind in REVISED)])
def test_a_changed_spec_gives_the_tables_of_a_rebuild(tmp_path, kind, emit):
    before, after = CHANGES[kind]
    bench = grown(before | {"emit": emit}, folder=tmp_path / "b")
    dropped, done = bench.rows(), apply(bench, after)
    assert (done.plan.action, done.plan.batch) == ("apply", 2)
    check(bench, ROWS[:200])
    go_on(bench, runs=2)
    check(bench)
    # What is no longer in the spec stays as it was published.
    names = {window["name"] for window in bench.spec["windows"]}
    assert differences(*([row for row in rows if row["window"] not in names] for rows in (bench.rows(), dropped))) == []


def test_a_run_says_what_has_changed_and_refuses_until_it_is_applied(bench):
    before, said = bench.rows(), io.StringIO()
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


def test_only_windows_after_the_instant_asked_for_are_filled(bench):
    before = bench.rows()
    middle = sorted(row["window_end"] for row in before)[len(before) // 2]
    done = apply(bench, {"windows": [SLOTS, ROLLING]} | WITH_SPREAD, history=middle)
    check(bench, ROWS[:200], after=middle)
    found = of(bench, bench.rows())
    old = [row for row in found if row["window_end"] <= middle]
    assert differences(old, [row for row in before if row["window_end"] <= middle and row["window"] == "slots"]) == []
    assert {row["spread"] for row in old} == {None}
    assert done.outcome.counts.rows_published == len(found) - len(old)
    visits = ([row for row in rows if row["window"] == "visits"] for rows in (bench.rows(), before))
    assert differences(*visits) == []


def test_without_history_rows_begin_with_the_next_window(bench):
    before, emitted = bench.rows(), Ledger.open(bench.pipeline).newest.outcome.emitted
    done = apply(bench, {"windows": [SLOTS, ROLLING], "aggregates": {"n": FEW["n"], "high": AGGREGATES["high"]}}, history=None)
    assert (done.outcome.counts.rows_published, differences(bench.rows(), before)) == (0, [])
    go_on(bench)
    check(bench, after=emitted)


def test_a_window_that_was_dropped_may_come_back(bench):
    apply(bench, {"windows": [SLOTS]})
    go_on(bench, ROWS[:300])
    apply(bench, {"windows": [VISITS, SLOTS]})
    finish(bench)


def test_the_order_of_windows_and_of_aggregates_plans_nothing(bench):
    assert apply(bench, {"windows": [VISITS, SLOTS], "aggregates": dict(reversed(FEW.items())), "schedule": "@daily"}) is None
    finish(bench)


ANOTHER = (SpecChangedError, r"they make another pipeline: put the old ones back, or give the new definition its own sink")


@pytest.mark.parametrize(
    ("changes", "refusal"),
    [
        ({"keys": ["k"]}, ANOTHER),
        ({"time": TIME | {"tie_break": ["v"]}}, ANOTHER),
        (
            {"aggregates": FEW | {"n": {"mean": "v"}}},
            (errors.UnsupportedError, r"its column n is now of type long, the results have double; .* another name"),
        ),
        ({"windows": [SLOTS], "expectations": [rule("nowhere")]}, (errors.SpecError, "nowhere")),
    ],
    ids=lambda given: next(iter(given)) if isinstance(given, dict) else "",
)
def test_what_makes_another_pipeline_or_no_batch_could_execute_is_refused_before_anything_is_written(bench, changes, refusal):
    with pytest.raises(refusal[0], match=refusal[1]):
        apply(bench, changes)
    assert Ledger.open(bench.pipeline).count == 2


def test_a_run_applies_what_only_adds_if_the_spec_says_so(tmp_path):
    bench = grown({"windows": [SLOTS, VISITS], "apply": "auto"}, folder=tmp_path / "b")
    bench.changes |= {"windows": [SLOTS, VISITS, LAST_FIVE]}
    bench.land(ROWS[200:])
    assert [done.plan.action for done in bench.run()] == ["apply", "run"]
    check(bench)
    bench.changes |= {"windows": [SLOTS, VISITS]}
    with pytest.raises(SpecChangedError):
        bench.run()


@pytest.mark.parametrize("place", PLACES)
def test_a_change_that_is_killed_is_finished_by_whoever_comes_next(bench, place):
    before = bench.rows()
    arm(place)
    with pytest.raises(DiedError):
        apply(bench, {"windows": [SLOTS, ROLLING]} | WITH_SPREAD)
    failpoints.disarm()
    recorded = Ledger.open(bench.pipeline).count == 3
    assert recorded == (place not in ("compute.begin", "batch.before"))
    if not recorded:
        assert differences(bench.rows(), before) == []
        with pytest.raises(SpecChangedError):
            bench.run()
    bench.land(ROWS[200:300])
    if recorded:  # a run makes the commits that are missing
        bench.run()
    apply(bench, {})
    finish(bench)
    assert [batch.action for batch in Ledger.open(bench.pipeline).batches()].count("apply") == 1


def test_what_the_source_no_longer_tells_in_order_is_read_in_order_of_event_time(bench):
    DeltaTable(bench.source).optimize.compact()
    DeltaTable(bench.source).vacuum(0, dry_run=False, enforce_retention_duration=False)
    done = apply(bench, {"windows": [SLOTS, VISITS, ROLLING]})
    assert (done.plan.arrival, done.outcome.counts.rows_late) == ("event_time", 0)
    assert {row["window"] for row in bench.rows()} == {"slots", "visits", "rolling"}


def test_vouched_intervals_close_windows_to_the_rows_that_they_closed_them_to(tmp_path):
    time = {"column": "t", "tie_break": ["id"], "watermark": "data_interval_end", "lateness": "5 minutes"}
    found = []
    for name, windows in (("changed", [SLOTS]), ("rebuilt", [SLOTS, ROLLING])):
        bench = bench_of(tmp_path / name, {"time": time, "windows": windows})
        for n, minutes in enumerate((100, 220, 340, 460)):
            if n == 2 and name == "changed":
                apply(bench, {"windows": [SLOTS, ROLLING]})
            bench.land(ROWS[n * 100 : (n + 1) * 100]).run(interval_end=datetime.fromtimestamp(BASE / 1e6, UTC) + timedelta(minutes=minutes))
        found.append(bench.rows())
    assert differences(*found) == []


def test_edited_code_is_a_change_of_what_uses_it(tmp_path, monkeypatch):
    module = tmp_path / "own_sums.py"
    code = "class Total:\n    def lift(self, v): return v\n    def combine(self, a, b): return a + b\n"
    module.write_text(f"{code}    def lower(self, total): return total\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    own = {"n": FEW["n"], "own": {"use": "own_sums:Total", "args": ["i"]}}
    bench = grown({"windows": [SLOTS, VISITS], "aggregates": own}, folder=tmp_path / "b")
    before = bench.rows()
    module.write_text(f"{code}    def lower(self, total): return total * 2\n")
    del sys.modules["own_sums"]
    bench.land(ROWS[200:])
    with pytest.raises(errors.CodeChangedError, match="`windowmill apply SPEC` recomputes"):
        bench.run()
    changes = applying.changes_of(bench.pipeline, Ledger.open(bench.pipeline))
    assert [(each.name, each.fate) for each in changes.aggregates] == [("n", "kept"), ("own", "filled")]
    assert [each.fate for each in changes.windows] == ["kept", "kept"]
    apply(bench, {})
    doubled = [row | {"own": None if row["own"] is None else str(2 * int(row["own"]))} for row in before]
    assert differences(bench.rows(), doubled) == []
    assert apply(bench, {}) is None


def test_a_held_batch_comes_first(bench):
    bench.changes |= {"expectations": [rule("n")]}
    bench.land(ROWS[200:])
    with pytest.raises(HeldError):
        bench.run()
    with pytest.raises(errors.OutOfTurnError, match="batch 2 is held; release, discard or abandon it"):
        apply(bench, {"windows": [SLOTS]})


@pytest.mark.parametrize("ruling", ["abandon", "release"])
def test_a_change_that_a_rule_holds_waits_for_a_ruling(bench, ruling):
    before, definition = bench.rows(), {name: bench.spec[name] for name in ("windows", "aggregates")}
    with pytest.raises(HeldError):
        apply(bench, {"windows": [SLOTS, ROLLING], "aggregates": FEW | {"big": AGGREGATES["big"]}, "expectations": [rule("big")]})
    assert differences(bench.rows(), before) == []
    if ruling == "abandon":
        loop.abandon(bench.pipeline, quiet())
        bench.changes |= definition
    else:
        [done] = bench.run(ruling="release")
        assert (done.plan.action, done.outcome.verdict) == ("apply", "released")
    bench.changes |= {"expectations": []}
    finish(bench)


def test_rows_that_have_been_quarantined_are_not_quarantined_again(bench, monkeypatch):
    now = time_ns()
    bench.land([ROWS[200] | {"t": now // 1_000 + 3 * DAY_US, "id": "in the future"}, *ROWS[200:300]]).run()
    # Later on it would not be in the future.
    monkeypatch.setattr(planning, "time", SimpleNamespace(time_ns=lambda: now + 9_000 * DAY_US))
    before = bench.quarantine()
    assert {row["reason"] for row in before} == {"future_time", "null_time", "too_late"}
    done = apply(bench, {"windows": [SLOTS, VISITS, ROLLING]})
    assert (bench.quarantine(), done.outcome.counts.rows_quarantined) == (before, len(before))
    assert done.outcome.seen == Ledger.open(bench.pipeline).batches()[2].outcome.seen
    totals = Ledger.open(bench.pipeline).totals
    assert (totals.counts.rows_read, totals.counts.rows_quarantined) == (301, len(before))
    del bench.commits[200]
    finish(bench)


def test_the_history_of_a_pipeline_that_began_with_a_backfill_begins_there(tmp_path):
    bench = bench_of(tmp_path / "b", {"windows": [SLOTS]})
    bench.land(ROWS[:200])
    begin = BASE + 60 * MINUTE
    loop.backfill(bench.pipeline, quiet(), begin=begin, end=BASE + 90 * MINUTE)
    bench.run()
    apply(bench, {"windows": [SLOTS, ROLLING]} | WITH_SPREAD)
    go_on(bench)
    wanted = [row for row in bench.expected(ROWS).rows if row["window_end"] > begin]
    assert differences(bench.rows(), wanted) == []


def test_changes_by_others_are_accepted_where_asked_for(bench):
    DeltaTable(bench.sink).delete("n = 1")
    with pytest.raises(errors.ForeignWriteError):
        apply(bench, {"windows": [SLOTS, VISITS, ROLLING], "aggregates": FEW | {"big": AGGREGATES["big"]}})
    assert loop.apply(bench.pipeline, quiet(), history=AXIS_BEGIN, accept_changes=True) is not None
    check(bench, ROWS[:200])


# -- From the stored state

FIVES = {"name": "fives", "type": "tumbling", "size": "5 minutes"}
HOURS = {"name": "hours", "type": "tumbling", "size": "1 hour"}
DAY = {"name": "day", "type": "hopping", "size": "6 hours", "hop": "5 minutes"}
GROWING = {"name": "growing", "type": "cumulative", "size": "1 hour", "step": "10 minutes"}
LOCAL = {"name": "local", "type": "hopping", "size": "2 hours", "hop": "1 hour", "timezone": "Europe/Berlin"}
#: Long enough for nodes over its slices.
LONG = {"name": "long", "type": "hopping", "size": "11 hours", "hop": "5 minutes"}
SEVEN = {"name": "seven", "type": "tumbling", "evict": {"count": 7}}
COUNTED = {"name": "counted", "type": "count", "count": 3}
SUMS = FEW | {"nv": AGGREGATES["nv"]}
OBJECTS = {
    "middle": {"quantile": {"column": "v", "q": 0.5}},
    "kinds": {"count_distinct": "label"},
    "opening": AGGREGATES["opening"],
    "every": {"collect": "i"},
}
#: The rows of the last hours are all stored, as far as windows have not dropped them.
RECENT = 180 * MINUTE

#: Changes that the state alone carries out, whatever history is asked for: the spec before and after.
NOTHING_NEW: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "a grid dropped": ({"windows": [FIVES, DAY, HOURS]}, {"windows": [FIVES, HOURS]}),
    "the finest grid dropped": ({"windows": [FIVES, DAY, HOURS]}, {"windows": [HOURS]}),
    "nodes dropped": ({"windows": [FIVES, LONG]}, {"windows": [FIVES]}),
    "a calendar dropped": ({"windows": [LOCAL, DAY]}, {"windows": [DAY]}),
    "sessions dropped": ({"windows": [FIVES, VISITS, LAST_FIVE]}, {"windows": [FIVES, LAST_FIVE]}),
    "one of two sessions dropped": ({"windows": [VISITS, VISITS | {"name": "long", "gap": "20 minutes"}]}, {"windows": [VISITS]}),
    "policies dropped": ({"windows": [FIVES, SEVEN, LAST_FIVE, BAND]}, {"windows": [SEVEN, BAND]}),
    "a delta dropped": ({"windows": [SEVEN, BAND]}, {"windows": [SEVEN]}),
    "live rows dropped": ({"windows": [FIVES, SPANS, COUNTED]}, {"windows": [FIVES, SPANS]}),
    "live rows dropped beside policies": ({"windows": [LAST_FIVE, SPANS]}, {"windows": [LAST_FIVE]}),
    "all but live rows dropped": ({"windows": [LAST_FIVE, SPANS, COUNTED]}, {"windows": [COUNTED]}),
    "an aggregate dropped": ({"windows": [DAY, VISITS, LAST_FIVE, SPANS]}, {"aggregates": {"low": FEW["low"]}}),
    "objects dropped": ({"windows": [DAY, VISITS], "aggregates": OBJECTS}, {"aggregates": {"every": OBJECTS["every"]}}),
    "empty windows beside what is dropped": (
        {"windows": [SLOTS | {"empty": "emit"}, VISITS], "aggregates": SUMS},
        {"windows": [SLOTS | {"empty": "emit"}], "aggregates": FEW},
    ),
}
#: Changes whose new rows are made of stored slices, as far back as these reach; and whether any row is recent enough.
FILLED: dict[str, tuple[dict[str, Any], dict[str, Any], bool]] = {
    "tumbling": ({"windows": [FIVES, DAY]}, {"windows": [FIVES, DAY, HOURS]}, True),
    "hopping": ({"windows": [FIVES, DAY]}, {"windows": [DAY, HOURS | {"type": "hopping", "hop": "25 minutes"}]}, True),
    "cumulative": ({"windows": [FIVES, DAY]}, {"windows": [DAY, GROWING]}, True),
    "a calendar": ({"windows": [FIVES, DAY]}, {"windows": [DAY, LOCAL]}, True),
    "another size": ({"windows": [SLOTS, DAY]}, {"windows": [SLOTS | {"size": "30 minutes"}, DAY]}, True),
    "over nodes": ({"windows": [LONG]}, {"windows": [LONG, HOURS]}, True),
    "objects": ({"windows": [DAY], "aggregates": OBJECTS}, {"windows": [DAY, HOURS]}, True),
    "beside sessions": ({"windows": [DAY, VISITS, SEVEN, SPANS]}, {"windows": [HOURS, VISITS, SEVEN, SPANS, DAY]}, True),
    "a mean of what is stored": ({"aggregates": SUMS}, {"aggregates": SUMS | {"average": AGGREGATES["average"]}}, False),
}

#: Changes that pipelines which revise are tried with, too: a grid of each type, nodes, and each of the other ways to keep state.
REVISED_FROM_STATE = (
    *("a grid dropped", "the finest grid dropped", "nodes dropped", "sessions dropped", "an aggregate dropped"),
    *("empty windows beside what is dropped", "tumbling", "a calendar", "over nodes", "beside sessions", "a mean of what is stored"),
)


def by_emit(kinds: Iterable[str]) -> list[tuple[str, str]]:
    """Those that revise are tried by `make faults` without revisions, too."""
    every = [(kind, emit) for kind in kinds for emit in ("final", "revise") if emit == "final" or kind in REVISED_FROM_STATE]
    return every if EVERY else list(dict(every).items())


@contextmanager
def hidden(source: str) -> Iterator[None]:
    """The source without its data files."""
    files = list(Path(source).glob("*.parquet"))
    assert files
    for file in files:
        file.rename(file.with_suffix(".hidden"))
    try:
        yield
    finally:
        for file in files:
            file.with_suffix(".hidden").rename(file)


def carry_out(bench: Bench, changes: dict[str, Any], history: int | None) -> Any:
    """Apply ``changes`` while no file of the source can be read."""
    bench.changes = bench.changes | changes
    with hidden(bench.source):
        done = loop.apply(bench.pipeline, quiet(), history=history)
    assert done is not None
    assert (done.plan.action, done.outcome.counts.rows_read, done.plan.carried is not None) == ("apply", 0, True)
    return done


def shown_through(bench: Bench) -> int:
    """The instant through which windows on grids have been published."""
    emitted = Ledger.open(bench.pipeline).newest.outcome.emitted
    return int(emitted) + (8 * MINUTE if bench.spec.get("emit") == "revise" else 0)


@pytest.mark.parametrize(("kind", "emit"), by_emit(NOTHING_NEW))
def test_what_is_dropped_reads_nothing(tmp_path, prepared, kind, emit):
    before, after = NOTHING_NEW[kind]
    bench = prepared.copy(tmp_path / "b", grown, before | {"emit": emit})
    shown = bench.rows()
    done = carry_out(bench, after, AXIS_BEGIN)
    assert (done.outcome.counts.rows_published, differences(bench.rows(), shown)) == (0, [])
    maintain(bench.pipeline, quiet())
    go_on(bench, runs=2)
    check(bench)


_WITH_WINDOWS = [kind for kind, (_, _, windows) in FILLED.items() if windows]


@pytest.mark.parametrize(
    ("kind", "emit", "history"), [*((*each, True) for each in by_emit(_WITH_WINDOWS)), *((*each, False) for each in by_emit(FILLED))]
)
def test_new_windows_are_made_of_stored_slices_or_go_on_from_them(tmp_path, prepared, kind, emit, history):
    before, after, _ = FILLED[kind]
    time = TIME | ({"disorder": "100 minutes"} if history else {"lateness": "0 minutes"})
    bench = prepared.copy(tmp_path / "b", grown, {"windows": [DAY, VISITS, SEVEN]} | before | {"emit": emit, "time": time})
    shown = bench.rows()
    begin = shown_through(bench) - RECENT if history else int(Ledger.open(bench.pipeline).newest.outcome.emitted)
    done = carry_out(bench, after, begin if history else None)
    if history:
        assert done.outcome.counts.rows_published > 0
        check(bench, ROWS[:200], after=begin)
    else:
        assert (done.outcome.counts.rows_published, differences(bench.rows(), shown)) == (0, [])
    go_on(bench, runs=2)
    check(bench, after=begin)


def test_a_young_pipeline_is_filled_from_state_in_its_whole_history(tmp_path):
    rows = [row for row in events(5, 300) if row["t"] is not None and BASE < row["t"] < BASE + 240 * MINUTE]
    rows = rows[: len(rows) // 4 * 4]
    bench = grown({"windows": [DAY, FIVES], "aggregates": SUMS}, rows, folder=tmp_path / "b")
    changes = {"windows": [DAY, HOURS, FIVES], "aggregates": SUMS | {"average": AGGREGATES["average"]}}
    carry_out(bench, changes, AXIS_BEGIN)
    check(bench, rows[: len(rows) // 2])
    go_on(bench, rows, 2)
    check(bench, rows)


@pytest.mark.parametrize("emit", ["final", "revise"])
@pytest.mark.parametrize("history", [None, BASE + 400 * MINUTE])
def test_files_of_the_source_before_what_is_asked_for_are_not_read(tmp_path, emit, history):
    bench, eighth = bench_of(tmp_path / "b", {"windows": [FIVES, HOURS], "emit": emit}), len(ROWS) // 8
    go_on(bench, ROWS[: 6 * eighth], 6)
    through = shown_through(bench)
    bench.changes |= {"windows": [FIVES, HOURS, ROLLING]} | WITH_SPREAD
    found = applying.next_apply(runnable_of(bench.pipeline), Ledger.open(bench.pipeline), history=history)
    assert found is not None
    assert isinstance(found.state, NotStoredError)
    assert 0 < len(found.reading.files) < 6
    done = loop.apply(bench.pipeline, quiet(), history=history)
    assert done is not None
    assert done.outcome.counts.rows_read == len(found.reading.files) * eighth
    if history is not None:
        check(bench, ROWS[: 6 * eighth], after=history)
    go_on(bench)
    check(bench, after=through if history is None else history)


@pytest.mark.parametrize("place", PLACES)
def test_a_change_from_stored_state_that_is_killed_is_finished_by_whoever_comes_next(tmp_path, prepared, place):
    bench = prepared.copy(tmp_path / "b", grown, {"windows": [FIVES, DAY]})
    history, after = shown_through(bench) - RECENT, {"windows": [DAY, HOURS]}
    arm(place)
    with pytest.raises(DiedError):
        carry_out(bench, after, history)
    failpoints.disarm()
    loop.apply(bench.pipeline, quiet(), history=history)
    go_on(bench, runs=2)
    check(bench, after=history)
    assert [batch.action for batch in Ledger.open(bench.pipeline).batches()].count("apply") == 1
