"""``windowmill restate``: recomputes windows after a correction of the source, and says what has changed."""

from __future__ import annotations

import re
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
    instant_of,
    load_pipeline,
    show,
)
from windowmill.windowing.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from windowmill.jobs.batch.progress import CommittedBatch
    from windowmill.windowing.spec import Pipeline

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
    from windowmill.jobs.batch import loop
    from windowmill.jobs.batch.planning import Acceptance
    from windowmill.jobs.batch.progress import Progress

    pipeline = load_pipeline(spec)
    first = None if begin is None else instant_of("--from", begin, pipeline)
    last = None if end is None else instant_of("--to", end, pipeline)
    if first is not None and last is not None and first >= last:
        raise SpecError(f"--from {begin} is not before --to {end}; windows that end in (from, to] are recomputed")
    done = loop.restate(
        pipeline,
        Progress(errors, as_written),
        changed=None if versions is None else _versions(versions),
        ends=(first, last),
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
    from windowmill.jobs.commands.answers import summary_of

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
