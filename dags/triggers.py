"""The trigger of a task that waits for new versions of a pipeline's source.

A trigger names the spec, and nothing that the spec takes from the environment: Airflow stores a trigger's arguments in its database.
The triggerer reads the spec like a worker, with its own environment. It polls sources in threads, without Spark, each once for all
pipelines that read it: triggers with the same interval poll at the same instants. The first to arrive begins a poll; the others wait for
its result, and each compares it with the ledger of its own pipeline.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import closing
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseTrigger, TaskSuccessEvent, TriggerEvent

from windowmill.dags.commands import advances
from windowmill.dags.specs import Spec
from windowmill.windowing.errors import RefusedError, SourceMissingError, SpecError, WindowmillError
from windowmill.windowing.redaction import holds_credentials, redacted

if TYPE_CHECKING:
    from windowmill.jobs.sources.unread import SourceWatch, UnreadRows


#: Triggers with the same instants arrive within so many seconds of each other.
_SLACK_SECONDS = 1.0
#: Greatest age of a poll at the instant that it serves, as a fraction of the interval.
_SLACK_PART = 0.1


class SharedPoll:
    """Polls one source by ``poll``, which runs in a thread, once at a time. All its users live in one event loop."""

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

    async def poll(self, due: float, interval: float) -> UnreadRows | None:
        """What a run would take up, by a poll ``due`` at an instant of the monotonic clock, ``interval`` seconds after the one before.

        Raises as :meth:`.SourceWatch.poll`, and ``SpecError``.
        """
        watch = await self._opened()
        polled = await _POLLS[self._key].seen_since(due - min(_SLACK_SECONDS, _SLACK_PART * interval))
        return await asyncio.to_thread(watch.poll, polled)

    def close(self) -> None:
        """Drop the poll if nobody else uses it; the next call of :meth:`poll` opens the watch again."""
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
            watch, probe = await asyncio.to_thread(_open, self._spec)
        except SpecError:
            if self._watch is None:
                raise
            return self._watch  # the file may be half written
        self.close()
        self._watch, self._edition = watch, edition
        self._key = (asyncio.get_running_loop(), watch.source_identity)
        _POLLS.setdefault(self._key, SharedPoll(probe)).users += 1
        return watch


def _open(spec: Spec) -> tuple[SourceWatch, Callable[[], Any]]:
    # Imported in the thread: these load Delta's and Arrow's libraries.
    from windowmill.jobs.sources.unread import SourceProbe, SourceWatch

    watch = SourceWatch(spec.read())
    return watch, SourceProbe(watch.source)


def trigger_spec(spec: Spec) -> dict[str, str | None]:
    """The arguments of a trigger that name ``spec``.

    Raises ``SpecError`` if the spec was written in Python and holds a credential, which Airflow would store.
    """
    if spec.fields is not None and holds_credentials(spec.fields):
        raise SpecError(
            "this pipeline was written in Python and holds a credential, which Airflow would store with the trigger that waits for its "
            "source; give the path of a YAML file that names it as ${NAME}"
        )
    return {"path": spec.path, "fields": spec.fields}


class SourceVersionTrigger(BaseTrigger):
    """Ends its task as soon as the source has rows that the pipeline has not read, or an earlier batch is still open.

    Parameters
    ----------
    path, fields
        The spec, as :class:`.Spec` has it.
    poke_interval
        Seconds between two polls, which triggers of the same interval take at the same instants.
    wait_for_table
        Whether to wait for a source that does not exist yet, instead of failing.
    """

    def __init__(self, *, path: str | None, fields: str | None, poke_interval: float, wait_for_table: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Airflow has no types for it
        self.spec = Spec(path, fields)
        self.poke_interval = poke_interval
        self.wait_for_table = wait_for_table

    def serialize(self) -> tuple[str, dict[str, Any]]:
        arguments = trigger_spec(self.spec) | {"poke_interval": self.poke_interval, "wait_for_table": self.wait_for_table}
        return f"{__name__}.SourceVersionTrigger", arguments

    async def run(self) -> AsyncIterator[TriggerEvent]:
        try:
            if self._has_to_wait():
                await self._new_version()
        except Exception as err:  # noqa: BLE001 - the task ends with it and reports it
            refused = isinstance(err, RefusedError)
            message = str(err) if isinstance(err, WindowmillError) else f"{type(err).__name__}: {err}"
            payload = {"error": redacted(message), "refused": refused}
            yield TriggerEvent(payload)  # type: ignore[no-untyped-call]  # Airflow has no types for it
        else:
            # Ends the task here: no worker has to start for it.
            yield TaskSuccessEvent()

    async def _new_version(self) -> None:
        waiting, due = False, time.monotonic()
        with closing(SharedWatch(self.spec)) as watch:
            while True:
                try:
                    if unread := await watch.poll(due, self.poke_interval):
                        self.log.info("%s", _describe(unread))
                        return
                except SourceMissingError as err:
                    if not self.wait_for_table:
                        raise
                    watch.close()  # a table of a catalog may be recorded elsewhere by now
                    if not waiting:
                        self.log.info("%s; waiting for it", err)
                        waiting = True
                seconds = self.poke_interval - time.time() % self.poke_interval
                due = time.monotonic() + seconds
                await asyncio.sleep(seconds)

    def _has_to_wait(self) -> bool:
        # A task that began in the triggerer has its context here; one that a worker has deferred has been asked there.
        context_of = getattr(self.task_instance, "get_template_context", None)
        return context_of is None or advances(context_of())


def _describe(unread: UnreadRows) -> str:
    through = "no version" if unread.planned < 0 else f"version {unread.planned}"
    what = f"the source is at version {unread.version}, plans cover {through}"
    return f"{what}; the newest batch is open" if unread.open else what
