"""Ships users' modules (aggregates, window functions) to executors on other machines."""

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
    """Ship the modules that ``pipeline`` names to the executors, unless they are installed or Spark runs in local mode.

    A module in a package is shipped with its whole package. If the pipeline uses a plugin, workers get all plugins and their names.
    """
    modules = set(module_names(pipeline))
    if used := plugin_modules(pipeline):
        environment = spark.sparkContext.environment
        plugins = used | {plugin.module for plugin in named_plugins()}
        modules |= plugins
        # Python workers started from now on have this variable; `spark.executorEnv` would have to be set before the session starts.
        environment[VARIABLE] = ",".join(sorted(plugins | set(filter(None, environment.get(VARIABLE, "").split(",")))))
    if (spark.sparkContext.master or "").partition("[")[0] == "local":
        return
    for name in sorted({module.partition(".")[0] for module in modules}):
        origin = importlib.import_module(name).__spec__
        locations: Sequence[str | None] = (origin.submodule_search_locations or [origin.origin]) if origin else []
        paths = [Path(location) for location in locations if location]
        for path in paths:
            if not _installed(path):
                spark.sparkContext.addPyFile(str(path if path.is_file() else _zipped(path)))


def _installed(path: Path) -> bool:
    roots = [*site.getsitepackages(), sysconfig.get_path("stdlib")]
    return any(path.is_relative_to(root) for root in roots)


@functools.cache  # Spark accepts a file name a second time only for the same path
def _zipped(package: Path) -> Path:
    """The package's Python files as an importable zip, named after the package: Spark ships each file name once."""
    target = Path(tempfile.mkdtemp(prefix="windowmill-")) / f"{package.name}.zip"
    with zipfile.ZipFile(target, "w") as archive:
        for file in sorted(package.rglob("*.py")):
            archive.write(file, Path(package.name) / file.relative_to(package))
    return target
