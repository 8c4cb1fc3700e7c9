"""What the gate says of a batch: passed, warned or held, and of which rows."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from datetime import UTC, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from tests.expectations.every_rule import COLUMNS, JSON, KEPT
from windowmill.expectations import gx
from windowmill.expectations.gate import validate
from windowmill.expectations.rule import Loss
from windowmill.expectations.suites import needs_spark, rules

BETWEEN = "expect_column_values_to_be_between"
LAST_THREE = {"name": "last_three", "type": "sliding", "evict": {"count": 3}}


def at(hour):
    return f"2013-02-01T{hour:02}:00:00+00:00"


def below(limit, **more):
    return {"type": BETWEEN, "column": "delay", "max_value": limit} | more


def test_rows_that_satisfy_every_rule_pass(pipeline, batch):
    spec = pipeline(below(5))
    verdict = validate(batch(), spec)
    assert verdict.status == "passed"
    assert [result.outcome for result in verdict.results] == ["passed"] * len(rules(spec))
    assert (verdict.results[0].elements, verdict.results[0].unexpected, verdict.results[0].examples) == (6, 0, ())
    assert verdict.describe() == "7 rules passed"


@pytest.mark.parametrize(("severity", "status"), [("critical", "held"), ("warning", "warned"), ("info", "passed")])
def test_severity_decides_what_a_failed_rule_does(pipeline, batch, severity, status):
    verdict = validate(batch(), pipeline(below(3, severity=severity)))
    assert verdict.status == status
    assert [(result.index, result.outcome, result.unexpected) for result in verdict.unmet] == [(0, "failed", 2)]


def test_the_values_that_break_a_rule_are_kept_beside_the_rows_identity(pipeline, batch):
    [failed] = validate(batch(), pipeline(below(3))).unmet
    assert failed.message == "2 of 6 rows break the rule"
    assert failed.examples == (
        {"origin": "EWR", "window": "hourly", "window_end": at(5)},
        {"origin": "JFK", "window": "hourly", "window_end": at(6)},
    )
    assert failed.values == ({"delay": 4.0}, {"delay": 5.0})
    assert failed.rows == [failed.examples[0] | {"delay": 4.0}, failed.examples[1] | {"delay": 5.0}]
    [most] = validate(batch(60), pipeline(below(-1))).unmet
    assert (len(most.examples), len(most.values), len(most.rows)) == (60, 20, 60)


def test_a_failed_statistic_is_observed_and_kept_out_of_the_message(pipeline, batch):
    [failed] = validate(batch(), pipeline({"type": "expect_column_mean_to_be_between", "column": "delay", "max_value": 1})).unmet
    assert failed.observed == 2.5
    assert failed.message == "the batch as a whole is outside of {'max_value': 1}"


@pytest.mark.parametrize(("severity", "status"), [("critical", "held"), ("warning", "warned"), ("info", "passed")])
def test_a_rule_that_cannot_be_evaluated_is_broken_and_weighs_as_much(pipeline, batch, severity, status):
    verdict = validate(batch(), pipeline({"type": BETWEEN, "column": "dely", "max_value": 5, "severity": severity}))
    assert verdict.status == status
    [broken] = verdict.unmet
    assert broken.outcome == "broken"
    assert '"dely"' in broken.observed


def test_an_argument_that_great_expectations_refuses_breaks_only_its_rule(pipeline, batch):
    verdict = validate(batch(), pipeline({"type": BETWEEN, "column": "delay"}, below(5)))
    assert [result.outcome for result in verdict.results[:2]] == ["broken", "passed"]
    assert "cannot both be None" in verdict.results[0].observed


def test_a_bound_of_the_wrong_type_breaks_the_rule_without_showing_values(pipeline, batch):
    [broken] = validate(batch(), pipeline({"type": BETWEEN, "column": "origin", "min_value": 3})).unmet
    assert (broken.outcome, broken.message) == ("broken", "could not be evaluated; the error is in the quality table, column observed")


def test_a_result_that_is_missing_breaks_the_rule(pipeline, batch, monkeypatch):
    evaluate = gx.evaluate

    def forgetful(*arguments, **named):
        return {index: found for index, found in evaluate(*arguments, **named).items() if index != 0}

    monkeypatch.setattr(gx, "evaluate", forgetful)
    verdict = validate(batch(), pipeline(below(5)))
    assert verdict.status == "held"
    assert [(result.index, result.message) for result in verdict.unmet] == [(0, "Great Expectations gave no result for this rule")]


def test_a_rule_written_twice_is_evaluated_twice(pipeline, batch):
    verdict = validate(batch(), pipeline(below(3, severity="info"), below(3, severity="info")))
    assert [(result.outcome, result.unexpected) for result in verdict.results[:2]] == [("failed", 2)] * 2


def test_an_empty_batch_passes_unevaluated(pipeline, batch):
    spec = pipeline(
        {"type": "expect_column_mean_to_be_between", "column": "delay", "min_value": 0},
        {"type": "expect_table_row_count_to_equal", "value": 6},
    )
    verdict = validate(batch(0), spec)
    assert verdict.status == "passed"
    assert {(result.outcome, result.elements, result.message) for result in verdict.results} == {
        ("passed", 0, "no rows in this batch"),
        ("passed", None, "passed"),
    }
    assert len(verdict.results) == len(rules(spec))


@pytest.mark.parametrize(
    ("condition", "unexpected", "elements"), [('col("origin") == "JFK"', 1, 3), ('col("flights") > 5', 1, 1), (None, 2, 6)]
)
def test_a_row_condition_limits_the_rows_looked_at(pipeline, batch, condition, unexpected, elements):
    rule = below(3) | ({"row_condition": condition} if condition else {})
    [failed] = validate(batch(), pipeline(rule)).unmet
    assert (failed.unexpected, failed.elements) == (unexpected, elements)


def test_nulls_are_not_looked_at_and_a_rule_against_them_sees_them(pipeline, batch):
    delay = pa.array([None, 1.0, 2.0, 3.0, 4.0, 5.0])
    verdict = validate(batch(delay=delay), pipeline(below(5), {"type": "expect_column_values_to_not_be_null", "column": "delay"}))
    assert [(result.outcome, result.unexpected) for result in verdict.results[:2]] == [("passed", 0), ("failed", 1)]
    assert verdict.results[1].examples == ({"origin": "EWR", "window": "hourly", "window_end": at(1)},)


def test_every_rule_that_is_taken_is_evaluated(pipeline, batch):
    suite = [{"type": kind, **arguments} for kind, arguments in KEPT.items()]
    spec = pipeline(*suite)
    here = [rule for rule in rules(spec, COLUMNS) if rule.origin == "spec" and not needs_spark(rule)]
    verdict = validate(
        batch(json=JSON, batch=pa.array([0] * 6)), pipeline(*({"type": rule.type, **KEPT[rule.type]} for rule in here)), columns=COLUMNS
    )
    assert [(result.type, result.outcome, result.observed) for result in verdict.unmet] == []
    assert len(here) > 40


#: Pairs of values of each type: equal, smaller, greater, one null or the other, both null.
_PAIRS = {
    pa.int64(): ([1, 2, 5, None, 5, None], [1, 3, 4, 2, None, None]),
    pa.decimal128(10, 2): (
        [Decimal(1), Decimal(2), Decimal(5), None, Decimal(5), None],
        [Decimal(1), Decimal(3), Decimal(4), Decimal(2), None, None],
    ),
    pa.float64(): ([1.0, 2.0, 5.0, None, 5.0, None], [1.0, 3.0, 4.0, 2.0, None, None]),
    pa.timestamp("us", "UTC"): ([1, 2, 5, None, 5, None], [1, 3, 4, 2, None, None]),
    pa.date32(): ([1, 2, 5, None, 5, None], [1, 3, 4, 2, None, None]),
    pa.string(): (["1", "2", "5", None, "5", None], ["1", "3", "4", "2", None, None]),
}


def test_nulls_within_a_row_are_judged_as_spark_judges_them(pipeline, batch):
    """No null breaks a bound or adds to a sum, and a null is equal to a null alone."""
    pair, columns = {"column_A": "delay", "column_B": "other"}, {"column_list": ["delay", "other"]}
    greater, total = "expect_column_pair_values_a_to_be_greater_than_b", "expect_multicolumn_sum_to_equal"
    cases = [
        ({"type": "expect_column_pair_values_to_be_equal", **pair}, 4),
        ({"type": "expect_column_pair_values_to_be_equal", "ignore_row_if": "either_value_is_missing", **pair}, 2),
        ({"type": "expect_column_pair_values_to_be_equal", "ignore_row_if": "neither", **pair}, 4),
        ({"type": greater, "ignore_row_if": "neither", **pair}, 2),
        ({"type": greater, **pair}, 2),
        ({"type": greater, "or_equal": True, **pair}, 1),
        ({"type": "expect_multicolumn_values_to_be_equal", **columns}, 4),
        ({"type": "expect_multicolumn_values_to_be_equal", "ignore_row_if": "any_value_is_missing", **columns}, 2),
        ({"type": "expect_multicolumn_values_to_be_equal", "ignore_row_if": "never", **columns}, 4),
        ({"type": total, "sum_total": 5, **columns}, 3),
        ({"type": total, "sum_total": 5, "ignore_row_if": "any_value_is_missing", **columns}, 2),
    ]
    for kind, (left, right) in _PAIRS.items():
        adds = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
        suite = [(rule, n) for rule, n in cases if adds or rule["type"] != total]
        rows = batch(delay=pa.array(left, kind), other=pa.array(right, kind))
        found = validate(rows, pipeline(*(rule for rule, _ in suite)), columns=rows.column_names).results[: len(suite)]
        assert [(each.outcome, each.unexpected) for each in found] == [("failed", n) for _, n in suite], kind


@pytest.mark.parametrize(
    ("rule", "values", "unexpected"),
    [
        ({"type": BETWEEN, "max_value": 5}, [math.nan, 1.0, None, 3.0, 4.0, 5.0], 1),
        ({"type": BETWEEN, "min_value": 0}, [math.nan, 1.0, None, 3.0, 4.0, 5.0], 0),
        ({"type": BETWEEN, "min_value": 0, "max_value": 1e300}, [math.nan, math.inf, -math.inf, 3.0, 4.0, 5.0], 3),
        ({"type": BETWEEN, "min_value": 2, "row_condition": 'col("origin") == "JFK"'}, [math.nan, 1.0, math.nan, math.nan, 4.0, 5.0], 1),
        ({"type": "expect_column_values_to_be_in_set", "value_set": [1, 2]}, [math.nan, 1.0, None, 2.0, 1.0, 1.0], 1),
        ({"type": "expect_column_values_to_be_unique"}, [math.nan, math.nan, None, None, 1.0, 2.0], 2),
        ({"type": "expect_column_values_to_not_be_null"}, [math.nan, 1.0, None, 2.0, 1.0, 1.0], 1),
        ({"type": "expect_column_max_to_be_between", "min_value": 0}, [math.nan, 1.0, None, 2.0, 1.0, 1.0], None),
        ({"type": "expect_column_min_to_be_between", "min_value": 0}, [math.nan, 1.0, None, 2.0, 1.0, 1.0], 0),
        ({"type": "expect_column_mean_to_be_between", "min_value": 0}, [math.nan, 1.0, None, 2.0, 1.0, 1.0], None),
        ({"type": "expect_column_sum_to_be_between", "min_value": 0}, [math.nan, 1.0, None, 2.0, 1.0, 1.0], None),
    ],
)
def test_nan_needs_no_spark(pipeline, batch, rule, values, unexpected):
    """As Spark judges it: the greatest value, which a sum of it is, too."""
    verdict = validate(batch(delay=pa.array(values)), pipeline(rule | {"column": "delay"}), spark=pytest.fail)
    [result] = [result for result in verdict.results if result.origin == "spec"]
    assert result.outcome == ("passed" if unexpected == 0 else "failed")
    assert result.unexpected in (None, unexpected)
    assert not any(row["delay"] == math.inf for row in result.values if math.inf not in values)


@pytest.mark.parametrize(
    ("column", "bounds", "failing"),
    [
        (pa.array([2**60, None, 2**60 + 1, 4, 5, 6]), {"type": "expect_column_values_to_be_unique"}, 0),
        (pa.array([2**60, None, 2**60, 4, 5, 6]), {"type": "expect_column_values_to_be_unique"}, 2),
        (pa.array([1, None, 3, 4, 5, 6]), {"type": BETWEEN, "max_value": 5}, 1),
        (pa.array([True, None, True, False, True, True]), {"type": "expect_column_values_to_be_in_set", "value_set": [True]}, 1),
        (pa.array([Decimal("1.50"), None, *[Decimal("2.50")] * 4]), {"type": BETWEEN, "max_value": 2}, 4),
        (pa.array([Decimal("1.50"), None, *[Decimal("2.50")] * 4]), {"type": "expect_column_values_to_be_unique"}, 4),
        (pa.array(["a", None, "b", "c", "d", "e"]), {"type": "expect_column_values_to_match_regex", "regex": "^[a-d]$"}, 1),
        (pa.array([datetime(2013, 2, d, tzinfo=UTC).date() for d in range(1, 7)]), {"type": BETWEEN, "max_value": "2013-02-04"}, 2),
    ],
    ids=["exact integers", "equal integers", "integers", "booleans", "decimals", "equal decimals", "text", "days"],
)
def test_columns_keep_their_values_on_the_way_to_pandas(pipeline, batch, column, bounds, failing):
    result = validate(batch(delay=column), pipeline({"column": "delay", **bounds})).results[0]
    assert (result.outcome, result.unexpected) == ("failed" if failing else "passed", failing)


INSTANTS = [
    "2013-02-01T03:00:00Z",
    "2013-02-01T03:00:00",
    "2013-01-31T22:00:00-05:00",
    datetime(2013, 2, 1, 3, tzinfo=UTC),
    datetime(2013, 2, 1, 3),  # noqa: DTZ001 - as YAML gives an instant without a zone
]


@pytest.mark.parametrize("zone", ["UTC", None])
@pytest.mark.parametrize("bound", INSTANTS, ids=str)
def test_bounds_of_timestamps_may_have_a_zone_or_are_utc(pipeline, batch, bound, zone):
    instants = pa.array([datetime(2013, 2, 1, hour, tzinfo=UTC) for hour in range(6)], pa.timestamp("us", "UTC"))
    rows = batch(delay=instants.cast(pa.timestamp("us", zone)))
    rules = [{"type": kind, "column": "delay", "max_value": bound} for kind in (BETWEEN, "expect_column_max_to_be_between")]
    verdict = validate(rows, pipeline(*rules))
    assert [(result.outcome, result.unexpected) for result in verdict.results[:2]] == [("failed", 2), ("failed", None)]


# --- what every pipeline is checked for ---------------------------------------------------------------------------------------


def always_unmet(rows, spec):
    verdict = validate(rows, spec)
    assert verdict.status == "held"
    return [(result.type, [row["window_end"] for row in result.examples]) for result in verdict.unmet]


def test_a_row_published_twice_is_held(pipeline, batch):
    rows = pa.concat_tables([batch(), batch().slice(2, 1)])
    assert always_unmet(rows, pipeline()) == [("expect_compound_columns_to_be_unique", [at(3), at(3)])]


def test_revisions_and_triggers_tell_rows_apart_where_there_are_any(pipeline, batch):
    twice = pa.array([0, 1, 2, 3, 4, 5], pa.int64())
    same_end = pa.array([datetime(2013, 2, 1, 9, tzinfo=UTC)] * 6, pa.timestamp("us", "UTC"))
    rows = {"window_end": same_end, "revision": twice, "trigger": twice}
    assert validate(batch(**rows), pipeline(emit="revise")).status == "passed"
    assert validate(batch(**rows, window=["last_three"] * 6), pipeline(windows=[LAST_THREE])).status == "passed"
    assert validate(batch(**rows), pipeline()).status == "held"


def test_a_null_trigger_is_a_value_like_any_other(pipeline, batch):
    rows = batch(window=["last_three"] * 6, trigger=pa.array([0, None, 2, None, 4, 5], pa.int64()), origin=["EWR"] * 6)
    repeated = pa.concat_tables([rows, rows.slice(1, 1)])
    assert always_unmet(repeated, pipeline(windows=[LAST_THREE])) == [("expect_compound_columns_to_be_unique", [at(2), at(2)])]


def test_a_window_that_ends_where_it_starts_is_held_unless_a_policy_fired_it(pipeline, batch):
    rows = batch().set_column(2, "window_start", batch()["window_end"])
    assert always_unmet(rows, pipeline())[0][0] == "expect_column_pair_values_a_to_be_greater_than_b"
    fired = rows.set_column(1, "window", pa.array(["last_three"] * 6))
    assert validate(fired, pipeline(windows=[LAST_THREE])).status == "passed"


def test_an_empty_policy_window_has_no_start(pipeline, batch):
    empty = batch(window=["last_three"] * 6, window_start=pa.nulls(6, pa.timestamp("us", "UTC")), flights=pa.array([0] * 6))
    assert validate(empty, pipeline(windows=[LAST_THREE])).status == "passed"


def test_a_count_of_nothing_is_held(pipeline, batch):
    assert always_unmet(batch(flights=pa.array([1, 1, 0, 1, 1, 1])), pipeline()) == [(BETWEEN, [at(3)])]


def test_other_columns_than_declared_are_held(pipeline, batch):
    swapped = batch().select(["window", "origin", *batch().column_names[2:]])
    assert always_unmet(swapped, pipeline()) == [("expect_table_columns_to_match_ordered_list", [])]


# --- secrets and surroundings -------------------------------------------------------------------------------------------------


def test_no_value_beside_the_keys_leaves_through_messages_or_examples(pipeline, batch):
    canary = "s3cret"
    rules = [{"type": "expect_column_values_to_be_in_set", "column": "delay", "value_set": ["x"]}, below(3)]
    verdict = validate(batch(delay=pa.array([canary] * 6)), pipeline(*rules))
    assert len(verdict.unmet) == 2
    shown = json.dumps([[result.message, result.examples] for result in verdict.results]) + verdict.describe()
    assert canary not in shown


def test_rows_named_are_limited(pipeline, batch):
    verdict = validate(batch(3_000), pipeline(below(-1)))
    assert (verdict.unmet[0].unexpected, len(verdict.unmet[0].examples)) == (3_000, gx.MAX_EXAMPLES)


@pytest.mark.thorough
def test_validating_uses_no_network_and_leaves_no_file(tmp_path):
    code = """if True:
        import socket, sys
        def refuse(*arguments): raise AssertionError(f"network: {arguments}")
        socket.socket.connect = refuse
        socket.getaddrinfo = refuse
        import pyarrow as pa
        from datetime import UTC, datetime
        from windowmill.expectations.gate import validate
        from windowmill.windowing.spec import Pipeline
        spec = {"pipeline": "p", "time": {"column": "t"}, "windows": [{"name": "h", "type": "tumbling", "size": "1 hour"}]}
        spec |= {"aggregates": {"n": {"count": "*"}}}
        rows = {"window": ["h"], "window_start": [datetime(2013, 1, 1, 1, tzinfo=UTC)], "window_end": [datetime(2013, 1, 1, 2, tzinfo=UTC)]}
        rows |= {"trigger": pa.nulls(1, pa.int64()), "revision": [0], "n": [0], "batch": [1]}
        print(validate(pa.table(rows), Pipeline.model_validate(spec)).status)
    """
    surroundings = {"PATH": "", "HOME": str(tmp_path), "TMPDIR": str(tmp_path), "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True, cwd=tmp_path, env=surroundings
    )
    assert (done.stdout, done.stderr) == ("held\n", "")
    assert list(tmp_path.iterdir()) == []


# --- Spark --------------------------------------------------------------------------------------------------------------------


def comparable(verdict):
    rows = [sorted(json.dumps(row, sort_keys=True) for row in result.examples) for result in verdict.results]
    return verdict.status, [(r.type, r.outcome, r.elements, r.unexpected, named) for r, named in zip(verdict.results, rows, strict=True)]


EVERYTHING = [
    below(3),
    below(3, severity="warning", row_condition='col("origin") == "JFK"'),
    below(3, severity="info", row_condition="flights > 2 AND origin = 'JFK'"),
    {"type": BETWEEN, "column": "delay", "min_value": 0},
    {"type": "expect_column_max_to_be_between", "column": "delay", "min_value": 0},
    {"type": "expect_column_mean_to_be_between", "column": "delay", "max_value": 2},
    {"type": "expect_column_max_to_be_between", "column": "window_end", "max_value": "2013-02-01T05:00:00Z"},
    {"type": BETWEEN, "column": "window_end", "max_value": "2013-02-01T05:00:00Z"},
    {"type": "expect_column_values_to_not_be_null", "column": "delay"},
    {"type": "expect_column_values_to_be_of_type", "column": "delay", "type_": "DoubleType"},
    {"type": "expect_column_values_to_be_in_set", "column": "origin", "value_set": ["JFK"]},
    {"type": "unexpected_rows_expectation", "unexpected_rows_query": "SELECT * FROM {batch} WHERE flights > 4"},
    {"type": BETWEEN, "column": "missing", "max_value": 5},
    {"type": "expect_column_max_to_be_between", "column": "delay", "max_value": 5},
    {"type": "expect_column_min_to_be_between", "column": "delay", "min_value": 0},
    {"type": "expect_column_sum_to_be_between", "column": "delay", "min_value": -50},
    {"type": "expect_column_values_to_be_unique", "column": "delay"},
    {"type": "expect_column_values_to_be_in_set", "column": "delay", "value_set": [1, 2]},
    {"type": "expect_table_row_count_to_be_between", "min_value": 1},
    {"type": "expect_table_columns_to_match_set", "column_set": ["delay"], "exact_match": False},
]


@pytest.mark.spark
@pytest.mark.parametrize(
    "delay",
    [
        [0.0, None, 2, 3, 4, 5],
        [0.0, -math.inf, math.nan, None, 4, math.inf],
        [math.nan] * 6,
    ],
    ids=["numbers and null", "infinities and nan", "nothing but nan"],
)
def test_pandas_and_spark_come_to_the_same_verdict(pipeline, batch, spark, delay):
    rows = batch(delay=pa.array(delay, pa.float64()))
    rows = pa.concat_tables([rows, rows.slice(1, 1)])
    spec = pipeline(*EVERYTHING)
    in_pandas, in_spark = validate(rows, spec), validate(spark.createDataFrame(rows).cache(), spec)
    assert comparable(in_pandas) == comparable(in_spark)
    assert {result.outcome for result in in_spark.results} == {"passed", "failed", "broken"}


@pytest.mark.spark
def test_instants_do_not_depend_on_the_zone_of_the_machine(pipeline, batch, spark, monkeypatch):
    bounds = [{"type": kind, "column": "window_end", "max_value": at(5)} for kind in (BETWEEN, "expect_column_max_to_be_between")]
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        verdict = validate(spark.createDataFrame(batch()), pipeline(*bounds))
    finally:
        monkeypatch.undo()
        time.tzset()
    assert [(result.outcome, result.observed) for result in verdict.unmet] == [("failed", None), ("failed", at(6))]
    assert verdict.unmet[0].examples == ({"origin": "JFK", "window": "hourly", "window_end": at(6)},)


@pytest.mark.spark
def test_a_key_may_have_any_name(pipeline, batch, spark):
    keys = ["a-b", "a`b", "a b", "select", "é", "o'x"]
    spec = pipeline(*({"type": "expect_column_values_to_be_in_set", "column": key, "value_set": ["JFK"]} for key in keys), keys=keys)
    origin, *others = batch().columns
    rows = pa.table([origin] * len(keys) + others, names=[*keys, *batch().column_names[1:]])
    for verdict in (validate(rows, spec), validate(spark.createDataFrame(rows).cache(), spec)):
        assert [(result.index, result.outcome) for result in verdict.unmet] == [(index, "failed") for index in range(len(keys))]
        for failed in verdict.unmet:
            assert failed.examples[0] == dict.fromkeys(keys, "EWR") | {"window": "hourly", "window_end": at(1)}


@pytest.mark.spark
def test_an_empty_spark_frame_passes_with_and_without_its_count(pipeline, batch, spark):
    frame = spark.createDataFrame(batch(0)) if batch(0).num_rows else spark.createDataFrame(batch(1)).limit(0)
    assert validate(frame, pipeline()).results == validate(frame, pipeline(), count=0).results == validate(batch(0), pipeline()).results


@pytest.mark.spark
def test_the_session_keeps_its_settings(pipeline, batch, spark):
    setting = "spark.sql.inMemoryColumnarStorage.partitionPruning"
    before = spark.conf.get(setting)
    validate(spark.createDataFrame(batch()), pipeline())
    assert spark.conf.get(setting) == before


def test_spark_rules_without_a_session_are_broken(pipeline, batch, monkeypatch):
    from pyspark.sql import SparkSession

    monkeypatch.setattr(SparkSession, "getActiveSession", classmethod(lambda cls: None))
    verdict = validate(batch(), pipeline({"type": "unexpected_rows_expectation", "unexpected_rows_query": "SELECT * FROM {batch}"}))
    assert [(result.outcome, result.observed) for result in verdict.unmet] == [("broken", "needs a running Spark session")]


@pytest.mark.spark
def test_rules_that_only_spark_evaluates_ask_for_a_session(spark, pipeline, batch, monkeypatch):
    from pyspark.sql import SparkSession

    monkeypatch.setattr(SparkSession, "getActiveSession", classmethod(lambda cls: None))
    asked: list[str] = []
    get = lambda: asked.append("") or spark  # noqa: E731
    assert validate(batch(), pipeline({"type": "expect_column_to_exist", "column": "flights"}), spark=get).status == "passed"
    assert not asked
    rule = {"type": "unexpected_rows_expectation", "unexpected_rows_query": "SELECT * FROM {batch} WHERE flights < 0"}
    assert validate(batch(), pipeline(rule), spark=get).status == "passed"
    assert len(asked) == 1


RATE = {"type": "expect_quarantined_rate_to_be_below", "max_value": 0.01}


@pytest.mark.parametrize(("quarantined", "status"), [(0, "passed"), (10, "passed"), (11, "held")])
def test_the_share_of_quarantined_rows_is_judged_beside_the_rows(pipeline, batch, quarantined, status):
    spec = pipeline(below(5), RATE)
    for rows in (batch(), batch()[:0]):
        verdict = validate(rows, spec, rows_read=1_000, rows_quarantined=quarantined)
        assert verdict.status == status
        assert [result.index for result in verdict.results] == list(range(len(rules(spec))))
    assert verdict.results[1].observed == quarantined / 1_000
    if status == "held":
        assert "11 of 1,000 rows read were quarantined (1.1%)" in verdict.describe()


@pytest.mark.parametrize(
    ("limits", "quarantined", "status"),
    [
        ({}, 0, "passed"),
        ({}, 10, "passed"),
        ({}, 11, "warned"),
        ({}, 100, "warned"),
        ({}, 101, "held"),
        ({}, 1_000, "held"),
        ({"hold": "never"}, 1_000, "warned"),
        ({"warn": "never"}, 100, "passed"),
        ({"warn": "never", "hold": "never"}, 1_000, "passed"),
        ({"warn": 0, "hold": 0}, 1, "held"),
    ],
)
def test_a_batch_that_loses_many_rows_is_not_passed(pipeline, batch, limits, quarantined, status):
    for rows in (batch(), batch(0)):
        assert validate(rows, pipeline(quarantine=limits), rows_read=1_000, rows_quarantined=quarantined).status == status
    assert validate(batch(0), pipeline(quarantine=limits)).status == "passed"  # a batch without rows


def test_a_loss_is_told_once_by_the_gravest_rule(pipeline, batch):
    loss = Loss({"null_time": 1, "too_late": 200}, ("do this",), ({"origin": "EWR", "reason": "too_late"},))
    verdict = validate(batch(), pipeline(RATE | {"severity": "info"}), rows_read=1_000, rows_quarantined=201, loss=lambda: loss)
    assert [(result.severity, result.examples) for result in verdict.unmet] == [("info", ()), ("critical", loss.examples), ("warning", ())]
    assert "201 of 1,000 rows read were quarantined (20.1%), more than 10 %: 200 too_late, 1 null_time; do this" in verdict.describe()
    assert verdict.describe().count("do this") == 1
    assert "EWR" not in verdict.describe()


def test_a_loss_without_rows_at_hand_is_told_by_its_share_alone(pipeline, batch):
    verdict = validate(batch(), pipeline(), rows_read=1_000, rows_quarantined=201, loss=lambda: Loss({}, (), ()))
    assert {result.message[-5:] for result in verdict.unmet} == {" 10 %", "n 1 %"}


def test_a_loss_within_the_limits_is_not_looked_at(pipeline, batch):
    assert validate(batch(), pipeline(), rows_read=1_000, rows_quarantined=10, loss=lambda: pytest.fail("looked at")).status == "passed"
