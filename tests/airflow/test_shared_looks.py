"""Triggers that wait for the same source share one look at it, however many pipelines read it."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from airflow.triggers.base import TaskSuccessEvent

from tests.airflow.test_source_versions import waiting
from windowmill.dags import triggers
from windowmill.jobs.sources.base import probe_source
from windowmill.jobs.sources.unread import SourceProbe, SourceWatch, UnreadRows
from windowmill.windowing.specfile import load_pipeline

pytestmark = [pytest.mark.dag, pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")]


@pytest.fixture
def looks(monkeypatch) -> list[float]:
    """Instants of the looks at sources."""
    began: list[float] = []

    def counted(self: SourceProbe) -> object:
        began.append(time.monotonic())
        return look(self)

    look = SourceProbe.__call__
    monkeypatch.setattr(SourceProbe, "__call__", counted)
    return began


def fifty(write_spec) -> list[Path]:
    """Specs of 50 pipelines over one source, each with options of its own that say nothing about where it is."""
    options = ({'events"}': f'events", options: {{maxFilesPerTrigger: "{index + 1}"}}}}'} for index in range(50))
    return [write_spec(f"delays_{index}", **each) for index, each in enumerate(options)]


def test_fifty_waiting_tasks_look_at_their_source_once_an_interval(write_spec, land, looks):
    land(0)
    interval = 1.0

    async def run() -> list[Any]:
        events = [asyncio.create_task(anext(waiting(spec, poke_interval=interval).run())) for spec in fifty(write_spec)]
        await asyncio.sleep(4 * interval)
        assert not any(event.done() for event in events)
        [shared] = triggers._POLLS.values()
        assert shared.users == 50
        threads = threading.active_count()
        await asyncio.sleep(2 * interval)
        assert threading.active_count() <= threads
        await asyncio.to_thread(land)
        return await asyncio.wait_for(asyncio.gather(*events), 30)

    began = time.monotonic()
    assert {type(event) for event in asyncio.run(run())} == {TaskSuccessEvent}
    assert 6 <= len(looks) <= (time.monotonic() - began) / interval + 2
    assert triggers._POLLS == {}


def test_a_trigger_that_is_cancelled_leaves_its_look_to_the_others(write_spec, land, looks, monkeypatch):
    """As when a task is cleared while it waits; here the one that began the look."""
    begun, seen = threading.Event(), threading.Event()

    def slow(settings: object) -> object:
        begun.set()
        assert seen.wait(30)
        return probe_source(settings)

    monkeypatch.setattr("windowmill.jobs.sources.unread.probe_source", slow)
    land()

    async def run():
        first, second = (asyncio.create_task(anext(waiting(write_spec(name), poke_interval=60).run())) for name in ("one", "two"))
        assert await asyncio.to_thread(begun.wait, 30)
        [shared] = triggers._POLLS.values()
        while shared.users < 2:  # the second may still be reading its spec
            await asyncio.sleep(0.01)
        first.cancel()
        await asyncio.wait([first])
        assert shared.users == 1
        seen.set()
        return await asyncio.wait_for(second, 30)

    assert isinstance(asyncio.run(run()), TaskSuccessEvent)
    assert (len(looks), triggers._POLLS) == (1, {})


def test_pipelines_of_other_sources_or_storage_do_not_share(write_spec, land):
    land(0)
    same = [SourceWatch(load_pipeline(write_spec(name))) for name in ("one", "two")]
    other = SourceWatch(load_pipeline(write_spec("three", events="others")))
    elsewhere = SourceWatch(load_pipeline(write_spec("four", **{'events"}': 'events", storage_options: {AWS_REGION: "${HOME}"}}'})))
    assert len({watch.source_identity for watch in same}) == 1
    assert len({watch.source_identity for watch in (*same, other, elsewhere)}) == 3


def test_pipelines_of_a_folder_share_its_listing(write_spec, tmp_path, monkeypatch):
    """Which of its files are new is another question for each."""
    folder = tmp_path / "events"
    folder.mkdir()
    (folder / "a.csv").write_text("origin,departed_at\nJFK,2024-01-01T00:00:00Z\n")
    form = {'events"}': 'events", format: csv, options: {schema: "origin STRING, departed_at TIMESTAMP"}}'}
    one, two = (SourceWatch(load_pipeline(write_spec(name, **form))) for name in ("one", "two"))
    assert one.source_identity == two.source_identity
    listed = SourceProbe(one.source)()
    monkeypatch.setattr("windowmill.jobs.sources.folder.listed_files", None)  # there is no other listing
    assert one.poll(listed) == two.poll(listed) == UnreadRows(version=0, planned=-1, open=False)
