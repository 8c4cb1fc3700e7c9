"""Errors of the libraries below us, and of arguments of other types than ``aggregate`` takes."""

from __future__ import annotations

import json
import re
import traceback

import pandas as pd
import pyarrow as pa
import pytest

from tests.specs import TENS, TICKS, a_spec
from windowmill import aggregate
from windowmill.jobs.spark.failures import explain, raised_in_worker
from windowmill.windowing.errors import ArgumentError, StateCorruptError


def _trace(err: Exception) -> str:
    """As Spark quotes what a Python worker raised."""
    told = "".join(traceback.format_exception(err))
    return f"An exception was thrown.\n  org.apache.spark.api.python.PythonException: {told}\n\tat java.base/java.lang.Thread.run"


def test_an_error_of_our_own_comes_back_from_a_worker():
    try:
        raise StateCorruptError("state /s: 1 of 3 rows read differ")
    except StateCorruptError as err:
        found = raised_in_worker(RuntimeError(_trace(err)))
    assert type(found) is StateCorruptError
    assert str(found) == "state /s: 1 of 3 rows read differ"


def _fail(_value: int) -> int:
    return json.loads("x")  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "seen",
    [
        lambda err: err,
        lambda err: RuntimeError(_trace(err)),
        lambda err: RuntimeError("An exception was thrown from the Python worker:\n" + "".join(traceback.format_exception(err)).rstrip()),
    ],
    ids=["here", "quoted by Java", "quoted by pyspark"],
)
def test_an_error_of_a_users_module_says_what_and_where(seen):
    try:
        _fail(1)
    except ValueError as err:
        found = explain(seen(err))
    assert re.match(r"(json\.decoder\.)?JSONDecodeError: Expecting value: .* \(test_failures\.py:\d+ in _fail\); run again", found)
    assert "\n" not in found


def test_an_error_without_words_is_told_by_its_type():
    try:
        raise NotImplementedError
    except NotImplementedError as err:
        for seen in (err, RuntimeError(_trace(err))):
            assert explain(seen).startswith("NotImplementedError (test_failures.py:")


def test_an_error_of_a_users_module_is_not_ours():
    assert raised_in_worker(RuntimeError(_trace(ValueError("mine")))) is None


@pytest.mark.parametrize(
    ("given", "named", "remedy"),
    [
        (pd.DataFrame({"t": [1]}), "pandas.DataFrame", "pass spark_session().createDataFrame(df)"),
        (pa.table({"t": [1]}), "pyarrow.Table", "pass spark_session().createDataFrame(df)"),
        ([{"t": 1}], "builtins.list", "read a table first, as in spark_session().read.load(path)"),
        (None, "builtins.NoneType", "read a table first"),
    ],
)
def test_what_is_no_spark_dataframe_is_refused_with_what_to_pass(given, named, remedy):
    with pytest.raises(ArgumentError) as told:
        aggregate(given, a_spec(time=TICKS, windows=[TENS]))
    assert str(told.value).startswith(f"aggregate: got {named} as df; expected a Spark DataFrame, classic or of Spark Connect: {remedy}")
    assert isinstance(told.value, TypeError)
