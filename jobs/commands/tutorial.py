"""``windowmill tutorial``: four deliveries of a small shop's orders, run through windows, late rows and a held batch. No JVM."""

from __future__ import annotations

import io
import json
import os
import tempfile
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import typer
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from windowmill.checkpoints.places import Places
from windowmill.checkpoints.stores import table_at, write_table
from windowmill.jobs.batch import loop
from windowmill.jobs.batch.progress import CommittedBatch, Progress
from windowmill.jobs.commands.summaries import titled
from windowmill.jobs.commands.terminal import AsJson, console, wrapped
from windowmill.jobs.commands.try_command import attempt
from windowmill.jobs.report.queries import query
from windowmill.windowing.axis import from_us
from windowmill.windowing.errors import HeldError, SpecError
from windowmill.windowing.settings import COMPUTE
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.specfile import load_pipeline

_SPEC = """\
pipeline: shop_orders
# A Delta table that orders are appended to.
source: {{path: "{folder}/orders"}}
keys: [shop]
time:
  column: ordered_at
  tie_break: [order_id]
  disorder: 10 minutes
  lateness: 20 minutes
windows:
  - {{name: hourly, type: tumbling, size: 1 hour}}
  - {{name: two_hours, type: hopping, size: 2 hours, hop: 1 hour}}
aggregates:
  orders: {{count: "*"}}
  revenue: {{sum: amount}}
  largest: {{max: amount}}
# All rows, and the newest of each shop and window for a plain SELECT.
sink: {{path: "{folder}/shop_orders", current: "{folder}/shop_orders_now"}}
expectations:
  - type: expect_column_values_to_be_between
    column: largest
    max_value: 200
    severity: critical
# So few orders: one of them is more than 10 % of a batch.
quarantine: {{hold: never}}
# In this process; without this line Spark computes.
compute: local
"""

#: What arrives together: shop, order, time of day, amount.
_DELIVERIES = (
    (
        ("north", "n1", "09:05", 4.5),
        ("south", "s1", "09:20", 7.0),
        ("north", "n2", "09:40", 12.0),
        ("south", "s2", "10:05", 3.5),
        ("north", "n3", "10:35", 9.0),
    ),
    (
        ("south", "s3", "10:10", 5.0),
        ("north", "n4", "09:50", 8.0),
        ("south", "s4", "08:15", 6.0),
        ("south", "s5", "11:35", 4.0),
    ),
    (("north", "n5", "11:50", 480.0), ("south", "s6", "12:40", 5.5)),
)
#: Columns of the sink that are shown.
_COLUMNS = ("window", "shop", "window_end", "orders", "revenue", "largest")
#: Lines are at most this long, to be read easily.
_WIDTH = 100

_WINDOWS = """
Five orders arrived, the latest of 10:35. Orders may come 10 minutes out of order (disorder), so everything up to 10:25 should be here:
that is the watermark. A late order still counts for another 20 minutes (lateness). So windows that end by 10:05 are complete, and
their rows are published, once and for all.

The orders of 10:05 and 10:35 wait in the state for their windows to end. The next run reads new orders only.
"""
_LATE_ROWS = """
Three of these orders are behind the watermark of 10:25. s3 (10:10) is late, but its windows are still open: it counts in all of them.
n4 (09:50) missed the hour to 10:00, which is published and does not change, and counts in the two hours to 11:00. s4 (08:15) missed
every window that it belongs to. It is not lost: it is in the quarantine table, with the reason.

Rows read = rows applied + rows quarantined, in every batch. Longer disorder or lateness would have waited for n4 and s4, and published
everything later.

shop_orders_now is the table for a dashboard: it has the newest row of each shop and window, by the same record as the batch.
"""
_HELD = """
An order of 480.00 breaks the rule that no order is above 200, and the rule is critical: the command ends with exit code {code} and
publishes nothing. Readers of the table still see the {rows} rows of before.

Somebody has to decide. A mistake upstream: `windowmill discard` leaves these results out. A rule that is too strict: change it and run
again. An order that is as large as it looks: release it, as the next step does.
"""
_RELEASED = """
The very rows that were checked are published; nothing is computed again. The ledger keeps that the batch was held, and that it was
released.
"""
_RECOMPUTED = """
All orders went through the plain reference engine, which keeps every row and computes each window from the beginning: {same} of {rows}
rows are equal. That holds however the orders are cut into batches, and after any crash.
"""


@dataclass(frozen=True)
class TutorialStep:
    """A step that has been carried out: what it is about, and what the reader can see in it, in paragraphs."""

    title: str
    says: str
    #: What the reader would have typed, if anything.
    command: str | None = None
    #: Counts of the batch.
    numbers: dict[str, int | str] = field(default_factory=dict)
    #: The rows to show, by the title of their table.
    rows: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def as_text(self, number: int) -> RenderableType:
        parts: list[RenderableType] = [Text(f"\n{number}. {self.title}", style="bold")]
        parts += [Text(f"   $ {self.command}", style="cyan")] if self.command else []
        if self.numbers:
            parts.append(_lines(", ".join(f"{name.replace('_', ' ')} {value}" for name, value in self.numbers.items()), style="dim"))
        for title, rows in self.rows.items():
            parts.append(Padding(_table(title, rows), (0, 0, 0, 3)))
        parts += [_lines(paragraph) for paragraph in self.paragraphs()]
        return Group(*parts)

    def paragraphs(self) -> list[str]:
        return [" ".join(paragraph.split()) for paragraph in self.says.strip().split("\n\n")]


def run_tutorial(folder: Path | None, show: Callable[[RenderableType], None]) -> dict[str, Any]:
    """Carry out all steps in ``folder``, or a new temporary one, and ``show`` each as soon as it is done; returns them as JSON values."""
    place = Path(tempfile.mkdtemp(prefix="windowmill-tutorial-")) if folder is None else _empty(folder)
    spec = place / "pipeline.yaml"
    spec.write_text(_SPEC.format(folder=place), encoding="utf-8")
    begin = f"A tutorial in five steps, which takes seconds. Its files are in {place}. A pipeline is one file, {spec.name}:"
    show(Text(wrapped(begin, width=_WIDTH) + "\n"))
    show(Text(textwrap.indent(spec.read_text(encoding="utf-8"), "   ").rstrip(), style="cyan"))
    with _without_spark():
        steps = []
        pipeline = load_pipeline(spec)
        for carry_out in (_first_windows, _late_rows, _held_batch, _released, _recomputed):
            step = carry_out(pipeline, spec)
            steps.append(step)
            show(step.as_text(len(steps)))
    following = [
        f"windowmill explain {spec}: what a run reads, keeps and combines",
        f"windowmill status {spec}: its progress",
        f"windowmill history {spec}: its batches",
        f"windowmill report {spec}: writes the page that shows all of it",
        "windowmill init --source PATH: a spec for a table of yours",
        "Writing a pipeline, a page of the documentation: all of this for a table of yours",
        f"rm -r {place}: when you have seen enough",
    ]
    show(Text("\nWhat next", style="bold"))
    show(Group(*(_lines(line, then="      ") for line in following)))
    return {
        "folder": str(place),
        "spec": str(spec),
        "steps": [asdict(step) | {"says": step.paragraphs()} for step in steps],
        "next": following,
    }


def _lines(text: str, *, then: str = "   ", style: str = "") -> Text:
    """A paragraph, moved in; its lines after the first begin with ``then``."""
    return Text(wrapped(text, "   ", then, width=_WIDTH), style=style)


def _empty(folder: Path) -> Path:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise SpecError(f"--folder {folder}: is not empty; name a new folder, or remove what is in it")
    folder.mkdir(parents=True, exist_ok=True)
    return folder.resolve()


@contextmanager
def _without_spark() -> Iterator[None]:
    """Nothing starts a JVM, whatever the deployment says of who computes."""
    before = os.environ.get(COMPUTE.name)
    os.environ[COMPUTE.name] = "local"
    try:
        yield
    finally:
        if before is None:
            del os.environ[COMPUTE.name]
        else:
            os.environ[COMPUTE.name] = before


def _first_windows(pipeline: Pipeline, spec: Path) -> TutorialStep:
    batch = _run(pipeline, deliver=0)
    rows = {"orders that arrived": _arrived(0), "rows published": _published(pipeline, batch)}
    return TutorialStep("Windows", _WINDOWS, f"windowmill run {spec}", _numbers(batch), rows)


def _late_rows(pipeline: Pipeline, spec: Path) -> TutorialStep:
    batch = _run(pipeline, deliver=1)
    rows = {"orders that arrived": _arrived(1), "rows published": _published(pipeline, batch), "rows quarantined": _quarantined(pipeline)}
    rows["rows of shop_orders_now"] = _current_rows(pipeline)
    return TutorialStep("Late rows", _LATE_ROWS, f"windowmill run {spec}", _numbers(batch), rows)


def _held_batch(pipeline: Pipeline, spec: Path) -> TutorialStep:
    try:
        _run(pipeline, deliver=2)
    except HeldError as err:
        code, rows = err.exit_code, len(_sink_rows(pipeline))
        says = f"windowmill: {err}\n\n{_HELD.format(code=code, rows=rows).strip()}"
        numbers: dict[str, int | str] = {"exit_code": code, "rows_in_the_table": rows}
        return TutorialStep("A held batch", says, f"windowmill run {spec}", numbers, {"orders that arrived": _arrived(2)})
    raise AssertionError("the rule of the tutorial's spec did not hold the third delivery")


def _released(pipeline: Pipeline, spec: Path) -> TutorialStep:
    [batch] = loop.run(pipeline, _quiet(), ruling="release")
    rows = {"rows published": _published(pipeline, batch)}
    return TutorialStep("The batch is released", _RELEASED, f"windowmill release {spec}", _numbers(batch), rows)


def _recomputed(pipeline: Pipeline, _spec: Path) -> TutorialStep:
    # Deliveries are commits of as many lines as the longest has; empty lines fill up the others.
    longest = max(map(len, _DELIVERIES))
    orders = [[json.dumps(_order(*row), default=str) for row in rows] for rows in _DELIVERIES]
    lines = "\n".join(line for rows in orders for line in [*rows, *[""] * (longest - len(rows))])
    outcome = attempt(pipeline, lines.encode(), engine="reference", final=False, commit_rows=longest)
    found = {tuple((row | {"window_end": from_us(row["window_end"])})[name] for name in _COLUMNS) for row in map(dict, outcome.rows)}
    published = {tuple(row.values()) for row in _sink_rows(pipeline)}
    same = len(found & published)
    numbers: dict[str, int | str] = {"rows_in_the_table": len(published), "rows_recomputed": len(found), "rows_equal": same}
    return TutorialStep("The same as recomputing everything", _RECOMPUTED.format(same=same, rows=len(published)), None, numbers)


def _run(pipeline: Pipeline, deliver: int) -> CommittedBatch:
    """Land a delivery, and carry out a run as ``windowmill run`` does."""
    columns = {name: [_order(*row)[name] for row in _DELIVERIES[deliver]] for name in _order("", "", "00:00", 0.0)}
    write_table(pipeline.source.place if pipeline.source else "", pa.table(columns), mode="append")
    [batch] = loop.run(pipeline, _quiet())
    return batch


def _quiet() -> Progress:
    return Progress(Console(file=io.StringIO()))


def _order(shop: str, order_id: str, at: str, amount: float) -> dict[str, Any]:
    return {"shop": shop, "order_id": order_id, "ordered_at": datetime.fromisoformat(f"2024-05-06T{at}+00:00"), "amount": amount}


def _arrived(delivery: int) -> list[dict[str, Any]]:
    orders = [_order(*row) for row in _DELIVERIES[delivery]]
    return [{name: _time(value) if isinstance(value, datetime) else value for name, value in order.items()} for order in orders]


def _numbers(batch: CommittedBatch) -> dict[str, int | str]:
    names = ("rows_read", "rows_applied", "rows_late", "rows_quarantined", "rows_published")
    counts = batch.outcome.published_counts
    return {"batch": batch.plan.batch, **{name: getattr(counts, name) for name in names}, "verdict": batch.outcome.verdict}


def _published(pipeline: Pipeline, batch: CommittedBatch) -> list[dict[str, Any]]:
    rows = _sink_rows(pipeline, f"WHERE batch = {batch.plan.batch}")
    return [row | {"window_end": _time(row["window_end"])} for row in rows]


def _sink_rows(pipeline: Pipeline, where: str = "") -> list[dict[str, Any]]:
    assert pipeline.sink is not None
    return _rows(pipeline.sink.place, where)


def _current_rows(pipeline: Pipeline) -> list[dict[str, Any]]:
    assert pipeline.sink is not None
    rows = _rows(str(pipeline.sink.current))
    return [row | {"window_end": _time(row["window_end"])} for row in rows]


def _rows(place: str, where: str = "") -> list[dict[str, Any]]:
    names = ", ".join(f'"{name}"' for name in _COLUMNS)
    return list(query(table_at(place), f'SELECT {names} FROM t {where} ORDER BY window_end, "window", shop').to_pylist())


def _quarantined(pipeline: Pipeline) -> list[dict[str, Any]]:
    rows = query(table_at(Places.of(pipeline).quarantine), "SELECT * FROM t").to_pylist()
    return [{"order_id": json.loads(row["row"])["order_id"], "reason": row["reason"], "watermark": _time(row["watermark"])} for row in rows]


def _time(at: datetime) -> str:
    return f"{at:%H:%M}"


def _table(title: str, rows: Sequence[dict[str, Any]]) -> Table:
    table = titled(title, ())
    for name, value in rows[0].items() if rows else ():
        table.add_column(name, justify="right" if isinstance(value, int | float) else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(f"{value:.2f}" if isinstance(value, float) else str(value) for value in row.values()))
    return table


def tutorial(
    folder: Annotated[Path | None, typer.Option("--folder", help="A new folder for its files; a temporary one unless given.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show windows, late rows and a held batch on a small shop's orders, in seconds; no JVM."""
    data = run_tutorial(folder, (lambda _: None) if as_json else console.print)
    if as_json:
        print(json.dumps(data))
