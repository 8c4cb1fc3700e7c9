"""The charts of the report: true to the rows of the sink, and of the keys that matter."""

from __future__ import annotations

from hashlib import sha256
from importlib import resources
from pathlib import Path

import pyarrow as pa
import pytest

from tests.jobs.reporting import HOUR, START, Page, commit, pipeline_at, publish, result_row
from windowmill.jobs.report import ChartSelection, write_report
from windowmill.jobs.report.curves import Limit, bars_of, read_curves
from windowmill.jobs.report.queries import open_table
from windowmill.windowing.axis import to_us
from windowmill.windowing.errors import SpecError
from windowmill.windowing.spec import Pipeline


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    return pipeline_at(tmp_path)


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
    curves = read_curves(pipeline, open_table(pipeline.sink.path))
    [window] = curves.windows
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
    [window] = read_curves(pipeline, open_table(pipeline.sink.path)).windows
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
    [window] = read_curves(pipeline, open_table(pipeline.sink.path)).windows
    assert window.lines["flights"] == {("EWR", "UA"): [(to_us(START + n * HOUR), flights) for n, flights in drawn]}


@pytest.mark.parametrize("keys", [[], ["origin"], ["origin", "carrier", "flight"]], ids=len)
def test_any_number_of_keys(tmp_path, keys):
    pipeline = pipeline_at(tmp_path, keys=keys)
    others = {"origin", "carrier", "flight"} - set(keys)
    rows = [result_row(START + n * HOUR, flight=7) for n in range(3)]
    publish(pipeline, [{name: value for name, value in row.items() if name not in others} for row in rows])
    [window] = read_curves(pipeline, open_table(pipeline.sink.path)).windows
    assert list(window.lines["flights"]) == [tuple({"origin": "EWR", "carrier": "UA", "flight": "7"}[key] for key in keys)]
    Page.of(pipeline)


def test_null_and_quoted_keys_are_told_apart(tmp_path):
    pipeline = pipeline_at(tmp_path, keys=['or"igin'])
    publish(pipeline, [{'or"igin': key} | result_row(START, flights=n) for n, key in enumerate([None, "null", "O'Hare"])])
    [window] = read_curves(pipeline, open_table(pipeline.sink.path)).windows
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
