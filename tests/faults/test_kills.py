"""``kill -9`` of a run's driver, of Spark's JVM and of Python workers; the next run leaves the tables of undisturbed ones.

`make test` kills a few times, `make faults` every victim at every step, and at random instants besides.
"""

from __future__ import annotations

import itertools
import os
import random
import time

import pytest

from tests.faults import pipelines
from tests.faults.kills import VICTIMS, Run
from tests.faults.pipelines import Story
from windowmill.checkpoints.failpoints import FAILPOINTS

pytestmark = [pytest.mark.spark, pytest.mark.local]  # runs that nobody kills need no Spark
_PLACES = [place for place in FAILPOINTS if place.partition(".")[0] not in ("held", "ruling", "compact") and not place.endswith(".lost")]
_EVERY = [*itertools.product(_PLACES, VICTIMS)]
_SAMPLE = [("sink.after", "driver"), ("compute.begin", "jvm"), ("state.before", "worker")]


@pytest.fixture(scope="module")
def begun(tmp_path_factory) -> tuple[Story, tuple]:
    """A pipeline over live rows after its first batch, and its tables after undisturbed runs over the other versions."""
    return pipelines.begun("live_rows", tmp_path_factory.mktemp("kills"))


@pytest.mark.covers("P1", "P2", "P4")
@pytest.mark.parametrize(("place", "victim"), _EVERY if os.environ.get("WINDOWMILL_FAULTS") == "all" else _SAMPLE)
def test_a_run_that_is_killed_at_a_step_is_made_good_by_the_next(begun, tmp_path, place, victim):
    first, clean = begun
    story = first.copied_to(tmp_path / "story")
    story.land(1)
    run = Run(story.spec_file(), place, by_spark=True)
    try:
        assert run.wait_until_reached(), f"the run ended before {place}: {run.process.stderr.read()[-2000:]}"
        run.kill(victim)
        run.resume()
        run.end()
    finally:
        run.stop()
    story.run()  # a batch that was not recorded would take the next version, too
    story.land(2)
    story.run()
    assert (story.tables(), story.batches()) == clean


@pytest.mark.covers("P1", "P2", "P4", "P11")
def test_a_storm_of_kills(begun, tmp_path):
    """Victims die at random instants, attempt after attempt; in the end the tables are those of undisturbed runs."""
    first, clean = begun
    rng, kills, wanted = random.Random(7), 0, int(os.environ.get("WINDOWMILL_KILLS", "1"))
    round_ = 0
    while kills < wanted:
        story = first.copied_to(tmp_path / f"storm-{round_}")
        round_ += 1
        story.land(1)
        for _ in range(min(6, wanted - kills)):
            run = Run(story.spec_file(), by_spark=True)
            instant = time.monotonic() + rng.uniform(1, 15)
            while run.process.poll() is None and time.monotonic() < instant:
                time.sleep(0.1)
            kills += run.process.poll() is None and run.kill(rng.choice(VICTIMS))
            run.end()
        story.run()
        story.land(2)
        story.run()
        assert (story.tables(), story.batches()) == clean, f"after {kills} kills, round {round_}"
        print(f"  {kills} kills, {round_} rounds, every table as after undisturbed runs")
