"""Reads the quality table for the report: outcomes by rule and batch, the latest failures, and why a batch is held."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from itertools import zip_longest
from typing import Any

from deltalake import DeltaTable

from windowmill.checkpoints.batches import Batch
from windowmill.checkpoints.ledger import Ledger
from windowmill.checkpoints.places import Places
from windowmill.checkpoints.quoting import quoted
from windowmill.jobs.batch.window_history import rulings
from windowmill.jobs.report.queries import clipped, key_text, literal, named, open_table, query, text_of
from windowmill.jobs.short_texts import moment
from windowmill.windowing.axis import to_us
from windowmill.windowing.spec import Pipeline

#: Limits of the page; the table holds older batches and further rules.
_BATCHES_SHOWN, _RULES_SHOWN, _FAILURES_SHOWN = 40, 80, 12
#: Columns that identify a rule across batches; its position in the suite changes when rules are added or removed.
_RULE = 'origin, type, "column", arguments'


@dataclass(frozen=True, slots=True)
class RuleRow:
    """One rule's row of the matrix: its outcome (passed, failed, warned, broken) by column, with its newest wording."""

    title: str
    column: str
    arguments: str
    severity: str
    origin: str
    outcomes: dict[tuple[str, int], str]


@dataclass(frozen=True, slots=True)
class Failure:
    """The latest failure of a rule; ``earlier`` counts its other failures in the batches shown."""

    batch: int
    at: datetime | None
    earlier: int
    title: str
    column: str
    arguments: str
    outcome: str
    severity: str
    message: str
    observed: str
    #: Rows that break the rule, by the columns that identify them, and the values of the rule's columns in them.
    rows: list[Any]
    values: list[Any]

    @property
    def examples(self) -> list[str]:
        pairs = zip_longest(self.rows, self.values[: len(self.rows)])
        return [clipped(_row_in_words(row, values) if isinstance(row, dict) else row, 200) for row, values in pairs]


@dataclass(frozen=True, slots=True)
class Quality:
    """Outcomes by rule and batch, the latest failures, and the number of rules left out."""

    columns: list[tuple[str, int]] = field(default_factory=list)
    rules: list[RuleRow] = field(default_factory=list)
    rules_left_out: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)


def read_quality(path: str, first_batch: int = 0, undone: Collection[int] = ()) -> Quality:
    """Read the newest batches from ``first_batch`` on without those ``undone``, of each its last attempt."""
    table = open_table(path)
    if table is None:
        return Quality()
    without = f" AND batch NOT IN ({', '.join(map(str, sorted(undone)))})" if undone else ""
    newest = query(
        table,
        # Not `at` itself: pyarrow loads pandas to convert an instant.
        f"SELECT generation, batch FROM t WHERE batch >= {first_batch:d}{without} GROUP BY generation, batch ORDER BY max(at) DESC "
        f"LIMIT {_BATCHES_SHOWN}",
    ).to_pylist()
    if not newest:
        return Quality()
    columns = [(row["generation"], row["batch"]) for row in reversed(newest)]
    attempts = _last_attempts(columns)
    wanted = f"generation, batch, severity, outcome, {_RULE}"
    # A rule has one row per batch; the limit only guards against a table that other programs have written to.
    limit = 4 * _BATCHES_SHOWN * _RULES_SHOWN
    rows = query(table, f"SELECT {wanted} FROM ({attempts}) ORDER BY at DESC, rule LIMIT {limit}").to_pylist()
    rules: dict[tuple[str | None, ...], RuleRow] = {}
    counts: Counter[str] = Counter()
    for row in rows:
        shown = _title(row), row["column"] or "", _arguments(row["arguments"]), row["severity"] or "", row["origin"] or ""
        rule = rules.setdefault((row["origin"], row["type"], row["column"], row["arguments"]), RuleRow(*shown, {}))
        # The newest come first: of a batch that was verified twice the last time counts.
        rule.outcomes.setdefault((row["generation"], row["batch"]), _outcome(row))
        counts[_outcome(row)] += 1
    weights = {"failed": 100, "broken": 100, "warned": 1}

    def place(rule: RuleRow) -> tuple[int, str, str, str]:
        return -sum(weights.get(outcome, 0) for outcome in rule.outcomes.values()), rule.origin, rule.column, rule.title

    ordered = sorted(rules.values(), key=place)
    return Quality(columns, ordered[:_RULES_SHOWN], len(ordered[_RULES_SHOWN:]), dict(counts), _failures(table, attempts))


def read_failures(path: str, batch: int) -> list[Failure]:
    table = open_table(path)
    if table is None:
        return []
    found = query(table, f"SELECT DISTINCT generation, batch FROM t WHERE batch = {batch:d}").to_pylist()
    return _failures(table, _last_attempts([(row["generation"], row["batch"]) for row in found])) if found else []


def _last_attempts(columns: Sequence[tuple[str, int]]) -> str:
    """The SQL query for the rows that the last attempt at each of these batches wrote."""
    chosen = " OR ".join(f"(generation = {literal(generation)} AND batch = {int(batch)})" for generation, batch in columns)
    timed = f"SELECT *, max(at) OVER (PARTITION BY generation, batch, attempt) AS ended FROM t WHERE {chosen}"
    ranked = f"SELECT *, rank() OVER (PARTITION BY generation, batch ORDER BY ended DESC) AS attempts_later FROM ({timed})"
    return f"SELECT * FROM ({ranked}) WHERE attempts_later = 1"


def _failures(table: DeltaTable, attempts: str) -> list[Failure]:
    wanted = f"batch, at, rule, severity, outcome, unexpected, {_RULE}"
    texts = "substr(message, 1, 600) AS message, substr(observed, 1, 20000) AS observed, substr(examples, 1, 4000) AS examples"
    # A table from before values were kept lacks their column until the next batch.
    has_values = any(field.name == "values" for field in table.schema().fields)
    texts += ', substr("values", 1, 4000) AS "values"' if has_values else ', NULL AS "values"'
    ranks = f"row_number() OVER (PARTITION BY {_RULE} ORDER BY at DESC) AS place, count(*) OVER (PARTITION BY {_RULE}) AS times"
    ranked = f"SELECT {wanted}, {texts}, {ranks} FROM ({attempts}) WHERE outcome <> 'passed'"
    rows = query(table, f"SELECT * FROM ({ranked}) WHERE place = 1 ORDER BY at DESC, severity, rule LIMIT {_FAILURES_SHOWN}").to_pylist()
    return [
        Failure(
            batch=row["batch"],
            at=row["at"],
            earlier=row["times"] - 1,
            title=_title(row),
            column=row["column"] or "",
            arguments=_arguments(row["arguments"]),
            outcome=_outcome(row),
            severity=row["severity"] or "",
            message=clipped(row["message"]),
            observed=_observed(row),
            rows=_rows(row["examples"]),
            values=_rows(row["values"]),
        )
        for row in rows
    ]


def _title(row: dict[str, Any]) -> str:
    words = (row["type"] or "").removeprefix("expect_").removeprefix("column_").replace("_", " ")
    return clipped(words, 120)


def _arguments(text: str | None) -> str:
    try:
        values = json.loads(text or "{}")
    except ValueError:
        return clipped(text, 200)
    if not isinstance(values, dict):
        return clipped(values, 200)
    texts = {name.replace("_", " "): _text(value) for name, value in values.items()}
    return clipped(", ".join(f"{name} {value}" for name, value in texts.items() if value is not None and name != "column"), 200)


def _text(value: Any) -> Any:
    """An argument as it is shown: of a list its values, and of a condition of Great Expectations an expression."""
    match value:
        case {"type": "comparison", "column": {"name": column}, "operator": operator, "parameter": parameter}:
            return f"{column} {operator} {_text(parameter)}"
        case {"type": "nullity", "column": {"name": column}, "is_null": is_null}:
            return f"{column} IS {'' if is_null else 'NOT '}NULL"
        case {"type": "and" | "or" as word, "conditions": [*conditions]}:
            return f" {word.upper()} ".join(f"({_text(condition)})" for condition in conditions)
        case [*values]:
            return ", ".join(map(str, values))
    return value


def _row_in_words(identity: dict[str, Any], values: Any) -> str:
    """A row by what identifies it, without a trigger that is null, and its values."""
    shown = {name: value for name, value in identity.items() if name != "trigger" or value is not None}
    end = shown.get("window_end")
    if isinstance(end, str):
        with suppress(ValueError):
            shown["window_end"] = moment(datetime.fromisoformat(end), seconds=True)
    return ": ".join(filter(None, [named(shown), named(values) if isinstance(values, dict) else ""]))


def _observed(row: dict[str, Any]) -> str:
    """The error of a broken rule, or a statistic; omits other observations, which may be values of rows."""
    try:
        observed = json.loads(row["observed"] or "null")
    except ValueError:
        observed = row["observed"] if row["outcome"] == "broken" else None
    statistic = isinstance(observed, int | float) and row["unexpected"] is None
    observed = f"{observed:.6g}" if statistic and isinstance(observed, float) else observed
    return clipped(observed, 300) if observed is not None and (statistic or row["outcome"] == "broken") else ""


def _outcome(row: dict[str, Any]) -> str:
    return "warned" if row["outcome"] == "failed" and row["severity"] != "critical" else str(row["outcome"])


def _rows(text: str | None) -> list[Any]:
    """The first rows of a JSON list, which may be cut off."""
    for whole in (text or "[]", f"{(text or '').rpartition('}, {')[0]}}}]"):
        with suppress(ValueError):
            values = json.loads(whole)
            return values[:5] if isinstance(values, list) else [values]
    return [clipped(text, 300)]


_ROWS_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Held:
    """A held batch, the critical rules that it breaks, the commands that rule on it, and whether the spec has changed since."""

    batch: Batch
    #: With some of the rows that break each: identity and values, as text.
    rules: list[tuple[Failure, list[tuple[str, str]]]]
    rulings: tuple[str, str]
    changed: bool


def read_held(ledger: Ledger, pipeline: Pipeline, places: Places) -> Held | None:
    batch = ledger.held_batch
    if batch is None:
        return None
    failures = [failure for failure in read_failures(places.quality, batch.number) if failure.severity == "critical"]
    results = open_table(places.held)
    rules = [(failure, _broken_rows(failure, pipeline, results)) for failure in failures]
    return Held(batch, rules, rulings(ledger, batch.plan), changed=not pipeline.means(batch.plan.definition, batch.plan.meaning))


def _broken_rows(failure: Failure, pipeline: Pipeline, results: DeltaTable | None) -> list[tuple[str, str]]:
    identities = [row for row in failure.rows[:_ROWS_SHOWN] if isinstance(row, dict)]
    columns = [column for column in (failure.column or "").split(", ") if column in pipeline.aggregates]
    return [(_row_text(row, pipeline), _values(row, columns, pipeline, results) if results and columns else "") for row in identities]


def _row_text(identity: Mapping[str, Any], pipeline: Pipeline) -> str:
    """Key, window and window end of a row; all that is known of a row of another kind."""
    if "window_end" not in identity:
        return clipped(named(identity), 200)
    end, key = identity["window_end"], tuple(None if identity.get(name) is None else str(identity[name]) for name in pipeline.keys)
    ended = moment(end if isinstance(end, int) or end is None else datetime.fromisoformat(end))
    return ", ".join(filter(None, [key_text(key), identity.get("window"), f"window end {ended}"]))


def _values(identity: Mapping[str, Any], columns: Sequence[str], pipeline: Pipeline, results: DeltaTable) -> str:
    """Values of ``columns`` in the result row with this identity; empty if there is no such row."""
    where = [f"({_is(name, value, pipeline)})" for name, value in identity.items()]
    texts = ", ".join(f"CAST({quoted(column)} AS VARCHAR) AS {quoted(column)}" for column in columns)
    found = query(results, f"SELECT {texts} FROM t WHERE {' AND '.join(where)} LIMIT 1").to_pylist()
    return clipped(named(found[0]), 200) if found else ""


def _is(name: str, value: Any, pipeline: Pipeline) -> str:
    if name in ("window_start", "window_end"):
        at = value if isinstance(value, int) or value is None else to_us(datetime.fromisoformat(value))
        return f"arrow_cast({quoted(name)}, 'Int64') IS NOT DISTINCT FROM {'NULL' if at is None else at}"
    if name in pipeline.keys or isinstance(value, str):
        return f"{text_of(name)} IS NOT DISTINCT FROM {literal(value if isinstance(value, str | None) else json.dumps(value))}"
    return f"{quoted(name)} IS NOT DISTINCT FROM {json.dumps(value)}"
