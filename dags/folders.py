"""Finds the specs of an installation, and builds their DAGs or reports their problems, such as two specs of one name.

The environment says which folders, how Spark and object storage are reached, and what runs do (:mod:`windowmill.windowing.settings`).
Pipelines whose windows are completed by intervals only (``watermark: data_interval_end``) run at each instant of their schedule, regardless
of ``WINDOWMILL_NEW_VERSIONS``.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import get_parsing_context
from airflow.sdk.configuration import conf

from windowmill.dags.specs import ParsedFile, dag_ids_of, pipeline_of
from windowmill.windowing.axis import Duration
from windowmill.windowing.errors import SpecError, WindowmillError
from windowmill.windowing.paths import read_small, specs_in
from windowmill.windowing.redaction import redacted
from windowmill.windowing.settings import (
    APPROVE_CHANGES,
    ASK_WHEN_HELD,
    NEW_VERSIONS,
    PIPELINES,
    SPARK_CONN_ID,
    SPARK_CONNECT_CONN_ID,
    STORAGE_CONN_ID,
    VERIFY,
    Setting,
)
from windowmill.windowing.spec import Pipeline

if TYPE_CHECKING:
    from airflow.sdk import DAG


def spec_files() -> list[Path]:
    """All ``*.yaml`` and ``*.yml`` files, by folder and name; each file once, even if several folders or links lead to it.

    Raises ``SpecError`` if a folder in ``WINDOWMILL_PIPELINES`` does not exist; the default folder may be missing.
    """
    named = PIPELINES.given()
    default = None if named else Path(conf.get("core", "dags_folder")).with_name("pipelines")
    files: dict[str, Path] = {}  # by their paths without links
    for folder in [default] if default else map(Path, filter(None, (named or "").split(os.pathsep))):
        if not default and not folder.is_dir():
            raise SpecError(f"{PIPELINES.name}: {folder} is not a folder; name folders of *.yaml files, separated by {os.pathsep!r}")
        for file in specs_in(folder.absolute()):
            files.setdefault(os.path.realpath(file), file)
    return list(files.values())


#: A pipeline's name, written as it is: without ``${…}``, escapes, or a line end before it.
_PLAIN_NAME = re.compile(rb"""(?m)(?:^|[{,])\s*["']?pipeline["']?[ \t]*:[ \t]*(["']?)[a-z0-9_]+\1\s*(?:[,}#]|$)""")


def mentions(path: Path, pipeline: str) -> bool:
    """Whether the file may be the spec of ``pipeline``: it contains the name, or its name is not written plainly, or it cannot be read."""
    try:
        text = read_small(path)
    except OSError:
        return True
    return pipeline.encode() in text or _PLAIN_NAME.search(text) is None


def connections() -> dict[str, Any]:
    """Arguments of :func:`.build_dag` for the Airflow connections that the environment names."""
    return {
        "conn_id": SPARK_CONN_ID.given(),
        "connect_conn_id": SPARK_CONNECT_CONN_ID.given(),
        "storage_conn_id": STORAGE_CONN_ID.given(),
    }


def verified_rows() -> int | None:
    """Number of published rows that the maintenance DAGs verify, ``WINDOWMILL_VERIFY``; null: none."""
    text = VERIFY.given()
    if not text:
        return None
    if not text.isdecimal() or int(text) < 1:
        raise SpecError(f"{VERIFY.name}: got {text!r}; expected a number of rows such as 100, or leave it out")
    return int(text)


def options_of(pipeline: Pipeline) -> dict[str, Any]:
    """Arguments of :func:`.build_dag` that the environment gives to ``pipeline``."""
    by_rows = isinstance(pipeline.schedule, str) and not pipeline.asserts_interval
    return connections() | {
        "new_versions": NEW_VERSIONS.given() if by_rows else None,
        "ask_when_held": _timeout(ASK_WHEN_HELD),
        "approve_changes": _timeout(APPROVE_CHANGES),
    }


def _timeout(setting: Setting) -> timedelta | None:
    text = setting.given()
    try:
        return timedelta(microseconds=Duration.parse(text).elapsed()) if text else None
    except ValueError as err:
        raise SpecError(f"{setting.name}: {err}; expected a duration such as 12 hours") from err


@dataclass(frozen=True, slots=True)
class BuiltDags:
    """The DAGs of all valid specs, by id, and one line for each problem of the others."""

    dags: dict[str, DAG]
    problems: tuple[str, ...]


def build_all(build: Callable[[ParsedFile], Sequence[DAG]], wanted: str | None = None) -> BuiltDags:
    """Build the DAGs of every spec that does not say ``airflow: own``; a spec that fails does not affect the others.

    ``wanted`` is the id of the only DAG that is needed; files that do not mention its pipeline are skipped.
    """
    dags: dict[str, DAG] = {}
    owners: dict[str, Path] = {}
    problems: list[str] = []
    pipeline = None if wanted is None else pipeline_of(wanted)
    try:
        files = spec_files()
    except SpecError as err:
        return BuiltDags({}, (str(err),))
    for path in files:
        try:
            if pipeline is not None and not mentions(path, pipeline):
                continue
            spec = ParsedFile.of(path)
            name = spec.pipeline.pipeline
            _refuse_taken(path, name, owners)  # before any of them is built, as Airflow takes each DAG then
            built = [] if spec.pipeline.airflow == "own" else build(spec)
            for dag in built:
                # Airflow validates too, but reports a failure for the file and every DAG in it.
                dag.validate()  # type: ignore[no-untyped-call]  # Airflow has no types for it
        except SpecError as err:
            problems.append(str(err))
        except Exception as err:  # noqa: BLE001 - no spec may cost other pipelines their DAGs; the error is reported
            problems.append(redacted(f"{path}: {type(err).__name__}: {err}"))
        else:
            owners |= dict.fromkeys(dag_ids_of(name), path)
            dags |= {dag.dag_id: dag for dag in built}
    return BuiltDags(dags, tuple(problems))


def _refuse_taken(path: Path, name: str, owners: Mapping[str, Path]) -> None:
    """Raise ``SpecError`` if a DAG of the pipeline ``name`` has an id that another spec's has; ``owners`` has the specs by DAG."""
    taken = [dag_id for dag_id in dag_ids_of(name) if dag_id in owners]
    if len(taken) == len(dag_ids_of(name)):
        raise SpecError(f"{path}: pipeline: {name!r} is also the id in {owners[name]}; each pipeline needs its own")
    if taken:
        raise SpecError(f"{path}: pipeline: the DAG {taken[0]} is also built from {owners[taken[0]]}; rename one of the two")


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
    frame = inspect.currentframe()
    while frame is not None and Path(frame.f_code.co_filename).parent == _OWN:
        frame = frame.f_back
    return "another file" if frame is None else frame.f_code.co_filename
