"""A changed spec is carried out from the stored state where that is enough: no row of the source is read. No Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.faults.dying import DiedError, arm
from tests.jobs.test_applied_changes import BAND, FEW, LAST_FIVE, ROLLING, SLOTS, SPANS, VISITS, bench_of, of
from tests.matrices import EVERY
from tests.spark.harness import AGGREGATES, BASE, MINUTE, TIME, Bench, Row, differences, events, quiet
from windowmill.checkpoints import failpoints
from windowmill.checkpoints.ledger import Ledger
from windowmill.jobs.batch import applying, loop
from windowmill.jobs.commands.maintenance_command import maintain
from windowmill.jobs.layouts.carried import NotStoredError
from windowmill.jobs.runnables import runnable_of
from windowmill.windowing.axis import AXIS_BEGIN

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
ROWS = events(93, 400)
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
REVISED = (
    *("a grid dropped", "the finest grid dropped", "nodes dropped", "sessions dropped", "an aggregate dropped"),
    *("empty windows beside what is dropped", "tumbling", "a calendar", "over nodes", "beside sessions", "a mean of what is stored"),
)


def by_emit(kinds: Iterable[str]) -> list[tuple[str, str]]:
    """Those that revise are tried by `make faults` without revisions, too."""
    every = [(kind, emit) for kind in kinds for emit in ("final", "revise") if emit == "final" or kind in REVISED]
    return every if EVERY else list(dict(every).items())


pytestmark = pytest.mark.local


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


def grown(changes: dict[str, Any], rows: list[Row] = ROWS, *, folder: Path) -> Bench:
    """A pipeline after two runs over half of ``rows``."""
    bench, quarter = bench_of(folder, changes), len(rows) // 4
    for n in range(2):
        bench.land(rows[n * quarter : (n + 1) * quarter])
        bench.run()
    return bench


def run_on(bench: Bench, rows: list[Row]) -> None:
    """Two runs over the second half of ``rows``."""
    quarter = len(rows) // 4
    for n in range(2, 4):
        bench.land(rows[n * quarter : (n + 1) * quarter])
        bench.run()


def state_of(bench: Bench, history: int | None) -> Any:
    """What the state has for the changed spec, or why it is not enough."""
    found = applying.next_apply(runnable_of(bench.pipeline), Ledger.open(bench.pipeline), history=history)
    assert found is not None
    assert (found.plan.carried is None) == isinstance(found.state, NotStoredError)
    return found.state


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


def check(bench: Bench, rows: list[Row], *, after: int | None = None) -> None:
    """Compare the sink's rows of windows of the spec, that end ``after`` an instant, with those of a rebuild."""
    found, wanted = of(bench, bench.rows()), bench.expected(rows).rows
    if after is not None:
        found, wanted = ([row for row in each if row["window_end"] > after] for each in (found, wanted))
    assert differences(found, wanted) == []


@pytest.mark.parametrize(("kind", "emit"), by_emit(NOTHING_NEW))
def test_what_is_dropped_reads_nothing(tmp_path, prepared, kind, emit):
    before, after = NOTHING_NEW[kind]
    bench = prepared.copy(tmp_path / "b", grown, before | {"emit": emit})
    shown = bench.rows()
    done = carry_out(bench, after, AXIS_BEGIN)
    assert done.outcome.counts.rows_published == 0
    assert differences(bench.rows(), shown) == []
    maintain(bench.pipeline, quiet())
    run_on(bench, ROWS)
    check(bench, ROWS)


@pytest.mark.parametrize(("kind", "emit"), by_emit(kind for kind, (_, _, windows) in FILLED.items() if windows))
def test_new_windows_are_made_of_stored_slices(tmp_path, prepared, kind, emit):
    before, after, _ = FILLED[kind]
    bench = prepared.copy(tmp_path / "b", grown, before | {"emit": emit, "time": TIME | {"disorder": "100 minutes"}})
    history = shown_through(bench) - RECENT
    done = carry_out(bench, after, history)
    assert done.outcome.counts.rows_published > 0
    check(bench, ROWS[:200], after=history)
    run_on(bench, ROWS)
    check(bench, ROWS, after=history)


@pytest.mark.parametrize(("kind", "emit"), by_emit(FILLED))
def test_without_history_new_windows_go_on_from_stored_slices(tmp_path, prepared, kind, emit):
    before, after, _ = FILLED[kind]
    bench = prepared.copy(
        tmp_path / "b", grown, {"windows": [DAY, VISITS, SEVEN]} | before | {"emit": emit, "time": TIME | {"lateness": "0 minutes"}}
    )
    shown, through = bench.rows(), int(Ledger.open(bench.pipeline).newest.outcome.emitted)
    assert carry_out(bench, after, None).outcome.counts.rows_published == 0
    assert differences(bench.rows(), shown) == []
    run_on(bench, ROWS)
    check(bench, ROWS, after=through)


def test_a_young_pipeline_is_filled_from_state_in_its_whole_history(tmp_path):
    rows = [row for row in events(5, 300) if row["t"] is not None and BASE < row["t"] < BASE + 240 * MINUTE]
    bench = grown({"windows": [DAY, FIVES], "aggregates": SUMS}, rows, folder=tmp_path / "b")
    changes = {"windows": [DAY, HOURS, FIVES], "aggregates": SUMS | {"average": AGGREGATES["average"]}}
    carry_out(bench, changes, AXIS_BEGIN)
    check(bench, rows[: len(rows) // 4 * 2])
    run_on(bench, rows[: len(rows) // 4 * 4])
    check(bench, rows[: len(rows) // 4 * 4])


@pytest.mark.parametrize("emit", ["final", "revise"])
@pytest.mark.parametrize("history", [None, BASE + 400 * MINUTE])
def test_files_of_the_source_before_what_is_asked_for_are_not_read(tmp_path, emit, history):
    bench, eighth = bench_of(tmp_path / "b", {"windows": [FIVES, HOURS], "emit": emit}), len(ROWS) // 8
    for n in range(6):
        bench.land(ROWS[n * eighth : (n + 1) * eighth])
        bench.run()
    through = shown_through(bench)
    bench.changes |= {"windows": [FIVES, HOURS, ROLLING], "aggregates": FEW | {"spread": AGGREGATES["spread"]}}
    found = applying.next_apply(runnable_of(bench.pipeline), Ledger.open(bench.pipeline), history=history)
    assert found is not None
    assert isinstance(found.state, NotStoredError)
    assert 0 < len(found.reading.files) < 6
    done = loop.apply(bench.pipeline, quiet(), history=history)
    assert done is not None
    assert done.outcome.counts.rows_read == len(found.reading.files) * eighth
    if history is not None:
        check(bench, ROWS[: 6 * eighth], after=history)
    bench.land(ROWS[6 * eighth :])
    bench.run()
    check(bench, ROWS, after=through if history is None else history)


@pytest.mark.parametrize(
    "place", ["compute.begin", "batch.before", "batch.after", "sink.before", "sink.after", "state.before", "state.after"]
)
def test_a_change_that_is_killed_is_finished_by_whoever_comes_next(tmp_path, prepared, place):
    bench = prepared.copy(tmp_path / "b", grown, {"windows": [FIVES, DAY]})
    history, after = shown_through(bench) - RECENT, {"windows": [DAY, HOURS]}
    arm(place)
    with pytest.raises(DiedError):
        carry_out(bench, after, history)
    failpoints.disarm()
    loop.apply(bench.pipeline, quiet(), history=history)
    run_on(bench, ROWS)
    check(bench, ROWS, after=history)
    assert [batch.action for batch in Ledger.open(bench.pipeline).batches()].count("apply") == 1
