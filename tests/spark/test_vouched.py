"""``watermark: data_interval_end``: the orchestrator's word, not the data, says through when the input is complete."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.readers import by_each_scheduler
from tests.spark.harness import BASE, MINUTE, Bench, events, quiet
from windowmill.jobs.batch import loop
from windowmill.windowing.axis import from_us
from windowmill.windowing.errors import SpecError

AT_BASE = from_us(BASE)


@pytest.fixture
def bench(tmp_path):
    return Bench(
        tmp_path,
        {
            "keys": ["k"],
            "time": {"column": "t", "watermark": "data_interval_end", "lateness": "5 minutes"},
            "windows": [{"name": "w", "type": "tumbling", "size": "10 minutes"}],
            "aggregates": {"n": {"count": "*"}},
        },
    )


def _land(bench, minutes):
    bench.land([dict(row, k="a", t=BASE + minute * MINUTE) for row, minute in zip(events(51, len(minutes)), minutes, strict=True)])


def _counts(bench):
    return {(row["window_end"] - BASE) // MINUTE: row["n"] for row in bench.rows()}


def test_windows_appear_when_the_interval_that_completes_them_is_vouched_for(bench):
    _land(bench, [1, 11, 21, 300])
    [first] = bench.run(interval_end=AT_BASE + timedelta(minutes=20))
    assert _counts(bench) == {10: 1}, "the row at minute 300 does not move the watermark"
    assert first.outcome.emitted == BASE + 15 * MINUTE
    _land(bench, [2, 12, 13])
    [second] = bench.run(interval_end=AT_BASE + timedelta(minutes=35))
    assert _counts(bench) == {10: 1, 20: 3, 30: 1}
    assert (second.outcome.counts.rows_applied, second.outcome.counts.rows_quarantined, second.outcome.counts.rows_late) == (2, 1, 2)
    assert [row["reason"] for row in bench.quarantine()] == ["too_late"]


#: How rows arrive, and the revisions of the window that ends at 20: those that come together bring one.
ARRIVING = {"together": ([[2, 12, 13]], [(20, 1, 3)]), "one by one": ([[2], [12], [13]], [(20, 1, 2), (20, 2, 3)])}


@by_each_scheduler("arriving", ARRIVING, by_tasks=ARRIVING)
def test_rows_behind_an_interval_that_was_vouched_for_bring_revisions(bench, arriving):
    bench.changes["emit"] = "revise"
    _land(bench, [1, 11, 21, 300])
    bench.run(interval_end=AT_BASE + timedelta(minutes=20))
    commits, revisions = ARRIVING[arriving]
    for minutes in commits:
        _land(bench, minutes)
    [second] = bench.run(interval_end=AT_BASE + timedelta(minutes=35))
    shown = [((row["window_end"] - BASE) // MINUTE, row["revision"], row["n"]) for row in bench.rows()]
    assert shown == [(10, 0, 1), (20, 0, 1), *revisions, (30, 0, 1)]
    assert (second.outcome.counts.rows_applied, second.outcome.counts.rows_quarantined, second.outcome.counts.rows_late) == (2, 1, 2)


def test_a_later_interval_completes_windows_without_new_rows(bench):
    _land(bench, [1, 11])
    bench.run(interval_end=AT_BASE + timedelta(minutes=15))
    assert bench.run(interval_end=AT_BASE + timedelta(minutes=15)) == []
    [moved] = bench.run(interval_end=AT_BASE + timedelta(minutes=25))
    assert moved.outcome.counts.rows_read == 0
    assert _counts(bench) == {10: 1, 20: 1}


@pytest.mark.covers("S9", "V6")
@pytest.mark.usefixtures("each_scheduler")
def test_only_the_batch_that_drains_the_backlog_vouches(bench):
    """Rows of the interval that are in later batches of the backlog are in time."""
    bench.changes["source"] = {"path": bench.source, "options": {"maxFilesPerTrigger": 1}}
    for minutes in ([1, 11], [2, 12], [3, 14]):
        _land(bench, minutes)
    done = bench.run(interval_end=AT_BASE + timedelta(minutes=35))
    assert [(d.outcome.counts.rows_applied, d.outcome.counts.rows_quarantined, d.outcome.counts.rows_late) for d in done] == [(2, 0, 0)] * 3
    assert [d.outcome.emitted for d in done] == [None, None, BASE + 30 * MINUTE]
    assert _counts(bench) == {10: 3, 20: 3}


def test_a_run_without_its_interval_is_refused(bench):
    _land(bench, [1])
    with pytest.raises(SpecError, match="--data-interval-end"):
        bench.run()


WAYS = {
    "slices": {},
    # Events without length are in the windows in which they begin.
    "slices of events that last": {"time": {"column": "t", "end": "t", "watermark": "data_interval_end", "lateness": "5 minutes"}},
}


@by_each_scheduler("way", WAYS, by_tasks=["slices"])
def test_a_backfill_judges_each_row_as_the_batch_that_brought_it(bench, way):
    bench.changes |= WAYS[way]
    _land(bench, [1, 11, 21, 300])
    bench.run(interval_end=AT_BASE + timedelta(minutes=20))
    _land(bench, [2, 12, 13])
    bench.run(interval_end=AT_BASE + timedelta(minutes=35))
    counts = {10: 1, 20: 3, 30: 1}
    assert _counts(bench) == counts
    done = loop.backfill(bench.pipeline, quiet(), begin=BASE, end=BASE + 500 * MINUTE)
    assert (done.outcome.counts.rows_applied, done.outcome.counts.rows_quarantined, done.outcome.counts.rows_late) == (6, 1, 2)
    assert _counts(bench) == counts
    # An interval that was vouched for before does not turn the clock back.
    _land(bench, [3, 29, 31])
    bench.run(interval_end=AT_BASE + timedelta(minutes=10))
    assert _counts(bench) == counts
    bench.run(interval_end=AT_BASE + timedelta(minutes=45))
    assert _counts(bench) == counts | {40: 1}


@by_each_scheduler("way", WAYS, by_tasks=["slices of events that last"])
def test_a_first_backfill_vouches_through_its_range(bench, way):
    bench.changes |= WAYS[way]
    _land(bench, [1, 11, 21, 300])
    loop.backfill(bench.pipeline, quiet(), begin=BASE, end=BASE + 20 * MINUTE)
    assert _counts(bench) == {10: 1, 20: 1}
    _land(bench, [12, 22])
    bench.run(interval_end=AT_BASE + timedelta(minutes=35))
    assert _counts(bench) == {10: 1, 20: 1, 30: 2}
