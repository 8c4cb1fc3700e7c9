"""Passes a spec from the DAG file to a worker: as the path of its file, or as its fields if the pipeline is written in Python.

Airflow shows import errors and task logs to everyone who may see the DAG, so this module removes credentials from all messages about a spec
or its tables.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from windowmill.windowing.errors import ArgumentError, WindowmillError
from windowmill.windowing.redaction import MASK, redacted
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.specfile import load_pipeline, parse_pipeline

#: Suffixes of the ids of a pipeline's other DAGs.
MAINTENANCE, BACKFILL = "__maintenance", "__backfill"


def pipeline_of(dag_id: str) -> str:
    return dag_id.removesuffix(MAINTENANCE).removesuffix(BACKFILL)


def dag_ids_of(pipeline: str) -> tuple[str, ...]:
    return (pipeline, f"{pipeline}{BACKFILL}", f"{pipeline}{MAINTENANCE}")


def read_pipeline(spec: str | os.PathLike[str] | Pipeline) -> Pipeline:
    """Read the pipeline of a YAML file; returns a ``Pipeline`` unchanged.

    Raises
    ------
    SpecError
        With file, line and field of each problem.
    ArgumentError
        If ``spec`` is something else.
    """
    if isinstance(spec, Pipeline):
        return spec
    if isinstance(spec, ParsedFile):
        return spec.pipeline
    _check_path(spec)
    with redacting():
        return load_pipeline(spec)


def _check_path(spec: object) -> None:
    if not isinstance(spec, str | os.PathLike):
        raise ArgumentError(
            f"spec: got {type(spec).__qualname__}; expected the path of a pipeline's YAML file, or a Pipeline: Pipeline(**fields) makes "
            "one of a dict of fields"
        )


@dataclass(frozen=True, slots=True)
class ParsedFile(os.PathLike[str]):
    """A pipeline's YAML file and its parsed content, so that several DAGs are built from one parse."""

    path: str
    pipeline: Pipeline

    @classmethod
    def of(cls, path: Path) -> ParsedFile:
        """Read the file at ``path``; raises ``SpecError``."""
        return cls(str(path), read_pipeline(path))

    def __fspath__(self) -> str:
        return self.path


def name_of(spec: str | os.PathLike[str] | Pipeline) -> str:
    """How messages name a spec: by its path, or the pipeline's id."""
    return spec.pipeline if isinstance(spec, Pipeline) else os.fspath(spec)


def identity_of(uri: str) -> str:
    """``uri`` without credentials, which are not part of a table's identity."""
    return redacted(uri).replace(f"{MASK}@", "")


@contextmanager
def redacting() -> Iterator[None]:
    """Remove credentials from messages of windowmill's own errors."""
    try:
        yield
    except WindowmillError as err:
        # Without the cause, because a traceback would show the original text.
        raise type(err)(redacted(str(err))) from None


@dataclass(frozen=True, slots=True)
class Spec:
    """A spec as ``path``, valid on every worker, or as ``fields``, a JSON text; the other one is null."""

    path: str | None = None
    fields: str | None = None

    @classmethod
    def of(cls, spec: str | os.PathLike[str] | Pipeline) -> Spec:
        """Make a spec from a pipeline or from the path of its YAML file; raises ``ArgumentError`` for something else."""
        if isinstance(spec, Pipeline):
            return cls(fields=json.dumps(spec.given_fields()))
        _check_path(spec)
        return cls(path=str(Path(spec).absolute()))

    @property
    def name(self) -> str:
        return self.read().pipeline

    def read(self) -> Pipeline:
        """Read the pipeline again, with the current file and environment."""
        if self.path is not None:
            return read_pipeline(self.path)
        with redacting():
            return parse_pipeline(json.loads(self.fields or "null"))

    def edition(self) -> Hashable:
        """Equal as long as the file has not been written again; null if there is none."""
        try:
            status = None if self.path is None else Path(self.path).stat()
        except OSError:
            return None
        return None if status is None else (status.st_mtime_ns, status.st_size, status.st_ino)

    @contextmanager
    def file(self) -> Iterator[str]:
        """Path of a file with the spec; exists while the block runs."""
        if self.path is not None:
            yield self.path
            return
        with tempfile.TemporaryDirectory(prefix="windowmill-") as folder:
            path = Path(folder) / "pipeline.yaml"
            path.write_text(self.fields or "", encoding="utf-8")  # JSON is YAML
            yield str(path)
