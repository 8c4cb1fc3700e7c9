"""``windowmill status``, ``history`` and ``quality``, and the summary of a run, each as data and as text. No JVM."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from windowmill.checkpoints.ledger import Ledger
from windowmill.checkpoints.own_tables import own_tables
from windowmill.checkpoints.places import Places
from windowmill.checkpoints.protocol import outstanding
from windowmill.checkpoints.stores import options_of, use_options_of
from windowmill.expectations.gate import newest_batches, read
from windowmill.jobs.batch import engine, planning
from windowmill.jobs.batch.engine import compute_of, refused_locally
from windowmill.jobs.batch.planning import Waiting
from windowmill.jobs.batch.progress import CommittedBatch, Progress, missed_windows, warnings_of
from windowmill.jobs.batch.window_history import kept_verdict, named_where_unreadable, rulings
from windowmill.jobs.commands.terminal import Answer, AsJson, Last, Spec, as_written, errors, load_pipeline, show
from windowmill.jobs.layouts import limits
from windowmill.jobs.runnables import runnable_of
from windowmill.windowing.axis import from_us
from windowmill.windowing.errors import HeldError, TableUnlocatedError, WindowmillError
from windowmill.windowing.redaction import redacted
from windowmill.windowing.registry import imported
from windowmill.windowing.spec import Pipeline

if TYPE_CHECKING:
    from windowmill.checkpoints.batches import Batch
    from windowmill.checkpoints.places import Runnable
    from windowmill.jobs.sources.base import LoggedVersion, Reading, SourceTable

#: Versions that the text of ``status`` names, and rows that break a rule in that of ``quality``.
_MAX_NAMED = 5
_WHAT_NEXT = "`windowmill {}` or `windowmill {}` it, or change the rule or the limits of quarantine and run again"


def new_progress() -> Progress:
    return Progress(errors, as_written)


def summary_of(pipeline: Pipeline, done: Sequence[CommittedBatch], status: str | None = None) -> Answer:
    """Summarize a run: a line of text, and in ``data`` the counts of each batch that it committed; ``seconds`` are wall-clock time.

    ``status`` is how it ended, if badly.
    """
    instants = not pipeline.time.integer_axis
    batches = []
    for batch in done:
        outcome, counts = batch.outcome, batch.outcome.published_counts
        first, end = counts.window_ends or (None, None)
        seconds = {"seconds": round(sum(outcome.timings.values()), 3), "timings": outcome.timings}
        facts = {"batch": batch.plan.batch, "action": batch.plan.action, "verdict": outcome.verdict, **counts.shown()}
        facts |= {"windows": counts.rows_of_windows(), "window_end_min": bound(first, instants), "window_end_max": bound(end, instants)}
        if batch.plan.upstream:
            facts["upstream"] = batch.plan.upstream
        batches.append(facts | {"compute": outcome.compute} | seconds)
    data = {"pipeline": pipeline.pipeline, "status": status or ("committed" if done else "nothing new"), "batches": batches}
    if not done:
        return Answer(data, f"{pipeline.pipeline}: nothing new")
    read, published = sum(b["rows_read"] for b in batches), sum(b["rows_published"] for b in batches)
    late, quarantined = sum(b["rows_late"] for b in batches), sum(b["rows_quarantined"] for b in batches)
    others = {"duplicates": "duplicates", "filtered": "filtered out"}
    left_out = "".join(f", {n:,} {what}" for name, what in others.items() if (n := sum(b[name] for b in batches)))
    missed = sum((Counter(batch["late_missed"]) for batch in batches), Counter[str]())
    lost = f"; {missed_windows(missed)}" if missed else ""
    numbers = f"{batches[0]['batch']}" if len(batches) == 1 else f"{batches[0]['batch']} to {batches[-1]['batch']}"
    text = (
        f"{pipeline.pipeline}: committed batch {numbers}: {read:,} rows read ({late:,} late, {quarantined:,} quarantined{left_out}{lost}), "
        f"{published:,} rows published, verdict {batches[-1]['verdict']}, {sum(b['seconds'] for b in batches):.1f} s, "
        f"computed by {engine.describe(batches[-1]['compute'])}"
    )
    return Answer(data, text)


@contextmanager
def summarized_in_json(pipeline: Pipeline, progress: Progress, as_json: bool) -> Iterator[None]:
    """With ``--json``, print the summary also where a batch is held, or where an error follows batches that are committed."""
    try:
        yield
    except WindowmillError as err:
        held = isinstance(err, HeldError)
        if as_json and (held or progress.committed):
            show(summary_of(pipeline, progress.committed, "held" if held else "failed"), as_json)
        raise


def status_of(pipeline: Pipeline) -> Answer:
    """Report the pipeline's last batch, its progress along the axis, unread source versions, and what would stop the next run."""
    ledger, places = Ledger.open(pipeline), Places.of(pipeline)
    last, held, totals = ledger.last_commit, ledger.held_batch, ledger.totals
    lacking = _outstanding(pipeline, ledger)
    error, waiting = _error_of_next_run(pipeline, ledger), Waiting.of(pipeline, ledger)
    changing = waiting.changing()
    held_by = None if held is None else _held_by(held, places.quality)
    data = {
        "pipeline": pipeline.pipeline,
        "status": "never run" if not ledger.count else "held" if held else "unpublished" if lacking else "idle",
        "batches": ledger.count,
        "last_commit": _text(last.committed_at) if last else None,
        "seen": _text(last.seen) if last else None,
        "emitted": _text(last.emitted) if last else None,
        "source_version": last.to_version if last else None,
        "versions_waiting": waiting.n,
        "versions_changing": [{"version": version.version, "operation": version.operation} for version in changing],
        **({} if pipeline.upstream is None else {"upstream": _upstream_of(pipeline, pipeline.upstream)}),
        "next_run_error": None if error is None else as_written(str(error)),
        "next_run_exit_code": None if error is None else error.exit_code,
        "compute": last.outcome.compute if last else None,
        "open_batch": held.number if held else None,
        "held_by": held_by,
        "commits_to_make": [f"batch {ledger.count - 1}: {role}" for role in lacking],
        "rows_read": totals.counts.rows_read,
        "rows_quarantined": totals.counts.rows_quarantined,
        "filtered": totals.counts.filtered,
        **({} if pipeline.dedup is None else {"duplicates": totals.counts.duplicates}),
        "rows_ignored": totals.counts.rows_ignored,
        "late_missed": last.counts.late_missed if last else {},
        "warning": "; ".join(warnings_of(last.counts, pipeline, places)) or None if last else None,
        "sink": pipeline.sink.place if pipeline.sink else None,
        **({"current": redacted(pipeline.sink.current)} if pipeline.sink and pipeline.sink.current else {}),
        "checkpoints": redacted(places.root),
    }
    table = facts_table()
    labels = {
        "compute": "last computed by",
        "current": "current rows",
        "emitted": "results through",
        "filtered": "rows filtered out",
        "late_missed": "late in last batch",
        "seen": "latest event",
        "source_version": "source read through",
        "versions_waiting": "versions waiting",
        "next_run_error": "next run",
    }
    shown = data | {"compute": engine.describe(last.outcome.compute) if last else None}
    if "upstream" in data:
        shown["upstream"] = _read_of(data["upstream"])
    if changing:
        shown["versions_waiting"] = f"{waiting.n:,}, of which {_describe(changing)}"
    if error is not None:
        shown["next_run_error"] = f"would end with exit code {error.exit_code}: {data['next_run_error']}"
    shown["commits_to_make"] = (
        f"{len(lacking)}, of batch {ledger.count - 1}: {', '.join(lacking)}; the next run makes them" if lacking else None
    )
    shown["late_missed"] = missed_windows(last.counts.late_missed if last else {})
    for name, value in shown.items():
        if name in ("held_by", "versions_changing", "next_run_exit_code"):  # shown in another form, or with another
            continue
        if name in ("filtered", "late_missed") and not value:
            continue
        table.add_row(
            labels.get(name, name.replace("_", " ")),
            "–" if value is None else f"{value:,}" if isinstance(value, int) else Text(str(value)),
        )
        if name == "open_batch" and held is not None and held_by is not None:
            next_ = _WHAT_NEXT.format(*rulings(ledger, held.plan))
            table.add_row("held by", Group(*_told(held_by), next_))
    return Answer(data, table)


def _upstream_of(pipeline: Pipeline, upstream: Pipeline) -> dict[str, Any]:
    """The pipeline whose results are the source: its last batch that has been read, null for none, and how many published ones are not."""
    read: int = imported("windowmill.jobs.sources.chains:read_through")(pipeline)
    unread: int | None
    try:
        unread = imported("windowmill.jobs.sources.chains:unread_batches")(pipeline)
    except WindowmillError:  # the next run says what is wrong with the tables of the other pipeline
        unread = None
    return {"pipeline": upstream.pipeline, "read_through": None if read < 0 else read, "unread": unread}


def _read_of(upstream: Any) -> str:
    read, unread = upstream["read_through"], upstream["unread"]
    through = "nothing read yet" if read is None else f"read through batch {read}"
    waiting = "" if unread is None else f", {unread:,} published {'batch' if unread == 1 else 'batches'} unread"
    return f"{upstream['pipeline']}: {through}{waiting}"


def _held_by(held: Batch, quality: str) -> list[dict[str, Any]]:
    """The critical rules that the ``held`` batch does not meet, with a few rows that break each."""
    found = kept_verdict(quality, held.plan)
    unmet = [] if found is None else [result for result in found.unmet if result.severity == "critical"]
    return [{"type": r.type, "column": r.column, "message": r.message, "rows": r.rows[:_MAX_NAMED]} for r in unmet]


def _told(rules: Sequence[Mapping[str, Any]]) -> Iterator[RenderableType]:
    for rule in rules:
        yield Text(f"{rule['type']}({rule['column'] or ''}): {rule['message']}")
        yield from map(_example, rule["rows"])


def _example(row: Mapping[str, Any] | str) -> Padding:
    """A row that breaks a rule, or its description, indented below the line of the rule."""
    text = row if isinstance(row, str) else ", ".join(f"{name}={'null' if value is None else value}" for name, value in row.items())
    return Padding(Text(text), (0, 0, 0, 2), expand=False)


def _outstanding(pipeline: Pipeline, ledger: Ledger) -> list[str]:
    """Roles of the tables that lack a commit of the last batch; none if a problem prevents looking, which the next run will report."""
    try:
        return outstanding(ledger, own_tables(runnable_of(pipeline)))
    except WindowmillError:
        return []


def history_of(pipeline: Pipeline, last: int, *, timings: bool) -> Answer:
    from windowmill.jobs.report.cost import figures_of  # with the report come its templates

    batches = Ledger.open(pipeline).recent(last)
    data = [
        {
            "batch": batch.number,
            "action": batch.action,
            "status": batch.status,
            "verdict": batch.verdict,
            "from_version": batch.from_version,
            "to_version": batch.to_version,
            **({"upstream": batch.plan.upstream} if batch.plan.upstream else {}),
            **batch.counts.shown(),
            "emitted": _text(batch.emitted),
            "ruled_by": batch.ruled_by,
            "planned_at": _text(batch.planned_at),
            "committed_at": _text(batch.committed_at),
            "state_restored": batch.counts.state_restored,
            "compute": batch.outcome.compute,
            "timings": batch.outcome.timings,
            **figures_of(batch),
        }
        for batch in batches
    ]
    return Answer(data, _timings(pipeline, data) if timings else _batches(pipeline, data))


def _batches(pipeline: Pipeline, data: Sequence[dict[str, Any]]) -> Table:
    left_out = {"duplicates": pipeline.dedup is not None, "filtered": pipeline.filters_rows}
    figures = ["rows_read", "rows_late", "rows_quarantined", *(name for name, may_be in left_out.items() if may_be), "rows_published"]
    shown = [name.removeprefix("rows_") for name in figures]
    names = ("#", "action", "verdict", *shown, "tasks", "results through")
    table = titled(f"batches of {pipeline.pipeline}", names, ("action", "verdict", "results through"), narrow=True)
    for row in data:
        counts = [f"{row[name]:,}" for name in figures]
        verdict = row["verdict"] if row["status"] == "committed" else row["status"]
        emitted = "–" if row["emitted"] is None else str(row["emitted"])[:16].replace("T", " ")
        table.add_row(str(row["batch"]), row["action"], verdict, *counts, engine.describe_briefly(row["compute"]), emitted)
    return table


def _timings(pipeline: Pipeline, data: Sequence[dict[str, Any]]) -> Table:
    steps = list(dict.fromkeys(step for row in data for step in row["timings"]))
    table = titled(f"seconds of {pipeline.pipeline}'s batches", ("batch", *steps, "total"))
    for row in data:
        table.add_row(str(row["batch"]), *(f"{row['timings'].get(step, 0.0):.1f}" for step in steps), f"{sum(row['timings'].values()):.1f}")
    return table


def facts_table() -> Table:
    """Make a table of names and values, of which the whole is shown: a long path is broken where a line ends."""
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    return table


def titled(title: str, columns: Sequence[str], left: Sequence[str] = (), *, narrow: bool = False) -> Table:
    """Make a table in the style of all commands, with ``columns`` that are right-aligned but for those on the ``left``.

    A ``narrow`` one, which fits into 80 characters, has no room between its columns, and wraps none.
    """
    padding = (0, 0) if narrow else (0, 1, 0, 0)
    table = Table(title=title or None, title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False, padding=padding)
    for name in columns:
        table.add_column(name, justify="left" if name in left else "right", no_wrap=narrow)
    return table


def quality_of(pipeline: Pipeline, last: int) -> Answer:
    """List the validation results of the ``last`` batches, one row per rule and batch."""
    use_options_of(pipeline)
    path = Places.of(pipeline).quality
    with named_where_unreadable(path):
        options = options_of(path)
        numbers = newest_batches(path, last, options)
        rows = read(path, first_batch=numbers[0], storage_options=options) if numbers else []
    data = [{name: _text(value) if isinstance(value, datetime) else value for name, value in row.items()} for row in rows]
    table = titled(f"validation of {pipeline.pipeline}", ("#", "outcome", "severity", "unexpected"), ("outcome", "severity"), narrow=True)
    table.add_column("rule", overflow="fold")
    colours = {"passed": "green", "failed": "red", "broken": "magenta"}
    for row in rows:
        rule = f"{row['type'].removeprefix('expect_')} ({row['column'] or ''})"
        rule += "" if row["outcome"] == "passed" else f": {row['message']}"
        outcome = Text(row["outcome"], style=colours.get(row["outcome"], "default"))
        table.add_row(str(row["batch"]), outcome, row["severity"], "" if row["unexpected"] is None else f"{row['unexpected']:,}", rule)
        for example, values in zip_longest(row["examples"][:_MAX_NAMED], (row["values"] or [])[: len(row["examples"])][:_MAX_NAMED]):
            # A row that a verification found differing is described in words.
            table.add_row("", "", "", "", _example({**example, **(values or {})} if isinstance(example, Mapping) else example))
    return Answer(data, table)


def bound(t: int | None, instants: bool) -> str | int | None:
    """Convert a point of the axis for output: ISO 8601 text if the axis is time (``t`` in microseconds since 1970), else ``t``."""
    return from_us(t).replace(tzinfo=None).isoformat() + "Z" if instants and t is not None else t


def _text(value: Any) -> Any:
    return value.replace(tzinfo=None).isoformat() + "Z" if isinstance(value, datetime) else value


def _error_of_next_run(pipeline: Pipeline, ledger: Ledger) -> WindowmillError | None:
    """Why a run that began now would end without a batch; null if nothing is known to stop it."""
    try:
        runnable = runnable_of(pipeline)
        if ledger.held_batch:
            planning.check_tables(runnable, ledger, planning.NOTHING_ACCEPTED)
        else:
            takes = partial(_check_local, runnable, ledger.count)
            planning.next_run(runnable, ledger, interval_end=datetime.now(UTC), on_reading=takes)
    except TableUnlocatedError:
        return None  # the run asks Spark's catalog where the tables lie
    except WindowmillError as err:
        return err
    return None


def _check_local(runnable: Runnable, batch: int, source: SourceTable, reading: Reading) -> None:  # noqa: ARG001 - planning gives both
    """Refuse new files that are too many, or too large, where ``compute`` is ``local``."""
    if compute_of(runnable.pipeline) != "local":
        return
    try:
        limits.check_files(reading.files, None)
    except limits.TooLargeError as err:
        raise refused_locally(runnable.pipeline, batch, str(err)) from err


def _describe(versions: Sequence[LoggedVersion]) -> str:
    if len(versions) == 1:
        [version] = versions
        return f"version {version.version} is {'an' if version.operation[:1] in 'AEIOU' else 'a'} {version.operation}"
    named = ", ".join(f"{version.version} ({version.operation})" for version in versions[:_MAX_NAMED])
    return f"versions {named}{' and more' if len(versions) > _MAX_NAMED else ''} change rows"


def status(spec: Spec, as_json: AsJson = False) -> None:
    """Show the pipeline's progress and open batch."""
    show(status_of(load_pipeline(spec)), as_json)


def history(
    spec: Spec,
    last: Last = 20,
    timings: Annotated[bool, typer.Option("--timings", help="Show the seconds of each step.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the pipeline's batches."""
    show(history_of(load_pipeline(spec), last, timings=timings), as_json)


def quality(spec: Spec, last: Last = 5, as_json: AsJson = False) -> None:
    """Show the validation results of the last batches."""
    show(quality_of(load_pipeline(spec), last), as_json)
