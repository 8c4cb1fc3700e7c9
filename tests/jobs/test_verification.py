"""``windowmill verify`` without Spark: windows of the reference engine over rows that Arrow reads, also behind later changes."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
import yaml
from deltalake import DeltaTable, write_deltalake

from tests.faults.world import UNMET
from tests.jobs.days import LAST_2, VISIT, Days
from tests.spark.harness import MINUTE, SCHEMA, Bench, cut, events, quiet
from tests.specs import a_spec
from windowmill.checkpoints.batches import effective_batches
from windowmill.checkpoints.ledger import Ledger
from windowmill.jobs.batch import loop
from windowmill.jobs.cli import main
from windowmill.jobs.sources.base import open_source
from windowmill.jobs.verify import check, sql_forms
from windowmill.jobs.verify.source_rows import LocalReader, SourceFiles
from windowmill.windowing.catalogue import DECLARED
from windowmill.windowing.errors import HeldError
from windowmill.windowing.specfile import parse_pipeline

pytestmark = pytest.mark.local
HOUR = 3_600_000_000
WINDOWS = [
    {"name": "last", "type": "sliding", "evict": {"count": 5}, "trigger": {"count": 2}},
    {"name": "ticks", "type": "sliding", "evict": {"time": "3 hours"}, "trigger": {"time": "1 hour"}},
    {"name": "leaps", "type": "sliding", "evict": {"time": "2 hours"}, "trigger": {"delta": {"column": "v", "by": 30}}},
    {"name": "spans", "type": "snapshot"},
    {"name": "three", "type": "count", "count": 3},
    {"name": "visits", "type": "session", "gap": "1 hour", "max_size": "4 hours"},
]
AGGREGATES = {"n": {"count": "*"}, "total": {"sum": "v"}, "high": {"count": "*", "where": "v > 50"}, "last_id": {"last": "id"}}
SOURCES: dict[str, dict[str, Any]] = {
    "delta": {},
    "parquet": {"format": "parquet"},
    "csv": {"format": "csv", "options": {"header": "true"}},
}


def parts(seed: int, n_parts: int, n_rows: int) -> list[pa.Table]:
    """Rows of three keys, one of them null, some of them late."""
    rng, tables = np.random.default_rng(seed), []
    for part in range(n_parts):
        time = np.sort(rng.integers(part * 48 * HOUR, (part + 1) * 48 * HOUR, n_rows))
        time -= rng.integers(0, 12 * HOUR, n_rows) * (rng.random(n_rows) < 0.1)
        columns = {
            "id": pa.array(np.arange(part * n_rows, (part + 1) * n_rows)),
            "k": pa.array([("a", "b", None)[key] for key in rng.integers(0, 3, n_rows)], pa.string()),
            "t": pa.array(np.maximum(time, 0), pa.timestamp("us", "UTC")),
            "v": pa.array(rng.integers(0, 100, n_rows)),
        }
        tables.append(pa.table(columns))
    return tables


def deliver(source: Path, form: str, tables: list[pa.Table], spec: Path) -> None:
    """Each table as a version or a file of its own, and a run behind each."""
    for n, table in enumerate(tables):
        if form == "delta":
            write_deltalake(source, table, mode="append")
        else:
            source.mkdir(exist_ok=True)
            (pq.write_table if form == "parquet" else pa_csv.write_csv)(table, source / f"part-{n}.{form}")
        assert main(["run", str(spec)]) == 0


def write_spec(folder: Path, form: str, **changes: Any) -> Path:
    source = {"path": str(folder / "source")} | SOURCES[form]
    time = {"column": "t", "tie_break": ["id"], "disorder": "2 hours", "lateness": "1 hour"}
    fields: dict[str, Any] = {"keys": ["k"], "time": time, "windows": WINDOWS, "aggregates": AGGREGATES, "compute": "local"}
    (folder / "spec.yaml").write_text(yaml.safe_dump(a_spec(folder, **{"source": source} | fields | changes)))
    return folder / "spec.yaml"


def verified(spec: Path, capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    capsys.readouterr()
    code = main(["verify", str(spec), "--json", *options])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert code == (1 if found["differing"] else 0)
    return found


@pytest.fixture(autouse=True)
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("Spark is started")

    monkeypatch.setattr(check, "_started", refuse)


@pytest.mark.parametrize("form", ["delta", "parquet", "csv"])
def test_windows_without_sql_are_verified_without_spark(tmp_path, capsys, form):
    spec = write_spec(tmp_path, form)
    deliver(tmp_path / "source", form, parts(3, 3, 150), spec)
    found = verified(spec, capsys, "--sample", "5000", "--seed", "1")
    assert found["differing"] == 0, found["differences"][:2]
    assert found["not_compared"] == []
    assert found["recomputed_by"] == {"the reference engine": found["rows"]}
    assert found["rows"] > 300
    assert found["late_missed"], "late rows are left out of what is recomputed"
    few = [verified(spec, capsys, "--sample", "20", "--seed", "9") for _ in range(2)]
    assert few[0] == few[1]
    assert few[0]["rows"] == 20


def test_changed_and_deleted_rows_of_the_source_are_found(tmp_path, capsys):
    time = {"column": "t", "tie_break": ["id"], "disorder": "12 hours"}
    spec = write_spec(tmp_path, "delta", source={"path": str(tmp_path / "source"), "filter": "v < 90"}, time=time)
    deliver(tmp_path / "source", "delta", parts(3, 2, 150), spec)
    assert verified(spec, capsys, "--sample", "5000")["differing"] == 0
    DeltaTable(tmp_path / "source").update({"v": "v + 1"}, predicate="id = 150 AND v < 80")
    found = verified(spec, capsys, "--sample", "5000")
    assert 0 < found["differing"] < 60
    assert {each["column"] for row in found["differences"] for each in row["columns"]} <= {"total", "high", None}


@pytest.mark.parametrize(("form", "code"), [("delta", 2), ("parquet", 1)])
def test_a_file_that_is_gone_is_named_in_one_line(tmp_path, capsys, monkeypatch, form, code):
    spec = write_spec(tmp_path, form)
    deliver(tmp_path / "source", form, parts(3, 1, 60), spec)
    [file] = [file for file in (tmp_path / "source").iterdir() if file.suffix == ".parquet"]
    parts_of, gone = LocalReader._parts, []

    def without(*args: Any) -> Any:
        file.unlink(missing_ok=True)  # between the listing and the reading
        gone.append(file.name)
        return parts_of(*args)

    monkeypatch.setattr(LocalReader, "_parts", without)
    capsys.readouterr()
    assert main(["verify", str(spec)]) == code
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("windowmill: ")]
    assert len(said) == len(gone) == 1
    assert file.name in said[0]


def test_keys_with_few_rows_are_compared_where_others_have_too_many(tmp_path, capsys, monkeypatch):
    spec = write_spec(tmp_path, "delta")
    deliver(tmp_path / "source", "delta", parts(3, 2, 120), spec)
    monkeypatch.setattr("windowmill.jobs.verify.check.MAX_ROWS", 100)
    found = verified(spec, capsys, "--sample", "5000")
    assert found["differing"] == 0
    left_out = sum(each["rows"] for each in found["not_compared"] if "too many" in each["why"])
    assert left_out > 0
    assert found["rows"] > 0


def test_a_sample_has_the_rows_that_readers_see(tmp_path, capsys):
    windows = [WINDOWS[0], {"name": "visits", "type": "session", "gap": "2 hours"}]
    time = {"column": "t", "tie_break": ["id"], "lateness": "12 hours"}
    spec = write_spec(tmp_path, "delta", emit="revise", windows=windows, time=time)
    deliver(tmp_path / "source", "delta", parts(5, 3, 100), spec)
    pipeline = parse_pipeline(yaml.safe_load(spec.read_text()))
    rows = DeltaTable(tmp_path / "sink").to_pyarrow_table().to_pylist()
    assert any(row["revision"] for row in rows)

    def sampled(number: int, seed: int, ends: tuple[int | None, int | None] = (None, None)) -> set[Any]:
        found = check.sample(str(tmp_path / "sink"), pipeline, number=number, seed=seed, ends=ends, through=2)
        assert found.keys.column("k").to_pylist() == [key for row in found.rows for key in row.key]
        return {(row.key, row.window, row.start, row.end, row.trigger, row.revision) for row in found.rows}

    newest: dict[Any, dict[str, Any]] = {}
    for row in sorted(rows, key=lambda row: row["revision"]):
        bounds = (row["window_start"], row["window_end"]) if row["trigger"] is None else row["trigger"]
        newest[row["k"], row["window"], bounds] = row
    every = sampled(100_000, 1)
    assert len(every) == len([row for row in newest.values() if not row["retracted"]])
    assert every >= sampled(10, 1)
    assert len(sampled(10, 1)) == 10
    assert sampled(10, 1) == sampled(10, 1) != sampled(10, 2)
    some = sampled(100_000, -7, (20 * HOUR, 60 * HOUR))
    assert some == {row for row in every if 20 * HOUR < row[3] <= 60 * HOUR}
    assert sampled(3, 4, (20 * HOUR, 21 * HOUR)) <= some


def test_every_aggregate_has_a_form_of_its_own():
    assert set(DECLARED.built_in) == set(sql_forms.FORMS), "give the aggregate a form in jobs/verify/sql_forms.py"


def test_texts_are_joined_as_concat_joins_them():
    values = ["a", 7, 1e300, float("nan"), Decimal("0.00000000"), date(2024, 2, 29)]
    assert sql_forms.joined(values) == "a71e+300nan0.000000002024-02-29"


def days_of(folder: Path, *windows: dict[str, Any], rows: Sequence[tuple[Any, ...]], **fields: Any) -> Days:
    """A pipeline that has run over ``rows``."""
    days = Days(folder, *windows, **fields)
    days.append(*rows)
    days.run()
    return days


def go_on(days: Days, *rows: tuple[Any, ...]) -> None:
    days.append(*rows)
    days.run()


A, B = (1, "a", "08:05", 1), (2, "a", "12:05", 2)
BRIEF = VISIT | {"max_size": "2 hours"}


def test_verify_does_not_judge_rows_of_the_quarantine_that_a_backfill_from_the_table_counts(tmp_path):
    days = days_of(tmp_path, {"name": "spans", "type": "snapshot"}, keys=[], rows=[A, B])
    go_on(days, (3, "a", "11:05", 4), (4, "a", "14:05", 8))
    days.update("id = 1", v="16")
    days.run()
    assert days.verified() == (2, [])
    days.backfill()
    n, [told] = days.verified()
    assert n == 3
    assert "which windows count them is not known, 1" in told


@pytest.mark.parametrize(
    ("gap", "rows", "left_out"),
    [("30 minutes", [A, B, (3, "a", "14:05", 3)], 2), ("${GAP}", [A, (2, "a", "08:55", 4), (3, "a", "12:05", 2), (4, "a", "14:05", 3)], 3)],
    ids=["gap", "variable"],
)
def test_verify_leaves_out_rows_that_an_earlier_meaning_of_their_window_has_published(tmp_path, gap, rows, left_out):
    days = Days(tmp_path, BRIEF | {"gap": gap})
    days.environment = {"GAP": "30 minutes"}
    go_on(days, *rows)
    days.environment = {"GAP": "1 hour"}
    days.apply(BRIEF | {"gap": gap if "GAP" in gap else "1 hour"}, history=None)
    go_on(days, (5, "a", "16:05", 4), (6, "a", "18:05", 5))
    assert days.verified() == (2, [f"rows of visit: an earlier spec published them, {left_out}"])


def test_verify_compares_rows_behind_a_changed_spec_that_was_abandoned(tmp_path):
    days = days_of(tmp_path, LAST_2, rows=[A, B])
    days.spec["expectations"] = UNMET
    with pytest.raises(HeldError):
        days.apply(LAST_2 | {"evict": {"count": 3}})
    loop.abandon(days.pipeline, quiet())
    days.spec |= {"expectations": [], "windows": [LAST_2]}
    assert days.verified() == (1, [])


def test_verify_leaves_out_columns_that_an_earlier_spec_did_not_have(tmp_path):
    days = days_of(tmp_path, LAST_2, rows=[A, B])
    days.spec["aggregates"] |= {"low": {"min": "v"}}
    days.apply(LAST_2, history=None)
    go_on(days, (3, "a", "16:05", 4))
    assert days.verified() == (2, ["column low: an earlier spec published them, 1"])


TICKS = {"name": "ticks", "type": "sliding", "evict": {"count": 1}, "trigger": {"time": "1 hour"}}


@pytest.mark.parametrize("window", [LAST_2, VISIT | {"max_size": "1 hour"}, TICKS], ids=lambda window: window["name"])
def test_verify_goes_by_the_watermark_of_the_batches_where_the_newest_rows_are_gone(tmp_path, window):
    days = days_of(tmp_path, window, rows=[A, (2, "b", "12:05", 2)])
    days.source.delete("id = 2")
    days.run()
    latest = days.latest(window["name"])
    assert latest[0][-2:] == (1, 1)
    assert len(latest) > 2 or window is not TICKS, "ticks behind which the rows are gone"
    assert days.verified() == (len(latest), [])


def test_verify_compares_windows_with_policies_that_were_empty(tmp_path):
    leaps = {"name": "leaps", "type": "sliding", "evict": {"time": "10 minutes"}, "trigger": {"delta": {"column": "v", "by": 5}}}
    days = Days(tmp_path, leaps, time={"lateness": "1 hour"})
    days.append((1, "a", "08:05", 1), (2, "a", "09:05", 20), (3, "a", "10:05", 40), (4, "a", "12:05", 41))
    days.append((5, "a", "11:30", 7))
    days.append((6, "a", "14:05", 41))
    days.run()
    assert None in [row["window_start"] for row in days.rows("leaps")]
    assert days.verified() == (len(days.rows("leaps")), [])


#: Versions of a source of which each is a file.
VERSIONS = 12


def files_of(bench: Bench) -> SourceFiles:
    plans = [batch.plan for batch in effective_batches(Ledger.open(bench.pipeline).batches())]
    return SourceFiles.of(bench.pipeline, open_source(bench.pipeline), plans)


def landed(folder: Path, rows: list[dict[str, Any]]) -> tuple[Bench, SourceFiles, list[list[int]]]:
    """A pipeline that has read ``rows`` in several versions, its files, and the event times of each of them."""
    bench, parts = Bench(folder), cut(rows, 5, VERSIONS)
    for part in parts:
        bench.land(part)
    bench.run()
    found = files_of(bench)
    times = [[row["t"] for row in part if row["t"] is not None] for part in parts]
    return bench, found, [times[commit] for commit in found.commits if commit is not None]


def windows_over(times: list[list[int]], seed: int, count: int) -> list[tuple[int, int]]:
    rng, every = random.Random(seed), sorted(time for of_file in times for time in of_file)
    begins = [rng.choice(every) - rng.randint(0, 3 * MINUTE) for _ in range(count)]
    return [(begin, begin + rng.choice([1, 3 * MINUTE, 47 * MINUTE])) for begin in begins]


def test_statistics_tell_what_was_closed_to_the_rows_in_question(tmp_path):
    bench, found, times = landed(tmp_path, events(41, 1_500))
    behind = bench.pipeline.time.disorder.elapsed() + bench.pipeline.time.lateness.elapsed()
    told = counted = 0
    for window in windows_over(times, 1, 200):
        closed = found.closed_by_statistics([window], every_row_counts=True)
        cautious = found.closed_by_statistics([window], every_row_counts=False)
        assert cautious is None or set(cautious) == {None}
        told += closed is not None
        for n, of_file in enumerate(times):
            earlier = [max(other) for other, commit in zip(times, found.commits, strict=True) if commit < found.commits[n]]
            is_closed = bool(earlier) and max(earlier) - behind >= window[1]
            if closed is not None and any(window[0] <= time < window[1] for time in of_file):
                assert (closed[n] is not None and closed[n] >= window[1]) == is_closed
                counted += is_closed
                assert cautious is None or not is_closed
    assert told > 190, "an instant in the log lacks its microseconds, which seldom matters"
    assert counted > 0


def test_only_files_with_rows_in_a_window_are_read(tmp_path):
    _, found, times = landed(tmp_path, events(42, 1_500))
    read = 0
    for windows in (windows_over(times, seed, 2) for seed in range(50)):
        chosen = found.overlapping(windows)
        read += len(chosen)
        needed = [n for n, of_file in enumerate(times) if any(begin <= time < end for time in of_file for begin, end in windows)]
        assert set(needed) <= set(chosen)
    assert read < 50 * VERSIONS / 2
    assert found.overlapping([]) == []


def test_files_without_statistics_are_read_and_tell_nothing(tmp_path):
    bench, _, times = landed(tmp_path, [row | {"v": 1.0} for row in events(43, 300)])
    bench.append(pa.Table.from_pylist([{"k": "a", "t": None}], schema=SCHEMA))
    bench.run()
    found = files_of(bench)
    assert len(found.overlapping([(max(map(max, times)) + MINUTE, max(map(max, times)) + 2 * MINUTE)])) == 1
    assert found.closed_by_statistics([], every_row_counts=True) is None


def test_files_that_no_batch_has_read_and_rewritten_ones_are_told(tmp_path):
    bench, *_ = landed(tmp_path, events(44, 300))
    bench.land(events(45, 10))
    found = files_of(bench)
    assert (len(found.present), len(found.files), found.order_known) == (VERSIONS + 1, VERSIONS, True)
    vectors = SimpleNamespace(deletion_vectors=True)
    counting = replace(found, counts_late=True)
    assert [each.judges_late for each in (found, counting, replace(counting, source=vectors))] == [False, True, False]
    bench.run()
    DeltaTable(bench.source).optimize.compact()
    found = files_of(bench)
    assert (len(found.files), found.order_known) == (1, False)
    assert found.closed_by_statistics([(0, 1)], every_row_counts=True) == [None]
