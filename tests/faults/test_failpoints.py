"""A run fails at any step: before a write, after it, or when its response is lost. The next run leaves the tables of undisturbed ones.

Once the batch is recorded, the next run makes the commits that are missing, and computes nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from tests.faults.dying import DiedError, arm
from tests.faults.pipelines import PIPELINES, Story, begun, but_for_restored
from tests.matrices import EVERY, crossed
from tests.readers import compute_by_many_tasks
from windowmill.checkpoints import failpoints
from windowmill.jobs.batch.steps import _Steps

#: Where a batch that is not held may fail. `make faults` tries all with each pipeline, here and by Spark; `make test` tries each of them
#: here, and some of each kind by Spark.
PLACES = [name for name in failpoints.FAILPOINTS if name.partition(".")[0] not in ("held", "ruling")]
#: Where the batch is not recorded yet.
BEFORE_THE_RECORD = ("compute.begin", "validate.begin", "record.begin", "batch.before")
_SAMPLE = {
    "slices": ("batch.lost", "batch.after", "quarantine.after", "record.begin", "compute.begin"),
    "live_rows": ("sink.after", "state.before"),
    "sessions": ("sink.before", "state.lost"),
    "positions": ("sink.lost", "state.after"),
    "deltas": ("sink.lost",),
    "mixed": ("state.lost",),
    "revise": ("state.after",),
    "lasting": ("sink.before",),
    "vouched": ("quality.after", "batch.before"),
}
_BY_SPARK = [(name, place) for name in PIPELINES for place in (PLACES if EVERY else _SAMPLE[name])]


pytestmark = pytest.mark.local


@pytest.fixture(scope="module")
def stories(tmp_path_factory):
    """Each pipeline after its first batch, and its tables after undisturbed runs over the other versions."""
    made: dict[str, tuple[Story, tuple]] = {}

    def story(name: str) -> tuple[Story, tuple]:
        if name not in made:
            made[name] = begun(name, tmp_path_factory.mktemp(name))
        return made[name]

    return story


@contextlib.contextmanager
def _by_spark(many_tasks: bool) -> Iterator[None]:
    """Spark computes: by many tasks, or by one."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("WINDOWMILL_COMPUTE", "spark")
        if many_tasks:
            compute_by_many_tasks(patched)
        yield


@pytest.mark.covers("P1", "P10")
@pytest.mark.parametrize(
    ("name", "place", "by_spark"),
    [
        *(pytest.param(name, place, False) for name, place in crossed(PIPELINES, PLACES)),
        *(pytest.param(name, place, True, marks=pytest.mark.spark) for name, place in _BY_SPARK),
    ],
)
def test_a_run_that_fails_is_made_good_by_the_next(request, stories, tmp_path, monkeypatch, name, place, by_spark):
    if by_spark:
        request.getfixturevalue("spark")
    first, clean = stories(name)
    story = first.copied_to(tmp_path / "story")
    story.land(1)
    arm(place)
    # One task of Spark works on the attempts that fail at every other place, many tasks on the others; then this process does.
    with _by_spark(many_tasks=bool(PLACES.index(place) % 2)) if by_spark else contextlib.nullcontext():
        try:
            story.run()
            failed = False
        except (DiedError, failpoints.InjectedError):
            failed = True
    failpoints.disarm()
    # A lost response is asked for, so only a process that is gone leaves the batch to the next.
    assert failed == (not place.endswith(".lost")) or place.startswith("compact")
    computed: list[int] = []
    compute = _Steps.compute
    monkeypatch.setattr(_Steps, "compute", lambda self: computed.append(self.plan.batch) or compute(self))
    done = story.run()
    assert computed == ([1] if place in BEFORE_THE_RECORD else [])
    assert len(done) == (failed and place not in ("state.after", "compact.before", "compact.after"))
    story.land(2)
    story.run()
    tables, batches = clean
    assert story.tables() == tables
    # Tasks restore the windows that a late row of a part may revise, before they know which rows are late: of events that last, some more.
    assert but_for_restored(story.batches()) == but_for_restored(batches)
    assert by_spark or story.batches() == batches


@pytest.mark.covers("P11")
@pytest.mark.parametrize("places", [("sink.after", "state.before"), ("validate.begin", "sink.before"), ("batch.after", "quarantine.after")])
def test_a_recovery_that_fails_too(stories, tmp_path, places):
    first, clean = stories("slices")
    story = first.copied_to(tmp_path / "story")
    story.land(1)
    for place in places:
        arm(place)
        with pytest.raises(DiedError):
            story.run()
        failpoints.disarm()
    story.land(2)
    story.run()
    assert (story.tables(), story.batches()) == clean
