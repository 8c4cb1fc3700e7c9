"""What it costs Airflow's DAG processor to parse a folder of specs: ``python -m benchmarks.dag_parsing --specs 500``.

Each round starts a process, as the DAG processor does, which imports Airflow, loads a DAG file of windowmill and serializes its DAGs. The
figures are processor time by step; Airflow's own imports are the same for a folder without specs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks import measurement
from benchmarks.measurement import Figure, Measurement
from benchmarks.race import ROOT

SPEC = """\
pipeline: {name}
source: {{path: "{folder}/sources/{name}"}}
keys: [origin]
time: {{column: departed_at, disorder: 30 minutes, lateness: 6 hours}}
windows:
  - {{name: hourly, type: tumbling, size: 1 hour}}
  - {{name: rolling_day, type: hopping, size: 24 hours, hop: 5 minutes}}
  - {{name: last_50, type: sliding, evict: {{count: 50}}, trigger: {{count: 10}}}}
aggregates:
  flights: {{count: "*"}}
  mean_delay: {{mean: delay}}
  worst: {{arg_max: [delay, flight_id]}}
sink: {{path: "{folder}/sinks/{name}"}}
expectations:
  - {{type: expect_column_values_to_be_between, column: mean_delay, min_value: -120, max_value: 2880, severity: critical}}
schedule: "*/{minutes} * * * *"
"""

STEPS = ("Airflow's imports", "windowmill's imports", "specs and DAGs", "serialization", "broken_pipelines.py")
_PARSE = """
import json, runpy, sys, time
marks = [time.process_time()]
import airflow.sdk, airflow.serialization.serialized_objects
marks.append(time.process_time())
import windowmill.dags.maintenance, windowmill.dags.factory, windowmill.dags.folders, windowmill.dags.maintenance
marks.append(time.process_time())
dags = runpy.run_path(sys.argv[1] + "/pipelines.py")["built"].dags
marks.append(time.process_time())
for dag in dags.values():
    airflow.serialization.serialized_objects.DagSerialization.to_dict(dag)
marks.append(time.process_time())
runpy.run_path(sys.argv[1] + "/broken_pipelines.py")
marks.append(time.process_time())
print(json.dumps({"dags": len(dags), "seconds": [after - before for before, after in zip(marks, marks[1:])]}))
"""


def main(arguments: list[str] | None = None) -> Measurement:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--specs", type=int, default=500, help="specs in the folder (default %(default)s)")
    parser.add_argument("--repetitions", type=int, default=3, help="processes (default %(default)s)")
    given = measurement.place(parser).parse_args(arguments)
    measured = Measurement("dag_parsing", "parsing a folder of specs", f"{given.specs} specs, {3 * given.specs} DAGs")
    given.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=given.folder) as scratch:
        folder = Path(scratch).absolute()
        (folder / "specs").mkdir()
        for number in range(given.specs):
            name = f"pipeline_{number:04d}"
            (folder / "specs" / f"{name}.yaml").write_text(SPEC.format(name=name, folder=folder, minutes=1 + number % 30))
        rounds = [_parsed(folder, given.specs) for _ in range(given.repetitions)]
    measured.figures = [
        Figure("processor time of one parse, without Airflow's imports", [sum(seconds[1:4]) for seconds in rounds], most=5, unit="s"),
        *(Figure(step, [seconds[number] for seconds in rounds], unit="s") for number, step in enumerate(STEPS)),
    ]
    measured.finish(measurement.terminal(), given.results)
    return measured


def _parsed(folder: Path, specs: int) -> list[float]:
    """Processor time of each step in a process of its own."""
    settings = {"AIRFLOW_HOME": str(folder), "AIRFLOW__CORE__LOAD_EXAMPLES": "False", "WINDOWMILL_PIPELINES": str(folder / "specs")}
    command = [sys.executable, "-c", _PARSE, str(ROOT / "dags")]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | settings, stdout=subprocess.PIPE, text=True, check=True)
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["dags"] == 3 * specs
    return [float(seconds) for seconds in told["seconds"]]


if __name__ == "__main__":
    main()
