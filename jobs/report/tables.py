"""What the report reads beside the ledger: Delta tables through DataFusion, no JVM. Every answer is small whatever the table's size."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import DeltaError, TableNotFoundError

from windowing.errors import WindowmillError

#: Columns of the charts and of the quality matrix; older batches are in the tables.
BATCHES_SHOWN = 60
_RULES_SHOWN, _FAILURES_SHOWN, _REASONS_SHOWN = 80, 12, 20
_TEXT_SHOWN = 400


class ReportError(WindowmillError):
    """A table that the report reads is there but cannot be read."""


def open_table(path: str) -> DeltaTable | None:
    """The Delta table at ``path``; None if there is none yet."""
    try:
        return DeltaTable(path)
    except TableNotFoundError:
        return None
    except (DeltaError, OSError) as err:
        raise _unreadable(path, err) from err


def query(table: DeltaTable, sql: str) -> pa.Table:
    """The answer to ``sql``, in which the table is called ``t``."""
    try:
        return pa.table(QueryBuilder().register("t", table).execute(sql).read_all())
    except (DeltaError, pa.ArrowException, OSError) as err:
        raise _unreadable(table.table_uri, err) from err


def _unreadable(path: str, err: Exception) -> ReportError:
    reason = (str(err).strip() or type(err).__name__).splitlines()[-1]
    return ReportError(f"table {path}: cannot be read for the report ({reason}); nothing has been written, mend the table and run it again")


def identifier(name: str) -> str:
    """A column's name as SQL takes it literally."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str | None) -> str:
    """A string or null as SQL takes it."""
    return "NULL" if text is None else "'" + text.replace("'", "''") + "'"


def clipped(text: object, limit: int = _TEXT_SHOWN) -> str:
    """``text`` in at most ``limit`` characters."""
    words = "" if text is None else str(text)
    return words if len(words) <= limit else words[: limit - 1] + "…"


@dataclass(frozen=True, slots=True)
class Reason:
    """Why rows were never applied: how many, in how many batches, and one example."""

    reason: str
    rows: int
    batches: int
    last_batch: int
    first_event: datetime | int | None
    last_event: datetime | int | None
    example: str


@dataclass(frozen=True, slots=True)
class Quarantine:
    """Rows never applied: by reason, and by reason and batch for the batches shown."""

    reasons: list[Reason] = field(default_factory=list)
    by_batch: dict[str, dict[int, int]] = field(default_factory=dict)


def read_quarantine(path: str, first_batch: int) -> Quarantine:
    """Counts of the quarantine table; ``by_batch`` from ``first_batch`` on."""
    table = open_table(path)
    if table is None:
        return Quarantine()
    # A reason is one of a handful of words, but the table is anyone's to write to: hence the limit.
    rows = query(
        table,
        "SELECT reason, count(*) AS n, count(DISTINCT batch) AS batches, max(batch) AS last_batch, min(event_time) AS first_event, "
        'max(event_time) AS last_event, last_value(detail ORDER BY batch) AS detail, last_value("row" ORDER BY batch) AS example '
        f"FROM t GROUP BY reason ORDER BY n DESC LIMIT {_REASONS_SHOWN}",
    ).to_pylist()
    reasons = [
        Reason(
            clipped(row["reason"], 80), row["n"], row["batches"], row["last_batch"], row["first_event"], row["last_event"],
            clipped(" · ".join(part for part in (row["detail"], row["example"]) if part)),
        )
        for row in rows
    ]  # fmt: skip
    by_batch: dict[str, dict[int, int]] = defaultdict(dict)
    shown = ", ".join(literal(row["reason"]) for row in rows if row["reason"] is not None) or "''"
    for row in query(
        table, f"SELECT reason, batch, count(*) AS n FROM t WHERE batch >= {first_batch} AND reason IN ({shown}) GROUP BY reason, batch"
    ).to_pylist():
        by_batch[clipped(row["reason"], 80)][row["batch"]] = row["n"]
    return Quarantine(reasons, dict(by_batch))


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule's row of the matrix: its outcome (passed, failed, warned, broken) by column, newest wording."""

    title: str
    column: str
    arguments: str
    severity: str
    origin: str
    outcomes: dict[tuple[str, int], str]


@dataclass(frozen=True, slots=True)
class Failure:
    """A rule that did not pass, as it was last told; ``earlier`` times before that among the batches shown."""

    batch: int
    at: datetime | None
    earlier: int
    title: str
    column: str
    outcome: str
    message: str
    observed: str
    unexpected: str
    examples: list[str]


@dataclass(frozen=True, slots=True)
class Quality:
    """Rules by batches, the latest failures, and what did not fit."""

    columns: list[tuple[str, int]] = field(default_factory=list)
    rules: list[Rule] = field(default_factory=list)
    rules_left_out: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)


def read_quality(path: str, columns_shown: int = 40) -> Quality:
    """The newest ``columns_shown`` batches of the quality table, each by its last attempt."""
    table = open_table(path)
    if table is None:
        return Quality()
    newest = query(table, f"SELECT generation, batch, max(at) AS at FROM t GROUP BY generation, batch ORDER BY at DESC LIMIT {columns_shown}").to_pylist()
    if not newest:
        return Quality()
    columns = [(row["generation"], row["batch"]) for row in reversed(newest)]
    generations = ", ".join(literal(generation) for generation in {generation for generation, _ in columns})
    kept = f"SELECT * FROM t WHERE generation IN ({generations}) AND batch IN ({', '.join(str(number) for number in {batch for _, batch in columns})})"
    last_attempts = f"SELECT *, max(at) OVER (PARTITION BY generation, batch, attempt) AS attempt_at FROM ({kept})"
    last_attempts = f"SELECT *, rank() OVER (PARTITION BY generation, batch ORDER BY attempt_at DESC) AS attempt_place FROM ({last_attempts})"
    last_attempts = f"SELECT * FROM ({last_attempts}) WHERE attempt_place = 1"
    wanted = 'generation, batch, rule, type, "column", origin, severity, outcome, substr(arguments, 1, 400) AS arguments'
    rows = query(
        table, f"SELECT {wanted} FROM ({last_attempts}) ORDER BY at DESC, rule LIMIT {columns_shown * 4 * _RULES_SHOWN}"
    ).to_pylist()
    shown = set(columns)
    rules: dict[str, Rule] = {}
    counts: dict[str, int] = defaultdict(int)
    for row in rows:
        at = (row["generation"], row["batch"])
        if at not in shown:
            continue
        rule = rules.setdefault(row["rule"], _rule(row))
        rule.outcomes[at] = _outcome(row)
        counts[_outcome(row)] += 1
    ordered = sorted(rules.values(), key=lambda rule: (-_trouble(rule), rule.origin, rule.column, rule.title))
    return Quality(columns, ordered[:_RULES_SHOWN], len(ordered[_RULES_SHOWN:]), dict(counts), _failures(table, last_attempts))


def _failures(table: DeltaTable, attempts: str) -> list[Failure]:
    wanted = 'batch, at, rule, type, "column", severity, outcome, unexpected, elements'
    texts = "substr(message, 1, 600) AS message, substr(observed, 1, 200) AS observed, substr(examples, 1, 4000) AS examples"
    ranked = (
        f"SELECT {wanted}, {texts}, row_number() OVER (PARTITION BY rule ORDER BY at DESC) AS place, count(*) OVER (PARTITION BY rule) AS times "
        f"FROM ({attempts}) WHERE outcome <> 'passed'"
    )
    rows = query(table, f"SELECT * FROM ({ranked}) WHERE place = 1 ORDER BY at DESC, severity, rule LIMIT {_FAILURES_SHOWN}").to_pylist()
    return [
        Failure(
            row["batch"], row["at"], row["times"] - 1, _title(row), row["column"] or "", _outcome(row), clipped(row["message"]), clipped(row["observed"], 120),
            f"{row['unexpected']:,} of {row['elements']:,} rows" if row["unexpected"] and row["elements"] else "", _examples(row["examples"]),
        )
        for row in rows
    ]  # fmt: skip


def _rule(row: dict[str, Any]) -> Rule:
    return Rule(_title(row), row["column"] or "", _arguments(row["arguments"]), row["severity"] or "", row["origin"] or "", {})


def _title(row: dict[str, Any]) -> str:
    words = (row["type"] or row["rule"] or "").removeprefix("expect_").removeprefix("column_").replace("_", " ")
    return clipped(words, 120)


def _arguments(text: str | None) -> str:
    try:
        values = json.loads(text or "{}")
    except ValueError:
        return clipped(text, 200)
    if not isinstance(values, dict):
        return clipped(values, 200)
    return clipped(", ".join(f"{name.replace('_', ' ')} {', '.join(map(str, value)) if isinstance(value, list) else value}" for name, value in values.items() if value is not None), 200)


def _outcome(row: dict[str, Any]) -> str:
    return "warned" if row["outcome"] == "failed" and row["severity"] != "critical" else str(row["outcome"])


def _trouble(rule: Rule) -> int:
    weight = {"failed": 100, "broken": 100, "warned": 1}
    return sum(weight.get(outcome, 0) for outcome in rule.outcomes.values())


def _examples(text: str | None) -> list[str]:
    try:
        values = json.loads(text or "[]")
    except ValueError:
        return [clipped(text, 300)]
    listed: Iterable[Any] = values if isinstance(values, list) else [values]
    return [clipped(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False), 200) for value in list(listed)[:5]]
