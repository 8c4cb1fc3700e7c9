"""PySpark's daemon with the modules that tasks need: ``python -m windowmill.jobs.spark.daemon``, by ``spark.python.daemon.module``.

The daemon forks Python workers, and ends those that have been idle for a minute. A worker that is forked later has the modules at once,
where it would import them for a second and a half.
"""

from __future__ import annotations

import gc
import importlib

from pyspark.daemon import manager


def main() -> None:
    """Import, then fork workers until the executor ends."""
    importlib.import_module("windowmill.jobs.batch.compute")
    gc.collect()
    gc.freeze()  # a worker's collector would write to the pages that it shares with the others
    manager()


if __name__ == "__main__":
    main()
