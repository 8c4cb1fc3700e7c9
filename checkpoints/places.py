"""Where a pipeline keeps what it remembers: one folder next to its sink; paths on this machine; and pipelines that runs can execute.

delta-rs follows links, and decodes escapes such as %41 in the path to which they lead. So it would read the table in a folder "A" for the
one in "%41", without a word if there is one. A spec must not name such a folder (:mod:`windowmill.windowing.paths`), but a link that it
names may lead to one, or the folder in which the command runs may lie below one.
"""

from __future__ import annotations

import re
import tempfile
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

from windowmill.windowing.errors import SpecError
from windowmill.windowing.fields import Source
from windowmill.windowing.spec import Pipeline

_ESCAPE = re.compile("%[0-9A-Fa-f]{2}")


@dataclass(frozen=True, slots=True)
class Places:
    """Paths of a pipeline's own tables and pages; all below ``root``: a local path, or the URI of another file system."""

    root: str
    #: Delta tables: batches; what later batches need of earlier ones; ids of applied rows, of which later ones are duplicates; rows never
    #: applied; validation results; rows of held batches; files of a source that is a folder; rows of a source that is another pipeline.
    ledger: str
    state: str
    seen: str
    quarantine: str
    quality: str
    held: str
    source_files: str
    input: str
    #: Folder of the rows that a restatement reads, while it lasts.
    restated: str
    #: Folder of the Data Docs pages.
    docs: str
    #: Folder of the savepoints.
    savepoints: str
    #: Folder of the notes on finished shares of an unfinished batch.
    finished: str
    #: The HTML report.
    report: str

    @classmethod
    def of(cls, pipeline: Pipeline) -> Places:
        """The pipeline's ``checkpoints.path``, or ``<sink path>.windowmill``."""
        if pipeline.checkpoints and pipeline.checkpoints.path:
            return cls.below(pipeline.checkpoints.path)
        if pipeline.sink and pipeline.sink.path:
            return cls.below(f"{pipeline.sink.path.rstrip('/')}.windowmill")
        raise SpecError(
            f"pipeline {pipeline.pipeline}: sink.path is missing, so there is no place for its ledger and state; "
            "give sink: {path: …}, or checkpoints: {path: …} for a sink in a catalog"
        )

    @classmethod
    def below(cls, root: str) -> Places:
        """The places below the folder ``root``; a ``file:`` URI becomes the path that it names."""
        local = local_path(root)
        root = root.rstrip("/") if local is None else str(local)
        folders = {each.name: f"{root}/{each.name}" for each in fields(cls)}
        return cls(**folders | {"root": root, "report": f"{root}/report.html"})


def local_path(place: str) -> Path | None:
    """Path of a place on this machine, given as a path or a ``file:`` URI; none for any other URI, such as ``s3://bucket/table``.

    >>> local_path("file:///tables/delays"), local_path("tables/delays"), local_path("s3://bucket/delays")
    (PosixPath('/tables/delays'), PosixPath('tables/delays'), None)
    """
    if place.startswith("file:"):
        return Path(unquote(urlsplit(place).path))
    return None if "://" in place else Path(place)


def absolute(place: str) -> str:
    """``place`` as an absolute path, if it is on this machine; Spark does not decode escapes in a ``file:`` URI."""
    local = local_path(place)
    return place if local is None else str(local.absolute())


def escape_in(place: str) -> str | None:
    """The first escape in the path to which ``place`` leads on this machine; none if delta-rs finds it."""
    local = local_path(place)
    found = None if local is None else _ESCAPE.search(str(local.resolve()))
    return None if found is None else found[0]


def readable_path(place: str) -> str:
    """Where delta-rs reads the log of the table at ``place``: there, or in a folder of this process that links to the log.

    Only the log: paths of data files are relative to the table's own folder.
    """
    return place if escape_in(place) is None else str(_stand_in(place).name)


@cache
def _stand_in(place: str) -> tempfile.TemporaryDirectory[str]:
    """A folder, kept until this process ends, without escapes in its path; its log links to that of the table."""
    local, folder = local_path(place), tempfile.TemporaryDirectory(prefix="windowmill-")
    assert local is not None  # only paths on this machine have links
    (Path(folder.name) / "_delta_log").symlink_to(local.absolute() / "_delta_log")
    return folder


@dataclass(frozen=True, slots=True)
class Runnable:
    """A pipeline that has passed the checks of :func:`windowmill.jobs.runnables.runnable_of`, which alone makes these."""

    pipeline: Pipeline
    source: Source
    #: Paths or URIs of source and sink; of topics of Kafka, a text that names them.
    source_path: str
    sink_path: str
    places: Places
    #: Path or URI of the table of current rows; null if the spec wants none.
    current_path: str | None = None

    @property
    def name(self) -> str:
        return self.pipeline.pipeline
