"""``kill -9`` of `apply`, `backfill` and `restate` at random instants: given again, each leaves what an undisturbed one leaves.

`make test` kills each of them once, `make faults` ten times.
"""

from __future__ import annotations

import os
import random
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.faults.kills import Run
from tests.faults.pipelines import Story
from tests.spark.harness import differences
from windowmill.jobs.cli import main

_KILLS = 10 if os.environ.get("WINDOWMILL_FAULTS") == "all" else 1
#: Each command with its options; the pipeline has read a correction, or waits for one, or its spec has changed.
_COMMANDS = {
    "apply": ("apply", "--history", "all"),
    "backfill": ("backfill", "--from", "2024-02-01", "--to", "2024-04-01"),
    "restate": ("restate",),
}
_BY_THREES = {"name": "by_threes", "type": "tumbling", "evict": {"count": 3}}


pytestmark = pytest.mark.local


def _waiting_for(command: str, folder: Path) -> Story:
    """A pipeline of all ways of working for which there is something to do."""
    story = Story.of("mixed", folder)
    folder.mkdir()
    changes, windows = story.bench.changes, story.bench.changes["windows"]
    if command == "backfill":
        # One of corrected rows is refused where triggers are numbered.
        changes["windows"] = [window for window in windows if "evict" not in window]
        changes["source"] = {"changes": "ignore"}
    for version in (0, 1):
        story.land(version)
        _in(story).run()
    if command == "apply":
        changes["windows"] = [*windows[1:], _BY_THREES, windows[0] | {"size": "6 minutes"}]
        return story
    DeltaTable(story.bench.source).update(predicate="k = 'a'", updates={"v": "v + 1"})
    DeltaTable(story.bench.source).delete("k = 'b' and i = 2")
    if command == "backfill":
        _in(story).run()
    return story


def _in(story: Story) -> Story:
    """``story`` with the source of its own folder."""
    source = story.bench.changes.get("source", {}) | {"path": story.bench.source}
    return replace(story, bench=replace(story.bench, changes=story.bench.changes | {"source": source}))


def _finished(story: Story) -> tuple[Any, Any]:
    """What is in the tables after later runs."""
    story.land(2)
    story.run()
    return story.tables(), story.batches()


@pytest.mark.covers("P1", "P2", "P4")
@pytest.mark.parametrize("command", _COMMANDS)
def test_a_command_that_is_killed_is_made_good_when_it_is_given_again(tmp_path, command):
    first, rng = _waiting_for(command, tmp_path / "first"), random.Random(command)
    undisturbed = _in(first.copied_to(tmp_path / "undisturbed"))
    begun = time.monotonic()
    _give(undisturbed, command)
    seconds = time.monotonic() - begun
    clean = _finished(undisturbed)
    kills = tries = 0
    while kills < _KILLS:
        story = _in(first.copied_to(tmp_path / f"killed-{tries}"))
        tries += 1
        run = Run(story.spec_file(), "compute.begin", command=_COMMANDS[command])
        assert run.wait_until_reached(), run.process.stderr.read()[-2000:]
        run.resume()
        time.sleep(rng.uniform(0, seconds))
        kills += run.process.poll() is None and run.kill("driver")
        run.end()
        _give(story, command)
        tables, batches = _finished(story)
        if len(batches) == len(clean[1]):
            assert (tables, batches) == clean
        else:  # the backfill had published all, so that the second is another one
            assert command == "backfill"
            assert differences(story.bench.rows(), undisturbed.bench.rows()) == []
        assert tries < 10 * _KILLS
    print(f"  {command}: {kills} kills in {tries} rounds, every table as after an undisturbed command")


def _give(story: Story, command: str) -> None:
    """Give the command in this process: only one that is to die needs its own."""
    name, *options = _COMMANDS[command]
    assert main([name, str(story.spec_file()), *options]) == 0
