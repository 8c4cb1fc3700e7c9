"""Finds two DAG files that build the same DAG: Airflow would take the tasks of one, then of the other, without a word."""

from __future__ import annotations

import inspect
import os
from pathlib import Path

from airflow.sdk import get_parsing_context

from windowmill.dags.folders import mentions, spec_files
from windowmill.dags.specs import ParsedFile, dag_ids_of, pipeline_of
from windowmill.windowing.errors import SpecError, WindowmillError
from windowmill.windowing.settings import PIPELINES
from windowmill.windowing.spec import Pipeline

_OWN = Path(__file__).parent


def refuse_clash(dag_id: str, spec: str | os.PathLike[str] | Pipeline) -> None:
    """Raise ``SpecError`` if a DAG file of the user's builds the DAG ``dag_id``, which the files that ship build from another place, too.

    They build the DAGs of each spec in the folders of ``WINDOWMILL_PIPELINES`` that does not say ``airflow: own``. A starting task does not
    look: it has been scheduled by what the DAG processor has read.
    """
    if isinstance(spec, ParsedFile) or get_parsing_context().dag_id is not None:
        return
    try:
        found = [path for path in spec_files() if mentions(path, pipeline_of(dag_id))]
    except SpecError:  # broken_pipelines.py reports it
        return
    for path in found:
        try:
            other = ParsedFile.of(path).pipeline
        except WindowmillError:
            continue
        if dag_id in dag_ids_of(other.pipeline) and other.airflow != "own":
            raise SpecError(
                f"the DAG {dag_id} is built twice: by {_calling_file()}, and by {_OWN / 'pipelines.py'} from {path}; write `airflow: own` "
                f"into {path}, or take it out of the folders in {PIPELINES.name}"
            )


def _calling_file() -> str:
    """The file that has called a function of this package."""
    frame = inspect.currentframe()
    while frame is not None and Path(frame.f_code.co_filename).parent == _OWN:
        frame = frame.f_back
    return "another file" if frame is None else frame.f_code.co_filename
