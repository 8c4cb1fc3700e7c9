"""What DuckDB, windowmill's own SQL in Spark, and Spark itself make of conditions, row by row."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import duckdb
import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, ParseException, PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from windowmill.jobs.conditions.duckdb import Conditions
from windowmill.jobs.conditions.spark import failure, truth
from windowmill.windowing.errors import SpecError, UnsupportedError

#: Of a row: true, false (or null), or that the evaluation fails.
Answers = list[bool | str]
FAILS = "fails"


def types_of(rows: pa.Table) -> dict[str, pa.DataType]:
    return dict(zip(rows.schema.names, rows.schema.types, strict=True))


def by_duckdb(conditions: Sequence[str], rows: pa.Table) -> dict[str, Answers]:
    """Those of ``conditions`` that are evaluated without Spark."""
    found = {}
    with duckdb.connect(config={"threads": "1"}) as connection:
        connection.register("batch", rows.set_column(rows.schema.get_field_index("t"), "t", rows["t"].cast(pa.timestamp("us"))))
        for condition in conditions:
            try:
                given = Conditions.of([condition], types_of(rows))._over_batch(connection, condition)
            except (UnsupportedError, SpecError):
                continue
            found[condition] = _answers(given.holds.to_pylist(), given.failed.to_pylist())
    return found


def by_our_sql(conditions: Sequence[str], rows: pa.Table, frame: DataFrame, at_once: int = 100) -> dict[str, Answers | str]:
    """As runs on Spark evaluate ``conditions``, or Spark's refusal of one; ``frame`` has the rows, numbered by ``n_``."""
    types = types_of(rows)
    found: dict[str, Answers | str] = {}
    columns: dict[str, tuple[Column, Column]] = {}
    for number, condition in enumerate(conditions):
        failed = failure(condition, types)
        holds, fails = F.coalesce(truth(condition, types), F.lit(False)), F.lit(False) if failed is None else failed
        try:
            frame.select(holds, fails)
        except (AnalysisException, ParseException) as err:
            found[condition] = str(err).splitlines()[0]
        else:
            columns[condition] = (holds.alias(f"h{number}"), fails.alias(f"f{number}"))
    taken = list(columns)
    for begin in range(0, len(taken), at_once):
        some = taken[begin : begin + at_once]
        table = frame.select("n_", *chain(*(columns[condition] for condition in some))).toArrow().sort_by("n_")
        answers = [column.to_pylist() for column in table.columns[1:]]
        found |= {condition: _answers(answers[2 * n], answers[2 * n + 1]) for n, condition in enumerate(some)}
    return found


def by_spark(spark: SparkSession, conditions: Sequence[str], frame: DataFrame) -> dict[str, Answers | str]:
    """What Spark makes of each condition as it stands, on each row alone; the refusal of one that it does not take."""
    rules = ("ConvertToLocalRelation", "ConstantFolding", "NullPropagation", "BooleanSimplification", "SimplifyConditionals")
    settings = {
        "spark.sql.optimizer.excludedRules": ",".join(f"org.apache.spark.sql.catalyst.optimizer.{rule}" for rule in rules),
        "spark.sql.alwaysInlineCommonExpr": "true",
    }
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        return {condition: _each_row(spark, condition, frame) for condition in conditions}
    finally:
        for name in settings:
            spark.conf.unset(name)


def _each_row(spark: SparkSession, condition: str, frame: DataFrame) -> Answers | str:
    try:
        selected = frame.select(F.expr(condition).cast("boolean").alias("holds"))
    except (AnalysisException, ParseException) as err:
        return str(err).splitlines()[0]
    catalyst: Any = spark._jvm.org.apache.spark.sql.catalyst.expressions
    plan = selected._jdf.queryExecution().optimizedPlan()
    relation = plan.child()
    attributes = getattr(catalyst, "package$AttributeSeq")(relation.output())
    bound = catalyst.BindReferences.bindReference(plan.projectList().head().child(), attributes, False)
    answers: Answers = []
    rows = relation.data()
    for number in range(rows.size()):
        try:
            answers.append(bool(bound.eval(rows.apply(number))))
        except (Py4JJavaError, PySparkException):
            answers.append(FAILS)
    return answers


def _answers(holds: Sequence[bool], failed: Sequence[bool]) -> Answers:
    return [FAILS if fails else holding for holding, fails in zip(holds, failed, strict=True)]
