"""``windowmill state`` over state tables written without Spark."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from deltalake import Schema, write_deltalake
from rich.console import Console

from tests.checkpoints.records import plan
from tests.golden.make import HERE, Golden
from tests.jobs.batches import Run
from tests.specs import TENS, TICKS, a_spec
from windowmill.checkpoints.batches import Outcome
from windowmill.checkpoints.ledger import Ledger
from windowmill.checkpoints.places import Places
from windowmill.checkpoints.state.compaction import NeededRows
from windowmill.checkpoints.state.inspection import Inspection, key_value
from windowmill.jobs.cli import main
from windowmill.jobs.commands.state import state_of, value_of
from windowmill.windowing.columnar.objects import encode
from windowmill.windowing.errors import SpecChangedError, SpecError
from windowmill.windowing.spec import Pipeline

NOW = datetime(2024, 1, 1, tzinfo=UTC)
SOURCE = pa.schema([("k", pa.string()), ("site", pa.int64()), ("t", pa.int64()), ("v", pa.float64())])


def spec_at(folder: Path, **changes: Any) -> dict[str, Any]:
    windows = [TENS | {"name": "tens"}, {"name": "rolling", "type": "hopping", "size": 30, "hop": 10}]
    aggregates = {"n": {"count": "*"}, "total": {"sum": "v"}}
    spec = a_spec(folder, pipeline="counts", keys=["k", "site"], time=TICKS, windows=windows, aggregates=aggregates)
    return spec | changes


def made(folder: Path, **changes: Any) -> Pipeline:
    return Pipeline.model_validate(spec_at(folder, **changes))


def commit(pipeline: Pipeline, emitted: int | None, *, schema: pa.Schema = SOURCE, done: bool = True) -> None:
    ledger = Ledger.open(pipeline)
    number = len(ledger.batches())
    planned = plan(number, meaning=pipeline.meaning_hash(), source_schema=Schema.from_arrow(schema).to_json())
    ledger.record(planned, Outcome(seen=emitted, emitted=emitted, verdict="passed" if done else "held"), {}, NOW)


def sliced(pipeline: Pipeline, *batches: list[tuple[Any, ...]]) -> None:
    """Write entries (key, site, slice, closed, rows, total) of each batch as Spark does."""
    whole = [pa.field(name, pa.int64()) for name in ("site", "_slice", "_closed", "_batch", "rows")]
    sums = [pa.field("sum_float_v__sum", pa.float64())]
    schema = pa.schema([pa.field("k", pa.string()), *whole, *sums])
    for number, entries in enumerate(batches):
        rows = [(k, site, begin, closed, number, n, total) for k, site, begin, closed, n, total in entries]
        columns = zip(*rows, strict=True)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
        write_deltalake(Places.of(pipeline).state, pa.table(arrays, schema=schema), mode="append")


@pytest.fixture
def slices(tmp_path) -> Pipeline:
    """Two batches that count, all windows out through 40; a third batch has died after it had written."""
    pipeline = made(tmp_path)
    first = [("a", 1, begin, None, 2, 1.0) for begin in (0, 10, 20, 30)] + [(None, 1, 30, None, 5, 1.0)]
    second = [("a", 1, 30, 20, 3, float("nan")), ("a", 1, 50, None, 4, 1.0), ("b", 2, 40, None, 1, 1.0)]
    sliced(pipeline, first, second, [("a", 1, 60, None, 100, 1.0)])
    commit(pipeline, 30)
    commit(pipeline, 40)
    commit(pipeline, None, done=False)
    return pipeline


def shown(answer: Any) -> str:
    console = Console(file=io.StringIO(), width=140)
    console.print(answer.text)
    return " ".join(console.file.getvalue().split())  # type: ignore[attr-defined]


def test_a_summary_counts_entries_and_those_that_are_needed(slices):
    answer = state_of(slices, [], 2)
    state = answer.data["state"]
    assert (state["next_batch"], state["emitted_through"], state["files"], state["entries"]) == (2, 40, 3, 9)
    assert state["bytes"] == sum(file.stat().st_size for file in Path(Places.of(slices).state).glob("*.parquet"))
    # A window that ends after 40 begins at 20 or later.
    summary = {"entries": 8, "entries_needed": 6, "keys": 3, "oldest": 20, "newest": 50}
    assert answer.data["layouts"] == {"slices": summary}
    assert "slices 8 6 3 20 50" in shown(answer)


def test_a_key_has_its_entries_and_whether_each_is_needed(slices):
    answer = state_of(slices, ["site=1", "k=a"], 4)
    assert answer.data["layouts"] == {"slices": {"entries": 6, "entries_needed": 4, "keys": 1, "oldest": 20, "newest": 50}}
    first = {"_slice": 10, "_batch": 0, "rows": 2, "sum_float_v__sum": 1.0}
    entries = state_of(slices, ["site=1", "k=a"], 5).data["entries"]["slices"]
    assert entries == [{"needed": False, "row": first}, *answer.data["entries"]["slices"]]
    late = {"_slice": 30, "_closed": 20, "_batch": 1, "rows": 3, "sum_float_v__sum": "NaN"}
    assert entries[3] == {"needed": True, "row": late}
    assert [(each["needed"], each["row"]["_slice"]) for each in entries[1:]] == [(True, start) for start in (20, 30, 30, 50)]
    text = shown(answer)
    assert text.startswith("k=a, site=1 ")
    assert "slices: 4 of 6 entries" in text
    assert "yes _slice=30, _closed=20, _batch=1, rows=3, sum_float_v__sum=NaN" in text


def test_partials_are_told_whatever_keys_a_user_gives_them():
    told = {"a": 1, "7": 2, "['b', 1]": 3, "None": 4}
    assert value_of({"a": 1, 7: 2, ("b", 1): 3, None: 4}) == told


def test_a_null_key_and_one_that_is_not_there(slices):
    [entry] = state_of(slices, ["k", "site=1"], 9).data["entries"]["slices"]
    assert entry["row"]["rows"] == 5
    nobody = state_of(slices, ["k=it's nobody", "site=1"], 9)
    none = {"entries": 0, "entries_needed": 0, "keys": 0, "oldest": None, "newest": None}
    assert (nobody.data["layouts"], nobody.data["entries"]) == ({"slices": none}, {"slices": []})
    assert "slices 0 0 0 – –" in shown(nobody)


@pytest.mark.parametrize("given", [["k=a"], ["k=a", "site=x"], ["k=a", "site=1", "site=2"], ["k=a", "side=1"]])
def test_a_key_is_a_value_for_each_key_column(slices, given):
    with pytest.raises(SpecError, match="--key"):
        state_of(slices, given, 9)


def test_without_keys_the_one_group_is_shown_with_the_summary(tmp_path):
    pipeline = made(tmp_path, keys=[])
    schema = pa.schema([(name, pa.int64()) for name in ("_slice", "_closed", "_batch", "rows")])
    rows = [{"_slice": 10, "_closed": None, "_batch": 0, "rows": 3}]
    write_deltalake(Places.of(pipeline).state, pa.Table.from_pylist(rows, schema=schema))
    commit(pipeline, None)
    answer = state_of(pipeline, [], 9)
    assert (answer.data["layouts"]["slices"]["keys"], answer.data["key"]) == (1, {})
    assert answer.data["entries"] == {"slices": [{"needed": True, "row": {"_slice": 10, "_batch": 0, "rows": 3}}]}
    assert "next batch 1 " in shown(answer)


def test_no_state_yet_and_another_spec(tmp_path, slices):
    assert state_of(made(tmp_path / "new"), [], 9).data == {"pipeline": "counts", "state": None}
    with pytest.raises(SpecChangedError):
        state_of(made(tmp_path, keys=["k"]), [], 9)


@pytest.mark.parametrize(
    ("kind", "text", "values"),
    [
        (pa.float32(), "0.1", [0.1, 0.2, None]),
        (pa.float64(), "nan", [float("nan"), 1.0, None]),
        (pa.float64(), "-0.0", [0.0, 1.0, None]),
        (pa.int16(), "7", [7, 8, None]),
        (pa.bool_(), "true", [True, False, None]),
        (pa.date32(), "2024-03-01", [date(2024, 3, 1), date(2024, 3, 2), None]),
        (pa.decimal128(9, 2), "1.50", [Decimal("1.50"), Decimal("1.51"), None]),
        (pa.timestamp("us", "UTC"), "2024-01-01T01:00:00+01:00", [NOW, datetime(2024, 1, 2, tzinfo=UTC), None]),
        (pa.timestamp("us"), "2024-01-01", [datetime(2024, 1, 1), datetime(2024, 1, 2), None]),  # noqa: DTZ001 - the type has no zone
        (pa.binary(), "x", [b"x", b"\x00", None]),
        (pa.string(), "it's", ["it's", "", None]),
    ],
    ids=str,
)
def test_keys_of_every_type_are_found(tmp_path, kind, text, values):
    columns = {"K y": pa.array(values, kind), **{name: pa.array([0, 0, 0]) for name in ("_slice", "_closed", "_batch", "rows")}}
    write_deltalake(str(tmp_path), pa.table(columns | {"rows": pa.array([1, 20, 300])}))
    table = Inspection(str(tmp_path), NeededRows(["K y"], 1, ["slices"]))
    for given, wanted in ((text, 1), (None, 300)):
        [(layout, rows)] = table.rows({"K y": key_value(given, kind, "K y")})
        assert (layout, rows.column("rows").to_pylist()) == ("slices", [wanted])


@pytest.fixture
def sessions(tmp_path) -> Pipeline:
    """Three batches of sessions of two gaps, all windows out through 20; a fourth batch has died after it had written."""
    gaps = [{"name": "visits", "type": "session", "gap": 5}, {"name": "stays", "type": "session", "gap": 30}]
    aggregates = {"low": {"min": "k"}, "kinds": {"count_distinct": "k"}}
    pipeline = made(tmp_path, windows=gaps, aggregates=aggregates)
    entries = [
        [("a", 5, 1, 4), ("a", 30, 1, 4), ("b", 30, 3, 3)],
        [("a", 5, 20, 20), ("a", 30, 1, 20)],
        [("a", 5, 16, 22), ("a", 30, 1, 22)],
        [("a", 5, 16, 26)],
    ]
    for batch, rows in enumerate(entries):
        columns = {"k": [row[0] for row in rows], "site": [1] * len(rows)}
        columns |= {name: [row[place] for row in rows] for place, name in ((1, "_gap"), (2, "_first"), (3, "_last"))}
        columns |= {"_batch": [batch] * len(rows), "rows": [batch + 1] * len(rows), "least_k__value": columns["k"]}
        columns |= {"distinct_k": [encode(({"a"},), "count_distinct")] * len(rows)}
        write_deltalake(Places.of(pipeline).state, pa.table(columns), mode="append")
        commit(pipeline, 20, done=batch < 3)
    return pipeline


def test_open_sessions_of_a_key_are_needed(sessions):
    answer = state_of(sessions, ["k=a", "site=1"], 9)
    assert answer.data["layouts"] == {"sessions": {"entries": 6, "entries_needed": 5, "keys": 1, "oldest": 1, "newest": 22}}
    found = answer.data["entries"]["sessions"]
    entries = [(each["needed"], *(each["row"][name] for name in ("_gap", "_first", "_last"))) for each in found]
    assert entries == [(False, 5, 1, 4), (True, 30, 1, 4), (True, 30, 1, 20), (True, 30, 1, 22), (True, 5, 16, 22), (True, 5, 20, 20)]
    latest = found[3]["row"]
    assert (latest["_batch"], latest["rows"], latest["least_k__value"], latest["distinct_k"]) == (2, 3, "a", [["a"]])
    assert "yes _gap=30, _first=1, _last=22, _batch=2, rows=3, least_k__value=a, distinct_k=[['a']]" in shown(answer)


WINDOWS = [{"name": "threes", "type": "count", "count": 3}, {"name": "visits", "type": "session", "gap": 5}]


@pytest.fixture
def live(tmp_path) -> Pipeline:
    """Three batches of two keys by live rows; a fourth has died after it had written."""
    # Sessions of interval events keep rows.
    pipeline = made(tmp_path, windows=WINDOWS, time={"column": "t", "end": "t", "unit": "none"})
    run, number = Run(pipeline, Places.of(pipeline).state, source=SOURCE), 0
    for batch, times in enumerate([[1, 2, 3], [4, 20], [21, 22], [23]]):
        rows = [{"k": k, "site": 1, "t": t, "v": float(t)} for t in times for k in ("a", "b")[: 1 + (batch == 0)]]
        run.step(rows, number)
        number += len(rows)
        commit(pipeline, times[-1], done=batch < 3)
    return pipeline


def test_of_a_log_the_last_entries_of_keys_and_live_rows_are_needed(live):
    state = state_of(live, [], 9).data["layouts"]["live rows"]
    # Of b 2 and 3, from which windows of three begin; its session is out. Of a 20, 21 and 22. Each key has an entry of its own.
    assert (state["keys"], state["entries_needed"], state["oldest"], state["newest"]) == (2, 2 + 3 + 2, 2, 22)
    assert state["entries_needed"] < state["entries"]


def test_a_key_of_a_log_has_its_live_rows_and_the_scalars_of_its_windows(live):
    answer = state_of(live, ["k=a", "site=1"], 4)
    *rows, key = answer.data["entries"]["live rows"]
    assert [each["row"]["_time"] for each in rows] == [20, 21, 22]
    assert all(each["needed"] and each["row"]["_threes__rows"] for each in rows)
    assert (key["needed"], key["row"]["_kind"], key["row"]["_threes__begun"]) == (True, "key", 4)
    assert "_time=22" in shown(answer)
    assert state_of(live, ["k=z", "site=1"], 2).data["entries"] == {"live rows": []}


def test_the_command_prints_text_and_json_and_ends(tmp_path, slices):
    path = tmp_path / "spec.yaml"
    path.write_text(yaml.safe_dump(spec_at(tmp_path)))
    done = subprocess.run(
        [sys.executable, "-m", "windowmill.jobs.cli", "state", str(path), "--key", "k=a", "--key", "site=1", "--json"],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["key"] == {"k": "a", "site": 1}
    assert main(["state", str(path), "--key", "k=a"]) == 2
    assert main(["state", str(path)]) == 0


def of_golden(folder: Path, name: str) -> Pipeline:
    """The pipeline of a released format, with a copy of its tables."""
    return Pipeline.model_validate(Golden(Path(shutil.copytree(HERE / "format-5" / name, folder / "tables"))).spec())


def test_each_layout_has_its_entries(tmp_path):
    answer = state_of(of_golden(tmp_path, "mixed"), [], 5).data
    assert answer["layouts"].keys() == {"slices", "sessions", "positions", "live rows"}
    assert sum(each["entries"] for each in answer["layouts"].values()) == answer["state"]["entries"]
    assert all(0 < each["entries_needed"] < each["entries"] for each in answer["layouts"].values())


def test_objects_are_decoded_and_instants_are_texts(tmp_path):
    answer = state_of(of_golden(tmp_path, "sessions"), ["flag=true"], 5).data
    last = answer["entries"]["sessions"][-1]["row"]
    assert last["_last"] == answer["layouts"]["sessions"]["newest"] == "2024-03-01T06:42:24Z"
    assert last["distinct_label"] == [["", "x", "y"], False]
    assert {"flag", "_bucket", "_sum"}.isdisjoint(last)


def test_of_the_spans_of_a_key_the_latest_are_needed(tmp_path):
    entries = state_of(of_golden(tmp_path, "empty"), ["flag=true"], 99).data["entries"]["slices"]
    spans = [each for each in entries if "_slots__first" in each["row"]]
    assert [(each["needed"], each["row"]["_batch"]) for each in spans] == [(False, 0), (True, 1)]
    assert spans[1]["row"]["_slots__last"] == "2024-03-01T06:42:00Z"


def test_times_of_policies_are_instants(tmp_path, monkeypatch):
    monkeypatch.setenv("WINDOWMILL_COMPUTE", "local")
    hours = [datetime(2024, 1, 1, hour, tzinfo=UTC) for hour in (1, 2, 3)]
    window = {"name": "w", "type": "sliding", "evict": {"count": 2}, "trigger": {"time": "90 minutes"}}
    spec = spec_at(tmp_path, windows=[window], time={"column": "t"})
    del spec["aggregates"]["total"]
    write_deltalake(spec["source"]["path"], pa.table({"k": ["a"] * 3, "site": [1] * 3, "t": hours}))
    path = tmp_path / "spec.yaml"
    path.write_text(yaml.safe_dump(spec, sort_keys=False))
    assert main(["run", str(path)]) == 0
    answer = state_of(Pipeline.model_validate(spec), ["k=a", "site=1"], 9)
    *nodes, key, waiting = (each["row"] for each in answer.data["entries"]["positions"])
    scalars = [key[f"_w__{name}"] for name in ("last", "ticked", "tick", "fired")]
    assert scalars == ["2024-01-01T02:00:00Z", "2024-01-01T03:00:00Z", "2024-01-01T04:30:00Z", 2]
    assert [node["_first"] for node in nodes if node["_node_level"] == 0] == ["2024-01-01T01:00:00Z", "2024-01-01T02:00:00Z"]
    assert (waiting["_kind"], waiting["_time"]) == ("row", "2024-01-01T03:00:00Z")
    assert "_w__tick=2024-01-01T04:30:00Z" in shown(answer)
