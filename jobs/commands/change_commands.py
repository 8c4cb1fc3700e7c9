"""Commands about a changed spec: ``plan`` says what it means for the pipeline that runs, ``apply`` carries it out."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from windowmill.jobs.commands.terminal import AcceptChanges, Answer, AsJson, By, Spec, as_written, errors, load_pipeline, show
from windowmill.windowing.axis import AXIS_BEGIN
from windowmill.windowing.errors import SOMETHING_TO_DO, HeldError, OutOfTurnError, SpecError
from windowmill.windowing.small_files import read_small

if TYPE_CHECKING:
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
    from windowmill.jobs.commands.planned_changes import planned

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
    from windowmill.checkpoints.ledger import Ledger
    from windowmill.jobs.batch import loop
    from windowmill.jobs.batch.progress import Progress
    from windowmill.jobs.commands.answers import summary_of

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
    progress, instant = Progress(errors, as_written), _instant(history, pipeline)
    done = loop.apply(pipeline, progress, history=instant, expected=expected, accept_changes=accept_changes, by=by)
    if done is not None:
        show(summary_of(pipeline, [done]), as_json)
        return 0
    from windowmill.jobs.commands.planned_changes import held_change

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
    from windowmill.jobs.commands.terminal import instant_of

    if text in (None, "all"):
        return AXIS_BEGIN
    return None if text == "none" else instant_of("--history", str(text), pipeline)
