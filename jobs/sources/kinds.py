"""The kinds of sources, by the name in a spec's ``source.format``."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Any

from windowmill.checkpoints.places import Places
from windowmill.jobs.sources.base import SourceTable
from windowmill.jobs.sources.folder_options import OPTIONS as FOLDER_OPTIONS
from windowmill.jobs.sources.folder_options import option_problems
from windowmill.jobs.sources.kafka_options import OPTIONS as KAFKA_OPTIONS
from windowmill.jobs.sources.kafka_options import option_problems as kafka_problems
from windowmill.windowing.errors import SourceError, UnsupportedError
from windowmill.windowing.registry import Registry, resolve
from windowmill.windowing.spec import DELTA_OPTIONS, Pipeline, Source


@dataclass(frozen=True, slots=True)
class SourceKind:
    """A kind of source.

    Attributes
    ----------
    name
        Name in ``source.format``.
    open
        Function that opens the source that a spec describes (``path``, ``options``) in its present version, and raises ``SourceError`` if
        there is none; or ``"module:name"`` of such a function, imported when the first source is opened.
    records
        Whether ``open`` takes a second argument, the place of a table that records the versions of a source without a log; null if the
        pipeline has no place for it.
    probe
        Function that reads from the source what ``open`` takes as its last argument (null: ``open`` reads it itself), or ``"module:name"``
        of such a function. Its result is the same for all pipelines over the source. Null for a kind whose ``open`` takes no such argument.
    probe_options
        Names of the options on which the result of a probe depends, in addition to the source's location; null for all.
    options
        Names of its own ``source.options``.
    common
        Names of options that it has in common with other kinds: unless given, all that choose versions (``startingVersion``,
        ``startingTimestamp``) and limit a batch (``maxFilesPerTrigger``, ``maxBytesPerTrigger``).
    problems
        Gives problems with the values of its options, as pairs (path of the field, problem and remedy).
    is_located
        Whether ``source.path`` says where it is; else its options do.
    caveat
        A sentence on what it does not promise of the order of rows, and of reading them again; null for none.
    """

    name: str
    open: Callable[..., SourceTable] | str
    options: tuple[str, ...] = ()
    records: bool = False
    probe: Callable[[Source], Any] | str | None = None
    probe_options: tuple[str, ...] | None = None
    common: tuple[str, ...] = DELTA_OPTIONS
    problems: Callable[[Source], Iterator[tuple[str, str]]] | None = None
    is_located: bool = True
    caveat: str | None = None


_FOLDERS = {
    name: SourceKind(
        name,
        "windowmill.jobs.sources.folder:open_folder",
        options,
        records=True,
        probe="windowmill.jobs.sources.folder:probe_folder",
        probe_options=("pathGlobFilter",),
        problems=option_problems,
        caveat="files count in the order in which a run has first seen them; backfills read them again as long as they are there",
    )
    for name, options in FOLDER_OPTIONS.items()
}
_KAFKA = SourceKind(
    "kafka",
    "windowmill.jobs.sources.kafka:open_kafka",
    KAFKA_OPTIONS,
    records=True,
    probe="windowmill.jobs.sources.kafka:probe_topics",
    probe_options=("subscribe", *(name for name in KAFKA_OPTIONS if name.startswith("kafka."))),
    common=("startingTimestamp",),
    problems=kafka_problems,
    is_located=False,
    caveat="messages keep their order within a partition only; backfills and verify read them again as long as the topic keeps all of them",
)
_DELTA = SourceKind(
    "delta",
    "windowmill.jobs.sources.delta_log:open_delta",
    probe_options=(),
    caveat="versions count in the order of the log, and rows of one version are ordered by time and time.tie_break only; runs need the log "
    "and files of versions that they have not read yet, and backfills read the table as it is now",
)
#: Prefix of the caveat of a Delta table that a spec names by a catalog.
_BY_NAME = "a table of the catalog, read where it lay when a run first asked; "
KINDS: Registry[SourceKind] = Registry("source kind", {"delta": _DELTA, **_FOLDERS, "kafka": _KAFKA})


def caveat_of(settings: Source | None) -> str | None:
    """A sentence on what the source does not promise of the order and rereading of rows; null for none, and for unknown kinds."""
    if settings is None or settings.format not in KINDS:
        return None
    caveat = KINDS[settings.format].caveat
    return caveat if caveat is None or settings.table is None else _BY_NAME + caveat


def kind_problems(settings: Source) -> Iterator[tuple[str, str]]:
    """Problems with the kind of a source and its options, as pairs (path of the field, problem and remedy)."""
    if settings.format not in KINDS:
        others = ", ".join(KINDS)
        yield "source.format", f"got {settings.format!r}; runs read Delta tables, write the data to one first, or name one of {others}"
        return
    kind = KINDS[settings.format]
    known = (*kind.common, *kind.options)
    for name in settings.options:
        if name not in known:
            yield f"source.options.{name}", f"unknown; the options of a source of format {settings.format} are {', '.join(known)}"
    if kind.problems is not None:
        yield from kind.problems(settings)


def is_located(settings: Source | None) -> bool:
    """Whether the spec says where its source is, which a table of a catalog does not until a run has probed it up."""
    if settings is None or settings.format not in KINDS:
        return False
    return settings.path is not None or not KINDS[settings.format].is_located


def probe_source(settings: Source) -> Any:
    """Read from a source what is the same for all pipelines over it, for :func:`open_source`; null if nothing is."""
    kind = KINDS[settings.format]
    if kind.probe is not None:
        return resolve(kind.probe)(settings)
    return None if kind.records else resolve(kind.open)(settings)


def shared_identity(settings: Source) -> Hashable:
    """Equal for sources that have the same result of :func:`probe_source`."""
    probe_options = KINDS[settings.format].probe_options
    options = sorted((name, value) for name, value in settings.options.items() if probe_options is None or name in probe_options)
    return settings.format, settings.path, tuple(sorted(settings.storage_options.items())), tuple(options)


def open_source(pipeline: Pipeline, probed: Any = None) -> SourceTable:
    """The source of ``pipeline`` in its present version.

    Parameters
    ----------
    probed
        The present result of :func:`probe_source`; null to probe the source.

    Raises
    ------
    SourceError
        If it is missing, or cannot be read.
    UnsupportedError
        If the spec names an unknown kind of source, or an option that the kind does not have.
    """
    settings = pipeline.source
    if settings is None or (settings.path is None and settings.format in KINDS and KINDS[settings.format].is_located):
        raise SourceError(f"pipeline {pipeline.pipeline}: source.path: missing; give the path of the table or folder")
    for where, problem in kind_problems(settings):
        raise UnsupportedError(f"pipeline {pipeline.pipeline}: {where}: {problem}")
    kind = KINDS[settings.format]
    if not kind.records:
        return resolve(kind.open)(settings) if probed is None else probed  # all values of a Delta table fit their columns
    has_place = pipeline.sink is not None or pipeline.checkpoints is not None
    record = Places.of(pipeline).source_files if has_place else None
    opened: SourceTable = resolve(kind.open)(settings, record, *(() if kind.probe is None else (probed,)))
    return opened.used_by(pipeline)
