"""Batches that read only the source, computed share by share of the keys; one that dies goes on from the shares that are finished."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from tests.jobs.test_backfills import EVERY_WAY
from tests.spark.harness import Bench, cut, differences, events, quiet
from windowmill.checkpoints.ledger import Notes
from windowmill.jobs.batch import loop
from windowmill.jobs.batch.progress import Progress
from windowmill.jobs.commands.maintenance_command import maintain
from windowmill.jobs.layouts import limits
from windowmill.jobs.layouts.output import decoded

pytestmark = pytest.mark.spark
#: Shares of the keys, and names of those of all ways.
N_SHARES = 2
#: Windows of each way that the pipeline does not have yet: what is kept is computed from its state, in no share.
ADDED = [
    {"name": "thirds", "type": "tumbling", "size": "3 minutes"},
    {"name": "stays", "type": "session", "gap": "5 minutes"},
    {"name": "last_three", "type": "sliding", "evict": {"count": 3}, "trigger": {"count": 1}},
    {"name": "pieces", "type": "snapshot"},
]
NAMES = [f"{way} {number} of {N_SHARES}" for way in ("slices", "sessions", "positions", "live rows") for number in (1, 2)]


class DiedError(Exception):
    """An attempt ends here."""


@pytest.fixture
def daily(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A pipeline after a run a day, computed in this process."""
    bench = Bench(tmp_path, {"windows": EVERY_WAY})
    with monkeypatch.context() as local:
        local.setenv("WINDOWMILL_COMPUTE", "local")
        for rows in cut(events(92, 240), 5, 6):
            bench.land(rows)
            bench.run()
    return bench


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The shares that are finished from now on; each attempt dies when it has finished three."""
    monkeypatch.setattr(limits, "MAX_ROWS", 0)  # Spark computes
    monkeypatch.setattr(limits, "shares_of", lambda _: N_SHARES)
    names: list[str] = []
    write = Notes.write

    def noting(self: Notes, name: str, body: bytes) -> None:
        write(self, name, body)
        if name != "plan":
            names.append(name)
            if len(names) % 3 == 0:
                raise DiedError

    monkeypatch.setattr(Notes, "write", noting)
    return names


def _until_done(attempt) -> int:
    """How often ``attempt`` dies before it succeeds."""
    for n in range(10):
        try:
            attempt()
        except DiedError:
            continue
        return n
    raise AssertionError("it never succeeds")


@pytest.mark.parametrize("is_first", [False, True])
def test_a_backfill_goes_on_from_the_shares_that_are_finished(spark, tmp_path, daily, noted, is_first):
    before = daily.rows()
    assert {row["window"] for row in before} == {window["name"] for window in EVERY_WAY}
    ends = sorted({row["window_end"] for row in before})
    other = Bench(tmp_path / "other", daily.changes | {"source": {"path": daily.source}})
    bench, said = other if is_first else daily, io.StringIO()
    progress = Progress(Console(file=said, soft_wrap=True))
    died = _until_done(lambda: loop.backfill(bench.pipeline, progress, begin=ends[0] - 1, end=ends[-1]))
    assert (died, noted) == (2, NAMES)
    assert "positions 1 of 2 finished: 5 of 8 (62%), about" in said.getvalue()
    assert differences(bench.rows(), before) == []
    assert not list((bench.folder / "sink.windowmill/finished").glob("*"))


def test_notes_of_another_backfill_and_of_files_that_are_gone_are_not_used(spark, daily, noted):
    before = daily.rows()
    ends = sorted({row["window_end"] for row in before})
    notes = daily.folder / "sink.windowmill/finished"
    with pytest.raises(DiedError):
        loop.backfill(daily.pipeline, quiet(), begin=ends[0] - 1, end=ends[-2])
    with pytest.raises(DiedError):
        loop.backfill(daily.pipeline, quiet(), begin=ends[0] - 1, end=ends[-1])
    assert noted == NAMES[:3] * 2
    maintain(daily.pipeline, quiet())
    assert len(list(notes.iterdir())) == 4  # with that of the plan
    lost = decoded(Notes(str(notes)).read("sessions 1 of 2")).files["sink"][0]
    Path(daily.sink, lost.path).unlink()
    _until_done(lambda: loop.backfill(daily.pipeline, quiet(), begin=ends[0] - 1, end=ends[-1]))
    assert noted == [*NAMES[:3] * 2, *NAMES[2:]]
    assert differences(daily.rows(), before) == []


def test_a_changed_spec_goes_on_from_the_shares_that_are_finished(spark, tmp_path, daily, noted, monkeypatch):
    daily.changes["windows"] = [*EVERY_WAY, *ADDED]
    assert _until_done(lambda: loop.apply(daily.pipeline, quiet(), history=0)) == 2
    assert noted == NAMES
    anew = Bench(tmp_path / "anew", daily.changes | {"source": {"path": daily.source}})
    monkeypatch.undo()
    anew.run()
    assert differences(daily.rows(), anew.rows()) == []
