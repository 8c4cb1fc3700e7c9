"""The report page: whole without tables, true to batches, rules and quarantine, and bounded."""

from __future__ import annotations

import json
import os
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
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
from windowmill.jobs.report import quality, write_report
from windowmill.jobs.report.cost import Month, figures_of, median_seconds
from windowmill.jobs.report.freshness import freshness_of
from windowmill.jobs.report.quality import read_quality
from windowmill.jobs.report.queries import ReportError, read_quarantine
from windowmill.windowing.axis import to_us
from windowmill.windowing.spec import Pipeline


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    return pipeline_at(tmp_path)


def test_pipeline_that_never_ran_has_a_page(pipeline):
    page = Page.of(pipeline)
    assert "never run" in page.words
    assert "No result rows yet" in page.words
    assert page.values("href") == ["#results"]


def test_page_needs_no_network(pipeline):
    publish(pipeline, [result_row(START)])
    commit(pipeline)
    page = Page.of(pipeline)
    assert not {"link", "img", "iframe", "object", "embed"} & set(page.tags)
    assert not page.values("src")
    assert not re.search(r"https?:|//[a-z]|url\(|@import", page.html)
    assert "default-src 'none'" in page.values("content", "meta")[1]


def test_page_can_be_read_aloud_and_without_scripts(pipeline):
    publish(pipeline, [result_row(START), result_row(START + HOUR)])
    commit(pipeline)
    page = Page.of(pipeline)
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
    from windowmill.jobs.commands.summaries import status_of

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
    """A backfill publishes rows anew; they are not two."""
    publish(pipeline, [result_row(START), result_row(START + HOUR), result_row(START + HOUR, window="day")])
    commit(pipeline, rows_published=3)
    backfilled(pipeline, rows_published=2)
    words = Page.of(pipeline).words
    assert "Published 3 result rows in 2 windows" in words
    assert "1 run, 1 backfill" in words


def test_warnings_are_those_of_the_last_batch(pipeline):
    commit(pipeline, rows_read=100, rows_applied=50, rows_quarantined=50)
    assert "Batch 0: 50 of 100 rows read (50.0%) were quarantined" in Page.of(pipeline).words
    backfilled(pipeline, rows_read=100, rows_applied=40, rows_quarantined=60)
    words = Page.of(pipeline).words
    assert "Batch 1: 60 of 100 rows read (60.0%) were quarantined" in words
    assert "50 of 100" not in words
    backfilled(pipeline, rows_read=100, rows_applied=100)
    assert "of 100 rows read" not in Page.of(pipeline).words


def test_the_demo_counts_rows_once(pipeline):
    commit(pipeline, rows_read=10, rows_applied=8, rows_published=3)
    backfilled(pipeline, rows_read=10, rows_applied=8, rows_published=2)
    table = batches_table(Ledger.open(pipeline), in_sink=3)
    footers = {column.header: column.footer for column in table.columns}
    assert footers == {
        "batch": "all", "rows": "10", "slices": "", "FlatFAT": "", "results": "3", "verdict": "", "s": "", "computed by": "", "tasks": "",
    }  # fmt: skip


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


def test_without_a_schedule_the_rate_is_that_of_the_latest_runs(tmp_path):
    pipeline = pipeline_at(tmp_path)
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
    monkeypatch.setattr("windowmill.jobs.report.BATCHES_SHOWN", 4)
    commit(pipeline, 7)
    page = Page.of(pipeline)
    assert "the latest 4 of 7 batches" in page.words
    bars = page.data["bars"]
    assert bars["rows"]["labels"] == bars["timings"]["labels"] == [3, 4, 5, 6]
    names = [series["name"] for plot in bars.values() if plot for series in plot["series"]]
    assert names == ["late, still counted", "quarantined", "apply", "rows read"]


def test_links_start_from_the_page(pipeline, tmp_path):
    publish(pipeline, [result_row(START)])
    docs = tmp_path / "delays.windowmill" / "docs" / "index.html"
    docs.parent.mkdir(parents=True)
    docs.write_text("docs")
    beside = Page.of(pipeline)
    assert {"docs/index.html", "../delays"} <= set(beside.values("href"))
    elsewhere = Page.of(pipeline, out=str(tmp_path / "a folder" / "page.html"))
    assert {"../delays.windowmill/docs/index.html", "../delays"} <= set(elsewhere.values("href"))


def test_batches_link_to_their_validations(pipeline, tmp_path):
    """The newest of a batch that was validated twice; pages of Data Docs link to the batch's row."""
    commit(pipeline, 2)
    docs = tmp_path / "delays.windowmill" / "docs"
    docs.mkdir(parents=True)
    pages = [f"batch-00000001-20130201T{at}0000000000Z-{verdict}.html" for at, verdict in (("13", "passed"), ("12", "held"))]
    for name in ("index.html", *pages):
        (docs / name).write_text("docs")
    page = Page.of(pipeline)
    assert [href for href in page.values("href") if "batch-" in href] == [f"docs/{pages[0]}"]
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
