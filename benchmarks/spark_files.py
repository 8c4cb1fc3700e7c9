"""Events as Spark writes them by its defaults: Parquet with INT96 instants, and a Delta table."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

#: Names of the folders beside ``us.parquet``.
PARQUET, DELTA = "spark", "delta"


def landed(events: Path, form: str) -> Path:
    """The folder of ``us.parquet`` in ``events`` as Spark writes it in this form, unless it is there."""
    folder, done = events / form, events / f"{form} complete"
    if not done.exists():
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "benchmarks.spark_files", str(events), form], check=True, stderr=subprocess.DEVNULL)
        done.touch()
    return folder


def main() -> None:
    from benchmarks.job_spark import session

    events, form = Path(sys.argv[1]), sys.argv[2]
    rows = session().read.parquet(str(events / "us.parquet"))
    rows.write.format("delta" if form == DELTA else "parquet").save(str(events / form))


if __name__ == "__main__":
    main()
