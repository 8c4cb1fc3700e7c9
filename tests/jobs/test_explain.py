"""``windowmill explain``: as JSON, and on a terminal 100 columns wide."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from rich.console import Console

from tests.jobs.desk import Desk
from tests.specs import a_spec
from windowmill.jobs.cli import main
from windowmill.jobs.commands.explain import explanation_of
from windowmill.windowing.specfile import parse_pipeline

HOURLY = {"name": "hourly", "type": "tumbling", "size": "1 hour"}
DAY = {"name": "day", "type": "hopping", "size": "24 hours", "hop": "30 minutes"}
AGGREGATES = {"n": {"count": "*"}, "mean": {"mean": "delay"}, "worst": {"max": "delay"}}
SPEC = a_spec("data", pipeline="delays", keys=["origin"], time={"column": "t", "disorder": "1 hour"}, windows=[HOURLY, DAY])
SPEC["aggregates"] = AGGREGATES


def shown(width: int = 100, verbose: bool = True, **fields: Any) -> str:
    console = Console(width=width, highlight=False, soft_wrap=True, file=io.StringIO())
    with console.capture() as captured:
        console.print(explanation_of(parse_pipeline(SPEC | fields), verbose=verbose).text)
    return captured.get()


def test_the_command_prints_text_or_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    desk = Desk(tmp_path, capsys, **SPEC)
    assert "delays: 2 windows, 3 aggregates" in desk.call("explain")[1]
    told = desk.told("explain")
    assert (told["command"], told["refused"]) == ("run", [])
    assert [window["shape"]["n"] for window in told["windows"]] == [2, 48]
    [choice, *_] = told["windows"][1]["choices"]
    assert (choice["engine"], choice["combines"]["value"]) == ("two_stacks", 2.94)
    assert all(choice["why"] and choice["combines"]["formula"] for window in told["windows"] for choice in window["choices"])


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"windows": [{"name": "w", "type": "sliding", "evict": {"delta": {"column": "delay", "by": 5}}, "trigger": {"time": "1 minute"}}]},
        {"windows": [{"name": "w", "type": "sliding", "evict": {"time": "7 days"}, "trigger": {"time": "1 minute"}}]},
        {"emit": "revise", "windows": [{"name": "w", "type": "tumbling", "size": "1 day", "timezone": "Europe/Vienna", "empty": "emit"}]},
        {"aggregates": {f"aggregate_{number}": {"max": f"column_{number}"} for number in range(12)}},
    ],
    ids=["slices", "policies", "positions", "revisions", "many"],
)
def test_it_fits_a_terminal(fields):
    assert max(map(len, shown(**fields).splitlines())) <= 100
    assert max(map(len, shown(80, verbose=False, **fields).splitlines())) <= 80


VISITS = {"name": "visits", "type": "session", "gap": "1 hour"}
LAST = {"name": "last_50", "type": "sliding", "evict": {"count": 50}, "trigger": {"count": 10}}
SPANS = {"name": "spans", "type": "snapshot"}


#: Windows, and what the first page says of them in plain words.
FIRST_PAGES = {
    "engines": ([HOURLY, DAY, VISITS, LAST], """\
delays: 4 windows, 3 aggregates for each origin
hourly tumbling: 1 hour a run reads 2 slices of each key for a window that ends; the state keeps 51 rows
visits session: gap 1 hour a run reads the open sessions of all keys; the state keeps a row for each open session of a key
a run reads at most 12 nodes and the tuples that may leave, of keys with new rows; the state keeps 100 rows
shared hourly, day: what they keep is stored once
of a key; a result takes 31.3 combine steps (flatfat)"""),
    "live rows": ([SPANS], """\
a run reads the kept rows of keys that have new rows or are due; the state keeps the rows that a window may still hold
keeps rows windows.0: snapshot windows are no fixed grid"""),
}  # fmt: skip
#: Windows, the layout of each, and the reasons, combines and costs of state that are shown.
WHOLE = {
    "slices": ([HOURLY, DAY], ["slices", "slices"], """\
two_stacks what leaves is the oldest, and any associative aggregate will do; a key with late rows is recomputed
hourly: 1 combine a window: n − 1
day: 2.94 combines a window: 2m + 1 − (m² + 2m)/n; in a batch that completes w windows of a key, up to n/w more
51 rows or"""),
    "live rows": ([SPANS], ["live rows"], """\
done by windowmill run, backfill: leaves are live rows, kept as an append-only log in a Delta table
keeps rows windows.0: snapshot windows are no fixed grid
reads all entries of the keys that new rows touch and of those that the watermark makes due
adds an entry for each row that comes, goes"""),
    "positions": ([LAST], ["positions"], """\
done by windowmill run, backfill: leaves are tuples by position, with FlatFAT's nodes in a Delta table
100 rows or
the leaves that may leave a window in this batch, and at most 2·log2 n nodes for the rest of each window
flatfat the state holds its nodes over positions of tuples"""),
    "all ways": ([HOURLY, DAY, LAST, SPANS], ["slices", "slices", "positions", "live rows"], """\
leaves are slices (hourly, day); tuples by position, with FlatFAT's nodes (last_50); live rows, kept as an
append-only log (spans); all in one Delta table
keeps rows windows.3: snapshot windows are no fixed grid"""),
}  # fmt: skip


@pytest.mark.parametrize("case", FIRST_PAGES)
def test_the_first_page_says_in_plain_words_what_a_run_reads_keeps_and_combines(case):
    windows, told = FIRST_PAGES[case]
    text = " ".join(shown(verbose=False, windows=windows).split())
    assert [words for words in told.splitlines() if words not in text] == []


@pytest.mark.parametrize("case", WHOLE)
def test_each_window_and_engine_is_shown_with_its_reason_its_combines_and_what_its_state_costs(case):
    windows, layouts, told = WHOLE[case]
    found = explanation_of(parse_pipeline(SPEC | {"windows": windows}))
    assert (found.data["command"], [window["layout"] for window in found.data["windows"]]) == ("run", layouts)
    assert list(found.data["why"]) == [
        f"windows.{n}: snapshot windows are no fixed grid" for n, each in enumerate(windows) if each is SPANS
    ]
    text = " ".join(shown(windows=windows).split())
    assert [words for words in told.splitlines() if words not in text] == []
    assert ("keeps rows" in text) == (SPANS in windows)


def test_a_spec_without_source_and_sink_is_explained():
    spec = {name: part for name, part in SPEC.items() if name not in ("source", "sink")}
    found = explanation_of(parse_pipeline(spec))
    assert found.data["command"] == "kernel"
    assert "source: missing" in found.data["refused"][0][1]


def test_the_examples_pipeline_is_explained_without_java_or_its_source(tmp_path: Path):
    spec = Path(__file__).parents[2] / "examples" / "flights" / "pipeline.yaml"
    code = f"""
import sys
from windowmill.jobs.cli import main
assert main(["explain", {str(spec)!r}, "--json"]) == 0
print(sorted({{"pyspark", "great_expectations", "airflow", "pandas", "duckdb"}} & set(sys.modules)), file=sys.stderr)
"""
    environment = {"WAREHOUSE": str(tmp_path / "none"), "PATH": "/nonexistent", "HOME": str(tmp_path)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment, cwd=spec.parents[2], timeout=120)
    assert (done.stderr.strip(), json.loads(done.stdout)["pipeline"]) == ("[]", "flight_delays")


def test_it_says_how_exact_a_quantile_is():
    quantile = {"column": "delay", "q": 0.95}
    text = shown(
        width=400,
        aggregates={"p95": {"quantile": quantile}, "all_p95": {"quantile": quantile | {"exact": True}}, "half": {"median": "delay"}},
    )
    assert "p95: exact for up to 4,096 different values in a window; of more, a value that is too small by less than 0.8 %" in text
    assert "all_p95: exact; a partial holds every different value" in text
    assert "half: exact; a partial holds every different value" in text
    assert "values_in_order_delay at most as large as their rows" in text
    assert "accuracy" not in shown(), "sums and counts need no words"


def test_values_of_variables_are_shown_unless_they_are_secrets(tmp_path, capsys, monkeypatch):
    """A length that a variable gives is a length that other fields have, too."""
    given = {"DISORDER": "1 hour", "COUNT": "100", "ZONE": "UTC", "TEAM": "orders", "API_TOKEN": "s3cr3t-value"}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    path = tmp_path / "spec.yaml"
    path.write_text(
        """
pipeline: orders_by_hour
keys: ["${TEAM}"]
time: {column: t, disorder: "${DISORDER}"}
windows:
  - {name: hourly, type: hopping, size: 1 day, hop: 1 hour, timezone: "${ZONE}"}
  - {name: last, type: sliding, evict: {count: 100}, trigger: {count: 1}}
aggregates: {n: {count: "*", where: "name <> '${API_TOKEN}' and site = '${COUNT}'"}}
"""
    )
    for output in ([], ["--verbose"], ["--json"]):
        assert main(["explain", str(path), *output]) == 0
        told = capsys.readouterr().out
        assert "every 1 hour" in told
        assert not [name for name in ("${DISORDER}", "${COUNT}", "${ZONE}", "${TEAM}") if name in told]
        assert "s3cr3t" not in told


@pytest.mark.parametrize(
    ("zone", "unit", "told"),
    [("America/New_York", None, True), ("Atlantic/Azores", None, True), ("Europe/Vienna", None, False), ("America/New_York", "s", False)],
)
def test_dates_in_a_zone_west_of_utc_are_the_day_before(tmp_path, capsys, zone, unit, told):
    window = {"name": "daily", "type": "tumbling", "size": "1 day", "timezone": zone}
    desk = Desk(tmp_path, capsys, time={"column": "t"} | ({"unit": unit} if unit else {}), windows=[window])
    assert (desk.told("explain")["dates"] is not None) is told
    assert ("if t is a DATE, it counts at 00:00 UTC: in" in desk.call("explain")[1]) is told
    desk.land(t=pa.array([date(2024, 1, 1)]) if unit is None else pa.array([1_704_067_200]))
    code, out, _ = desk.call("validate", "--source")
    assert (code, "t is a DATE, which counts at 00:00 UTC" in out) == (0, told)
