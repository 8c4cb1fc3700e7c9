"""``make demo``, ``make up``, ``make down``: the example from raw flights to checked aggregates, under a real Airflow scheduler.

``make cluster-demo`` sends its runs to a Spark cluster.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from types import MappingProxyType

from rich.console import Console

from examples.flights.land import land_airports, land_days
from examples.flights.local_airflow import REPOSITORY, STOP_SECONDS, AirflowError, LocalAirflow, settings_of
from examples.flights.local_cluster import ClusterError, LocalCluster, spark_environment
from examples.flights.local_server import LocalServer, ServerError
from examples.flights.recompute import compare
from examples.flights.results import (
    agreement_line,
    batches_table,
    current_rows,
    places_lines,
    published_rows,
    spark_tasks,
    told,
    worst_days,
    worst_now,
)
from windowmill.checkpoints.ledger import Ledger
from windowmill.dags.pools import create_pools
from windowmill.windowing.errors import WindowmillError
from windowmill.windowing.specfile import load_pipeline

FOLDER = Path(os.environ.get("FLIGHTS_FOLDER") or REPOSITORY / ".demo").absolute()
HOME = FOLDER / "airflow"
WAREHOUSE = FOLDER / "warehouse"
SERVER = FOLDER / "server"
SPEC = REPOSITORY / "examples" / "flights" / "pipeline.yaml"
DAG_ID = "flight_delays"

HISTORY = date(2013, 1, 1), date(2013, 1, 31)
BACKFILL = datetime(2013, 1, 1, tzinfo=UTC), datetime(2013, 2, 1, tzinfo=UTC)
FIRST_DAY, LAST_DAY = date(2013, 2, 1), date(2013, 2, 7)
#: ``make up`` goes on through this day: three weeks of daily runs are enough to watch.
LAST_DAY_UP = date(2013, 2, 28)
#: On the cluster the first run takes January up, too: there is no backfill before it, so windows of the first flights count.
LAST_DAY_ON_CLUSTER = date(2013, 2, 2)
BEFORE_ALL = datetime(2012, 12, 1, tzinfo=UTC)

#: One run takes about half a minute on two cores; a machine ten times as slow should still come through.
SECONDS_PER_RUN = 300

console = Console(highlight=False, soft_wrap=True)


def demo() -> int:
    """Everything from a clean folder to the result; Airflow and Spark are stopped at the end."""
    begun = time.monotonic()
    stop_leftovers()
    shutil.rmtree(FOLDER, ignore_errors=True)
    airflow = server = None
    try:
        server = warm_server()
        prepare({"SPARK_REMOTE": server.address})
        airflow = start(LAST_DAY, server.environment())
        watch(airflow, LAST_DAY)
        airflow.stop()
        agrees = show_result(LAST_DAY)
    finally:
        for running in (airflow, server):
            if running is not None:
                running.stop()
    say(f"\nDone in {time.monotonic() - begun:.0f} s.", style="bold")
    say("  make up     start Airflow and its user interface again; the schedule goes on through " + str(LAST_DAY_UP))
    say(f"  own spec    copy {SPEC.relative_to(REPOSITORY)}, change it, and check it with `windowmill validate`")
    return 0 if agrees else 1


def cluster() -> int:
    """Two scheduled runs, sent through Airflow's Spark connection to a master with two workers; everything is stopped at the end."""
    begun = time.monotonic()
    # A terminal's interrupt and a supervisor's request to end are to clean up alike.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    stop_leftovers()
    shutil.rmtree(FOLDER, ignore_errors=True)
    WAREHOUSE.mkdir(parents=True)
    say("Cluster: a standalone master and its workers", style="bold")
    with LocalCluster.running(FOLDER / "spark") as spark:
        for worker in spark.state()["workers"]:
            say(f"  {worker['id']}: {worker['cores']} core, {worker['memory']} MiB")
        say(f"  spark://127.0.0.1:{spark.port}, its page at http://127.0.0.1:{spark.web_port} after {time.monotonic() - begun:.0f} s")
        land_airports(WAREHOUSE / "airports")
        rows = land_days(*HISTORY, WAREHOUSE / "flights")
        say(f"History: {rows:,} flights of {HISTORY[0]} to {HISTORY[1]} landed; the first run takes them up", style="bold")
        connection = {"conn_type": "spark", "host": "spark://127.0.0.1", "port": spark.port, "extra": {"deploy-mode": "client"}}
        environment = {"WINDOWMILL_SPARK_CONN_ID": "spark_cluster", "AIRFLOW_CONN_SPARK_CLUSTER": json.dumps(connection)}
        environment |= spark.keep_events()
        airflow = None
        try:
            airflow = start(LAST_DAY_ON_CLUSTER, environment | spark_environment())
            watch(airflow, LAST_DAY_ON_CLUSTER)
        finally:
            if airflow is not None:
                airflow.stop()
        applications = spark.applications()
    agrees = show_result_on_cluster(applications, spark.tasks_by_worker())
    say(f"\nDone in {time.monotonic() - begun:.0f} s; cluster and Airflow are stopped, logs and tables stay in {FOLDER}.", style="bold")
    return 0 if agrees else 1


def up() -> int:
    """Keep Airflow running, and the schedule with it; prepares what ``make demo`` has not."""
    airflow = LocalAirflow.running(HOME)
    if airflow is None:
        server = warm_server()
        if not (WAREHOUSE / DAG_ID).exists():
            prepare({"SPARK_REMOTE": server.address})
        airflow = start(LAST_DAY_UP, server.environment())
    say(f"Airflow: {airflow.url}/dags/{DAG_ID} (no log-in), daily runs through {LAST_DAY_UP}", style="bold")
    say("  make down   stop it; what it has done stays")
    return 0


def warm_server() -> LocalServer:
    """The server that the runs of the schedule use, started if there is none."""
    server = LocalServer.running(SERVER)
    if server is None:
        with console.status("starting and warming up Spark for the runs, about a minute"):
            begun = time.monotonic()
            server = LocalServer.start(SERVER)
        say(f"Warm: `windowmill serve` keeps Spark warm for the runs, ready after {time.monotonic() - begun:.0f} s", style="bold")
    return server


def down() -> int:
    """Stop Airflow and the warm server if they run."""
    say("Airflow is stopped." if stop_leftovers() else "Airflow was not running.")
    return 0


def prepare(environment: Mapping[str, str] = MappingProxyType({})) -> None:
    """Land January and backfill its windows in one job, with these variables of the environment."""
    WAREHOUSE.mkdir(parents=True, exist_ok=True)
    say(f"History: the flights of {HISTORY[0]} to {HISTORY[1]}", style="bold")
    rows, airports = land_days(*HISTORY, WAREHOUSE / "flights"), land_airports(WAREHOUSE / "airports")
    say(f"  {rows:,} flights landed in {WAREHOUSE}/flights, and {airports:,} airports, whose names they look up")
    first, last = (instant.isoformat() for instant in BACKFILL)
    windowmill("backfill", str(SPEC), "--from", first, "--to", last, environment=environment)


def start(last_day: date, more: Mapping[str, str] = MappingProxyType({})) -> LocalAirflow:
    """Start Airflow with the example's DAGs, scheduled through ``last_day``, and unpause them; ``more`` is for its environment."""
    say("Airflow: standalone, SQLite, its own folder", style="bold")
    begun = time.monotonic()
    # The tasks import the example's modules.
    path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(REPOSITORY)]))
    environment = {"WAREHOUSE": str(WAREHOUSE), "FLIGHTS_LAST_DAY": last_day.isoformat(), "PYTHONPATH": path, **more}
    airflow = LocalAirflow.start(HOME, environment)
    try:
        airflow.wait_until_ready(DAG_ID)
        create_pools([DAG_ID], settings_of(HOME, [airflow.port] * 4))
        airflow.unpause(DAG_ID)
    except BaseException:
        airflow.stop()
        raise
    say(f"  ready at {airflow.url} after {time.monotonic() - begun:.0f} s (log-in off)")
    return airflow


def watch(airflow: LocalAirflow, last_day: date) -> None:
    """Show the scheduled runs until all have succeeded.

    Raises
    ------
    AirflowError
        When a run fails, with the end of its task's log, or nothing happens for ``SECONDS_PER_RUN``.
    """
    wanted = (last_day - FIRST_DAY).days + 1
    say(f"Schedule: {wanted} daily runs, {FIRST_DAY} to {last_day}", style="bold")
    done: set[str] = set()
    moved = time.monotonic()
    with console.status("waiting for the scheduler") as status:
        while len(done) < wanted:
            runs = airflow.runs(DAG_ID)
            for day in [day for day, state in runs.items() if state == "success" and day not in done]:
                done.add(day)
                newest = Ledger.open(load_pipeline(SPEC)).newest
                say(f"  {day[:10]}  {told(newest) if newest else 'no batch'}  ({time.monotonic() - moved:.0f} s)")
                moved = time.monotonic()
            tasks = airflow.tasks(DAG_ID)
            failed = next((task for task in tasks if task["state"] == "failed"), None)
            if failed is not None or "failed" in runs.values():
                what = f"{failed['task_id']} of {failed['dag_run_id']}" if failed else "a run"
                raise AirflowError(f"{what} failed; the end of its log:\n{airflow.log_tail(failed) if failed else ''}")
            if time.monotonic() - moved > SECONDS_PER_RUN:
                raise AirflowError(f"no run has finished for {SECONDS_PER_RUN} s; Airflow's output is in {HOME}/standalone.log")
            now = next(
                (f"{task['task_id']} {task['state']}" for task in tasks if task["state"] in ("running", "up_for_retry")),
                "waiting for the scheduler",
            )
            status.update(f"{len(done)} of {wanted} runs done; {now}")
            time.sleep(1)


def show_result(last_day: date) -> bool:
    """The worst days, the batches, and where everything is; whether the rows equal the recomputed ones."""
    pipeline = load_pipeline(SPEC)
    ledger, rows = Ledger.open(pipeline), published_rows(pipeline)
    console.print()
    console.print(worst_days(rows))
    console.print(worst_now(current_rows(pipeline)))
    console.print(batches_table(ledger, rows.num_rows))
    agreement = compare(rows, after=BACKFILL[0], last_day=last_day)
    good = agreement.holds and spark_tasks(ledger) > 0
    say(agreement_line(agreement), style="bold green" if good else "bold red")
    for line in places_lines(pipeline):
        say(line)
    say("  Airflow       `make up`, then the address that it prints")
    return good


def show_result_on_cluster(applications: Sequence[str], tasks: Mapping[str, Mapping[str, int]]) -> bool:
    """The batches, the applications that computed them, and the ``tasks`` of each application by worker.

    Returns
    -------
    bool
        Whether each run has an application whose workers ran the tasks that its record tells, and the rows equal the recomputed ones.
    """
    pipeline = load_pipeline(SPEC)
    ledger, rows = Ledger.open(pipeline), published_rows(pipeline)
    agreement = compare(rows, after=BEFORE_ALL, last_day=LAST_DAY_ON_CLUSTER)
    console.print()
    console.print(batches_table(ledger, rows.num_rows))
    say("Applications on the cluster, as its master tells them")
    for line in applications:
        say(f"  {line}")
    counted = True
    for batch in ledger.batches():
        by_worker = tasks.get(str(batch.outcome.compute.get("application")), {})
        listed = ", ".join(f"{n} on {worker}" for worker, n in sorted(by_worker.items()))
        say(f"  batch {batch.number}, {batch.outcome.compute.get('application')}: tasks by worker: {listed or 'none'}")
        counted = counted and sum(by_worker.values()) >= batch.outcome.compute.get("tasks", 0) > 0
    good = agreement.holds and len(applications) == ledger.count and counted
    say(agreement_line(agreement), style="bold green" if good else "bold red")
    return good


def windowmill(*arguments: str, environment: Mapping[str, str] = MappingProxyType({})) -> None:
    """Run the command with its progress shown.

    Raises
    ------
    AirflowError
        When it fails; it has said why.
    """
    done = subprocess.run(
        [sys.executable, "-m", "windowmill.jobs.cli", *arguments], cwd=REPOSITORY, env=os.environ | environment, check=False
    )
    if done.returncode:
        raise AirflowError(f"windowmill {arguments[0]} ended with exit code {done.returncode}; its message is above")


def stop_leftovers() -> bool:
    """Stop the Airflow of an earlier demo, and its warm server; whether there was an Airflow."""
    airflow = LocalAirflow.running(HOME)
    if airflow is not None:
        with console.status(f"stopping Airflow; a task at work has {STOP_SECONDS} s to end"):
            airflow.stop()
    server = LocalServer.running(SERVER)
    if server is not None:
        server.stop()
    return airflow is not None


def say(text: str, style: str | None = None) -> None:
    """One line on the terminal, or in a log."""
    console.print(text, style=style, markup=False)


def main(arguments: list[str]) -> int:
    """The command line; returns its exit code."""
    actions = {"demo": demo, "up": up, "down": down, "cluster": cluster}
    if len(arguments) != 1 or arguments[0] not in actions:
        print(f"usage: python -m examples.flights.demo {'|'.join(actions)}", file=sys.stderr)
        return 2
    os.environ["WAREHOUSE"] = str(WAREHOUSE)
    try:
        return actions[arguments[0]]()
    except (AirflowError, ClusterError, ServerError, WindowmillError) as err:
        console.print(f"demo: {err}", style="bold red", markup=False)
        return 1
    except KeyboardInterrupt:
        console.print(
            f"demo: stopped; `make {'cluster-demo' if arguments == ['cluster'] else 'demo'}` starts afresh", style="bold red", markup=False
        )
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
