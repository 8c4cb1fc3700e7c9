"""Looks at each source once for all triggers of a triggerer that wait for it, however many pipelines read it.

Triggers with the same interval, or the same cron expression, look at the same instants. The first to come begins a look in a thread; the
others wait for its result, and compare it each with the ledger of its own pipeline.
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

#: Triggers whose instants are the same come within so many seconds of each other.
_SLACK_SECONDS = 1.0
#: Of an interval, the greatest part that a look may be older than the instant that it serves.
_SLACK_PART = 0.1


class SharedLook:
    """Looks at one source, at one time once. All its users live in one event loop.

    Parameters
    ----------
    look
        Looks at the source; runs in a thread.
    """

    def __init__(self, look: Callable[[], Any]) -> None:
        self.users = 0
        self._look = look
        self._began = 0.0
        self._looking: asyncio.Task[Any] | None = None

    async def seen_since(self, instant: float) -> Any:
        """What a look has found, or raised, that began at ``instant`` of the monotonic clock or later."""
        while self._looking is None or self._began < instant:
            if self._looking is not None and not self._looking.done():
                await asyncio.wait([self._looking])
            else:
                self._began = time.monotonic()
                self._looking = asyncio.create_task(asyncio.to_thread(self._look))
        # A user that is cancelled leaves the look to the others.
        return await asyncio.shield(self._looking)


#: Event loop and source -> the look at it; those that have users.
_LOOKS: dict[Hashable, SharedLook] = {}


class SharedWatch:
    """The watch of a pipeline, whose looks at the source are shared; close it at the end. It follows changes of the spec's file."""

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
            Instant of the look, by the monotonic clock.
        interval
            Seconds between two looks.
        """
        watch = await self._opened()
        looked = await _LOOKS[self._key].seen_since(due - min(_SLACK_SECONDS, _SLACK_PART * interval))
        return await asyncio.to_thread(watch.look, looked)

    def close(self) -> None:
        """Let the look go if nobody else uses it; another look opens the watch anew."""
        if self._watch is None:
            return
        self._watch = None
        _LOOKS[self._key].users -= 1
        if not _LOOKS[self._key].users:
            del _LOOKS[self._key]

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
        _LOOKS.setdefault(self._key, SharedLook(look)).users += 1
        return watch


def _open(spec: Spec) -> tuple[SourceWatch, Callable[[], Any]]:
    # Imported in the thread: these load Delta's and Arrow's libraries.
    from windowmill.jobs.sources.unread import SourceLook, SourceWatch

    watch = SourceWatch(spec.read())
    return watch, SourceLook(watch.source)
