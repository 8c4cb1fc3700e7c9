"""Expressions over rows of every type: the evaluator over Arrow tables and Spark say the same of every row, and fail on the same ones."""

from __future__ import annotations

import os

import pytest

from tests.jobs.practice import PRACTICE
from tests.jobs.practice import ROWS as PRACTICE_ROWS
from tests.spark.both_roads import by_arrow, by_spark, differing, frame_of
from tests.spark.generated_conditions import FUNCTIONS, ROWS, Grammar
from tests.spark.harness import BASE, MINUTE, Bench
from windowmill.jobs.conditions.checks import condition_problem
from windowmill.jobs.layouts import limits
from windowmill.jobs.schedulers import tasks
from windowmill.jobs.sources import spark_files

pytestmark = [pytest.mark.spark, pytest.mark.classic]

COUNT, SEED = int(os.environ.get("WINDOWMILL_CONDITIONS", "100")), int(os.environ.get("WINDOWMILL_CONDITIONS_SEED", "1"))
#: What led to a difference once.
FOUND = [
    *("cast(s as double) = 5", "isnan(cast(s as double))", "isnan(try_cast(s as double))", "cast(s as double) is not null", "s > 1.5D"),
    *("i = cast(9007199254740993.0 as bigint)", "f = 9007199254740993.0", "i = 9007199254740993.0", "try_cast(1e30 as bigint) is null"),
    *("cast(null as bigint) = i", "i > cast(-2.5 as int)", "f < 123456789012345678901234567890.5", "cast(- -1.5 as bigint) = 1"),
    *("hour(t) < 4", "hour(m) < 4", "year(t) = 2024", "t > '2024-03-10'", "m >= '2024-03-10 02:30'", "t = m", "dayofweek(m) = 1"),
    *("try_cast('x' as int) is null", "quarter(t) = 1 and minute(m) > 0", "dayofyear(t) > 60"),
]
#: What Spark alone evaluates, or refuses.
NOT_HERE = [
    *(
        "iff(i > 0, true, false)",
        "i > 1234567890123456789012345678901234567890",
        "i > 12345678901234567890",
        "case when null then b else o end",
        "case when nullif(null, b) then b else o end",
    ),
    *("if(null, b, o)", "array(i, j)[0] > 1", "cast(f as string) = '1'", "ln(f) > 1", "s rlike 'a[b[c]]'", "date_format(t, 'w') = '1'"),
    *("hash(s) > 1", "hex(i)", "map_keys(e)[0] = 'a'", "s rlike '(?=a)'", "x like any ('a', 'b')", "i << 3", "extract(second from t) > 1"),
]
#: What Spark alone evaluates, over the columns ``label`` and ``t``.
BY_SPARK = [
    *("xxhash64(label) % 3 = 0", "hash(label) % 3 = 0", "md5(label) > '8'", "exists(split(label, ' '), x -> x > '2')"),
    *("array(label, 'label 3')[1] = label", "label rlike '(?=.*1)l'", "label like any ('%1', '%2')", "hex(label) like '%31'"),
    *("t + interval '1 day 2 hours' > from_utc_timestamp(t, 'Europe/Paris')", "date_format(t, 'EEEE') = 'Friday'"),
]


@pytest.fixture(scope="module")
def frame(spark):
    return frame_of(spark, ROWS)


def _differing(spark, expressions, rows, frame):
    here = by_arrow(expressions, rows)
    theirs = by_spark(spark, list(here), frame)
    return here, {text: found for text in here if (found := differing(here[text], theirs[text]))}


def test_each_function_and_operator(spark, frame):
    here, found = _differing(spark, [*FOUND, *FUNCTIONS], ROWS, frame)
    assert found == {}
    assert here.keys() == {*FOUND, *FUNCTIONS}


def test_generated_conditions(spark, frame):
    drawn = [text for text in Grammar(SEED).conditions(COUNT) if condition_problem(text) is None]
    here, found = _differing(spark, drawn, ROWS, frame)
    assert found == {}
    assert len(here) > 0.7 * len(drawn)


def test_conditions_as_people_write_them(spark):
    here, found = _differing(spark, PRACTICE, PRACTICE_ROWS, frame_of(spark, PRACTICE_ROWS))
    assert found == {}
    assert len(here) >= 0.95 * len(PRACTICE)


@pytest.mark.parametrize("text", NOT_HERE)
def test_what_is_left_to_spark(text):
    assert by_arrow([text], ROWS) == {}


@pytest.mark.parametrize("here", [True, False], ids=["one task", "tasks"])
def test_spark_is_asked_once_about_what_only_it_evaluates(spark, tmp_path, monkeypatch, here):
    if not here:
        monkeypatch.setattr(limits, "MAX_ROWS", 0)
    monkeypatch.setattr(spark_files, "read_rows", None)  # Spark does not read the rows themselves
    monkeypatch.setattr(tasks, "read_rows", None)
    labels = [f"label {n}" for n in range(40)]
    asked = spark.createDataFrame([(label,) for label in labels], "label string").selectExpr("label", f"timestamp_micros({BASE}) t")
    chosen = {row.label: row for row in asked.selectExpr("label", *(f"{text} c{n}" for n, text in enumerate(BY_SPARK))).collect()}
    windows = [{"name": "w", "type": "tumbling", "size": "1 hour"}]
    aggregates = {"n": {"count": "*"}, "few": {"count": "*", "where": "v > 5"}}
    aggregates |= {f"c{n}": {"count": "*", "where": text} for n, text in enumerate(BY_SPARK)}
    spec = {"keys": ["k"], "time": {"column": "t"}, "windows": windows, "aggregates": aggregates}
    bench = Bench(tmp_path, spec | {"source": {"path": str(tmp_path / "source"), "filter": "reverse(split(LABEL, ' '))[0] > '2'"}})
    row = {"k": "a", "site": 1, "t": BASE, "i": 1, "id": "e"}
    bench.land([row | {"v": float(n), "label": label} for n, label in enumerate(labels[:25])])
    later = row | {"t": BASE + 600 * MINUTE, "v": 0.0, "label": "y"}
    bench.land([*(row | {"v": float(n), "label": label} for n, label in enumerate(labels[25:])), later])
    [done] = bench.run()
    read = [(n % 25, label) for n, label in enumerate(labels) if label.split()[1] > "2"]
    found = bench.rows()[0]
    assert (found["n"], found["few"]) == (len(read), sum(n > 5 for n, _ in read))
    for n, text in enumerate(BY_SPARK):
        assert found[f"c{n}"] == sum(chosen[label][f"c{n}"] for _, label in read), text
    assert done.outcome.counts.rows_applied == done.outcome.counts.rows_kept
