"""The command line. Each command imports what it needs when it runs: ``validate`` and a run with nothing new start no JVM."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from typer.exceptions import TyperException

from windowmill.windowing.errors import SpecError, WindowmillError
from windowmill.windowing.redaction import redacted
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.specfile import load_pipeline, read_spec

if TYPE_CHECKING:
    from windowmill.jobs.outcomes import Done, Ruling

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Sliding-window aggregates on Spark and Delta, batch by batch.",
)
_console = Console(highlight=False, soft_wrap=True)
_errors = Console(stderr=True, highlight=False, soft_wrap=True)

Spec = Annotated[Path, typer.Argument(metavar="SPEC", help="The pipeline's YAML file.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
AcceptChanges = Annotated[
    bool, typer.Option("--accept-changes", help="Continue although others have changed rows of the sink, quarantine or quality table.")
]
AcceptCode = Annotated[
    bool,
    typer.Option("--accept-code", help="Continue although a module that the spec names was edited; you vouch that it computes the same."),
]
Arrival = Annotated[
    Literal["log", "event_time"],
    typer.Option(
        "--arrival",
        help="Order in which historical rows count as arrived: log order, in which rows can be late, or event-time order.",
    ),
]
Last = Annotated[int, typer.Option("--last", min=1, help="How many to show, newest last.")]


@app.callback()
def _options(debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False) -> None:
    _State.debug = debug


class _State:
    debug = False


@app.command()
def validate(
    spec: Spec,
    source: Annotated[bool, typer.Option("--source", help="Also compare the spec with the columns of its source; no JVM.")] = False,
) -> None:
    """Check the spec, with its conditions, functions and expectations; starts nothing."""
    from windowmill.jobs.spec_checks import problems_of, source_problems

    read = read_spec(spec)
    pipeline = read.pipeline
    problems = problems_of(pipeline) or (list(source_problems(pipeline)) if source else [])
    if problems:
        raise SpecError("\n".join(read.problem(field, told) for field, told in problems))
    missing = [name for name in ("source", "sink") if getattr(pipeline, name) is None]
    note = f"; without {' and '.join(missing)} it serves `windowmill try` only" if missing else ""
    _console.print(
        f"{spec}: pipeline {pipeline.pipeline} is valid: {len(pipeline.windows)} windows, {len(pipeline.aggregates)} aggregates{note}",
        markup=False,
    )


@app.command()
def explain(spec: Spec, as_json: AsJson = False) -> None:
    """Explain how the spec is computed: slices, engines and why, their cost, what is stored; starts nothing."""
    from windowmill.jobs.explain import explain as tell

    _show(tell(load_pipeline(spec)), as_json)


@app.command(name="try")
def try_(
    spec: Spec,
    input_: Annotated[Path, typer.Option("--input", help="JSON lines; - for standard input.")],
    batch_rows: Annotated[int | None, typer.Option("--batch-rows", min=1, help="Split the input into batches of this many rows.")] = None,
    engine: Annotated[str, typer.Option("--engine", help="kernel; spark, as runs; or reference, the oracle: plain and slow.")] = "kernel",
    final: Annotated[bool, typer.Option("--final/--no-final", help="Whether the watermark goes to infinity at the end of input.")] = True,
) -> None:
    """Run the spec on JSON lines and print its rows as JSON lines. No Airflow, no tables."""
    from windowmill.jobs.try_command import run_try

    raise typer.Exit(run_try(spec, input_, batch_rows=batch_rows, engine=engine, final=final, stdout=sys.stdout, stderr=sys.stderr))


@app.command()
def run(
    spec: Spec,
    max_batches: Annotated[
        int | None, typer.Option("--max-batches", min=1, help="Stop after this many batches; by default when the source is drained.")
    ] = None,
    data_interval_end: Annotated[
        datetime | None, typer.Option("--data-interval-end", help="Instant (UTC) through which the input is complete.")
    ] = None,
    arrival: Arrival = "log",
    accept_changes: AcceptChanges = False,
    accept_code: AcceptCode = False,
    as_json: AsJson = False,
) -> None:
    """Advance the pipeline over its source's new rows."""
    from windowmill.jobs import runs
    from windowmill.jobs.planning import Accepted
    from windowmill.jobs.progress import Progress

    pipeline = load_pipeline(spec)
    accepted = Accepted(changes=accept_changes, code=accept_code)
    done = runs.run(
        pipeline, Progress(_errors), max_batches=max_batches, interval_end=data_interval_end, arrival=arrival, accepted=accepted
    )
    _tell(pipeline, done, as_json)


@app.command()
def backfill(
    spec: Spec,
    begin: Annotated[
        str, typer.Option("--from", help="Windows that end after this instant (ISO 8601, UTC; an integer on an integer axis).")
    ],
    end: Annotated[str, typer.Option("--to", help="… and at or before this one.")],
    arrival: Arrival = "log",
    accept_changes: AcceptChanges = False,
    accept_code: AcceptCode = False,
    as_json: AsJson = False,
) -> None:
    """Recompute the windows that end in (from, to] from history, as one batch."""
    from windowmill.jobs import runs
    from windowmill.jobs.planning import Accepted
    from windowmill.jobs.progress import Progress

    pipeline = load_pipeline(spec)
    first, last = _instant("--from", begin, pipeline), _instant("--to", end, pipeline)
    if first >= last:
        raise SpecError(f"--from {begin} is not before --to {end}; windows that end in (from, to] are recomputed")
    accepted = Accepted(changes=accept_changes, code=accept_code)
    _tell(pipeline, [runs.backfill(pipeline, Progress(_errors), begin=first, end=last, arrival=arrival, accepted=accepted)], as_json)


@app.command()
def release(spec: Spec, accept_changes: AcceptChanges = False, accept_code: AcceptCode = False, as_json: AsJson = False) -> None:
    """Publish the held batch although a critical expectation failed."""
    _rule(spec, "release", changes=accept_changes, code=accept_code, as_json=as_json)


@app.command()
def discard(spec: Spec, accept_changes: AcceptChanges = False, accept_code: AcceptCode = False, as_json: AsJson = False) -> None:
    """Commit the held batch without publishing its rows; later windows still count its events."""
    _rule(spec, "discard", changes=accept_changes, code=accept_code, as_json=as_json)


@app.command()
def abandon(spec: Spec, as_json: AsJson = False) -> None:
    """Drop an open plan that has published nothing; the next run makes a new plan."""
    from windowmill.jobs import runs
    from windowmill.jobs.progress import Progress
    from windowmill.jobs.tell import Answer

    pipeline = load_pipeline(spec)
    plan = runs.abandon(pipeline, Progress(_errors))
    data = {"pipeline": pipeline.pipeline, "status": "abandoned", "batch": plan.batch, "action": plan.action}
    _show(Answer(data, f"{pipeline.pipeline}: batch {plan.batch} ({plan.action}) is abandoned; none of its rows had landed"), as_json)


@app.command()
def status(spec: Spec, as_json: AsJson = False) -> None:
    """Show the pipeline's progress and open batch."""
    from windowmill.jobs.tell import status_of

    _show(status_of(load_pipeline(spec)), as_json)


@app.command()
def history(
    spec: Spec,
    last: Last = 20,
    timings: Annotated[bool, typer.Option("--timings", help="Show the seconds of each step.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the pipeline's batches."""
    from windowmill.jobs.tell import history_of

    _show(history_of(load_pipeline(spec), last, timings=timings), as_json)


@app.command()
def quality(spec: Spec, last: Last = 5, as_json: AsJson = False) -> None:
    """Show the validation results of the last batches."""
    from windowmill.jobs.tell import quality_of

    _show(quality_of(load_pipeline(spec), last), as_json)


@app.command()
def state(
    spec: Spec,
    key: Annotated[
        list[str] | None,
        typer.Option("--key", metavar="NAME=VALUE", help="A key; give the option once per key column. NAME alone means null."),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Maximum number of lines of each list.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Show the stored state; for a key, what the next run would restore, and for which windows."""
    from windowmill.jobs.state import state_of

    _show(state_of(load_pipeline(spec), key or [], limit), as_json)


@app.command()
def report(
    spec: Spec,
    out: Annotated[str | None, typer.Option("--out", help="Path or URI of the page; by default next to the pipeline's tables.")] = None,
) -> None:
    """Write the HTML report."""
    from windowmill.jobs.report import write_report

    _console.print(redacted(write_report(load_pipeline(spec), out=str(out) if out else None)), markup=False)


@app.command()
def maintain(spec: Spec, as_json: AsJson = False) -> None:
    """Drop expired slices, compact and vacuum the pipeline's own tables."""
    from windowmill.jobs.maintenance import maintain as keep
    from windowmill.jobs.progress import Progress

    _show(keep(load_pipeline(spec), Progress(_errors)), as_json)


@app.command()
def doctor() -> None:
    """Check this machine: Java, jars, worker Python, versions, warehouse, disk, ports."""
    from windowmill.jobs.doctor import examine
    from windowmill.jobs.doctor import report as tell

    raise typer.Exit(tell(examine(), _console))


def _rule(spec: Path, ruling: Ruling, *, changes: bool, code: bool, as_json: bool) -> None:
    from windowmill.jobs import runs
    from windowmill.jobs.planning import Accepted
    from windowmill.jobs.progress import Progress

    pipeline = load_pipeline(spec)
    _tell(pipeline, runs.run(pipeline, Progress(_errors), ruling=ruling, accepted=Accepted(changes=changes, code=code)), as_json)


def _instant(option: str, text: str, pipeline: Pipeline) -> int:
    from windowmill.windowing.axis import to_us

    try:
        return int(text) if pipeline.time.unit else to_us(datetime.fromisoformat(text))
    except ValueError as err:
        wanted = "an integer (time.unit is given)" if pipeline.time.unit else "an instant such as 2013-01-01 or 2013-01-01T06:00:00Z"
        raise SpecError(f"{option}: got {text!r}; expected {wanted}") from err


def _tell(pipeline: Pipeline, done: list[Done], as_json: bool) -> None:
    from windowmill.jobs.tell import summary_of

    summary = summary_of(pipeline, done)
    if as_json:
        print(json.dumps(summary.data))
    else:
        _console.print(summary.text, markup=False)


def _show(answer: Any, as_json: bool) -> None:
    if as_json:
        print(json.dumps(answer.data))
    else:
        _console.print(answer.text)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    return _guarded(lambda: app(args=arguments, standalone_mode=False))


def _guarded(action: Callable[[], Any]) -> int:
    try:
        result = action()
    except TyperException as err:
        _errors.print(f"windowmill: {err.format_message()}; see `windowmill --help`", markup=False)
        return 2
    except (typer.Abort, KeyboardInterrupt):
        _errors.print("windowmill: stopped; run again to continue", markup=False)
        return 1
    except WindowmillError as err:
        if _State.debug:
            raise
        _errors.print(f"windowmill: {err}", markup=False)
        return err.exit_code
    except Exception as err:
        if _State.debug:
            raise
        from windowmill.jobs.failures import explain, raised_in_worker

        ours = raised_in_worker(err)
        _errors.print(f"windowmill: {redacted(explain(err)) if ours is None else ours}", markup=False)
        return 1 if ours is None else ours.exit_code
    return result if isinstance(result, int) else 0


if __name__ == "__main__":
    sys.exit(main())
