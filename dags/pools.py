"""Creates the one-slot pools that keep runs, backfills and maintenance of a pipeline from overlapping.

Pools are stored in Airflow's database, which a DAG file must not access, and a task without its pool waits forever. So creating pools is a
step of deployment: ``python -m windowmill.dags.pools SPEC…``, or without arguments for all pipelines that dags/pipelines.py finds.
Repeating it is harmless.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from windowmill.dags.folders import spec_files
from windowmill.windowing.errors import WindowmillError
from windowmill.windowing.specfile import load_pipeline


def pool_of(pipeline: str) -> str:
    return f"windowmill_{pipeline}"


def create_pools(pipelines: Iterable[str], settings: Mapping[str, str] | None = None) -> list[str]:
    """Create the pools of ``pipelines`` in Airflow's database, or reset them to one slot; returns their names.

    ``settings`` are variables of the environment that select the Airflow installation, in addition to this process' own.
    """
    pools = {pool_of(name): {"slots": 1, "description": f"Runs of {name}, one at a time", "include_deferred": True} for name in pipelines}
    if pools:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "pools.json"
            file.write_text(json.dumps(pools), encoding="utf-8")
            # Use Airflow's command, because its models are not a public interface.
            done = subprocess.run(
                [sys.executable, "-m", "airflow", "pools", "import", str(file)],
                env={**os.environ, **(settings or {})},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
            )
        if done.returncode:
            reason = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["no message"]
            raise WindowmillError(
                f"airflow pools import: failed with exit code {done.returncode}: {reason[0]}; check AIRFLOW_HOME, `airflow db check`"
            )
    return list(pools)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m windowmill.dags.pools", description="Create the Airflow pools of pipelines.")
    parser.add_argument(
        "specs", nargs="*", metavar="SPEC", help="a pipeline's YAML file (default: all in the folders of WINDOWMILL_PIPELINES)"
    )
    options = parser.parse_args(arguments)
    try:
        names = [load_pipeline(path).pipeline for path in options.specs or spec_files()]
        for pool in create_pools(names):
            print(f"{pool}: 1 slot")
    except WindowmillError as err:
        print(err, file=sys.stderr)
        return err.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
