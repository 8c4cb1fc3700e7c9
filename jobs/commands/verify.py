"""``windowmill verify``: random published rows recomputed from the source, as data and as text."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group
from rich.text import Text

from windowmill.jobs.batch.progress import missed_windows
from windowmill.jobs.commands.summaries import bound, new_progress
from windowmill.jobs.commands.terminal import Answer, AsJson, Spec, load_pipeline, range_of, show
from windowmill.jobs.verify.check import Verification, verify

if TYPE_CHECKING:
    from windowmill.jobs.batch.progress import Progress
    from windowmill.jobs.verify.check import ComparedRow
    from windowmill.windowing.spec import Pipeline

#: Greatest number of differing rows that the text shows, each with its query.
_SHOWN = 5


def verification_of(
    pipeline: Pipeline, progress: Progress, *, number: int, seed: int, ends: tuple[int | None, int | None]
) -> tuple[Answer, bool]:
    """Verify ``number`` published rows; returns what was found, and whether all of them are as the source has them."""
    found = verify(pipeline, progress, number=number, seed=seed, ends=ends)
    comparison, differing = found.comparison, found.comparison.differing
    data: dict[str, Any] = {
        "pipeline": pipeline.pipeline,
        "batch": found.batch,
        "seed": seed,
        "source_version": found.source_version,
        "rows": len(comparison.rows),
        "differing": len(differing),
        "recomputed_by": dict(comparison.methods),
        "columns": {name: {"compared": n, "equal": comparison.equal[name]} for name, n in comparison.compared.items()},
        "not_compared": [{"what": what, "why": why, "rows": rows} for (what, why), rows in comparison.left_out.items()],
        "late_missed": dict(found.missed),
        "source_changes": [{"version": version, "operation": operation} for version, operation in found.changed],
        "differences": [_row(row, pipeline) for row in differing],
    }
    current = found.current
    if current is not None:
        examples = [{name: _plain(value) for name, value in pair.items()} for pair in current.examples]
        data["current"] = {"path": current.path, "differing": current.differing, "examples": examples}
    own = found.input
    if own is not None:
        data["input"] = {"pipeline": own.upstream, "batch": own.batch, "differing": own.differing, "not_compared": own.why_not}
    agrees = not differing and not (current is not None and current.differing) and not (own is not None and own.differing)
    return Answer(data, Group(*_lines(found, pipeline))), agrees


def _lines(found: Verification, pipeline: Pipeline) -> Iterator[str | Text]:
    comparison, differing = found.comparison, found.comparison.differing
    for row in differing[:_SHOWN]:
        place = _row(row, pipeline)
        key = ", ".join(f"{name}={value}" for name, value in place["key"].items())
        span = f"[{place['window_start']}, {place['window_end']})"
        yield f"{row.row.window} {span} {key}: batch {row.row.batch}, revision {row.row.revision}"
        for each in place["columns"]:
            yield f"  {each['column'] or 'window'}: {each['published']!r} published, {each['recomputed']!r} recomputed"
        if row.sql is not None:
            # A break between the words of a literal would change it.
            yield Text("  " + row.sql.replace("\n", "\n  ") + ";", no_wrap=True)
    if len(differing) > _SHOWN:
        yield f"… and {len(differing) - _SHOWN} more rows that differ; --json has all"
    for name, compared in comparison.compared.items():
        if comparison.equal[name] < compared:
            yield f"{name}: {comparison.equal[name]} of {compared} equal ({comparison.equal[name] / compared:.1%})"
    for (what, why), rows in comparison.left_out.items():
        yield f"{what}: not compared in {rows} rows: {why}"
    if differing and found.changed:
        version, operation = found.changed[-1]
        yield f"the source has changed rows since (version {version}, {operation}): `windowmill restate` takes that up"
    if found.current is not None and found.current.differing:
        first = ", ".join(f"{name}={_plain(value)}" for name, value in found.current.examples[0].items())
        yield (
            f"{found.current.path} has another row than the sink of {found.current.differing:,} keys and windows, such as {first}: remove "
            "its folder, and `windowmill run` makes it again"
        )
    own = found.input
    if own is not None and own.why_not is not None:
        yield f"{own.path}: not compared with {own.upstream}: {own.why_not}"
    elif own is not None and own.differing:
        yield (
            f"{own.path} has other rows than {own.upstream} shows through batch {own.batch}, of {own.differing:,} windows; others have "
            "changed it: give the pipeline a new sink and backfill it there"
        )
    if found.missed:
        yield f"late rows are left out of the windows that were closed when they came: {missed_windows(found.missed)}"
    if not comparison.rows:
        yield f"{pipeline.pipeline}: no published rows to verify"
        return
    methods = ", ".join(f"{rows} by {method}" for method, rows in comparison.methods.items())
    n = len(comparison.rows)
    result = f"{len(differing)} differ{'s' if len(differing) == 1 else ''}" if differing else "none differs"
    yield (
        f"{pipeline.pipeline}: {n} row{'s' if n > 1 else ''} recomputed from the source at version {found.source_version} ({methods}; seed "
        f"{found.seed}): {result}"
    )


def _row(row: ComparedRow, pipeline: Pipeline) -> dict[str, Any]:
    published = row.row
    return {
        "key": {name: _plain(value) for name, value in zip(pipeline.keys, published.key, strict=True)},
        "window": published.window,
        "window_start": bound(published.start, not pipeline.time.integer_axis),
        "window_end": bound(published.end, not pipeline.time.integer_axis),
        "trigger": published.trigger,
        "revision": published.revision,
        "batch": published.batch,
        "columns": [
            {"column": each.column, "published": _plain(each.published), "recomputed": _plain(each.recomputed)} for each in row.differences
        ],
        "sql": row.sql,
    }


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    return str(value) if isinstance(value, date | datetime | Decimal | bytes) else value


def verify_command(
    spec: Spec,
    sample: Annotated[int, typer.Option("--sample", min=1, help="Number of published rows to recompute.")] = 100,
    begin: Annotated[
        str | None,
        typer.Option("--from", help="Only windows that end after this instant (ISO 8601, UTC; an integer on an integer axis)."),
    ] = None,
    end: Annotated[str | None, typer.Option("--to", help="… and at or before this one.")] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Choose the same rows as an earlier verification with this seed.")] = None,
    as_json: AsJson = False,
) -> int:
    """Recompute random published rows from the source as it is now, by Spark SQL, and compare; exit code 1 if one differs."""
    pipeline = load_pipeline(spec)
    ends, chosen = range_of(begin, end, pipeline, "verified"), random.randrange(1 << 31) if seed is None else seed
    answer, agrees = verification_of(pipeline, new_progress(), number=sample, seed=chosen, ends=ends)
    show(answer, as_json)
    return 0 if agrees else 1
