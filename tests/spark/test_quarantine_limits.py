"""A batch that loses many rows is held with counts, examples and a remedy: a first one, a later one, a backfill; here and in executors."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.readers import by_each_scheduler
from tests.spark.harness import BASE, MINUTE, Bench, quiet
from windowmill.checkpoints.ledger import Ledger
from windowmill.checkpoints.places import Places
from windowmill.expectations import gate
from windowmill.jobs.batch import loop
from windowmill.jobs.batch.progress import Progress
from windowmill.jobs.commands.summaries import history_of, status_of
from windowmill.jobs.report import write_report
from windowmill.windowing.errors import HeldError

HOURLY = [{"name": "w", "type": "tumbling", "size": "10 minutes"}]
WINDOWS = {
    "slices": HOURLY,
    "sessions": [{"name": "w", "type": "session", "gap": "10 minutes"}],
    "positions": [{"name": "w", "type": "sliding", "evict": {"count": 3}}],
    "live rows": [{"name": "w", "type": "snapshot"}],
    "mixed": [*HOURLY, {"name": "v", "type": "session", "gap": "10 minutes"}],
}
WINDOWS["all ways"] = [window | {"name": name.replace(" ", "_")} for name, [window, *_] in WINDOWS.items() if name != "mixed"]


def bench_of(folder: Path, windows: str = "slices", **changes: Any) -> Bench:
    fields = {"keys": ["k"], "time": {"column": "t"}, "windows": WINDOWS[windows], "aggregates": {"n": {"count": "*"}}, "quarantine": {}}
    return Bench(folder, fields | changes)


def row(minute: int) -> dict[str, Any]:
    return {"k": "a", "site": 1, "t": BASE + minute * MINUTE, "v": 1.0, "i": 1, "label": "x", "id": f"a{minute}"}


def land(bench: Bench, minutes: list[int]) -> None:
    """Rows of one version each: whatever may be late to rows of its own version, these are late to those before."""
    for minute in minutes:
        bench.land([row(minute)])


def held(bench: Bench, **options: Any) -> tuple[str, str]:
    """The error of a run that is held, and what it said before."""
    said = io.StringIO()
    with pytest.raises(HeldError) as error:
        loop.run(bench.pipeline, Progress(Console(file=said, width=10_000)), **options)
    assert error.value.exit_code == 3
    return str(error.value), said.getvalue()


@by_each_scheduler("windows", WINDOWS, by_tasks=["slices", "live rows", "all ways"])
def test_a_held_batch_is_released_without_its_quarantined_rows(tmp_path, windows):
    bench = bench_of(tmp_path, windows)
    land(bench, [0, 600, 601, 602, 603, 604, 605, 190, 606])
    message, said = held(bench)
    assert re.search(
        r"1 of 9 rows read were quarantined \(11\.1%\), more than 10 %: 1 too_late; too_late: time\.disorder: 7 hours", message
    )
    assert "`windowmill abandon` the batch" in message
    assert '"k": ' not in message
    assert re.search(r'quarantined, for example: \{"k": "a", "t": "[^"]+T03:10:00[^"]*", "reason": "too_late"\}', said)
    assert not bench.quarantine()
    assert history_of(bench.pipeline, 1, timings=False).data[0]["verdict"] == "held"
    told = [r for r in gate.read(Places.of(bench.pipeline).quality) if r["type"] == "expect_quarantined_rate_to_be_below"]
    assert [(r["severity"], r["outcome"], r["observed"]) for r in told] == [("critical", "failed", 1 / 9), ("warning", "failed", 1 / 9)]
    assert [example["k"] for example in told[0]["examples"]] == ["a"]
    assert "too_late" in Path(write_report(bench.pipeline)).read_text()
    [done] = bench.run(ruling="release")
    assert (done.outcome.verdict, done.outcome.counts.rows_quarantined, done.outcome.counts.rows_applied) == ("released", 1, 8)
    [lost] = bench.quarantine()
    assert (lost["reason"], json.loads(lost["row"])["id"]) == ("too_late", "a190")
    assert (lost["watermark"] - lost["event_time"]).total_seconds() == (605 - 190) * 60


def test_the_remedy_of_a_first_batch_keeps_the_rows(tmp_path):
    bench = bench_of(tmp_path)
    land(bench, [0, 600, 190, 601, 602])
    assert "time.disorder: 7 hours would keep all (now 0)" in held(bench)[0]
    loop.abandon(bench.pipeline, quiet())
    again = bench_of(tmp_path, time={"column": "t", "disorder": "7 hours"})
    land(again, [1_200])
    [done] = again.run()
    assert (done.outcome.verdict, done.outcome.counts.rows_quarantined, done.outcome.counts.rows_applied) == ("passed", 0, 6)


@pytest.mark.usefixtures("each_scheduler")
def test_later_batches_and_backfills_are_held_alike_and_other_limits_let_them_pass(tmp_path):
    bench = bench_of(tmp_path)
    land(bench, [0, 600, 601])
    assert bench.run()[0].outcome.verdict == "passed"
    land(bench, [20, 30, 620])
    message, _ = held(bench)
    assert "2 of 3 rows read were quarantined (66.7%)" in message
    assert "give the pipeline a new sink and backfill it there" in message
    assert Ledger.open(bench.pipeline).held_batch is not None
    [done] = bench_of(tmp_path, quarantine={"hold": "never"}).run()
    assert (done.outcome.verdict, done.outcome.counts.rows_quarantined) == ("warned", 2)
    assert "quarantined" in status_of(bench.pipeline).data["warning"]
    with pytest.raises(HeldError, match=r"2 of 6 rows read were quarantined \(33\.3%\), more than 10 %"):
        loop.backfill(bench.pipeline, quiet(), begin=BASE, end=BASE + 600 * MINUTE)


@pytest.mark.parametrize("ruling", [None, "release", "discard", "abandon"])
def test_a_later_batch_of_nothing_but_lost_rows_has_no_results_and_is_held_all_the_same(tmp_path, ruling):
    bench = bench_of(tmp_path)
    land(bench, [0, 600, 601])
    bench.run()
    land(bench, [20, 30])
    for _ in range(2):
        message, _ = held(bench)
        assert "2 of 2 rows read were quarantined" in message
    if ruling == "abandon":
        assert loop.abandon(bench.pipeline, quiet()).batch == 1
        land(bench, [602, *range(603, 640)])
        bench.run()
    elif ruling:
        loop.run(bench.pipeline, quiet(), ruling=ruling)
    else:
        bench_of(tmp_path, quarantine={"hold": "never"}).run()
    [last] = Ledger.open(bench.pipeline).batches()[-1:]
    assert (last.status, last.counts.rows_quarantined) == ("committed", 2)
    assert len(bench.quarantine()) == 2


def test_a_batch_of_nothing_but_lost_rows_is_held_and_one_without_rows_is_not(tmp_path):
    bench = bench_of(tmp_path)
    bench.land([row(0) | {"t": None}])
    message, said = held(bench)
    assert "1 of 1 rows read were quarantined (100.0%), more than 10 %: 1 null_time; null_time: fill t in the source" in message
    assert '{"k": "a", "t": null, "reason": "null_time"}' in said
    loop.run(bench.pipeline, quiet(), ruling="discard")
    bench.land([row(0)])
    assert bench.run()[0].outcome.verdict == "passed"


def test_more_than_one_percent_is_a_warning(tmp_path):
    bench = bench_of(tmp_path)
    bench.land([row(n) for n in range(197)] + [row(0) | {"t": None}] * 2)
    [done] = bench.run()
    assert (done.outcome.verdict, done.outcome.counts.rows_quarantined) == ("warned", 2)
    bench.land([row(200 + n) for n in range(198)] + [row(0) | {"t": None}] * 2)
    [done] = bench.run()
    assert (done.outcome.verdict, done.outcome.counts.rows_quarantined) == ("passed", 2)
