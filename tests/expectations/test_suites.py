"""The suite of a pipeline, and what is said about a spec's rules before anything runs."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from tests.expectations.every_rule import COLUMNS, KEPT, REFUSED
from windowmill.expectations.gx import build
from windowmill.expectations.suites import _schema_folder, check_rules, identity_columns, needs_spark, rules, sink_columns

HOURLY = {"name": "hourly", "type": "tumbling", "size": "1 hour"}
LAST_THREE = {"name": "last_three", "type": "sliding", "evict": {"count": 3}}
FILLED = {"name": "filled", "type": "tumbling", "size": "1 hour", "empty": "emit"}
BETWEEN = "expect_column_values_to_be_between"


def always(pipeline):
    return [rule for rule in rules(pipeline) if rule.origin == "always"]


def only(window):
    return {"type": "comparison", "column": {"name": "window"}, "operator": "IN", "parameter": [window]}


def test_rules_of_the_spec_come_first_and_keep_their_positions(pipeline):
    suite = rules(pipeline({"type": BETWEEN, "column": "delay", "max_value": 9, "severity": "warning"}))
    assert (suite[0].index, suite[0].origin, suite[0].column, suite[0].severity) == (0, "spec", "delay", "warning")
    assert suite[0].arguments == {"column": "delay", "max_value": 9}
    assert [rule.index for rule in suite] == list(range(len(suite)))
    assert {rule.severity for rule in suite[1:-1]} == {"critical"}


def test_every_pipeline_gets_columns_identity_order_and_counts(pipeline):
    assert [(rule.type, dict(rule.arguments)) for rule in always(pipeline())] == [
        (
            "expect_table_columns_to_match_ordered_list",
            {"column_list": ["origin", "window", "window_start", "window_end", "trigger", "revision", "flights", "delay", "batch"]},
        ),
        ("expect_compound_columns_to_be_unique", {"column_list": ["origin", "window", "window_end"]}),
        (
            "expect_column_pair_values_a_to_be_greater_than_b",
            {"column_A": "window_end", "column_B": "window_start", "or_equal": False, "ignore_row_if": "either_value_is_missing"},
        ),
        (BETWEEN, {"column": "flights", "min_value": 1}),
        ("expect_quarantined_rate_to_be_below", {"max_value": 0.1}),
        ("expect_quarantined_rate_to_be_below", {"max_value": 0.01}),
    ]


@pytest.mark.parametrize(
    ("limits", "wanted"),
    [
        ({}, [("critical", 0.1), ("warning", 0.01)]),
        ({"hold": "50 %"}, [("critical", 0.5), ("warning", 0.01)]),
        ({"hold": "never"}, [("warning", 0.01)]),
        ({"warn": None, "hold": "0.5%"}, [("critical", 0.005)]),
        ({"warn": "never", "hold": "never"}, []),
    ],
)
def test_every_pipeline_limits_its_quarantined_rows_unless_it_says_otherwise(pipeline, limits, wanted):
    suite = [rule for rule in always(pipeline(quarantine=limits)) if rule.type == "expect_quarantined_rate_to_be_below"]
    assert [(rule.severity, rule.arguments["max_value"]) for rule in suite] == wanted


@pytest.mark.parametrize(
    ("fields", "identity"),
    [
        ({}, ("origin", "window", "window_end")),
        ({"keys": []}, ("window", "window_end")),
        ({"emit": "revise"}, ("origin", "window", "window_end", "revision")),
        ({"windows": [HOURLY, LAST_THREE]}, ("origin", "window", "window_end", "trigger")),
        ({"windows": [{"name": "flushed", "type": "tumbling", "evict": {"count": 3}}]}, ("origin", "window", "window_end", "trigger")),
        ({"windows": [{"name": "own", "type": "custom", "function": "mine:windows"}]}, ("origin", "window", "window_start", "window_end")),
        (
            {"windows": [{"name": "visit", "type": "session", "gap": "9 minutes", "max_size": "12 minutes"}]},
            ("origin", "window", "window_start", "window_end"),
        ),
        (
            # 29, 30 and 31 January plus a month all end on the last of February
            {"windows": [{"name": "month", "type": "hopping", "size": "1 month", "hop": "1 day", "timezone": "UTC"}]},
            ("origin", "window", "window_start", "window_end"),
        ),
        (
            # the days that begin in an hour that the clocks repeat end together
            {"windows": [{"name": "day", "type": "hopping", "size": "1 day", "hop": "1 hour", "timezone": "America/New_York"}]},
            ("origin", "window", "window_start", "window_end"),
        ),
    ],
)
def test_identity_holds_what_tells_result_rows_apart(pipeline, fields, identity):
    assert identity_columns(pipeline(**fields)) == identity


def test_policy_windows_may_end_where_they_start_and_be_empty(pipeline):
    pairs = [r.arguments for r in always(pipeline(windows=[HOURLY, LAST_THREE])) if "column_A" in r.arguments]
    assert [(pair["or_equal"], pair["row_condition"]) for pair in pairs] == [(False, only("hourly")), (True, only("last_three"))]


@pytest.mark.parametrize(
    ("fields", "least"),
    [
        ({"windows": [FILLED]}, [(0, None)]),
        ({"windows": [HOURLY, FILLED]}, [(1, only("hourly")), (0, only("filled"))]),
        ({"windows": [LAST_THREE]}, [(0, None)]),
        ({"aggregates": {"flights": {"count": "*", "where": "delay > 0"}}}, [(0, None)]),
        ({"aggregates": {"flights": {"count": "delay"}}}, []),
    ],
)
def test_counts_are_positive_where_a_window_has_a_row_only_for_its_events(pipeline, fields, least):
    counts = [r.arguments for r in always(pipeline(**fields)) if r.type == BETWEEN]
    assert [(count["min_value"], count.get("row_condition")) for count in counts] == least


def test_rules_that_are_right_have_no_problems(pipeline):
    checked = pipeline(
        {"type": BETWEEN, "column": "delay", "min_value": -120, "max_value": 2880, "mostly": 0.07, "severity": "warning"},
        {"type": BETWEEN, "column": "window_end", "min_value": "2013-01-01T00:00:00Z"},
        {"type": BETWEEN, "column": "window_end", "max_value": "2030-01-01", "row_condition": 'col("origin") == "JFK"'},
        {"type": "expect_column_values_to_be_in_set", "column": "origin", "value_set": ["EWR", "JFK", "LGA"], "notes": "of New York"},
        {"type": "expect_column_values_to_be_increasing", "column": "flights", "strictly": True},
        {"type": "unexpected_rows_expectation", "unexpected_rows_query": "SELECT * FROM {batch} WHERE delay > 1e6"},
    )
    assert check_rules(checked, sink_columns(checked)) == []
    assert all(build(rule, rule.arguments) for rule in rules(checked) if rule.origin == "spec")


def test_every_type_of_the_installed_release_is_taken_or_refused_for_a_reason(pipeline):
    """By its own JSON schema: with the arguments that it requires, and without each of them."""
    index = json.loads((_schema_folder() / "index.json").read_bytes())
    assert {*KEPT, *REFUSED} == {*index["expectations"], *index["documented_absent"]}
    for kind, arguments in KEPT.items():
        file = index["expectations"].get(kind, {}).get("schema_file")
        schema = json.loads((_schema_folder() / file).read_bytes()) if file else {"properties": arguments, "required": ["column"]}
        assert set(arguments) <= set(schema["properties"]), kind
        checked = pipeline({"type": kind, **arguments})
        assert check_rules(checked, COLUMNS) == [], kind
        for name in schema.get("required", ()):
            lacking = pipeline({"type": kind, **{other: value for other, value in arguments.items() if other != name}})
            assert f"expectations.0.{name}: missing; {kind} needs it" in check_rules(lacking, COLUMNS)
    for kind, arguments in REFUSED.items():
        checked = pipeline({"type": kind, **arguments})
        [problem] = check_rules(checked, COLUMNS)
        assert re.match(f"expectations.0.type: got '{kind}', which .*; (a batch has none, )?use ", problem)


def test_a_column_whose_name_would_end_its_quotes_in_sql_is_not_summed(pipeline):
    checked = pipeline({"type": "expect_multicolumn_sum_to_equal", "column_list": ["delay", "a`, reflect('x'), `"], "sum_total": 1})
    [line] = check_rules(checked, [*sink_columns(checked), "a`, reflect('x'), `"])
    assert line.startswith("expectations.0.column_list.1: got ")
    assert "holds no backtick; rename the column" in line


def test_quantiles_have_their_bounds_in_ranges(pipeline):
    rule = {"type": "expect_column_quantile_values_to_be_between", "column": "delay"}
    good, crossed = ({"quantiles": [0.5, 0.9], "value_ranges": [[0, 60], upper]} for upper in ([None, 300], [300, 60]))
    fits = pipeline(rule | {"quantile_ranges": good})
    assert check_rules(fits, sink_columns(fits)) == []
    assert all(build(rule, rule.arguments) for rule in rules(fits) if rule.origin == "spec")
    wrong = pipeline(rule | {"quantile_ranges": crossed})
    named = "expectations.0.quantile_ranges.value_ranges.1: got 300, which is greater than 60; no value lies between them"
    assert check_rules(wrong, sink_columns(wrong)) == [named]


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ('col("flights") > 3', {"type": "comparison", "column": {"name": "flights"}, "operator": ">", "parameter": 3}),
        ('col("delay") <= -1.5e2', {"type": "comparison", "column": {"name": "delay"}, "operator": "<=", "parameter": -150.0}),
        ('col("origin") != \'O"Hare\'', {"type": "comparison", "column": {"name": "origin"}, "operator": "!=", "parameter": 'O"Hare'}),
        ('col("delay").notNull()', {"type": "nullity", "column": {"name": "delay"}, "is_null": False}),
        ("delay > 3 OR flights = 1", {"type": "pass_through", "pass_through_filter": "delay > 3 OR flights = 1"}),
    ],
)
def test_conditions_are_taken_apart(pipeline, written, meant):
    rule = {"type": BETWEEN, "column": "delay", "min_value": 0, "row_condition": written, "condition_parser": "great_expectations"}
    assert rules(pipeline(rule))[0].arguments == {"column": "delay", "min_value": 0, "row_condition": meant}


@pytest.mark.parametrize(
    ("rule", "spark"),
    [
        ({"type": BETWEEN, "column": "delay", "min_value": 0}, False),
        ({"type": BETWEEN, "column": "delay", "min_value": 0, "row_condition": 'col("flights") > 3'}, False),
        ({"type": BETWEEN, "column": "delay", "min_value": 0, "row_condition": "flights > 3 AND origin = 'JFK'"}, True),
        ({"type": "expect_column_values_to_be_of_type", "column": "delay", "type_": "DoubleType"}, True),
        ({"type": "unexpected_rows_expectation", "unexpected_rows_query": "SELECT * FROM {batch}"}, True),
    ],
)
def test_spark_is_asked_only_for_what_it_alone_can_do(pipeline, rule, spark):
    assert needs_spark(rules(pipeline(rule))[0]) is spark


def test_checking_a_spec_imports_neither_great_expectations_nor_spark():
    code = """if True:
        import sys
        from windowmill.expectations.suites import check_rules, sink_columns
        from windowmill.windowing.spec import Pipeline
        rule = {"type": "expect_column_values_to_be_between", "column": "n", "min_value": 1}
        spec = {"pipeline": "p", "time": {"column": "t"}, "windows": [{"name": "h", "type": "tumbling", "size": "1 hour"}]}
        pipeline = Pipeline.model_validate(spec | {"aggregates": {"n": {"count": "*"}}, "expectations": [rule]})
        assert check_rules(pipeline, sink_columns(pipeline)) == []
        print(*sorted({"great_expectations", "pyspark", "pandas"} & set(sys.modules)))
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == ""


def test_a_limit_of_the_rate_of_quarantined_rows_is_taken(pipeline):
    good = pipeline({"type": "expect_quarantined_rate_to_be_below", "max_value": 0.1})
    assert check_rules(good, sink_columns(good)) == []
