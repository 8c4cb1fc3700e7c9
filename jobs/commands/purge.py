"""``windowmill purge``: takes all that is known of some keys out of the pipeline's tables, and says what old versions still hold."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from windowmill.jobs.commands.terminal import (
    AcceptChanges,
    AcceptCode,
    Answer,
    AsJson,
    Spec,
    as_written,
    errors,
    load_pipeline,
    show,
)
from windowmill.windowing.errors import SpecError

if TYPE_CHECKING:
    from windowmill.jobs.batch.purging import Purged
    from windowmill.windowing.spec import Pipeline

#: What rows of a table are called, by its role.
_TOLD = {"sink": "results", "state": "state", "quarantine": "quarantine", "held": "held results", "quality": "quality history"}


def purge(
    spec: Spec,
    key: Annotated[
        list[str] | None,
        typer.Option("--key", metavar="NAME=VALUE", help="The key's value of a key column, NAME alone for null; once for each column."),
    ] = None,
    keys: Annotated[
        Path | None, typer.Option("--keys", metavar="FILE", help="JSON lines, an object for each key: values of key columns by name.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be removed, and change nothing.")] = False,
    accept_changes: AcceptChanges = False,
    accept_code: AcceptCode = False,
    as_json: AsJson = False,
) -> None:
    """Remove all that is known of keys whose rows have been deleted from the source.

    These are results, state, rows in quarantine, held results, savepoints, the report and pages that name them. Runs go on as if the
    source had never had their rows. Some of the key columns are enough: all keys with these values go.
    """
    from windowmill.jobs.batch import purging
    from windowmill.jobs.batch.planning import Acceptance
    from windowmill.jobs.batch.progress import Progress

    pipeline = load_pipeline(spec)
    given = _given(key or [], keys)
    accepted = Acceptance(changes=accept_changes, code=accept_code)
    done = purging.purge(pipeline, Progress(errors, as_written), given, dry_run=dry_run, accepted=accepted)
    show(_answer(pipeline, done, str(spec), dry_run=dry_run), as_json)


def _given(key: list[str], file: Path | None) -> list[dict[str, Any]]:
    if bool(key) == (file is not None):
        raise SpecError("purge: expected --key NAME=VALUE or --keys FILE; give one of them")
    if file is None:
        parts = [text.partition("=") for text in key]
        if len({name for name, _, _ in parts}) < len(parts):
            raise SpecError("--key: got a column twice; several keys go into a file, which --keys names")
        return [{name: value if equals else None for name, equals, value in parts}]
    try:
        # Not `splitlines`: JSON texts may hold other ends of lines as they are.
        lines = file.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, ValueError) as err:
        raise SpecError(f"--keys {file}: cannot be read ({err}); name a file of JSON lines, a key each") from err
    found = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            each = json.loads(line, parse_float=str)  # decimals keep all of their digits
        except ValueError as err:
            raise SpecError(f"--keys {file}: line {number} is not JSON ({err})") from err
        if not isinstance(each, dict) or any(isinstance(value, list | dict) for value in each.values()):
            raise SpecError(f'--keys {file}: line {number}: expected an object of key columns, such as {{"origin": "ORD"}}')
        found.append(each)
    if not found:
        raise SpecError(f"--keys {file}: has no keys; expected a line for each")
    return found


def _answer(pipeline: Pipeline, done: Purged, spec: str, *, dry_run: bool) -> Answer:
    from windowmill.checkpoints.upkeep import RETENTION_HOURS

    plan, left = done.plan, done.forgotten
    until, tidy = datetime.now(UTC) + timedelta(hours=RETENTION_HOURS), f"windowmill maintain {spec}"
    data: dict[str, Any] = {
        "pipeline": pipeline.pipeline,
        "status": "planned" if dry_run else "purged",
        "batch": None if dry_run else plan.batch,
        "keys": plan.keys,
        "from_version": plan.from_version,
        "to_version": plan.to_version,
        "batches_before": [batch.plan.batch for batch in done.before],
        "rows": dict(done.rows),
        "savepoints": list(left.savepoints),
    }
    rows = ", ".join(f"{done.rows[role]:,} of {name}" for role, name in _TOLD.items() if done.rows.get(role)) or "none"
    keys = f"{plan.keys:,} key{'' if plan.keys == 1 else 's'}"
    if dry_run:
        lines = [f"{pipeline.pipeline}: {keys} to purge: rows {rows}"]
        lines += ["  unread rows from before the key was deleted are run first"] if done.waits else []
        lines += [f"  drops the savepoints {', '.join(left.savepoints)}"] if left.savepoints else []
        return Answer(data | {"runs_first": done.waits}, "\n".join([*lines, f"{pipeline.pipeline}: nothing has been changed"]))
    lines = [f"{pipeline.pipeline}: batch {plan.batch}: {keys} purged: rows {rows}"]
    lines += [f"  savepoints dropped: {', '.join(left.savepoints)}"] if left.savepoints else []
    pages = [f"{left.pages} page{'' if left.pages == 1 else 's'} of Data Docs"] if left.pages else []
    pages += ["the report (`windowmill report` writes it again)"] if left.report else []
    lines += [f"  removed: {', '.join(pages)}"] if pages else []
    lines.append(
        f"  old versions of the tables hold what was purged until `{tidy}` removes their files, from {until:%Y-%m-%d} on, and entries of "
        f"their logs, after 30 days; `{tidy} --now` removes both at once"
    )
    data |= {"pages_removed": left.pages, "report_removed": left.report, "files_kept_until": f"{until:%Y-%m-%dT%H:%M:%SZ}"}
    return Answer(data, "\n".join(lines))
