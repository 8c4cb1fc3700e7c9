"""Where the specs of an installation are, and the DAGs and problems they come to.

``WINDOWMILL_PIPELINES`` names the folders of ``*.yaml`` files; without it, it is ``pipelines/`` beside the folder of DAGs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from windowmill.dags.names import MAINTENANCE
from windowmill.dags.specs import read_pipeline
from windowmill.windowing.errors import SpecError
from windowmill.windowing.redaction import redacted

if TYPE_CHECKING:
    from airflow.sdk import DAG

VARIABLE = "WINDOWMILL_PIPELINES"
DEFAULT = Path(__file__).absolute().parent.parent / "pipelines"


def spec_files() -> list[Path]:
    """All ``*.yaml`` files, folder by folder, by name.

    Raises
    ------
    SpecError
        When a folder that ``WINDOWMILL_PIPELINES`` names does not exist; the default folder may be missing.
    """
    named = os.environ.get(VARIABLE)
    if not named:
        return sorted(DEFAULT.glob("*.yaml"))
    files: list[Path] = []
    for folder in filter(None, named.split(os.pathsep)):
        if not Path(folder).is_dir():
            raise SpecError(f"{VARIABLE}: {folder} is not a folder; name folders of *.yaml files, separated by {os.pathsep!r}")
        files += sorted(Path(folder).absolute().glob("*.yaml"))
    return files


@dataclass(frozen=True, slots=True)
class Built:
    """The DAGs of all specs that can be read, by id, and a line for each thing that is wrong with the others."""

    dags: dict[str, DAG]
    problems: tuple[str, ...]


def build_all(build: Callable[[Path], Sequence[DAG]], wanted: str | None = None) -> Built:
    """Build the DAGs of every spec; one that cannot be built leaves the others alone.

    Parameters
    ----------
    build
        From a spec's file to its DAGs.
    wanted
        Only the DAG of this id is needed, so files that do not mention its pipeline are left unread.
    """
    dags: dict[str, DAG] = {}
    owners: dict[str, Path] = {}
    problems: list[str] = []
    try:
        files = spec_files()
    except SpecError as err:
        return Built({}, (str(err),))
    for path in files:
        try:
            if wanted is not None and wanted.removesuffix(MAINTENANCE) not in path.read_text(encoding="utf-8", errors="replace"):
                continue
            name = read_pipeline(path).pipeline
            if name in owners:
                raise SpecError(f"{path}: pipeline: {name!r} is also the id in {owners[name]}; each pipeline needs its own")
            built = build(path)
            for dag in built:
                # Airflow does so too, but then blames the file and every DAG in it.
                dag.validate()  # type: ignore[no-untyped-call]  # Airflow has no types for it
        except SpecError as err:
            problems.append(str(err))
        except Exception as err:  # noqa: BLE001 - whatever one spec does, the other pipelines keep their DAGs; it is shown, not swallowed
            problems.append(redacted(f"{path}: {type(err).__name__}: {err}"))
        else:
            owners[name] = path
            dags |= {dag.dag_id: dag for dag in built}
    return Built(dags, tuple(problems))
