"""Which rules are certain to be kept by all rows, as statistics of files and the columns themselves tell; against Great Expectations."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from tests.specs import TENS, TICKS, a_spec
from windowmill.checkpoints.data_files import FileWriter
from windowmill.expectations import gx
from windowmill.expectations.gate import validate
from windowmill.expectations.rule import Rule
from windowmill.jobs.batch import validating
from windowmill.jobs.batch.validating import ResultFiles, _broken, _count, _shown_by, kept_rules, validate_files
from windowmill.windowing.specfile import parse_pipeline

SCHEMA = pa.schema([("k", pa.string()), ("low", pa.int64()), ("high", pa.int64()), ("x", pa.float64())])
UNIQUE = "expect_compound_columns_to_be_unique"
ORDERED = "expect_column_pair_values_a_to_be_greater_than_b"
BETWEEN = "expect_column_values_to_be_between"
PAIR = {"column_A": "high", "column_B": "low", "or_equal": False, "ignore_row_if": "either_value_is_missing"}
Rows = list[tuple[str | None, int | None, int | None, float | None]]
GOOD: Rows = [("a", 1, 2, 1.5), ("a", 2, 3, None), (None, 1, 2, 2.5), ("b", None, 2, 3.5)]
#: A second row of a key that ``GOOD`` has.
AGAIN: Rows = [("a", 2, 3, 9.0)]
ZEROS: Rows = [(None, 1, None, 0.0), (None, 1, None, -0.0)]


def files_of(folder: Path, *parts: pa.Table) -> ResultFiles:
    """A file for each of the ``parts``."""
    files = []
    for part in parts:
        with FileWriter(str(folder), part.schema, batch=0, attempt="0", task=0) as writer:
            writer.write(part)
        files += writer.close()
    return ResultFiles(str(folder), files, parts[0].schema)


def written(folder: Path, *parts: Rows) -> ResultFiles:
    return files_of(folder, *(pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in part], SCHEMA) for part in parts))


def rule(kind: str, index: int = 0, **arguments: Any) -> Rule:
    return Rule(index=index, origin="spec", type=kind, column=None, arguments=arguments, severity="critical")


def told(files: ResultFiles, checked: Rule) -> bool:
    return _shown_by([validating.json.loads(file.stats) for file in files.files], checked, files.schema)


def broken(files: ResultFiles, suite: Sequence[Rule], shares: int = 3) -> set[int]:
    """What the tasks return for ``suite``, each of which has one share of the hashes."""
    numbers = pa.record_batch([pa.array(range(len(files.files)))], names=["id"])
    counted = list(_count(files, suite, shares, {}, iter([numbers])))
    return set[int]().union(*(_broken(batch for batch in counted if batch.column("share")[0].as_py() == share) for share in range(shares)))


SUITE = [rule(UNIQUE, 1, column_list=["k", "low", "high"]), rule(ORDERED, 2, **PAIR)]
WHOLE = [rule(UNIQUE, 1, column_list=SCHEMA.names)]


@pytest.mark.parametrize(
    ("parts", "suite", "found"),
    [
        ([GOOD[:2], GOOD[2:]], SUITE, set()),
        ([GOOD, AGAIN], SUITE, {1}),
        ([GOOD + AGAIN], SUITE, {1}),
        ([GOOD, AGAIN], WHOLE, set()),
        ([ZEROS], [rule(UNIQUE, 4, column_list=["k", "high", "x"])], {4}),
        ([GOOD, [("c", 5, 5, 0.0)]], [rule(ORDERED, 2, **PAIR)], {2}),
        ([GOOD, [("c", 5, 5, 0.0)]], [rule(ORDERED, 2, **PAIR | {"or_equal": True})], set()),
        ([GOOD, [("c", 6, 5, 0.0)]], [rule(ORDERED, 2, **PAIR | {"or_equal": True})], {2}),
        # What Arrow does not compare is left to Great Expectations: longs that no double holds, texts and numbers.
        ([[("a", 2**53 + 1, 2, 1.0)]], [rule(ORDERED, 2, **PAIR | {"column_A": "low", "column_B": "x"})], {2}),
        ([[("a", 2**53 + 1, 2, 1.0)]], [rule(ORDERED, 2, **PAIR | {"column_A": "k", "column_B": "low"})], {2}),
    ],
    ids=str,
)
def test_rows_that_break_a_rule_are_found(tmp_path, parts, suite, found):
    assert broken(written(tmp_path, *parts), suite) == found


@pytest.mark.parametrize(
    "rows",
    [
        *(GOOD, GOOD[:1], GOOD + GOOD[1:2], ZEROS, [("a", 1, 2, float("nan")), ("a", 1, 2, float("nan"))]),
        [("a", 1, 2**53, 0.0), ("a", 1, None, 0.0), ("a", 1, 2**53 + 2, 0.0)],
        [("c", 5, 5, 0.0), ("d", 6, 5, 0.0)],
    ],
    ids=str,
)
def test_few_rows_are_compared_as_their_hashes_are(tmp_path, monkeypatch, rows):
    files, suite = written(tmp_path, rows), [*WHOLE, SUITE[1]]
    compared = kept_rules(files, suite, pytest.fail)
    monkeypatch.setattr(validating, "MAX_COMPARED", 0)
    assert compared == kept_rules(files, suite, pytest.fail)


def test_great_expectations_is_imported_only_for_rules_that_it_may_evaluate():
    certain = [rule(UNIQUE, column_list=["k"]), rule(BETWEEN, column="x", min_value=0), rule(ORDERED, **PAIR)]
    assert not validating.may_need_evaluation(certain)
    assert validating.may_need_evaluation([*certain, rule("expect_column_mean_to_be_between", column="x", min_value=0)])


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
        ({"column": "low"}, False),
        ({"column": "low", "min_value": None, "max_value": None}, False),
    ],
    ids=str,
)
def test_statistics_tell_that_a_range_is_kept(tmp_path, arguments, kept):
    assert told(written(tmp_path, GOOD[:2], GOOD[2:]), rule(BETWEEN, **arguments)) is kept


def test_statistics_tell_that_nothing_is_null_and_no_range_of_nan(tmp_path):
    files, kind = written(tmp_path, GOOD[:2], GOOD[2:]), "expect_column_values_to_not_be_null"
    assert [told(files, rule(kind, column=name)) for name in SCHEMA.names] == [False, False, True, False]
    assert not told(written(tmp_path, [("a", 1, 2, float("nan")), ("a", 2, 3, 1.0)]), rule(BETWEEN, column="x", min_value=0, max_value=9))


@pytest.mark.parametrize("kind", [pa.timestamp("us", "UTC"), pa.date32(), pa.string(), pa.bool_()], ids=str)
def test_a_numeric_bound_on_nulls_of_another_type_is_left_to_great_expectations(tmp_path, kind):
    assert not told(files_of(tmp_path, pa.table({"v": pa.nulls(3, kind)})), rule(BETWEEN, column="v", min_value=0))


def test_a_rule_with_other_arguments_is_left_to_great_expectations(tmp_path):
    others = [
        rule(UNIQUE, 0, column_list=["k"], ignore_row_if="never"),
        rule(ORDERED, 1, **PAIR | {"ignore_row_if": "never"}),
        rule(ORDERED, 2, **PAIR, row_condition="k == 'a'", condition_parser="pandas"),
        rule("expect_column_mean_to_be_between", 3, column="x", min_value=0),
    ]
    session: Any = SimpleNamespace
    assert validating.kept_rules(written(tmp_path, GOOD), others, session) == set(), "no session is asked for"


@pytest.mark.parametrize("again", [[], [("a", 1, 2, 7.0)]], ids=["as they are", "one doubled"])
def test_few_rows_are_checked_without_spark(tmp_path, again):
    files = written(tmp_path, GOOD, *[again] * bool(again))
    suite = [*SUITE, rule(UNIQUE, 3, column_list=["absent"])]
    assert validating.kept_rules(files, suite, pytest.fail) == ({2} if again else {1, 2})  # type: ignore[arg-type]


#: Of all rows, and of those of one window.
ALL_ROWS = [
    {"type": BETWEEN, "column": "x", "min_value": -1, "max_value": 5, "severity": "warning"},
    {"type": "expect_column_values_to_not_be_null", "column": "n", "severity": "info"},
]
SOME_ROWS = [
    {"type": BETWEEN, "column": "n", "max_value": 3, "row_condition": 'col("window") == "last"', "severity": "warning"},
    {"type": BETWEEN, "column": "x", "min_value": 0, "row_condition": 'col("window") == "w"', "severity": "info"},
]


def mixed(folder: Path, rules: list[Any], counts: list[int], starts: list[int | None]) -> tuple[Any, pa.Table, ResultFiles]:
    """A pipeline, and result rows of a grid and of a window with policies, each of which has a file of its own."""
    windows = [TENS, {"name": "last", "type": "sliding", "evict": {"count": 2}, "trigger": {"count": 1}}]
    aggregates = {"n": {"count": "*"}, "x": {"max": "v"}}
    pipeline = parse_pipeline(a_spec(folder, keys=["k"], time=TICKS, windows=windows, aggregates=aggregates, expectations=rules))
    columns = {
        "k": ["a", "b", "a", "a"],
        "window": ["w", "w", "last", "last"],
        "window_start": pa.array(starts, pa.int64()),
        "window_end": [10, 20, 4, 5],
        "trigger": pa.array([None, None, 0, 1], pa.int64()),
        "revision": [0] * 4,
        "n": counts,
        "x": [0.5, 2.0, -1.0, None],
        "batch": [0] * 4,
    }
    rows = pa.table(columns)
    return pipeline, rows, files_of(folder, rows.slice(0, 2), rows.slice(2))


@pytest.mark.parametrize("few", [True, False], ids=["compared by pandas", "by hashes"])
@pytest.mark.parametrize(
    ("rules", "left"),
    # Statistics do not tell the numbers of one window, and only whole ones are compared here.
    [(ALL_ROWS, []), (SOME_ROWS, ["x"])],
    ids=["all rows", "some rows"],
)
def test_results_are_those_of_great_expectations(tmp_path, monkeypatch, few, rules, left):
    pipeline, rows, files = mixed(tmp_path, rules, [7, 1, 0, 2] if rules is SOME_ROWS else [7, 1, 3, 2], [0, 10, 4, None])
    wanted = validate(rows, pipeline, columns=rows.schema.names, rows_read=8)
    assert wanted.status == "passed"
    asked: list[str | None] = []
    monkeypatch.setattr(validating, "MAX_COMPARED", 100_000 if few else 0)
    evaluate = gx.evaluate
    monkeypatch.setattr(
        gx, "evaluate", lambda rows, suite, *a, **k: asked.extend(r.column for r, _ in suite) or evaluate(rows, suite, *a, **k)
    )
    assert validate_files(files, pipeline, 8, 0, pytest.fail, pytest.fail) == wanted  # type: ignore[arg-type]
    assert asked == left


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
    pipeline, rows, files = mixed(tmp_path, SOME_ROWS, counts, starts)
    found = validate_files(files, pipeline, 8, 0, pytest.fail, lambda: None)  # type: ignore[arg-type,return-value]
    assert {result.column for result in found.unmet} == unmet
    assert found.unmet == validate(rows, pipeline, columns=rows.schema.names, rows_read=8).unmet
