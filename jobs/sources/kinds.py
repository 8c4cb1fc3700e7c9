"""The kinds of sources, by the name that a spec's ``source.format`` gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from windowmill.jobs.sources.base import SourceTable
from windowmill.windowing.errors import SourceError, UnsupportedError
from windowmill.windowing.registry import Registry, resolve
from windowmill.windowing.spec import DELTA_OPTIONS, Pipeline, Source


@dataclass(frozen=True, slots=True)
class SourceKind:
    """A kind of source.

    Attributes
    ----------
    name
        As ``source.format`` gives it.
    open
        Opens the source that a spec describes (``path``, ``options``), as it is now; itself, or ``"module:name"`` to be imported when
        the first source is opened. Raises ``SourceError`` if there is none.
    options
        Names of its own ``source.options``. Those that choose versions (``startingVersion``, ``startingTimestamp``) and limit a batch
        (``maxFilesPerTrigger``, ``maxBytesPerTrigger``) are known for every kind.
    """

    name: str
    open: Callable[[Source], SourceTable] | str
    options: tuple[str, ...] = ()


KINDS: Registry[SourceKind] = Registry("source kind", {"delta": SourceKind("delta", "windowmill.jobs.sources.delta_log:open_delta")})


def kind_problems(settings: Source) -> Iterator[tuple[str, str]]:
    """What is wrong with the kind of a source or with its options, as pairs (path of the field, what is wrong and what to do)."""
    if settings.format not in KINDS:
        # Windowmill's own needs no list.
        others = f", or name one of {', '.join(KINDS)}" if len(KINDS) > 1 else ""
        yield "source.format", f"got {settings.format!r}; runs read Delta tables, land the data in one first{others}"
        return
    known = (*DELTA_OPTIONS, *KINDS[settings.format].options)
    for name in settings.options:
        if name not in known:
            yield f"source.options.{name}", f"unknown; the options of a source of format {settings.format} are {', '.join(known)}"


def open_source(pipeline: Pipeline) -> SourceTable:
    """The source of ``pipeline`` as it is now.

    Raises
    ------
    SourceError
        If it is missing, or cannot be read.
    UnsupportedError
        If no kind of source has the name that the spec gives.
    """
    settings = pipeline.source
    if settings is None or settings.path is None:
        raise SourceError(f"pipeline {pipeline.pipeline}: source.path: missing; give the path of the Delta table")
    for where, told in kind_problems(settings):
        raise UnsupportedError(f"pipeline {pipeline.pipeline}: {where}: {told}")
    return resolve(KINDS[settings.format].open)(settings)
