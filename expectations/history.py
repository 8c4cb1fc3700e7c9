"""The quality table: a Delta table with one row per rule and validation, read without a JVM."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, get_args

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import TableNotFoundError

from windowmill.expectations.gate import RuleResult, Verdict
from windowmill.expectations.gx import plain
from windowmill.expectations.rule import Origin, Rule
from windowmill.expectations.suites import is_sql

SCHEMA = pa.schema(
    [
        pa.field("pipeline", pa.string(), nullable=False),
        pa.field("generation", pa.string(), nullable=False),
        pa.field("batch", pa.int64(), nullable=False),
        pa.field("attempt", pa.string(), nullable=False),
        pa.field("at", pa.timestamp("us", "UTC"), nullable=False),
        pa.field("status", pa.string(), nullable=False),
        pa.field("rule", pa.int32(), nullable=False),
        pa.field("origin", pa.string(), nullable=False),
        pa.field("type", pa.string(), nullable=False),
        pa.field("column", pa.string()),
        pa.field("arguments", pa.string(), nullable=False),
        pa.field("severity", pa.string(), nullable=False),
        pa.field("outcome", pa.string(), nullable=False),
        pa.field("observed", pa.string()),
        pa.field("elements", pa.int64()),
        pa.field("unexpected", pa.int64()),
        pa.field("message", pa.string(), nullable=False),
        pa.field("examples", pa.string(), nullable=False),
        pa.field("values", pa.string()),
    ]
)
#: Columns that hold JSON text.
JSON_COLUMNS = ("arguments", "observed", "examples", "values")
#: Greatest length of a stored observation; a rule about distinct values observes all of them.
_OBSERVED_CHARACTERS = 10_000


def rows_of(verdict: Verdict, *, pipeline: str, generation: str, batch: int, attempt: str, at: datetime) -> pa.Table:
    """The rows of the quality table for a verdict of an ``attempt`` at a batch, validated ``at`` a time with a time zone."""
    shared = {"pipeline": pipeline, "generation": generation, "batch": batch, "attempt": attempt, "at": at, "status": verdict.status}
    return pa.Table.from_pylist([shared | _row(result) for result in verdict.results], schema=SCHEMA)


def read(
    path: str | os.PathLike[str], last: int | None = None, first_batch: int = 0, storage_options: Mapping[str, str] | None = None
) -> list[dict[str, Any]]:
    """Rule results of the ``last`` validations, or of all, oldest first, with decoded JSON columns; empty if there is no table.

    The log's statistics exclude files that hold only batches before ``first_batch``.
    """
    opened = _opened(os.fspath(path), storage_options)
    if opened is None:
        return []
    # Not `to_pyarrow_table`: it leaves threads behind that abort the interpreter at its exit (deltalake 1.6.6, exit code 134).
    # A table from before values were kept lacks their column until the next batch.
    there = {field.name for field in opened.schema().fields}
    columns = ", ".join(f'"{name}"' if name in there else f'CAST(NULL AS VARCHAR) AS "{name}"' for name in SCHEMA.names)
    reader = QueryBuilder().register("quality", opened).execute(f"SELECT {columns} FROM quality WHERE batch >= {first_batch:d}")
    table = pa.table(reader.read_all()).cast(SCHEMA)
    if last is not None:
        instants = sorted(set(table["at"].to_pylist()))[-last:] if last > 0 else []
        table = table.filter(pc.is_in(table["at"], pa.array(instants, table["at"].type)))
    rows = table.sort_by([("at", "ascending"), ("batch", "ascending"), ("rule", "ascending")]).to_pylist()
    return [row | {name: None if row[name] is None else json.loads(row[name]) for name in JSON_COLUMNS} for row in rows]


def last_verdict(path: str, generation: str, batch: int, storage_options: Mapping[str, str] | None = None) -> Verdict | None:
    """The verdict of the last validation of a batch; null if the table has none."""
    found = read(path, first_batch=batch, storage_options=storage_options)
    rows = [row for row in found if (row["generation"], row["batch"]) == (generation, batch) and row["origin"] in get_args(Origin)]
    newest = [row for row in rows if row["at"] == rows[-1]["at"]]
    return Verdict(newest[0]["status"], tuple(map(_result, newest))) if newest else None


def holds_again(verdict: Verdict, suite: Sequence[Rule]) -> bool:
    """Whether the rules of ``suite`` would hold the rows of the ``verdict`` that was read, as these very rules have held them.

    All of them could be evaluated, and one that holds the rows is no SQL: that may have read another table, or the clock.
    """
    evaluated = all(result.outcome != "broken" for result in verdict.results)
    held = any(result.severity == "critical" and result.outcome == "failed" and not is_sql(result) for result in verdict.results)
    return evaluated and held and list(map(_identity, verdict.results)) == list(map(_identity, suite))


def newest_batches(path: str | os.PathLike[str], count: int, storage_options: Mapping[str, str] | None = None) -> list[int]:
    """Numbers of the ``count`` newest validated batches, ascending; batches without rules have no rows."""
    opened = _opened(os.fspath(path), storage_options)
    if opened is None:
        return []
    builder = QueryBuilder().register("quality", opened)
    highest = pa.table(builder.execute("SELECT max(batch) AS batch FROM quality").read_all())["batch"][0].as_py()
    if highest is None:
        return []
    span = 2 * count
    while True:
        query = f"SELECT DISTINCT batch FROM quality WHERE batch > {highest - span:d} ORDER BY batch DESC LIMIT {count:d}"
        numbers = pa.table(builder.execute(query).read_all())["batch"].to_pylist()
        if len(numbers) == count or span > highest:
            return sorted(numbers)
        span *= 8


def _opened(place: str, storage_options: Mapping[str, str] | None) -> DeltaTable | None:
    try:
        return DeltaTable(place, storage_options=None if storage_options is None else dict(storage_options))
    except TableNotFoundError:
        return None


def _identity(rule: Rule) -> tuple[object, ...]:
    return rule.index, rule.origin, rule.type, rule.column, json_of(rule.arguments), rule.severity


def _result(row: Mapping[str, Any]) -> RuleResult:
    same = ("origin", "type", "column", "arguments", "severity", "outcome", "observed", "elements", "unexpected", "message")
    examples, values = tuple(row["examples"] or ()), tuple(row["values"] or ())
    return RuleResult(index=row["rule"], examples=examples, values=values, **{name: row[name] for name in same})


def _row(result: Any) -> dict[str, Any]:
    observed = None if result.observed is None else json_of(result.observed)
    if observed is not None and len(observed) > _OBSERVED_CHARACTERS:
        observed = json_of(observed[:_OBSERVED_CHARACTERS] + "…")
    same = {
        name: getattr(result, name) for name in ("origin", "type", "column", "severity", "outcome", "elements", "unexpected", "message")
    }
    return same | {
        "rule": result.index,
        "arguments": json_of(result.arguments),
        "observed": observed,
        "examples": json_of(result.examples),
        "values": json_of(result.values),
    }


def json_of(value: Any) -> str:
    """The text by which the table keeps ``value``."""
    return json.dumps(plain(value), ensure_ascii=False)
