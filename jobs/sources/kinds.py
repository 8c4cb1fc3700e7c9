"""The kinds of sources, by the name in a spec's ``source.format``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from windowmill.checkpoints.places import Places
from windowmill.jobs.sources.base import SourceTable
from windowmill.jobs.sources.folder_options import OPTIONS as FOLDER_OPTIONS
from windowmill.jobs.sources.folder_options import option_problems
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
    options
        Names of its own ``source.options``. The options that choose versions (``startingVersion``, ``startingTimestamp``) and limit a
        batch (``maxFilesPerTrigger``, ``maxBytesPerTrigger``) are valid for every kind.
    """

    name: str
    open: Callable[..., SourceTable] | str
    options: tuple[str, ...] = ()
    records: bool = False


_FOLDERS = {
    name: SourceKind(name, "windowmill.jobs.sources.folder:open_folder", options, records=True) for name, options in FOLDER_OPTIONS.items()
}
KINDS: Registry[SourceKind] = Registry(
    "source kind", {"delta": SourceKind("delta", "windowmill.jobs.sources.delta_log:open_delta")} | _FOLDERS
)


def kind_problems(settings: Source) -> Iterator[tuple[str, str]]:
    """Problems with the kind of a source and its options, as pairs (path of the field, problem and remedy)."""
    if settings.format not in KINDS:
        others = ", ".join(KINDS)
        yield "source.format", f"got {settings.format!r}; runs read Delta tables, land the data in one first, or name one of {others}"
        return
    known = (*DELTA_OPTIONS, *KINDS[settings.format].options)
    for name in settings.options:
        if name not in known:
            yield f"source.options.{name}", f"unknown; the options of a source of format {settings.format} are {', '.join(known)}"
    if settings.format in _FOLDERS:
        yield from option_problems(settings)


def open_source(pipeline: Pipeline) -> SourceTable:
    """The source of ``pipeline`` in its present version.

    Raises
    ------
    SourceError
        If it is missing, or cannot be read.
    UnsupportedError
        If the spec names an unknown kind of source, or an option that the kind does not have.
    """
    settings = pipeline.source
    if settings is None or settings.path is None:
        raise SourceError(f"pipeline {pipeline.pipeline}: source.path: missing; give the path of the table or folder")
    for where, problem in kind_problems(settings):
        raise UnsupportedError(f"pipeline {pipeline.pipeline}: {where}: {problem}")
    kind = KINDS[settings.format]
    if not kind.records:
        return resolve(kind.open)(settings)
    has_place = pipeline.sink is not None or pipeline.checkpoints is not None
    return resolve(kind.open)(settings, Places.of(pipeline).source_files if has_place else None)
