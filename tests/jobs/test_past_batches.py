"""Runs are compared with those before them, by the ledger and the sink."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from deltalake import write_deltalake

from tests.specs import TENS, TICKS, a_spec
from windowmill.checkpoints.ledger import Ledger
from windowmill.checkpoints.places import Places
from windowmill.expectations import gate
from windowmill.expectations.rule import KEYS, VOLUME
from windowmill.jobs.cli import main
from windowmill.jobs.report import write_report
from windowmill.jobs.report.freshness import staleness_of
from windowmill.windowing.spec import FRESHNESS
from windowmill.windowing.specfile import load_pipeline

START = datetime(2024, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


class Story:
    """A pipeline whose versions are run one by one."""

    def __init__(self, folder: Path, *rules: dict[str, Any], **fields: Any) -> None:
        self.folder, self.spec = folder, folder / "p.yaml"
        spec = a_spec(folder, **{"keys": ["k"], "time": TICKS, "windows": [TENS], "compute": "local", "expectations": list(rules)} | fields)
        self.spec.write_text(yaml.safe_dump(spec))

    def run(self, *rows: tuple[str, Any], options: list[str] | None = None) -> int:
        keys, times = zip(*rows, strict=True)
        write_deltalake(str(self.folder / "source"), pa.table({"k": list(keys), "t": list(times)}), mode="append")
        return main(["run", str(self.spec), *(options or [])])

    def findings(self, rule_type: str) -> list[tuple[str, str]]:
        """Outcome and message of each validation by the rule."""
        rows = gate.read(Places.of(load_pipeline(self.spec)).quality)
        return [(row["outcome"], row["message"]) for row in rows if row["type"] == rule_type]


def test_volume_is_that_of_the_last_runs_without_backfills(tmp_path, capsys):
    story = Story(tmp_path, {"type": VOLUME, "batches": 2, "min_share": 0.5, "max_share": 2, "severity": "warning"})
    for n in range(3):
        assert story.run(*[("a", 10 * n + i) for i in range(10)]) == 0
    assert main(["backfill", str(story.spec), "--from", "0", "--to", "20"]) == 0
    assert story.run(*[("a", 40 + i) for i in range(4)]) == 0
    assert story.findings(VOLUME) == [
        ("passed", "no earlier run with rows to compare with"),
        ("passed", "passed"),
        ("passed", "passed"),
        ("passed", "only runs are compared with earlier ones"),
        ("failed", "4 rows read, 0.4 times the 10 of the last 2 runs; expected 0.5 to 2"),
    ]
    assert "warned" in capsys.readouterr().out


def test_volume_beside_the_same_hour_of_last_week(tmp_path):
    rule = {"type": VOLUME, "ago": "7 days", "min_share": 0.5, "severity": "warning"}
    story = Story(tmp_path, rule, time={"column": "t", "watermark": "data_interval_end"}, windows=[{**TENS, "size": "1 hour"}])

    def run(at: datetime, count: int) -> None:
        assert story.run(*[("a", at)] * count, options=["--data-interval-end", f"{at + HOUR:%Y-%m-%dT%H:%M:%S}"]) == 0

    for hour, count in ((0, 10), (1, 100), (2, 10)):
        run(START + hour * HOUR, count)
    for hour, count in ((1, 40), (2, 8)):
        run(START + timedelta(days=7) + hour * HOUR, count)
    found = story.findings(VOLUME)
    assert {outcome for outcome, _ in found[:3]} == {"passed"}
    assert found[3:] == [
        ("failed", "40 rows read, 0.4 times the 100 of the run of 7 days ago; expected at least 0.5"),
        ("passed", "passed"),
    ]


@pytest.mark.parametrize(("age", "code"), [(timedelta(hours=1), 0), (timedelta(hours=3), 3)])
def test_a_run_whose_newest_event_is_too_old_is_held(tmp_path, capsys, age, code):
    story = Story(tmp_path, {"freshness": "2 hours"}, time={"column": "t"}, windows=[{**TENS, "size": "1 hour"}])
    now = datetime.now(UTC)
    assert story.run(("a", now - age - 2 * HOUR), ("a", now - age)) == code
    [(outcome, message)] = story.findings(FRESHNESS)
    assert outcome == ("failed" if code else "passed")
    assert code == 0 or (message.startswith("the newest event is 3:0") and message.endswith("old; expected at most 2 hours"))
    capsys.readouterr()


def test_the_freshness_of_a_backfill_is_not_judged(tmp_path):
    rule = {"freshness": "2 hours", "severity": "warning"}
    story = Story(tmp_path, rule, time={"column": "t"}, windows=[{**TENS, "size": "1 hour"}])
    assert story.run(("a", START), ("a", START + 2 * HOUR)) == 0
    assert main(["backfill", str(story.spec), "--from", "2024-01-01T00:00:00Z", "--to", "2024-01-01T01:00:00Z"]) == 0
    assert [outcome for outcome, _ in story.findings(FRESHNESS)] == ["failed", "passed"]


def test_where_nothing_arrives_the_rule_is_broken_by_now(tmp_path):
    rules = {"freshness": "2 hours", "severity": "warning"}, {"freshness": "7 days"}
    story = Story(tmp_path, *rules, time={"column": "t"}, windows=[{**TENS, "size": "1 hour"}])
    pipeline = load_pipeline(story.spec)
    told = [("warning", "the newest event is 3:00:00 old; expected at most 2 hours")]
    assert list(staleness_of(pipeline, START, START + HOUR)) == []
    assert list(staleness_of(pipeline, START, START + 3 * HOUR)) == told
    assert list(staleness_of(pipeline, None, START)) == []


def test_keys_are_those_of_one_window(tmp_path):
    rule = {"type": KEYS, "batches": 1, "window": "long"}
    story = Story(tmp_path, rule, windows=[TENS, {"name": "long", "type": "tumbling", "size": 100}])
    assert story.run(("a", 1), ("b", 2), ("a", 100)) == 0
    assert story.run(("a", 110)) == 0, "no row of the long window, so nothing to compare"
    assert story.run(("a", 200)) == 0, "the run before published no row of the long window"


def test_missing_keys_hold_the_batch_and_are_told(tmp_path, capsys):
    story = Story(tmp_path, {"type": KEYS, "batches": 2})
    assert story.run(("a", 1), ("b", 2), ("it's", 3), ("a", 10)) == 0
    assert story.run(("a", 11), ("b", 12), ("a", 20)) == 3
    pipeline = load_pipeline(story.spec)
    assert Ledger.open(pipeline).held_batch.number == 1
    assert 'breaks expect_keys_of_past_batches_to_be_present: {"k": "it\'s"}' in capsys.readouterr().err
    assert main(["quality", str(story.spec), "--json"]) == 0
    [row] = [row for row in json.loads(capsys.readouterr().out) if row["outcome"] == "failed"]
    assert (row["message"], row["examples"]) == ("1 of 3 keys of the last 2 runs have no row", [{"k": "it's"}])
    assert main(["quality", str(story.spec)]) == 0
    assert "k=it's" in capsys.readouterr().out
    assert "k=it&#39;s" in Path(write_report(pipeline)).read_text()
    assert main(["run", str(story.spec)]) == 3, "validated again, against the same runs"
    assert main(["release", str(story.spec)]) == 0
    assert story.run(("a", 21), ("b", 22), ("b", 30)) == 3, "the released batch is the second of the last two"


def test_values_that_break_a_rule_are_told(tmp_path, capsys):
    story = Story(tmp_path, {"type": "expect_column_values_to_be_between", "column": "n", "max_value": 2, "severity": "warning"})
    assert story.run(("a", 1), ("a", 2), ("a", 3), ("b", 3), ("b", 10)) == 0
    told = {"k": "a", "window": "w", "window_end": 10, "n": 3}
    assert f"breaks expect_column_values_to_be_between: {json.dumps(told)}" in capsys.readouterr().err
    assert main(["quality", str(story.spec)]) == 0
    assert "k=a, window=w, window_end=10, n=3" in capsys.readouterr().out
    page = Path(write_report(load_pipeline(story.spec))).read_text()
    assert "k=a, window=w, window_end=10: n=3" in page
