"""A spec on its way from the DAG file to a worker: the path of its file, or its fields when the pipeline was written in Python.

Airflow shows import errors and task logs to everyone who may see the DAG, so no message about a spec or its tables leaves here with a
credential in it.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from windowmill.windowing.errors import WindowmillError
from windowmill.windowing.redaction import redacted
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.specfile import load_pipeline, parse_pipeline


def read_pipeline(spec: str | os.PathLike[str] | Pipeline) -> Pipeline:
    """The pipeline of a YAML file, or the one given.

    Raises
    ------
    SpecError
        With file, line and field of what is wrong.
    """
    if isinstance(spec, Pipeline):
        return spec
    with redacting():
        return load_pipeline(spec)


@contextmanager
def redacting() -> Iterator[None]:
    """Take credentials out of the message of an error of ours."""
    try:
        yield
    except WindowmillError as err:
        # Without its cause: a trace would show the text as it was.
        raise type(err)(redacted(str(err))) from None


@dataclass(frozen=True, slots=True)
class Spec:
    """One of the two: ``path``, as every worker sees it, or ``fields``, a JSON text."""

    path: str | None = None
    fields: str | None = None

    @classmethod
    def of(cls, spec: str | os.PathLike[str] | Pipeline) -> Spec:
        """The spec of a pipeline, or of the YAML file that holds it."""
        if isinstance(spec, Pipeline):
            return cls(fields=json.dumps(spec.model_dump(mode="json", exclude_unset=True)))
        return cls(path=str(Path(spec).absolute()))

    def read(self) -> Pipeline:
        """The pipeline, read anew: here and now the file and the environment decide."""
        if self.path is not None:
            return read_pipeline(self.path)
        with redacting():
            return parse_pipeline(json.loads(self.fields or "null"))

    @contextmanager
    def file(self) -> Iterator[str]:
        """Path of a file that holds the spec, there as long as the block runs."""
        if self.path is not None:
            yield self.path
            return
        with tempfile.TemporaryDirectory(prefix="windowmill-") as folder:
            path = Path(folder) / "pipeline.yaml"
            path.write_text(self.fields or "", encoding="utf-8")  # JSON is YAML
            yield str(path)
