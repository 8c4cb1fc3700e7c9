"""What the demo shows of its results."""

from __future__ import annotations

from collections.abc import Callable

import duckdb
import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from rich.table import Table

from examples.flights.recompute import Agreement
from windowmill.checkpoints.batches import Batch
from windowmill.checkpoints.ledger import Ledger
from windowmill.checkpoints.places import Places
from windowmill.jobs.batch import engine
from windowmill.windowing.spec import Pipeline

#: Columns of the table of batches, with what each counts.
_COUNTED: dict[str, Callable[[Batch], int]] = {
    "rows": lambda batch: batch.counts.rows_read,
    "slices": lambda batch: sum(batch.counts.state_restored.get(kind, 0) for kind in ("slices", "slice_nodes")),
    "FlatFAT": lambda batch: batch.counts.state_restored.get("flatfat_nodes", 0),
    "results": lambda batch: batch.counts.rows_published,
}

# Windows of a day overlap, so each airport and carrier stands with its worst window of each day.
_WORST_DAYS = """
select
  origin, carrier, strftime(window_end, '%Y-%m-%d %H:%M') as until, flights, mean_delay, max_delay,
  split_part(worst_flight, '-', 2) || ' to ' || split_part(worst_flight, '-', 4) as flight
from rows
where "window" = 'rolling_day' and flights >= 20
qualify row_number() over (partition by origin, carrier, date_trunc('day', window_end) order by mean_delay desc, window_end) = 1
order by mean_delay desc, window_end
limit 10
"""


# What a dashboard would ask: the newest row of each key needs no search for it.
_NOW = """
select origin, carrier, mean_delay, share_late, max_delay, coalesce(worst_to, 'unknown')
from rows
where "window" = 'last_100' and flights = 100
order by share_late desc, origin, carrier
limit 5
"""


def published_rows(pipeline: Pipeline) -> pa.Table:
    """All rows of the pipeline's sink, with instants as UTC without a zone."""
    return _rows_of(pipeline.sink.place if pipeline.sink else "")


def current_rows(pipeline: Pipeline) -> pa.Table:
    """The newest row of each key and window, from the table that the pipeline keeps of them."""
    return _rows_of(str(pipeline.sink.current) if pipeline.sink else "")


def _rows_of(place: str) -> pa.Table:
    rows = pa.table(QueryBuilder().register("rows", DeltaTable(place)).execute("select * from rows").read_all())
    return rows.cast(pa.schema([field.with_type(_plain(field.type)) for field in rows.schema]))


def worst_days(rows: pa.Table) -> Table:
    """The ten worst rolling days by airport and carrier, with at least 20 flights."""
    table = _table("The ten worst rolling days by airport and carrier")
    for name in ("airport", "carrier", "24 hours to (UTC)", "flights", "mean delay", "longest", "flight"):
        table.add_column(name, justify="right" if name in ("flights", "mean delay", "longest") else "left", no_wrap=True)
    with duckdb.connect() as database:
        database.register("rows", rows)
        for origin, carrier, until, flights, mean, longest, flight in database.execute(_WORST_DAYS).fetchall():
            table.add_row(origin, carrier, until, str(flights), f"{mean:.1f} min", f"{longest} min", flight)
    return table


def worst_now(rows: pa.Table) -> Table:
    """The five airports and carriers with the most late flights among their last hundred, of the ``rows`` of now."""
    table = _table("Now: the most late flights among the last hundred of an airport and carrier")
    for name in ("airport", "carrier", "mean delay", "late", "longest", "to"):
        table.add_column(name, justify="right" if name in ("mean delay", "late", "longest") else "left", no_wrap=True)
    with duckdb.connect() as database:
        database.register("rows", rows)
        for origin, carrier, mean, late, longest, place in database.execute(_NOW).fetchall():
            table.add_row(origin, carrier, f"{mean:.1f} min", f"{late:.0%}", f"{longest} min", place)
    return table


def batches_table(ledger: Ledger, in_sink: int) -> Table:
    """What each batch read, restored and published, and who computed it; rows that a backfill read or published anew count once in all."""
    table = _table("Batches: new rows, restored rows of slices and nodes of FlatFAT, result rows, and who computed them")
    table.add_column("batch", footer="all", no_wrap=True)
    totals = {"rows": ledger.totals.counts.rows_read, "results": in_sink}
    for name in _COUNTED:
        table.add_column(name, justify="right", footer=f"{totals[name]:,}" if name in totals else "", no_wrap=True)
    for name in ("verdict", "s", "computed by", "tasks"):
        table.add_column(name, justify="right" if name in ("s", "tasks") else "left", no_wrap=True)
    for batch in ledger.batches():
        counts = (f"{counted(batch):,}" for counted in _COUNTED.values())
        by = str(batch.outcome.compute.get("application", batch.outcome.compute.get("engine", "")))
        seconds = f"{sum(batch.outcome.timings.values()):.1f}"
        table.add_row(str(batch.number), *counts, batch.verdict, seconds, by, str(batch.outcome.compute.get("tasks", "–")))
    table.show_footer, table.padding = True, (0, 1, 0, 0)  # fits into 80 columns
    return table


def spark_tasks(ledger: Ledger) -> int:
    """Number of Spark's tasks in all batches; 0 if one of them was not computed by Spark."""
    tasks = [batch.outcome.compute.get("tasks", 0) for batch in ledger.batches()]
    return sum(tasks) if all(tasks) else 0


def _table(title: str) -> Table:
    # Narrow enough for 80 columns, which is also what a log gets.
    return Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0))


def told(batch: Batch) -> str:
    """A batch in a line."""
    counts = batch.counts
    return (
        f"batch {batch.number}: {counts.rows_read:,} read, {counts.rows_late:,} late, {counts.rows_quarantined:,} quarantined, "
        f"{counts.rows_published:,} published, {batch.verdict}, computed by {engine.describe(batch.outcome.compute)}"
    )


def agreement_line(agreement: Agreement) -> str:
    """The comparison with the recomputation in a line."""
    return (
        f"Recomputed by DuckDB from the raw rows: {agreement.compared:,} rows compared, {agreement.missing} missing, "
        f"{agreement.surplus} too many, {agreement.unequal} unequal; greatest difference of a mean or deviation "
        f"{agreement.difference:.1e} (allowed: 1e-9, and none for integers)"
    )


def places_lines(pipeline: Pipeline) -> list[str]:
    """Where to look."""
    places = Places.of(pipeline)
    found = {
        "report": places.report,
        "data docs": f"{places.docs}/index.html",
        "results": f"{pipeline.sink.place if pipeline.sink else ''}  (Delta)",
        "quarantine": f"{places.quarantine}  (Delta)",
        "ledger, state": f"{places.root}  (Delta)",
    }
    return [f"  {name:<14}{place}" for name, place in found.items()]


def _plain(kind: pa.DataType) -> pa.DataType:
    # DataFusion gives strings as views, which not every reader takes.
    if pa.types.is_string_view(kind):
        return pa.string()
    return pa.timestamp("us") if pa.types.is_timestamp(kind) else kind
