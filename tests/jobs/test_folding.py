"""Folding of old revisions: the latest view stays, now and as of every batch from the fold's on, wherever it fails."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable

from tests.faults.dying import DiedError, arm
from tests.jobs.test_restatements import Corrected, Row, bench_of
from tests.spark.harness import cut, events, quiet
from windowmill.checkpoints.ledger import Ledger
from windowmill.jobs.batch import maintenance_batches as savepoints
from windowmill.jobs.cli import main
from windowmill.jobs.commands.maintenance_command import maintain
from windowmill.jobs.sink_views import PublishedTable
from windowmill.windowing.axis import Duration
from windowmill.windowing.errors import SavepointError, SinkError

NOW, YEAR = Duration(ticks=1), Duration(days=365)

pytestmark = pytest.mark.local
KINDS = ("grids", "sessions", "policies", "rows", "revised", "mixed")


def corrected(folder: Path, kind: str, **changes: Any) -> tuple[Corrected, Sequence[Row]]:
    """A pipeline some of whose windows have several revisions or are retracted, and the rows that are still to come."""
    folder.mkdir(exist_ok=True)
    bench = bench_of(folder, kind, **changes)
    *parts, last = cut(events(5, 260), 3, 4)
    for number, part in enumerate(parts):
        bench.land(part).run()
        if number == 1:
            bench.delete("i = 2 OR (k = 'a' AND site = 1 AND i < 0)")
            bench.update("i = 1", i="5")
            bench.run()
    bench.update("i = 5", i="6")
    bench.run()
    return bench, last


def finish(bench: Corrected, part: Sequence[Row]) -> None:
    bench.delete("i = 3")
    bench.run()
    bench.land(part).run()


def folded(bench: Corrected, age: Duration = NOW) -> list[Row]:
    maintain(bench.pipeline, quiet(), fold=age)
    return bench.rows()


@pytest.mark.parametrize("kind", KINDS)
def test_the_latest_view_stays_and_later_runs_and_corrections_go_on(tmp_path, kind):
    bench, part = corrected(tmp_path / "folded", kind)
    other, _ = corrected(tmp_path / "plain", kind)
    before, latest = bench.rows(), bench.latest()
    after = folded(bench)
    assert len(after) < len(before)
    assert (repr(bench.latest()), len(after)) == (repr(latest), len(latest))
    assert not any(row["retracted"] for row in after)
    assert [batch.action for batch in Ledger.open(bench.pipeline).batches()][-1] == "fold"
    finish(bench, part)
    finish(other, part)
    assert repr(bench.latest()) == repr(other.latest()) == repr(bench.truth())


def test_nothing_is_folded_that_is_young_or_twice(tmp_path):
    bench, _ = corrected(tmp_path, "grids")
    before = bench.rows()
    assert repr(folded(bench, YEAR)) == repr(before)
    assert len(folded(bench)) < len(before)
    batches = len(Ledger.open(bench.pipeline).batches())
    folded(bench)
    assert len(Ledger.open(bench.pipeline).batches()) == batches


def test_of_each_window_the_revision_before_the_limit_stays(tmp_path, monkeypatch):
    """Batches from the fold's limit on have the latest views that they had."""
    bench, _ = corrected(tmp_path, "mixed")
    views = {batch: latest_as_of(bench, batch) for batch in range(2, 5)}
    ended = Ledger.open(bench.pipeline).batches()[3].ended_at

    class Clock(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return ended + timedelta(days=1) if tz is UTC else datetime.now(tz)

    monkeypatch.setattr("windowmill.jobs.batch.maintenance_batches.datetime", Clock)
    before = len(bench.rows())
    assert len(folded(bench, Duration(days=1))) < before
    assert Ledger.open(bench.pipeline).batches()[-1].plan.through == 3
    for batch in (3, 4):
        at = PublishedTable.of(bench.pipeline).as_of(batch, None)
        assert (at.version, at.batch) == (DeltaTable(bench.sink).version(), batch)
        assert repr(latest_as_of(bench, batch)) == repr(views[batch])
    at = PublishedTable.of(bench.pipeline).as_of(2, None)
    assert at.version < DeltaTable(bench.sink).version()
    maintain(bench.pipeline, quiet(), now=True)
    with pytest.raises(SinkError, match=r"\(fold\) has replaced rows since, .* is no longer kept: .*; ask for batch 3 or later"):
        PublishedTable.of(bench.pipeline).as_of(2, None)


def latest_as_of(bench: Corrected, batch: int) -> list[Row]:
    """The latest view of the rows of the batches through ``batch`` in the sink."""

    class Then(Corrected):
        def rows(self) -> list[Row]:
            table = DeltaTable(self.sink).to_pyarrow_table().filter(pc.field("batch") <= batch)
            for name in ("window_start", "window_end"):
                table = table.set_column(table.schema.get_field_index(name), name, table.column(name).cast(pa.int64()))
            return table.drop_columns(["batch"]).to_pylist()

    return Then(bench.folder, bench.changes).latest()


@pytest.mark.parametrize("place", ["batch.before", "batch.lost", "batch.after", "sink.before", "sink.lost", "sink.after"])
def test_a_fold_that_dies_anywhere_is_finished_or_never_was(tmp_path, place):
    bench, part = corrected(tmp_path, "mixed")
    latest = bench.latest()
    arm(place)
    try:
        folded(bench)
    except DiedError:
        bench.run()
    assert repr(bench.latest()) == repr(latest)
    folded(bench)
    assert len(bench.rows()) == len(latest)
    finish(bench, part)
    assert repr(bench.latest()) == repr(bench.truth())


def test_others_may_rewrite_the_sink_before_the_fold_is_published(tmp_path):
    bench, _ = corrected(tmp_path, "mixed")
    latest = bench.latest()
    arm("sink.before")
    with pytest.raises(DiedError):
        folded(bench)
    assert DeltaTable(bench.sink).optimize.compact()["numFilesRemoved"] > 1
    bench.run()
    assert (repr(bench.latest()), len(bench.rows())) == (repr(latest), len(latest))


def test_no_savepoint_is_restored_whose_rows_have_been_folded(tmp_path):
    bench, part = corrected(tmp_path, "grids")
    savepoints.create(bench.pipeline, quiet(), "late")
    folded(bench)
    latest = bench.latest()
    bench.land(part).run()
    savepoints.restore(bench.pipeline, quiet(), "late")
    assert repr(bench.latest()) == repr(latest)
    savepoints.create(bench.pipeline, quiet(), "early")
    bench.run()
    bench.update("i = 6", i="7")
    bench.run()
    savepoints.create(bench.pipeline, quiet(), "newest")
    folded(bench)
    for _ in range(2):
        with pytest.raises(SavepointError, match="has folded revisions of batches through"):
            savepoints.restore(bench.pipeline, quiet(), "early")
        savepoints.restore(bench.pipeline, quiet(), "newest")


def test_the_spec_or_an_option_says_from_which_age_on(tmp_path, capsys):
    bench, _ = corrected(tmp_path, "grids", fold_revisions="365 days")
    spec = tmp_path / "spec.json"
    spec.write_text(json.dumps(bench.spec))
    assert main(["maintain", str(spec)]) == 0
    assert "revisions:" not in capsys.readouterr().out
    assert main(["maintain", str(spec), "--fold-revisions", "soon"]) == 2
    assert "--fold-revisions: " in capsys.readouterr().err
    assert main(["maintain", str(spec), "--fold-revisions", "1 microsecond"]) == 0
    assert " rows folded (batch 5), of batches through 4" in capsys.readouterr().out
