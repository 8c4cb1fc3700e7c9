"""Runs are compared with those before them, by the ledger and the sink; and rules are suggested from what these have published."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from deltalake import write_deltalake

from tests.specs import HOURS, TENS, TICKS, a_spec
from windowmill.checkpoints.ledger import Ledger
from windowmill.checkpoints.places import Places
from windowmill.expectations import gate
from windowmill.expectations.rule import KEYS, VOLUME
from windowmill.jobs.cli import main
from windowmill.jobs.commands.report_commands import suggestions_of
from windowmill.jobs.report import write_report
from windowmill.jobs.report.page import staleness_of
from windowmill.windowing.spec import FRESHNESS
from windowmill.windowing.specfile import load_pipeline

START = datetime(2024, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


class Story:
    """A pipeline whose versions are run one by one."""

    def __init__(self, folder: Path, *rules: dict[str, Any], **fields: Any) -> None:
        self.folder, self.spec = folder, folder / "p.yaml"
        given = {"keys": ["k"], "time": TICKS, "windows": [TENS], "compute": "local"} | ({"expectations": list(rules)} if rules else {})
        self.spec.write_text(yaml.safe_dump(a_spec(folder, **given | fields)))

    @classmethod
    def of_hours(cls, folder: Path, *rules: dict[str, Any], **time: Any) -> Story:
        """A pipeline over instants."""
        return cls(folder, *rules, time={"column": "t"} | time, windows=[HOURS])

    def run(self, *rows: tuple[str, Any], options: list[str] | None = None) -> int:
        keys, times = zip(*rows, strict=True)
        return self.run_over(pa.table({"k": list(keys), "t": list(times)}), *(options or []))

    def run_over(self, rows: pa.Table, *options: str) -> int:
        write_deltalake(str(self.folder / "source"), rows, mode="append")
        return main(["run", str(self.spec), *options])

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
    story, week = Story.of_hours(tmp_path, rule, watermark="data_interval_end"), 7 * 24
    for hour, count in ((0, 10), (1, 100), (2, 10), (week + 1, 40), (week + 2, 8)):
        at = START + hour * HOUR
        assert story.run(*[("a", at)] * count, options=["--data-interval-end", f"{at + HOUR:%Y-%m-%dT%H:%M:%S}"]) == 0
    found = story.findings(VOLUME)
    assert {outcome for outcome, _ in found[:3]} == {"passed"}
    assert found[3:] == [
        ("failed", "40 rows read, 0.4 times the 100 of the run of 7 days ago; expected at least 0.5"),
        ("passed", "passed"),
    ]


@pytest.mark.parametrize(("age", "code"), [(timedelta(hours=1), 0), (timedelta(hours=3), 3)])
def test_a_run_whose_newest_event_is_too_old_is_held(tmp_path, capsys, age, code):
    story = Story.of_hours(tmp_path, {"freshness": "2 hours"})
    now = datetime.now(UTC)
    assert story.run(("a", now - age - 2 * HOUR), ("a", now - age)) == code
    [(outcome, message)] = story.findings(FRESHNESS)
    assert outcome == ("failed" if code else "passed")
    assert code == 0 or (message.startswith("the newest event is 3:0") and message.endswith("old; expected at most 2 hours"))
    capsys.readouterr()


def test_the_freshness_of_a_backfill_is_not_judged(tmp_path):
    story = Story.of_hours(tmp_path, {"freshness": "2 hours", "severity": "warning"})
    assert story.run(("a", START), ("a", START + 2 * HOUR)) == 0
    assert main(["backfill", str(story.spec), "--from", "2024-01-01T00:00:00Z", "--to", "2024-01-01T01:00:00Z"]) == 0
    assert [outcome for outcome, _ in story.findings(FRESHNESS)] == ["failed", "passed"]


def test_where_nothing_arrives_the_rule_is_broken_by_now(tmp_path):
    story = Story.of_hours(tmp_path, {"freshness": "2 hours", "severity": "warning"}, {"freshness": "7 days"})
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


BETWEEN, IN_SET, NOT_NULL = (f"expect_column_values_to_{name}" for name in ("be_between", "be_in_set", "not_be_null"))


def run_version(story: Story, batch: int, keys: Iterable[str | bool] = "abc", scale: float = 1.0) -> int:
    """Run one version: five rows of each key in ten instants; ``odd`` is null for one key."""
    rows = [(key, 10 * batch + i, scale * (i + 1), None if key == "c" else i) for key in keys for i in (0, 2, 4, 6, 9)]
    k, t, x, odd = zip(*rows, strict=True)
    return story.run_over(pa.table({"k": list(k), "t": list(t), "x": list(x), "odd": pa.array(odd, pa.int64())}))


def suggested(story: Story, capsys: pytest.CaptureFixture[str], *options: str) -> str:
    capsys.readouterr()
    assert main(["suggest", str(story.spec), *options]) == 0
    return capsys.readouterr().out


@pytest.fixture
def story(tmp_path: Path) -> Story:
    aggregates = {"n": {"count": "*"}, "mean": {"mean": "x"}, "odd": {"max": "odd"}, "list": {"collect": "x"}}
    return Story(tmp_path, aggregates=aggregates)


def test_rules_rest_on_what_was_published_and_tell_an_odd_batch(story, capsys):
    for batch in range(14):
        assert run_version(story, batch) == 0
    suggestions = json.loads(suggested(story, capsys, "--json"))["suggestions"]
    found = {(each["rule"]["type"], each["rule"].get("column")): each for each in suggestions}
    assert set(found) == {
        (BETWEEN, "n"), (BETWEEN, "mean"), (NOT_NULL, "mean"), (NOT_NULL, "list"), (IN_SET, "k"), (VOLUME, None), (KEYS, None),
    }  # fmt: skip
    assert found[BETWEEN, "mean"]["why"] == "99.8 % of 39 values are 5.2 to 5.2; all are within the rule"
    assert found[IN_SET, "k"]["rule"]["value_set"] == ["a", "b", "c"]
    assert found[VOLUME, None]["rule"]["min_share"] == 0.5
    assert found[KEYS, None]["why"] == "each of the latest 8 runs had rows of every key of the 5 before it"
    story.spec.write_text(f"{story.spec.read_text()}{suggested(story, capsys)}")
    assert main(["validate", str(story.spec)]) == 0
    assert run_version(story, 14) == 0
    assert "verdict passed" in capsys.readouterr().out
    assert run_version(story, 15, keys="ad", scale=100) == 0
    assert run_version(story, 16) == 0
    assert "verdict warned" in capsys.readouterr().out


def suggested_ranges(folder: Path, windows: list[dict[str, Any]], **columns: list[Any]) -> list[dict[str, Any]]:
    spec = folder / "p.yaml"
    spec.write_text(yaml.safe_dump(a_spec(folder, time=TICKS, windows=windows, aggregates={"x": {"max": "x"}})))
    write_deltalake(str(folder / "sink"), pa.table(columns | {"batch": [0] * len(columns["x"])}))
    return [each for each in suggestions_of(load_pipeline(spec)).data["suggestions"] if each["rule"]["type"] == BETWEEN]


@pytest.mark.parametrize(
    ("values", "least", "most", "why"),
    [
        ([*(float(n % 100) for n in range(5_000)), 1e9, None], 0, 149, "99.8 % of 5,001 values are 0 to 99; 1 is outside of the rule"),
        ([225.0 + n % 11 for n in range(5_000)], 220, 240, "99.8 % of 5,000 values are 225 to 235; all are within the rule"),
    ],
    ids=["outliers do not widen it", "far from zero it has a floor"],
)
def test_a_range_holds_the_values_that_are_usual(tmp_path, values, least, most, why):
    [found] = suggested_ranges(tmp_path, [TENS], x=values)
    assert found["rule"] == {"type": BETWEEN, "column": "x", "min_value": least, "max_value": most, "severity": "warning"}
    assert found["why"] == why


def test_windows_that_differ_much_have_rules_of_their_own(tmp_path):
    windows = [TENS, {**TENS, "name": "long", "size": 100}]
    names, values = ["w", "long"] * 500, [float(n % 10 if n % 2 else 500 + n % 20) for n in range(1, 1_001)]
    found = suggested_ranges(tmp_path, windows, window=names, x=values)
    told = [(each["rule"]["row_condition"], each["rule"]["min_value"], each["rule"]["max_value"]) for each in found]
    assert told == [('col("window") == "w"', 0, 13), ('col("window") == "long"', 491, 527)]
    assert found[0]["why"] == "99.8 % of 500 values of w are 1 to 9; all are within the rule"
    (tmp_path / "alike").mkdir()
    [alike] = suggested_ranges(tmp_path / "alike", windows, window=names, x=[float(n % 10) for n in range(1_000)])
    assert "row_condition" not in alike["rule"]


@pytest.mark.parametrize("keys", [("a", ""), (True, False)])
def test_keys_that_no_set_may_hold_are_not_suggested_as_one(story, capsys, keys):
    for batch in range(17):
        assert run_version(story, batch, keys) == 0
    rules = suggested(story, capsys)
    assert BETWEEN in rules
    assert IN_SET not in rules
    story.spec.write_text(f"{story.spec.read_text()}{rules}")
    assert main(["validate", str(story.spec)]) == 0


def test_little_history_gives_no_rules_and_none_is_refused(story, capsys):
    assert main(["suggest", str(story.spec)]) == 2
    assert "there is no result table yet; run it first" in capsys.readouterr().err
    assert run_version(story, 0) == 0
    assert suggested(story, capsys) == "# no rules: a rule needs 30 values of a column, or 5 runs\n"
