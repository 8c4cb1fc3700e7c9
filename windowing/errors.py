"""Every error a user can meet: one line that says what is wrong, where, and what to do next."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

from windowmill.windowing.redaction import redacted

#: Exit code of ``windowmill plan`` where something is to do; other codes are those of errors.
SOMETHING_TO_DO = 4
_COLOUR = re.compile("\x1b\\[[0-9;]*m")
#: Parts of an answer of object storage.
_ANSWER = re.compile("<(?:Code|Message)>([^<\n]+)</")


class WindowmillError(Exception):
    """Base of all errors that windowmill raises on purpose; ``str(error)`` is one line for the user.

    ``exit_code`` is what the command line ends with: 1 failed, and a retry may mend it; 2 refused (:class:`RefusedError`); 3 held by a
    quality rule. Whatever storage, a machine or another run may mend on its own fails: a table that is missing or damaged comes back
    with its mount or its copy.
    """

    exit_code = 1

    def __str__(self) -> str:
        # Messages name paths, and a path may hold credentials that came from the environment.
        return redacted(super().__str__())


class RefusedError(WindowmillError):
    """Wrong usage, spec, code or source: somebody has to change something, no retry helps. Airflow does not retry it."""

    exit_code = 2


class SpecError(RefusedError, ValueError):
    """The pipeline's YAML or its fields are wrong; nothing has been started."""


class PluginError(RefusedError):
    """A plugin cannot be imported, or registers what it may not; nothing has been started."""


class ArgumentError(RefusedError, TypeError):
    """A function of the library was given a value of another type than it takes."""


class MachineError(WindowmillError):
    """Something this machine needs (Java, jars, a writable folder) is missing."""


class ServerGoneError(MachineError):
    """The Spark Connect server does not answer, or has lost the session; another Spark can go on."""


class SourceError(WindowmillError):
    """The source table cannot be read as the plan needs it; nothing has been committed."""


class SourceMissingError(SourceError):
    """There is no table at the source's path, at least not yet."""


class SourceSchemaError(SourceError, RefusedError):
    """The source's columns no longer fit the spec or the plan."""


class SourceFileError(SourceError, RefusedError):
    """A file of the source cannot be read as what the spec says it is; nothing has been committed."""


class SourceRefusedError(SourceError, RefusedError):
    """A table whose rows cannot be used as the spec says."""


class SourceReplacedError(SourceError, RefusedError):
    """The table at the source's path is another one than before (its Delta id differs)."""


class SourceRangeGoneError(SourceError, RefusedError):
    """Versions that the next batch needs have been cleaned out of the source's log or vacuumed away."""


class NonAppendCommitError(SourceError, RefusedError):
    """The source table has a commit that changed or removed rows; incremental windows read appends only."""


class TableUnlocatedError(RefusedError):
    """No run has asked Spark's catalog yet where a table of the spec lies."""


class SourceFeatureError(SourceError, RefusedError):
    """The source uses a table feature that cannot be read rightly."""


class ArrivalUnknownError(SourceError, RefusedError):
    """Arrival order is no longer known, and results depend on it."""


class LimitExceededError(RefusedError):
    """A row, a key or a batch would give more windows or ticks than the bound allows."""


class LocalComputeError(RefusedError):
    """Only Spark can compute the batch, which ``compute: local`` does not allow."""


class LedgerError(WindowmillError):
    """The ledger holds something it cannot hold, or cannot be read."""


class OutdatedLedgerError(LedgerError, RefusedError):
    """The ledger was written by a version before the first release, whose formats and rules were others."""


class LedgerCorruptError(LedgerError):
    """A record of the ledger is damaged, doubled or missing."""


class LedgerBehindError(LedgerError):
    """The pipeline's tables hold batches that the ledger does not know: it has been lost or restored from an older copy."""


class CodeChangedError(LedgerError, RefusedError):
    """The user's own module differs from the one that built the pipeline's state."""


class SpecChangedError(LedgerError, RefusedError):
    """The spec differs from the one that the pipeline's state was built with."""


class OutOfTurnError(LedgerError, RefusedError):
    """The command does not fit the state of the pipeline: no batch is held, or rows of the batch are published."""


class FencedError(WindowmillError):
    """Another attempt has planned or committed this batch; this one stops without effect."""


class LeaseTakenError(WindowmillError):
    """Another process on this machine runs the pipeline."""


class StateError(WindowmillError):
    """Stored state is missing, of an unknown format, or damaged."""


class StateMissingError(StateError):
    """A table that earlier batches wrote is gone, or older than they left it."""


class StateCorruptError(StateError):
    """Stored bytes or rows are not those that were written."""


class ForeignWriteError(RefusedError):
    """Someone else has written to a table that is the pipeline's own."""


class StorageFullError(WindowmillError):
    """The disk is full, or a quota used up; nothing half-written counts."""


class SinkError(WindowmillError):
    """The sink table cannot be written as the spec asks, or someone else has written to it."""


class SinkRefusedError(SinkError, RefusedError):
    """The table at the sink's path is not this pipeline's, or uses a feature under which no one here can write."""


class SavepointError(RefusedError):
    """There is no such savepoint, or the pipeline cannot go back to it."""


class PurgeError(RefusedError):
    """Keys cannot be purged: the source still has rows of them, or a table cannot lose rows."""


class HeldError(WindowmillError):
    """A critical expectation failed: the batch is held, nothing has been published."""

    exit_code = 3


class AggregateOverflowError(RefusedError, OverflowError):
    """An exact integer aggregate left the range of a 64-bit integer."""


class NotTextError(RefusedError, ValueError):
    """A text of the source is not UTF-8."""


class UnsupportedError(SpecError):
    """The spec is valid, but this command does not do what it asks for."""


def no_column(place: str, name: str, known: Iterable[str]) -> str:
    """The message that ``place`` lacks the column ``name``, with the nearest of the ``known`` names.

    >>> no_column("the source", "orgin", ["delay", "origin"])
    "the source has no column 'orgin'; did you mean 'origin'? Its columns are delay, origin"
    """
    names = sorted(known)
    near = difflib.get_close_matches(name, names, 1)
    return f"{place} has no column {name!r}; " + (f"did you mean {near[0]!r}? Its" if near else "its") + f" columns are {', '.join(names)}"


def first_line(err: BaseException) -> str:
    r"""The first line of another library's message, or the name of the error where it has none.

    delta-rs reports causes of an error of object storage in separate lines, in colours, and the store's answer as XML: these are joined.

    >>> first_line(OSError("Generic S3 error\n ↳ GET http://host/k\n ↳ 403 Forbidden\n ↳ <Error><Code>Denied</Code></Error>"))
    'Generic S3 error: GET http://host/k: 403 Forbidden: Denied'
    """
    lines = _COLOUR.sub("", str(err)).strip().splitlines()
    if not lines:
        return type(err).__name__
    causes = [line.strip().removeprefix("↳ ") for line in lines[1:] if line.lstrip().startswith("↳")]
    return ": ".join([lines[0], *(cause for cause in causes if not cause.startswith("<")), *_ANSWER.findall(str(err))])
