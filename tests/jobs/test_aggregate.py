"""What ``aggregate`` says of arguments of other types than it takes; its results are tests/spark/test_dataframe.py."""

from __future__ import annotations

import pandas as pd
import pyarrow as pa
import pytest

from windowmill import aggregate
from windowmill.windowing.errors import ArgumentError

SPEC = {
    "pipeline": "p",
    "time": {"column": "t", "unit": "none"},
    "windows": [{"name": "w", "type": "tumbling", "size": 10}],
    "aggregates": {"n": {"count": "*"}},
}


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
        aggregate(given, SPEC)
    assert str(told.value).startswith(f"aggregate: got {named} as df; expected a Spark DataFrame, classic or of Spark Connect: {remedy}")
    assert isinstance(told.value, TypeError)
