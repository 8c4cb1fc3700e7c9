"""What the evaluator over Arrow tables and Spark itself make of expressions, row by row."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
from py4j import java_gateway, protocol
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from windowmill.jobs.conditions.checks import parsed
from windowmill.jobs.conditions.evaluated import NoValueError, OutsideError, name_of
from windowmill.jobs.conditions.evaluator import Evaluator
from windowmill.windowing.errors import SpecError

#: The name of an expression's type, and its value on each row, or that its evaluation fails.
Answers = tuple[str, list[Any]]
FAILS = "fails"
#: Rules by which Spark's optimizer evaluates less than is written, or sooner.
_RULES = (
    *("ConvertToLocalRelation", "ConstantFolding", "NullPropagation", "BooleanSimplification", "SimplifyConditionals"),
    *("ReorderAssociativeOperator", "UnwrapCastInBinaryComparison", "SimplifyCaseConversionExpressions", "CollapseProject"),
)


def frame_of(spark: SparkSession, rows: pa.Table) -> DataFrame:
    return spark.createDataFrame(rows, from_arrow_schema(rows.schema, prefer_timestamp_ntz=True))


def by_arrow(expressions: Sequence[str], rows: pa.Table) -> dict[str, Answers]:
    """Those of ``expressions`` that are evaluated without Spark."""
    columns = {name: rows.column(name).combine_chunks() for name in rows.column_names}
    found = {}
    for text in expressions:
        try:
            value = Evaluator(columns, rows.num_rows).value(parsed(text))
        except (OutsideError, NoValueError, SpecError):
            continue
        failed = np.zeros(rows.num_rows, np.bool_) if value.failed is None else value.failed
        assert not (failed & value.valid).any(), text
        shown = [FAILS if fails else _shown(each) for each, fails in zip(_internal(value.array), failed, strict=True)]
        found[text] = (name_of(value.kind), shown)
    return found


def _internal(array: pa.Array) -> list[Any]:
    """Values as Spark keeps them: days and microseconds."""
    kind = array.type
    if pa.types.is_date32(kind):
        return array.view(pa.int32()).to_pylist()
    if pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
        return array.view(pa.int64()).to_pylist()
    # Java writes a float with the fewest digits, or one more.
    return [np.float32(each).item() if kind == pa.float32() and each is not None else each for each in array.to_pylist()]


def _shown(value: Any) -> Any:
    return "NaN" if isinstance(value, float) and math.isnan(value) else value


def by_spark(spark: SparkSession, expressions: Sequence[str], frame: DataFrame, at_once: int = 100) -> dict[str, Answers | str]:
    """What Spark makes of each expression as it is written, on each row alone; the refusal of one that it does not take."""
    found: dict[str, Answers | str] = {}
    with _as_written(spark):
        for begin in range(0, len(expressions), at_once):
            found |= _together(spark, expressions[begin : begin + at_once], frame)
    return found


@contextmanager
def _as_written(spark: SparkSession) -> Iterator[None]:
    settings = {
        "spark.sql.optimizer.excludedRules": ",".join(f"org.apache.spark.sql.catalyst.optimizer.{rule}" for rule in _RULES),
        "spark.sql.alwaysInlineCommonExpr": "true",
    }
    # PySpark looks closely at each exception, of which there is one for a row that fails.
    patched, java_gateway.get_return_value = java_gateway.get_return_value, protocol.get_return_value
    log = PySparkLogger.getLogger("SQLQueryContextLogger")  # a record for each row on which an expression fails
    before, log.disabled = log.disabled, True
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        log.disabled, java_gateway.get_return_value = before, patched
        for name in settings:
            spark.conf.unset(name)


def _together(spark: SparkSession, expressions: Sequence[str], frame: DataFrame) -> dict[str, Answers | str]:
    """Each of ``expressions``, planned at once if Spark takes all of them."""
    try:
        selected = frame.select(*(F.expr(text).alias(f"c{number}") for number, text in enumerate(expressions)))
        plan: Any = selected._jdf.queryExecution().optimizedPlan()
    except (Py4JJavaError, PySparkException) as err:
        if len(expressions) == 1:
            return {expressions[0]: str(err).splitlines()[0]}
        half = len(expressions) // 2
        return _together(spark, expressions[:half], frame) | _together(spark, expressions[half:], frame)
    catalyst: Any = spark._jvm.org.apache.spark.sql.catalyst.expressions
    relation = plan.child()
    attributes = getattr(catalyst, "package$AttributeSeq")(relation.output())
    rows = [relation.data().apply(number) for number in range(relation.data().size())]
    found: dict[str, Answers | str] = {}
    for number, text in enumerate(expressions):
        given = plan.projectList().apply(number)
        own = given.child() if given.getClass().getSimpleName() == "Alias" else given
        bound = catalyst.BindReferences.bindReference(own, attributes, False)
        kind = str(bound.dataType().catalogString())
        found[text] = (kind, [_value(bound, row, kind) for row in rows])
    return found


def _value(bound: Any, row: Any, kind: str) -> Any:
    try:
        value = bound.eval(row)
    except (Py4JJavaError, PySparkException):
        return FAILS
    if hasattr(value, "toString"):
        value = Decimal(value.toString()) if kind.startswith("decimal") else value.toString()
    return _shown(np.float32(value).item() if kind == "float" and value is not None else value)


def differing(here: Answers, theirs: Answers | str) -> object:
    """What differs, if anything does."""
    if isinstance(theirs, str):
        # Spark may find while it plans that a constant fails.
        return None if set(here[1]) == {FAILS} else theirs
    kinds = [kind.replace(" day to second", "").replace(" day", "") for kind in (here[0], theirs[0])]
    if kinds[0] != kinds[1]:
        return here[0], theirs[0]
    pairs = enumerate(zip(here[1], theirs[1], strict=True))
    return [(row, one, other) for row, (one, other) in pairs if one != other][:3]
