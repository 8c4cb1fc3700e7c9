"""The windowed queries of Nexmark as pipelines beside Flink SQL: ``python -m benchmarks.nexmark``.

Two measurements of queries 5, 7, 11, 15, 16, 17 and 18 (``examples/nexmark``): bids a second and core over all bids, and the processor time
of one more minute of events. Both engines read the same Parquet file; windowmill's rows go to ``noop``, Flink's changelog to ``blackhole``.
In query 18 rows replace others, and windowmill gives a changelog, too. The answers are compared, all columns exactly.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import measurement
from benchmarks.measurement import Figure, Measurement
from benchmarks.nexmark_current import RUNS, take_runs
from benchmarks.race import Entry, Race, Result
from benchmarks.rows import compare
from examples.nexmark.bids import BIDS, CYCLE, SCHEMA, Bids
from examples.nexmark.queries import QUERIES, Query

#: Rows of a row group: what one task of either engine reads at least.
ROW_GROUP = 500_000


def main(arguments: list[str] | None = None) -> list[Measurement]:
    given = _arguments(arguments)
    console = measurement.terminal()
    bids = Bids(given.rate)
    number, minutes = given.events * BIDS // CYCLE, given.events / given.rate / 60
    chosen = "" if given.queries == list(QUERIES) else ", ".join(given.queries)
    stream = f"{number:,} bids of {given.events:,} events in {minutes:.3g} minutes; {chosen or 'all queries'}"
    folder = given.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    measured: list[Measurement] = []
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        path = Path(scratch) / "bids.parquet"
        whole = Measurement("nexmark", f"Nexmark {chosen}".rstrip() + ": all bids at once", stream)
        console.print(whole.workload)
        _write(bids, given.events, path)
        entries = [
            Entry(f"{name}: {label}", f"benchmarks.nexmark_{engine}", f"{label.lower()} {name}", {"bids": str(path)})
            for name in given.queries
            for label, engine in (("windowmill", "spark"), ("Flink", "flink"))
        ]
        with Race(entries, Path(scratch), limit=given.limit, budget=given.budget, warm=given.warm, say=console.print) as race:
            race.compete(given.repetitions)
        whole.take(list(race.results.values()))
        whole.notes += [_agreement(QUERIES[name], race, path) for name in given.queries]
        for name in given.queries:
            ours, theirs = (race.results[f"{name}: {label}"] for label in ("windowmill", "Flink"))
            whole.figures += [
                _rate(ours, number),
                _rate(theirs, number),
                _times(f"{name}: Flink / windowmill, processor time", theirs, ours),
            ]
        whole.finish(console, given.results)
        measured.append(whole)
        if given.rounds:
            measured.append(_current(given, bids, race, minutes, Path(scratch)))
            measured[-1].finish(console, given.results)
    return measured


def _arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=20_000_000, help="events, of which 46 in 50 are bids (default %(default)s)")
    parser.add_argument("--rate", type=int, default=10_000, help="events a second of event time (default %(default)s)")
    parser.add_argument("--queries", nargs="+", choices=list(QUERIES), default=list(QUERIES), metavar="QUERY", help="by default all")
    parser.add_argument("--repetitions", type=int, default=3, help="counted rounds over all bids (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="counted runs over one more minute; 0: none (default %(default)s)")
    parser.add_argument("--history", type=int, default=3, help="minutes of events before those runs (default %(default)s)")
    parser.add_argument("--limit", type=float, default=600, help="seconds after which a way is stopped (default %(default)s)")
    parser.add_argument("--warm", type=float, default=10, help="seconds a quick way runs before each round (default %(default)s)")
    parser.add_argument("--budget", type=float, default=200, help="seconds of rounds after which a way rests (default %(default)s)")
    return measurement.place(parser).parse_args(arguments)


def _write(bids: Bids, events: int, path: Path) -> None:
    """Write the bids with timestamps in milliseconds, which both engines read."""
    schema = SCHEMA.set(SCHEMA.get_field_index("dateTime"), pa.field("dateTime", pa.timestamp("ms", "UTC")))
    with pq.ParquetWriter(path, schema) as writer:
        step = ROW_GROUP * CYCLE // BIDS
        for begin in range(0, events, step):
            writer.write_table(pa.concat_tables(bids.between(begin, min(events, begin + step))).cast(schema), row_group_size=ROW_GROUP)


def _rate(result: Result, bids: int) -> Figure:
    """Bids per second of processor time: per second and core that is busy."""
    return Figure(result.label, [bids / seconds / 1000 for seconds in result.cpu_seconds if seconds > 0], unit="thousand bids/s and core")


def _times(name: str, theirs: Result, ours: Result) -> Figure:
    """How many times as much processor time as ours theirs takes, round by round."""
    pairs = zip(theirs.cpu_seconds, ours.cpu_seconds, strict=False)
    return Figure(name, [one / other for one, other in pairs if one > 0 and other > 0])


def _agreement(query: Query, race: Race, bids: Path) -> str:
    """Whether both gave the same answer; of bids of the same millisecond any one may be the last."""
    labels = [f"{query.name}: {label}" for label in ("windowmill", "Flink")]
    if any(race.results[label].error or not race.rows_of(label).exists() for label in labels):
        return f"{query.name}: not compared"
    ours, theirs = map(race.rows_of, labels)
    if _is_changelog(theirs):
        theirs = settled(theirs, (*query.key, *query.values))
    if query.changes is not None:
        ours = latest(ours, query)
    last = query.name == "q18"
    found = compare(theirs, ours, key=query.key, exact=("bid_at",) if last else query.values, floats=())
    unknown = sum(strangers(rows, bids) for rows in (ours, theirs)) if last else 0
    remark = f", {unknown:,} that are no bid of that instant" if last else ""
    return f"{query.name}: {'same rows' if found.same and not unknown else 'OTHER ROWS'}: {found.describe()}{remark}"


def _files(path: Path) -> str:
    return f"read_parquet('{path}')" if path.is_file() else f"read_parquet('{path}/part-*')"


def _is_changelog(rows: Path) -> bool:
    """Whether Flink has written its rows as changes, with the column ``op``, because they change as bids come."""
    with duckdb.connect() as connection:
        described = connection.execute(f"SELECT * FROM {_files(rows)} LIMIT 0").description
    return "op" in (column for column, *_ in described)


def settled(changelog: Path, columns: Sequence[str]) -> Path:
    """The rows that are left of a changelog once each row taken back is struck out."""
    path, listed = changelog.with_suffix(".settled"), ", ".join(columns)
    with duckdb.connect(config={"threads": 2}) as connection:
        connection.execute(
            f"""COPY (SELECT {listed} FROM {_files(changelog)} GROUP BY ALL
            HAVING count_if(op IN ('INSERT', 'UPDATE_AFTER')) > count_if(op IN ('DELETE', 'UPDATE_BEFORE')))
            TO '{path}' (FORMAT parquet)"""
        )
    return path


def latest(changelog: Path, query: Query) -> Path:
    """The rows of our changelog that no later one replaces."""
    path, key = changelog.with_suffix(".latest"), ", ".join(query.key)
    with duckdb.connect(config={"threads": 2}) as connection:
        connection.execute(
            f"""COPY (SELECT * EXCLUDE (trigger) FROM {_files(changelog)}
            SEMI JOIN (SELECT {key}, max(trigger) AS trigger FROM {_files(changelog)} GROUP BY ALL) USING ({key}, trigger))
            TO '{path}' (FORMAT parquet)"""
        )
    return path


def strangers(rows: Path, bids: Path) -> int:
    """How many last bids are no bid of their bidder, auction and instant."""
    with duckdb.connect(config={"threads": 2}) as connection:
        at = "epoch_ms({}) AS instant"
        columns = "bidder, auction, price, channel, url, extra"
        [(found,)] = connection.execute(
            f"""SELECT count(*) FROM (SELECT {columns}, {at.format("bid_at")} FROM {_files(rows)})
            ANTI JOIN (SELECT {columns}, {at.format('"dateTime"')} FROM {_files(bids)}) USING ({columns}, instant)"""
        ).fetchall()
    return int(found)


def _current(given: argparse.Namespace, bids: Bids, race: Race, minutes: float, folder: Path) -> Measurement:
    """Runs over one more minute, beside what Flink's job takes for a minute of its stream, round by round."""
    say = measurement.terminal().print
    workload = f"{given.rate * 60 * BIDS // CYCLE:,} bids a minute after {given.history} minutes; {', '.join(given.queries)}"
    measured = Measurement("nexmark", "Nexmark: one more minute", workload)
    results = take_runs([name for name in RUNS if RUNS[name].query in given.queries], bids, given, folder, say)
    per_minute = {
        name: Result(
            f"{name}: Flink, a minute of its job",
            cpu_seconds=[round(seconds / minutes, 2) for seconds in race.results[f"{name}: Flink"].cpu_seconds],
        )
        for name in given.queries
    }
    measured.take([*results.values(), *per_minute.values()])
    measured.figures = [
        _times(f"{name}: Flink / windowmill, processor time", per_minute[RUNS[name].query], result) for name, result in results.items()
    ]
    measured.notes = [
        "windowmill: a run over a minute of bids on a warm session: read, restore, validate, publish to Delta, remember, commit",
        "Flink: processor time of the job over all bids, divided by its minutes; no checkpoints, rows to `blackhole`",
        *(f"{name}: {run.remark}" for name, run in RUNS.items() if run.query in given.queries),
    ]
    return measured


if __name__ == "__main__":
    main()
