"""Late rows that some windows had been closed to: counted window by window in the record of the batch, and told. No Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.jobs.test_steps import row
from tests.spark.harness import BASE, MINUTE, Bench, missed_in, quiet
from windowmill.checkpoints.ledger import Ledger
from windowmill.jobs.batch import loop
from windowmill.jobs.batch.progress import late_missed, missed_windows
from windowmill.jobs.cli import main
from windowmill.jobs.report import write_report

#: A window of each way, and two of one way.
WINDOWS: list[dict[str, Any]] = [
    {"name": "last_10", "type": "hopping", "size": "10 minutes", "hop": "5 minutes"},
    {"name": "days", "type": "tumbling", "size": "1 day"},
    {"name": "gaps", "type": "hopping", "size": "5 minutes", "hop": "30 minutes"},
    {"name": "visits", "type": "session", "gap": "3 minutes"},
    {"name": "newest", "type": "sliding", "evict": {"count": 2}, "trigger": {"count": 1}},
    {"name": "spans", "type": "snapshot"},
]
#: The third commit finds windows closed through minute 40.
COMMITS = [[0, 20], [40], [38, 21, 3, 41], [90]]
#: 38 lies in [30, 40) and [35, 45) of ``last_10``, of which the second is open. 38 and 21 lie between windows of ``gaps``. ``newest`` had
#: applied no tuple after 20.
MISSED = {"last_10": 3, "gaps": 1, "visits": 2, "newest": 1, "spans": 3}


pytestmark = pytest.mark.local


def run(folder: Path, windows: list[dict[str, Any]]) -> Bench:
    """A run over each of the commits."""
    each = Bench(folder, {"windows": windows, "aggregates": {"n": {"count": "*"}}, "time": {"column": "t"}, "keys": ["k"]})
    for minutes in COMMITS:
        each.land([row(minute) for minute in minutes])
        each.run()
    return each


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return run(tmp_path, WINDOWS)


def recorded(bench: Bench) -> list[dict[str, int]]:
    return [batch.counts.late_missed for batch in Ledger.open(bench.pipeline).batches()]


def test_each_window_counts_the_rows_that_it_was_closed_to(bench):
    assert recorded(bench) == [{}, {}, MISSED, {}]
    assert bench.expected([row(minute) for minutes in COMMITS for minute in minutes]).missed == MISSED


def test_rows_that_no_window_counts_have_missed_each_that_holds_them(tmp_path):
    bench = run(tmp_path, [window for window in WINDOWS if window["name"] != "days"])
    assert [each["reason"] for each in bench.quarantine()] == ["too_late"]
    assert recorded(bench)[2] == MISSED


def test_history_status_and_the_report_tell_what_late_rows_have_missed(bench, tmp_path, capsys):
    spec = tmp_path / "bench.yaml"
    spec.write_text(yaml.safe_dump(bench.spec))
    assert main(["history", str(spec), "--json"]) == 0
    assert [batch["late_missed"] for batch in json.loads(capsys.readouterr().out)] == [{}, {}, MISSED, {}]
    assert main(["status", str(spec)]) == 0
    assert "missed" not in capsys.readouterr().out
    bench.land([row(2)])
    assert main(["run", str(spec)]) == 0
    told = "1 missed a window of last_10, 1 of gaps, 1 of visits, 1 of newest, 1 of spans"
    assert f"1 rows read (1 late, 0 quarantined; {told})" in " ".join(capsys.readouterr().out.split())
    assert main(["status", str(spec)]) == 0
    assert told in " ".join(capsys.readouterr().out.split())
    page = Path(write_report(bench.pipeline)).read_text()
    assert "4 missed a window of last_10, 4 of spans, 3 of visits, 2 of gaps, 2 of newest" in page


def test_a_backfill_judges_rows_as_they_arrived_and_by_event_time_finds_none_late(bench):
    for history, missed in (("log", MISSED), ("event_time", {})):
        loop.backfill(bench.pipeline, quiet(), begin=BASE - 1, end=BASE + 100 * MINUTE, history=history)
        assert recorded(bench)[-1] == missed
    assert late_missed(Ledger.open(bench.pipeline).batches()) == MISSED, "rows that a backfill has read again count once"


def test_nothing_is_late_in_a_restatement(tmp_path):
    bench = run(tmp_path, [{"name": "slots", "type": "tumbling", "size": "10 minutes"}])
    assert recorded(bench)[2] == {"slots": 3}
    done = loop.restate(bench.pipeline, quiet(), late=True)
    assert missed_in(done) == {}
    assert {(each["window_end"] - BASE) // MINUTE: each["n"] for each in bench.rows()} == {10: 2, 30: 2, 40: 1, 50: 2}


def test_of_many_windows_those_that_most_rows_missed_are_named():
    assert missed_windows({f"w{number}": 1000 + number for number in range(7)}) == (
        "1,006 missed a window of w6, 1,005 of w5, 1,004 of w4, 1,003 of w3, 1,002 of w2 and others of 2 more"
    )
    assert missed_windows({}) == ""
