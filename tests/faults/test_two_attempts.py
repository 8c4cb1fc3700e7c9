"""Two attempts at one batch, each stopped before any of its writes: one commit comes of it, and the tables of an undisturbed run.

Attempt A stops before its write number i. Attempt B then works up to its write number j, where it sleeps or dies. A goes on to its end,
then B. Nothing but the protocol keeps them apart: the lease is off, as on object storage.
"""

from __future__ import annotations

import itertools
import os
import threading
from contextlib import nullcontext

import pytest

from tests.faults import pipelines
from tests.faults.dying import DiedError
from tests.faults.pipelines import Story
from windowmill.checkpoints import failpoints
from windowmill.windowing.errors import FencedError

#: The order in which a batch writes, and then compacts its tables.
WRITES = ("batch", "quality", "sink", "quarantine", "state", "compact")
_EVERY = [(a, b, dies) for a, b in itertools.product(WRITES, WRITES) for dies in (False, True)]
_SAMPLE = [("batch", "batch", False), ("batch", "sink", False), ("sink", "state", False), ("state", "quarantine", True)]
#: The longest that an attempt may take to its stop, or to its end.
PATIENCE_SECONDS = 120.0


class Attempt(threading.Thread):
    """A run in a thread of its own, which stops before it first writes to ``place``, and there sleeps or dies when it is let go on."""

    def __init__(self, story: Story, place: str, *, dies: bool) -> None:
        super().__init__(daemon=True)
        self.story, self.place, self.dies = story, f"{place}.before", dies
        self.end: list[object] | BaseException | None = None
        self.stopped = False
        self._paused, self._go_on = threading.Event(), threading.Event()

    def run(self) -> None:
        try:
            self.end = self.story.run()
        except (Exception, DiedError) as err:  # noqa: BLE001 - how it ended is the test's business
            self.end = err
        finally:
            self._paused.set()

    def reached(self) -> None:
        """Called in the attempt's thread when it is about to write to ``place``."""
        if self.stopped:
            return
        self.stopped = True
        self._paused.set()
        assert self._go_on.wait(4 * PATIENCE_SECONDS)
        if self.dies:
            raise DiedError

    def until_it_stops(self) -> None:
        self.start()
        assert self._paused.wait(PATIENCE_SECONDS), f"no stop at {self.place}"

    def to_its_end(self) -> None:
        self._go_on.set()
        self.join(PATIENCE_SECONDS)
        assert not self.is_alive()


@pytest.fixture(scope="module")
def begun(tmp_path_factory) -> tuple[Story, tuple]:
    """A pipeline after its first batch, and its tables after undisturbed runs over the other versions."""
    return pipelines.begun("slices", tmp_path_factory.mktemp("attempts"))


@pytest.mark.covers("P6", "P7")
@pytest.mark.usefixtures("each_scheduler")
@pytest.mark.parametrize(("first", "second", "dies"), _EVERY if os.environ.get("WINDOWMILL_FAULTS") == "all" else _SAMPLE)
def test_two_attempts_at_one_batch(begun, tmp_path, monkeypatch, first, second, dies):
    began, clean = begun
    story = began.copied_to(tmp_path / "story")
    story.land(1)
    monkeypatch.setattr("windowmill.jobs.batch.loop.lease", lambda *a, **k: nullcontext())
    a, b = Attempt(story, first, dies=False), Attempt(story, second, dies=dies)
    for write in WRITES:
        monkeypatch.setitem(failpoints._armed, f"{write}.before", lambda place=f"{write}.before": _at(place, a, b))
    a.until_it_stops()
    assert a.stopped, f"attempt A ended before {first}: {a.end!r}"
    b.until_it_stops()
    a.to_its_end()
    b.to_its_end()
    monkeypatch.undo()
    _check_ends(a, b)
    story.land(2)
    story.run()
    assert (story.tables(), story.batches()) == clean


def _at(place: str, *attempts: Attempt) -> None:
    attempt = next(attempt for attempt in attempts if attempt is threading.current_thread())
    if place == attempt.place:
        attempt.reached()


def _check_ends(*attempts: Attempt) -> None:
    """An attempt has recorded the batch, or made commits of it that were missing, or was told that another one has recorded it."""
    for attempt in attempts:
        if isinstance(attempt.end, BaseException):
            assert isinstance(attempt.end, FencedError | DiedError), attempt.end
            assert attempt.dies or isinstance(attempt.end, FencedError)
        else:
            assert isinstance(attempt.end, list)
