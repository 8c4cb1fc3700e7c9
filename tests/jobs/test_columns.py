"""Columns of a source that change between batches."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as T

from tests.spark.harness import BASE, MINUTE, Bench
from tests.specs import SECONDS, TENS, a_spec
from windowmill.jobs.sources.columns import Columns, check_unchanged
from windowmill.jobs.sources.delta_log import physical_names
from windowmill.jobs.sources.spark_files import _stored, literal_path
from windowmill.windowing.errors import SourceSchemaError
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.specfile import parse_pipeline

SESSION = {"name": "w", "type": "session", "gap": 3}
COUNTED = {"name": "w", "type": "count", "count": 3}
DELTA = {"name": "w", "type": "sliding", "evict": {"delta": {"column": "v", "by": 3}}}


def _pipeline(**changes: Any) -> Pipeline:
    spec: dict[str, Any] = a_spec(keys=["k"], time=SECONDS, windows=[TENS], aggregates={"total": {"sum": "v"}, "average": {"mean": "f"}})
    return parse_pipeline(spec | changes)


_TYPES: dict[str, T.DataType] = {"k": T.StringType(), "f": T.FloatType(), "d": T.DecimalType(20, 2)}
_TYPES |= dict.fromkeys(("t", "v", "rest"), T.IntegerType())


def _schema(**types: Any) -> str:
    struct = T.StructType()
    for name, kind in (_TYPES | types).items():
        if kind is not None:
            struct.add(name, kind)
    return struct.json()


@pytest.mark.covers("S3")
@pytest.mark.parametrize(
    "types",
    [{"v": T.LongType()}, {"f": T.DoubleType()}, {"t": T.LongType()}, {"rest": T.StringType()}, {"rest": None}, {"added": T.StringType()}],
    ids=str,
)
@pytest.mark.parametrize(
    "changes", [{}, {"windows": [SESSION]}, {"windows": [COUNTED]}, {"keys": ["v"]}, {"aggregates": {"a": {"max": "v"}}}]
)
def test_wider_added_and_unused_columns_change_nothing(types, changes):
    check_unchanged(_schema(), _schema(**types), _pipeline(**changes), "s")


@pytest.mark.covers("S3")
@pytest.mark.parametrize(
    ("types", "changes", "message"),
    [
        ({"v": T.ByteType()}, {}, "'v' was int and is now tinyint"),
        ({"d": T.DecimalType(12, 2)}, {"aggregates": {"total": {"sum": "d"}}}, r"'d' was decimal\(20,2\) and is now decimal\(12,2\)"),
        ({"v": T.StringType()}, {}, "'v' was int and is now string"),
        ({"k": T.IntegerType()}, {}, "'k' was string and is now int"),
        ({"v": None}, {}, "'v' is gone"),
        ({"v": T.DoubleType()}, {}, "'v' was int and is now double, by which total of the results would turn from BIGINT into DOUBLE"),
        ({"v": T.DoubleType()}, {"windows": [COUNTED]}, "'v' was int and is now double, by which total"),
        ({"v": T.DoubleType()}, {"windows": [DELTA], "aggregates": {"n": {"count": "*"}}}, "'v' was int .* partials of its values"),
        ({"v": T.DoubleType()}, {"aggregates": {"a": {"count_distinct": "v"}}}, "'v' was int .* partials of its values"),
    ],
    ids=str,
)
def test_what_would_change_results_is_refused(types, changes, message):
    with pytest.raises(SourceSchemaError, match=message):
        check_unchanged(_schema(), _schema(**types), _pipeline(**changes), "s")


def _mapped(**columns: tuple[int, str, Any]) -> str:
    """A schema with column mapping: for each name the column's id, its name in the files, and its type."""
    struct = T.StructType()
    for name, (number, stored, kind) in columns.items():
        struct.add(name, kind, True, {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": stored})
    return struct.json()


_MAPPED: dict[str, tuple[int, str, Any]] = {
    "k": (1, "k", T.StringType()),
    "t": (2, "t", T.IntegerType()),
    "v": (3, "col-3", T.IntegerType()),
    "f": (4, "f", T.FloatType()),
    "rest": (5, "col-5", T.IntegerType()),
    "other": (6, "col-6", T.IntegerType()),
}


@pytest.mark.covers("S3")
@pytest.mark.parametrize(
    ("now", "changes", "message"),
    [
        ({"v": _MAPPED["rest"], "rest": _MAPPED["v"]}, {}, r"'v' is another column .*'col-3', id 3 before, 'col-5', id 5 now"),
        ({"v": (7, "col-7", T.IntegerType())}, {}, "'v' is another column"),
        ({"v": (7, "col-7", T.LongType())}, {}, "'v' is another column"),
        ({"v": (7, "col-3", T.IntegerType())}, {}, "'v' is another column"),
        ({"v": None, "w": _MAPPED["v"]}, {}, "'v' has been renamed to 'w' since the last batch; rename it back"),
        ({"k": (7, "col-7", T.StringType())}, {}, "'k' is another column"),
        ({"t": (7, "col-7", T.IntegerType())}, {}, "'t' is another column"),
        ({"rest": _MAPPED["other"], "other": _MAPPED["rest"]}, {"source": {"path": "s", "filter": "REST > 3"}}, "'rest' is another column"),
        ({"rest": None}, {"aggregates": {"n": {"count": "*", "where": "rest > 3"}}}, "'rest' is gone"),
    ],
    ids=str,
)
def test_a_name_that_has_passed_to_another_column_is_refused(now, changes, message):
    columns = {name: column for name, column in {**_MAPPED, **now}.items() if column is not None}
    with pytest.raises(SourceSchemaError, match=message):
        check_unchanged(_mapped(**_MAPPED), _mapped(**columns), _pipeline(**changes), "s")


@pytest.mark.covers("S3")
def test_unused_columns_may_be_renamed_and_column_mapping_enabled():
    swapped = {**_MAPPED, "rest": _MAPPED["other"], "other": _MAPPED["rest"]}
    check_unchanged(_mapped(**_MAPPED), _mapped(**swapped), _pipeline(), "s")
    enabled = {name: (number, name, kind) for name, (number, _, kind) in _MAPPED.items()}
    check_unchanged(_schema(), _mapped(**enabled), _pipeline(), "s")


@pytest.mark.parametrize(
    "around", [lambda kind: kind, T.ArrayType, lambda kind: T.MapType(T.StringType(), kind)], ids=["struct", "array", "map"]
)
def test_fields_within_a_column_that_have_swapped_names_are_refused(around):
    def nested(first: str, second: str, **more: Any) -> str:
        inner = T.StructType()
        for name, stored in (("a", first), ("b", second)):
            inner.add(name, T.IntegerType(), True, {"delta.columnMapping.physicalName": stored} | more)
        return _schema(v=around(inner))

    pipeline = _pipeline(aggregates={"last": {"last": "v"}})
    check_unchanged(nested("x", "y"), nested("x", "y", comment="what it means"), pipeline, "s")
    with pytest.raises(SourceSchemaError, match=r"column 'v.a' is another column .*'x' before, 'y' now"):
        check_unchanged(nested("x", "y"), nested("y", "x"), pipeline, "s")


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (T.StructType().add("a", T.IntegerType()), "struct<a:int>"),
        (T.ArrayType(T.IntegerType()), "array<int>"),
        (T.MapType(T.StringType(), T.IntegerType()), "map<string,int>"),
        (T.VariantType(), "variant"),
    ],
    ids=["struct", "array", "map", "variant"],
)
def test_a_key_of_a_nested_type_is_refused(kind, told):
    with pytest.raises(SourceSchemaError) as refused:
        Columns.of(_schema(k=kind)).check(_pipeline(), "the source")
    assert str(refused.value).startswith(f"pipeline p: keys.0: 'k' is {told}, which cannot be a key; ")


@pytest.mark.covers("S3")
def test_files_are_read_by_the_names_that_they_use():
    """Under column mapping a column that was renamed keeps its name in the files, as do fields within it."""

    def named(name: str) -> dict[str, str]:
        return {"delta.columnMapping.physicalName": name}

    inner = T.StructType().add("a", T.IntegerType(), True, named("col-a"))
    struct = T.StructType().add("v", T.IntegerType(), True, named("col-v")).add("list", T.ArrayType(inner)).add("k", T.StringType())
    stored = _stored(struct)
    assert stored.names == ["col-v", "list", "k"]
    assert stored["list"].dataType.elementType.names == ["col-a"]  # type: ignore[attr-defined]
    assert physical_names(struct.json()) == {"v": "col-v", "list": "list", "k": "k"}


@pytest.mark.covers("X3")
def test_no_path_is_a_pattern():
    """Spark expands what is not escaped, and would read the files of other partitions."""
    assert literal_path("/t", "p=[ab]{c,d}*?/part-0.parquet") == r"/t/p=\[ab\]\{c,d\}\*\?/part-0.parquet"
    assert literal_path("/t", "p=a b/part-0.parquet") == "/t/p=a b/part-0.parquet"
    assert literal_path("s3://b/t/", "part-0.parquet") == "s3a://b/t/part-0.parquet"


def test_a_tie_break_without_an_order_is_refused():
    pipeline = _pipeline(time={"column": "t", "unit": "s", "tie_break": ["k", "rest"]})
    Columns.of(_schema()).check(pipeline, "the source")
    with pytest.raises(SourceSchemaError, match=r"time.tie_break.1: 'rest' is array<int>; expected values that have an order"):
        Columns.of(_schema(rest=T.ArrayType(T.IntegerType()))).check(pipeline, "the source")


#: By kind of column, whether a delta of a number, and one of a duration, takes it.
_DELTAS: dict[T.DataType, tuple[bool, bool]] = {
    **dict.fromkeys((T.IntegerType(), T.DoubleType(), T.DecimalType(10, 2), T.BooleanType()), (True, False)),
    **dict.fromkeys((T.TimestampType(), T.TimestampNTZType(), T.DateType()), (False, True)),
    **dict.fromkeys((T.StringType(), T.BinaryType(), T.ArrayType(T.IntegerType()), T.StructType(), T.VariantType()), (False, False)),
}


@pytest.mark.parametrize("policy", ["evict", "trigger"])
def test_a_delta_over_a_column_that_has_no_differences_is_refused(policy):
    for kind, taken in _DELTAS.items():
        columns = Columns.of(_schema(t=T.TimestampType(), v=kind))
        for by, is_taken in zip((3, "1 day"), taken, strict=True):
            window = {"name": "w", "type": "sliding", "evict": {"count": 3}, policy: {"delta": {"column": "v", "by": by}}}
            pipeline = _pipeline(time={"column": "t"}, windows=[window], aggregates={"n": {"count": "*"}})
            if is_taken:
                columns.check(pipeline, "s")
                continue
            with pytest.raises(SourceSchemaError, match=rf"^pipeline p: windows.0.{policy}.delta.column: 'v' is .*; expected a"):
                columns.check(pipeline, "s")


@pytest.mark.local
def test_a_delta_over_dates_is_one_over_their_instants(tmp_path):
    days = [19_000 + day for day in (0, 1, 3, 4, 9, 10)]
    found = {}
    for kind in (pa.date32(), pa.timestamp("us"), pa.timestamp("us", "UTC")):
        policies = {"evict": {"delta": {"column": "x", "by": "2 days"}}, "trigger": {"delta": {"column": "x", "by": "1 day"}}}
        spec = {"keys": ["k"], "time": {"column": "t"}, "windows": [{"name": "w", "type": "sliding", **policies}]}
        bench = Bench(tmp_path / str(len(found)), spec | {"aggregates": {"n": {"count": "*"}}})
        for begin in (0, 3):
            n = [*range(begin, begin + 3)]
            values = pa.array([days[at] for at in n], pa.int32()).cast(pa.date32()).cast(kind)
            times = pa.array([BASE + at * MINUTE for at in n], pa.timestamp("us", "UTC"))
            bench.append(pa.table({"k": ["a"] * 3, "t": times, "x": values}))
            bench.run()
        found[kind] = [(row["trigger"], row["n"]) for row in bench.rows()]
    assert set(map(tuple, found.values())) == {((0, 2), (1, 2))}
