"""The kinds of sources, by the name in a spec's ``source.format``."""

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
        Name in ``source.format``.
    open
        Function that opens the source that a spec describes (``path``, ``options``) in its present version, and raises ``SourceError`` if
        there is none; or ``"module:name"`` of such a function, imported when the first source is opened.
    options
        Names of its own ``source.options``. The options that choose versions (``startingVersion``, ``startingTimestamp``) and limit a
        batch (``maxFilesPerTrigger``, ``maxBytesPerTrigger``) are valid for every kind.
    """

    name: str
    open: Callable[[Source], SourceTable] | str
    options: tuple[str, ...] = ()


KINDS: Registry[SourceKind] = Registry("source kind", {"delta": SourceKind("delta", "windowmill.jobs.sources.delta_log:open_delta")})


def kind_problems(settings: Source) -> Iterator[tuple[str, str]]:
    """Problems with the kind of a source and its options, as pairs (path of the field, problem and remedy)."""
    if settings.format not in KINDS:
        # With only the built-in kind, the message names it already.
        others = f", or name one of {', '.join(KINDS)}" if len(KINDS) > 1 else ""
        yield "source.format", f"got {settings.format!r}; runs read Delta tables, land the data in one first{others}"
        return
    known = (*DELTA_OPTIONS, *KINDS[settings.format].options)
    for name in settings.options:
        if name not in known:
            yield f"source.options.{name}", f"unknown; the options of a source of format {settings.format} are {', '.join(known)}"


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
        raise SourceError(f"pipeline {pipeline.pipeline}: source.path: missing; give the path of the Delta table")
    for where, problem in kind_problems(settings):
        raise UnsupportedError(f"pipeline {pipeline.pipeline}: {where}: {problem}")
    return resolve(KINDS[settings.format].open)(settings)
