"""``windowmill state`` over state tables written without Spark."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
from collections import Counter
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
from tests.golden.test_golden import landed
from tests.jobs.batches import Run
from tests.specs import TENS, TICKS, a_spec
from windowmill.checkpoints.batches import Outcome
from windowmill.checkpoints.ledger import Ledger
from windowmill.checkpoints.places import Places
from windowmill.checkpoints.state.inspection import SlicesInspection, key_value
from windowmill.jobs.cli import main
from windowmill.jobs.commands.state import state_of, value_of
from windowmill.jobs.commands.summaries import bound
from windowmill.windowing.axis import to_us
from windowmill.windowing.columnar.objects import encode
from windowmill.windowing.errors import SpecChangedError, SpecError
from windowmill.windowing.reference import Record, evaluate
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


def sliced(pipeline: Pipeline, *batches: list[tuple[Any, ...]], level: int | None = None) -> None:
    """Write entries (key, site, slice, closed, rows, total) of each batch as Spark does; with ``level`` into a table that has nodes."""
    whole = [pa.field(name, pa.int64()) for name in ("site", "_slice", "_closed", "_batch", "rows")]
    sums = [pa.field("sum_float_v__sum", pa.float64())]
    schema = pa.schema([pa.field("k", pa.string()), *whole, *sums])
    for number, entries in enumerate(batches):
        rows = [(k, site, begin, closed, number, n, total) for k, site, begin, closed, n, total in entries]
        columns = zip(*rows, strict=True)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
        table = pa.table(arrays, schema=schema)
        if level is not None:
            table = table.append_column("_level", pa.repeat(pa.scalar(level, pa.int64()), table.num_rows))
        write_deltalake(Places.of(pipeline).state, table, mode="append")


def test_of_nodes_it_is_told_that_they_are_read_for_slices(tmp_path):
    pipeline = made(tmp_path)
    sliced(pipeline, [("a", 1, begin, None, 2, 1.0) for begin in (20, 30)], level=0)
    sliced(pipeline, [("a", 1, 20, None, 4, 2.0)], level=1)
    commit(pipeline, 40)
    answer = state_of(pipeline, ["site=1", "k=a"], 20)
    assert (answer.data["state"]["entries"], answer.data["state"]["entries_of_nodes"]) == (3, 1)
    assert answer.data["restored"] == {"slices": 2, "entries": 2, "rows": 4}
    assert "would restore 2 slices (2 entries) of 4 rows; nodes that hold the same are read in their place" in shown(answer)


def test_events_that_reach_into_windows_are_shown_beside_those_that_begin_in_them(tmp_path):
    pipeline = made(tmp_path, time={"column": "t", "end": "e", "unit": "none"})
    rows = [(10, 0, 1), (20, 0, 2), (20, 1, 1), (30, 1, 4), (30, 1, 3), (50, 1, 1)]
    starts, reaching, n = zip(*rows, strict=True)
    partials = {"_slice": starts, "_reaching": reaching, "_closed": pa.nulls(6, pa.int64()), "_batch": [0] * 6, "rows": n}
    table = pa.table({"k": ["a"] * 6, "site": [1] * 6} | partials | {"sum_float_v__sum": [float(rows) for rows in n]})
    write_deltalake(Places.of(pipeline).state, table)
    commit(pipeline, 40, schema=SOURCE.append(pa.field("e", pa.int64())))
    answer = state_of(pipeline, ["site=1", "k=a"], 20)
    assert answer.data["restored"] == {"slices": 1, "entries": 5, "rows": 2}
    entries = [(entry["slice"], entry["reaching"], entry["rows"]) for entry in answer.data["entries"]]
    assert entries == [(20, 0, 2), (20, 1, 1), (30, 1, 4), (30, 1, 3), (50, 1, 1)]
    found = [(w["window"], w["window_start"], w["slices"], w["rows_from_before"], w["rows"]) for w in answer.data["windows"]]
    assert found == [("rolling", 20, 1, 1, 3), ("rolling", 30, 0, 7, 7), ("tens", 50, 0, 1, 1), ("rolling", 50, 0, 1, 1)]
    assert "reaching" in shown(answer)


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
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_a_summary_tells_what_counts_and_what_does_not(slices):
    answer = state_of(slices, [], 2)
    state = answer.data["state"]
    # A window that ends after 40 begins at 20 or later.
    assert (state["kind"], state["next_batch"], state["emitted_through"], state["needed_from"]) == ("slices", 2, 40, 20)
    assert (state["keys"], state["entries"], state["files"]) == (3, 9, 3)
    assert (state["entries_needed"], state["entries_superseded"], state["entries_unfinished"]) == (6, 2, 1)
    assert (state["oldest_slice"], state["newest_slice"]) == (0, 60)
    files = Path(Places.of(slices).state).glob("*.parquet")
    assert state["bytes"] == sum(file.stat().st_size for file in files)
    assert state["largest_keys"] == [{"k": "a", "site": 1, "entries": 6}, {"k": "b", "site": 2, "entries": 1}]
    assert "keys with the most entries: 2 of 3" in shown(answer)


def test_a_key_tells_what_would_be_restored_for_which_windows(slices):
    answer = state_of(slices, ["site=1", "k=a"], 20)
    assert answer.data["restored"] == {"slices": 3, "entries": 4, "rows": 11}
    entries = [(entry["slice"], entry["closed"], entry["batch"], entry["rows"]) for entry in answer.data["entries"]]
    assert entries == [(20, None, 0, 2), (30, None, 0, 2), (30, 20, 1, 3), (50, None, 1, 4)]
    assert answer.data["entries"][2]["partials"] == {"sum_float_v__sum": "NaN"}
    windows = [(w["window"], w["window_start"], w["window_end"], w["slices"], w["rows"]) for w in answer.data["windows"]]
    #      20   30   40   50   60   70   80
    # a    [2)  [5)       [4)                    of which 40 is empty
    rolling = [("rolling", start, start + 30, n, rows) for start, n, rows in ((20, 2, 7), (30, 2, 9), (40, 1, 4), (50, 1, 4))]
    assert windows == [*rolling[:2], ("tens", 50, 60, 1, 4), *rolling[2:]]
    assert (answer.data["windows"][1]["first_slice"], answer.data["windows"][1]["last_slice"]) == (30, 50)
    assert "batch 2 would restore 3 slices (4 entries) of 11 rows\n" in shown(answer)


def test_windows_to_come_may_grow_or_follow_a_calendar(tmp_path):
    growing = {"name": "growing", "type": "cumulative", "size": 30, "step": 10}
    pipeline = made(tmp_path / "growing", windows=[growing])
    sliced(pipeline, [("a", 1, begin, None, 2, 1.0) for begin in (30, 40, 50, 70)])
    commit(pipeline, 40)
    answer = state_of(pipeline, ["site=1", "k=a"], 20)
    windows = [(w["window_start"], w["window_end"], w["slices"], w["rows"]) for w in answer.data["windows"]]
    assert windows == [(30, 50, 2, 4), (30, 60, 3, 6), (60, 80, 1, 2), (60, 90, 1, 2)]
    assert (answer.data["state"]["needed_from"], answer.data["windows_in_all"]) == (30, 4)

    days = {"name": "days", "type": "hopping", "size": "2 days", "hop": "1 day", "timezone": "America/New_York"}
    pipeline = made(tmp_path / "days", windows=[days], time={"column": "t"})
    march = [to_us(datetime(2024, 3, day, hour, tzinfo=UTC)) for day, hour in ((9, 5), (10, 5), (11, 4))]
    sliced(pipeline, [("a", 1, begin, None, 2, 1.0) for begin in march])
    commit(pipeline, march[1], schema=SOURCE.set(2, pa.field("t", pa.timestamp("us", "UTC"))))
    answer = state_of(pipeline, ["site=1", "k=a"], 20)
    # The clocks go forward on the 10th.
    windows = [(w["window_start"][5:13], w["window_end"][5:13], w["slices"]) for w in answer.data["windows"]]
    assert windows == [("03-09T05", "03-11T04", 2), ("03-10T05", "03-12T04", 2), ("03-11T04", "03-13T04", 1)]
    assert answer.data["state"]["needed_from"].startswith("2024-03-09T05:00:00")


def test_windows_to_come_of_slices_that_lie_centuries_apart(tmp_path):
    rolling = {"name": "rolling", "type": "hopping", "size": "1 day", "hop": "30 minutes", "timezone": "America/New_York"}
    pipeline = made(tmp_path, windows=[rolling], time={"column": "t"})
    far = [to_us(datetime(year, 1, 1, tzinfo=UTC)) for year in (2024, 2724, 9024)]
    sliced(pipeline, [("a", 1, begin, None, 1, 1.0) for begin in far])
    commit(pipeline, None, schema=SOURCE.set(2, pa.field("t", pa.timestamp("us", "UTC"))))
    answer = state_of(pipeline, ["site=1", "k=a"], 1)
    assert answer.data["windows_in_all"] == 3 * 48
    assert answer.data["windows"][0]["window_end"].startswith("2024-01-01T00:30:00")


def test_partials_are_told_whatever_keys_a_user_gives_them():
    told = {"a": 1, "7": 2, "['b', 1]": 3, "None": 4}
    assert value_of({"a": 1, 7: 2, ("b", 1): 3, None: 4}) == told


def test_lists_are_cut_and_say_so(slices):
    answer = state_of(slices, ["k=a", "site=1"], 2)
    assert [(w["window"], w["window_end"]) for w in answer.data["windows"]] == [("rolling", 50), ("rolling", 60)]
    assert answer.data["windows_in_all"] == 5
    assert [entry["slice"] for entry in answer.data["entries"]] == [30, 50]
    assert "hold them: 2 of 5, the next to end" in shown(answer)
    assert "entries: 2 of 4, the latest slices" in shown(answer)


def test_a_null_key_and_one_that_is_not_there(slices):
    assert state_of(slices, ["k", "site=1"], 9).data["restored"]["rows"] == 5
    nobody = state_of(slices, ["k=it's nobody", "site=1"], 9)
    assert (nobody.data["restored"]["rows"], nobody.data["windows"], nobody.data["entries"]) == (0, [], [])
    assert shown(nobody)


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
    data = state_of(pipeline, [], 9).data
    assert (data["state"]["keys"], data["key"], data["restored"]) == (1, {}, {"slices": 1, "entries": 1, "rows": 3})
    assert [(w["window"], w["window_end"]) for w in data["windows"]] == [("rolling", 20), ("tens", 20), ("rolling", 30), ("rolling", 40)]


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
    table = SlicesInspection(str(tmp_path), ["K y"], 1, ["rows"], None)
    for given, rows in ((text, 1), (None, 300)):
        _, _, found, _ = table.slices_of({"K y": key_value(given, kind, "K y")})
        assert found.tolist() == [rows]


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


def test_a_key_tells_its_open_sessions(sessions):
    assert state_of(sessions, [], 9).data["state"]["entries_unfinished"] == 1
    answer = state_of(sessions, ["k=a", "site=1"], 9)
    assert answer.data["restored"] == {"sessions": 2, "entries": 5, "rows": 6}
    windows = [(w["window"], w["window_start"], w["window_end"], w["batch"]) for w in answer.data["windows"]]
    assert windows == [("visits", 16, 27, 2), ("stays", 1, 52, 2)]
    assert answer.data["windows"][0]["partials"] == {"least_k__value": "a", "distinct_k": [["a"]]}
    assert "would restore 2 open sessions (5 entries) of 6 rows" in shown(answer)
    nobody = state_of(sessions, ["k=z", "site"], 9)
    assert nobody.data["restored"] == {"sessions": 0, "entries": 0, "rows": 0}
    assert shown(nobody)


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


def test_a_log_tells_its_live_rows_and_what_is_superseded(live):
    state = state_of(live, [], 9).data["state"]
    assert (state["kind"], state["next_batch"], state["keys"]) == ("live rows", 3, 2)
    # Of b 2 and 3, from which windows of three begin; its session is out. Of a 20, 21 and 22.
    assert (state["live_rows"], state["oldest_row"], state["newest_row"]) == (2 + 3, 2, 22)
    assert state["entries"] == state["entries_needed"] + state["entries_superseded"] + state["entries_unfinished"]
    assert state["entries_needed"] == 5 + 2
    assert state["entries_unfinished"] > 0


def test_a_key_of_a_log_tells_rows_windows_and_scalars(live):
    answer = state_of(live, ["k=a", "site=1"], 2)
    assert answer.data["restored"]["live_rows"] == 3
    assert [(row["time"], row["held_by"]) for row in answer.data["rows"]] == [(t, ["threes: rows", "visits: rows"]) for t in (21, 22)]
    windows = {window["window"]: window for window in answer.data["windows"]}
    assert windows["threes"]["holds"] == {"rows": {"rows": 3, "oldest": 20, "newest": 22}}
    assert windows["threes"]["scalars"]["begun"] == 4
    assert windows["visits"]["holds"] == {"rows": {"rows": 3, "oldest": 20, "newest": 22}}
    assert "live rows: 2 of 3, the latest to arrive" in shown(answer)
    nobody = state_of(live, ["k=z", "site=1"], 2)
    assert (nobody.data["restored"]["live_rows"], nobody.data["windows"]) == (0, [])
    assert shown(nobody)


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


class Case:
    """A pipeline of a released format with its tables, and the rows of the reference over all that has landed."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.golden = folder, Golden(Path(shutil.copytree(HERE / "format-5" / name, folder / "tables")))
        self.pipeline = Pipeline.model_validate(self.golden.spec())
        rows, commits = landed(self.golden.folder / "source")
        self.expected = evaluate(self.pipeline, list(map(Record, rows)), commits=commits).rows

    def of(self, window: str) -> list[dict[str, Any]]:
        """The rows of this window for the key that is true."""
        return [row for row in self.expected if row["window"] == window and row["flag"] is True]

    def printed(self, capsys: pytest.CaptureFixture[str]) -> str:
        spec = self.folder / "spec.yaml"
        spec.write_text(yaml.safe_dump(self.golden.spec()))
        assert main(["state", str(spec), "--key", "flag=true"]) == 0
        return " ".join(capsys.readouterr().out.split())


def test_open_sessions_are_shown_beside_slices(tmp_path, capsys):
    case = Case(tmp_path, "sessions")
    summary = state_of(case.pipeline, [], 5).data["state"]
    assert summary["kind"] == "slices and sessions"
    parts = ("needed", "superseded", "unfinished")
    assert sum(summary[f"{kind}_entries_{part}"] for kind in ("slices", "sessions") for part in parts) == summary["entries"] > 10
    # At the end of the input the open sessions are closed as they are.
    last = max(case.of("visits"), key=lambda row: row["window_end"])
    told = state_of(case.pipeline, ["flag=true"], 5).data["sessions"]
    shown = told["windows"][-1]
    assert (shown["rows"], shown["window_end"]) == (last["n"], bound(last["window_end"], True))
    gap = next(window.gap for window in case.pipeline.windows if window.name == "visits")
    assert shown["last_event"] == bound(last["window_end"] - gap.elapsed(), True)
    assert isinstance(shown["partials"]["distinct_label"], list)
    assert summary["sessions_entries_needed"] >= told["restored"]["sessions"] > 0
    assert "open sessions, ending so if no row joins them" in case.printed(capsys)


@pytest.mark.parametrize(("name", "window"), [("revised_visits", "visits"), ("cut_visits", "short")])
def test_open_windows_are_those_that_the_end_of_the_input_closes(tmp_path, name, window):
    case = Case(tmp_path, name)
    wanted = {bound(row["window_start"], True): row for row in sorted(case.of(window), key=lambda row: row["revision"])}
    told = [each for each in state_of(case.pipeline, ["flag=true"], 99).data["windows"] if each["window"] == window]
    rows = Counter[str]()
    for each in told:
        rows[each["window_start"]] += each["rows"]
        row = wanted[each["window_start"]]
        assert each["window_end"] == bound(row["window_end"], True)
        assert each.get("revision", 0) == row["revision"]
    assert rows == {start: row["n"] for start, row in wanted.items() if start in rows}
    # Of sessions that are cut, each of the latest instants is told by itself.
    assert (len(told) > len(rows)) == (name == "cut_visits")


def test_since_when_a_key_is_known_is_shown_beside_its_slices(tmp_path, capsys):
    case = Case(tmp_path, "empty")
    assert state_of(case.pipeline, [], 5).data["state"]["entries_of_spans"] == 6, "of three keys in two batches"
    found = state_of(case.pipeline, ["flag=true"], 5).data
    starts = sorted(row["window_start"] for row in case.of("slots"))
    assert [told["window"] for told in found["known"]] == ["slots", "gaps"]
    assert [found["known"][0][name] for name in ("first_slice", "last_slice")] == [bound(starts[0], True), bound(starts[-1], True)]
    assert all(not name.startswith("_") for entry in found["entries"] for name in entry["partials"])
    assert "known, so that empty windows between have rows: 2" in case.printed(capsys)


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
    assert answer.data["state"]["kind"] == "positions"
    scalars = answer.data["windows"][0]["scalars"]
    assert {name: scalars[name] for name in ("last", "ticked", "tick", "fired")} == {
        "last": "2024-01-01T02:00:00Z",
        "ticked": "2024-01-01T03:00:00Z",
        "tick": "2024-01-01T04:30:00Z",
        "fired": 2,
    }
    assert "2024-01-01T04:30:00Z" in shown(answer)
