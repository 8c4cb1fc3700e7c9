"""Looks at each source once for all triggers of a triggerer that wait for it, however many pipelines read it.

Triggers with the same interval, or the same cron expression, look at the same instants. The first to come begins a look in a thread; the
others wait for its result, and compare it each with the ledger of its own pipeline.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any

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
    """A pipeline's watch, whose looks at the source are shared; close it at the end."""

    def __init__(self, watch: SourceWatch, look: Callable[[], Any]) -> None:
        self._watch = watch
        self._key = (asyncio.get_running_loop(), watch.source_identity)
        self._shared = _LOOKS.setdefault(self._key, SharedLook(look))
        self._shared.users += 1

    @classmethod
    async def of(cls, spec: Spec) -> SharedWatch:
        """The watch of the pipeline of ``spec``; raises ``SpecError``."""
        return cls(*await asyncio.to_thread(_opened, spec))

    async def look(self, due: float, interval: float) -> UnreadRows | None:
        """What a run would take up; raises as :meth:`.SourceWatch.look`.

        Parameters
        ----------
        due
            Instant of the look, by the monotonic clock.
        interval
            Seconds between two looks.
        """
        looked = await self._shared.seen_since(due - min(_SLACK_SECONDS, _SLACK_PART * interval))
        return await asyncio.to_thread(self._watch.look, looked)

    def close(self) -> None:
        """Let the look go if nobody else uses it."""
        self._shared.users -= 1
        if not self._shared.users:
            del _LOOKS[self._key]


def _opened(spec: Spec) -> tuple[SourceWatch, Callable[[], Any]]:
    # Imported in the thread: these load Delta's and Arrow's libraries.
    from windowmill.jobs.sources.unread import SourceLook, SourceWatch

    watch = SourceWatch(spec.read())
    return watch, SourceLook(watch.source)
