"""``windowmill savepoint``: named states of a pipeline, as data and as text."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Group

from windowmill.jobs.batch import savepoint_batches as savepoints
from windowmill.jobs.batch.planning import Acceptance
from windowmill.jobs.commands.summaries import bound, new_progress, titled
from windowmill.jobs.commands.terminal import (
    AcceptChanges,
    AcceptCode,
    Answer,
    AsJson,
    Spec,
    in_bytes,
    load_pipeline,
    show,
)
from windowmill.jobs.runnables import runnable_of
from windowmill.windowing.axis import to_us
from windowmill.windowing.errors import SpecError
from windowmill.windowing.meanings import describe_difference

if TYPE_CHECKING:
    from windowmill.checkpoints.savepoints import Savepoint
    from windowmill.jobs.batch.progress import Progress
    from windowmill.windowing.spec import Pipeline

Action = Literal["create", "list", "restore", "drop"]
#: Fields of an entry that ``--json`` shows; the others are facts about files.
_SHOWN = ("name", "created_at", "batch", "to_version", "size")


def savepoint_of(pipeline: Pipeline, progress: Progress, action: Action, name: str | None, accepted: Acceptance) -> Answer:
    """Do ``action`` with the savepoint ``name``, which all but ``list`` need."""
    if action == "list":
        if name is not None:
            raise SpecError(f"savepoint list: got the name {name!r}; leave it out, or say create, restore or drop")
        return _list(pipeline)
    if name is None:
        raise SpecError(f"savepoint {action}: a name is missing, as in `windowmill savepoint SPEC {action} before-migration`")
    if action == "restore":
        return _restore(pipeline, progress, name, accepted)
    entry = savepoints.create(pipeline, progress, name) if action == "create" else savepoints.drop(pipeline, progress, name)
    done = "made" if action == "create" else "dropped"
    if entry is None:
        data = {"pipeline": pipeline.pipeline, "status": done, "name": name}
        return Answer(data, f"{pipeline.pipeline}: savepoint {name} {done}: it was damaged")
    text = f"{pipeline.pipeline}: savepoint {name} {done}: batch {entry.batch}, source version {entry.to_version}, {in_bytes(entry.size)}"
    return Answer({"pipeline": pipeline.pipeline, "status": done, **_entry(entry, pipeline)}, text)


def _restore(pipeline: Pipeline, progress: Progress, name: str, accepted: Acceptance) -> Answer:
    done = savepoints.restore(pipeline, progress, name, accepted=accepted)
    plan = done.plan
    differs = None
    if not pipeline.means(plan.definition, plan.meaning):
        differs = describe_difference(plan.definition, pipeline.shown_meaning(), pipeline.meaning())
    data = {
        "pipeline": pipeline.pipeline,
        "status": "restored",
        "name": name,
        "batch": plan.batch,
        "from_version": plan.from_version,
        "to_version": plan.to_version,
    } | ({} if differs is None else {"spec_differs": differs})
    text = (
        f"{pipeline.pipeline}: back at the savepoint {name} (batch {plan.batch} of the ledger); the next run reads the source's versions "
        f"after {plan.to_version}, of which {plan.from_version} had been read last"
    )
    if differs is not None:
        text += f"; the spec meant something else then: {differs}; put the old values into its file before the next run, or apply it again"
    return Answer(data, text)


def _list(pipeline: Pipeline) -> Answer:
    runnable = runnable_of(pipeline)
    entries, damaged = savepoints.listed(runnable).values(), savepoints.damaged(runnable)
    data = [_entry(entry, pipeline) for entry in entries] + [{"name": name, "damaged": why} for name, why in damaged.items()]
    if not data:
        return Answer(data, f"{pipeline.pipeline}: no savepoints; make one by `windowmill savepoint SPEC create NAME`")
    table = titled(f"savepoints of {pipeline.pipeline}", ())
    table.padding = 0  # fits into 80 columns
    for column in ("name", "made", "batch", "version", "results through", "size"):
        table.add_column(column, justify="left" if column in ("name", "made", "results through") else "right", no_wrap=True)
    for entry, row in zip(entries, data, strict=False):
        emitted = "–" if row["emitted"] is None else str(row["emitted"])[:16].replace("T", " ")
        made = entry.created_at[:16].replace("T", " ")
        table.add_row(entry.name, made, f"{entry.batch}", f"{entry.to_version}", emitted, in_bytes(entry.size))
    lines = (f"{name}: damaged; `windowmill savepoint SPEC drop {name}`" for name in damaged)
    return Answer(data, Group(table, *lines))


def _entry(entry: Savepoint, pipeline: Pipeline) -> dict[str, Any]:
    instants = {name: bound(getattr(entry, name), not pipeline.time.integer_axis) for name in ("seen", "emitted")}
    return {name: asdict(entry)[name] for name in _SHOWN} | {"created_at": bound(to_us(entry.at), True)} | instants


def savepoint(
    spec: Spec,
    action: Annotated[Literal["create", "list", "restore", "drop"], typer.Argument(metavar="create|list|restore|drop", help="What to do.")],
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="The savepoint; list takes none.")] = None,
    accept_changes: AcceptChanges = False,
    accept_code: AcceptCode = False,
    as_json: AsJson = False,
) -> None:
    """Make, list or drop a named state of the pipeline, or go back to one: the next run reads what came after it."""
    accepted = Acceptance(changes=accept_changes, code=accept_code)
    show(savepoint_of(load_pipeline(spec), new_progress(), action, name, accepted), as_json)
