"""Commands that change what has been computed: ``plan`` and ``apply`` a changed spec, ``restate`` corrections, ``purge`` keys."""

from __future__ import annotations

import hashlib
import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from windowmill.checkpoints.ledger import Ledger
from windowmill.checkpoints.upkeep import RETENTION_HOURS
from windowmill.jobs.batch import loop, purging
from windowmill.jobs.batch.planning import Acceptance
from windowmill.jobs.commands.planned_changes import held_change, planned
from windowmill.jobs.commands.summaries import new_progress, summary_of
from windowmill.jobs.commands.terminal import (
    AcceptChanges,
    AcceptCode,
    Answer,
    AsJson,
    By,
    Spec,
    instant_of,
    load_pipeline,
    range_of,
    show,
)
from windowmill.windowing.axis import AXIS_BEGIN
from windowmill.windowing.errors import SOMETHING_TO_DO, HeldError, OutOfTurnError, SpecError
from windowmill.windowing.paths import read_small

if TYPE_CHECKING:
    from collections.abc import Sequence

    from windowmill.jobs.batch.progress import CommittedBatch
    from windowmill.jobs.batch.purging import Purged
    from windowmill.windowing.spec import Pipeline


History = Annotated[
    str | None,
    typer.Option(
        "--history",
        help="Of windows that are new or get new values, publish all, none, or those that end after this instant. By default all.",
        show_default=False,
    ),
]
#: Field that a kept plan has and a spec has not.
_KEPT = "windowmill_plan"
#: Exit codes by the status of an answer; 0 for others.
_CODES = {"changed": SOMETHING_TO_DO, "held": HeldError.exit_code}


def plan(
    spec: Spec,
    out: Annotated[Path | None, typer.Option("--out", help="Keep the plan in this file, for `windowmill apply`.")] = None,
    history: History = None,
    as_json: AsJson = False,
) -> int:
    """Say what the spec means for the pipeline that runs: what is kept, filled or dropped, and why. Changes nothing.

    Exits with 0 if nothing is to do, with 4 if something is, and with 3 if a quality rule holds the batch that carried the change out.
    """
    pipeline = load_pipeline(spec)
    found = planned(pipeline, _instant(history, pipeline), str(spec))
    if out is not None:
        kept = {_KEPT: 1, "spec": str(spec.absolute()), "sha256": _digest(spec), "given_history": history or "all"}
        try:
            out.write_text(json.dumps(kept | found.data, indent=1) + "\n", encoding="utf-8")
        except OSError as err:
            what = f"--out {out}: cannot be written ({err.strerror}); name a file in a folder that exists and may be written"
            raise SpecError(what) from err
    show(found, as_json)
    return _CODES.get(found.data["status"], 0)


def apply(
    spec: Annotated[Path, typer.Argument(metavar="SPEC|PLAN", help="The pipeline's YAML file, or a plan that `windowmill plan` has kept.")],
    history: History = None,
    accept_changes: AcceptChanges = False,
    by: By = None,
    as_json: AsJson = False,
) -> int:
    """Carry out a changed spec in one batch, which runs wait for.

    Exits with 3 if a quality rule holds the batch.
    """
    kept = _kept(spec)
    expected = None
    if kept is not None:
        if history is not None:
            raise SpecError(f"--history: the plan {spec} has its own ({kept['given_history']}); leave it out, or make another plan")
        place, history = Path(kept["spec"]), kept["given_history"]
        if _digest(place) != kept["sha256"]:
            raise OutOfTurnError(f"plan {spec}: the spec {place} has changed since; make another plan by `windowmill plan`")
        spec, expected = place, loop.Expected(kept["generation"], kept["batch"])
    pipeline = load_pipeline(spec)
    progress, instant = new_progress(), _instant(history, pipeline)
    done = loop.apply(pipeline, progress, history=instant, expected=expected, accept_changes=accept_changes, by=by)
    if done is not None:
        show(summary_of(pipeline, [done]), as_json)
        return 0
    nothing = Answer({"pipeline": pipeline.pipeline, "status": "nothing to do"}, f"{pipeline.pipeline}: nothing to do")
    found = held_change(pipeline, Ledger.open(pipeline), str(spec)) or nothing
    show(found, as_json)
    return _CODES.get(found.data["status"], 0)


def _kept(path: Path) -> dict[str, Any] | None:
    """The kept plan at ``path``; null if it holds something else, such as a spec."""
    try:
        found = json.loads(read_small(path))
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and _KEPT in found else None


def _digest(spec: Path) -> str:
    try:
        return hashlib.sha256(read_small(spec)).hexdigest()
    except OSError as err:
        raise SpecError(f"{spec}: cannot be read ({err.strerror}); make another plan by `windowmill plan`") from err


def _instant(text: str | None, pipeline: Pipeline) -> int | None:
    """The instant after which windows are published; null for none."""
    if text in (None, "all"):
        return AXIS_BEGIN
    return None if text == "none" else instant_of("--history", str(text), pipeline)


_VERSIONS = re.compile(r"(\d+)(?:\.\.(\d+))?")


def restate(
    spec: Spec,
    begin: Annotated[
        str | None, typer.Option("--from", help="Only windows that end after this instant (ISO 8601, UTC; an integer on an integer axis).")
    ] = None,
    end: Annotated[str | None, typer.Option("--to", help="… and at or before this one.")] = None,
    versions: Annotated[
        str | None,
        typer.Option("--versions", metavar="A..B", help="Windows that changed rows of these versions touch, which runs have ignored."),
    ] = None,
    late: Annotated[bool, typer.Option("--late", help="Let rows count that are in quarantine because they came too late.")] = False,
    files: Annotated[
        list[str] | None,
        typer.Option("--file", metavar="NAME", help="A file of a folder that was delivered again, or taken away. May be given again."),
    ] = None,
    accept_changes: AcceptChanges = False,
    accept_code: AcceptCode = False,
    as_json: AsJson = False,
) -> None:
    """Recompute windows after rows of the source were corrected, and publish those that differ.

    By default these are the windows that the changed rows of unread versions of a Delta table touch. With --file, or with --from or --to
    alone, all windows, or those of the range, are compared with the source as it is now.
    """
    pipeline = load_pipeline(spec)
    ends = range_of(begin, end, pipeline, "recomputed")
    done = loop.restate(
        pipeline,
        new_progress(),
        changed=None if versions is None else _versions(versions),
        ends=ends,
        late=late,
        files=files or (),
        accepted=Acceptance(changes=accept_changes, code=accept_code),
    )
    show(answer_of(pipeline, done), as_json)


def _versions(text: str) -> tuple[int, int]:
    found = _VERSIONS.fullmatch(text)
    first, last = (0, -1) if found is None else (int(found[1]), int(found[2] or found[1]))
    if last < first:
        raise SpecError(f"--versions: got {text!r}; expected versions of the source, the first and the last, such as 12..15, or 12")
    return first, last


def answer_of(pipeline: Pipeline, done: Sequence[CommittedBatch]) -> Answer:
    """What a restatement has come to: a line of text, and in ``data`` each of its batches, runs among them."""
    data: dict[str, Any] = summary_of(pipeline, done).data
    restated = [batch.restated for batch in done if batch.restated is not None]
    if not restated:
        return Answer(data, f"{pipeline.pipeline}: nothing to restate")
    for row, batch in zip(data["batches"], done, strict=True):
        if batch.restated is not None:
            row |= {"keys_touched": batch.restated.keys, "windows_changed": batch.restated.windows}
            row["windows_retracted"] = batch.restated.retracted
    lines = [f"{pipeline.pipeline}: batch {batch.plan.batch}: {batch.restated.describe()}" for batch in done if batch.restated is not None]
    return Answer(data, "\n".join(lines))


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
    pipeline = load_pipeline(spec)
    given = _given(key or [], keys)
    accepted = Acceptance(changes=accept_changes, code=accept_code)
    done = purging.purge(pipeline, new_progress(), given, dry_run=dry_run, accepted=accepted)
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
