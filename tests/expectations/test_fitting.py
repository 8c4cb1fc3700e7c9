"""Rules over columns of every type: refused before a batch is computed, or judged alike by pandas and by Spark."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from tests.jobs.test_folders import Pipe
from windowmill.expectations.gate import validate
from windowmill.expectations.suites import check_rules, type_problems
from windowmill.jobs.cli import main

_INSTANT = [datetime(2024, 1, 1, hour, tzinfo=UTC) for hour in (1, 2, 5)]
_DAYS = [date(2024, 1, day) for day in (1, 2, 5)]
#: Of each type three ascending values, and bounds that hold them.
VALUES: dict[str, tuple[pa.DataType, list[Any], Any, Any]] = {
    "whole": (pa.int64(), [1, 2, 5], 0, 9),
    "small": (pa.int16(), [1, 2, 5], 0, 9),
    "decimal": (pa.decimal128(10, 2), [Decimal("1.1"), Decimal("2.2"), Decimal("5.5")], 0, 9),
    "double": (pa.float64(), [1.5, 2.5, 5.0], 0, 9),
    "float": (pa.float32(), [1.5, 2.5, 5.0], 0, 9),
    "instant": (pa.timestamp("us", "UTC"), _INSTANT, "2024-01-01T00:00:00Z", "2024-01-09T00:00:00Z"),
    "wall": (pa.timestamp("us"), [each.replace(tzinfo=None) for each in _INSTANT], "2024-01-01T00:00:00Z", "2024-01-09"),
    "day": (pa.date32(), _DAYS, "2024-01-01", "2024-01-09"),
    "text": (pa.string(), ["1", "2", "5"], 0, 9),
    "iso": (pa.string(), [day.isoformat() for day in _DAYS], "2024-01-01", "2024-01-09"),
    "truth": (pa.bool_(), [False, True, True], 0, 1),
    "binary": (pa.binary(), [b"1", b"2", b"5"], 0, 9),
    "list": (pa.list_(pa.int64()), [[1], [2], [5]], 0, 9),
}


def table(batch: Any, order: list[int | None]) -> pa.Table:
    """Rows with two columns of each type, of the values in this ``order``, and in the given one with a null first."""
    cells = {}
    for name, (kind, values, *_) in VALUES.items():
        cells[f"x_{name}"] = pa.array([None if place is None else values[place] for place in order], kind)
        cells[f"y_{name}"] = pa.array([None, *values, *values][: len(order)], kind)
    return batch(len(order), **cells)


def along(name: str) -> list[dict[str, Any]]:
    _, _, least, most = VALUES[name]
    own = {"column": f"x_{name}"}
    bounded = [{"type": f"expect_column_{what}_to_be_between", **own, "min_value": least, "max_value": most} for what in ("max", "min")]
    ways = [
        {"type": f"expect_column_values_to_be_{way}", **own, "strictly": strictly}
        for way in ("increasing", "decreasing")
        for strictly in (False, True)
    ]
    return [*bounded, *ways, {"type": "expect_column_values_to_be_between", **own, "min_value": least, "max_value": most}]


def every(name: str) -> list[dict[str, Any]]:
    own, pair, both = {"column": f"x_{name}"}, {"column_A": f"x_{name}", "column_B": f"y_{name}"}, [f"x_{name}", f"y_{name}"]
    return [
        *along(name),
        *({"type": f"expect_column_{what}_to_be_between", **own, "max_value": 9} for what in ("mean", "median", "sum", "stdev")),
        {"type": "expect_column_unique_value_count_to_be_between", **own, "max_value": 9},
        {"type": "expect_column_proportion_of_unique_values_to_be_between", **own, "max_value": 1},
        {"type": "expect_column_quantile_values_to_be_between", **own, "quantile_ranges": {"quantiles": [0.5], "value_ranges": [[0, 9]]}},
        {"type": "expect_column_value_z_scores_to_be_less_than", **own, "threshold": 3, "double_sided": True},
        {"type": "expect_column_values_to_not_be_outliers", **own, "method": "iqr", "multiplier": 3},
        {"type": "expect_column_values_to_match_strftime_format", **own, "strftime_format": "%Y-%m-%d"},
        {"type": "expect_multicolumn_sum_to_equal", "column_list": both, "sum_total": 2},
        {"type": "expect_compound_columns_to_be_unique", "column_list": both},
        {"type": "expect_select_column_values_to_be_unique_within_record", "column_list": both},
        {"type": "expect_multicolumn_values_to_be_equal", "column_list": both},
        {"type": "expect_column_pair_values_to_be_equal", **pair},
        {"type": "expect_column_pair_values_a_to_be_greater_than_b", **pair, "or_equal": True},
    ]


def fitting(pipeline: Any, rows: pa.Table, suite: list[dict[str, Any]]) -> Any:
    """The pipeline with those rules of ``suite`` that are not refused."""
    checked = pipeline(*suite)
    assert check_rules(checked, rows.column_names) == []
    refused = {int(field.split(".")[1]) for field, _ in type_problems(checked, rows.schema)}
    return pipeline(*(rule for index, rule in enumerate(suite) if index not in refused))


def judged(verdict: Any, spec: Any) -> list[tuple[Any, ...]]:
    return [(each.type, each.column, each.outcome, each.unexpected) for each in verdict.results[: len(spec.expectations)]]


def test_every_rule_that_is_not_refused_over_a_type_is_evaluated(pipeline, batch):
    rows, taken = table(batch, [0, 1, None, 2]), {}
    for name in VALUES:
        spec = fitting(pipeline, rows, every(name))
        found = validate(rows, spec, columns=rows.column_names).results[: len(spec.expectations)]
        assert [(each.type, each.observed) for each in found if each.outcome == "broken"] == [], name
        taken[name] = len(found)
    assert {name: taken[name] for name in ("whole", "decimal", "float", "instant", "day", "text", "truth", "binary", "list")} == {
        **dict.fromkeys(("whole", "decimal", "float"), 22),
        **dict.fromkeys(("instant", "day"), 14),
        "text": 8,
        **dict.fromkeys(("truth", "binary"), 7),
        "list": 3,
    }


@pytest.mark.parametrize(
    ("order", "increasing", "decreasing"),
    [([0, 1, 2], (0, 0), (2, 2)), ([0, None, 2, 2], (0, 1), (1, 2)), ([2, None, 0, None], (1, 1), (0, 0)), ([None, None], (0, 0), (0, 0))],
)
def test_values_along_the_rows_are_compared_without_nulls(pipeline, batch, order, increasing, decreasing):
    rows, names = table(batch, order), ("whole", "small", "decimal", "double", "float", "instant", "wall", "day")
    for name in names:
        spec = pipeline(*along(name)[2:6])
        found = [each.unexpected or 0 for each in validate(rows, spec, columns=rows.column_names).results[:4]]
        assert found == [*increasing, *decreasing], name


@pytest.mark.spark
def test_spark_judges_values_in_order_as_pandas_does(pipeline, batch, spark):
    rows = table(batch, [0, None, 2, 2, 1, None, 0])
    suite = [rule for name in VALUES for rule in along(name)]
    spec = fitting(pipeline, rows, suite)
    frame = spark.createDataFrame(rows).coalesce(1).cache()
    here, there = (validate(each, spec, columns=rows.column_names) for each in (rows, frame))
    assert judged(here, spec) == judged(there, spec)
    broken = [each.rows for each in there.results if each.column == "x_instant" and each.unexpected]
    assert all(set(row) == {"origin", "window", "window_end", "x_instant"} for named in broken for row in named)


@pytest.mark.parametrize(
    ("rule", "problem"),
    [
        (
            {"type": "expect_column_max_to_be_between", "column": "x_iso", "min_value": "2024-01-01"},
            "column: got 'x_iso', which holds texts; expect_column_max_to_be_between takes numbers or dates or instants alone",
        ),
        ({"type": "expect_column_values_to_be_between", "column": "x_day", "max_value": 5}, "max_value: got 5, but 'x_day' holds dates"),
        (
            {"type": "expect_column_values_to_be_between", "column": "x_whole", "min_value": "2024-01-01"},
            "min_value: got '2024-01-01', but 'x_whole' holds numbers; give a number",
        ),
        (
            {"type": "expect_column_pair_values_a_to_be_greater_than_b", "column_A": "x_day", "column_B": "x_instant"},
            "column_B: got 'x_instant', which holds instants; expect_column_pair_values_a_to_be_greater_than_b compares them with dates",
        ),
        (
            {"type": "expect_multicolumn_values_to_be_equal", "column_list": ["x_text", "x_whole"]},
            "column_list.1: got 'x_whole', which holds numbers; expect_multicolumn_values_to_be_equal compares them with texts, use",
        ),
    ],
)
def test_a_rule_over_a_type_that_it_does_not_take_is_refused_in_one_line(pipeline, batch, rule, problem):
    [(field, told)] = type_problems(pipeline(rule), table(batch, [0]).schema)
    assert f"{field}: {told}".startswith(f"expectations.0.{problem}")


@pytest.mark.parametrize(
    ("partition", "problem"),
    [
        ({"values": ["a", "b"], "weights": [0.5, 0.6]}, "expectations.0.partition_object.weights: got [0.5, 0.6]; expected a share"),
        ({"values": ["a", "b"], "weights": [1.0]}, "expectations.0.partition_object.weights: got [1.0]; expected a share"),
        ({"bins": [0, 2, 1], "weights": [0.5, 0.5]}, "expectations.0.partition_object.bins: got [0, 2, 1]; expected numbers that ascend"),
        ({"bins": [0, 1], "weights": [0.5], "tail_weights": [0.5]}, "expectations.0.partition_object.weights: got [0.5]; expected a share"),
        ({"weights": [1.0]}, "expectations.0.partition_object: got {'weights': [1.0]}; expected a list of values or bins, and weights"),
    ],
)
def test_a_partition_that_is_no_distribution_is_refused_and_breaks_no_other_rule(pipeline, batch, partition, problem):
    """Great Expectations raises while it collects metrics, so no rule would have a result."""
    rule = {"type": "expect_column_kl_divergence_to_be_less_than", "column": "origin", "threshold": 0.1, "partition_object": partition}
    spec, rows = pipeline(rule, {"type": "expect_table_row_count_to_equal", "value": 6}), batch()
    assert check_rules(spec, rows.column_names)[0].startswith(problem)
    assert [each.outcome for each in validate(rows, spec).results[:2]] == ["broken", "passed"]


def test_a_run_and_validate_refuse_such_a_rule_before_a_batch(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("WINDOWMILL_COMPUTE", "local")
    rule = {"type": "expect_column_min_to_be_between", "column": "k", "min_value": 0}
    pipe = Pipe(tmp_path, "csv", expectations=[rule])
    (pipe.inputs / "0.csv").write_bytes(b"t,k,v\n2024-05-01T00:00:00Z,a,1\n")
    told = "expectations.0.column: got 'k', which holds texts; expect_column_min_to_be_between takes numbers or dates or instants alone"
    for arguments in (["run", str(pipe.path)], ["validate", str(pipe.path), "--source"]):
        assert main(arguments) == 2
        assert told in "".join(capsys.readouterr())
