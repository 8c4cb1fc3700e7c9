"""Restatements: what corrections of the source bring to the sink and the state, and how later runs go on from them. No JVM."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests.latest import latest, without_revision
from tests.matrices import crossed
from tests.spark.harness import BASE, MINUTE, SCHEMA, Bench, cut, differences, events, expected, in_order, quiet
from windowmill.checkpoints.delta_tables import files_of
from windowmill.checkpoints.failpoints import FAILPOINTS, InjectedError, arm, disarm
from windowmill.checkpoints.ledger import Ledger
from windowmill.checkpoints.places import Places
from windowmill.jobs.batch import loop
from windowmill.windowing.errors import NonAppendCommitError, OutOfTurnError, SourceError, SourceRangeGoneError

Row = dict[str, Any]
WINDOWS: dict[str, Any] = {
    "grids": {},
    "sessions": {"windows": [{"name": "visits", "type": "session", "gap": "5 minutes"}]},
    "policies": {"windows": [{"name": "last", "type": "sliding", "evict": {"count": 3}, "trigger": {"count": 2}}]},
    "rows": {"windows": [{"name": "threes", "type": "count", "count": 3}]},
    "revised": {"emit": "revise"},
    "mixed": {
        "windows": [{"name": "slots", "type": "tumbling", "size": "10 minutes"}, {"name": "visits", "type": "session", "gap": "5 minutes"}]
    },
}
TIME = {"column": "t", "tie_break": ["id"]}
SPANS = {"name": "spans", "type": "snapshot"}
AGGREGATES = {"n": {"count": "*"}, "whole": {"sum": "i"}, "average": {"mean": "i"}, "closing": {"last": "id"}}


pytestmark = pytest.mark.local


class Corrected(Bench):
    """A bench whose source is corrected; ``changes`` are those of the spec."""

    def correct(self, *numbers: int) -> None:
        """Change a value of these rows."""
        self.update(" or ".join(f"id = 'e{n:05d}' or id = 'e{n:05d}x'" for n in numbers), i="coalesce(i, 0) + 100")

    def remove(self, *numbers: int) -> None:
        self.delete(" or ".join(f"id = 'e{n:05d}' or id = 'e{n:05d}x'" for n in numbers))

    def run_in_parts(self, parts: Sequence[Sequence[Row]]) -> None:
        for part in parts:
            self.land(part)
            self.run()

    def update(self, where: str, **values: str) -> None:
        DeltaTable(self.source).update(updates=values, predicate=where)

    def delete(self, where: str) -> None:
        DeltaTable(self.source).delete(where)

    def restate(self, **options: Any) -> Any:
        """The last batch of a restatement."""
        return loop.restate(self.pipeline, quiet(), **options)[-1]

    def held(self, table: pa.Table | None = None) -> list[Row]:
        """The rows that the source holds, without those in quarantine."""
        table = (DeltaTable(self.source).to_pyarrow_table() if table is None else table).cast(SCHEMA)
        table = table.set_column(2, "t", table["t"].cast(pa.int64()))
        lost = [row["row"] for row in self.quarantine() if row["reason"] == "too_late"]
        return [row for row in table.to_pylist() if not any(f'"id":"{row["id"]}"' in each for each in lost)]

    def latest(self) -> list[Row]:
        """The windows as the sink shows them now, without the numbers of revisions."""
        return in_order(self.pipeline, latest(self.pipeline, self.rows()))

    def truth(self, table: pa.Table | None = None) -> list[Row]:
        """What the reference says of the rows that the source holds, if they had come in order."""
        rows = sorted(self.held(table), key=lambda row: (row["t"] is not None, row["t"] or 0))
        return [without_revision(row) for row in expected(self.pipeline, rows, commits=[0] * len(rows)).rows]

    def check(self) -> None:
        assert differences(self.latest(), self.truth()) == []

    def lost(self) -> int:
        """How many late rows are in quarantine."""
        return sum(row["reason"] == "too_late" for row in self.quarantine())

    def emitted(self) -> int:
        """The instant through which windows are shown."""
        last = Ledger.open(self.pipeline).last_commit
        assert last is not None
        return last.outcome.emitted or 0


def bench_of(folder: Path, kind: str, *, corrections: str | None = "restate", **changes: Any) -> Corrected:
    """What runs make of ``corrections`` is as the spec says unless it says nothing."""
    source = {"path": str(folder / "source")} | ({} if corrections is None else {"changes": corrections})
    spec = {"time": TIME | {"disorder": "2 hours"}, "aggregates": AGGREGATES, "source": source}
    return Corrected(folder, spec | WINDOWS[kind] | changes)


@pytest.mark.parametrize("kind", WINDOWS)
def test_corrections_bring_the_windows_that_the_corrected_source_gives(tmp_path, kind):
    bench, parts = bench_of(tmp_path, kind), cut(events(1, 300), 1, 5)
    bench.run_in_parts(parts[:3])
    bench.check()
    before = bench.rows()
    bench.correct(3)
    bench.remove(20, 31)
    done = bench.run()
    assert [batch.plan.action for batch in done] == ["restate"]
    assert 0 < done[0].restated.windows < len(before)
    bench.check()
    bench.run_in_parts(parts[3:])
    bench.check()


@pytest.mark.parametrize(("kind", "keys"), crossed(WINDOWS, [["k", "site"], []]))
def test_an_update_that_changes_no_value_leaves_the_state(tmp_path, kind, keys):
    bench, parts = bench_of(tmp_path, kind, keys=keys), cut(events(1, 120), 1, 3)
    bench.run_in_parts(parts[:2])
    bench.update("i > 0", i="i")
    assert bench.run()[0].restated.windows == 0
    bench.run_in_parts(parts[2:])
    bench.check()


def on_grids(*windows: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"name": f"w{number}", "type": "hopping"} | window for number, window in enumerate(windows)]


GRIDS: dict[str, list[dict[str, Any]]] = {
    "with gaps": on_grids({"size": "5 minutes", "hop": "17 minutes"}),
    "of several edges": on_grids(
        {"size": "7 minutes", "hop": "7 minutes"}, {"size": "1 hour", "hop": "20 minutes", "origin": "2024-03-01T00:03:00Z"}
    ),
    "of days": on_grids({"size": "1 day", "hop": "12 hours", "timezone": "Europe/Berlin"}, {"size": "15 minutes", "hop": "15 minutes"}),
    "that grow": [{"name": "so_far", "type": "cumulative", "size": "1 hour", "step": "10 minutes"}],
}


@pytest.mark.parametrize(("kind", "emit"), crossed(GRIDS, ["final", "revise"]))
@pytest.mark.parametrize("keys", [["k"], []])
def test_corrections_far_apart_meet_every_window_that_holds_them(tmp_path, kind, emit, keys):
    rows = events(7, 400)
    time = TIME | {"disorder": "2 hours", "lateness": "4 hours"}
    bench = bench_of(tmp_path, "grids", windows=GRIDS[kind], emit=emit, keys=keys, time=time)
    bench.run_in_parts(cut(rows[:250], 1, 3))
    for first in (0, 120, 240):
        bench.correct(first + 2)
        bench.remove(first + 5, first + 6)
        bench.update(f"id = 'e{first + 7:05d}' or id = 'e{first + 7:05d}x'", t="t + interval '29 minutes'", k="'a'")
    bench.run()
    bench.check()
    bench.run_in_parts(cut(rows[250:], 1, 3))
    bench.check()


def test_a_correction_reads_rows_and_replaces_state_only_near_it(tmp_path):
    bench = bench_of(tmp_path, "grids", **TUMBLING, keys=["k"], time=TIME | {"lateness": "2 days"})
    rows = [row for row in events(1, 300) if row["t"] is not None]
    bench.land(rows[:150]).run()
    bench.land(rows[150:]).run()
    kept = {file["path"] for file in files_of(DeltaTable(Places.of(bench.pipeline).state))}
    chosen = next(row for row in rows[200:] if row["k"] == "a")
    bench.correct(int(chosen["id"][1:6]))
    [done] = bench.run()
    slot = chosen["t"] // (10 * MINUTE)
    near = [row for row in rows if row["k"] == "a" and row["t"] // (10 * MINUTE) == slot]
    assert done.outcome.counts.rows_read == len(near)
    state = DeltaTable(Places.of(bench.pipeline).state)
    assert len(kept & {file["path"] for file in files_of(state)}) == 1  # that of the first rows
    made = [row for row in state.to_pyarrow_table().to_pylist() if row["_batch"] == done.plan.batch]
    assert [(row["k"], row["_slice"] // (10 * MINUTE)) for row in made] == [("a", slot)]
    bench.land([rows[-1] | {"t": rows[-1]["t"] + 3 * 24 * 60 * MINUTE, "id": "e00900"}]).run()
    assert len(bench.latest()) > 50
    bench.check()


def test_a_time_that_no_axis_has_hides_no_rows_of_its_file(tmp_path):
    bench = bench_of(
        tmp_path,
        "grids",
        keys=["k"],
        windows=[{"name": "tens", "type": "tumbling", "size": 10}],
        time={"column": "i", "unit": "none", "disorder": 0},
        aggregates={"n": {"count": "*"}, "total": {"sum": "v"}},
        quarantine={"warn": "never", "hold": "never"},
    )
    row = {"k": "a", "site": 1, "t": BASE, "label": None}
    rows = [row | {"i": i, "v": 1.0, "id": f"e{n:05d}"} for n, i in enumerate([*range(100, 160), -(1 << 63)])]
    bench.land(rows).run()
    bench.update("id = 'e00003'", v="5.0")
    [done] = bench.run()
    assert (done.restated.windows, done.restated.retracted) == (1, 0)
    assert next((row["window_end"], row["n"], row["total"]) for row in bench.latest()) == (110, 10, 14.0)


@pytest.mark.parametrize("kind", ["grids", "sessions"])
def test_rows_that_a_correction_makes_unusable_are_in_quarantine(tmp_path, kind):
    bench = bench_of(tmp_path, kind, quarantine={"warn": "never", "hold": "never"})
    bench.run_in_parts([events(1, 100)])
    before = len(bench.quarantine())
    bench.update("id = 'e00030' or id = 'e00030x'", t="null")
    bench.run()
    assert len(bench.quarantine()) == before + 1
    bench.check()
    merged = pa.Table.from_pylist([{"k": "a", "site": 1, "t": None, "v": 1.0, "i": 1, "label": "x", "id": "e09999"}], SCHEMA)
    DeltaTable(bench.source).merge(merged, "t.id = s.id", source_alias="s", target_alias="t").when_not_matched_insert_all().execute()
    bench.run()
    assert len(bench.quarantine()) == before + 2
    assert bench.run() == []
    bench.check()


TUMBLING = {"windows": [{"name": "slots", "type": "tumbling", "size": "10 minutes"}]}
#: Kinds of windows in which a late row counts, or is in quarantine.
ONE_WINDOW_A_ROW: dict[str, Any] = {
    "grids": TUMBLING,
    "empty": {"windows": [TUMBLING["windows"][0] | {"empty": "emit"}]},
    "policies": WINDOWS["policies"],
    "revised": TUMBLING | {"emit": "revise"},
}


@pytest.mark.parametrize("kind", ONE_WINDOW_A_ROW)
def test_rows_in_quarantine_stay_there_until_they_are_asked_for(tmp_path, kind):
    time = TIME | {"disorder": "5 minutes", "lateness": "30 minutes"}
    bench, parts = bench_of(tmp_path, "grids", time=time, **ONE_WINDOW_A_ROW[kind]), cut(events(2, 300), 1, 14)
    bench.run_in_parts(parts[:9])
    lost = bench.lost()
    assert lost > 1
    bench.check()
    bench.correct(3, 43)
    bench.run()
    assert bench.lost() == lost
    bench.check()
    bench.run_in_parts(parts[9:10])
    bench.check()
    assert bench.restate(late=True).restated.windows > 0
    assert bench.lost() == 0
    bench.check()
    assert loop.restate(bench.pipeline, quiet(), late=True) == []
    bench.run_in_parts(parts[10:])
    bench.check()


@pytest.mark.parametrize("compacted", [False, True])
def test_a_row_that_was_delivered_again_and_late_each_time_leaves_the_quarantine_for_good(tmp_path, compacted):
    bench, first = bench_of(tmp_path, "sessions", corrections="ignore", time=TIME), events(1, 1)[0]
    row, gone, *others = [first | {"t": BASE + minute * MINUTE, "id": f"e{minute:03d}"} for minute in (5, 8, 30, 60)]
    bench.run_in_parts([others, [row, gone]])
    for _ in range(2):
        bench.delete("id in ('e005', 'e008')")
        bench.run_in_parts([[row]])
    if compacted:  # the file of the last delivery is gone, too
        DeltaTable(bench.source).optimize.compact()
    assert bench.lost() == 4
    bench.restate(late=True)
    assert ['"id":"e008"' in each["row"] for each in bench.quarantine()] == [True]
    assert [each["window_start"] for each in bench.latest()] == [row["t"], others[0]["t"]]
    bench.check()
    assert bench.restate(ends=(None, bench.emitted())).restated.windows == 0


def test_versions_that_runs_have_ignored_are_restated_when_asked_for(tmp_path):
    bench, parts = bench_of(tmp_path, "mixed", corrections="ignore"), cut(events(1, 300), 1, 3)
    bench.run_in_parts(parts[:2])
    bench.correct(3)
    version = DeltaTable(bench.source).version()
    bench.run_in_parts(parts[2:])
    assert len(differences(bench.latest(), bench.truth())) > 0
    assert loop.restate(bench.pipeline, quiet()) == []
    done = bench.restate(changed=(version, version))
    assert 0 < done.restated.windows < 4
    assert done.restated.keys == 1
    bench.check()


@pytest.mark.parametrize("emit", ["final", "revise"])
def test_restatements_of_several_keys_at_one_version_keep_their_rows_apart(tmp_path, emit):
    time = TIME | {"disorder": "2 hours", "lateness": "1 hour"}
    bench, (*parts, late) = (
        bench_of(tmp_path, "rows", corrections="ignore", emit=emit, time=time, windows=[*WINDOWS["rows"]["windows"], SPANS]),
        cut(events(1, 300), 1, 4),
    )
    bench.run_in_parts(parts)
    for key in "ab":
        bench.update(f"k = '{key}'", i="coalesce(i, 0) + 100")
    bench.run()
    version = DeltaTable(bench.source).version()
    for changed in (version - 1, version):
        bench.restate(changed=(changed, changed))
    bench.run_in_parts([late])
    bench.check()


def test_a_range_is_compared_with_the_source_as_it_is_now(tmp_path):
    bench, rows = bench_of(tmp_path, "grids", corrections="ignore"), events(1, 300)
    bench.run_in_parts(cut(rows, 1, 2))
    bench.update("true", i="coalesce(i, 0) + 100")
    bench.run()
    ends = sorted({row["window_end"] for row in bench.rows()})
    first, last = ends[len(ends) // 3], ends[len(ends) // 2]
    wrong = bench.latest()
    bench.restate(ends=(first, last))
    right = {True: bench.truth(), False: wrong}
    for inside, wanted in right.items():
        own, expects = ([row for row in of if (first < row["window_end"] <= last) == inside] for of in (bench.latest(), wanted))
        assert differences(own, expects) == []


@pytest.mark.parametrize("kind", ["grids", "mixed", "rows"])
def test_a_range_in_which_nothing_differs_makes_no_batch(tmp_path, kind):
    bench, (*parts, last) = bench_of(tmp_path, kind), cut(events(1, 300), 1, 3)
    bench.run_in_parts(parts)
    bench.correct(3)
    bench.run()
    ledger, files = Ledger.open(bench.pipeline), sorted(tmp_path.rglob("*.parquet"))
    ends = sorted({row["window_end"] for row in bench.rows()})
    for bounds in [(ends[0], ends[len(ends) // 2]), (ends[len(ends) // 2], None)]:
        assert loop.restate(bench.pipeline, quiet(), ends=bounds) == []
    assert Ledger.open(bench.pipeline).count == ledger.count
    assert sorted(tmp_path.rglob("*.parquet")) == files
    bench.run_in_parts([last])
    bench.check()


@pytest.mark.parametrize("kind", ["policies", "rows"])
def test_a_window_that_a_correction_has_moved_out_of_the_range_stays_as_it_is_shown(tmp_path, kind):
    bench, first = bench_of(tmp_path, kind, time=TIME), events(1, 1)[0]
    bench.land([first | {"t": BASE + minute * MINUTE, "id": f"e{minute:03d}", "i": 1} for minute in (10, 20, 30, 40, 50, 60, 200)])
    bench.run()
    moved = min(row["window_end"] for row in bench.rows())
    bench.delete("id = 'e020'")
    bench.run()
    before = bench.rows()
    assert loop.restate(bench.pipeline, quiet(), ends=(moved - MINUTE, moved)) == []
    assert bench.rows() == before
    bench.check()


@pytest.mark.parametrize(
    ("corrected", "bounds"),
    [("id = 'e012'", (12, 21)), ("id = 'e012'", (12, 14)), ("id in ('e012', 'e025')", (20, 22)), ("id = 'e041'", (25, 60))],
)
def test_sessions_that_a_correction_has_moved_across_the_bounds_of_a_range_are_restated_as_a_whole(tmp_path, corrected, bounds):
    bench = bench_of(tmp_path, "sessions", corrections="ignore", time=TIME)
    event = events(1, 1)[0]
    bench.land([event | {"t": BASE + minute * MINUTE, "id": f"e{minute:03d}", "i": 1} for minute in (8, 12, 16, 21, 25, 29, 41, 45, 200)])
    bench.run()
    at = BASE + (22 if "041" not in corrected else 37) * MINUTE
    bench.update(corrected, t=f"arrow_cast({at}, 'Timestamp(Microsecond, Some(\"UTC\"))')")
    bench.run()
    first, last = (BASE + minute * MINUTE for minute in bounds)
    loop.restate(bench.pipeline, quiet(), ends=(first, last))
    shown, truth = bench.latest(), bench.truth()
    assert [row for row in truth if first < row["window_end"] <= last and row not in shown] == []
    for row in [*shown, *truth]:
        over = [each for each in shown if each["window_start"] < row["window_end"] and row["window_start"] < each["window_end"]]
        assert over == [row] if row in shown else over, "no window overlaps another, and none is missing"


def test_a_range_in_which_nothing_differs_corrects_the_state_all_the_same(tmp_path):
    bench, (*parts, last) = bench_of(tmp_path, "mixed", corrections="ignore"), cut(events(1, 300), 1, 3)
    bench.run_in_parts(parts)
    bench.update(f"t > arrow_cast({bench.emitted()}, 'Timestamp(Microsecond, Some(\"UTC\"))')", i="coalesce(i, 0) + 100")
    bench.run()
    assert bench.restate(ends=(None, bench.emitted() - 200 * MINUTE)).restated.windows == 0
    bench.run_in_parts([last])
    bench.check()


@pytest.mark.parametrize("configuration", [{}, {"delta.enableChangeDataFeed": "true"}], ids=["files", "feed"])
def test_runs_take_up_appended_and_corrected_rows_in_the_order_of_versions(tmp_path, configuration):
    bench, parts = bench_of(tmp_path, "mixed"), cut(events(1, 300), 1, 4)
    bench.append(pa.Table.from_pylist(list(parts[0]), schema=SCHEMA), configuration=configuration)
    bench.run()
    bench.land(parts[1])
    bench.correct(3)
    bench.remove(5)
    bench.land(parts[2])
    assert [batch.plan.action for batch in bench.run()] == ["run", "restate", "run"]
    bench.check()
    assert bench.run() == []


@pytest.mark.covers("S1")
@pytest.mark.parametrize("changes", ["restate", "refuse"])
@pytest.mark.parametrize("kind", ["grids", "mixed", "policies"])
def test_rows_that_are_gone_are_restated_from_the_table_as_it_is_now(tmp_path, kind, changes):
    bench, parts = bench_of(tmp_path, kind, corrections=changes), cut(events(1, 300), 1, 4)
    bench.run_in_parts(parts[:2])
    bench.land(parts[2])
    bench.correct(3)
    bench.remove(5)
    DeltaTable(bench.source).vacuum(0, dry_run=False, enforce_retention_duration=False)
    for _ in range(2):
        with pytest.raises(SourceRangeGoneError if changes == "restate" else SourceError):
            bench.run()
    assert bench.restate(ends=(None, bench.emitted() + 10_000 * MINUTE)).restated.windows > 0
    bench.run()
    bench.check()
    bench.run_in_parts(parts[3:])
    bench.check()
    assert loop.restate(bench.pipeline, quiet(), ends=(None, bench.emitted())) == []


def test_a_compacted_source_is_restated_as_before_and_nothing_before_a_first_run(tmp_path):
    bench, (first, *parts) = bench_of(tmp_path, "mixed"), cut(events(1, 300), 1, 3)
    bench.land(first)
    with pytest.raises(OutOfTurnError, match=r"pipeline bench: has committed no batch.*`windowmill run` it first"):
        bench.restate()
    bench.run_in_parts(parts)
    DeltaTable(bench.source).optimize.compact()
    DeltaTable(bench.source).vacuum(0, dry_run=False, enforce_retention_duration=False)
    assert loop.restate(bench.pipeline, quiet(), ends=(None, bench.emitted())) == []


def test_rows_that_a_merge_inserts_move_the_watermark(tmp_path):
    bench, rows = bench_of(tmp_path, "mixed"), events(1, 300)
    bench.land(rows[:200])
    bench.run()
    shown = bench.emitted()
    merged = pa.Table.from_pylist([*rows[200:], rows[3] | {"i": 77}], schema=SCHEMA)
    merging = DeltaTable(bench.source).merge(merged, "s.id = t.id", source_alias="s", target_alias="t")
    merging.when_matched_update_all().when_not_matched_insert_all().execute()
    assert [batch.plan.action for batch in bench.run()] == ["restate", "run"]
    assert bench.emitted() > shown
    bench.check()


def test_a_window_that_forgets_idle_keys_shows_each_number_of_a_trigger_once_a_life(tmp_path):
    window = WINDOWS["policies"]["windows"][0] | {"idle_after": "30 minutes"}
    bench, first = bench_of(tmp_path, "policies", windows=[window], time=TIME), events(1, 1)[0]
    minutes = [1, 2, 3, 4, 100, 101, 102, 103, 300]
    bench.land([first | {"t": BASE + minute * MINUTE, "id": f"e{minute}", "i": 1} for minute in minutes])
    bench.run()
    bench.update("id = 'e102'", i="50")
    assert bench.run()[0].restated.windows == 1
    shown = [((row["window_end"] - BASE) // MINUTE, row["trigger"], row["revision"], row["whole"]) for row in bench.rows()]
    assert sorted(shown) == [(2, 0, 0, 2), (4, 1, 0, 3), (101, 0, 0, 2), (103, 1, 0, 3), (103, 1, 1, 52)]


def test_a_run_that_refuses_corrections_names_the_command_that_takes_them_up(tmp_path):
    bench = bench_of(tmp_path, "grids", corrections=None)
    bench.run_in_parts([events(1, 100)])
    bench.remove(5)
    with pytest.raises(NonAppendCommitError, match=r"version 1 \(DELETE\) changed or removed rows; `windowmill restate` recomputes"):
        bench.run()
    assert bench.restate().restated.windows > 0
    assert bench.run() == []
    bench.check()


def fail() -> None:
    raise InjectedError("here")


@pytest.mark.parametrize(
    "point", [point for point in FAILPOINTS if not point.startswith(("ruling", "quality", "quarantine", "held", "seen"))]
)
def test_a_restatement_that_fails_anywhere_is_resumed(tmp_path, point):
    bench = bench_of(tmp_path, "mixed")
    bench.run_in_parts([events(1, 150)])
    bench.update("id = 'e00130' or id = 'e00130x'", t="t + interval '1 minute'")
    arm(point, fail)
    try:
        bench.run()
    except InjectedError:
        bench.run()
    finally:
        disarm()
    assert [batch.action for batch in Ledger.open(bench.pipeline).batches()] == ["run", "restate"]
    bench.check()
