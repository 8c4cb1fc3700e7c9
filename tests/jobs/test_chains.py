"""Pipelines over the results of others: their rows are those of a brute force over the other one's latest view, whatever happens to it."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.faults.dying import DiedError, arm
from tests.faults.kills import Run
from tests.jobs.chained import BASE, HOUR, Days, Level, World, brute, closes, published, ran_once, rows_of
from tests.jobs.test_widened_columns import retype
from tests.readers import compute_by_many_tasks
from tests.spark.harness import quiet
from windowmill import aggregate
from windowmill.checkpoints import current, failpoints
from windowmill.checkpoints.places import Places
from windowmill.jobs.batch import loop, purging
from windowmill.jobs.batch import maintenance_batches as savepoints
from windowmill.jobs.cli import main
from windowmill.jobs.commands.maintenance_command import maintain
from windowmill.jobs.sources import chains
from windowmill.jobs.sources.chains import InputCheck, UpstreamSink
from windowmill.jobs.verify.check import verify
from windowmill.windowing.axis import AXIS_BEGIN
from windowmill.windowing.errors import SourceMissingError, SourceReplacedError

pytestmark = pytest.mark.local
#: Ends and failures of a chain, by where a process ends.
PLACES = (*failpoints.OF_INPUT, "batch.before", "batch.after", "sink.after")
CUTS = int(os.environ.get("WINDOWMILL_CHAIN_CUTS", "25"))


def examples(few: int) -> range:
    """The seeds to try: ``few``, or as many as WINDOWMILL_CHAINS says, from WINDOWMILL_SEED on."""
    first = int(os.environ.get("WINDOWMILL_SEED", "0"))
    return range(first, first + int(os.environ.get("WINDOWMILL_CHAINS", few)))


def in_small_parts(monkeypatch: Any) -> None:
    """Files of a few rows, and keys compared in shares, as those of large inputs are."""
    monkeypatch.setattr(chains, "ROWS_PER_FILE", 7)
    monkeypatch.setattr(chains, "ROWS_SORTED", 20)
    monkeypatch.setattr(current, "ROWS_AT_ONCE", 40)


@pytest.mark.parametrize("seed", examples(25))
def test_rows_are_those_of_the_latest_view_whatever_happens_to_the_other_pipeline(tmp_path, seed, monkeypatch):
    if seed % 2:
        in_small_parts(monkeypatch)
    world = World(tmp_path, seed)
    world.land()
    for _ in range(8):
        world.happen()
        if world.rng.random() < 0.7:
            world.check()
    world.land()
    world.lower.run()
    world.check()


@pytest.mark.parametrize("seed", examples(6))
def test_windows_that_are_numbered_are_those_of_a_first_run(tmp_path, seed):
    """What a chain has revised again and again is what one gives that reads all at once."""
    world = World(tmp_path, 1_000 + seed)
    by_count = {"name": "last", "type": "sliding", "evict": {"count": 3}, "trigger": {"count": 2}}
    by_time = {"name": "ago", "type": "sliding", "evict": {"time": world.length(30)}, "trigger": {"time": world.length(20)}}
    visit = {"name": "visit", "type": "session", "gap": world.length(15)}
    ties = [*world.lower.spec["keys"], "window", "n", "total"]
    time = {"column": "window_end", "lateness": world.length(100_000), "tie_break": ties}
    world.upper.write(windows=[by_count, by_time, visit], time=time)
    world.checks = False
    world.land()
    for _ in range(7):
        world.happen()
        world.upper.run()
    fresh = Level(tmp_path, {**world.upper.spec, "pipeline": "fresh", "sink": {"path": str(tmp_path / "fresh")}})
    fresh.run()

    def places(level: Level) -> list[str]:
        return sorted(repr({name: value for name, value in row.items() if name != "batch"}) for row in level.shown())

    # One that has run before knows of a watermark to which the other pipeline may have gone back.
    if fresh.ledger.last_commit is not None and fresh.complete() == world._greatest(world.upper, world.upper.complete()):
        assert places(world.upper) == places(fresh)


def test_what_is_published_meanwhile_is_read_by_the_next_run(tmp_path, monkeypatch):
    days, found = Days(tmp_path, 4), chains._changed_paths
    days.land(5)
    days.run()
    days.land(5)
    days.minute.run()

    def meanwhile(*arguments: Any) -> Any:
        days.land(5)
        days.minute.run()
        return found(*arguments)

    monkeypatch.setattr(chains, "_changed_paths", meanwhile)
    days.hour.run()
    monkeypatch.undo()
    assert days.hour._marker().batch == 1
    assert days.hour.run()
    assert days.hour._marker().batch == 2
    days.day.run()
    days.direct.run()
    days.check()
    check = InputCheck.of(loop.runnable_of(days.hour.pipeline))
    assert check is not None
    assert check.differing == 0


def test_a_new_aggregate_of_the_other_pipeline_may_be_used(tmp_path):
    days = Days(tmp_path, 6)
    days.land(30)
    days.run()
    days.minute.write(aggregates=days.minute.spec["aggregates"] | {"least": {"min": "v"}})
    loop.apply(days.minute.pipeline, quiet(), history=AXIS_BEGIN)
    days.land(5)
    days.run()
    days.check()
    days.hour.write(aggregates=days.hour.spec["aggregates"] | {"least": {"min": "least"}})
    loop.apply(days.hour.pipeline, quiet(), history=AXIS_BEGIN)
    days.hour.spec["windows"] = [{"name": "hour", "type": "tumbling", "size": "60 minutes"}]
    every, through = brute(days.hour, days.minute.shown()), days.hour.complete()
    assert published(days.hour) == {place: values for place, values in every.items() if closes(days.hour, place, through)}


def test_a_change_may_use_columns_that_the_next_sync_adds(tmp_path, capsys):
    days = Days(tmp_path, 6)
    days.land(30)
    days.run()
    days.minute.write(aggregates=days.minute.spec["aggregates"] | {"least": {"min": "v"}})
    loop.apply(days.minute.pipeline, quiet(), history=AXIS_BEGIN)
    days.hour.write(aggregates=days.hour.spec["aggregates"] | {"least": {"min": "least"}})
    version = DeltaTable(Places.of(days.hour.pipeline).input).version()
    assert main(["plan", str(days.hour.file)]) == 4
    assert "input lacks 1 published batch of minute, which `apply` adds" in " ".join(capsys.readouterr().out.split())
    assert DeltaTable(Places.of(days.hour.pipeline).input).version() == version
    loop.apply(days.hour.pipeline, quiet(), history=AXIS_BEGIN)
    days.hour.run()
    days.hour.spec["windows"] = [{"name": "hour", "type": "tumbling", "size": "60 minutes"}]
    every, through = brute(days.hour, days.minute.shown()), days.hour.complete()
    assert published(days.hour) == {place: values for place, values in every.items() if closes(days.hour, place, through)}


@pytest.mark.parametrize("lateness", ["2 hours", "1000000 days"])
def test_corrections_of_any_column_reach_the_next_level(tmp_path, lateness):
    """Also where it is named like a column of the state, and where windows stay open for longer than there are dates."""
    days = Days(tmp_path, 9)
    days.land(2)
    aggregates = {"n": {"count": "*"}, "_sum": {"sum": "v"}}
    days.minute.write(aggregates=aggregates, emit="revise", source={"path": str(tmp_path / "events"), "changes": "restate"})
    days.hour.write(aggregates={"_sum": {"sum": "_sum"}}, emit="revise", time={"column": "window_start", "lateness": lateness})
    for level in (days.minute, days.hour):
        level.run()
    before = sum(row["_sum"] for row in days.hour.shown())
    DeltaTable(tmp_path / "events").update(updates={"v": "v + 1000"})
    for level in (days.minute, days.hour):
        level.run()
    assert sum(row["_sum"] for row in days.hour.shown()) > before


def test_a_correction_is_compared_with_rows_of_its_windows_only(days, monkeypatch):
    sizes, found = list[tuple[int, int]](), chains.InputComparison._before

    def before(self: Any, fresh: pa.Table, share: Any) -> pa.Table:
        rows = found(self, fresh, share)
        sizes.append((len(fresh), len(rows)))
        return rows

    monkeypatch.setattr(chains.InputComparison, "_before", before)
    at = pa.array([(days.at - 100) * 60_000_000 + BASE], pa.float64()).cast(pa.int64(), safe=False).cast(pa.timestamp("us", "UTC"))
    event = {"id": pa.array([days.n]), "shop": ["a"], "item": pa.array([1]), "t": at, "v": pa.array([1])}
    write_deltalake(days.folder / "events", pa.table(event), mode="append")
    days.run()
    days.check()
    assert len(sizes) == 2
    assert all(fresh and known <= fresh for fresh, known in sizes)


def test_what_the_other_pipeline_had_published_is_missed(tmp_path):
    days = Days(tmp_path, 10)
    days.land(3)
    days.run()
    (tmp_path / "gone").mkdir()
    sink = Path(days.minute.spec["sink"]["path"])
    sink.rename(tmp_path / "gone" / "sink")
    with pytest.raises(SourceMissingError, match=r"what the pipeline minute had published is gone from .*; bring both back, or give this"):
        days.hour.run()
    (tmp_path / "gone" / "sink").rename(sink)
    days.land(1)
    days.run()
    days.check()


def test_a_column_that_becomes_wider_is_wider_through_the_chain(tmp_path):
    days = Days(tmp_path, 8)
    days.land(3)
    rows = DeltaTable(tmp_path / "events").to_pyarrow_table()
    write_deltalake(tmp_path / "other", rows.set_column(4, "v", rows["v"].cast(pa.int32())))
    for level in (days.minute, days.direct):
        level.write(source={"path": str(tmp_path / "other")})
    days.run()
    retype(str(tmp_path / "other"), "v", pa.int64())
    days.folder = tmp_path / "wide"
    days.land(30)
    wide = DeltaTable(tmp_path / "wide" / "events").to_pyarrow_table()
    write_deltalake(tmp_path / "other", wide.set_column(4, "v", pc.multiply(wide["v"], 10**11)), mode="append")
    for _ in range(2):
        for level in (*days.levels, days.direct):
            level.run()
        days.check()
    kinds = {field.name: field.type.type for field in DeltaTable(Places.of(days.hour.pipeline).input).schema().fields}
    assert kinds["high"] == "long"


def test_days_over_hours_over_minutes_are_those_of_one_pipeline_after_each_cut(tmp_path):
    days = Days(tmp_path, int(os.environ.get("WINDOWMILL_SEED", "1")))
    for cut in range(1, CUTS + 1):
        days.land(days.rng.choice([0.2, 1, 5, 12]))
        days.run()
        days.check()
        if cut % 20 == 0:
            for level in days.levels:
                maintain(level.pipeline, quiet())
    assert len(published(days.day)) >= 3
    assert max(row["revision"] for row in rows_of(days.hour.spec["sink"]["path"])) > 0
    assert sum(batch.counts.rows_late + batch.counts.rows_quarantined for batch in days.hour.ledger.batches()) == 0


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("nth", [1, 2])
def test_a_chain_goes_on_where_a_process_has_died(tmp_path, place, nth):
    days = Days(tmp_path, 7)
    for _ in range(5):
        days.land(5)
        days.minute.run()
        for level in (days.hour, days.day):
            failpoints.arm(place, lambda: (_ for _ in ()).throw(DiedError()), nth=nth)
            with suppress(DiedError):
                level.run()
            failpoints.disarm()
            level.run()
            found = InputCheck.of(loop.runnable_of(level.pipeline))
            assert found is not None
            assert found.differing == 0
        days.direct.run()
        days.check()
    assert "restate" in {batch.action for batch in days.hour.ledger.batches()}


def test_kills_of_any_level_lose_and_repeat_nothing(tmp_path):
    days, kills, wanted = Days(tmp_path, 11), 0, int(os.environ.get("WINDOWMILL_KILLS", "2"))
    while kills < wanted:
        days.land(8)
        for level in days.levels:
            run = Run(level.file, place=days.rng.choice(PLACES if level is not days.minute else PLACES[3:]))
            kills += run.wait_until_reached() and run.kill("driver")
            run.resume()
            run.end()
            level.run()
        days.direct.run()
        days.check()


@pytest.mark.spark
@pytest.mark.parametrize("many", [False, True])
def test_spark_computes_two_levels(tmp_path, spark, monkeypatch, many):
    monkeypatch.setenv("WINDOWMILL_COMPUTE", "spark")
    if many:
        compute_by_many_tasks(monkeypatch)
    days = Days(tmp_path, 3)
    for _ in range(3):
        days.land(20)
        days.run()
        days.check()
    rows = spark.read.format("delta").load(Places.of(days.hour.pipeline).input)
    every = {(row["shop"], row["window_end"].timestamp()): row["n"] for row in aggregate(rows, days.hour.file).collect()}
    assert every.items() >= {(shop, end / 1e6): values[0] for (shop, _, _, end), values in published(days.hour).items()}.items()
    for level in (days.hour, days.day):
        found = verify(level.pipeline, quiet(), number=20, seed=1)
        assert found.comparison.rows
        assert found.comparison.differing == []
        assert found.input is not None
        assert found.input.differing == 0


@pytest.fixture
def days(tmp_path):
    return ran_once(tmp_path)


def test_a_backfill_and_a_restatement_of_a_level_change_nothing_that_is_right(days):
    before = published(days.hour)
    loop.backfill(days.hour.pipeline, quiet(), begin=BASE, end=BASE + 10 * HOUR)
    assert published(days.hour) == before
    assert loop.restate(days.hour.pipeline, quiet(), ends=(BASE, None)) == []
    days.land(3)
    days.run()
    days.check()


def test_a_level_goes_back_to_a_savepoint_and_reads_again(days):
    savepoints.create(days.hour.pipeline, quiet(), "before")
    for _ in range(3):
        days.land(4)
        days.run()
    shown = published(days.hour)
    savepoints.restore(days.hour.pipeline, quiet(), "before")
    assert published(days.hour) != shown
    days.hour.run()
    assert published(days.hour) == shown
    days.run()
    days.check()


def corrected_late(folder: Path) -> tuple[Days, dict[Any, Any]]:
    """Levels of which hours are shown once, and what these showed before an event came late to the minutes of a final hour."""
    days = Days(folder, 9)
    days.hour.write(time={"column": "window_start"}, emit="final")
    days.land(30)
    days.run()
    late = pa.Table.from_pylist([{"id": 10**6, "shop": "a", "item": 9, "t": BASE + 29 * HOUR, "v": 1_000}])
    schema = DeltaTable(days.folder / "events").to_pyarrow_table().schema
    write_deltalake(days.folder / "events", late.cast(schema), mode="append")
    before = published(days.hour)
    days.minute.run()
    days.hour.run()
    return days, before


def test_windows_that_are_final_are_left_until_they_are_restated(tmp_path):
    days, before = corrected_late(tmp_path)
    assert published(days.hour) == before
    loop.restate(days.hour.pipeline, quiet(), ends=(BASE, None))
    [(place, values)] = published(days.hour).items() - before.items()
    assert place[2] <= BASE + 29 * HOUR < place[3]
    assert values[2] == 1_000


@pytest.mark.spark
def test_windows_that_were_left_are_excused_until_they_are_restated(tmp_path, spark):
    days, _ = corrected_late(tmp_path)
    found = verify(days.hour.pipeline, quiet(), number=500, seed=1)
    assert found.comparison.differing == []
    [excused] = [row for row in found.comparison.rows if row.differences]
    assert excused.undecided is not None
    assert "their source was corrected once they were final" in excused.undecided
    loop.restate(days.hour.pipeline, quiet(), ends=(BASE, None))
    found = verify(days.hour.pipeline, quiet(), number=500, seed=1)
    assert found.comparison.differing == []
    assert not found.comparison.left_out
    assert found.input is not None
    assert found.input.differing == 0


def test_an_input_that_others_have_changed_is_found(days):
    DeltaTable(Places.of(days.hour.pipeline).input).delete("shop = 'a'")
    found = InputCheck.of(loop.runnable_of(days.hour.pipeline))
    assert found is not None
    assert found.differing > 0


def test_a_purge_of_both_levels_leaves_nothing_of_the_key(days):
    DeltaTable(days.folder / "events").delete("shop = 'b'")
    days.minute.write(source={"path": str(days.folder / "events"), "changes": "restate"})
    purging.purge(days.minute.pipeline, quiet(), [{"shop": "b"}])
    purging.purge(days.hour.pipeline, quiet(), [{"shop": "b"}])
    for level in (days.minute, days.hour):
        assert {row["shop"] for row in rows_of(level.spec["sink"]["path"])} == {"a", "c"}
    assert "b" not in {row["shop"] for row in rows_of(Places.of(days.hour.pipeline).input)}
    days.land(3)
    days.minute.run()
    days.hour.run()
    assert {row["shop"] for row in days.hour.shown()} == {"a", "b", "c"}


def test_a_batch_without_its_commit_to_the_sink_is_not_seen(days):
    days.land(5)
    arm("sink.before")
    with pytest.raises(DiedError):
        days.minute.run()
    failpoints.disarm()
    assert days.minute.ledger.count == 2
    assert UpstreamSink.of(days.hour.pipeline).batch == 0
    assert days.hour.run() == []
    days.minute.run()
    assert UpstreamSink.of(days.hour.pipeline).batch >= 1


def test_a_pipeline_that_was_set_up_again_is_another_one(days):
    for place in ("minute", "minute.windowmill"):
        shutil.rmtree(days.folder / place)
    days.minute.run()
    with pytest.raises(SourceReplacedError, match=r"source\.pipeline: minute has another ledger than the one whose batches were read"):
        days.hour.run()


def test_other_windows_are_other_rows(tmp_path):
    world = World(tmp_path, 1)
    world.lower.write(windows=[{"name": name, "type": "tumbling", "size": world.length(5)} for name in ("one", "two")])
    world.upper.write(source={"pipeline": "lower.yaml", "window": "one"}, keys=[])
    world.land()
    world.lower.run()
    world.upper.run()
    world.upper.write(source={"pipeline": "lower.yaml", "windows": ["one", "two"]})
    with pytest.raises(SourceReplacedError, match="its rows were those of one and are now those of one, two"):
        world.upper.run()
