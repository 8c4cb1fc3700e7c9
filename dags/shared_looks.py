"""Polls each source once for all triggers of a triggerer that wait for it, however many pipelines read it.

Triggers with the same interval, or the same cron expression, poll at the same instants. The first to arrive begins a poll in a thread; the
others wait for its result, and each compares it with the ledger of its own pipeline.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any

from windowmill.windowing.errors import SpecError

if TYPE_CHECKING:
    from windowmill.dags.specs import Spec
    from windowmill.jobs.sources.unread import SourceWatch, UnreadRows

#: Triggers with the same instants arrive within so many seconds of each other.
_SLACK_SECONDS = 1.0
#: Greatest age of a poll at the instant that it serves, as a fraction of the interval.
_SLACK_PART = 0.1


class SharedPoll:
    """Polls one source, once at a time. All its users live in one event loop.

    Parameters
    ----------
    poll
        Polls the source; runs in a thread.
    """

    def __init__(self, poll: Callable[[], Any]) -> None:
        self.users = 0
        self._poll = poll
        self._began = 0.0
        self._polling: asyncio.Task[Any] | None = None

    async def seen_since(self, instant: float) -> Any:
        """Return or raise the outcome of a poll that began at ``instant`` of the monotonic clock or later."""
        while self._polling is None or self._began < instant:
            if self._polling is not None and not self._polling.done():
                await asyncio.wait([self._polling])
            else:
                self._began = time.monotonic()
                self._polling = asyncio.create_task(asyncio.to_thread(self._poll))
        # A user that is cancelled leaves the poll to the others.
        return await asyncio.shield(self._polling)


#: Event loop and source -> its poll; those that have users.
_POLLS: dict[Hashable, SharedPoll] = {}


class SharedWatch:
    """The watch of a pipeline, whose polls of the source are shared; close it at the end. It follows changes of the spec's file."""

    def __init__(self, spec: Spec) -> None:
        self._spec = spec
        self._edition: Hashable = None
        self._watch: SourceWatch | None = None
        self._key: Hashable = None

    async def look(self, due: float, interval: float) -> UnreadRows | None:
        """What a run would take up; raises as :meth:`.SourceWatch.look`, and ``SpecError``.

        Parameters
        ----------
        due
            Instant of the poll, by the monotonic clock.
        interval
            Seconds between two polls.
        """
        watch = await self._opened()
        polled = await _POLLS[self._key].seen_since(due - min(_SLACK_SECONDS, _SLACK_PART * interval))
        return await asyncio.to_thread(watch.look, polled)

    def close(self) -> None:
        """Drop the poll if nobody else uses it; the next call of :meth:`look` opens the watch again."""
        if self._watch is None:
            return
        self._watch = None
        _POLLS[self._key].users -= 1
        if not _POLLS[self._key].users:
            del _POLLS[self._key]

    async def _opened(self) -> SourceWatch:
        edition = await asyncio.to_thread(self._spec.edition)
        if self._watch is not None and edition == self._edition:
            return self._watch
        try:
            watch, look = await asyncio.to_thread(_open, self._spec)
        except SpecError:
            if self._watch is None:
                raise
            return self._watch  # the file may be half written
        self.close()
        self._watch, self._edition = watch, edition
        self._key = (asyncio.get_running_loop(), watch.source_identity)
        _POLLS.setdefault(self._key, SharedPoll(look)).users += 1
        return watch


def _open(spec: Spec) -> tuple[SourceWatch, Callable[[], Any]]:
    # Imported in the thread: these load Delta's and Arrow's libraries.
    from windowmill.jobs.sources.unread import SourceLook, SourceWatch

    watch = SourceWatch(spec.read())
    return watch, SourceLook(watch.source)
