"""Time settings and `emit` change in the same sink: they count from the next batch on, and nothing that has been reached goes back."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from deltalake import DeltaTable, write_deltalake

from tests.spark.harness import quiet
from windowmill.checkpoints.ledger import Ledger
from windowmill.jobs.batch import loop
from windowmill.jobs.batch import maintenance_batches as savepoints
from windowmill.jobs.cli import main
from windowmill.jobs.commands.change_commands import planned
from windowmill.jobs.verify.check import verify
from windowmill.windowing import errors
from windowmill.windowing.axis import AXIS_BEGIN
from windowmill.windowing.specfile import parse_pipeline

TENS = {"name": "tens", "type": "tumbling", "size": 10}
VISITS = {"name": "visits", "type": "session", "gap": 4}
SPANS = {"name": "spans", "type": "snapshot"}
LAST_3 = {"name": "last_3", "type": "sliding", "evict": {"count": 3}, "trigger": {"count": 1}}
PAIRS = {"name": "pairs", "type": "tumbling", "evict": {"count": 2}}


class Line:
    """A pipeline over integers, of which each is a commit."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        self.folder = folder
        self.spec: dict[str, Any] = {
            "pipeline": "line",
            "source": {"path": str(folder / "source")},
            "time": {"column": "t", "unit": "none", "tie_break": ["t"]},
            "windows": [TENS],
            "aggregates": {"n": {"count": "*"}, "times": {"collect": "t"}},
            "sink": {"path": str(folder / "sink")},
            "quarantine": {"warn": "never", "hold": "never"},
        }
        self.change(**changes)

    def change(self, **changes: Any) -> None:
        """Change the spec: lengths of ``time`` by their names, other fields by theirs."""
        for name, value in changes.items():
            target = self.spec["time"] if name in ("disorder", "lateness", "watermark") else self.spec
            target[name] = value

    @property
    def pipeline(self) -> Any:
        return parse_pipeline(self.spec)

    @property
    def ledger(self) -> Ledger:
        return Ledger.open(self.pipeline)

    def land(self, *times: int) -> Line:
        for at in times:
            write_deltalake(self.spec["source"]["path"], pa.table({"t": [at], "k": [at % 3]}), mode="append")
        return self

    def run(self, **options: Any) -> Line:
        loop.run(self.pipeline, quiet(), **options)
        return self

    def apply(self, *, history: int | None = AXIS_BEGIN, recompute: bool = False, **changes: Any) -> Any:
        self.change(**changes)
        return loop.apply(self.pipeline, quiet(), history=history, recompute=recompute)

    def rows(self, window: str = "tens") -> list[tuple[int, int, list[int]]]:
        """End, revision and times of each row of the sink; null for times of a retraction."""
        rows = [row for row in DeltaTable(self.spec["sink"]["path"]).to_pyarrow_table().to_pylist() if row["window"] == window]
        return sorted((row["window_end"], row["revision"], row["times"]) for row in rows)

    def lost(self) -> list[int]:
        place = f"{self.spec['sink']['path']}.windowmill/quarantine"
        return sorted(DeltaTable(place).to_pyarrow_table()["event_time"].to_pylist()) if DeltaTable.is_deltatable(place) else []


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINDOWMILL_COMPUTE", "local")


@pytest.mark.parametrize("together", [False, True])
def test_a_longer_lateness_opens_no_window_again(tmp_path, together):
    line = Line(tmp_path).land(5, 25).run()
    line.apply(lateness=20)
    for at in (6, 21, 45, 22, 55):
        line.land(at)
        if not together:
            line.run()
    line.run()
    # 6 comes when its window is closed; 22 finds the watermark 45, and its window closed by the old lateness alone.
    assert (line.rows(), line.lost()) == ([(10, 0, [5]), (30, 0, [21, 22, 25])], [6])


def test_a_shorter_lateness_publishes_what_it_completes_in_a_batch_without_rows(tmp_path):
    line = Line(tmp_path, lateness=20).land(5, 25).run()
    line.apply(lateness=0)
    assert line.rows() == []
    line.land(12).run()
    batch = next(batch for batch in line.ledger.batches() if batch.counts.rows_published)
    assert (line.rows(), line.lost(), batch.counts.rows_read) == ([(10, 0, [5])], [12], 0)


@pytest.mark.parametrize("together", [False, True])
def test_a_longer_disorder_leaves_the_watermark_where_it_is(tmp_path, together):
    line = Line(tmp_path, windows=[TENS, PAIRS]).land(5, 24, 25).run()
    line.apply(disorder=20)
    for at in (22, 40, 26, 52):
        line.land(at)
        if not together:
            line.run()
    line.run()
    # 22 is behind the watermark 25, which moves on once 20 less than the greatest time is more: 26 waits until then.
    assert line.rows() == [(10, 0, [5]), (30, 0, [22, 24, 25, 26])]
    # The pairs have applied 24, so 22 is too late for them.
    assert [times for _, _, times in line.rows("pairs")] == [[5, 24], [25, 26]]
    assert line.ledger.last_commit.outcome.watermark is None


def test_a_longer_disorder_revises_what_has_been_shown(tmp_path):
    line = Line(tmp_path, windows=[TENS, VISITS], lateness=20, emit="revise").land(5, 25).run()
    line.apply(disorder=20)
    line.land(7).run()
    assert (line.rows(), line.rows("visits")[-1]) == ([(10, 0, [5]), (10, 1, [5, 7])], (11, 1, [5, 7]))


def test_a_shorter_disorder_moves_the_watermark_on(tmp_path):
    line = Line(tmp_path, disorder=20, windows=[TENS, PAIRS]).land(5, 8, 25).run()
    assert (line.rows(), line.rows("pairs")) == ([], [])
    line.apply(disorder=0)
    line.run()
    assert (line.rows(), line.rows("pairs")) == ([(10, 0, [5, 8])], [(8, 0, [5, 8])])


def test_a_longer_lateness_of_sessions_and_live_rows_joins_nothing_that_is_closed(tmp_path):
    line = Line(tmp_path, windows=[VISITS, SPANS]).land(5, 25).run()
    line.apply(lateness=20)
    line.land(7, 23, 45, 27, 60).run()
    # 7 would have joined the session of 5, and 23 joins that of 25, as does 27, which the old lateness would have refused. The span of 23
    # was closed before the change.
    assert line.rows("visits") == [(9, 0, [5]), (31, 0, [23, 25, 27])]
    assert [times for _, _, times in line.rows("spans")] == [[5], [25], [27]]
    assert line.lost() == [7]


def test_keys_of_live_rows_are_due_by_the_new_lateness(tmp_path):
    """The state names the watermark from which a key has work, by the lateness of then."""
    line = Line(tmp_path, windows=[SPANS], lateness=100, keys=["k"]).land(6, 9, 24).run()
    line.apply(lateness=0)
    line.run()
    assert [times for _, _, times in line.rows("spans")] == [[6], [9]]


@pytest.mark.parametrize("waits", [False, True])
def test_final_becomes_revise(tmp_path, waits):
    line = Line(tmp_path, lateness=20).land(5, 25).run()
    line.apply(emit="revise")
    assert line.rows() == []
    if not waits:
        line.run()
        assert line.rows() == [(10, 0, [5])]
    line.land(6, 7, 50).run()
    assert line.rows() == [(10, 0, [5]), (10, 1, [5, 6]), (10, 2, [5, 6, 7]), (30, 0, [25])]


def test_a_row_that_was_late_counts_in_the_windows_that_are_shown_later(tmp_path):
    line = Line(tmp_path, windows=[TENS, VISITS], lateness=40).land(5, 85, 46).run()
    line.apply(emit="revise")
    line.run()
    assert (line.rows(), line.rows("visits")) == ([(10, 0, [5]), (50, 0, [46])], [(9, 0, [5]), (50, 0, [46])])


def test_revise_becomes_final_and_closes_what_has_been_shown(tmp_path):
    line = Line(tmp_path, lateness=20, emit="revise").land(5, 25, 6).run()
    line.apply(emit="final")
    line.land(7, 21, 45, 22, 55).run()
    assert line.rows() == [(10, 0, [5]), (10, 1, [5, 6]), (30, 0, [21, 22, 25])]
    assert line.lost() == [7]


def test_emit_there_and_back_between_two_runs_shows_nothing_twice(tmp_path):
    line = Line(tmp_path, lateness=20, emit="revise").land(5, 25).run()
    line.apply(emit="final")
    line.apply(emit="revise")
    line.land(6, 21, 55).run()
    assert (line.rows(), line.lost()) == ([(10, 0, [5]), (30, 0, [21, 25])], [6])


def test_windows_are_recomputed_as_if_the_settings_had_held_from_the_beginning(tmp_path):
    line = Line(tmp_path, windows=[TENS, VISITS]).land(5, 25, 7, 45).run()
    assert (line.rows(), line.lost()) == ([(10, 0, [5]), (30, 0, [25])], [7])
    line.apply(lateness=20, recompute=True)
    assert line.rows() == [(10, 0, [5, 7]), (30, 0, [25])]
    assert line.rows("visits") == [(11, 0, [5, 7]), (29, 0, [25])]
    # What is closed stays closed: 26 is late by what was reached, and not by the new lateness.
    line.land(26, 48, 80).run()
    assert (line.rows(), line.lost()) == ([(10, 0, [5, 7]), (30, 0, [25]), (50, 0, [45, 48])], [7, 26])
    loop.backfill(line.pipeline, quiet(), begin=-100, end=100)
    assert line.rows()[1:] == [(30, 0, [25, 26]), (50, 0, [45, 48])]


@pytest.mark.parametrize(
    ("history", "at_once", "later"),
    [(AXIS_BEGIN, [(20, 0, [5]), (20, 1, [5, 7])], []), (20, [], [(20, 0, [5, 7])]), (None, [], [(20, 0, [5, 7])])],
)
def test_what_is_recomputed_to_be_revised_leaves_out_rows_of_closed_windows(tmp_path, history, at_once, later):
    """7 comes when the first of its windows is closed, and counts in the second alone; 21 is late to none."""
    hops = {"name": "tens", "type": "hopping", "size": 20, "hop": 10, "origin": 0}
    line = Line(tmp_path, windows=[hops], lateness=15).land(5, 26, 7, 21).run()
    line.apply(emit="revise", recompute=True, history=history)
    assert line.rows() == [(10, 0, [5]), *at_once]
    line.land(50).run()
    assert line.rows() == [(10, 0, [5]), *at_once, *later, (30, 0, [21, 26]), (40, 0, [21, 26])]


def test_a_backfill_of_a_part_judges_rows_as_no_run_has(tmp_path):
    line = Line(tmp_path, windows=[VISITS]).land(5, 25, 7, 45).run()
    line.apply(lateness=20)
    with pytest.raises(
        errors.UnsupportedError, match=r"rows are late by the settings of time as they are now, .*windows of visits could move"
    ):
        loop.backfill(line.pipeline, quiet(), begin=20, end=30)
    loop.backfill(line.pipeline, quiet(), begin=-100, end=100)
    assert line.rows("visits") == [(11, 0, [5, 7]), (29, 0, [25])]
    # Its state is that of the rows that it counts.
    line.land(90).run()
    assert line.rows("visits") == [(11, 0, [5, 7]), (29, 0, [25]), (49, 0, [45])]


def test_a_part_of_the_history_is_recomputed(tmp_path):
    line = Line(tmp_path).land(5, 25, 7, 21, 45).run()
    line.apply(lateness=20, recompute=True, history=10)
    assert line.rows() == [(10, 0, [5]), (30, 0, [21, 25])]


def test_without_history_windows_that_are_open_are_recomputed(tmp_path):
    """20 was too late for a session of its own, and joins that of 25 by 23, which came after it."""
    line = Line(tmp_path, windows=[VISITS]).land(25, 20, 23).run()
    line.apply(lateness=20, recompute=True, history=None)
    line.land(80).run()
    assert line.rows("visits") == [(29, 0, [20, 23, 25])]


def test_nothing_is_recomputed_where_no_setting_has_changed(tmp_path):
    line = Line(tmp_path).land(5, 25).run()
    assert line.apply(recompute=True) is None
    with pytest.raises(
        errors.SpecError, match="--recompute: no setting of time and no emit has changed since the last batch; leave it out"
    ):
        line.apply(windows=[TENS, VISITS], recompute=True)


def test_a_run_refuses_settings_that_have_not_been_applied(tmp_path):
    line = Line(tmp_path).land(5, 25).run()
    line.change(lateness=20)
    with pytest.raises(
        errors.SpecChangedError, match=r"time\.lateness was not given and is 20; .* carry it out by `windowmill apply SPEC`"
    ):
        line.run()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"time": {"column": "t", "unit": "none"}}, 'time.tie_break was ["t"] and is not given'),
        ({"time": {"column": "u", "unit": "none", "tie_break": ["t"]}}, 'time.column was "t" and is "u"'),
        ({"watermark": "data_interval_end"}, 'time.watermark was not given and is "data_interval_end"'),
    ],
)
def test_what_is_no_setting_makes_another_pipeline(tmp_path, changes, says):
    line = Line(tmp_path).land(5, 25).run()
    with pytest.raises(errors.SpecChangedError) as refused:
        line.apply(**changes)
    assert f"keys or time differ from those that built {line.ledger.path}: {says}; they make another pipeline" in str(refused.value)


#: Specs of equal meaning: the fields of one, and of another.
SAME: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"time": {"column": "t"}}, {"time": {"column": "t", "disorder": 0}}),
    ({"time": {"column": "t"}}, {"time": {"column": "t", "lateness": "0 seconds", "max_future_skew": "1 day"}}),
    ({"time": {"column": "t", "disorder": "60 minutes"}}, {"time": {"disorder": "1 hour", "column": "t"}}),
    ({"time": {"column": "t", "disorder": "PT1H30M"}}, {"time": {"column": "t", "disorder": "90 minutes"}}),
    ({"time": {"column": "t", "lateness": "24 hours"}}, {"time": {"column": "t", "lateness": "1 day"}}),
    ({"time": {"column": "t", "max_future_skew": "24 hours"}}, {"time": {"column": "t"}}),
    ({}, {"emit": "final"}),
    ({"keys": ["k"]}, {"keys": ("k",)}),
    ({"quarantine": {"warn": "2 %"}}, {"quarantine": {"hold": "50 %"}}),
    (
        {"windows": [{"name": "w", "type": "tumbling", "size": "1 hour"}]},
        {"windows": [{"size": "60 minutes", "type": "tumbling", "name": "w"}]},
    ),
    (
        {"windows": [{"name": "w", "type": "tumbling", "evict": {"delta": {"column": "v", "by": 5}}}]},
        {"windows": [{"name": "w", "type": "tumbling", "evict": {"delta": {"column": "v", "by": 5.0}}}]},
    ),
    ({"aggregates": {"a": {"median": "v"}, "b": {"sum": "v"}}}, {"aggregates": {"b": {"sum": "v"}, "a": {"median": "v"}}}),
    (
        {"aggregates": {"h": {"histogram": {"column": "v", "edges": [0, 10]}}}},
        {"aggregates": {"h": {"histogram": {"column": "v", "edges": [0.0, 10.0]}}}},
    ),
    ({"aggregates": {"q": {"quantile": {"column": "v", "q": 1}}}}, {"aggregates": {"q": {"quantile": {"q": 1.0, "column": "v"}}}}),
]
OTHER: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"time": {"column": "t"}}, {"time": {"column": "t", "disorder": "1 second"}}),
    ({"time": {"column": "t"}}, {"time": {"column": "t", "max_future_skew": None}}),
    ({"time": {"column": "t", "lateness": "1 hour"}}, {"time": {"column": "t", "disorder": "1 hour"}}),
    ({}, {"emit": "revise"}),
    ({"keys": ["k"]}, {"keys": ["k", "l"]}),
]


def _spec(fields: dict[str, Any]) -> Any:
    windows = [{"name": "w", "type": "tumbling", "size": "1 hour"}]
    return parse_pipeline({"pipeline": "p", "time": {"column": "t"}, "windows": windows, "aggregates": {"n": {"count": "*"}}} | fields)


@pytest.mark.parametrize(("one", "other"), [*SAME, *((other, one) for one, other in SAME)])
def test_a_change_without_effect_is_none(one, other):
    before, now = _spec(one), _spec(other)
    assert now.means(before.shown_meaning(), before.meaning_hash())


@pytest.mark.parametrize(("one", "other"), OTHER)
def test_a_change_with_an_effect_is_one(one, other):
    before, now = _spec(one), _spec(other)
    assert not now.means(before.shown_meaning(), before.meaning_hash())


def test_limits_of_quarantine_count_from_the_next_run_on_and_the_skew_by_apply(tmp_path):
    line = Line(tmp_path).land(5, 25).run()
    line.change(quarantine={"warn": "never", "hold": "1 %"})
    assert line.apply() is None
    with pytest.raises(errors.HeldError):
        line.land(6).run()


def test_a_plan_says_which_windows_other_settings_would_have_given_otherwise(tmp_path):
    line = Line(tmp_path, windows=[TENS, VISITS]).land(5, 25, 7, 45).run()
    line.change(lateness=20)
    data = planned(line.pipeline, AXIS_BEGIN, "line.yaml").data
    assert data["settings"] == ["time.lateness was not given and is 20"]
    assert data["otherwise"] == {
        "windows": {"tens": 1, "visits": 2},
        "why": "rows came too late: 1 missed a window of tens, 1 of visits",
        "too_late": [7, 7],
    }
    assert (data["reads"]["files"], {each["fate"] for each in data["windows"]}) == (0, {"kept"})
    anew = planned(line.pipeline, AXIS_BEGIN, "line.yaml", recompute=True).data
    assert ({each["fate"] for each in anew["windows"]}, anew["otherwise"]) == ({"filled"}, None)
    assert "`windowmill apply line.yaml --recompute` does it" in anew["summary"]


@pytest.mark.parametrize(
    ("before", "after", "windows", "why"),
    [
        ({"lateness": 20}, {"lateness": 0}, {"tens": 1}, "1 row came late and counted"),
        ({"disorder": 20}, {"disorder": 0}, {"tens": 2}, "rows that came in time may be late by the shorter disorder"),
        ({"lateness": 40}, {"lateness": 50}, {}, ""),
        ({"lateness": 20}, {"emit": "revise"}, {}, ""),
    ],
)
def test_a_plan_says_why_windows_would_differ(tmp_path, before, after, windows, why):
    line = Line(tmp_path, **before).land(5, 15, 7, 45).run()
    line.change(**after)
    found = planned(line.pipeline, AXIS_BEGIN, "line.yaml").data["otherwise"]
    assert (found["windows"], found["why"]) == (windows, why)


def test_a_plan_that_is_kept_recomputes(tmp_path, capsys):
    line = Line(tmp_path).land(5, 25, 7, 45).run()
    line.change(lateness=20)
    spec, kept = tmp_path / "line.yaml", tmp_path / "plan.json"
    spec.write_text(yaml.safe_dump(line.spec))
    assert main(["plan", str(spec), "--recompute", "--out", str(kept)]) == 4
    assert "these settings" not in capsys.readouterr().out
    assert json.loads(kept.read_text())["recompute"] is True
    assert main(["apply", str(kept), "--recompute"]) == 2
    assert "--recompute: the plan" in capsys.readouterr().err
    assert main(["apply", str(kept)]) == 0
    assert line.rows() == [(10, 0, [5, 7]), (30, 0, [25])]


def test_a_plan_is_told_in_words(tmp_path, capsys):
    line = Line(tmp_path).land(5, 25, 7, 45).run()
    line.change(lateness=20)
    (tmp_path / "line.yaml").write_text(yaml.safe_dump(line.spec))
    assert main(["plan", str(tmp_path / "line.yaml")]) == 4
    said = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "time.lateness was not given and is 20; from the next batch on" in said
    assert "up to 1 of tens otherwise: rows came too late: 1 missed a window of tens (in quarantine are times from 7 to 7)" in said


def test_a_restoration_goes_back_to_the_settings_of_its_savepoint(tmp_path):
    line, before = Line(tmp_path).land(5, 25).run(), {}
    savepoints.create(line.pipeline, quiet(), "old")
    line.apply(lateness=20)
    savepoints.create(line.pipeline, quiet(), "new")
    line.land(26, 45, 6).run()
    before = (line.rows(), line.lost())
    assert before == ([(10, 0, [5])], [6])
    # Behind the change what was closed before it is closed again.
    savepoints.restore(line.pipeline, quiet(), "new")
    assert (line.run().rows(), line.lost()) == before
    line.change(lateness=0)
    savepoints.restore(line.pipeline, quiet(), "old")
    assert (line.run().rows(), line.lost()) == ([(10, 0, [5]), (30, 0, [25, 26])], [6])


def test_windows_that_stay_do_not_go_on_from_a_state_that_lacks_their_rows(tmp_path):
    line = Line(tmp_path, windows=[VISITS], lateness=20).land(5, 15, 6, 17).run()
    line.apply(lateness=0)
    line.run()
    with pytest.raises(errors.UnsupportedError, match=r"visits would continue from a state without rows that have counted.*--recompute"):
        line.apply(emit="revise")
    assert line.rows("visits") == [(10, 0, [5, 6])]
    line.apply(emit="revise", recompute=True)
    line.land(60).run()
    assert line.rows("visits") == [(9, 0, [5]), (21, 0, [15, 17])]


def test_an_interval_that_is_vouched_for_keeps_windows_closed(tmp_path):
    line = Line(tmp_path, watermark="data_interval_end", lateness=0)
    line.spec["time"] |= {"unit": "us"}

    def run(end: int) -> None:
        line.run(interval_end=datetime.fromtimestamp(end / 1e6, UTC))

    line.land(5)
    run(25)
    line.apply(lateness=20)
    line.land(6, 21)
    run(45)
    assert (line.rows(), line.lost()) == ([(10, 0, [5])], [6])
    line.land(22)
    run(55)
    assert (line.rows(), line.lost()) == ([(10, 0, [5]), (30, 0, [21, 22])], [6])


def test_an_interval_that_is_vouched_for_shows_what_is_revised_from_now_on(tmp_path):
    line = Line(tmp_path, watermark="data_interval_end", lateness=20)
    line.spec["time"] |= {"unit": "us"}
    ends = [datetime.fromtimestamp(end / 1e6, UTC) for end in (25, 26, 36)]
    line.land(5).run(interval_end=ends[0])
    line.apply(emit="revise")
    line.run(interval_end=ends[1])
    assert line.rows() == [(10, 0, [5])]
    line.land(6, 22).run(interval_end=ends[2])
    assert line.rows() == [(10, 0, [5]), (10, 1, [5, 6]), (30, 0, [22])]


def test_rows_that_were_late_by_other_settings_are_no_difference_to_verify(tmp_path):
    line = Line(tmp_path, windows=[SPANS]).land(5, 25, 27, 7, 45).run()
    line.apply(lateness=20)
    line.land(26, 60, 90).run()
    found = verify(line.pipeline, quiet(), number=100, seed=1)
    assert (found.comparison.differing, found.comparison.compared.total() > 0) == ([], True)


def test_verify_recomputes_an_added_window_with_the_rows_of_the_quarantine_that_it_takes(tmp_path):
    line = Line(tmp_path, windows=[SPANS]).land(5, 25, 7, 45).run()
    line.apply(windows=[SPANS, LAST_3])
    line.land(26, 60, 90).run()
    assert (line.lost(), line.rows("last_3")[:3]) == ([7], [(5, 0, [5]), (7, 0, [5, 7]), (25, 0, [5, 7, 25])])
    found = verify(line.pipeline, quiet(), number=100, seed=1).comparison
    assert (found.differing, len(found.rows), found.left_out) == ([], len(line.rows("last_3")) + len(line.rows("spans")), {})


@pytest.mark.parametrize("backfilled", [False, True])
def test_rows_of_the_quarantine_that_count_by_other_settings_are_no_difference_to_verify(tmp_path, backfilled):
    line = Line(tmp_path, windows=[LAST_3 | {"name": "w", "trigger": {"time": 1}}, SPANS]).land(5, 25, 7, 45).run()
    assert line.lost() == [7]
    line.apply(windows=[LAST_3], disorder=40, recompute=True)
    line.land(46).run()
    if backfilled:
        loop.backfill(line.pipeline, quiet(), begin=AXIS_BEGIN, end=1_000, history="log")
    assert (7, 0, [5, 7]) in line.rows("last_3")
    found = verify(line.pipeline, quiet(), number=100, seed=1).comparison
    excused = [row.row.end for row in found.rows if row.undecided is not None]
    assert (found.differing, sorted(excused)) == ([], [7, 25])
