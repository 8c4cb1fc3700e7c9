"""Reads why a batch is held: the rules that it breaks, with keys and values of rows that break them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from deltalake import DeltaTable

from windowmill.checkpoints.batches import Batch
from windowmill.checkpoints.ledger import Ledger
from windowmill.checkpoints.places import Places
from windowmill.checkpoints.quoting import quoted
from windowmill.jobs.batch.window_history import rulings
from windowmill.jobs.report.quality import Failure, read_failures
from windowmill.jobs.report.queries import clipped, literal, named, open_table, query
from windowmill.jobs.report.result_rows import key_text, text_of
from windowmill.jobs.report.short_texts import moment
from windowmill.windowing.axis import to_us
from windowmill.windowing.spec import Pipeline

_ROWS_SHOWN = 5


@dataclass(frozen=True, slots=True)
class BrokenRule:
    """A rule that the batch breaks, and some of the rows that break it: identity and values, as text."""

    failure: Failure
    rows: list[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Held:
    """A held batch, the critical rules that it breaks, the commands that rule on it, and whether the spec has changed since."""

    batch: Batch
    rules: list[BrokenRule]
    rulings: tuple[str, str]
    changed: bool


def read_held(ledger: Ledger, pipeline: Pipeline, places: Places) -> Held | None:
    """Why a batch is held; null if none is."""
    batch = ledger.held_batch
    if batch is None:
        return None
    failures = [failure for failure in read_failures(places.quality, batch.number) if failure.severity == "critical"]
    results = open_table(places.held)
    rules = [BrokenRule(failure, _rows(failure, pipeline, results)) for failure in failures]
    return Held(batch, rules, rulings(ledger, batch.plan), changed=not pipeline.means(batch.plan.definition, batch.plan.meaning))


def _rows(failure: Failure, pipeline: Pipeline, results: DeltaTable | None) -> list[tuple[str, str]]:
    identities = [row for row in failure.rows[:_ROWS_SHOWN] if isinstance(row, dict)]
    columns = [column for column in (failure.column or "").split(", ") if column in pipeline.aggregates]
    if results is None or not columns:
        return [(_row_text(row, pipeline), "") for row in identities]
    return [(_row_text(row, pipeline), _values(row, columns, pipeline, results)) for row in identities]


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
        return f"{text_of(name)} IS NOT DISTINCT FROM {literal(None if value is None else _as_text(value))}"
    return f"{quoted(name)} IS NOT DISTINCT FROM {json.dumps(value)}"


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
