"""Commands that need a spec alone, or nothing: ``init``, ``validate``, ``explain``, ``try``; ``setup``, ``doctor``, ``serve``."""

from __future__ import annotations

import json
import signal
import sys
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from windowmill.jobs.commands.terminal import Answer, AsJson, Spec, console, errors, load_pipeline, report, show
from windowmill.windowing.errors import SourceError, SpecError


def validate(
    specs: Annotated[list[Path], typer.Argument(metavar="SPEC", help="YAML files of pipelines, or folders of *.yaml files.")],
    source: Annotated[
        bool, typer.Option("--source", help="Also compare each spec with its source, and read some of its rows; no JVM.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check specs, with their conditions, functions and expectations; starts nothing."""
    from windowmill.jobs.commands.validation import checked, specs_of

    files = specs_of(specs)
    found = [checked(spec, source=source) for spec in files]
    wrong = [each.error for each in found if each.error is not None]
    if len(files) > 1 or specs[0].is_dir():
        every = [{"spec": str(spec), **each.data} for spec, each in zip(files, found, strict=True)]
        counted = f"{len(files)} spec{'s' if len(files) != 1 else ''}: {f'{len(wrong)} not valid' if wrong else 'all valid'}"
        show(Answer({"specs": every}, Text("\n".join([*(line for each in found for line in each.lines), counted]))), as_json)
    elif not wrong:
        show(Answer(found[0].data, Text("\n".join(found[0].lines))), as_json)
    if wrong:
        # One that no retry can mend decides how the command ends.
        ends = SpecError if any(error.exit_code == SpecError.exit_code for error in wrong) else SourceError
        raise wrong[0] if len(wrong) == 1 else ends("\n".join(map(str, wrong)))


def explain(
    spec: Spec,
    verbose: Annotated[bool, typer.Option("--verbose", help="Also show slices, engines with their costs, and what is stored.")] = False,
    as_json: AsJson = False,
) -> None:
    """Explain what a run reads, keeps and combines for each window; starts nothing."""
    from windowmill.jobs.commands.explain import explain as explanation_of

    show(explanation_of(load_pipeline(spec), verbose=verbose), as_json)


def try_(
    spec: Spec,
    input_: Annotated[Path, typer.Option("--input", help="JSON lines; - for standard input.")],
    batch_rows: Annotated[int | None, typer.Option("--batch-rows", min=1, help="Split the input into batches of this many rows.")] = None,
    commit_rows: Annotated[int, typer.Option("--commit-rows", min=1, help="Lines per commit: rows of one commit arrive together.")] = 1,
    engine: Annotated[str, typer.Option("--engine", help="kernel; spark, as runs; or reference, the oracle: plain and slow.")] = "kernel",
    final: Annotated[bool, typer.Option("--final/--no-final", help="Whether the watermark goes to infinity at the end of input.")] = True,
    _as_json: Annotated[bool, typer.Option("--json", help="No effect: the output is JSON lines.")] = False,
) -> None:
    """Run the spec on JSON lines and print its rows as JSON lines. No Airflow, no tables."""
    from windowmill.jobs.commands.try_command import run_try

    raise typer.Exit(run_try(spec, input_, batch_rows, engine, final, commit_rows, stdout=sys.stdout, stderr=sys.stderr))


def schema(
    out: Annotated[Path | None, typer.Option("--out", help="Write it to this file instead; an editor finds it there.")] = None,
    as_json: AsJson = False,
) -> None:
    """Print the JSON schema of a spec, by which editors complete fields and mark mistakes."""
    from windowmill.windowing.spec_guide import described_schema

    described = {"$schema": "https://json-schema.org/draft/2020-12/schema"} | described_schema()
    if out is None:
        print(json.dumps(described, indent=None if as_json else 2))
        return
    try:
        out.write_text(json.dumps(described, indent=2) + "\n", encoding="utf-8")
    except OSError as err:
        raise SpecError(f"{out}: cannot be written ({err.strerror}); name a file in a folder that exists and may be written") from err
    text = f"{out}: the JSON schema of a spec; begin a spec with the line\n# yaml-language-server: $schema={out}"
    show(Answer({"schema": str(out)}, Text(text)), as_json)


def init(
    source: Annotated[
        str | None, typer.Option("--source", help="A Delta table, a folder of Parquet, CSV or JSON files, or kafka://HOST:PORT/TOPIC.")
    ] = None,
    table: Annotated[str | None, typer.Option("--table", help="Instead: a Delta table of Spark's catalog, as schema.table.")] = None,
    format_: Annotated[str | None, typer.Option("--format", help="delta, parquet, csv, json or kafka; found by itself.")] = None,
    options: Annotated[list[str] | None, typer.Option("--option", help="An option of the source, as name=value; repeat it.")] = None,
    keys: Annotated[str | None, typer.Option("--keys", help="Columns by which events are grouped: a,b; - for none.")] = None,
    time: Annotated[str | None, typer.Option("--time", help="The column that says when an event happened.")] = None,
    out: Annotated[Path | None, typer.Option("--out", help="The file to write; by default <pipeline>.yaml.")] = None,
    sink: Annotated[str | None, typer.Option("--sink", help="Where results go; by default next to the source.")] = None,
    pipeline: Annotated[str | None, typer.Option("--pipeline", help="The pipeline's name; by default that of the source.")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Ask nothing: take what the source shows.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
    as_json: AsJson = False,
) -> None:
    """Look at a source, ask at most three questions, and write a spec that runs as it is."""
    from windowmill.jobs.commands.init_command import Asked
    from windowmill.jobs.commands.init_command import init as written

    asked = Asked(source, table, format_, options or [], keys, time, out, sink, pipeline, force)
    show(written(asked, ask=not yes and not as_json), as_json)


def setup(
    with_s3: Annotated[bool, typer.Option("--s3", help="Also fetch the jars with which Spark reads s3:// (13 MB).")] = False,
    as_json: AsJson = False,
) -> None:
    """Get what Spark and the kernels need and this machine lacks: Delta's jars, an archive of classes, compiled code. Minutes, once."""
    from windowmill.jobs.batch.progress import Progress
    from windowmill.jobs.commands.doctor import set_up

    show(set_up(Progress(errors), with_s3=with_s3), as_json)


def doctor(as_json: AsJson = False) -> None:
    """Check this machine: Java, jars, worker Python, versions, warehouse, disk, ports, the server that SPARK_REMOTE names."""
    from windowmill.jobs.commands.doctor import examine, report

    answer = report(examine())
    show(answer, as_json)
    raise typer.Exit(1 if answer.data["wrong"] else 0)


def serve(
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Port on this machine; 0 for any that is free.")] = 15002,
    idle_minutes: Annotated[int, typer.Option("--idle-minutes", min=0, help="End after this time without a client; 0 for never.")] = 0,
    max_age_hours: Annotated[
        int, typer.Option("--max-age-hours", min=0, help="Restart Spark after this time, once no client is connected; 0 for never.")
    ] = 24,
    max_memory_gib: Annotated[
        int, typer.Option("--max-memory-gib", min=0, help="Restart Spark when it takes more, once no client is connected; 0 for never.")
    ] = 8,
    as_json: AsJson = False,
) -> None:
    """Keep Spark warm on this machine, and print the address for SPARK_REMOTE; ends on SIGTERM and Ctrl-C."""
    from windowmill.jobs.warm.connect_server import Server, ServerLimits

    def ready(server: Server) -> None:
        data = {"address": server.address, "port": server.port, "pid": server.pid, "seconds": round(time.monotonic() - begun, 1)}
        show(Answer(data, server.address), as_json)

    begun = time.monotonic()
    server = Server(port, ServerLimits(idle_minutes * 60, max_age_hours * 3_600, max_memory_gib << 30), report)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: server.end())
    report(f"windowmill: starting and warming up Spark on port {server.port}, which takes about a minute")
    report(f"windowmill: the server has ended: {server.keep(ready)}")


def tutorial(
    folder: Annotated[Path | None, typer.Option("--folder", help="A new folder for its files; a temporary one unless given.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show windows, late rows and a held batch on a small shop's orders, in seconds; no JVM."""
    from windowmill.jobs.commands.tutorial import run_tutorial

    data = run_tutorial(folder, (lambda _: None) if as_json else console.print)
    if as_json:
        print(json.dumps(data))
