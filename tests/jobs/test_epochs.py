"""Numbers of seconds, milliseconds and microseconds since 1970 as instants: the rows that timestamps give, through every command."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
import yaml
from deltalake import DeltaTable

from tests.jobs.desk import Desk
from tests.specs import a_spec
from windowmill.jobs.cli import main
from windowmill.windowing.errors import SpecError
from windowmill.windowing.specfile import parse_pipeline

TICKS = {"s": 1_000_000, "ms": 1_000, "us": 1}
#: Around the night in which Vienna's clocks are set forward; minutes of commits, the last of which is late.
BEGIN = datetime(2024, 3, 30, 20, tzinfo=UTC)
COMMITS = ([0, 170, 190, 200], [1_400, 1_560, 1_580], [900, 3_100], [-9_000_000_000], [4_700, 4_720])
WINDOWS = [
    {"name": "daily", "type": "tumbling", "size": "1 day", "timezone": "Europe/Vienna"},
    {"name": "rolling", "type": "hopping", "size": "6 hours", "hop": "1 hour", "origin": "2024-01-01T00:30:00Z"},
    {"name": "visits", "type": "session", "gap": "30 minutes"},
    {"name": "pairs", "type": "sliding", "evict": {"time": "3 hours"}, "trigger": {"count": 2}},
    {"name": "counts", "type": "count", "count": 2},
]


pytestmark = pytest.mark.local


FIELDS: dict[str, Any] = {
    "keys": ["k"],
    "time": {"column": "t", "disorder": "1 hour", "lateness": "2 hours"},
    "windows": WINDOWS,
    "aggregates": {"n": {"count": "*"}, "total": {"sum": "v"}},
    "emit": "revise",
    "quarantine": {"warn": "never", "hold": "never"},
}


class Pipe(Desk):
    """A pipeline over a table whose times count ``unit``; null for timestamps."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str], unit: str | None) -> None:
        folder.mkdir()
        source = {"path": str(folder / "source"), "changes": "restate"}
        super().__init__(folder, capsys, **FIELDS | {"source": source, "time": FIELDS["time"] | ({"unit": unit} if unit else {})})
        self.unit = unit

    def land_at(self, minutes: Sequence[int]) -> None:
        at = pa.array([(BEGIN - datetime(1970, 1, 1, tzinfo=UTC) + timedelta(minutes=m)) // timedelta(microseconds=1) for m in minutes])
        times = at.cast(pa.timestamp("us", "UTC")) if self.unit is None else pc.divide(at, TICKS[self.unit])
        self.land(k=["ab"[m % 20 // 10] for m in minutes], t=times, v=pa.array([m % 7 for m in minutes], pa.int64()))

    def done(self, *arguments: str) -> None:
        assert self.call(*arguments)[0] == 0, arguments

    def rows(self) -> list[dict[str, Any]]:
        names = ["k", "window", "window_start", "window_end", "trigger", "revision", "n", "total", "retracted", "batch"]
        return sorted(DeltaTable(str(self.folder / "sink")).to_pyarrow_table().select(names).to_pylist(), key=repr)

    def quarantined(self) -> list[tuple[Any, ...]]:
        table = DeltaTable(str(self.folder / "sink.windowmill/quarantine")).to_pyarrow_table().to_pylist()
        return sorted((row["reason"], row["event_time"], row["batch"]) for row in table)


def test_every_command_gives_the_rows_of_timestamps(tmp_path, capsys):
    found = {}
    for unit in (None, *TICKS):
        pipe = Pipe(tmp_path / str(unit), capsys, unit)
        for number, commit in enumerate(COMMITS):
            pipe.land_at(commit)
            pipe.done("run")
            if number == 1:
                pipe.done("validate", "--source")
        pipe.done("backfill", "--from", "2024-03-31", "--to", "2024-04-01")
        DeltaTable(str(pipe.folder / "source")).update(predicate="v = 4", updates={"v": "v + 10"})
        pipe.done("run")
        pipe.done("restate", "--from", "2024-03-30", "--to", "2024-04-01T12:00:00Z")
        pipe.done("restate", "--late")
        pipe.write(windows=[*WINDOWS, {"name": "weekly", "type": "tumbling", "size": "7 days", "timezone": "Europe/Vienna"}])
        pipe.done("apply")
        pipe.done("run")
        status = pipe.told("status")
        found[unit] = pipe.rows(), pipe.quarantined(), {name: value for name, value in status.items() if name in ("seen", "emitted")}
    assert len(found[None][0]) > 30
    assert {row["window"] for row in found[None][0]} >= {window["name"] for window in WINDOWS}
    assert [reason for reason, *_ in found[None][1]] == ["time_out_of_range"]
    for unit in TICKS:
        assert found[unit] == found[None], unit


@pytest.mark.parametrize("engine", ["kernel", "reference"])
def test_try_takes_numbers_as_instants_where_lengths_have_units(tmp_path, capsys, engine):
    spec = tmp_path / "spec.yaml"
    spec.write_text(yaml.safe_dump(_spec({"name": "daily", "type": "tumbling", "size": "1 day", "timezone": "Europe/Vienna"}, unit="ms")))
    rows = tmp_path / "rows.jsonl"
    times = [1_711_839_599_999, 1_711_839_600_000, 1_711_922_399_999, 1_711_922_400_000, 1 << 62, -(1 << 62), None]
    rows.write_text("".join(json.dumps({"t": t}) + "\n" for t in times))
    assert main(["try", str(spec), "--input", str(rows), "--engine", engine]) == 0
    shown = capsys.readouterr()
    found = [json.loads(line) for line in shown.out.splitlines()]
    assert [(row["window_start"], row["n"], row["newest"]) for row in found] == [
        ("2024-03-29T23:00:00Z", 1, times[0]),
        ("2024-03-30T23:00:00Z", 2, times[2]),
        ("2024-03-31T22:00:00Z", 1, times[3]),
    ]
    assert [json.loads(line)["reason"] for line in shown.err.splitlines()] == ["time_out_of_range", "time_out_of_range", "null_time"]


def _spec(*windows: dict[str, Any], **time: Any) -> dict[str, Any]:
    return a_spec(time={"column": "t"} | time, windows=list(windows), aggregates={"n": {"count": "*"}, "newest": {"max": "t"}})


COUNT = {"name": "c", "type": "count", "count": 2}


@pytest.mark.parametrize(
    ("spec", "integers"),
    [
        (_spec(COUNT, unit="s"), True),
        (_spec(COUNT, unit="s", disorder=60), True),
        (_spec(COUNT, unit="s", max_future_skew="1 hour"), True),
        (_spec(COUNT, unit="s", disorder="1 minute"), False),
        (_spec(COUNT, unit="s", axis="instants"), False),
        (_spec({"name": "w", "type": "tumbling", "size": "1 month"}, unit="ms"), False),
        (_spec({"name": "w", "type": "tumbling", "size": 60}, unit="none"), True),
    ],
)
def test_lengths_say_whether_numbers_are_instants(spec, integers):
    pipeline = parse_pipeline(spec)
    assert pipeline.time.integer_axis is integers
    # What is stored of a spec says so, too, whatever windows it has.
    assert pipeline.meaning_as(pipeline.shown_meaning()).time == pipeline.time
    assert pipeline.meaning()["time"].get("axis") == (None if integers else "instants")


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        (_spec({"name": "w", "type": "tumbling", "size": "1 hour"}, unit="s", disorder=60), "time.disorder: got 60; expected a duration"),
        (_spec({"name": "w", "type": "tumbling", "size": 60, "timezone": "UTC"}, unit="s"), "windows.0.size: got 60; expected a duration"),
        (_spec({"name": "w", "type": "tumbling", "size": "1 hour"}, unit="none"), "expected a plain integer (time.unit is 'none')"),
        (_spec({"name": "w", "type": "tumbling", "size": "1 hour", "origin": 5}, unit="s"), "windows.0.origin: got 5; expected an instant"),
        (_spec(COUNT, axis="instants"), "axis: only numbers since 1970"),
        (_spec(COUNT, unit="none", axis="instants"), "axis: only numbers since 1970"),
    ],
)
def test_what_agrees_with_neither_is_refused(spec, told):
    with pytest.raises(SpecError) as refused:
        parse_pipeline(spec)
    assert told in str(refused.value)


def test_a_change_of_the_axis_is_another_pipeline(tmp_path, capsys):
    pipe = Pipe(tmp_path / "p", capsys, "s")
    pipe.land_at(COMMITS[0])
    pipe.done("run")
    counts = [{"name": "counts", "type": "count", "count": 2}]
    pipe.write(windows=counts, time={"column": "t", "unit": "s"})
    code, _, err = pipe.call("plan")
    assert (code, "time" in err) == (2, True)
    pipe.write(windows=counts, time=FIELDS["time"] | {"unit": "s", "axis": "instants"})
    assert pipe.call("plan")[0] == 4
