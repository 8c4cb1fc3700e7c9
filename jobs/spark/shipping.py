"""Bringing a user's own modules (aggregates, window functions) to executors on other machines."""

from __future__ import annotations

import functools
import importlib
import site
import sysconfig
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from windowmill.jobs.user_code import module_names, plugin_modules
from windowmill.windowing.plugin_loading import VARIABLE, named_plugins
from windowmill.windowing.spec import Pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def ship_modules(spark: SparkSession, pipeline: Pipeline) -> None:
    """Give every executor the modules that ``pipeline`` names, unless it has them: they are installed, or it is on this machine.

    A module in a package takes its whole package with it. Where the pipeline uses a plugin, workers are told which plugins there are, and
    get them all.
    """
    modules = set(module_names(pipeline))
    if used := plugin_modules(pipeline):
        environment = spark.sparkContext.environment
        plugins = used | {plugin.module for plugin in named_plugins()}
        modules |= plugins
        # Every Python worker that is asked for from now on has it; `spark.executorEnv` would have to be set before the session starts.
        environment[VARIABLE] = ",".join(sorted(plugins | set(filter(None, environment.get(VARIABLE, "").split(",")))))
    if (spark.sparkContext.master or "").partition("[")[0] == "local":
        return
    for name in sorted({module.partition(".")[0] for module in modules}):
        origin = importlib.import_module(name).__spec__
        found: Sequence[str | None] = (origin.submodule_search_locations or [origin.origin]) if origin else []
        places = [Path(place) for place in found if place]
        for place in places:
            if not _installed(place):
                spark.sparkContext.addPyFile(str(place if place.is_file() else _zipped(place)))


def _installed(place: Path) -> bool:
    roots = [*site.getsitepackages(), sysconfig.get_path("stdlib")]
    return any(place.is_relative_to(root) for root in roots)


@functools.cache  # Spark takes a name a second time only if it is the same file
def _zipped(package: Path) -> Path:
    """The package's Python files as a zip that can be imported; Spark names what it ships by the file, and ships each name once."""
    target = Path(tempfile.mkdtemp(prefix="windowmill-")) / f"{package.name}.zip"
    with zipfile.ZipFile(target, "w") as archive:
        for file in sorted(package.rglob("*.py")):
            archive.write(file, Path(package.name) / file.relative_to(package))
    return target
