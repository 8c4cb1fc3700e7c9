"""Where a pipeline keeps what it remembers: one folder beside its sink."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from windowmill.windowing.errors import SpecError
from windowmill.windowing.spec import Pipeline


@dataclass(frozen=True, slots=True)
class Places:
    """Paths of a pipeline's own tables and pages; all below ``root``: a local path, or the URI of another file system.

    Attributes
    ----------
    ledger, state, quarantine, quality, held
        Delta tables: batches; what later batches need of earlier ones; rows never applied; validation results; rows of held batches.
    docs
        Folder of the Data Docs pages.
    report
        The HTML report.
    """

    root: str
    ledger: str
    state: str
    quarantine: str
    quality: str
    held: str
    docs: str
    report: str

    @classmethod
    def of(cls, pipeline: Pipeline) -> Places:
        """The pipeline's ``checkpoints.path``, or ``<sink path>.windowmill``."""
        return cls.below(_root(pipeline))

    @classmethod
    def below(cls, root: str) -> Places:
        """The places below the folder ``root``; a ``file:`` URI becomes the path that it names."""
        local = local_path(root)
        root = root.rstrip("/") if local is None else str(local)
        tables = {name: f"{root}/{name}" for name in ("ledger", "state", "quarantine", "quality", "held", "docs")}
        return cls(root=root, **tables, report=f"{root}/report.html")


def local_path(place: str) -> Path | None:
    """Path of a place on this machine, given as a path or a ``file:`` URI; none for any other URI, such as ``s3://bucket/table``.

    Examples
    --------
    >>> local_path("file:///tables/delays"), local_path("tables/delays"), local_path("s3://bucket/delays")
    (PosixPath('/tables/delays'), PosixPath('tables/delays'), None)
    """
    if place.startswith("file:"):
        return Path(unquote(urlsplit(place).path))
    return None if "://" in place else Path(place)


def absolute(place: str) -> str:
    """``place`` as an absolute path, if it is on this machine; Spark takes escapes in a ``file:`` URI as they stand."""
    local = local_path(place)
    return place if local is None else str(local.absolute())


def _root(pipeline: Pipeline) -> str:
    if pipeline.checkpoints and pipeline.checkpoints.path:
        return pipeline.checkpoints.path
    if pipeline.sink and pipeline.sink.path:
        return f"{pipeline.sink.path.rstrip('/')}.windowmill"
    raise SpecError(
        f"pipeline {pipeline.pipeline}: sink.path is missing, so there is no place for its ledger and state; "
        "give sink: {path: …}, or checkpoints: {path: …} beside a sink in a catalog"
    )
