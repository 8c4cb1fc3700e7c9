"""Duplicates, case by case: changed specs and rows, expiry, odd ids, ranges, refusals, messages, and files that others rewrite."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from deltalake import DeltaTable, write_deltalake

from benchmarks.pipelines import quiet
from tests.faults.dying import DiedError, arm
from tests.jobs.deduplicated import (
    Counted,
    a_grid,
    run,
)
from tests.latest import latest
from windowmill.checkpoints import failpoints, seen
from windowmill.jobs.batch import loop
from windowmill.jobs.cli import main
from windowmill.jobs.verify.check import verify
from windowmill.windowing.axis import AXIS_BEGIN
from windowmill.windowing.errors import (
    SourceSchemaError,
    SpecError,
    StateCorruptError,
    UnsupportedError,
)


@pytest.mark.local
def test_a_changed_dedup_recomputes_the_history(tmp_path):
    own = Counted(tmp_path, a_grid() | {"dedup": None})
    own.spec.pop("dedup")
    own.land((1, "a", "x"), (2, "a", "x"), (3, "a", "y"), (5, "b", "y"))
    own.land((40, "a", "z"))
    own.run()
    assert own.rows == {("a", 10): 3, ("b", 10): 1}
    own.apply(dedup={"by": ["id"]})
    assert own.rows == {("a", 10): 2}
    own.land((41, "a", "z"), (45, "b", "z"), (80, "a", "w"))
    own.run()
    assert own.rows == {("a", 10): 2, ("a", 50): 1}
    assert own.remembered == 4  # x and y have expired, but lie in a file with z
    own.apply(dedup={"by": ["id", "k"]})
    assert own.rows == {("a", 10): 2, ("b", 10): 1, ("a", 50): 1, ("b", 50): 1}
    own.apply(windows=[*own.spec["windows"], {"name": "other", "type": "tumbling", "size": 20}])
    assert {key: n for key, n in own.rows.items() if key[1] == 60} == {("a", 60): 1, ("b", 60): 1}
    own.land((81, "a", "w"), (130, "a", "v"))
    own.run()
    assert own.batches()[-1].counts.duplicates == 1
    own.apply(dedup=None)
    assert own.rows[("a", 50)] == 2
    assert own.remembered == 0


@pytest.mark.local
def test_a_restatement_counts_the_copy_of_a_row_that_is_gone(tmp_path):
    own = Counted(tmp_path, a_grid(within=30))
    own.land((1, "a", "x"), (3, "b", "y"))
    own.land((12, "b", "x"), (13, "a", "y"), (14, "c", "z"))
    own.land((60, "a", "w"))
    own.run()
    assert own.rows == {("a", 10): 1, ("b", 10): 1, ("c", 20): 1}
    DeltaTable(tmp_path / "source").delete("t = 1")
    own.run()
    assert own.rows == {("b", 10): 1, ("b", 20): 1, ("c", 20): 1}
    DeltaTable(tmp_path / "source").update(predicate="t = 13", updates={"id": "'other'"})
    own.run()
    assert own.rows == {("b", 10): 1, ("a", 20): 1, ("b", 20): 1, ("c", 20): 1}
    # What is remembered is that of the rows as they are now.
    own.land((61, "a", "w"), (62, "b", "w"), (110, "c", "u"))
    own.run()
    assert own.rows[("a", 70)] == 1
    assert ("b", 70) not in own.rows


@pytest.mark.local
def test_a_copy_of_a_key_that_shares_nothing_else_counts_once_its_row_is_gone(tmp_path):
    own = Counted(tmp_path, a_grid(within=30))
    own.land((1, "a", "x"))
    own.land((12, "b", "x"), (60, "c", "w"))
    own.run()
    assert own.rows == {("a", 10): 1}
    DeltaTable(tmp_path / "source").delete("t = 1")
    own.run()
    assert own.rows == {("b", 20): 1}


@pytest.mark.local
def test_a_restatement_counts_the_copy_of_a_row_on_which_a_condition_fails_now(tmp_path):
    own = Counted(tmp_path, a_grid(within=30) | {"aggregates": {"n": {"count": "*", "where": "cast(k as int) > 0"}}, "keys": ["id"]})
    own.land((1, "1", "x"))
    own.land((2, "1", "x"), (60, "1", "z"))
    own.run()
    DeltaTable(tmp_path / "source").update(predicate="t = 1", updates={"k": "'none'"})
    own.run()
    assert own.batches()[-1].counts.quarantined == {"bad_condition": 1}
    found = latest(own.pipeline, DeltaTable(tmp_path / "sink").to_pyarrow_table().to_pylist())
    assert [(row["id"], row["window_end"], row["n"]) for row in found] == [("x", 10, 1)]


@pytest.mark.local
def test_entries_expire_with_the_watermark_and_are_merged(tmp_path, monkeypatch):
    monkeypatch.setattr(seen, "FEW_FILES", 3)
    own = Counted(tmp_path, a_grid())
    sizes = []
    for number in range(40):
        own.land(*((number * 5 + extra, "a", f"{number}-{extra}") for extra in range(4)))
        own.run()
        sizes.append((own.remembered, len(DeltaTable(tmp_path / "sink.windowmill" / "seen").file_uris())))
    # Of 30 behind the watermark, which is 10 behind the newest row, and what has expired since files were merged.
    assert all(32 <= rows <= 90 for rows, _ in sizes[12:])
    assert all(files <= 12 for _, files in sizes)


@pytest.mark.local
@pytest.mark.parametrize(
    ("dedup", "problem"),
    [
        ({"by": []}, "dedup.by"),
        ({"by": ["id", "ID"]}, "the name 'id' is given twice"),
        ({"by": ["id"], "within": -1}, "dedup.within: got -1; expected a fixed length, zero or more"),
        ({"by": ["id"], "within": "5 minutes"}, "dedup.within: got 5 minutes; expected a plain integer"),
        ({"by": ["id"], "within": "1 month"}, "dedup.within: got 1 month; expected a fixed length"),
        ({"by": ["nothing"]}, "dedup.by.0: .*'nothing'"),
        ({"by": ["m"]}, r"dedup.by.0: 'm' is map<string,bigint>, which identifies no row; name a column of a simple type, a field of it"),
    ],
    ids=str,
)
def test_a_dedup_that_cannot_be_is_refused(tmp_path, dedup, problem):
    fields = [("t", pa.int64()), ("k", pa.string()), ("id", pa.string()), ("m", pa.map_(pa.string(), pa.int64()))]
    write_deltalake(tmp_path / "source", pa.Table.from_pylist([{"t": 1, "k": "a", "id": "x", "m": []}], pa.schema(fields)))
    with pytest.raises((SpecError, SourceSchemaError), match=problem):
        Counted(tmp_path, a_grid() | {"dedup": dedup}).run()


@pytest.mark.local
def test_rows_of_a_struct_and_behind_steps(tmp_path):
    kind = pa.schema([("t", pa.int64()), ("k", pa.string()), ("event", pa.struct([("id", pa.string())]))])
    events = [(1, {"id": "x"}), (2, {"id": "X"}), (3, {"id": "y"}), (4, None), (5, {"id": None})]
    rows = [{"t": t, "k": "a", "event": event} for t, event in events]
    write_deltalake(tmp_path / "source", pa.Table.from_pylist([*rows, {"t": 50, "k": "a", "event": {"id": "z"}}], kind))
    own = Counted(tmp_path, a_grid() | {"dedup": {"by": ["event.id"]}})
    own.run()
    assert own.rows == {("a", 10): 5}
    other = Counted(tmp_path, a_grid() | {"dedup": {"by": ["low"]}, "steps": [{"columns": {"low": "lower(event.id)"}}]})
    other.spec["sink"] = {"path": str(tmp_path / "other")}
    run(other.pipeline)
    assert DeltaTable(tmp_path / "other").to_pyarrow_table().column("n").to_pylist() == [4]


def verified(tmp_path: Path, monkeypatch: Any, **fields: Any) -> tuple[Counted, list[Any]]:
    """A pipeline that runs in this process over the rows in ``tmp_path``, and what `verify` says of its published rows."""
    monkeypatch.setenv("WINDOWMILL_COMPUTE", "local")
    own = Counted(tmp_path, a_grid() | fields)
    own.run()
    found = verify(own.pipeline, quiet(), number=60, seed=1).comparison
    assert len(found.rows) == len(own.rows)
    assert not found.left_out
    return own, [(row.row, row.differences) for row in found.differing]


@pytest.mark.spark
@pytest.mark.parametrize(
    ("kind", "values", "n_distinct"),
    [
        (pa.timestamp("us", "UTC"), [datetime(2024, 1, 1, microsecond=us, tzinfo=UTC) for us in (1, 1, 2, 2)], 2),
        (pa.float64(), [0.0, -0.0, 1.0, float("nan"), float("nan")], 3),
        (pa.decimal128(12, 4), [Decimal("1.25"), Decimal("1.2500"), Decimal("1.2501")], 2),
    ],
    ids=str,
)
def test_verify_compares_values_as_runs_do(tmp_path, spark, monkeypatch, kind, values, n_distinct):
    rows = [{"t": number, "k": "a", "id": value} for number, value in enumerate(values)]
    rows.append({"t": 100, "k": "z", "id": None})
    schema = pa.schema([("t", pa.int64()), ("k", pa.string()), ("id", kind)])
    write_deltalake(tmp_path / "source", pa.Table.from_pylist(rows, schema), mode="append")
    own, differing = verified(tmp_path, monkeypatch)
    assert own.rows == {("a", 10): n_distinct}
    assert differing == []


@pytest.mark.spark
@pytest.mark.parametrize("windows", [None, [{"name": "visit", "type": "session", "gap": 6}]])
def test_verify_takes_columns_of_any_name(tmp_path, spark, monkeypatch, windows):
    names = ["_closed_through", "_text", "_times", "_id", "_from", "_gap", "_session", "reason"]
    for rows in ([(1, "x"), (2, "x"), (60, "y")], [(3, "z")]):  # the last one is too late
        times, ids = zip(*rows, strict=True)
        table = pa.table({"t": times, "k": ["a"] * len(rows)} | dict.fromkeys(names, ids))
        write_deltalake(tmp_path / "source", table, mode="append")
    own, differing = verified(tmp_path, monkeypatch, dedup={"by": names}, **({} if windows is None else {"windows": windows}))
    assert differing == []
    assert list(own.rows.values()) == [1]
    assert own.batches()[-1].counts.rows_quarantined == 1


@pytest.mark.spark
@pytest.mark.parametrize(
    ("window", "until", "late", "counted"),
    [
        # In no window, so that it is not too late either.
        ({"type": "hopping", "size": 5, "hop": 20}, None, (27, 28), {("a", 45): 1}),
        # The windows that hold it have been closed, as none holds the instant at which it ends.
        ({"type": "tumbling", "size": 10}, "until", (15, 30), {("a", 50): 2, ("z", 40): 1}),
    ],
    ids=["between windows", "until the end of a window"],
)
def test_verify_judges_late_rows_as_runs_do(tmp_path, spark, monkeypatch, window, until, late, counted):
    schema = pa.schema([("t", pa.int64()), ("until", pa.int64()), ("k", pa.string()), ("id", pa.string())])
    commits = [[(31, 32, "z", None)], [(*late, "a", "x")], [(43, 44, "a", "x"), (44, 45, "a", "y")], [(100, 101, "z", None)]]
    for rows in commits:
        table = pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema)
        write_deltalake(tmp_path / "source", table, mode="append")
    time = {"column": "t", "unit": "none"} | ({} if until is None else {"end": until})
    own, differing = verified(tmp_path, monkeypatch, windows=[{"name": "w", **window}], time=time, dedup={"by": ["id"], "within": 100})
    assert own.rows == counted
    assert differing == []


@pytest.mark.local
def test_commands_say_what_was_left_out(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    own = Counted(tmp_path, a_grid())
    own.land((1, "a", "x"), (2, "a", "x"), (60, "a", "y"))
    Path("own.yaml").write_text(yaml.safe_dump(own.spec))
    assert main(["run", "own.yaml", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["batches"][0]["duplicates"] == 1
    for command, text in {
        "explain": "rows with the id of an applied row are left out until the watermark has passed its time by 30",
        "history": "duplicates",
        "status": "duplicates",
    }.items():
        assert main([command, "own.yaml"]) == 0
        assert text in " ".join(capsys.readouterr().out.split())
    assert main(["report", "own.yaml"]) == 0
    assert "duplicates, left out" in (tmp_path / "sink.windowmill" / "report.html").read_text()
    own.spec["source"]["filter"] = "soundex(k) = 'A000'"
    Path("own.yaml").write_text(yaml.safe_dump(own.spec))
    assert main(["explain", "own.yaml"]) == 0
    assert "restatements are refused, as only Spark evaluates source.filter" in " ".join(capsys.readouterr().out.split())


@pytest.mark.local
@pytest.mark.parametrize("changed", [False, True])
def test_init_proposes_dedup_where_rows_with_an_id_come_twice(tmp_path, capsys, monkeypatch, changed):
    monkeypatch.chdir(tmp_path)
    at = [datetime(2024, 1, 1, tzinfo=UTC) + timedelta(minutes=number) for number in range(200)]
    rows = [{"event_id": f"e{number}", "shop": "ab"[number % 2], "at": time, "v": number} for number, time in enumerate(at)]
    rows += [row | ({"v": -1} if changed else {}) for row in rows[10:20]]
    write_deltalake(tmp_path / "source", pa.Table.from_pylist(rows))
    assert main(["init", "--source", str(tmp_path / "source"), "--time", "at", "--yes"]) == 0
    [written] = tmp_path.glob("*.yaml")
    assert yaml.safe_load(written.read_text()).get("dedup") == (None if changed else {"by": ["event_id"]})
    assert ("repeat a value of event_id" in written.read_text()) == changed
    capsys.readouterr()


@pytest.mark.local
def test_files_that_others_rewrite_lose_no_entry(tmp_path, monkeypatch):
    monkeypatch.setattr(seen, "FEW_FILES", 1)
    own = Counted(tmp_path, a_grid(within=1_000))
    for number in range(3):
        own.land((number, "a", f"x{number}"))
        own.run()
    own.land((5, "a", "x4"))
    arm("seen.before")
    with pytest.raises(DiedError):
        own.run()
    failpoints.disarm()
    DeltaTable(tmp_path / "sink.windowmill" / "seen").optimize.compact()
    own.land(*((6, "a", f"x{number}") for number in (0, 1, 2, 4)), (60, "a", "y"))
    own.run()
    assert own.rows == {("a", 10): 4}


@pytest.mark.local
def test_entries_that_a_restatement_forgets_go_from_files_that_others_rewrite(tmp_path):
    own = Counted(tmp_path, a_grid(within=1_000))
    for row in ((1, "a", "x"), (2, "a", "y")):
        own.land(row)
        own.run()
    DeltaTable(tmp_path / "source").delete("id = 'x'")
    arm("seen.before")
    with pytest.raises(DiedError):
        own.run()
    failpoints.disarm()
    DeltaTable(tmp_path / "sink.windowmill" / "seen").optimize.compact()
    own.land((6, "a", "x"), (60, "a", "z"))
    own.run()
    assert own.rows == {("a", 10): 2}


@pytest.mark.local
@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: bytes(200) + data[200:]], ids=["shorter", "other"])
def test_a_damaged_table_of_remembered_rows_is_named(tmp_path, damage):
    own = Counted(tmp_path, a_grid())
    own.land((1, "a", "x"))
    own.run()
    [file] = (tmp_path / "sink.windowmill" / "seen").glob("*.parquet")
    file.write_bytes(damage(file.read_bytes()))
    own.land((2, "a", "x"))
    with pytest.raises(StateCorruptError, match=rf"^seen (file://)?{tmp_path}/sink\.windowmill/seen/?: "):
        own.run()


@pytest.mark.local
@pytest.mark.parametrize("range_", [(50, None), (None, 50), "backfill"])
def test_a_range_does_not_divide_rows_with_equal_ids(tmp_path, range_):
    """Of two rows with other times and keys the later one came first, and counts until all windows are computed again."""
    own = Counted(tmp_path, a_grid())
    own.land((50, "a", "x"))
    own.land((45, "b", "x"), (20, "c", "q"))
    own.land((100, "z", "z"))
    own.run()
    if range_ == "backfill":  # which reads the table as it is once a change has been restated
        DeltaTable(tmp_path / "source").update(predicate="t = 20", updates={"id": "'other'"})
        own.run()
    shown = own.rows
    recompute = partial(loop.backfill, begin=50, end=100) if range_ == "backfill" else partial(loop.restate, ends=range_)
    with pytest.raises(UnsupportedError, match=r"rows with equal values of dedup\.by have times inside and outside of the range"):
        recompute(own.pipeline, quiet())
    assert own.rows == shown
    loop.restate(own.pipeline, quiet(), ends=(0, None))
    assert sum(own.rows.values()) == sum(shown.values())


@pytest.mark.local
def test_a_restatement_of_other_keys_remembers_the_row_that_counts(tmp_path):
    own = Counted(tmp_path, a_grid() | {"time": {"column": "t", "unit": "none", "disorder": 0, "lateness": 10}})
    for row in ((20, "c", "q"), (50, "a", "x"), (45, "b", "x")):
        own.land(row)
        own.run()
    DeltaTable(tmp_path / "source").update(predicate="t = 20", updates={"id": "'other'"})
    own.run()
    for row in ((66, "z", "z"), (50, "a", "x"), (100, "z", "later")):
        own.land(row)
    own.run()
    assert own.rows[("a", 60)] == 1


@pytest.mark.local
@pytest.mark.parametrize("within", [None, 5, 40])
@pytest.mark.parametrize("history", [AXIS_BEGIN, 110, None])
def test_a_changed_spec_finds_duplicates_of_rows_before_its_windows(tmp_path, within, history):
    own = Counted(tmp_path, a_grid(**({} if within is None else {"within": within})))
    for row in ((75, "a", "x"), (110, "a", "y"), (112, "a", "x"), (113, "a", "y")):
        own.land(row)
    own.run()
    copies = 3 if within == 5 else 2
    own.apply(history=history, windows=[*own.spec["windows"], {"name": "sevens", "type": "tumbling", "size": 7}])
    own.land((200, "a", "z"))
    own.run()
    found = latest(own.pipeline, DeltaTable(tmp_path / "sink").to_pyarrow_table().to_pylist())
    assert [row["n"] for row in found if (row["window"], row["window_end"]) == ("tens", 120)] == [copies - 1]


@pytest.mark.local
def test_a_changed_spec_reads_the_rows_that_decide_about_those_that_decide(tmp_path):
    """The first row makes the second one a duplicate, which lies near enough to the third one."""
    own = Counted(tmp_path, a_grid(within=60) | {"windows": [{"name": "hours", "type": "tumbling", "size": 60}]})
    for time in (530, 580, 630):
        own.land((time, "a", "x"))
    own.run()
    own.apply(history=None, windows=[*own.spec["windows"], {"name": "sevens", "type": "tumbling", "size": 7}])
    own.land((800, "a", "z"))
    own.run()
    found = latest(own.pipeline, DeltaTable(tmp_path / "sink").to_pyarrow_table().to_pylist())
    assert {(row["window_end"], row["n"]) for row in found if row["window"] == "hours"} == {(540, 1), (660, 1)}


@pytest.mark.local
@pytest.mark.parametrize(("by", "steps"), [("event.id", []), ("e", [{"columns": {"e": "event.id"}}]), ("d", [])])
def test_ids_of_another_kind_are_refused(tmp_path, by, steps):
    def land(number: pa.DataType, decimals: int) -> None:
        fields = [("t", pa.int64()), ("k", pa.string()), ("event", pa.struct([("id", number)])), ("d", pa.decimal128(20, decimals))]
        rows = pa.Table.from_pylist([{"t": 1, "k": "a", "event": {"id": 1}, "d": 1}], pa.schema(fields))
        write_deltalake(tmp_path / "source", rows, mode="overwrite", schema_mode="overwrite")

    land(pa.int32(), 2)
    own = Counted(tmp_path, a_grid() | {"dedup": {"by": [by]}, "steps": steps})
    own.spec["source"]["changes"] = "ignore"
    own.run()
    land(pa.float64(), 4)
    with pytest.raises(SourceSchemaError, match=rf"column '{by}' was .* and is now .*, and dedup\.by names it"):
        own.run()


@pytest.mark.local
def test_ids_of_another_kind_in_a_looked_up_table_are_refused(tmp_path):
    names = {"key": ["a"], "number": [7]}
    write_deltalake(tmp_path / "names", pa.table(names))
    lookup = {"path": str(tmp_path / "names"), "on": {"k": "key"}, "columns": ["number"]}
    own = Counted(tmp_path, a_grid() | {"dedup": {"by": ["number"]}, "steps": [{"lookup": lookup}]})
    own.land((1, "a", "x"))
    own.run()
    write_deltalake(tmp_path / "names", pa.table(names | {"number": ["7"]}), mode="overwrite", schema_mode="overwrite")
    own.land((2, "a", "y"))
    with pytest.raises(SourceSchemaError, match=r"lookup names: column 'number' of .* was BIGINT and is now STRING"):
        own.run()


@pytest.mark.local
def test_rows_without_a_match_are_known_to_a_restatement(tmp_path):
    write_deltalake(tmp_path / "names", pa.table({"key": ["a"], "name": ["A"]}))
    lookup = {"path": str(tmp_path / "names"), "on": {"k": "key"}, "columns": ["name"], "missing": "quarantine"}
    own = Counted(tmp_path, a_grid() | {"keys": ["name"], "steps": [{"lookup": lookup}]})
    own.land((1, "a", "x"), (2, "a", "x"), (3, "none", "y"), (60, "a", "z"))
    own.run()
    DeltaTable(tmp_path / "source").update(predicate="id = 'z'", updates={"t": "61"})
    own.run()
    found = latest(own.pipeline, DeltaTable(tmp_path / "sink").to_pyarrow_table().to_pylist())
    assert [(row["name"], row["window_end"], row["n"]) for row in found] == [("A", 10, 1)]


@pytest.mark.local
def test_rows_that_stay_in_quarantine_are_nobodys_first(tmp_path):
    """Of two rows that came too late, the range holds only the later one: it counts, as the other one counts nowhere."""
    own = Counted(tmp_path, a_grid())
    for rows in ([(1, "a", "y"), (100, "z", "z")], [(20, "a", "x"), (51, "b", "x")]):
        own.land(*rows)
        own.run()
    assert own.batches()[-1].counts.rows_quarantined == 2
    loop.restate(own.pipeline, quiet(), ends=(40, 70), late=True)
    assert own.rows == {("a", 10): 1, ("b", 60): 1}


@pytest.mark.local
def test_a_range_does_not_divide_intervals_that_reach_into_it(tmp_path):
    """A row that begins before the range is in its windows, too, however short these are."""
    spec = a_grid() | {"time": {"column": "t", "end": "until", "unit": "none", "disorder": 10, "lateness": 10}}
    own = Counted(tmp_path, spec)
    schema = pa.schema([("t", pa.int64()), ("until", pa.int64()), ("k", pa.string()), ("id", pa.string())])
    for rows in ([(3, 48, "a", "x")], [(2, 9, "b", "x"), (100, 101, "z", "z")]):
        write_deltalake(
            tmp_path / "source", pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema), mode="append"
        )
        own.run()
    with pytest.raises(UnsupportedError, match=r"rows with equal values of dedup\.by have times inside and outside of the range"):
        loop.restate(own.pipeline, quiet(), ends=(30, None))
