"""A pipeline with results, batches and rules, and the page that reports it."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake

from tests.checkpoints.records import commit as made
from tests.checkpoints.records import plan
from tests.specs import HOURS, a_spec
from windowmill.checkpoints.ledger import Ledger
from windowmill.jobs.report import write_report
from windowmill.windowing.axis import to_us
from windowmill.windowing.spec import Pipeline

START = datetime(2013, 2, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
VOID = {"meta", "link", "br", "input", "img"}


def pipeline_at(folder: Path, **changes: Any) -> Pipeline:
    day = {"name": "day", "type": "hopping", "size": "1 day", "hop": "1 hour"}
    aggregates = {"flights": {"count": "*"}, "mean_delay": {"mean": "delay"}, "worst": {"arg_max": ["delay", "flight"]}}
    time, sink = {"column": "departed_at", "disorder": "30 minutes"}, {"path": str(folder / "delays")}
    spec = a_spec(pipeline="delays", keys=["origin", "carrier"], time=time, windows=[HOURS | {"name": "hourly"}, day], sink=sink)
    return Pipeline.model_validate(spec | {"aggregates": aggregates} | changes)


def result_row(end: Any, **changes: Any) -> dict[str, Any]:
    row = {"origin": "EWR", "carrier": "UA", "window": "hourly", "window_start": end, "window_end": end, "trigger": None, "revision": 0}
    return row | {"flights": 1, "mean_delay": 1.0, "worst": "UA1", "batch": 0} | changes


def publish(pipeline: Pipeline, rows: list[dict[str, Any]], *, axis: pa.DataType | None = None) -> None:
    assert pipeline.sink is not None
    assert pipeline.sink.path is not None
    ends = axis or pa.timestamp("us", "UTC")
    known = {"window_start": ends, "window_end": ends, "trigger": pa.int64(), "flights": pa.int64(), "mean_delay": pa.float64()}
    columns = {name: pa.array([row[name] for row in rows], known.get(name)) for name in rows[0]}
    write_deltalake(pipeline.sink.path, pa.table(columns), mode="append")


def commit(pipeline: Pipeline, count: int = 1, **outcome: Any) -> None:
    ledger = Ledger.open(pipeline)
    told = {"seen": to_us(START + 3 * HOUR), "emitted": to_us(START + 2 * HOUR), "verdict": "passed"}
    told |= {"rows_read": 10, "rows_applied": 8, "rows_quarantined": 2, "rows_late": 1, "rows_published": 5, "timings": {"apply": 1.5}}
    for number in range(len(ledger.batches()), len(ledger.batches()) + count):
        planned = plan(number, f"a{number}", now_us=to_us(START), meaning=pipeline.meaning_hash())
        ledger.record(planned, made(**(told | outcome)), {}, START + number * HOUR)


def checked(batch: int, outcome: str = "passed", **changes: Any) -> dict[str, Any]:
    row = {"pipeline": "delays", "generation": "g", "batch": batch, "attempt": "a", "at": START + batch * HOUR, "rule": 0, "origin": "spec"}
    row |= {"type": "expect_column_values_to_be_between", "column": "mean_delay", "arguments": json.dumps({"max_value": 9})}
    row |= {"severity": "critical", "outcome": outcome, "observed": None, "elements": 10, "unexpected": 0}
    row |= {"message": outcome, "examples": "[]"}
    return row | changes


def set_aside(batch: int, reason: str, row: str = "{}") -> dict[str, Any]:
    return {"batch": batch, "reason": reason, "detail": "why", "source_version": batch, "event_time": START, "row": row}


class Page(HTMLParser):
    """What a page says, and whether its elements nest."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.html = html
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self._open: list[str] = []
        self._said: list[str] = []
        self.feed(html)
        self.words = " ".join(" ".join(self._said).split())
        #: The data of the charts.
        self.data: dict[str, Any] = json.loads(re.findall(r'<script id="data" type="application/json">(.*?)</script>', html)[0])
        assert not self._open, f"left open: {self._open}"

    @classmethod
    def of(cls, pipeline: Pipeline, **arguments: Any) -> Page:
        return cls(Path(write_report(pipeline, **arguments)).read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag, f"</{tag}> closes another element"

    def handle_data(self, data: str) -> None:
        if self._open[-1:] not in (["style"], ["script"]):
            self._said.append(data)

    def values(self, name: str, tag: str | None = None) -> list[str]:
        return [value for found, key, value in self.attributes if key == name and tag in (None, found)]
