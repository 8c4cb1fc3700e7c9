"""Backfills of a running pipeline whose source has changed since: which rows count, and what is said. No Spark."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from deltalake import DeltaTable
from rich.console import Console

from tests.jobs.test_steps import SPEC, row
from tests.spark.harness import BASE, MINUTE, Bench, differences, events, expected, quiet
from windowmill.jobs.batch import loop
from windowmill.jobs.batch.progress import Progress
from windowmill.jobs.cli import main
from windowmill.windowing.axis import from_us
from windowmill.windowing.errors import ArrivalUnknownError, UnsupportedError

#: Holds for the row at the first minute.
FIRST = "id = 'e1'"

#: Windows of each way: by slices, as sessions, by positions, over live rows.
EVERY_WAY = [
    {"name": "slots", "type": "tumbling", "size": "10 minutes"},
    {"name": "rolling", "type": "hopping", "size": "47 minutes", "hop": "7 minutes"},
    {"name": "visits", "type": "session", "gap": "3 minutes"},
    {"name": "last", "type": "sliding", "evict": {"count": 5}, "trigger": {"count": 2}},
    {"name": "recent", "type": "sliding", "evict": {"time": "20 minutes"}, "trigger": {"time": "5 minutes"}},
    {"name": "spans", "type": "snapshot"},
]


pytestmark = pytest.mark.local
#: The range of all windows.
WHOLE = {"begin": BASE - 1, "end": BASE + 100 * MINUTE}


def rows_at(*minutes: int) -> list[dict[str, Any]]:
    return [row(minute) | {"id": f"e{minute}"} for minute in minutes]


def bench_of(folder: Path, **changes: Any) -> Bench:
    """A pipeline that ignores changes of its source."""
    return Bench(folder, SPEC | {"source": {"path": str(folder / "source"), "changes": "ignore"}} | changes)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """Three runs, the second with a row that comes too late."""
    bench = bench_of(tmp_path)
    for minutes in ([1, 12], [25, 3], [47]):
        bench.land(rows_at(*minutes)).run()
    return bench


def backfill(bench: Bench, **options: Any) -> str:
    """Recompute all windows; what is said."""
    said = io.StringIO()
    loop.backfill(bench.pipeline, Progress(Console(file=said, soft_wrap=True)), **WHOLE | options)
    return said.getvalue()


def totals(bench: Bench) -> list[tuple[int, int, int]]:
    """Minute of the window's end, rows and sum of each window."""
    return [((each["window_end"] - BASE) // MINUTE, each["n"], each["total"]) for each in bench.rows()]


def test_a_backfill_gives_what_runs_gave_where_the_source_has_only_appended(bench):
    before = bench.rows()
    assert totals(bench) == [(10, 1, 1), (20, 1, 1), (30, 1, 1)]
    assert "--as-arrived" not in backfill(bench)
    assert differences(bench.rows(), before) == []


def test_a_backfill_after_an_update_gives_the_new_values_each_time_and_the_old_ones_only_when_asked(bench):
    DeltaTable(bench.source).update(predicate=FIRST, updates={"i": "100"})
    corrected = [(10, 2, 101), (20, 1, 1), (30, 1, 1)]
    for _ in range(2):
        said = backfill(bench)
        assert "source version 3 (UPDATE) changed rows: rows through version 2 count as the table holds them now" in said
        assert "--as-arrived reads what earlier batches read" in said
        assert totals(bench) == corrected
    assert "changed rows" not in backfill(bench, history="log")
    assert totals(bench) == [(10, 1, 1), (20, 1, 1), (30, 1, 1)]
    backfill(bench)
    assert totals(bench) == corrected


def test_rows_that_come_after_a_change_are_late_as_they_were(bench):
    DeltaTable(bench.source).update(predicate=FIRST, updates={"i": "100"})
    for minutes in ([58], [36, 69]):
        bench.land(rows_at(*minutes)).run()
    assert "rows through version 3" in backfill(bench)
    assert totals(bench) == [(10, 2, 101), (20, 1, 1), (30, 1, 1), (50, 1, 1), (60, 1, 1)]


def test_rows_as_they_arrived_are_refused_where_their_files_are_gone(bench):
    DeltaTable(bench.source).delete(FIRST)
    DeltaTable(bench.source).vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    before = bench.rows()
    with pytest.raises(ArrivalUnknownError, match=r"is gone \(VACUUM\).*without --as-arrived"):
        backfill(bench, history="log")
    assert differences(bench.rows(), before) == []
    backfill(bench)
    assert totals(bench) == [(10, 1, 1), (20, 1, 1), (30, 1, 1)], "the deleted row is gone, the one that came too late counts"


def preview(bench: Bench, begin: int, end: int, *options: str) -> dict[str, Any]:
    """The answer of ``backfill --dry-run`` for windows that end in these minutes."""
    told = bench.folder / "spec.yaml"
    told.write_text(yaml.safe_dump(bench.spec))
    bounds = ["--from", str(from_us(BASE + begin * MINUTE)), "--to", str(from_us(BASE + end * MINUTE))]
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        assert main(["backfill", str(told), *bounds, "--dry-run", "--json", *options]) == 0
    return json.loads(said.getvalue())


def files(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file() and path.name != "spec.yaml"}


def test_a_dry_run_says_what_would_be_read_and_replaced_and_changes_nothing(bench):
    before = files(bench.folder)
    told = preview(bench, 10, 1000)
    assert files(bench.folder) == before
    assert (told["versions"], told["snapshot"], told["reason"], told["builds_state"]) == ([0, 2], None, None, False)
    assert (told["files"], told["rows"], told["rows_replaced"], told["windows"]) == (3, 5, 2, {"slots": 2})
    assert told["bytes"] == sum(path.stat().st_size for path in Path(bench.source).glob("*.parquet"))
    done = loop.backfill(bench.pipeline, quiet(), begin=BASE + 10 * MINUTE, end=BASE + 1000 * MINUTE)
    assert (done.outcome.counts.rows_read, done.outcome.counts.rows_published) == (told["rows"], told["rows_replaced"])


def test_a_dry_run_says_why_other_rows_would_count(bench):
    DeltaTable(bench.source).update(predicate=FIRST, updates={"i": "100"})
    told = preview(bench, -1, 100)
    assert (told["snapshot"], told["reason"].startswith("source version 3 (UPDATE) changed rows")) == (3, True)
    assert preview(bench, -1, 100, "--as-arrived")["reason"] is None


def test_a_dry_run_of_a_first_batch_replaces_nothing(bench):
    bench.changes["sink"] = {"path": f"{bench.sink}-2"}
    told = preview(bench, -1, 100)
    assert (told["builds_state"], told["rows_replaced"], told["windows"]) == (True, 0, {})
    assert not Path(f"{bench.sink}-2").exists()


@pytest.mark.parametrize("begin", [4, 5, 6, 9])
def test_a_first_backfill_shows_empty_windows_whose_keys_last_event_lies_before_its_range(tmp_path, begin):
    windows = [{"name": "w", "type": "hopping", "size": "10 minutes", "hop": "4 minutes", "empty": "emit"}]
    bench = bench_of(tmp_path, emit="revise", windows=windows)
    origin = 4 - BASE // MINUTE % 4  # minutes from BASE to a window's start
    for minute, key in ((12, "other"), (7, "late"), (40, "other")):  # late for the window that ends at 10, not for the one that ends at 14
        bench.land([row(origin + minute, key)])
    loop.backfill(bench.pipeline, quiet(), begin=BASE + (origin + begin) * MINUTE, end=BASE + 50 * MINUTE)
    shown = [((each["window_end"] - BASE) // MINUTE - origin, each["n"]) for each in bench.rows() if each["k"] == "late"]
    assert shown == [(10, 0), (14, 1)]


@pytest.mark.parametrize("emit", ["final", "revise"])
def test_one_backfill_of_ten_days_gives_what_a_run_a_day_gave(tmp_path, emit):
    """Over the running pipeline, in parts that come in any order, and as the first batch of another one."""
    late = {"column": "t", "tie_break": ["id"], "disorder": "5 minutes", "lateness": "8 minutes"}
    daily = Bench(tmp_path, {"windows": EVERY_WAY, "emit": emit, "time": late})
    rows = events(91, 200)
    for begin in range(0, 200, 20):
        daily.land(rows[begin : begin + 20]).run()
    before = daily.rows()
    ends = sorted({each["window_end"] for each in before})
    assert sum(each["reason"] == "too_late" for each in daily.quarantine()) > 0
    assert {each["window"] for each in before} == {window["name"] for window in EVERY_WAY}
    cuts = [ends[0] - 1, ends[len(ends) // 3], ends[len(ends) * 2 // 3], ends[-1]]
    for begin, end in [(cuts[0], cuts[-1]), *((cuts[n], cuts[n + 1]) for n in (1, 2, 0))]:
        loop.backfill(daily.pipeline, quiet(), begin=begin, end=end)
        assert differences(daily.rows(), before, tolerance=1e-12) == []
    at_once = Bench(tmp_path / "again", daily.changes | {"source": {"path": daily.source}})
    loop.backfill(at_once.pipeline, quiet(), begin=cuts[0], end=cuts[-1])
    assert differences(at_once.rows(), before, tolerance=1e-12) == []


def test_a_backfill_follows_a_restatement_from_the_first_version_of_the_source(tmp_path):
    bench = Bench(tmp_path, SPEC)
    for minute in (1, 25, 12, 31):  # the third is too late
        bench.land([row(minute)])
    bench.run()
    assert len(loop.restate(bench.pipeline, quiet(), late=True)) == 1
    before = bench.rows()
    assert "a restatement has read the source again: rows through version 3 count as the table holds them now" in backfill(bench)
    assert differences(bench.rows(), before) == []


MOVING = r"windows of moving could move into the range or out of it, .*; `windowmill restate`"


@pytest.mark.parametrize(
    ("window", "refusal"),
    [
        ({"type": "session", "gap": "2 minutes"}, MOVING),
        ({"type": "count", "count": 2}, MOVING),
        ({"type": "snapshot"}, MOVING),
        (
            {"type": "sliding", "evict": {"count": 2}, "trigger": {"count": 1}},
            r"triggers of moving would be numbered again in the range, and not outside it; `windowmill restate`",
        ),
    ],
    ids=["session", "count", "snapshot", "triggers"],
)
def test_windows_do_not_move_and_triggers_are_not_numbered_anew_across_the_bounds_of_a_range(tmp_path, window, refusal):
    bench = bench_of(tmp_path, windows=[{"name": "moving"} | window])
    rows = rows_at(0, 1, 4, 5, 6, 9, 10, 60)
    bench.land(rows).run()
    before, middle = bench.rows(), {"begin": BASE + 2 * MINUTE, "end": BASE + 9 * MINUTE}
    backfill(bench, **middle)
    assert differences(bench.rows(), before) == [], "a source that has only appended"
    DeltaTable(bench.source).delete("id = 'e5'")
    with pytest.raises(UnsupportedError, match=refusal):
        backfill(bench, **middle)
    backfill(bench, history="log", **middle)
    assert differences(bench.rows(), before) == []
    backfill(bench)
    held = [each for each in rows if each["id"] != "e5"]
    assert differences(bench.rows(), expected(bench.pipeline, held, commits=[0] * len(held)).rows) == []
