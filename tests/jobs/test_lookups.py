"""Lookups give what DuckDB's joins give, whoever evaluates them; a pipeline with them gives what one over joined rows gives."""

from __future__ import annotations

import json
import random
from collections import Counter
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from benchmarks.pipelines import quiet
from tests.jobs.test_row_steps import published, quarantined
from tests.readers import compute_by_many_tasks
from windowmill.checkpoints.ledger import Ledger
from windowmill.jobs.batch import loop
from windowmill.jobs.commands.try_command import attempt
from windowmill.jobs.sources import lookups
from windowmill.jobs.sources.row_steps import RowSteps
from windowmill.jobs.verify.check import verify
from windowmill.windowing.axis import AXIS_BEGIN
from windowmill.windowing.columnar.added_columns import UNREAD
from windowmill.windowing.errors import SourceError, SourceSchemaError, SpecError
from windowmill.windowing.specfile import parse_pipeline

EPOCH = datetime(2024, 1, 1, tzinfo=UTC)


def day(number: float) -> datetime:
    return EPOCH + timedelta(days=number)


def a_spec(folder: Path, lookup: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {
        "pipeline": "looked_up",
        "source": {"path": str(folder / "source"), "changes": "restate"},
        "sink": {"path": str(folder / "sink")},
        "steps": [{"lookup": {"path": str(folder / "places"), **lookup}}],
        "keys": ["region"],
        "time": {"column": "at", "disorder": "12 hours", "lateness": "2 days"},
        "windows": [{"name": "days", "type": "hopping", "size": "2 days", "hop": "1 day"}],
        "aggregates": {"n": {"count": "*"}, "sum": {"sum": "v"}, "seats": {"max": "seats"}},
        "quarantine": {"warn": "never", "hold": "never"},
    } | changes


PLACES = pa.schema([("code", pa.string()), ("kind", pa.int16()), ("region", pa.string()), ("seats", pa.int32()), ("since", pa.date32())])
ROWS = pa.schema(
    [("at", pa.timestamp("us", "UTC")), ("place", pa.struct([("code", pa.string())])), ("kind", pa.int64()), ("v", pa.int64())]
)


def some_places(seed: int, *, dated: bool) -> pa.Table:
    """Places, each once, or with several times from which they are valid; some have null in a column."""
    rng, rows = random.Random(seed), []
    for number in range(12):
        for since in sorted(rng.sample(range(30), rng.randint(1, 4))) if dated else [0]:
            own = {
                "code": None if number == 3 else f"p{number}",
                "kind": None if number == 5 else number % 3,
                "since": date(2024, 1, 1 + since),
            }
            rows.append(own | {"region": rng.choice(["north", "south", None]), "seats": rng.choice([None, number, since])})
    if dated:
        rows[4]["since"] = None
    rng.shuffle(rows)
    return pa.Table.from_pylist(rows, PLACES)


def some_rows(seed: int, count: int, first_day: float = 0.0, *, bad_times: bool = True) -> pa.Table:
    rng, rows = random.Random(seed), []
    for number in range(count):
        at = None if bad_times and rng.random() < 0.03 else day(first_day + number / 20 - rng.choice([0, 0, 0, 1, 4]))
        place = None if rng.random() < 0.05 else {"code": rng.choice([None, *(f"p{n}" for n in range(14))])}
        rows.append({"at": at, "place": place, "kind": rng.choice([None, 0, 1, 2]), "v": number})
    return pa.Table.from_pylist(rows, ROWS)


def joined(rows: pa.Table, places: pa.Table, *, dated: bool) -> pa.Table:
    """The rows with the columns of ``places``, by DuckDB."""
    con = duckdb.connect()
    con.execute("SET TimeZone = 'UTC'")
    con.register("r", rows.append_column("n", pa.array(range(len(rows)))))
    con.register("p", places)
    how = "ASOF LEFT JOIN" if dated else "LEFT JOIN"
    valid = " AND r.at >= p.since" if dated else ""
    query = f"SELECT r.*, p.region, p.seats FROM r {how} p ON r.place.code = p.code AND r.kind = p.kind{valid} ORDER BY n"
    return con.sql(query).to_arrow_table().drop_columns(["n"])


LOOKUP = {"on": {"place.code": "code", "kind": "kind"}, "columns": ["region", "seats"]}


@pytest.mark.parametrize("dated", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_values_are_those_of_duckdbs_joins(tmp_path, seed, dated):
    rows, places = some_rows(seed, 300), some_places(seed, dated=dated)
    if seed % 4 == 0:
        (tmp_path / "places").mkdir()
        pq.write_table(places.slice(0, 7), tmp_path / "places" / "a.parquet")
        pq.write_table(places.slice(7), tmp_path / "places" / "b.parquet")
    else:
        write_deltalake(tmp_path / "places", places.slice(0, 5))
        write_deltalake(tmp_path / "places", places.slice(5), mode="append")
    lookup = LOOKUP | ({"valid_from": "since"} if dated else {}) | ({"format": "parquet"} if seed % 4 == 0 else {})
    steps = RowSteps.of(parse_pipeline(a_spec(tmp_path, lookup)), {field.name: field.type for field in rows.schema})
    assert steps.outside == {}
    found = steps.over(rows)
    assert found.drop_columns([UNREAD]).to_pylist() == joined(rows, places, dated=dated).to_pylist()


class Twins:
    """A pipeline with a lookup, and one without over rows that have been joined beforehand."""

    def __init__(self, folder: Path, *, dated: bool, **changes: Any) -> None:
        self.raw, self.plain, self.dated, self.changes = folder / "raw", folder / "plain", dated, changes
        self.places = some_places(7, dated=dated)
        write_deltalake(self.raw / "places", self.places)

    def pipelines(self) -> list[Any]:
        lookup = LOOKUP | ({"valid_from": "since"} if self.dated else {})
        plain = a_spec(self.plain, lookup, **self.changes)
        del plain["steps"]
        return [parse_pipeline(a_spec(self.raw, lookup, **self.changes)), parse_pipeline(plain)]

    def land(self, rows: pa.Table) -> None:
        write_deltalake(self.raw / "source", rows, mode="append")
        write_deltalake(self.plain / "source", joined(rows, self.places, dated=self.dated).cast(self._schema(rows)), mode="append")

    def _schema(self, rows: pa.Table) -> pa.Schema:
        return pa.schema([*rows.schema, ("region", pa.string()), ("seats", pa.int32())])

    def each(self, act: Any) -> list[Any]:
        found = [act(pipeline) for pipeline in self.pipelines()]
        assert published(self.raw) == published(self.plain)
        return found

    def change(self, act: Any) -> None:
        for folder in (self.raw, self.plain):
            act(DeltaTable(folder / "source"))
        self.each(lambda pipeline: loop.run(pipeline, quiet()))


SPARK = [pytest.param(name, marks=pytest.mark.spark) for name in ("one task", "many tasks", "joined by Spark")]


@pytest.fixture(params=["local", *SPARK])
def computed_by(request, monkeypatch):
    """Who computes; by the last of them the table is too large for an index."""
    monkeypatch.setenv("WINDOWMILL_COMPUTE", "local" if request.param == "local" else "spark")
    if request.param != "local":
        request.getfixturevalue("spark")
    if request.param == "many tasks":
        compute_by_many_tasks(monkeypatch)
    lookups._examined.cache_clear()
    if request.param == "joined by Spark":
        monkeypatch.setattr(lookups, "MAX_ROWS", 3)
    yield request.param
    lookups._examined.cache_clear()


@pytest.mark.parametrize(("dated", "emit"), [(False, "final"), (True, "revise")])
def test_all_commands_compute_what_joined_rows_give(tmp_path, computed_by, dated, emit):
    twins = Twins(tmp_path, dated=dated, emit=emit)
    for number in range(3):
        twins.land(some_rows(number, 120, 6.0 * number))
        twins.each(lambda pipeline: loop.run(pipeline, quiet()))
    twins.each(lambda pipeline: loop.backfill(pipeline, quiet(), begin=to_us(day(2)), end=to_us(day(9))))
    twins.each(lambda pipeline: loop.restate(pipeline, quiet(), late=True))
    twins.change(lambda table: table.update(predicate="v = 50", updates={"v": "v + 100"}))
    twins.change(lambda table: table.delete("v > 60 and v < 80 and kind = 1"))
    twins.changes |= {
        "windows": [{"name": "days", "type": "tumbling", "size": "3 days"}, {"name": "visit", "type": "session", "gap": "2 hours"}]
    }
    twins.each(lambda pipeline: loop.apply(pipeline, quiet(), history=AXIS_BEGIN))
    if computed_by == "local":
        return
    for found in [verify(pipeline, quiet(), number=40, seed=3) for pipeline in twins.pipelines()]:
        assert found.comparison.differing == []
        assert found.comparison.rows


def test_rows_whose_match_has_gone_are_in_quarantine_after_a_restatement(tmp_path):
    places = pa.Table.from_pylist(
        [{"code": code, "kind": 1, "region": "north", "seats": 1, "since": date(2024, 1, 1)} for code in "ab"], PLACES
    )
    rows = [
        {"at": datetime(2024, 1, 2 + n // 10, n % 10, tzinfo=UTC), "place": {"code": "ab"[n % 2]}, "kind": 1, "v": n} for n in range(40)
    ]
    write_deltalake(tmp_path / "places", places)
    write_deltalake(tmp_path / "source", pa.Table.from_pylist(rows, ROWS))
    pipeline = parse_pipeline(a_spec(tmp_path, LOOKUP | {"missing": "quarantine"}))
    loop.run(pipeline, quiet())
    DeltaTable(tmp_path / "places").delete("code = 'b'")
    loop.restate(pipeline, quiet(), lookup="places")
    assert sorted(json.loads(row["row"])["v"] for row in quarantined(tmp_path)) == [n for n in range(40) if n % 2]


def to_us(at: datetime) -> int:
    return (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


@pytest.mark.parametrize("dated", [False, True])
def test_rows_without_a_match_are_quarantined_on_request(tmp_path, computed_by, dated):
    lookup = LOOKUP | {"missing": "quarantine"} | ({"valid_from": "since"} if dated else {})
    rows, places = some_rows(3, 200), some_places(3, dated=dated)
    write_deltalake(tmp_path / "places", places)
    write_deltalake(tmp_path / "source", rows)
    loop.run(parse_pipeline(a_spec(tmp_path, lookup, keys=[], aggregates={"n": {"count": "*"}})), quiet())
    found = {json.loads(row["row"])["v"]: row["detail"] for row in quarantined(tmp_path) if row["reason"] == "no_match"}
    con = duckdb.connect()
    con.execute("SET TimeZone = 'UTC'")
    con.register("r", rows)
    con.register("p", places)
    valid = " AND r.at >= p.since" if dated else ""
    unmatched = f"SELECT v, place.code, kind FROM r WHERE NOT EXISTS (FROM p WHERE r.place.code = p.code AND r.kind = p.kind{valid})"
    expected = con.execute(f"{unmatched}{' AND r.at IS NOT NULL' if dated else ''}").fetchall()
    after = " is valid at its time" if dated else ""
    texts = {v: {"code": code, "kind": kind} for v, code, kind in expected}
    assert found == {v: f"places: no row with {json.dumps(own, separators=(',', ':'))}{after}" for v, own in texts.items()}
    assert found


@pytest.mark.parametrize("dated", [False, True])
def test_two_rows_that_match_are_refused(tmp_path, computed_by, dated):
    places = pa.Table.from_pylist([{"code": "p1", "kind": 1, "region": "n", "seats": 1, "since": date(2024, 1, 1)}] * 2, PLACES)
    write_deltalake(tmp_path / "places", places)
    write_deltalake(tmp_path / "source", pa.Table.from_pylist([{"at": day(1), "place": {"code": "p1"}, "kind": 1, "v": 1}], ROWS))
    pipeline = parse_pipeline(a_spec(tmp_path, LOOKUP | ({"valid_from": "since"} if dated else {})))
    with pytest.raises(Exception, match=r"lookup places: two rows of .* have the same 'code' and 'kind'"):  # of a task: Spark's own
        loop.run(pipeline, quiet())
    assert Ledger(str(tmp_path / "sink.windowmill" / "ledger")).count == 0


def test_a_plan_pins_the_version_of_the_table(tmp_path, monkeypatch):
    """What is written to the table between plan and computation counts from the next batch on."""
    monkeypatch.setenv("WINDOWMILL_COMPUTE", "local")
    one = {"code": "p1", "kind": 1, "region": "before", "seats": 1, "since": None}
    write_deltalake(tmp_path / "places", pa.Table.from_pylist([one], PLACES))
    rows = [{"at": day(n), "place": {"code": "p1"}, "kind": 1, "v": n} for n in (0, 9)]
    write_deltalake(tmp_path / "source", pa.Table.from_pylist(rows, ROWS))
    pins = lookups.pinned

    def changed_meanwhile(*args: Any) -> Any:
        write_deltalake(tmp_path / "places", pa.Table.from_pylist([one | {"region": "after"}], PLACES), mode="overwrite")
        return pins(*args)

    monkeypatch.setattr(lookups, "pinned", changed_meanwhile)
    pipeline = parse_pipeline(a_spec(tmp_path, LOOKUP))
    loop.run(pipeline, quiet())
    monkeypatch.setattr(lookups, "pinned", pins)
    write_deltalake(tmp_path / "source", pa.Table.from_pylist([{**rows[1], "at": day(20)}], ROWS), mode="append")
    loop.run(pipeline, quiet())
    found = DeltaTable(tmp_path / "sink").to_pyarrow_table().to_pylist()
    assert {(row["region"], row["n"]) for row in found} == {("before", 1)}
    recorded = [batch.plan.lookups["places"]["version"] for batch in Ledger(str(tmp_path / "sink.windowmill" / "ledger")).batches()]
    assert recorded == [0, 1]


@pytest.mark.parametrize("engine", ["kernel", "reference"])
def test_try_looks_up_as_runs_do(tmp_path, engine):
    places = some_places(2, dated=True)
    write_deltalake(tmp_path / "places", places)
    rows = some_rows(2, 100, bad_times=False)
    pipeline = parse_pipeline(a_spec(tmp_path, LOOKUP | {"valid_from": "since"}))
    lines = "\n".join(json.dumps(row | {"at": row["at"].isoformat()}) for row in rows.to_pylist())
    found = attempt(pipeline, lines.encode(), engine=engine, commit_rows=1_000)
    counted = sum(1 for row in joined(rows, places, dated=True).to_pylist() if row["at"] is not None)
    assert sum(row["n"] for row in found.rows) == 2 * counted


@pytest.mark.parametrize(
    ("lookup", "problem"),
    [
        ({"on": {"place.code": "nothing"}}, "'nothing'"),
        ({"on": {"nothing": "code"}}, "'nothing'"),
        ({"columns": ["nothing"]}, "'nothing'"),
        ({"on": {"v": "code"}}, "'v' is bigint, and 'code' of .*places is string"),
        ({"on": {"at": "since"}}, "'at' is timestamp, and 'since' of .*places is date"),
        ({"valid_from": "region", "on": {"kind": "kind"}}, None),
        ({"valid_from": "seats"}, "'seats' of .*places is int, and 'at', the event's time, is timestamp"),
        ({"path": "/nowhere/places"}, "lookup places: table /nowhere/places: there is no Delta table"),
    ],
    ids=str,
)
def test_lookups_that_do_not_fit_the_tables_are_refused(tmp_path, lookup, problem):
    write_deltalake(tmp_path / "places", some_places(1, dated=True))
    write_deltalake(tmp_path / "source", some_rows(1, 10))
    pipeline = parse_pipeline(a_spec(tmp_path, LOOKUP | lookup))
    if problem is None:
        loop.run(pipeline, quiet())
        return
    with pytest.raises((SourceError, SourceSchemaError, SpecError), match=problem):
        loop.run(pipeline, quiet())


@pytest.mark.parametrize(
    ("steps", "problem"),
    [
        ([{"lookup": {"path": "/p", "on": {"a": "b"}, "columns": ["r", "r"]}}], "'r' is given twice"),
        ([{"lookup": {"path": "/p", "on": {}, "columns": ["r"]}}], "steps.0.lookup.on"),
        ([{"lookup": {"path": "/p", "table": "x.y", "on": {"a": "b"}, "columns": ["r"]}}], "both; expected either path or table"),
        ([{"lookup": {"path": "/p", "on": {"a": "b"}, "columns": ["r"]}}] * 2, "two lookups are named 'p'"),
        ([{"lookup": {"path": "/p", "on": {"a": "b"}, "columns": ["r"]}, "filter": "a"}], "got lookup and filter"),
        ([{"lookup": {"path": "/p", "on": {"a": "b"}, "columns": ["r"], "missing": "drop"}}], "steps.0.lookup.missing"),
        (
            [{"lookup": {"path": "/p", "on": {"a": "b"}, "columns": ["r"], "valid_from": "c"}}, {"columns": {"at": "x"}}],
            "steps.0.lookup.valid_from: 'at', the event's time, is made behind this step",
        ),
    ],
    ids=str,
)
def test_what_is_no_lookup_is_refused(tmp_path, steps, problem):
    with pytest.raises(SpecError, match=problem):
        parse_pipeline(a_spec(tmp_path, {}, steps=steps))


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.decimal128(9, 2), [Decimal("1.50"), Decimal("2.50")]),
        (pa.bool_(), [True, False]),
        (pa.date32(), [date(2024, 1, 1), date(1, 1, 1)]),
        (pa.timestamp("us", "UTC"), [day(1), day(2)]),
        (pa.int8(), [1, -1]),
        (pa.binary(), [b"\xff", b""]),
    ],
    ids=str,
)
def test_keys_of_each_type(tmp_path, kind, values):
    places = pa.table({"code": pa.array([*values, None], kind), "region": ["one", "two", "none"]})
    write_deltalake(tmp_path / "places", places)
    own = pa.array([values[1], None, values[0]], kind if kind != pa.int8() else pa.int64())
    rows = pa.table({"at": pa.array([day(1)] * 3, pa.timestamp("us", "UTC")), "key": own})
    pipeline = parse_pipeline(
        a_spec(tmp_path, {"on": {"key": "code"}, "columns": {"area": "region"}}, keys=[], aggregates={"n": {"count": "*"}})
    )
    steps = RowSteps.of(pipeline, {field.name: field.type for field in rows.schema})
    assert steps.over(rows).column("area").to_pylist() == ["two", None, "one"]


def test_a_table_of_a_million_rows_is_looked_up_in_an_index(tmp_path):
    n = 1_000_000
    write_deltalake(tmp_path / "places", pa.table({"code": np.arange(n), "region": np.arange(n) * 2}))
    rows = pa.table({"at": pa.array([day(1)] * 1_000, pa.timestamp("us", "UTC")), "key": np.arange(1_000) * 1_500})
    pipeline = parse_pipeline(a_spec(tmp_path, {"on": {"key": "code"}, "columns": ["region"]}))
    steps = RowSteps.of(pipeline, {field.name: field.type for field in rows.schema})
    found = steps.over(rows).column("region").to_pylist()
    assert found == [key * 2 if key < n else None for key in rows.column("key").to_pylist()]


def latest(folder: Path) -> list[str]:
    """The latest view of the sink but for numbers of revisions and batches."""
    newest: dict[Any, dict[str, Any]] = {}
    for row in sorted(DeltaTable(folder / "sink").to_pyarrow_table().to_pylist(), key=lambda row: row["revision"]):
        bounds = (row["window_start"], row["window_end"]) if row["trigger"] is None else ()
        newest[row["region"], row["window"], row["trigger"], bounds] = row
    return sorted(repr(row | {"batch": 0, "revision": 0}) for row in newest.values() if not row["retracted"])


def change_places(folder: Path, rng: random.Random, *, dated: bool) -> None:
    """What the owner of the table does: corrections, rows that go, and rows that come, some of them late."""
    table = DeltaTable(folder / "places")
    code, region = f"p{rng.randrange(14)}", rng.choice(["north", "south", "east"])
    match rng.randrange(3):
        case 0:
            table.update(predicate=f"code = '{code}'", updates={"region": f"'{region}'", "seats": "coalesce(seats, 0) + 1"})
        case 1:
            table.delete(f"code = '{code}'")
        case _:
            code = rng.choice(["p12", "p13", code])  # those of the first are events' alone
            known = {(row["code"], row["since"]) for row in table.to_pyarrow_table().to_pylist()}
            since = date(2024, 1, rng.randint(1, 28)) if dated else date(2024, 1, 1)
            own = {"code": code, "kind": int(code[1:]) % 3, "region": region, "seats": 7, "since": since}
            if (code, since) not in known:
                write_deltalake(folder / "places", pa.Table.from_pylist([own], PLACES), mode="append")


WINDOWS_OF_EACH_LAYOUT = [
    {"name": "days", "type": "hopping", "size": "2 days", "hop": "1 day"},
    {"name": "visit", "type": "session", "gap": "3 hours"},
    {"name": "last", "type": "sliding", "evict": {"count": 3}, "trigger": {"count": 2}},
    {"name": "three", "type": "count", "count": 3},
]


@pytest.mark.parametrize("missing", ["keep", "quarantine"])
@pytest.mark.parametrize("dated", [False, True])
@pytest.mark.parametrize("seed", range(2))
def test_a_changed_table_is_taken_up_by_a_restatement(tmp_path, monkeypatch, seed, dated, missing):
    """Behind it, and behind later runs, the latest view is that of a pipeline which has looked up the present rows from the beginning."""
    monkeypatch.setenv("WINDOWMILL_COMPUTE", "local")
    rng, lookup = random.Random(seed), LOOKUP | ({"valid_from": "since"} if dated else {}) | {"missing": missing}
    # Rows without a match are read by the fresh pipeline as by the restated one: none is late in either.
    changes = {"windows": WINDOWS_OF_EACH_LAYOUT, "time": {"column": "at", "disorder": "10 days"}, "emit": rng.choice(["final", "revise"])}
    changed, fresh = tmp_path / "changed", tmp_path / "fresh"
    pipeline = parse_pipeline(a_spec(changed, lookup, **changes))
    write_deltalake(changed / "places", some_places(seed, dated=dated))
    for number in range(3):
        write_deltalake(changed / "source", some_rows(10 * seed + number, 80, 5.0 * number, bad_times=False), mode="append")
        loop.run(pipeline, quiet())
        for _ in range(2):
            change_places(changed, rng, dated=dated)
        if number in (1, 2):
            loop.restate(pipeline, quiet(), lookup="places")
    write_deltalake(fresh / "places", DeltaTable(changed / "places").to_pyarrow_table())
    for number in range(3):
        write_deltalake(fresh / "source", some_rows(10 * seed + number, 80, 5.0 * number, bad_times=False), mode="append")
        loop.run(parse_pipeline(a_spec(fresh, lookup, **changes)), quiet())
    assert latest(changed) == latest(fresh)
    assert loop.restate(pipeline, quiet(), lookup="places") == []
    for folder in (changed, fresh):
        write_deltalake(folder / "source", some_rows(99, 60, 40.0), mode="append")
        loop.run(parse_pipeline(a_spec(folder, lookup, **changes)), quiet())
    assert latest(changed) == latest(fresh)
    if missing == "quarantine":
        left = {folder: sorted((row["reason"], json.loads(row["row"])["v"]) for row in quarantined(folder)) for folder in (changed, fresh)}
        assert left[changed] == left[fresh]


def test_a_row_that_goes_takes_with_it_what_it_looked_up_before_the_table_changed(tmp_path, monkeypatch):
    monkeypatch.setenv("WINDOWMILL_COMPUTE", "local")
    place = {"code": "p1", "kind": 1, "region": "north", "seats": 1, "since": None}
    write_deltalake(tmp_path / "places", pa.Table.from_pylist([place], PLACES))
    rows = [{"at": day(at), "place": {"code": "p1"}, "kind": 1, "v": number} for number, at in enumerate((0.1, 0.2, 9))]
    write_deltalake(tmp_path / "source", pa.Table.from_pylist(rows, ROWS))
    pipeline = parse_pipeline(a_spec(tmp_path, LOOKUP, windows=[{"name": "days", "type": "tumbling", "size": "1 day"}]))
    loop.run(pipeline, quiet())
    assert [(row["region"], row["n"]) for row in DeltaTable(tmp_path / "sink").to_pyarrow_table().to_pylist()] == [("north", 2)]
    DeltaTable(tmp_path / "places").update(updates={"region": "'south'"})
    DeltaTable(tmp_path / "source").delete("v = 0")
    loop.run(pipeline, quiet())
    found = DeltaTable(tmp_path / "sink").to_pyarrow_table().to_pylist()
    assert sorted((row["region"], row["n"], row["retracted"]) for row in found if row["batch"] == 1) == [
        ("north", None, True),
        ("south", 1, False),
    ]


@pytest.mark.parametrize("chained", [False, True])
def test_two_tables_that_have_changed_are_taken_up_together(tmp_path, monkeypatch, chained):
    monkeypatch.setenv("WINDOWMILL_COMPUTE", "local")
    write_deltalake(tmp_path / "a", pa.table({"code": ["1"], "x": ["x1"]}))
    write_deltalake(tmp_path / "b", pa.table({"x": ["x1", "x2"] if chained else ["1", "2"], "region": ["old", "other"]}))
    rows = [{"at": day(at), "code": "1"} for at in (0, 0.1, 9)]
    write_deltalake(tmp_path / "source", pa.Table.from_pylist(rows, pa.schema([("at", pa.timestamp("us", "UTC")), ("code", pa.string())])))
    steps = [
        {"lookup": {"path": str(tmp_path / "a"), "on": {"code": "code"}, "columns": ["x"]}},
        {"lookup": {"path": str(tmp_path / "b"), "on": {"x" if chained else "code": "x"}, "columns": ["region"]}},
    ]
    windows = [{"name": "days", "type": "tumbling", "size": "1 day"}]
    pipeline = parse_pipeline(a_spec(tmp_path, {}, steps=steps, keys=["x", "region"], aggregates={"n": {"count": "*"}}, windows=windows))
    loop.run(pipeline, quiet())
    DeltaTable(tmp_path / "a").update(updates={"x": "'x2'"})
    DeltaTable(tmp_path / "b").update(predicate="region = 'old'", updates={"region": "'new'"})
    loop.restate(pipeline, quiet(), lookup="a")
    loop.restate(pipeline, quiet(), lookup="b")
    found = sorted(DeltaTable(tmp_path / "sink").to_pyarrow_table().to_pylist(), key=lambda row: row["revision"])
    shown = {(row["x"], row["region"]): row["retracted"] for row in found}
    assert {key for key, retracted in shown.items() if not retracted} == {("x2", "other" if chained else "new")}


def test_a_looked_up_column_of_another_type_is_refused_before_any_work(tmp_path, monkeypatch):
    monkeypatch.setenv("WINDOWMILL_COMPUTE", "local")
    at = pa.array([day(1)], pa.timestamp("us", "UTC"))
    write_deltalake(tmp_path / "places", pa.table({"code": ["1"], "region": ["7"], "seats": [1]}))
    write_deltalake(tmp_path / "source", pa.table({"at": at, "code": ["1"], "v": [1]}))
    spec = a_spec(tmp_path, {"on": {"code": "code"}, "columns": ["region", "seats"]})
    loop.run(parse_pipeline(spec), quiet())
    write_deltalake(tmp_path / "places", pa.table({"code": ["1"], "region": [7], "seats": [2]}), mode="overwrite", schema_mode="overwrite")
    write_deltalake(tmp_path / "source", pa.table({"at": at, "code": ["1"], "v": [2]}), mode="append")
    before = DeltaTable(tmp_path / "sink").version()
    with pytest.raises(
        SourceSchemaError, match=r"lookup places: column 'region' of .* was STRING and is now BIGINT; .* cast it to STRING by"
    ):
        loop.run(parse_pipeline(spec), quiet())
    assert DeltaTable(tmp_path / "sink").version() == before
    cast = spec | {"steps": [*spec["steps"], {"columns": {"region": "cast(region as string)"}}]}
    loop.apply(parse_pipeline(cast), quiet(), history=AXIS_BEGIN)
    later = pa.table({"at": pa.array([day(9)], pa.timestamp("us", "UTC")), "code": ["1"], "v": [0]})
    write_deltalake(tmp_path / "source", later, mode="append")
    loop.run(parse_pipeline(cast), quiet())
    assert {(row["region"], row["n"], row["sum"]) for row in DeltaTable(tmp_path / "sink").to_pyarrow_table().to_pylist()} >= {("7", 2, 3)}


@pytest.mark.parametrize("kind", ["tumbling", "session"])
def test_a_restated_range_leaves_rows_without_a_window_in_it_in_quarantine(tmp_path, monkeypatch, kind):
    monkeypatch.setenv("WINDOWMILL_COMPUTE", "local")
    write_deltalake(tmp_path / "places", pa.table({"code": ["other"], "region": ["r"], "seats": [0]}))
    rows = [{"at": day(at), "code": "new", "v": 1} for at in (0.5, 3.5)] + [{"at": day(9), "code": "other", "v": 1}]
    schema = pa.schema([("at", pa.timestamp("us", "UTC")), ("code", pa.string()), ("v", pa.int64())])
    write_deltalake(tmp_path / "source", pa.Table.from_pylist(rows, schema))
    window = {"type": "tumbling", "size": "1 day"} if kind == "tumbling" else {"type": "session", "gap": "3 hours"}
    lookup = {"on": {"code": "code"}, "columns": ["region", "seats"], "missing": "quarantine"}
    pipeline = parse_pipeline(a_spec(tmp_path, lookup, windows=[{"name": "w", **window}], emit="revise"))
    loop.run(pipeline, quiet())
    assert len(quarantined(tmp_path)) == 2
    write_deltalake(tmp_path / "places", pa.table({"code": ["new"], "region": ["r"], "seats": [5]}), mode="append")
    loop.restate(pipeline, quiet(), lookup="places", ends=(None, to_us(day(2))))
    assert [row["event_time"] for row in quarantined(tmp_path)] == [day(3.5)]
    assert len(latest(tmp_path)) == 1
    loop.restate(pipeline, quiet(), lookup="places", ends=(to_us(day(2)), None))
    assert quarantined(tmp_path) == []
    assert len(latest(tmp_path)) == 2


def test_a_folder_that_is_looked_up_is_read_again_where_a_file_has_changed(tmp_path):
    (tmp_path / "places").mkdir()
    pipeline = parse_pipeline(a_spec(tmp_path, {"format": "parquet", "on": {"code": "code"}, "columns": ["region"]}))
    rows = pa.table({"at": pa.array([day(1)], pa.timestamp("us", "UTC")), "code": ["1"]})
    for region in ("old", "new"):
        pq.write_table(pa.table({"code": ["1"], "region": [region]}), tmp_path / "places" / "a.parquet")
        steps = RowSteps.of(pipeline, {field.name: field.type for field in rows.schema})
        assert steps.over(rows).column("region").to_pylist() == [region]


@pytest.mark.spark
def test_verification_excuses_only_windows_of_what_has_changed(tmp_path, spark):
    places = [{"code": f"p{n}", "kind": 1, "region": f"r{n}", "seats": 1, "since": None} for n in range(4)]
    write_deltalake(tmp_path / "places", pa.Table.from_pylist(places, PLACES))
    rows = [{"at": day(at / 10), "place": {"code": f"p{at % 4}"}, "kind": 1, "v": at} for at in range(100)]
    write_deltalake(tmp_path / "source", pa.Table.from_pylist(rows, ROWS))
    pipeline = parse_pipeline(a_spec(tmp_path, LOOKUP))
    loop.run(pipeline, quiet())
    DeltaTable(tmp_path / "places").update(predicate="code = 'p1'", updates={"seats": "5"})
    found = verify(pipeline, quiet(), number=1_000, seed=1).comparison
    assert found.differing == []
    assert {(row.row.key, row.undecided is not None) for row in found.rows} == {((f"r{n}",), n == 1) for n in range(4)}
    loop.restate(pipeline, quiet(), lookup="places")
    found = verify(pipeline, quiet(), number=1_000, seed=1).comparison
    assert [row for row in found.rows if row.differences] == []


@pytest.mark.spark
def test_rows_that_only_spark_reads_look_up_in_an_index(tmp_path, spark, monkeypatch):
    monkeypatch.setenv("WINDOWMILL_COMPUTE", "spark")
    rows, places = some_rows(8, 120, bad_times=False), some_places(8, dated=False)
    write_deltalake(tmp_path / "places", places)
    write_deltalake(tmp_path / "source", rows)
    source = f"delta.`{tmp_path / 'source'}`"
    spark.sql(f"ALTER TABLE {source} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
    spark.sql(f"DELETE FROM {source} WHERE v % 10 = 3")
    windows = [{"name": "days", "type": "tumbling", "size": "1 day"}]
    pipeline = parse_pipeline(a_spec(tmp_path, LOOKUP, windows=windows, dedup={"by": ["v"]}, time={"column": "at", "disorder": "5 days"}))
    loop.run(pipeline, quiet())
    expected = Counter((row["region"], row["at"].date()) for row in joined(rows, places, dated=False).to_pylist() if row["v"] % 10 != 3)
    shown = {(row["region"], row["window_start"].date()): row["n"] for row in DeltaTable(tmp_path / "sink").to_pyarrow_table().to_pylist()}
    assert shown
    assert shown == {place: expected[place] for place in shown}
    assert verify(pipeline, quiet(), number=1_000, seed=1).comparison.differing == []
