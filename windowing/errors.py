"""Every error a user can meet: one line that says what is wrong, where, and what to do next."""

from __future__ import annotations


class WindowmillError(Exception):
    """Base of all errors that windowmill raises on purpose; ``str(error)`` is one line for the user.

    ``exit_code`` is what the command line ends with: 1 failed, 2 wrong usage or spec, 3 held by a quality rule.
    """

    exit_code = 1


class SpecError(WindowmillError, ValueError):
    """The pipeline's YAML or its fields are wrong; nothing has been started."""

    exit_code = 2


class MachineError(WindowmillError):
    """Something this machine needs (Java, jars, a writable folder) is missing."""


class SourceError(WindowmillError):
    """The source table cannot be read as the plan needs it; nothing has been committed."""


class SourceSchemaError(SourceError):
    """The source's columns no longer fit the spec or the plan."""


class SourceReplacedError(SourceError):
    """The table at the source's path is another one than before (its Delta id differs)."""


class SourceRangeGoneError(SourceError):
    """Versions that the next batch needs have been cleaned out of the source's log or vacuumed away."""


class NonAppendCommitError(SourceError):
    """The source table has a commit that changed or removed rows; incremental windows read appends only."""


class LedgerError(WindowmillError):
    """The ledger holds something it cannot hold, or cannot be read."""


class SpecChangedError(LedgerError):
    """The spec differs from the one that the pipeline's state was built with."""


class FencedError(WindowmillError):
    """Another attempt has planned or committed this batch; this one stops without effect."""


class LeaseTakenError(WindowmillError):
    """Another process on this machine runs the pipeline."""


class StateError(WindowmillError):
    """Stored state is missing, of an unknown format, or damaged."""


class SinkError(WindowmillError):
    """The sink table cannot be written as the spec asks, or someone else has written to it."""


class HeldError(WindowmillError):
    """A critical expectation failed: the batch is held, nothing has been published."""

    exit_code = 3


class AggregateOverflowError(WindowmillError, OverflowError):
    """An exact integer aggregate left the range of a 64-bit integer."""


class UnsupportedError(SpecError):
    """The spec is valid, but this command does not do what it asks for."""
