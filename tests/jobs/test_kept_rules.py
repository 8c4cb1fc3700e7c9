"""Which rules are certain to be kept by all rows, as statistics of files and the columns themselves tell; against Great Expectations."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from windowmill.checkpoints.data_files import FileWriter
from windowmill.expectations import gx
from windowmill.expectations.gate import validate
from windowmill.expectations.rule import Rule
from windowmill.jobs.batch import validating
from windowmill.jobs.batch.validating import ResultFiles, _broken, _broken_locally, _count, _shown_by, validate_files
from windowmill.windowing.specfile import parse_pipeline

SCHEMA = pa.schema([("k", pa.string()), ("low", pa.int64()), ("high", pa.int64()), ("x", pa.float64())])
UNIQUE = "expect_compound_columns_to_be_unique"
ORDERED = "expect_column_pair_values_a_to_be_greater_than_b"
BETWEEN = "expect_column_values_to_be_between"
PAIR = {"column_A": "high", "column_B": "low", "or_equal": False, "ignore_row_if": "either_value_is_missing"}
Rows = list[tuple[str | None, int | None, int | None, float | None]]
GOOD: Rows = [("a", 1, 2, 1.5), ("a", 2, 3, None), (None, 1, 2, 2.5), ("b", None, 2, 3.5)]


def written(folder: Path, *parts: Rows) -> ResultFiles:
    """A file for each of the ``parts``."""
    files = []
    for part in parts:
        columns = zip(*part, strict=True)
        with FileWriter(str(folder), SCHEMA, batch=0, attempt="0", task=0) as writer:
            writer.write(pa.table([pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)], schema=SCHEMA))
        files += writer.close()
    return ResultFiles(str(folder), files, SCHEMA)


def rule(kind: str, index: int = 0, **arguments: Any) -> Rule:
    return Rule(index=index, origin="spec", type=kind, column=None, arguments=arguments, severity="critical")


def told(files: ResultFiles, checked: Rule) -> bool:
    return _shown_by([validating.json.loads(file.stats) for file in files.files], checked, files.schema)


def broken(files: ResultFiles, *suite: Rule, shares: int = 3) -> set[int]:
    """What the tasks return for ``suite``, each of which has one share of the hashes."""
    numbers = pa.record_batch([pa.array(range(len(files.files)))], names=["id"])
    counted = list(_count(files, suite, shares, {}, iter([numbers])))
    return set[int]().union(*(_broken(batch for batch in counted if batch.column("share")[0].as_py() == share) for share in range(shares)))


def test_rows_that_keep_the_rules_break_none(tmp_path):
    files = written(tmp_path, GOOD[:2], GOOD[2:])
    assert broken(files, rule(UNIQUE, 1, column_list=["k", "low", "high"]), rule(ORDERED, 2, **PAIR)) == set()


@pytest.mark.parametrize("apart", [True, False], ids=["in two files", "in one file"])
def test_a_doubled_row_is_found(tmp_path, apart):
    again: Rows = [("a", 2, 3, 9.0)]
    files = written(tmp_path, GOOD, again) if apart else written(tmp_path, GOOD + again)
    assert broken(files, rule(UNIQUE, 1, column_list=["k", "low", "high"]), rule(ORDERED, 2, **PAIR)) == {1}
    assert broken(files, rule(UNIQUE, 1, column_list=["k", "low", "high", "x"])) == set()


def test_nulls_are_equal_and_so_are_both_zeros(tmp_path):
    assert broken(written(tmp_path, [(None, 1, None, 0.0), (None, 1, None, -0.0)]), rule(UNIQUE, 4, column_list=["k", "high", "x"])) == {4}


@pytest.mark.parametrize(
    "rows",
    [
        GOOD,
        GOOD[:1],
        GOOD + GOOD[1:2],
        [(None, 1, None, 0.0), (None, 1, None, -0.0)],
        [("a", 1, 2, float("nan")), ("a", 1, 2, float("nan"))],
        [("a", 1, 2**53, 0.0), ("a", 1, None, 0.0), ("a", 1, 2**53 + 2, 0.0)],
        [("c", 5, 5, 0.0), ("d", 6, 5, 0.0)],
    ],
    ids=str,
)
def test_few_rows_are_compared_as_their_hashes_are(tmp_path, monkeypatch, rows):
    files, suite = written(tmp_path, rows), [rule(UNIQUE, 1, column_list=["k", "low", "high", "x"]), rule(ORDERED, 2, **PAIR)]
    compared = _broken_locally(files, suite)
    monkeypatch.setattr(validating, "MAX_COMPARED", 0)
    assert compared == _broken_locally(files, suite)


def test_great_expectations_is_imported_only_for_rules_that_it_may_evaluate():
    certain = [rule(UNIQUE, column_list=["k"]), rule(BETWEEN, column="x", min_value=0), rule(ORDERED, **PAIR)]
    assert not validating.may_need_evaluation(certain)
    assert validating.may_need_evaluation([*certain, rule("expect_column_mean_to_be_between", column="x", min_value=0)])


@pytest.mark.parametrize(
    ("row", "or_equal", "breaks"), [(("c", 5, 5, 0.0), False, True), (("c", 5, 5, 0.0), True, False), (("c", 6, 5, 0.0), True, True)]
)
def test_a_pair_in_another_order_is_found(tmp_path, row, or_equal, breaks):
    files = written(tmp_path, GOOD, [row])
    assert broken(files, rule(ORDERED, 2, **PAIR | {"or_equal": or_equal})) == ({2} if breaks else set())


@pytest.mark.parametrize("pair", [("low", "x"), ("k", "low")], ids=["longs that no double holds", "texts and numbers"])
def test_what_arrow_does_not_compare_is_left_to_great_expectations(tmp_path, pair):
    first, second = pair
    files = written(tmp_path, [("a", 2**53 + 1, 2, 1.0)])
    assert broken(files, rule(ORDERED, 2, **PAIR | {"column_A": first, "column_B": second})) == {2}


@pytest.mark.parametrize(
    ("arguments", "kept"),
    [
        ({"column": "low", "min_value": 1, "max_value": 2}, True),
        ({"column": "low", "min_value": 1}, True),
        ({"column": "low", "min_value": 2}, False),
        ({"column": "low", "max_value": 1}, False),
        ({"column": "x", "min_value": 1.5, "max_value": 3.5}, True),
        ({"column": "x", "max_value": 3.4}, False),
        ({"column": "low", "min_value": 1, "mostly": 0.9}, False),
        ({"column": "k", "min_value": "a"}, False),
    ],
    ids=str,
)
def test_statistics_tell_that_a_range_is_kept(tmp_path, arguments, kept):
    assert told(written(tmp_path, GOOD[:2], GOOD[2:]), rule(BETWEEN, **arguments)) is kept


def test_nan_has_no_range(tmp_path):
    assert not told(written(tmp_path, [("a", 1, 2, float("nan")), ("a", 2, 3, 1.0)]), rule(BETWEEN, column="x", min_value=0, max_value=9))


@pytest.mark.parametrize("kind", [pa.timestamp("us", "UTC"), pa.date32(), pa.string(), pa.bool_()], ids=str)
def test_a_numeric_bound_on_nulls_of_another_type_is_left_to_great_expectations(tmp_path, kind):
    schema = pa.schema([("v", kind)])
    with FileWriter(str(tmp_path), schema, batch=0, attempt="0", task=0) as writer:
        writer.write(pa.table([pa.nulls(3, kind)], schema=schema))
    assert not told(ResultFiles(str(tmp_path), writer.close(), schema), rule(BETWEEN, column="v", min_value=0))


def test_statistics_tell_that_nothing_is_null(tmp_path):
    files = written(tmp_path, GOOD[:2], GOOD[2:])
    kind = "expect_column_values_to_not_be_null"
    assert [told(files, rule(kind, column=name)) for name in SCHEMA.names] == [False, False, True, False]


def test_a_rule_with_other_arguments_is_left_to_great_expectations(tmp_path):
    files, spark = written(tmp_path, GOOD), SimpleNamespace
    others = [
        rule(UNIQUE, 0, column_list=["k"], ignore_row_if="never"),
        rule(ORDERED, 1, **PAIR | {"ignore_row_if": "never"}),
        rule(ORDERED, 2, **PAIR, row_condition="k == 'a'", condition_parser="pandas"),
        rule("expect_column_mean_to_be_between", 3, column="x", min_value=0),
    ]
    assert validating.kept_rules(files, others, spark) == set()  # type: ignore[arg-type] - no session is asked for


def test_results_are_those_of_great_expectations(tmp_path, monkeypatch):
    pipeline = parse_pipeline(
        {
            "pipeline": "kept",
            "source": {"path": "/nowhere"},
            "keys": ["k"],
            "time": {"column": "at", "unit": "none"},
            "windows": [{"name": "w", "type": "tumbling", "size": 10}],
            "aggregates": {"n": {"count": "*"}, "x": {"max": "v"}},
            "sink": {"path": str(tmp_path)},
            "expectations": [
                {"type": BETWEEN, "column": "x", "min_value": -1, "max_value": 5, "severity": "warning"},
                {"type": "expect_column_values_to_not_be_null", "column": "n", "severity": "info"},
            ],
        }
    )
    rows = pa.table(
        {
            "k": pa.array(["a", "b", "a"]),
            "window": pa.array(["w"] * 3),
            "window_start": pa.array([0, 0, 10]),
            "window_end": pa.array([10, 10, 20]),
            "trigger": pa.nulls(3, pa.int64()),
            "revision": pa.array([0] * 3),
            "n": pa.array([1, 2, 3]),
            "x": pa.array([0.5, None, 2.0]),
            "batch": pa.array([0] * 3),
        }
    )
    with FileWriter(str(tmp_path), rows.schema, batch=0, attempt="0", task=0) as writer:
        writer.write(rows)
    files = ResultFiles(str(tmp_path), writer.close(), rows.schema)
    evaluated = validate(rows, pipeline, columns=rows.schema.names, rows_read=6)
    monkeypatch.setattr(gx, "evaluate", lambda *_, **__: pytest.fail("rows keep all rules"))
    assert validate_files(files, pipeline, 6, 0, pytest.fail, pytest.fail) == evaluated  # type: ignore[arg-type]
    assert evaluated.status == "passed"


@pytest.mark.parametrize("arguments", [{}, {"min_value": None, "max_value": None}], ids=str)
def test_a_range_without_bounds_is_left_to_great_expectations(tmp_path, arguments):
    assert not told(written(tmp_path, GOOD), rule(BETWEEN, column="low", **arguments))


@pytest.mark.parametrize("again", [[], [("a", 1, 2, 7.0)]], ids=["as they are", "one doubled"])
def test_few_rows_are_checked_without_spark(tmp_path, again):
    files = written(tmp_path, GOOD, again) if again else written(tmp_path, GOOD)
    suite = [rule(UNIQUE, 1, column_list=["k", "low", "high"]), rule(ORDERED, 2, **PAIR), rule(UNIQUE, 3, column_list=["absent"])]
    assert validating.kept_rules(files, suite, pytest.fail) == ({2} if again else {1, 2})  # type: ignore[arg-type]


def mixed(folder: Path, counts: list[int], starts: list[int | None]) -> tuple[Any, pa.Table, ResultFiles]:
    """A pipeline of which most rules are about some of its windows, and result rows of a grid and of a window with policies."""
    pipeline = parse_pipeline(
        {
            "pipeline": "mixed",
            "source": {"path": "/nowhere"},
            "keys": ["k"],
            "time": {"column": "at", "unit": "none"},
            "windows": [
                {"name": "w", "type": "tumbling", "size": 10},
                {"name": "last", "type": "sliding", "evict": {"count": 2}, "trigger": {"count": 1}},
            ],
            "aggregates": {"n": {"count": "*"}, "x": {"max": "v"}},
            "sink": {"path": str(folder)},
            "expectations": [
                {"type": BETWEEN, "column": "n", "max_value": 3, "row_condition": 'col("window") == "last"', "severity": "warning"},
                {"type": BETWEEN, "column": "x", "min_value": 0, "row_condition": 'col("window") == "w"', "severity": "info"},
            ],
        }
    )
    rows = pa.table(
        {
            "k": pa.array(["a", "b", "a", "a"]),
            "window": pa.array(["w", "w", "last", "last"]),
            "window_start": pa.array(starts, pa.int64()),
            "window_end": pa.array([10, 20, 4, 5]),
            "trigger": pa.array([None, None, 0, 1], pa.int64()),
            "revision": pa.array([0] * 4),
            "n": pa.array(counts),
            "x": pa.array([0.5, 2.0, -1.0, None]),
            "batch": pa.array([0] * 4),
        }
    )
    files = []
    for first in (0, 2):  # each window has a file of its own
        with FileWriter(str(folder), rows.schema, batch=0, attempt="0", task=0) as writer:
            writer.write(rows.slice(first, 2))
        files += writer.close()
    return pipeline, rows, ResultFiles(str(folder), files, rows.schema)


@pytest.mark.parametrize("few", [True, False], ids=["compared by pandas", "by hashes"])
def test_rules_about_some_windows_have_the_results_of_great_expectations(tmp_path, monkeypatch, few):
    pipeline, rows, files = mixed(tmp_path, [7, 1, 0, 2], [0, 10, 4, None])
    evaluated = validate(rows, pipeline, columns=rows.schema.names, rows_read=8)
    assert evaluated.status == "passed"
    left: list[str | None] = []
    monkeypatch.setattr(validating, "MAX_COMPARED", 100_000 if few else 0)
    evaluate = gx.evaluate
    monkeypatch.setattr(
        gx, "evaluate", lambda rows, suite, *a, **k: left.extend(r.column for r, _ in suite) or evaluate(rows, suite, *a, **k)
    )
    assert validate_files(files, pipeline, 8, 0, pytest.fail, pytest.fail) == evaluated  # type: ignore[arg-type]
    assert left == ["x"], "statistics do not tell the numbers of one window, and only whole ones are compared here"


@pytest.mark.parametrize(
    ("counts", "starts", "unmet"),
    [
        ([7, 1, 4, 2], [0, 10, 4, None], {"n"}),
        ([7, 0, 0, 2], [0, 10, 4, None], {"n"}),
        ([7, 1, -1, 2], [0, 10, 4, None], {"n"}),
        ([7, 1, 0, 2], [10, 10, 4, 4], {"window_end, window_start"}),
        ([7, 1, 0, 2], [0, 10, 5, 4], {"window_end, window_start"}),
    ],
    ids=str,
)
def test_rows_that_break_a_rule_about_some_windows_are_found(tmp_path, counts, starts, unmet):
    pipeline, rows, files = mixed(tmp_path, counts, starts)
    found = validate_files(files, pipeline, 8, 0, pytest.fail, lambda: None)  # type: ignore[arg-type,return-value]
    assert {result.column for result in found.unmet} == unmet
    assert found.unmet == validate(rows, pipeline, columns=rows.schema.names, rows_read=8).unmet
