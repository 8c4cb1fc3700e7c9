"""Runs Great Expectations, over rows and bounds of types that its engines compare.

Only this module imports it, always inside a function, because the import takes about 1 s of CPU. The import is made cheaper: modules that
few rules use load at first use, and SQLAlchemy is not loaded.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import math
import os
import sys
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from decimal import Decimal
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from windowmill.expectations.rule import Rule

if TYPE_CHECKING:
    import pandas
    import pyspark.sql


#: Rows and sessions of Spark, which is imported where it is used.
SparkRows: TypeAlias = "pyspark.sql.DataFrame"
SparkSession: TypeAlias = "pyspark.sql.SparkSession"
#: Greatest number of rows named per failed rule.
MAX_EXAMPLES = 1_000
#: Greatest number of characters of an error.
MAX_ERROR = 500
#: Counts only: with sampled values every rule, even a passing one, would cost another Spark job.
_COUNTS = {"result_format": "BASIC", "partial_unexpected_count": 0}
#: Modules that Great Expectations, or ``pyspark.ml`` behind it, import as a whole (``import altair``): 1 s of processor time together.
DEFERRED = frozenset({"altair", "jsonschema", "scipy.sparse", "scipy.stats"})
#: Great Expectations needs this package only for databases, and works without it. Its import takes 0.3 s.
UNUSED = "sqlalchemy"


@dataclass(frozen=True, slots=True)
class Finding:
    """Great Expectations' result for one rule, in plain Python values."""

    #: Whether the rule holds; ``False`` with an ``error`` if it could not be evaluated.
    success: bool
    #: The exception in one line; may quote values of the rows.
    error: str | None = None
    #: Great Expectations' own result mapping.
    result: Mapping[str, Any] = field(default_factory=dict)
    #: Identity columns, and the rule's own, of rows that break the rule; at most :data:`MAX_EXAMPLES`.
    rows: Sequence[Mapping[str, Any]] = ()


def load() -> Any:
    """Import Great Expectations with its analytics disabled; later calls return the same module."""
    os.environ["GX_ANALYTICS_ENABLED"] = "false"
    with deferred_imports():
        return importlib.import_module("great_expectations")


def build(rule: Rule, arguments: Mapping[str, Any]) -> Any:
    """Build the expectation object of a rule; raises ``ValueError`` if Great Expectations refuses the arguments."""
    load()
    from great_expectations.expectations.metadata_types import FailureSeverity
    from great_expectations.expectations.registry import get_expectation_impl

    # Results are returned in another order (broken rules first), so each carries the index of its rule.
    severity = FailureSeverity(rule.severity)
    return get_expectation_impl(rule.type)(**arguments, severity=severity, meta={"rule": rule.index})


def evaluate(frame: Any, suite: Sequence[tuple[Rule, Mapping[str, Any]]], identity: Sequence[str], *, spark: bool) -> dict[int, Finding]:
    """Evaluate rules over a pandas or Spark frame in two passes: counts for all rules, then the rows that break failed ones.

    The ``suite`` has the rules, each with its arguments for this frame, which the caller has cached if it is one of Spark; columns of
    ``identity`` name failing rows. Findings are by rule index, without rules for which Great Expectations returns no result.
    """
    gx = load()
    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = {"globally": False}
    source = context.data_sources.add_spark("windowmill", persist=False) if spark else context.data_sources.add_pandas("windowmill")
    batch = source.add_dataframe_asset("rows").add_batch_definition_whole_dataframe("batch").get_batch({"dataframe": frame})

    findings: dict[int, Finding] = {}
    built: dict[int, Any] = {}
    for rule, arguments in suite:
        try:
            built[rule.index] = build(rule, arguments)
        except Exception as err:  # noqa: BLE001 - validators of expectations raise whatever they like
            findings[rule.index] = Finding(success=False, error=_one_line(str(err)))
    with _all_cached_rows(frame) if spark else contextlib.nullcontext():
        findings |= _run(gx, batch, built, _COUNTS)
        failed = {i: built[i] for i, finding in findings.items() if not finding.success and finding.result.get("unexpected_count")}
        # Only SUMMARY limits the rows within Spark; COMPLETE would collect every failing row to the driver.
        named = {"result_format": "SUMMARY", "partial_unexpected_count": MAX_EXAMPLES, "unexpected_index_column_names": list(identity)}
        for index, finding in _run(gx, batch, failed, named).items():
            findings[index] = replace(findings[index], rows=finding.rows)
    return findings


@contextlib.contextmanager
def _all_cached_rows(frame: Any) -> Iterator[None]:
    """Keep Spark from skipping cached rows by column statistics, which omit NaN (SPARK-58482): NaN > 3 would match no rows."""
    setting, configuration = "spark.sql.inMemoryColumnarStorage.partitionPruning", frame.sparkSession.conf
    before = configuration.get(setting)
    configuration.set(setting, "false")
    try:
        yield
    finally:
        configuration.set(setting, before)


def _run(gx: Any, batch: Any, built: Mapping[int, Any], result_format: Mapping[str, Any]) -> dict[int, Finding]:
    if not built:
        return {}
    try:
        results = batch.validate(gx.ExpectationSuite("windowmill", expectations=list(built.values())), result_format=result_format).results
    except Exception as err:  # noqa: BLE001 - some types raise while metrics are collected, which no result is given for
        if len(built) == 1:
            return {index: Finding(success=False, error=_one_line(str(err))) for index in built}
        apart = (_run(gx, batch, {index: expectation}, result_format) for index, expectation in built.items())
        return {index: finding for each in apart for index, finding in each.items()}
    return {result.expectation_config.meta["rule"]: _finding(result) for result in results}


def _finding(result: Any) -> Finding:
    # The error is in either form of ``exception_info``: flat, or one entry per metric that raised.
    info = result.exception_info or {}
    entries = [info, *(part for part in info.values() if isinstance(part, Mapping))]
    messages = [str(entry.get("exception_message") or "unknown error") for entry in entries if entry.get("raised_exception")]
    error = _one_line("; ".join(dict.fromkeys(messages))) if messages else None
    rows = list(result.result.get("partial_unexpected_index_list") or ())[:MAX_EXAMPLES]
    return Finding(success=bool(result.success) and error is None, error=error, result=dict(result.result), rows=rows)


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= MAX_ERROR else f"{line[: MAX_ERROR - 1]}…"


@contextmanager
def deferred_imports() -> Iterator[None]:
    """Within the context, what this thread imports finds the modules above deferred or absent, unless they are imported already.

    A deferred module is Python's own: a :class:`importlib.util.LazyLoader` executes it when an attribute of it is read. Python 3.11 does
    that without a lock. So only this thread gets such modules, and windowmill's threads use Great Expectations one at a time.
    """
    finder = _Finder(threading.get_ident())
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class _Finder(MetaPathFinder):
    def __init__(self, thread: int) -> None:
        self._thread = thread

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if threading.get_ident() != self._thread:
            return None
        if fullname == UNUSED:
            raise ModuleNotFoundError(f"not needed to check rules: {fullname}", name=fullname)
        if fullname not in DEFERRED:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = importlib.util.LazyLoader(spec.loader)
        return spec


#: Kind of a column: instant, instant without a zone, calendar day or decimal. Other columns are absent.
Kinds = Mapping[str, Literal["instant", "wall", "day", "decimal"]]
_BOUNDS = ("min_value", "max_value", "value_set")
#: Rules that look for values in a set as Python does, where a decimal does not equal the float with its digits.
_OF_SETS = ("expect_column_distinct_values_to_", "expect_column_most_common_value_to_be_in_set", "expect_column_pair_values_to_be_in_set")
#: Rules about sums, which a NaN makes NaN in pandas as in Spark, and about equal values, as all NaN are.
WITHOUT_ORDER = frozenset(
    {
        *(f"expect_column_{name}_to_be_between" for name in ("mean", "stdev", "sum", "unique_value_count", "proportion_of_unique_values")),
        *("expect_column_value_z_scores_to_be_less_than", "expect_column_values_to_not_be_outliers", "expect_multicolumn_sum_to_equal"),
        *("expect_column_values_to_be_unique", "expect_compound_columns_to_be_unique"),
    }
)
#: Rules that compare values of a row, or add them.
_EQUAL = ("expect_column_pair_values_to_be_equal", "expect_multicolumn_values_to_be_equal")
_GREATER, _SUM = "expect_column_pair_values_a_to_be_greater_than_b", "expect_multicolumn_sum_to_equal"
#: Rules that compare each value with the one before it.
ALONG = ("expect_column_values_to_be_increasing", "expect_column_values_to_be_decreasing")
#: The column of a frame that these rules compare.
ALONG_OF = "_along"


def to_pandas(table: pa.Table, objects: Collection[str] = ()) -> pandas.DataFrame:
    """Convert without loss: integers with nulls stay integers, and NaN stays distinct from null, as in Spark; O(n).

    Only within lists and structs, pandas makes floats of integers with nulls. Columns of ``objects`` hold Python's values.
    """
    import pandas as pd

    columns = dict(zip(table.column_names, table.columns, strict=True))
    return pd.DataFrame(
        {name: pd.Series(each.to_pylist(), dtype=object) if name in objects else _series(each) for name, each in columns.items()}
    )


def across(rule_type: str, arguments: Mapping[str, Any], table: pa.Table) -> tuple[pa.Table, set[str]] | None:
    """For a rule that compares or adds values of a row, the rows on which pandas agrees with Spark, and columns of Python's values.

    Null if all rows can be used as they are. Pandas has no result for a null of a nullable type, or counts a null as breaking a bound, and
    has no sum with one. In Spark a null breaks no bound, and adds nothing.
    """
    if rule_type in ALONG and arguments["column"] in table.column_names:
        return table.filter(_follows(table.column(arguments["column"]))), set()
    if rule_type not in (_SUM, _GREATER, *_EQUAL):
        return None
    given = arguments.get("column_list") or [arguments.get("column_A"), arguments.get("column_B")]
    names = [name for name in dict.fromkeys(given) if name in table.column_names]
    lacking = [name for name in names if table.column(name).null_count]
    if not lacking or (rule_type == _SUM and not all(_adds(table.column(name).type) for name in lacking)):
        return None
    nulls = [table.column(name).is_null() for name in names]
    ignored = arguments.get("ignore_row_if")
    if rule_type == _SUM and ignored != "any_value_is_missing":
        kept = functools.reduce(pc.and_, nulls)
        for name in lacking:
            column, at = table.column(name), table.schema.get_field_index(name)
            zero = pc.fill_null(column, pa.scalar(Decimal(0) if pa.types.is_decimal(column.type) else 0, column.type))
            table = table.set_column(at, name, zero if ignored == "never" else pc.if_else(kept, column, zero))
    if rule_type == _GREATER:
        either = functools.reduce(pc.or_, nulls)
        for name in names:
            blank = pc.if_else(either, pa.scalar(None, table.column(name).type), table.column(name))
            table = table.set_column(table.schema.get_field_index(name), name, blank)
    kinds = {name: table.column(name).type for name in lacking if rule_type != _SUM}
    knowing = (pa.types.is_integer, pa.types.is_decimal, pa.types.is_boolean, pa.types.is_date)
    return table, {name for name, kind in kinds.items() if any(holds(kind) for holds in knowing)}


def _follows(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Which values are compared with the one before: neither nulls nor NaN."""
    valid = column.is_valid()
    return pc.and_(valid, pc.invert(pc.is_nan(column)).fill_null(False)) if pa.types.is_floating(column.type) else valid


def active_session() -> SparkSession | None:
    from pyspark.sql import SparkSession as Spark

    return Spark.getActiveSession()


def along(frame: SparkRows, column: str) -> SparkRows:
    """The rows of ``frame`` whose ``column`` is compared with the row before, and the compared values in ``ALONG_OF``.

    Great Expectations keeps nulls of some types, and compares only the days of instants.
    """
    from pyspark.sql import functions as F

    kind, own = dict(frame.dtypes)[column], F.col(column)
    rows = frame.where(own.isNotNull() & ~F.isnan(own) if kind in ("float", "double") else own.isNotNull())
    return rows.withColumn(ALONG_OF, F.unix_micros(own.cast("timestamp")) if kind.startswith("timestamp") else own)


def _adds(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def columns_with_nan(table: pa.Table) -> set[str]:
    """Names of floating-point columns with a NaN, which Spark orders above every number and pandas does not order."""
    return {name for name, column in zip(table.column_names, table.columns, strict=True) if _has_nan(column)}


def ordered(table: pa.Table, columns: Collection[str]) -> pa.Table:
    """``table`` with infinity in place of each NaN of ``columns``, so that pandas orders them as Spark does."""
    for name in columns:
        column = table.column(name)
        infinite = pc.if_else(pc.is_nan(column), pa.scalar(math.inf, column.type), column)
        table = table.set_column(table.schema.get_field_index(name), name, infinite)
    return table


def ordered_bounds(rule_type: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a rule over a table of :func:`ordered`: a NaN is above every bound, but no extreme that lies within bounds."""
    if rule_type in ("expect_column_max_to_be_between", "expect_column_min_to_be_between") and arguments.get("max_value") is None:
        return dict(arguments) | {"max_value": sys.float_info.max}
    return dict(arguments)


def unordered(row: Mapping[str, Any], columns: Collection[str]) -> dict[str, Any]:
    """The ``row``, which breaks a rule, with NaN again in place of infinity in ``columns``.

    >>> unordered({"a": float("inf"), "b": float("inf")}, {"a"})
    {'a': nan, 'b': inf}
    """
    return {name: math.nan if name in columns and cell == math.inf else cell for name, cell in row.items()}


def _has_nan(column: pa.ChunkedArray) -> bool:
    return pa.types.is_floating(column.type) and bool(pc.any(pc.is_nan(column)).as_py())


def _series(column: pa.ChunkedArray) -> pandas.Series:
    import pandas as pd

    kind, types = column.type, pa.types
    if types.is_timestamp(kind) and kind.tz is None:
        return pc.assume_timezone(column, "UTC").to_pandas()
    if types.is_decimal(kind) or _has_nan(column) or (types.is_date(kind) and column.null_count):
        return column.to_pandas(types_mapper=pd.ArrowDtype)
    if column.null_count and types.is_integer(kind):
        return column.cast(pa.int64()).to_pandas(types_mapper={pa.int64(): pd.Int64Dtype()}.get)
    if column.null_count and types.is_boolean(kind):
        return column.to_pandas(types_mapper={pa.bool_(): pd.BooleanDtype()}.get)
    return column.to_pandas()


def kinds_of_table(schema: pa.Schema) -> Kinds:
    """Time columns of an Arrow table; timestamps without a zone count as UTC, as in :func:`to_pandas`."""
    kinds: dict[str, Literal["instant", "wall", "day", "decimal"]] = {}
    for each in schema:
        if pa.types.is_decimal(each.type):
            kinds[each.name] = "decimal"
        elif pa.types.is_timestamp(each.type):
            kinds[each.name] = "instant"
        elif pa.types.is_date(each.type):
            kinds[each.name] = "day"
    return kinds


def kinds_of_frame(frame: SparkRows) -> Kinds:
    names: dict[str, Literal["instant", "wall", "day", "decimal"]] = {"timestamp": "instant", "timestamp_ntz": "wall", "date": "day"}
    names["decimal"] = "decimal"
    kinds = {name: kind.partition("(")[0] for name, kind in frame.dtypes}
    return {name: names[kind] for name, kind in kinds.items() if kind in names}


def spark_names(columns: Sequence[str]) -> dict[str, str]:
    """New names for columns whose names Spark would parse as a path or as quoting, because Great Expectations does not quote them.

    >>> spark_names(["a", "b.c"])
    {'b.c': 'column_1'}
    """
    return {name: f"column_{index}" for index, name in enumerate(columns) if "." in name or "`" in name}


def renamed(value: Any, names: Mapping[str, str]) -> Any:
    """Rename columns in ``value``, a rule's arguments or part of its result, at any depth.

    >>> renamed({"column": "b.c"}, {"b.c": "column_1"})
    {'column': 'column_1'}
    """
    if isinstance(value, Mapping):
        return {name: renamed(part, names) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [renamed(part, names) for part in value]
    return names.get(value, value) if isinstance(value, str) else value


def typed(rule_type: str, arguments: Mapping[str, Any], kinds: Kinds, *, spark: bool) -> dict[str, Any]:
    """Convert the bounds of a time column to the type that the engine compares; bounds without a zone are UTC."""
    if rule_type.startswith(_OF_SETS):
        arguments = _with_decimals(arguments, kinds)
    if not spark and rule_type in (_GREATER, _EQUAL[0]) and arguments.get("ignore_row_if") == "neither":
        # To Spark two nulls are equal, and break no bound.
        arguments = {**arguments, "ignore_row_if": "both_values_are_missing"}
    column = arguments.get("column")
    kind = kinds.get(column) if isinstance(column, str) else None
    if kind in (None, "decimal") or not any(name in arguments for name in _BOUNDS):
        return dict(arguments)
    # Spark returns extremes without a zone: instants in this process' zone, zoneless ones unchanged.
    plain_utc = kind == "wall" and rule_type in ("expect_column_max_to_be_between", "expect_column_min_to_be_between")

    def convert(bound: Any) -> Any:
        instant = _instant(bound)
        if instant is None:
            return bound
        if kind == "day":
            return instant.date()
        if not spark:
            return instant
        return (instant if plain_utc else instant.astimezone()).replace(tzinfo=None)

    changed = {name: arguments[name] for name in _BOUNDS if name in arguments}
    return dict(arguments) | {
        name: [convert(v) for v in bound] if isinstance(bound, list) else convert(bound) for name, bound in changed.items()
    }


def _with_decimals(arguments: Mapping[str, Any], kinds: Kinds) -> Mapping[str, Any]:
    """``arguments`` with decimals among the values that are looked for in columns of decimals."""

    def exact(column: Any, value: Any) -> Any:
        return Decimal(str(value)) if kinds.get(column) == "decimal" and isinstance(value, float) else value

    own, pair = arguments.get("value_set"), arguments.get("value_pairs_set")
    columns = (arguments.get("column_A"), arguments.get("column_B"))
    if isinstance(own, list):
        arguments = {**arguments, "value_set": [exact(arguments.get("column"), value) for value in own]}
    if isinstance(pair, list):
        arguments = {**arguments, "value_pairs_set": [[exact(*each) for each in zip(columns, both, strict=True)] for both in pair]}
    return arguments


def _instant(bound: Any) -> datetime | None:
    if isinstance(bound, str):
        try:
            bound = datetime.fromisoformat(bound)
        except ValueError:
            return None
    if isinstance(bound, datetime):
        return bound.astimezone(UTC) if bound.tzinfo else bound.replace(tzinfo=UTC)
    return datetime(bound.year, bound.month, bound.day, tzinfo=UTC) if isinstance(bound, date) else None


def zoned(value: Any) -> Any:
    """Convert instants without a zone to UTC: Spark returns rows in this process' local time."""
    if isinstance(value, Mapping):
        return {name: zoned(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [zoned(part) for part in value]
    return value.astimezone(UTC) if isinstance(value, datetime) and value.tzinfo is None else value
