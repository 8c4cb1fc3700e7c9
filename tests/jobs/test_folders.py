"""Folders of files as sources: each file once, in the order in which it was first seen, whatever its clock says and wherever a run dies."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from deltalake import DeltaTable

from tests.matrices import crossed
from windowmill.checkpoints.failpoints import InjectedError, arm, disarm
from windowmill.checkpoints.source_files import SeenFiles
from windowmill.jobs.cli import main
from windowmill.jobs.runnables import runnable_of
from windowmill.jobs.sources.base import open_source
from windowmill.jobs.sources.options import declared, name_pattern
from windowmill.jobs.sources.reading import VersionRange, reading_of
from windowmill.jobs.sources.text_values import parsed
from windowmill.jobs.sources.unread import SourceWatch
from windowmill.windowing.errors import FencedError, LedgerCorruptError
from windowmill.windowing.specfile import parse_pipeline

FORMATS = ("parquet", "csv", "json")
NAMES = ("k", "t", "v")
Row = tuple[str, int, float | None]


def written(path: Path, rows: Iterable[Row], mtime: int | None = None) -> None:
    """Write a file in the format that its suffix names: columns ``NAMES``, instants in minutes of a day."""
    cells = [(k, f"2024-01-01 {t // 60:02}:{t % 60:02}:00", v) for k, t, v in rows]
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        frame = pd.DataFrame(cells, columns=list(NAMES))
        frame.assign(t=pd.to_datetime(frame["t"]), v=frame["v"].astype(float)).to_parquet(path, index=False)  # nanoseconds, without a zone
    elif path.suffix == ".csv":
        path.write_text("".join(",".join("" if cell is None else str(cell) for cell in row) + "\n" for row in [NAMES, *cells]))
    else:
        path.write_text("".join(json.dumps(dict(zip(NAMES, row, strict=True))) + "\n" for row in cells))
    if mtime is not None:
        os.utime(path, (mtime, mtime))


class Pipe:
    """A pipeline over a folder, and what its runs tell."""

    def __init__(self, folder: Path, format_: str, **changes: Any) -> None:
        self.inputs, self.format, self.path = folder / "in", format_, folder / "spec.yaml"
        self.inputs.mkdir(parents=True)
        self.spec: dict[str, Any] = {
            "pipeline": "visits",
            "source": {"path": str(self.inputs), "format": format_, **({"options": {"header": True}} if format_ == "csv" else {})},
            "keys": ["k"],
            "time": {"column": "t"},
            "windows": [{"name": "hourly", "type": "tumbling", "size": "1 hour"}],
            "aggregates": {"n": {"count": "*"}, "total": {"sum": "v"}},
            "sink": {"path": str(folder / "out")},
            "quarantine": {"warn": "100 %", "hold": "100 %"},
        } | changes
        self.write()

    def write(self, **source: Any) -> None:
        self.spec = self.spec | {"source": self.spec["source"] | source}
        self.path.write_text(yaml.safe_dump(self.spec))

    def land(self, name: str, *rows: Row, mtime: int | None = None) -> Path:
        path = self.inputs / f"{name}.{self.format}"
        written(path, rows, mtime)
        return path

    def run(self, capsys: pytest.CaptureFixture[str]) -> list[int]:
        """Rows read by each batch of a run."""
        code = main(["run", str(self.path), "--json"])
        told = capsys.readouterr()
        assert code == 0, told.err
        return [batch["rows_read"] for batch in json.loads(told.out)["batches"]]

    def told(self, capsys: pytest.CaptureFixture[str], command: str, *options: str, code: int = 0) -> str:
        """What a command that ends with ``code`` says, or its error."""
        capsys.readouterr()
        assert main([command, str(self.path), *options]) == code
        out, err = capsys.readouterr()
        return err if code else out

    def results(self) -> dict[tuple[Any, str], tuple[int, float | None]]:
        rows = DeltaTable(self.spec["sink"]["path"]).to_pyarrow_table().to_pylist()
        return {(row["k"], row["window_end"].strftime("%H")): (row["n"], row["total"]) for row in rows}


pytestmark = pytest.mark.local


@pytest.fixture(params=FORMATS)
def pipe(request, tmp_path) -> Pipe:
    return Pipe(tmp_path, request.param)


def test_each_run_reads_each_new_file_once_whatever_its_clock_says(pipe, capsys):
    pipe.land("b", ("a", 10, 1), ("a", 70, 2), mtime=2_000)
    pipe.land("a", ("a", 130, 3), mtime=3_000)
    pipe.told(capsys, "validate", "--source")
    assert [pipe.run(capsys), pipe.run(capsys)] == [[3], []]
    pipe.land("0", ("a", 140, 4), mtime=1)
    pipe.land("deep/in/folders", ("b", 250, 5), mtime=5)
    assert (json.loads(pipe.told(capsys, "status", "--json"))["versions_waiting"], pipe.run(capsys)) == (2, [2])
    assert pipe.run(capsys) == []
    assert pipe.results() == {("a", "01"): (1, 1.0), ("a", "02"): (1, 2.0), ("a", "03"): (2, 7.0)}


@pytest.mark.parametrize(
    ("glob", "fitting"),
    [
        ("*.csv", "a.csv b^c.csv {x}.csv"),
        ("*.{csv,csv.gz}", "a.csv b^c.csv d.csv.gz {x}.csv"),
        ("[^ab{]*", "d.csv.gz x-1.txt"),
        ("[!ab{]*", "d.csv.gz x-1.txt"),
        ("[a-b]*", "a.csv b^c.csv"),
        ("b[\\^]?.csv", "b^c.csv"),
        ("\\{x}.csv", "{x}.csv"),
        ("?.csv", "a.csv"),
        ("{a,{x-1,d}.{txt,csv.gz}}*", "a.csv d.csv.gz x-1.txt"),
        ("", ""),
    ],
)
def test_names_fit_a_pattern_as_spark_takes_it(glob, fitting):
    names = ["a.csv", "b^c.csv", "d.csv.gz", "x-1.txt", "{x}.csv"]
    assert [name for name in names if name_pattern(glob).fullmatch(name)] == fitting.split()


@pytest.mark.parametrize("glob", ["[a-c.csv", "*.{csv,txt", "[]", "[c-a]*", None])
def test_no_pattern_of_names_and_no_restatement_of_changes_is_refused(tmp_path, capsys, glob):
    pipe = Pipe(tmp_path, "json")
    pipe.write(**({"changes": "restate"} if glob is None else {"options": {"pathGlobFilter": glob}}))
    told = f"options.pathGlobFilter: got {glob!r}; expected a pattern of names"
    told = "changes: got 'restate', but only a Delta table says which rows have changed" if glob is None else told
    for command in ("validate", "run"):
        assert f"source.{told}" in pipe.told(capsys, command, code=2)


def test_files_are_versions_in_the_order_in_which_they_were_first_seen(pipe, capsys):
    pipe.land("late", ("a", 60, 1), mtime=20)
    pipe.land("early", ("a", 0, 1), mtime=10)
    pipe.land("also_early", ("a", 1, 1), mtime=10)
    assert pipe.run(capsys) == [3]
    pipe.land("again", ("a", 120, 1), mtime=5)
    pipeline = parse_pipeline(pipe.spec)
    source, runnable = open_source(pipeline), runnable_of(pipeline)
    files = reading_of(runnable, source, VersionRange(-1, source.version)).files
    assert [file.path.partition(".")[0] for file in files] == ["also_early", "early", "late", "again"]
    assert [file.rows for file in files] == [1] * 4


@pytest.mark.parametrize("name", ["_a", ".a", "_temporary/0/a", ".hidden/a", "a{}.tmp", ".a{}.crc", "a{}._COPYING_"])
def test_files_that_are_being_written_are_not_read(pipe, capsys, name):
    pipe.land("a", ("a", 10, 1))
    path = pipe.land("x", ("a", 20, 1))
    target = pipe.inputs / (name.format(f".{pipe.format}") if "{}" in name else f"{name}.{pipe.format}")
    target.parent.mkdir(parents=True, exist_ok=True)
    path.rename(target)
    (pipe.inputs / f"empty.{pipe.format}").touch()
    assert pipe.run(capsys) == [1]
    target.rename(path)
    assert pipe.run(capsys) == [1]


def test_links_are_not_followed(tmp_path, capsys):
    pipe = Pipe(tmp_path, "json")
    path = pipe.land("a/x", ("a", 10, 1))
    (pipe.inputs / "loop").symlink_to(".")
    (pipe.inputs / "a" / "again.json").symlink_to("x.json")
    (pipe.inputs / "_hidden").symlink_to("/etc")
    os.mkfifo(pipe.inputs / "fifo.json")
    assert pipe.run(capsys) == [1]
    for name, target in (("out.json", "/etc/shadow"), ("others", "/etc"), ("gone.json", "/no/such/file")):
        (pipe.inputs / name).symlink_to(target)
        assert f"{name!r} is a link that leads out of the folder; put the file itself there" in pipe.told(capsys, "run", code=2)
        (pipe.inputs / name).unlink()
    # The folder itself may be one.
    (tmp_path / "link").symlink_to(pipe.inputs)
    pipe.write(path=str(tmp_path / "link"))
    assert main(["validate", str(pipe.path), "--source"]) == 0
    assert path.exists()


@pytest.mark.parametrize("name", [b"a\nb.json", b"\xff.json", b"a\x1b[31m.json", "a\u2028.json".encode()])
def test_a_name_that_cannot_be_written_in_a_line_is_told(tmp_path, capsys, name):
    pipe = Pipe(tmp_path, "json")
    path = pipe.land("a", ("a", 10, 1))
    path.rename(pipe.inputs / os.fsdecode(name))
    told = pipe.told(capsys, "run", code=2)
    assert told.count("\n") == 1
    assert "is not UTF-8, or has characters that end a line or control a terminal; rename it" in told


def test_one_file_a_batch_gives_what_one_batch_gives(tmp_path, capsys):
    rows = [("a", 10, 1), ("b", 70, 2), ("a", 20, 3), ("a", 200, 4), ("b", 150, 5), ("a", 400, 6)]
    found = []
    for limit in (1, 100):
        pipe = Pipe(tmp_path / str(limit), "json")
        pipe.write(options={"maxFilesPerTrigger": limit})
        for number, row in enumerate(rows):
            pipe.land(str(number), row, mtime=number)
        assert pipe.run(capsys) == ([1] * len(rows) if limit == 1 else [len(rows)])
        found.append(pipe.results())
        assert json.loads(pipe.told(capsys, "status", "--json"))["rows_quarantined"] == 2
    assert found[0] == found[1]


@pytest.mark.parametrize("what", ["changed", "removed"])
def test_a_file_that_was_read_and_has_changed_is_refused_or_ignored_with_its_rows(pipe, capsys, what):
    path = pipe.land("a", ("a", 10, 1), ("a", 20, 2), mtime=1_000)
    assert pipe.run(capsys) == [2]
    before = path.read_bytes()
    if what == "changed":
        pipe.land("a", ("a", 10, 7), ("a", 70, 2))
    else:
        path.unlink()
    told = f"version 1 (a.{pipe.format}: {what}) changed or removed rows; take that as a correction by `windowmill restate SPEC --file "
    assert told in pipe.told(capsys, "run", code=2)
    changed = path.read_bytes() if path.exists() else None
    path.write_bytes(before)
    os.utime(path, (1_000, 1_000))
    assert pipe.run(capsys) == [], "as it was"
    path.unlink()
    if changed is not None:
        path.write_bytes(changed)
    pipe.write(changes="ignore")
    pipe.land("b", ("a", 130, 3))
    assert [pipe.run(capsys), pipe.run(capsys)] == [[1], []]
    assert json.loads(pipe.told(capsys, "status", "--json"))["rows_ignored"] == 2
    assert pipe.results() == {("a", "01"): (2, 3.0)}


@pytest.mark.parametrize(("then", "changes"), crossed(["removed", "corrected", "removed, later back"], ["refuse", "ignore"]))
def test_a_file_of_an_abandoned_batch_is_forgotten(pipe, capsys, then, changes):
    pipe.spec["expectations"] = [{"type": "expect_column_values_to_be_between", "column": "total", "max_value": 100}]
    pipe.write(changes=changes)
    expected = {}
    if then != "corrected":
        # Before any batch counts, too, with columns of other types than those of later files.
        pipe.land("first", ("a", 0, 101), ("a", 60, 0.5), mtime=500)
        assert [main([command, str(pipe.path)]) for command in ("run", "abandon")] == [3, 0]
        (pipe.inputs / f"first.{pipe.format}").unlink()
    pipe.land("a", ("a", 10, 1), ("a", 70, 2), mtime=1_000)
    capsys.readouterr()
    assert sum(pipe.run(capsys)) == 2
    expected["a", "01"] = (1, 1)
    wrong = pipe.land("wrong", ("a", 80, 1_000), ("a", 130, 3), mtime=2_000)
    pipe.land("right", ("a", 90, 4), mtime=3_000)
    assert [main([command, str(pipe.path)]) for command in ("run", "abandon")] == [3, 0]
    wrong.unlink()
    if then != "corrected":
        pipe.told(capsys, "status")
        assert (sum(pipe.run(capsys)), pipe.results()) == (1, expected)
    if then != "removed":
        pipe.land("wrong", ("a", 80, 10), ("a", 130, 3), mtime=2_500)
        capsys.readouterr()
        assert sum(pipe.run(capsys)) == (3 if then == "corrected" else 2)
        expected["a", "02"] = (3, 16)
    assert (pipe.run(capsys), pipe.results()) == ([], expected)
    # What no batch has counted is not part of the history either.
    pipe.told(capsys, "backfill", "--from", "2024-01-01", "--to", "2024-01-01T02:00:00Z")
    assert pipe.results() == expected


def newest(pipe: Pipe) -> dict[tuple[Any, str], tuple[int, float | None, int]]:
    """Of each window that is not retracted the row of greatest revision, with that."""
    rows = DeltaTable(pipe.spec["sink"]["path"]).to_pyarrow_table().sort_by("revision").to_pylist()
    latest = {(row["k"], row["window_end"].strftime("%H")): row for row in rows}
    return {place: (row["n"], row["total"], row["revision"]) for place, row in latest.items() if not row.get("retracted")}


@pytest.mark.parametrize("changes", ["refuse", "ignore"])
def test_a_file_that_is_delivered_again_or_taken_away_is_a_correction(pipe, capsys, changes):
    pipe.write(changes=changes)
    for number, rows in enumerate([[("a", 10, 1), ("b", 20, 2)], [("a", 70, 3), ("a", 15, 9)], [("a", 130, 4), ("b", 200, 5)]]):
        pipe.land(f"day={number}/x", *rows, mtime=1_000 + number)
        assert pipe.run(capsys) == [2]
    assert newest(pipe) == {("a", "01"): (2, 10, 0), ("b", "01"): (1, 2, 0), ("a", "02"): (1, 3, 0), ("a", "03"): (1, 4, 0)}
    first, second, third = (f"day={number}/x.{pipe.format}" for number in range(3))
    told = pipe.told(capsys, "restate", "--file", first, code=2)
    assert f"--file: {first!r} of {pipe.inputs} is as batches have read it; nothing of it is to be restated" in told
    assert "no batch has read a file 'x'" in pipe.told(capsys, "restate", "--file", "x", code=2)
    # Another key and another hour than those that were counted.
    pipe.land("day=0/x", ("a", 10, 7), ("c", 75, 6), ("a", 16, 1), mtime=5_000)
    if changes == "ignore":
        pipe.run(capsys)
    assert "3 windows changed (1 retracted)" in pipe.told(capsys, "restate", "--file", f"{pipe.inputs}/{first}")
    assert newest(pipe) == {("a", "01"): (3, 17, 1), ("c", "02"): (1, 6, 0), ("a", "02"): (1, 3, 0), ("a", "03"): (1, 4, 0)}
    assert pipe.run(capsys) == []
    # Both at once, one of them gone; new files are read afterwards.
    (pipe.inputs / second).unlink()
    pipe.land("day=2/x", ("b", 200, 50), mtime=6_000)
    pipe.land("day=3/x", ("b", 310, 8), mtime=7_000)
    pipe.told(capsys, "restate", "--file", second, "--file", third)
    assert (newest(pipe), pipe.run(capsys)) == ({("a", "01"): (2, 8, 2), ("c", "02"): (1, 6, 0)}, [1])
    assert newest(pipe) == {("a", "01"): (2, 8, 2), ("c", "02"): (1, 6, 0), ("b", "04"): (1, 50, 0)}
    history = json.loads(pipe.told(capsys, "history", "--json"))
    assert [batch["action"] for batch in history].count("restate") == 2
    pipe.land("day=0/x", ("a", 10, 7), mtime=8_000)
    if changes == "refuse":
        assert f"`windowmill restate SPEC --file {first}`" in pipe.told(capsys, "run", code=2)


@pytest.mark.parametrize("format_", ["csv", "json", "parquet"])
def test_rows_that_cannot_be_read_of_a_file_that_is_delivered_again_are_quarantined_as_by_a_run(tmp_path, capsys, format_):
    """Each once, however often windows are restated, and with the reason and texts of a run over the same file."""
    times = ["2024-01-01T00:10:00Z", "soon", "2024-01-01T00:20:00Z", "2024-01-01T00:30:00Z"]
    good = [(time, "a", 1) for time in ("2024-01-01T00:10:00Z", "2024-01-01T01:10:00Z")]
    rows = list(zip(times, "aaaa", (1, 2, "x", 4), strict=True))
    if format_ == "csv":
        again, good = (_csv([("t", "k", "v"), *each]) for each in ([*rows, ("2024-01-01T00:40:00Z", "\xff", 5)], good))
    elif format_ == "json":
        again, good = ("\n".join(json.dumps(dict(zip("tkv", row, strict=True))) for row in each).encode() for each in (rows, good))
        again += b"\noops"
    else:
        again, good = (_parquet(values) for values in ([1.0, 2.5, None, 4.0], [1.0, 1.0]))
    found = []
    for name in ("fresh", "again"):
        pipe = Pipe(tmp_path / name, format_)
        pipe.write(options={"schema": "t TIMESTAMP, k STRING, v BIGINT"} | ({"header": True} if format_ == "csv" else {}))
        path = pipe.inputs / f"0.{format_}"
        if name == "again":
            path.write_bytes(good)
            assert sum(pipe.run(capsys)) == 2
        path.write_bytes(again)
        if name == "again":
            pipe.told(capsys, "restate", "--file", path.name)
            pipe.told(capsys, "restate", "--from", "2024-01-01T00:00", "--to", "2024-01-02T00:00")
        else:
            pipe.run(capsys)
        refused = DeltaTable(f"{pipe.spec['sink']['path']}.windowmill/quarantine").to_pyarrow_table().to_pylist()
        found.append(sorted((row["reason"], row["detail"].rpartition("/")[2], row["row"]) for row in refused))
    assert len(found[0]) == (1 if format_ == "parquet" else 3)
    assert found[0] == found[1]
    assert newest(pipe) == {("a", "01"): (1, 1, 0) if format_ == "parquet" else (2, 5, 1)}


def _csv(rows: list[tuple[Any, ...]]) -> bytes:
    return "\n".join(",".join(map(str, row)) for row in rows).encode("latin-1")


def _parquet(values: list[float | None]) -> bytes:
    times = pa.array([datetime(2024, 1, 1, number, 10, tzinfo=UTC) for number in range(len(values))], pa.timestamp("us", "UTC"))
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"t": times, "k": ["a"] * len(values), "v": pa.array(values, pa.float64())}), sink)
    return bytes(sink.getvalue())


def test_late_rows_of_a_folder_count_after_a_restatement(pipe, capsys):
    pipe.land("a", ("a", 130, 1), ("a", 10, 5))
    pipe.land("b", ("a", 20, 1), mtime=4_000_000_000)
    assert (sum(pipe.run(capsys)), newest(pipe)) == (3, {("a", "01"): (1, 5, 0)})
    pipe.told(capsys, "restate", "--late")
    assert newest(pipe) == {("a", "01"): (2, 6, 1)}
    assert not DeltaTable(f"{pipe.spec['sink']['path']}.windowmill/quarantine").to_pyarrow_table().num_rows
    assert "takes up changed versions of a Delta table only" in pipe.told(capsys, "restate", "--versions", "0", code=2)
    assert pipe.run(capsys) == [], "nothing is left open"


def test_a_refusal_names_all_files_that_one_correction_takes(pipe, capsys):
    for number in range(7):
        pipe.land(str(number), ("a", 60 * number, 1), mtime=1_000 + number)
    assert sum(pipe.run(capsys)) == 7
    for number in (1, 2):
        pipe.land(str(number), ("a", 60 * number, 5), mtime=2_000 + number)
    assert main(["run", str(pipe.path)]) == 2
    named = [f"{number}.{pipe.format}" for number in (1, 2)]
    assert f"by `windowmill restate SPEC --file {named[0]} --file {named[1]}`, put" in capsys.readouterr().err
    told = pipe.told(capsys, "restate", "--file", named[1], "--from", "2024-01-01T01:00", "--to", "2024-01-01T03:00", code=2)
    assert "which takes several files at once: name each that has changed or gone" in told
    pipe.told(capsys, "restate", "--file", named[0], "--file", named[1])
    assert (pipe.run(capsys), [newest(pipe)["a", hour][1] for hour in ("01", "02", "03")]) == ([], [1, 5, 5])
    for number in range(6):
        pipe.land(str(number), ("a", 60 * number, 9), mtime=3_000 + number)
    assert f"--file 4.{pipe.format} …`, put the file back" in pipe.told(capsys, "run", code=2)


def test_windows_do_not_lose_rows_of_files_that_are_gone_unasked(tmp_path, capsys):
    pipe = Pipe(tmp_path, "json")
    pipe.write(changes="ignore")
    for number in range(3):
        pipe.land(str(number), ("a", 60 * number, 1), mtime=1_000 + number)
    assert pipe.run(capsys) == [3]
    (pipe.inputs / "0.json").unlink()
    pipe.land("1", ("a", 60, 5))
    pipe.run(capsys)
    told = pipe.told(capsys, "restate", "--file", "1.json", code=2)
    assert f"0.json of {pipe.inputs} were removed after batches had read them, and windows that hold their rows would lose these" in told
    pipe.told(capsys, "restate", "--file", "1.json", "--from", "2024-01-01T01:00", "--to", "2024-01-01T02:00")
    assert newest(pipe) == {("a", "01"): (1, 1, 0), ("a", "02"): (1, 5, 1)}


def test_a_file_that_has_changed_is_read_again_only_as_it_is_now(pipe, capsys):
    pipe.land("a", ("a", 10, 1), ("a", 20, 2), mtime=1_000)
    pipe.land("b", ("a", 130, 3), mtime=2_000)
    assert pipe.run(capsys) == [3]
    pipe.land("a", ("a", 10, 7), ("a", 20, 8), ("a", 30, 9))
    pipe.write(changes="ignore")
    pipe.run(capsys)
    history = ("backfill", "--from", "2024-01-01", "--to", "2024-01-02")
    told = pipe.told(capsys, *history, "--as-arrived", code=2)
    assert f"the file a.{pipe.format} of version 0 is gone (removed from the folder, or changed)" in told
    assert pipe.results() == {("a", "01"): (2, 3.0)}
    pipe.told(capsys, *history)
    assert pipe.results() == {("a", "01"): (3, 24.0)}


MOMENTS = ["batch.before", "batch.after", "sink.before", "state.after", "compute.begin", "record.begin"]
OF_FILES = ["files.before", "files.after"]


@pytest.mark.parametrize(
    ("format_", "moment"), [*(("json", moment) for moment in MOMENTS), *((name, moment) for name in FORMATS for moment in OF_FILES)]
)
def test_a_run_that_dies_reads_no_file_twice_and_none_less(tmp_path, capsys, monkeypatch, format_, moment):
    append, found = SeenFiles.append, []

    def die(*_: object) -> None:
        raise InjectedError

    def dying(self: SeenFiles, *given: Any) -> None:
        if moment == "files.after":
            append(self, *given)
        raise InjectedError

    for name in ("dies", "does_not"):
        pipe = Pipe(tmp_path / name, format_)
        pipe.land("a", ("a", 10, 1), ("b", 20, 2), mtime=1_000)
        with monkeypatch.context() as killed:
            if name == "dies" and moment in MOMENTS:
                arm(moment, die)
            elif name == "dies":
                killed.setattr(SeenFiles, "append", dying)
            assert main(["run", str(pipe.path)]) == (name == "dies")
            disarm()
        capsys.readouterr()
        pipe.land("0", ("a", 15, 4), mtime=1)
        pipe.land("c", ("a", 90, 5), ("b", 150, 6), mtime=2_000)
        pipe.run(capsys)
        status = json.loads(pipe.told(capsys, "status", "--json"))
        assert (status["rows_read"], status["versions_waiting"]) == (5, 0)
        found.append(pipe.results())
    assert sum(n for n, _ in found[0].values()) in (3, 4)


def test_folders_named_by_a_column_give_its_values(pipe, capsys):
    pipe.spec["keys"] = ["site"]
    pipe.write()
    pipe.land("day=2024-01-01/site=7/x", ("a", 10, 1))
    pipe.land("day=2024-01-01/site=__HIVE_DEFAULT_PARTITION__/x", ("a", 20, 2))
    pipe.land("day=2024-01-02/site=8/x", ("a", 300, 2))
    kinds = {field["name"]: field["type"] for field in json.loads(open_source(parse_pipeline(pipe.spec)).schema_json)["fields"]}
    assert (kinds["day"], kinds["site"], pipe.run(capsys)) == ("date", "long", [3])
    rows = DeltaTable(pipe.spec["sink"]["path"]).to_pyarrow_table().to_pylist()
    assert {row["site"]: row["n"] for row in rows} == {7: 1, None: 1}
    pipe.land("stray", ("a", 300, 2))
    assert "lies in folders of other columns (name=value) than" in pipe.told(capsys, "run", code=2)


def test_columns_are_found_once_or_given(tmp_path, capsys):
    pipe = Pipe(tmp_path, "csv")
    pipe.land("a", ("7", 10, 1))
    assert pipe.run(capsys) == [1]
    pipe.land("b", ("x", 70, 2.5))
    assert pipe.run(capsys) == [1]
    kinds = {field["name"]: field["type"] for field in json.loads(open_source(parse_pipeline(pipe.spec)).schema_json)["fields"]}
    assert kinds == {"k": "long", "t": "timestamp", "v": "long"}
    pipe.write(options={"header": True, "schema": "k STRING, t TIMESTAMP, v DOUBLE"})
    assert main(["run", str(pipe.path)]) == 0, "nothing is new"
    pipe.land("c", ("x", 130, 2.5))
    assert "column 'k' was bigint and is now string" in pipe.told(capsys, "run", code=2)


def test_nested_values_of_json_are_texts(tmp_path, capsys):
    pipe = Pipe(tmp_path, "json")
    pipe.write(options={"schema": "k STRING, t TIMESTAMP, v DOUBLE"})
    for minute, k in ((0, {"b": [1, "ä"]}), (10, 7), (70, "end")):
        pipe.land(f"a{minute}", (k, minute, 1), mtime=minute)
    assert pipe.run(capsys) == [3]
    assert pipe.results() == {('{"b":[1,"ä"]}', "01"): (1, 1.0), ("7", "01"): (1, 1.0)}


@pytest.mark.parametrize(
    ("kind", "texts", "values"),
    [
        ("TINYINT", ["127", "128", "-128", "+1", "1.0", ""], [127, None, -128, 1, 1, None]),
        ("BIGINT", ["9223372036854775807", "9223372036854775808", "x"], [9223372036854775807, None, None]),
        ("BOOLEAN", ["TRUE", "false", "yes", "1"], [True, False, None, None]),
        ("DECIMAL(4, 2)", ["12.345", "123.4", "1e1", "x"], [12.35, None, 10.0, None]),
        ("DECIMAL(38, 18)", ["1709210096000", "0.1234567890123456789", "1e20"], [1709210096000.0, 0.123456789012345679, None]),
        ("DECIMAL(38, 18)", ["-12345678901234567890.5"], [-12345678901234567890.5]),
        ("DECIMAL(38, 0)", ["1" * 38, "1e30", "1" * 39], [float("1" * 38), 1e30, None]),
        ("DOUBLE", [" 1 ", "1e3", "-Infinity", "0x1", "1_000", "x"], [1.0, 1000.0, float("-inf"), None, None, None]),
        ("DATE", ["2024-01-01", "2024-02-31", "24-01-01"], [date(2024, 1, 1), None, None]),
        ("TIMESTAMP", ["2024-01-01T00:00:00+01:00", "2024-13-01", "now"], [datetime(2023, 12, 31, 23, tzinfo=UTC), None, None]),
        ("TIMESTAMP_NTZ", ["2024-01-01 00:00:00.5"], [datetime(2024, 1, 1, 0, 0, 0, 500_000, UTC).replace(tzinfo=None)]),
    ],
)
def test_texts_become_values_of_their_type_or_null(kind, texts, values):
    found = parsed(pa.array(texts), declared(f"x {kind}").field(0).type).to_pylist()
    assert [float(value) if kind.startswith("DEC") and value is not None else value for value in found] == values


TIMES = pa.table({"t": pa.array([1], pa.time64("us"))})


@pytest.mark.parametrize(
    ("prepare", "code", "told"),
    [
        (lambda folder: folder.rmdir(), 1, "there is no such folder; make it, or correct source.path"),
        (lambda folder: None, 1, "there are no parquet files in the folder yet; write the first one"),
        (lambda folder: (folder / "x.txt").write_text("hello"), 2, "x.txt: is no Parquet file"),
        (lambda folder: pq.write_table(TIMES, folder / "a"), 2, "a, which is not read; write it in one type that is read"),
    ],
)
def test_a_folder_that_cannot_be_read_is_told(tmp_path, capsys, prepare: Callable[[Path], object], code, told):
    pipe = Pipe(tmp_path, "parquet")
    prepare(pipe.inputs)
    assert told in pipe.told(capsys, "run", code=code)


def test_an_empty_folder_with_given_columns_has_nothing_new(tmp_path, capsys):
    pipe = Pipe(tmp_path, "json")
    pipe.write(options={"schema": "k STRING, t TIMESTAMP, v DOUBLE"})
    assert pipe.run(capsys) == []
    pipe.land("a", ("a", 10, 1))
    assert pipe.run(capsys) == [1]


def test_the_record_of_files_is_fenced_checked_and_merged(tmp_path, capsys):
    pipe = Pipe(tmp_path, "json")
    for number in range(3):
        pipe.land(str(number), ("a", 10 * number, 1), mtime=number)
        assert pipe.run(capsys) == [1]
    place = str(tmp_path / "out.windowmill" / "source_files")
    one, other = SeenFiles(place), SeenFiles(place)
    (seen, before), _ = one.load(), other.load()
    assert before is not None
    next_one = type(seen[-1]).after(seen[-1], "3.json", 1, 1, "added")
    one.append([next_one], before)
    with pytest.raises(FencedError, match="another run has listed the source"):
        other.append([next_one], before)
    assert (main(["maintain", str(pipe.path)]), len(DeltaTable(place).file_uris())) == (0, 1)
    found, schema = SeenFiles(place).load()
    assert ([file.path for file in found], schema) == (["0.json", "1.json", "2.json", "3.json"], before)
    SeenFiles(place).load()
    broken = SeenFiles(place)
    broken.load()
    broken.append([next_one], "{}")
    with pytest.raises(LedgerCorruptError, match="row 4 is damaged, missing or doubled"):
        SeenFiles(place).load()


def test_a_watch_sees_new_files_and_nothing_else(pipe, capsys):
    pipe.land("a", ("a", 10, 1))
    watch = SourceWatch(parse_pipeline(pipe.spec))
    found = watch.poll()
    assert found is not None
    assert (found.version, found.planned, pipe.run(capsys)) == (0, -1, [1])
    assert watch.poll() is None
    pipe.land("_b", ("a", 20, 1))
    assert watch.poll() is None
    pipe.land("b", ("a", 20, 1), mtime=1)
    assert watch.poll() is not None
