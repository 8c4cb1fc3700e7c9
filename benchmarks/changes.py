"""Kinds of changed specs beside a rebuild: ``python -m benchmarks.changes --events 900000 --days 30``.

Each pipeline has read the whole history when its spec changes. `apply` carries the change out, with all history; a pipeline with the new
spec, which has never run, takes the same source in one batch. What both show of the spec's windows must be equal. All in this process
(``compute: local``), by processor time.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from deltalake import DeltaTable
from rich.table import Table

from benchmarks import measurement
from benchmarks.history import DAY_MINUTES, difference, in_order
from benchmarks.pipelines import Growing, quiet
from benchmarks.processes import timed
from windowmill.checkpoints.batches import ApplyPlan
from windowmill.checkpoints.ledger import Ledger
from windowmill.jobs.batch import applying, loop
from windowmill.windowing.axis import AXIS_BEGIN
from windowmill.windowing.spec import Pipeline

HOURLY = {"name": "hourly", "type": "tumbling", "size": "1 hour"}
DAILY = {"name": "daily", "type": "hopping", "size": "24 hours", "hop": "1 hour"}
VISITS = {"name": "visits", "type": "session", "gap": "3 minutes"}
LAST = {"name": "last", "type": "sliding", "evict": {"count": 50}, "trigger": {"count": 10}}
FEW: dict[str, Any] = {"n": {"count": "*"}, "total": {"sum": "code"}, "known": {"count": "code"}}
#: Windows and aggregates before, and after.
KINDS: dict[str, tuple[list[dict[str, Any]], dict[str, Any], list[dict[str, Any]], dict[str, Any]]] = {
    "a grid dropped": ([HOURLY, DAILY], FEW, [DAILY], FEW),
    "sessions dropped": ([HOURLY, VISITS], FEW, [HOURLY], FEW),
    "policies dropped": ([HOURLY, LAST], FEW, [HOURLY], FEW),
    "an aggregate dropped": ([HOURLY, DAILY], FEW, [HOURLY, DAILY], {"n": FEW["n"]}),
    "a mean of what is stored": ([HOURLY], FEW, [HOURLY], FEW | {"average": {"mean": "code"}}),
    "a grid added": ([HOURLY], FEW, [HOURLY, DAILY], FEW),
    "a size changed": ([HOURLY, DAILY], FEW, [HOURLY, DAILY | {"size": "12 hours"}], FEW),
    "sessions added": ([HOURLY], FEW, [HOURLY, VISITS], FEW),
    "policies added": ([HOURLY], FEW, [HOURLY, LAST], FEW),
    "an aggregate added": ([HOURLY, DAILY], FEW, [HOURLY, DAILY], FEW | {"highest": {"max": "v"}}),
}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=900_000, help="events in all (default %(default)s)")
    parser.add_argument("--days", type=int, default=30, help="days, each of which lands as one version (default %(default)s)")
    parser.add_argument("--keys", type=int, default=100, help="keys (default %(default)s)")
    parser.add_argument("--only", default="", help="kinds whose name holds this text")
    given = measurement.place(parser).parse_args(arguments)
    os.environ["WINDOWMILL_COMPUTE"] = "local"
    per_minute = max(1, given.events // (given.days * DAY_MINUTES))
    table = Table("change", "what is not kept", "new state from", "apply, s", "rebuild, s", "apply / rebuild")
    given.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=given.folder) as scratch:
        folder = Path(scratch).absolute()
        growing = Growing(folder / "source", [HOURLY], FEW, keys=given.keys, rows_per_minute=per_minute)
        for _ in range(given.days):
            growing.land(per_minute * DAY_MINUTES)
        for number, (name, (windows, aggregates, new_windows, new_aggregates)) in enumerate(KINDS.items()):
            if given.only in name:
                running = _pipeline(growing, folder / f"p{number}", windows, aggregates)
                rebuilt = _pipeline(growing, folder / f"r{number}", new_windows, new_aggregates)
                changed = _pipeline(growing, folder / f"p{number}", new_windows, new_aggregates)
                table.add_row(name, *_measured(running, changed, rebuilt))
    measurement.terminal().print(table)


def _pipeline(growing: Growing, folder: Path, windows: list[dict[str, Any]], aggregates: dict[str, Any]) -> Pipeline:
    own = Growing(folder, windows, aggregates, keys=growing.keys, rows_per_minute=growing.rows_per_minute)
    return own.pipeline.model_copy(update={"source": growing.pipeline.source})


def _measured(running: Pipeline, changed: Pipeline, rebuilt: Pipeline) -> list[str]:
    loop.run(running, quiet())
    changes = applying.changes_of(changed, Ledger.open(changed))
    assert changes is not None
    done, _, applied = timed(partial(loop.apply, changed, quiet(), history=AXIS_BEGIN))
    _, _, built = timed(partial(loop.run, rebuilt, quiet()))
    names = {window.name for window in changed.windows}
    shown = [in_order(_rows(pipeline, names, list(changed.aggregates))) for pipeline in (changed, rebuilt)]
    assert not difference(*shown), difference(*shown)
    fates = ", ".join(f"{each.name} {each.fate}" for each in (*changes.windows, *changes.aggregates) if each.fate != "kept")
    assert done is not None
    assert isinstance(done.plan, ApplyPlan)
    origin = "the state" if done.plan.carried is not None else "the source"
    return [fates, origin, f"{applied:.2f}", f"{built:.2f}", f"{applied / built:.2f}"]


def _rows(pipeline: Pipeline, names: set[str], aggregates: list[str]) -> Any:
    assert pipeline.sink is not None
    columns = [*pipeline.keys, "window", "window_start", "window_end", "trigger", *aggregates]
    return DeltaTable(pipeline.sink.place).to_pyarrow_table(filters=[("window", "in", sorted(names))], columns=columns)


if __name__ == "__main__":
    main()
