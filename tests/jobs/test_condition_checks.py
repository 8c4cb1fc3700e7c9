"""Conditions are Spark SQL over one row, with the same answer at every run."""

from __future__ import annotations

import pytest

from tests.jobs.condition_cases import REFUSED, ROW, TAKEN, WRITTEN
from windowmill.jobs.conditions.checks import CHANGING, LAMBDAS, MAKING_ROWS, OF_MANY_ROWS, OF_ONE_ROW, condition_problem


@pytest.mark.parametrize("text", TAKEN)
def test_a_condition_over_a_row_is_taken(text):
    assert condition_problem(text) is None


@pytest.mark.parametrize(("text", "problem"), REFUSED)
def test_anything_else_is_refused(text, problem):
    assert problem in (condition_problem(text) or "")


@pytest.mark.spark
@pytest.mark.classic
def test_what_is_taken_is_known_to_spark(spark):
    from pyspark.errors import AnalysisException, ParseException

    taken, row = [text for text in WRITTEN if condition_problem(text) is None], spark.sql(ROW)
    assert len(taken) > 150
    unknown = []
    for text in taken:
        try:
            row.where(text)
        except ParseException as err:
            unknown.append((text, str(err)[:80]))
        except AnalysisException as err:
            # That a type or a column does not fit is not known without the columns.
            fits = ("DATATYPE_MISMATCH", "UNRESOLVED_COLUMN", "FIELD", "WRONG_NUM_ARGS", "INVALID_EXTRACT")
            if not (err.getCondition() or "").startswith(fits):
                unknown.append((text, str(err)[:80]))
    assert unknown == []


@pytest.mark.spark
@pytest.mark.classic
def test_functions_are_those_of_sparks_registry(spark):
    registry = spark._jvm.org.apache.spark.sql.catalyst.analysis.FunctionRegistry.builtin()
    found, names = {}, registry.listFunction().iterator()
    while names.hasNext():
        name = names.next()
        found[name.funcName()] = registry.lookupFunction(name).get().getGroup()
    unloaded = {"from_avro", "to_avro", "schema_of_avro", "from_protobuf", "to_protobuf"}
    of_times = {name for name in found if name.startswith("time_") or name in ("time", "make_time", "to_time", "try_to_time")} - {
        "time_bucket"
    }
    words = {name for name in found if name.isidentifier()} - unloaded - of_times
    assert words - CHANGING - OF_MANY_ROWS - MAKING_ROWS == OF_ONE_ROW
    assert {name for name, group in found.items() if group in ("agg_funcs", "window_funcs") or name.endswith("_agg")} <= OF_MANY_ROWS
    assert {name for name, group in found.items() if group == "generator_funcs"} <= MAKING_ROWS
    assert not OF_ONE_ROW & (CHANGING | OF_MANY_ROWS | MAKING_ROWS)
    assert LAMBDAS.keys() == {name for name, group in found.items() if group == "lambda_funcs"}


def test_nothing_is_written_on_the_way(capfd):
    for text in ("drop table x", "set x = 1", "alter session set x", "call f()", "show tables", "analyze table t compute statistics"):
        assert condition_problem(text)
    assert capfd.readouterr() == ("", "")
