"""The report page: whole without tables, true to batches, rules, quarantine and the rows of the sink, and bounded."""

from __future__ import annotations

import json
import os
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from hashlib import sha256
from importlib import resources
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from rich.console import Console

from examples.flights.results import batches_table
from tests.checkpoints.records import commit as made
from tests.checkpoints.records import counts, plan
from tests.jobs.reporting import HOUR, START, Page, checked, commit, pipeline_at, publish, result_row, set_aside
from windowmill.checkpoints.ledger import Ledger
from windowmill.checkpoints.places import Places
from windowmill.jobs.commands.report_commands import cost_of
from windowmill.jobs.commands.summaries import status_of
from windowmill.jobs.report import ChartSelection, quality, write_report
from windowmill.jobs.report.cost import Month, figures_of, median_seconds
from windowmill.jobs.report.curves import Limit, bars_of, read_curves
from windowmill.jobs.report.page import freshness_of
from windowmill.jobs.report.quality import read_quality
from windowmill.jobs.report.queries import ReportError, open_table, read_quarantine
from windowmill.windowing.axis import to_us
from windowmill.windowing.errors import SpecError
from windowmill.windowing.spec import Pipeline


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    return pipeline_at(tmp_path)


def test_pipeline_that_never_ran_has_a_page(pipeline):
    page = Page.of(pipeline)
    assert "never run" in page.words
    assert "No result rows yet" in page.words
    assert page.values("href") == ["#results"]


def test_page_needs_no_network_and_can_be_read_aloud_and_without_scripts(pipeline):
    publish(pipeline, [result_row(START), result_row(START + HOUR)])
    commit(pipeline)
    page = Page.of(pipeline)
    assert not {"link", "img", "iframe", "object", "embed"} & set(page.tags)
    assert not page.values("src")
    assert not re.search(r"https?:|//[a-z]|url\(|@import", page.html)
    assert "default-src 'none'" in page.values("content", "meta")[1]
    assert page.values("lang", "html") == ["en"]
    drawings = page.values("role").count("img") + page.tags.count("svg")
    assert drawings > 1
    assert len(page.values("aria-label", "div")) + len(page.values("aria-hidden", "svg")) == drawings
    assert "EWR · UA 1 Feb 2013 01:00" in page.words, "without scripts, a table has the latest values"
    hidden = [tag for tag, name, _ in page.attributes if name == "hidden"]
    assert hidden == ["button"], "only the light and dark button waits for the script"


def test_key_figures_add_up(pipeline):
    commit(pipeline, 3, rows_read=1_500, rows_applied=1_490, rows_quarantined=10)
    words = Page.of(pipeline).words
    assert "Rows read 4,500 = 4,470 applied + 30 quarantined ✓" in words
    assert "Watermark 1 Feb 2013 02:30 results complete to 1 Feb 2013 02:00" in words
    assert "Batch 2: passed" in words
    assert "3 runs, 0 backfills" in words
    commit(pipeline, rows_read=11)
    assert "does not add up" in Page.of(pipeline).words


@pytest.mark.parametrize(("quarantined", "warned"), [(15, False), (16, True)])
def test_many_quarantined_rows_are_warned_of(pipeline, quarantined, warned):
    commit(pipeline, rows_read=1_500, rows_applied=1_500 - quarantined, rows_quarantined=quarantined)
    words = Page.of(pipeline).html
    assert ("16 of 1,500 rows read (1.1%) were quarantined" in words) is warned
    assert ("--arrival event_time" in (status_of(pipeline).data["warning"] or "")) is warned


def backfilled(pipeline: Pipeline, **outcome: Any) -> None:
    """A backfill of the running pipeline, as its newest batch."""
    ledger = Ledger.open(pipeline)
    last = ledger.newest.plan
    changes = {"from_version": -1, "to_version": last.to_version, "now_us": to_us(START), "meaning": pipeline.meaning_hash()}
    changes |= {"range_from": to_us(START), "range_to": to_us(START + HOUR), "builds_state": False}
    planned = plan(last.batch + 1, "b", action="backfill", **changes)
    told = {"seen": to_us(START + 3 * HOUR), "emitted": to_us(START + 2 * HOUR), "verdict": "passed"} | outcome
    ledger.record(planned, made(**told), {}, START + 9 * HOUR)


def test_published_are_the_rows_that_the_sink_holds(pipeline):
    """A backfill publishes rows anew; they are not two, also in the demo's table."""
    publish(pipeline, [result_row(START), result_row(START + HOUR), result_row(START + HOUR, window="day")])
    commit(pipeline, rows_read=10, rows_applied=8, rows_published=3)
    backfilled(pipeline, rows_read=10, rows_applied=8, rows_published=2)
    words = Page.of(pipeline).words
    assert "Published 3 result rows in 2 windows" in words
    assert "1 run, 1 backfill" in words
    footers = {column.header: column.footer for column in batches_table(Ledger.open(pipeline), in_sink=3).columns}
    assert footers == {
        "batch": "all", "rows": "10", "slices": "", "FlatFAT": "", "results": "3", "verdict": "", "s": "", "computed by": "", "tasks": "",
    }  # fmt: skip


def test_warnings_are_those_of_the_last_batch(pipeline):
    commit(pipeline, rows_read=100, rows_applied=50, rows_quarantined=50)
    assert "Batch 0: 50 of 100 rows read (50.0%) were quarantined" in Page.of(pipeline).words
    backfilled(pipeline, rows_read=100, rows_applied=40, rows_quarantined=60)
    words = Page.of(pipeline).words
    assert "Batch 1: 60 of 100 rows read (60.0%) were quarantined" in words
    assert "50 of 100" not in words
    backfilled(pipeline, rows_read=100, rows_applied=100)
    assert "of 100 rows read" not in Page.of(pipeline).words


def held_back(pipeline: Pipeline, verdict: str = "held") -> None:
    """A second batch, which a critical rule holds back."""
    commit(pipeline)
    ledger = Ledger.open(pipeline)
    planned = replace(ledger.newest.plan, batch=1, from_version=0, to_version=1)
    held = replace(ledger.newest.outcome, verdict="held", counts=counts(rows_published=2, ends=(to_us(START), to_us(START + HOUR))))
    ledger.record(planned, held, {}, START)
    if verdict != "held":
        ledger.rule(replace(ledger.newest.outcome, verdict=verdict), None, START)


def test_held_batch_says_why_and_what_next(pipeline):
    held_back(pipeline)
    places = Places.of(pipeline)
    broken = {"origin": "EWR", "carrier": "UA", "window": "hourly", "window_end": (START + HOUR).isoformat()}
    rows = [result_row(START + n * HOUR, mean_delay=1000.5 * n) for n in range(2)]
    ends = pa.timestamp("us", "UTC")
    columns = {name: pa.array([row[name] for row in rows], {"window_start": ends, "window_end": ends}.get(name)) for name in rows[0]}
    write_deltalake(places.held, pa.table(columns | {"trigger": pa.nulls(2, pa.int64())}))
    results = [
        checked(1, "failed", message="1 of 2 rows break the rule", examples=json.dumps([broken]), unexpected=1),
        checked(1, "failed", severity="warning", message="only a warning", rule=1, type="expect_column_max_to_be_between"),
    ]
    write_deltalake(places.quality, pa.Table.from_pylist(results))
    words = Page.of(pipeline, spec="specs/delays.yaml").words
    assert "Batch 1: held" in words
    assert "1 held" in words
    section = words[words.index("Batch 1 is held") : words.index("Newest event")]
    assert "its 2 rows are not published" in section
    assert "Windows that end 1 Feb 2013 00:00 – 1 Feb 2013 01:00." in section
    assert "values to be between mean_delay max value 9 1 of 2 rows break the rule" in section
    assert "EWR · UA, hourly, window end 1 Feb 2013 01:00 mean_delay=1000.5" in section
    assert "windowmill release specs/delays.yaml" in section
    assert "windowmill discard specs/delays.yaml" in section
    assert "abandon" not in section
    assert "only a warning" not in section
    changed = Page.of(pipeline.model_copy(update={"windows": pipeline.windows[:1]}), spec="specs/delays.yaml").words
    assert "The spec has changed since: put it back to release or discard the batch." in changed
    assert "windowmill abandon specs/delays.yaml" in changed


def test_a_discarded_batch_says_its_range(pipeline):
    held_back(pipeline, "discarded")
    words = Page.of(pipeline).words
    assert "Batch 1 was discarded by hand: rows of windows that end 1 Feb 2013 00:00 – 1 Feb 2013 01:00 UTC are not published." in words
    assert "is held" not in words


@pytest.mark.parametrize(("rows", "amber"), [((1_000, 9, 9), 0), ((1_000, 10, 9), 1), ((1_000, 10, 10), 2)], ids=str)
def test_shares_from_one_per_cent_on_are_amber(pipeline, rows, amber):
    read, late, quarantined = rows
    commit(pipeline, rows_read=read, rows_applied=read - quarantined, rows_late=late, rows_quarantined=quarantined)
    page = Page.of(pipeline)
    assert page.values("class", "div").count("card amber") == amber
    assert f"{late / read:.2g}"[2:].strip("0") in page.words


@pytest.mark.parametrize(
    ("schedule", "hours", "waits", "batch", "missed"),
    [
        ("@daily", 30, 1, "30 h ago; 1 scheduled instant since without a batch", 1),
        ("0 * * * *", 3, 1, "3 h ago; 3 scheduled instants since without a batch", 3),
        ("*/5 * * * *", 240, 1, "10 days ago; 1,000 or more scheduled instants since without a batch", 1_000),
        ("0 * * * *", 0, 1, "0 ms ago", 0),
        ("@continuous", 3, 1, "3 h ago", None),
        (None, 3, 1, "3 h ago", None),
        # Runs without anything to read are not missed.
        ("@hourly", 3, 0, "3 h ago; the source has nothing new since", 0),
        ("@hourly", 3, None, "3 h ago; 3 scheduled instants since without a batch", 3),
    ],
)
def test_freshness(tmp_path, schedule, hours, waits, batch, missed):
    pipeline = pipeline_at(tmp_path, schedule=schedule)
    ended = START + timedelta(minutes=30)
    found = freshness_of(pipeline, START - 4 * 24 * HOUR, ended, ended + hours * HOUR, lambda: waits)
    assert (found.batch, found.missed) == (batch, missed)
    assert found.event == f"{4 + (hours + 0.5) / 24:.0f} days behind"
    assert freshness_of(pipeline, ended + HOUR, None, ended, lambda: None).event == "60 min ahead"
    assert freshness_of(pipeline, 1_234, None, ended, lambda: None).event == "1,234"


def test_cost_of_each_batch_and_its_trend(pipeline):
    for n in range(8):
        compute = {"engine": "spark", "application": "app", "jobs": 1, "stages": 1, "tasks": n, "executors": 1}
        used = {"processor_seconds": 2.0 + n, "bytes_read": 7, "bytes_written": 5 * n, "state_bytes": 100 + n} if n else {}
        commit(pipeline, timings={"survey": 1.0, "apply": 1.0 if n < 4 else 2.0}, rows_read=10 + n, compute=compute, used=used)
    page = Page.of(pipeline)
    bars = page.data["bars"]
    assert [series["name"] for series in bars["timings"]["series"]] == ["survey", "apply"]
    assert bars["tasks"]["series"][0]["values"] == list(range(8))
    assert bars["read"]["series"][0]["values"] == list(range(10, 18))
    assert bars["bytes"] is None
    assert bars["processor_seconds"]["series"][0]["values"] == [0, *range(3, 10)]
    assert bars["state_bytes"]["series"][0]["values"] == [0, *range(101, 108)]
    assert "median of the latest 4 runs 3.0 s, of the 4 before 2.0 s, +50%" in page.words


def test_processor_time_of_a_client_is_not_taken_for_that_of_a_batch(tmp_path):
    pipeline = pipeline_at(tmp_path, schedule="@daily")
    for used in ({"processor_seconds": 9.0}, {"processor_seconds": 8.0}, {"client_processor_seconds": 0.5}):
        commit(pipeline, timings={"apply": 1.0}, used=used)
    batches = Ledger.open(pipeline).recent(9)
    assert [(each["processor_seconds"], each["client_processor_seconds"]) for each in map(figures_of, batches)] == [
        (9.0, None), (8.0, None), (None, 0.5),
    ]  # fmt: skip
    month = Month.of(pipeline, batches)
    assert month.processor_seconds == pytest.approx(8 * 365 / 12)
    shown = StringIO()
    Console(file=shown, width=120).print(cost_of(pipeline, 9, None).text)
    assert "processor: – where a Connect server or a cluster computed the batch" in shown.getvalue()


@pytest.mark.parametrize(
    ("schedule", "runs"), [("*/30 * * * *", 1460), ("@daily", 365 / 12), ("15 3 1 * *", 1), ("0 6,18 * * 1-5", 43.5), ("@once", None)]
)
def test_what_a_month_costs(tmp_path, schedule, runs):
    pipeline = pipeline_at(tmp_path, schedule=schedule)
    ledger = Ledger.open(pipeline)
    assert Month.of(pipeline, ledger.recent(9)) is None
    commit(pipeline, 2, timings={"apply": 36.0})
    month = Month.of(pipeline, Ledger.open(pipeline).recent(9), price_per_hour=2.0)
    if runs is None:
        assert month is None
    else:
        assert (month.runs, month.seconds, month.price) == (pytest.approx(runs), pytest.approx(36 * runs), pytest.approx(runs / 50))
        assert month.processor_seconds is None


def test_a_month_and_the_trend_are_those_of_runs_after_the_first_batch(tmp_path):
    pipeline = pipeline_at(tmp_path, schedule="@daily")
    commit(pipeline, timings={"apply": 1_000.0})
    [first] = Ledger.open(pipeline).recent(9)
    assert Month.of(pipeline, [first]) is None
    runs = [replace(first, plan=replace(first.plan, batch=n), outcome=replace(first.outcome, timings={"apply": 2.0})) for n in (1, 2)]
    applied = replace(first, plan=SimpleNamespace(batch=3, action="apply"))
    assert Month.of(pipeline, [first, *runs, applied]).seconds == pytest.approx(2.0 * 365 / 12)
    assert median_seconds([first, *runs, applied]) == 2.0


def test_without_a_schedule_the_rate_is_that_of_the_latest_runs(pipeline):
    commit(pipeline, timings={"apply": 1.0})
    [batch] = Ledger.open(pipeline).recent(9)
    runs = [replace(batch, plan=replace(batch.plan, now_us=hour * 3_600_000_000)) for hour in range(5)]
    assert Month.of(pipeline, runs[:2]) is None
    month = Month.of(pipeline, runs)
    assert (month.runs, month.basis) == (pytest.approx(24 * 365 / 12), "as often as the latest 5")


def test_strings_of_the_tables_are_text_not_markup(pipeline):
    wicked = '<script>alert("x")</script>'
    carrier, shown = "a&b'\"\u202e", "a&b'\"\ufffd"  # a mark that turns the order of signs around
    publish(pipeline, [result_row(START, origin=wicked, carrier=carrier), result_row(START + HOUR, origin=wicked, carrier=carrier)])
    commit(pipeline)
    places = Places.of(pipeline)
    write_deltalake(places.quarantine, pa.Table.from_pylist([set_aside(0, wicked, json.dumps({"origin": wicked}))]))
    examples = json.dumps([{"origin": wicked}])
    write_deltalake(places.quality, pa.Table.from_pylist([checked(0, "failed", message=wicked, column=wicked, examples=examples)]))
    page = Page.of(pipeline)
    assert page.tags.count("script") == 3, "the data, uPlot, and the page's own"
    assert page.words.count(wicked) >= 5
    assert f"{wicked} · {shown}" in page.words
    assert page.data["keys"] == [f"{wicked} · {shown}"]


def test_quarantine_counts_by_reason_and_batch(pipeline):
    commit(pipeline, 3)
    place = Places.of(pipeline).quarantine
    secret = json.dumps({"origin": "EWR", "departed_at": None, "passenger": "secret"})
    rows = [set_aside(batch, reason, secret) for batch, reason in ((0, "too_late"), (0, "null_time"), (2, "too_late"), (2, "too_late"))]
    write_deltalake(place, pa.Table.from_pylist(rows))
    found = read_quarantine(place, 1, ("origin", "departed_at"))
    assert [(reason.reason, reason.rows, reason.batches, reason.last_batch) for reason in found.reasons] == [
        ("too_late", 3, 2, 2),
        ("null_time", 1, 1, 0),
    ]
    assert found.by_batch == {"too_late": {2: 2}}
    page = Page.of(pipeline)
    assert "origin=EWR, departed_at=null" in page.words
    assert "secret" not in page.html
    bars = page.data["bars"]["rows"]
    assert bars["labels"] == [0, 1, 2]
    assert {series["name"]: series["values"] for series in bars["series"]} == {
        "late, still counted": [1, 1, 1],
        "quarantined: too_late": [1, 0, 2],
        "quarantined: null_time": [1, 0, 0],
        "quarantined": [0, 2, 0],
    }


def test_quality_shows_the_last_attempt_and_tells_warnings_and_broken_rules(pipeline):
    place = Places.of(pipeline).quality
    rows = [
        checked(0, "failed", attempt="first", at=START),
        checked(0, "passed", attempt="second", at=START + HOUR),
        checked(1, "failed", severity="warning", rule=4, unexpected=3),
        checked(2, "broken", observed=json.dumps("no column x")),
        checked(2, "passed", column="flights", rule=1),
    ]
    write_deltalake(place, pa.Table.from_pylist(rows))
    quality = read_quality(place)
    assert quality.columns == [("g", 0), ("g", 1), ("g", 2)]
    assert {rule.column: rule.outcomes for rule in quality.rules} == {
        "mean_delay": {("g", 0): "passed", ("g", 1): "warned", ("g", 2): "broken"},
        "flights": {("g", 2): "passed"},
    }
    assert [(failure.batch, failure.outcome, failure.earlier, failure.observed) for failure in quality.failures] == [
        (2, "broken", 1, "no column x")
    ]
    page = Page.of(pipeline)
    assert page.values("aria-label", "i") == ["passed", "warned", "broken", "passed"]


def condition(kind: str, **fields: Any) -> str:
    return json.dumps({"row_condition": {"type": kind} | fields})


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (None, ""),
        ("[", "["),
        ('{"column": "n", "min_value": 1, "max_value": null}', "min value 1"),
        ('{"column_list": ["a", "b"], "mostly": 0.9}', "column list a, b, mostly 0.9"),
        (condition("comparison", column={"name": "window"}, operator="IN", parameter=["a", "b"]), "row condition window IN a, b"),
        (condition("and", conditions=[{"type": "nullity", "column": {"name": "k"}, "is_null": True}]), "row condition (k IS NULL)"),
    ],
)
def test_arguments_of_rules_are_shown_as_text(arguments, shown):
    assert quality._arguments(arguments) == shown


def test_page_is_bounded(tmp_path):
    windows = [{"name": f"w{n}", "type": "tumbling", "size": "1 hour"} for n in range(9)]
    aggregates = {f"a{n}": {"mean": "delay"} for n in range(12)}
    pipeline = pipeline_at(tmp_path, windows=windows, aggregates=aggregates)
    size = 9 * 30 * 600
    numbers = range(size)
    table: dict[str, Any] = {
        name: [f"{name[0].upper()}{n // step % many}" for n in numbers] for name, step, many in (("origin", 1, 5), ("carrier", 5, 6))
    }
    table["window"] = [f"w{n // 30 % 9}" for n in numbers]
    ends = pa.array([to_us(START) + n // 270 * 3_600_000_000 for n in numbers]).cast(pa.timestamp("us", "UTC"))
    table |= {"window_start": ends, "window_end": ends, "trigger": pa.nulls(size, pa.int64()), "revision": pa.array([0] * size, pa.int32())}
    table |= {name: pa.array([float((n * 7919) % (1000 + i)) for n in numbers]) for i, name in enumerate(aggregates)}
    write_deltalake(pipeline.sink.path, pa.table(table))
    page = Page.of(pipeline)
    assert len(page.html.encode()) < 3_000_000
    assert "Windows not drawn: w6, w7, w8" in page.words


def test_many_batches_show_the_latest(pipeline, monkeypatch):
    monkeypatch.setattr("windowmill.jobs.report.page.BATCHES_SHOWN", 4)
    commit(pipeline, 7)
    page = Page.of(pipeline)
    assert "the latest 4 of 7 batches" in page.words
    bars = page.data["bars"]
    assert bars["rows"]["labels"] == bars["timings"]["labels"] == [3, 4, 5, 6]
    names = [series["name"] for plot in bars.values() if plot for series in plot["series"]]
    assert names == ["late, still counted", "quarantined", "apply", "rows read"]


def test_links_start_from_the_page_and_lead_to_tables_and_validations(pipeline, tmp_path):
    """The newest of a batch that was validated twice; pages of Data Docs link to the batch's row."""
    publish(pipeline, [result_row(START)])
    commit(pipeline, 2)
    docs = tmp_path / "delays.windowmill" / "docs"
    docs.mkdir(parents=True)
    pages = [f"batch-00000001-20130201T{at}0000000000Z-{verdict}.html" for at, verdict in (("13", "passed"), ("12", "held"))]
    for name in ("index.html", *pages):
        (docs / name).write_text("docs")
    page = Page.of(pipeline)
    assert {"docs/index.html", "../delays"} <= set(page.values("href"))
    assert [href for href in page.values("href") if "batch-" in href] == [f"docs/{pages[0]}"]
    elsewhere = Page.of(pipeline, out=str(tmp_path / "a folder" / "page.html"))
    assert {"../delays.windowmill/docs/index.html", "../delays"} <= set(elsewhere.values("href"))
    assert {"batch-0", "batch-1"} <= set(page.values("id", "tr"))


def test_a_page_that_cannot_be_written_is_told_in_one_line(pipeline, tmp_path):
    for target in ("nowhere://bucket/page.html", f"{tmp_path}"):
        with pytest.raises(ReportError, match=rf"^report {target}: cannot be written .*--out$"):
            write_report(pipeline, out=target)


def test_out_may_be_a_uri_a_link_or_a_pipe(pipeline, tmp_path):
    target = f"file://{tmp_path}/page.html"
    assert write_report(pipeline, out=target) == target
    assert "never run" in (tmp_path / "page.html").read_text(encoding="utf-8")
    (tmp_path / "page.html").write_text("")
    (tmp_path / "link.html").symlink_to(tmp_path / "page.html")
    write_report(pipeline, out=str(tmp_path / "link.html"))
    assert (tmp_path / "link.html").is_symlink()
    assert "never run" in (tmp_path / "page.html").read_text(encoding="utf-8")
    os.mkfifo(tmp_path / "pipe")
    with ThreadPoolExecutor() as threads:
        # A page is longer than what a pipe holds.
        read = threads.submit((tmp_path / "pipe").read_text)
        write_report(pipeline, out=str(tmp_path / "pipe"))
        assert (tmp_path / "pipe").is_fifo()
        assert "<title>" in read.result(timeout=60)


def test_damaged_table_leaves_the_old_page(pipeline):
    publish(pipeline, [result_row(START)])
    before = Page.of(pipeline).html
    files = list(Path(pipeline.sink.path).glob("*.parquet"))
    assert files
    for file in files:
        file.unlink()
    with pytest.raises(ReportError, match=r"^table .*delays.* cannot be read for the report .*; nothing has been written"):
        write_report(pipeline)
    assert Path(Places.of(pipeline).report).read_text(encoding="utf-8") == before


def curves_of(pipeline: Pipeline) -> Any:
    """The curves of the only window with results."""
    [window] = read_curves(pipeline, open_table(pipeline.sink.path)).windows
    return window


def test_curves_are_the_rows(pipeline):
    publish(pipeline, [result_row(START + n * HOUR, flights=n, mean_delay=n / 2) for n in range(5)])
    curves = read_curves(pipeline, open_table(pipeline.sink.path))
    assert [window.name for window in curves.windows] == ["hourly"]
    assert curves.aggregates == ["mean_delay", "flights"]
    assert curves.aggregates_left_out == ["worst"]
    [window] = curves.windows
    assert window.near == window.low
    assert window.lines["flights"] == {("EWR", "UA"): [(to_us(START + n * HOUR), float(n)) for n in range(5)]}


def test_long_lines_keep_their_extremes(pipeline):
    values = [(n * 7919) % 1009 for n in range(6_000)]
    publish(pipeline, [result_row(START + n * HOUR, flights=value) for n, value in enumerate(values)])
    window = curves_of(pipeline)
    points = window.lines["flights"]["EWR", "UA"]
    assert len(points) <= 500
    assert window.low < window.near < window.high
    rows = {to_us(START + n * HOUR): float(value) for n, value in enumerate(values)}
    assert all(rows[t] == value for t, value in points), "every point drawn is a row"
    for start, end in ((window.low, window.near), (window.near, window.high + 1)):
        drawn, shown = ([value for t, value in line if start <= t < end] for line in (rows.items(), points))
        assert (min(drawn), max(drawn)) == (min(shown), max(shown))
    assert [t for t, _ in points if t >= window.near] == [t for t in rows if t >= window.near], "the latest stretch has all its rows"
    assert points == sorted(points)


def test_a_reader_chooses_aggregates_and_keys(pipeline):
    publish(pipeline, [result_row(START, origin=origin, carrier=carrier) for origin in ("EWR", "JFK", "it's") for carrier in ("UA", None)])
    page = Page.of(pipeline, choice=ChartSelection.of(pipeline, ["flights"], ["origin=JFK", "origin=it's", "carrier"]))
    assert page.data["keys"] == ["JFK · null", "it's · null"]
    assert [aggregate["name"] for aggregate in page.data["aggregates"]] == ["flights"]
    assert "2 rows. Keys on this page (origin, carrier; only origin JFK or it's, carrier null): all 2" in page.words
    assert "Aggregates not drawn: mean_delay, worst." in page.words


@pytest.mark.parametrize(
    ("aggregates", "keys", "told"),
    [
        (["none"], [], "report --aggregate: got 'none'; expected one of flights, mean_delay, worst"),
        (["worst"], [], "report --aggregate: got 'worst', whose results are no numbers; expected some of flights, mean_delay"),
        ([], ["dest=JFK"], "report --key: got 'dest=JFK'; expected NAME=VALUE with a key column: origin, carrier"),
        ([], ["origin=LGA"], "report --key: no result row has origin LGA; give values as the report shows them"),
    ],
)
def test_a_choice_that_cannot_be_drawn_is_told_in_one_line(pipeline, aggregates, keys, told):
    publish(pipeline, [result_row(START)])
    with pytest.raises(SpecError) as caught:
        write_report(pipeline, choice=ChartSelection.of(pipeline, aggregates, keys))
    assert str(caught.value) == told


def test_keys_come_and_go_and_those_of_the_stretch_shown_first_are_drawn(pipeline, monkeypatch):
    monkeypatch.setattr("windowmill.jobs.report.curves.KEYS_SHOWN", 12)
    rows = [result_row(START + n * HOUR, origin=f"O{n // 20:02}", flights=1_000 - n, mean_delay=n % 20 + 0.5) for n in range(600)]
    publish(pipeline, [*rows, *(result_row(START + n * HOUR, origin=f"new{n % 4}", flights=1) for n in range(560, 600))])
    page = Page.of(pipeline)
    [window] = page.data["windows"]
    assert 0 < window["near"] < window["end"]
    here = {*(f"O{n // 20:02} · UA" for n in range(600 - 97, 600)), *(f"new{n} · UA" for n in range(4))}
    near, whole = window["ranks"]
    keys = page.data["keys"]
    assert {key for key, rank in zip(keys, near, strict=True) if rank} <= here
    assert sum(rank is not None for rank in near) >= len(keys) // 2, "those of the first view, and of the whole, in turn"
    assert all(whole)
    of_newest = keys.index("O29 · UA")
    assert near[of_newest] == whole[of_newest] == [sum(1_000 - n for n in range(580, 600)), near[of_newest][1]]
    latest = [sum(window["times"][line[0]]) for line in window["lines"][0]]
    assert all(last >= window["near"] for last, rank in zip(latest, near, strict=True) if rank), "and have points in it"


def test_keys_that_matter_are_drawn(pipeline, monkeypatch):
    """Of volume, highest value and change in turn; the page says how many are left out."""
    monkeypatch.setattr("windowmill.jobs.report.curves.KEYS_SHOWN", 6)
    rows = [
        result_row(START + n * HOUR, origin=f"O{o}", flights=10 * o, mean_delay=100.0 - 10 * o + (50.0 if o == 3 and n == 9 else 0.0))
        for o in range(9)
        for n in range(10)
    ]
    publish(pipeline, rows)
    curves = read_curves(pipeline, open_table(pipeline.sink.path))
    assert [key[0] for key in curves.keys] == ["O8", "O3", "O7", "O0", "O6", "O1"]
    [window] = curves.windows
    assert (window.rows, window.keys, len(window.figures)) == (90, 9, 6)
    assert set(window.lines["flights"]) == set(curves.keys)
    page = Page.of(pipeline)
    assert "6 of 9, those with the greatest volume, the highest value or the greatest change" in page.words
    assert page.data["keys"] == [f"{origin} · UA" for origin in ("O8", "O3", "O7", "O0", "O6", "O1")]


def test_worst_values_begin_with_those_that_break_a_rule(tmp_path):
    between = "expect_column_values_to_be_between"
    rules = [
        {"type": between, "column": "mean_delay", "max_value": 50, "severity": "warning"},
        {"type": between, "column": "flights", "min_value": 3, "severity": "critical"},
        {"type": between, "column": "mean_delay", "max_value": 10, "severity": "info", "row_condition": 'col("flights") > 5'},
    ]
    pipeline = pipeline_at(tmp_path, expectations=rules)
    values = {"A": (9, 60.0), "B": (2, 10.0), "C": (9, 40.0), "D": (9, 80.0), "E": (9, 45.0)}
    rows = [
        result_row(START + n * HOUR, origin=origin, flights=flights if n else 9, mean_delay=delay if n else 1.0)
        for origin, (flights, delay) in values.items()
        for n in range(2)
    ]
    publish(pipeline, rows)
    window = curves_of(pipeline)
    warned, held = Limit("warning", None, 50.0), Limit("critical", 3.0, None)
    later = to_us(START + HOUR)
    assert [(worst.key[0], worst.aggregate, worst.value, worst.broken) for worst in window.worst] == [
        ("B", "flights", 2.0, held),
        ("D", "mean_delay", 80.0, warned),
        ("A", "mean_delay", 60.0, warned),
        ("E", "mean_delay", 45.0, None),
        ("C", "mean_delay", 40.0, None),
        ("B", "mean_delay", 10.0, None),
    ]
    assert {worst.end for worst in window.worst} == {later}
    page = Page.of(pipeline)
    assert "D · UA 1 Feb 2013 01:00 mean_delay 80 ✕ at most 50 [warning]" in page.words
    assert [int(key) for key in page.values("data-key", "a")] == [page.data["keys"].index(f"{key} · UA") for key in "BDAECB"]


def test_lines_share_their_instants_in_the_data(pipeline):
    publish(pipeline, [result_row(START + n * n * HOUR, origin=o, flights=n) for o in ("A", "B") for n in range(4)])
    [window] = Page.of(pipeline).data["windows"]
    assert window["low"] == to_us(START)
    assert window["unit"] == 3_600_000_000
    assert (window["near"], window["end"]) == (0, 9)
    assert len(window["ranks"]) == 1
    assert window["times"] == [[0, 1, 3, 5]]
    assert window["lines"][1] == [[0, [0, 1, 2, 3]], [0, [0, 1, 2, 3]]]
    assert window["gaps"][1] == pytest.approx(4, rel=0.01)


@pytest.mark.parametrize(
    ("emit", "told", "drawn"),
    [
        ("revise", [(0, 1, 7, False), (0, 0, 3, False), (0, 2, 5, False)], [(0, 5.0)]),
        ("final", [(0, 0, 7, None), (0, 1, 0, True), (1, 0, 3, None), (1, 1, 4, None)], [(1, 4.0)]),
    ],
    ids=["revisions", "retracted windows"],
)
def test_the_newest_revision_is_drawn_unless_it_retracts_the_window(tmp_path, emit, told, drawn):
    pipeline = pipeline_at(tmp_path, emit=emit)
    publish(pipeline, [result_row(START + n * HOUR, revision=r, flights=flights, retracted=gone) for n, r, flights, gone in told])
    window = curves_of(pipeline)
    assert window.lines["flights"] == {("EWR", "UA"): [(to_us(START + n * HOUR), flights) for n, flights in drawn]}


@pytest.mark.parametrize("keys", [[], ["origin"], ["origin", "carrier", "flight"]], ids=len)
def test_any_number_of_keys(tmp_path, keys):
    pipeline = pipeline_at(tmp_path, keys=keys)
    others = {"origin", "carrier", "flight"} - set(keys)
    rows = [result_row(START + n * HOUR, flight=7) for n in range(3)]
    publish(pipeline, [{name: value for name, value in row.items() if name not in others} for row in rows])
    window = curves_of(pipeline)
    assert list(window.lines["flights"]) == [tuple({"origin": "EWR", "carrier": "UA", "flight": "7"}[key] for key in keys)]
    Page.of(pipeline)


def test_null_and_quoted_keys_are_told_apart(tmp_path):
    pipeline = pipeline_at(tmp_path, keys=['or"igin'])
    publish(pipeline, [{'or"igin': key} | result_row(START, flights=n) for n, key in enumerate([None, "null", "O'Hare"])])
    window = curves_of(pipeline)
    assert set(window.lines["flights"]) == {(None,), ("null",), ("O'Hare",)}


def test_integer_axis(tmp_path):
    windows = [{"name": "hundreds", "type": "tumbling", "size": 100}]
    pipeline = pipeline_at(tmp_path, time={"column": "tick", "unit": "none", "disorder": 5}, windows=windows)
    publish(pipeline, [result_row(n * 100, window="hundreds") for n in range(-2, 8)], axis=pa.int64())
    commit(pipeline, seen=1_234, emitted=1_200)
    page = Page.of(pipeline)
    assert "−200 – 700" in page.words
    assert "Watermark 1,229 results complete to 1,200" in page.words
    assert page.data["integer"] is True


def test_aggregates_without_values_leave_a_word(pipeline):
    publish(pipeline, [result_row(START + n * HOUR, mean_delay=value) for n, value in enumerate([None, float("nan"), float("inf")])])
    commit(pipeline)
    page = Page.of(pipeline)
    assert "1 Feb 2013 02:00 – 1" in page.words
    mean_delay, flights = page.data["windows"][0]["lines"]
    assert mean_delay == [None]
    assert flights == [[0, [1, 1, 1]]]


def test_structs_and_lists_are_not_drawn(tmp_path):
    pipeline = pipeline_at(tmp_path, aggregates={"trend": {"linear_trend": ["x", "y"]}, "all": {"collect": "x"}})
    publish(pipeline, [result_row(START) | {"trend": {"slope": 1.0}, "all": [1.0]}])
    page = Page.of(pipeline)
    assert "None of the aggregates is a number" in page.words
    assert page.data["windows"] == []


def test_bars_without_values_are_not_drawn():
    assert bars_of([0, 1], {"s0": ("late", [1, 0.5])}) == {
        "labels": [0, 1],
        "series": [{"colour": "s0", "name": "late", "values": [1, 0.5]}],
    }
    assert bars_of([0], {"s0": ("late", [0])}) is None


def test_uplot_is_the_package_that_is_named():
    """Its version and digests are noted in one place."""
    folder = resources.files("windowmill.jobs.report") / "uplot"
    named, *sums = (folder / "SHA256SUMS").read_text().splitlines()
    version = named.removeprefix("# uPlot ").partition(",")[0]
    digests = {name: digest for digest, name in (line.split("  ") for line in sums)}
    assert set(digests) == {file.name for file in folder.iterdir()} - {"SHA256SUMS"}
    assert {name: sha256((folder / name).read_bytes()).hexdigest() for name in digests} == digests
    assert f"(v{version})" in (folder / "uPlot.iife.min.js").read_text().partition("\n")[0]
