"""A run dies by kill -9, or meets another one; the next run leaves the tables of undisturbed ones."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from contextlib import nullcontext, suppress

import pytest
from deltalake import DeltaTable

from tests.faults import pipelines
from tests.faults.dying import DiedError, arm
from tests.faults.pipelines import Story
from windowmill.checkpoints import failpoints
from windowmill.windowing.errors import FencedError

#: The order in which a batch writes, and then compacts its tables.
WRITES = ("batch", "quality", "sink", "current", "quarantine", "seen", "state", "compact")
_ALL = os.environ.get("WINDOWMILL_FAULTS") == "all"
_PLACES = [place for place in failpoints.FAILPOINTS if place.partition(".")[0] not in ("held", "ruling", "compact")]
_MEETINGS = [
    ("batch", None),
    ("batch", "batch"),
    ("batch", "sink"),
    ("sink", None),
    ("current", "current"),
    ("quality", "state"),
    ("state", "quarantine"),
]


@pytest.fixture(scope="module")
def begun(tmp_path_factory) -> tuple[Story, tuple]:
    """A pipeline after its first batch, and its tables after undisturbed runs over the other versions."""
    return pipelines.begun("slices", tmp_path_factory.mktemp("crashes"))


@pytest.fixture
def story(begun, tmp_path) -> Story:
    """The pipeline, with a second version waiting."""
    story = begun[0].copied_to(tmp_path / "story")
    story.land(1)
    return story


def check_clean(story: Story, begun: tuple[Story, tuple]) -> None:
    story.land(2)
    story.run()
    assert (story.tables(), story.batches()) == begun[1]
    for table in (story.bench.sink, f"{story.bench.sink}.windowmill/state"):
        commits = [str(commit.get("userMetadata")) for commit in DeltaTable(table).history()]
        assert [sum(f'"batch": {batch},' in each for each in commits) for batch in range(3)] == [1, 1, 1], table


@pytest.mark.local
@pytest.mark.covers("P1")
@pytest.mark.parametrize("place", _PLACES if _ALL else ["batch.lost", "sink.lost", "current.lost", "state.before", "seen.lost"])
def test_a_run_that_is_killed_before_it_needs_spark_is_made_good_by_the_next(story, begun, place):
    """Processes of their own; neither starts Spark."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
    command = [sys.executable, "-m", "windowmill.jobs.cli", "run", str(story.spec_file())]
    killed = subprocess.run(command, env=environment | {"WINDOWMILL_FAILPOINT": f"{place}:kill"}, capture_output=True, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert b"start " not in killed.stderr
    subprocess.run(command, env=environment, capture_output=True, check=True)
    check_clean(story, begun)


@pytest.mark.local
@pytest.mark.covers("V4")
def test_two_runs_at_once_make_one_commit(story, begun):
    command = [sys.executable, "-m", "windowmill.jobs.cli", "run", str(story.spec_file())]
    runs = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    told = [run.communicate(timeout=300) for run in runs]
    assert [run.returncode for run in runs] == [0, 0], told
    assert sorted("nothing new" in out for out, _ in told) == [False, True]
    assert sum("another run of this pipeline is under way" in err for _, err in told) == 1
    check_clean(story, begun)


@pytest.mark.covers("P6", "P7")
@pytest.mark.usefixtures("each_scheduler")
@pytest.mark.parametrize(("first", "second"), list(itertools.product(WRITES, (None, *WRITES))) if _ALL else _MEETINGS)
def test_without_the_lease_the_ledger_alone_lets_one_of_two_attempts_commit(story, begun, monkeypatch, first, second):
    """One sleeps before a write while another works to its end, or dies before one. The simulator has every interleaving."""
    monkeypatch.setattr("windowmill.jobs.batch.loop.lease", lambda *a, **k: nullcontext())
    slept, fenced = [], False

    def meanwhile() -> None:
        slept.append(first)
        if second is not None:
            arm(f"{second}.before")
        with suppress(DiedError):
            story.run()
        failpoints.disarm()

    failpoints.arm(f"{first}.before", meanwhile)
    try:
        story.run()
    except FencedError:
        fenced = True
    assert (slept, fenced) == ([first], first == "batch" and second != "batch")
    failpoints.disarm()
    check_clean(story, begun)
