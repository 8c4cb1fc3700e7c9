"""Commands that change what has been computed: ``plan`` and ``apply`` a changed spec, ``restate`` corrections, ``purge`` keys."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import pyarrow as pa
import pyarrow.compute as pc
import typer
from rich.console import Group
from rich.filesize import decimal
from rich.text import Text
from rich.tree import Tree

from windowmill.checkpoints.batches import Batch, effective_batches
from windowmill.checkpoints.delta_tables import RETENTION_HOURS
from windowmill.checkpoints.ledger import Ledger
from windowmill.checkpoints.own_tables import own_tables
from windowmill.checkpoints.places import Places, Runnable
from windowmill.checkpoints.protocol import outstanding
from windowmill.checkpoints.stores import is_table, table_at
from windowmill.expectations import gate as validations
from windowmill.expectations.rule import OF_PAST, QUARANTINED_RATE, Rule
from windowmill.expectations.suites import rules
from windowmill.jobs.batch import engine, loop, purging
from windowmill.jobs.batch.applying import Application, next_apply
from windowmill.jobs.batch.planning import Acceptance
from windowmill.jobs.batch.progress import late_missed, missed_windows
from windowmill.jobs.batch.window_history import kept_verdict, rulings
from windowmill.jobs.commands import terminal
from windowmill.jobs.commands.summaries import bound, new_progress, summary_of
from windowmill.jobs.commands.terminal import AcceptChanges, AcceptCode, Answer, AsJson, By, Spec, counted, load_pipeline, show
from windowmill.jobs.layouts import limits
from windowmill.jobs.layouts.carried import NotStoredError
from windowmill.jobs.report.cost import tasks_of
from windowmill.jobs.runnables import runnable_of
from windowmill.jobs.short_texts import elapsed
from windowmill.jobs.sources.table_rows import queried
from windowmill.jobs.sources.unusable_rows import TOO_LATE
from windowmill.windowing.axis import AXIS_BEGIN
from windowmill.windowing.errors import SOMETHING_TO_DO, HeldError, OutOfTurnError, SpecError
from windowmill.windowing.grids import grid_of
from windowmill.windowing.paths import read_small
from windowmill.windowing.registry import imported
from windowmill.windowing.spec import Fate, Pipeline, SpecChange, SpecChanges
from windowmill.windowing.watermark import LatenessRule

if TYPE_CHECKING:
    from windowmill.jobs.batch.progress import CommittedBatch
    from windowmill.jobs.batch.purging import Purged

#: What is read of the source where the state is carried over, and what windows and aggregates are filled from.
_NOTHING = "nothing of the source"
_ORIGINS = {"state": "state", "source": "the source", "published rows": "its published rows"}
#: Bytes of files that one task of Spark reads.
_TASK_BYTES = 128 << 20
#: Released batches, the newest ones, whose broken rules are named.
_RELEASED = 5
#: Two estimates that differ by less than this are shown as one.
_ONE_ESTIMATE = 1.5
History = Annotated[
    str | None,
    typer.Option(
        "--history",
        help="Of windows that are new or get new values, publish all, none, or those that end after this instant. By default all.",
        show_default=False,
    ),
]
Recompute = Annotated[
    bool, typer.Option("--recompute", help="Recompute all windows by changed settings of time, as if these had held from the beginning.")
]
#: Field that a kept plan has and a spec has not.
_KEPT = "windowmill_plan"
#: Exit codes by the status of an answer; 0 for others.
_CODES = {"changed": SOMETHING_TO_DO, "held": HeldError.exit_code}
_VERSIONS = re.compile(r"(\d+)(?:\.\.(\d+))?")
#: What rows of a table are called, by its role.
_TOLD = {"sink": "results", "state": "state", "quarantine": "quarantine", "held": "held results", "quality": "quality history"}


def planned(pipeline: Pipeline, history: int | None, spec: str, *, recompute: bool = False) -> Answer:
    """What ``windowmill apply`` would do about ``pipeline``, the spec at the path ``spec``; raises what it would raise.

    ``recompute``: whether all windows are recomputed by changed settings of time.
    """
    runnable, ledger = runnable_of(pipeline), Ledger.open(pipeline)
    if ledger.newest_kept is None:
        text = f"{pipeline.pipeline}: nothing runs yet; `windowmill run {spec}` begins"
        return Answer({"pipeline": pipeline.pipeline, "status": "nothing runs yet"}, text)
    outstanding(ledger, own_tables(runnable))  # notes the commits that are there
    found = next_apply(runnable, ledger, history=history, recompute=recompute)
    if found is None:
        text = f"{pipeline.pipeline}: nothing to do: the spec means the same as when batch {ledger.newest_kept.number} was computed"
        return held_change(pipeline, ledger, spec) or Answer({"pipeline": pipeline.pipeline, "status": "nothing to do"}, text)
    return _plan_answer(runnable, ledger, found, f"{spec} --recompute" if recompute else spec)


def held_change(pipeline: Pipeline, ledger: Ledger, spec: str) -> Answer | None:
    """The answer where a quality rule holds the batch that carried out the change; null if none does."""
    held = ledger.held_batch
    if held is None or not held.plan.changes_spec:
        return None
    one, other = rulings(ledger, held.plan)
    text = (
        f"{pipeline.pipeline}: batch {held.number}, which applies the spec, is held by a quality rule; check its rows in "
        f"{Places.of(pipeline).held}, then `windowmill {one} {spec}` or `windowmill {other} {spec}`"
    )
    return Answer({"pipeline": pipeline.pipeline, "status": "held", "batch": held.number}, text)


def _plan_answer(runnable: Runnable, ledger: Ledger, found: Application, spec: str) -> Answer:
    pipeline, changes, plan, reading = runnable.pipeline, found.changes, found.plan, found.reading
    instants = not pipeline.time.integer_axis
    batches = [batch for batch in ledger.batches() if batch.status == "committed"]
    rows = _RowCounts.of(batches, pipeline, changes, plan.history)
    published = [rows.of_window(each, plan.fills) for each in changes.windows if each.name in plan.fills]
    n_rows = terminal.total([file.rows for file in reading.files])
    versions = (plan.read_from + 1, plan.to_version, plan.arrival) if plan.carried is None else (None, None, None)
    read = {
        "files": len(reading.files),
        "bytes": reading.size_bytes,
        "rows": n_rows,
        **dict(zip(("from_version", "to_version", "order"), versions, strict=True)),
        "from_time": bound(plan.needed_from, instants),
    }
    seconds, seconds_most = _seconds(batches, n_rows, terminal.total(published))
    data = {
        "pipeline": pipeline.pipeline,
        "status": "changed",
        "batch": plan.batch,
        "generation": plan.generation,
        "history": "none" if plan.history is None else "all" if plan.history == AXIS_BEGIN else bound(plan.history, instants),
        "windows": [_shown(each, rows.of_window(each, plan.fills)) for each in changes.windows],
        "aggregates": [_shown(each, None) for each in changes.aggregates],
        "settings": list(map(terminal.as_written, changes.settings)),
        "otherwise": _otherwise(runnable, ledger, rows) if changes.settings and not changes.rejudges else None,
        "reads": read,
        "state": _state(found, pipeline),
        "released": _released(runnable, batches) if plan.fills else [],
        "seconds": seconds,
        "seconds_most": seconds_most,
        "tasks": _tasks(runnable, found, batches),
    }
    if pipeline.upstream is not None:
        data["upstream"] = plan.upstream | {"unread": imported("windowmill.jobs.sources.chains:unread_batches")(pipeline)}
    summary, does_it = _summary(found), f"`windowmill apply {spec}` does it"
    data["summary"] = f"{summary}; {does_it}"
    return Answer(data, Group(_tree(data, found), Text(f"{terminal.wrapped(summary)};\n{does_it}", style="bold")))


def _otherwise(runnable: Runnable, ledger: Ledger, rows: _RowCounts) -> dict[str, Any]:
    """Which published windows the changed settings would have given otherwise: at most how many of each, and because of which rows."""
    batches, last = [batch for batch in effective_batches(ledger.batches()) if batch.plan.builds_state], ledger.newest_kept
    assert last is not None  # a pipeline that never ran has no changes
    then, now = LatenessRule.of_meaning(runnable.pipeline.filled(last.plan.definition)), LatenessRule.of(runnable.pipeline)
    found, why = Counter[str](), list[str]()
    if now.disorder < then.disorder:
        why.append("rows that came in time may be late by the shorter disorder")
        found.update(rows.published)
    elif now.lateness < then.lateness and (late := sum(batch.counts.rows_late for batch in batches)):
        why.append(f"{counted(late, 'row')} came late and counted")
        found.update(_most_windows(runnable.pipeline, dict.fromkeys(rows.published, late), rows))
    if now.disorder > then.disorder or now.lateness > then.lateness:
        missed = late_missed(batches)
        if missed:
            why.append(f"rows came too late: {missed_windows(missed)}")
        found |= _most_windows(runnable.pipeline, missed, rows)
    times = _too_late_between(runnable) if found else None
    instants = not runnable.pipeline.time.integer_axis
    return {"windows": dict(found), "why": "; ".join(why), "too_late": times and [bound(time, instants) for time in times]}


def _most_windows(pipeline: Pipeline, missed: Mapping[str, int], rows: _RowCounts) -> Counter[str]:
    """At most how many published windows of each name hold so many rows: on a grid a row is in several, elsewhere it may move any."""
    grids = {window.name: grid_of(window) for window in pipeline.windows if window.on_grid}
    overlap = {name: grid.most_ends(grid.longest - 1) for name, grid in grids.items()}
    most = {name: n * overlap[name] if name in overlap else rows.published.get(name, 0) for name, n in missed.items() if n}
    return Counter({name: min(n, rows.published.get(name, 0)) for name, n in most.items() if rows.published.get(name, 0)})


def _too_late_between(runnable: Runnable) -> tuple[int, int] | None:
    """The least and the greatest event time of the rows in quarantine as too late; null if there are none."""
    place = runnable.places.quarantine
    if not is_table(place):
        return None
    names = {"event_time": "event_time"}
    found = [rows.column(0) for rows in queried(table_at(place), {"event_time": pa.int64()}, f"reason = '{TOO_LATE}'", names)]
    bounds = [pc.min_max(times).as_py() for times in found if len(times)]
    return (min(each["min"] for each in bounds), max(each["max"] for each in bounds)) if bounds else None


def _shown(change: SpecChange, rows: int | None) -> dict[str, Any]:
    return {"name": change.name, "fate": change.fate, "why": terminal.as_written(change.why), "rows": rows}


def _state(found: Application, pipeline: Pipeline) -> dict[str, Any]:
    """What becomes of the state: whether it is carried over, and since when its slices fill windows, or why the source is read."""
    if isinstance(found.state, NotStoredError):
        return {"from": "source", "why": str(found.state), "recut": False, "slices_since": None}
    since = bound(found.state.since, not pipeline.time.integer_axis)
    origin = "published rows" if found.state.published else "state"
    return {"from": origin, "why": None, "recut": found.state.recut, "slices_since": since}


def _tree(data: Mapping[str, Any], found: Application) -> Tree:
    tree = Tree(Text(f"{data['pipeline']}: the spec has changed since batch {data['batch'] - 1}", style="bold"), guide_style="dim")
    added = [each.name for each in found.changes.aggregates if each.fate == "filled"]
    for field in ("windows", "aggregates"):
        branch, changes = tree.add(field), data[field]
        width = max(len(each["name"]) for each in changes)
        for each in changes:
            branch.add(_line(f"{each['name']:<{width}}", _told(each, added if field == "windows" else (), data)))
    for setting in data["settings"]:
        tree.add(_line("settings  ", f"{setting}; from the next batch on"))
    if data["otherwise"] is not None:
        tree.add(_line("published ", _told_otherwise(data["otherwise"])))
    if unread := data.get("upstream", {}).get("unread"):
        batches = f"{unread:,} published {'batch' if unread == 1 else 'batches'}"
        tree.add(_line("input     ", f"lacks {batches} of {data['upstream']['pipeline']}, which `apply` adds before it begins"))
    tree.add(_line("reads     ", _read(data["reads"])))
    tree.add(_line("state     ", _stated(data["state"])))
    for each in data["released"]:
        broken = f"batch {each['batch']} was released although it broke {', '.join(each['rules'])}"
        tree.add(_line("rules     ", f"{broken}; `apply` validates what it publishes by the same rules, and may be held"))
    several, tasks = data["tasks"] > 1, counted(data["tasks"], "Spark task")
    tree.add(_line("takes     ", f"{_lasting(data['seconds'], data['seconds_most'])}, {'at least ' if several else ''}{tasks}"))
    return tree


def _told_otherwise(found: Mapping[str, Any]) -> str:
    if not found["windows"]:
        return "stays; these settings would have given the same windows"
    windows = ", ".join(f"{n:,} of {name}" for name, n in found["windows"].items())
    span = "" if found["too_late"] is None else f" (in quarantine are times from {found['too_late'][0]} to {found['too_late'][1]})"
    return f"stays; these settings would have given up to {windows} otherwise: {found['why']}{span}; --recompute publishes them"


def _lasting(least: float | None, most: float | None) -> str:
    if least is None:
        return "unknown"
    if most is None:
        return f"about {least:,.0f} s or more: how many rows it publishes is not known"
    if most < least * _ONE_ESTIMATE:
        return f"about {least:,.0f} s"
    return f"about {elapsed(least)} to {elapsed(most)}, by what earlier batches took for each row read and for each row published"


def _read(read: Mapping[str, Any]) -> str:
    first, last = read["from_version"], read["to_version"]
    if last is None:
        return _NOTHING
    order = "in the order in which earlier batches read them" if read["order"] == "log" else "in order of event time, so that none is late"
    versions = f"source version{f's {first} to {last}' if first < last else f' {last}'}"
    within = "" if read["from_time"] is None else f" with event times from {read['from_time']} on"
    return f"{_files(read['files'], read['bytes'])}{within}: {versions}, {order}"


def _stated(state: Mapping[str, Any]) -> str:
    if state["from"] == "source":
        return f"recomputed from the source: {state['why']}"
    if not state["recut"]:
        return "carried over"
    since = "" if state["slices_since"] is None else f", which are all there since {state['slices_since']}"
    return f"carried over; windows are made of its slices{since}"


def _line(name: str, text: str) -> Text:
    """A line of the tree, which is wrapped where the terminal ends."""
    return Text(f"{name}  {text}", no_wrap=False, overflow="fold")


def _told(change: Mapping[str, Any], added: Sequence[str], data: Mapping[str, Any]) -> str:
    history, origin = data["history"], f"filled from {_ORIGINS[data['state']['from']]}"
    fate = origin if change["fate"] == "filled" else change["fate"]
    rows = "" if change["rows"] is None else f", about {change['rows']:,} rows"
    if fate == "dropped":
        return f"{fate}: {change['why']}; what has been published stays"
    since = {"all": "its whole history", "none": "what comes from now on"}.get(history, f"windows that end after {history}")
    if fate == "kept" and added:
        columns = ", ".join(added)
        filled = f"its rows have no {columns}" if history == "none" else f"{columns} {origin} in {since}{rows}"
        return f"{fate}: {change['why']}; {filled}"
    return f"{fate}: {change['why']}" + (f"; {since}{rows}" if change["fate"] == "filled" else "")


def _summary(found: Application) -> str:
    parts, source = [], found.plan.carried is None
    words: dict[Fate, str] = {"kept": "kept", "filled": "filled" if source else "filled from state", "dropped": "dropped"}
    for what, changes in (("window", found.changes.windows), ("aggregate", found.changes.aggregates)):
        fates = Counter(each.fate for each in changes)
        parts += [f"{counted(n, what)} {said}" for fate, said in words.items() if (n := fates[fate])]
    reads = _files(len(found.reading.files), found.reading.size_bytes) if source else _NOTHING
    return f"{', '.join(parts)}: reads {reads}"


def _files(n: int, size: int) -> str:
    return f"{counted(n, 'file')} ({decimal(size)})"


@dataclass(frozen=True, slots=True)
class _RowCounts:
    """Numbers of rows that batches have published, by window; and of windows on grids, how many rows a tick of their step has."""

    published: Mapping[str, int]
    steps: Mapping[str, int]
    kept: Collection[str]

    @classmethod
    def of(cls, batches: Sequence[Batch], pipeline: Pipeline, changes: SpecChanges, since: int | None) -> _RowCounts:
        """By committed ``batches``, oldest first, of windows that end after ``since``; null for all."""
        published = Counter[str]()
        for batch in batches:
            share = _share_after(batch, since)
            windows = {name: round(n * share) for name, n in batch.counts.rows_of_windows().items()}
            if batch.plan.builds_state and batch.plan.rereads:  # publishes windows a second time
                published.update({name: max(0, n - published[name]) for name, n in windows.items()})
            elif batch.plan.builds_state:  # others replace rows
                published.update(windows)
        kept = {each.name for each in changes.windows if each.fate == "kept"}
        steps = {window.name: step for window in pipeline.windows if (step := window.spacing().step) is not None}
        return cls(published, {name: length for name, step in steps.items() if not step.months and (length := step.elapsed())}, kept)

    def of_window(self, change: SpecChange, fills: Sequence[str]) -> int | None:
        """About how many rows of a window the batch publishes; null if it publishes none, or this is not known."""
        if change.name not in fills:
            return None
        if change.fate == "kept":
            return self.published.get(change.name, 0)
        # Assume as many keys, over as long a time, as for the kept window on a grid with the most published rows. Rows of windows that are
        # not kept were published by other steps.
        others = ((n, name) for name, n in self.published.items() if name in self.steps and name in self.kept)
        n, name = max(others, default=(0, ""))
        step = self.steps.get(change.name)
        return n * self.steps[name] // step if step and n else None


def _share_after(batch: Batch, since: int | None) -> float:
    """About which share of the rows that ``batch`` has published is of windows that end after ``since``, as if they ended evenly."""
    ends = batch.outcome.counts.window_ends
    if since is None or ends is None or since < ends[0]:
        return 1.0
    first, last = ends
    return 0.0 if since >= last else (last - since) / (last - first)


def _seconds(batches: Sequence[Batch], read: int | None, published: int | None) -> tuple[float | None, float | None]:
    """The least and the most seconds of a batch that reads and publishes so many rows, by the batch that has read most.

    The two estimates take all of that batch's time to have gone into the rows that it read, or into those that it published.
    """
    largest = max((batch.outcome for batch in batches), key=lambda outcome: outcome.counts.rows_read, default=None)
    if read is None or largest is None or not largest.counts.rows_read:
        return None, None
    took = sum(largest.timings.values())
    by_read = took * max(1.0, read / largest.counts.rows_read)
    if published is None or (published and not largest.counts.rows_published):
        return round(by_read, 1), None
    by_published = took * max(1.0, published / max(1, largest.counts.rows_published))
    return round(min(by_read, by_published), 1), round(max(by_read, by_published), 1)


def _tasks(runnable: Runnable, found: Application, batches: Sequence[Batch]) -> int:
    """How many tasks of Spark the batch takes at least: no fewer than any earlier batch, none of which has read more."""
    if engine.compute_of(runnable.pipeline) == "local":
        return 0
    try:
        limits.check_files(found.reading.files, None)
    except limits.TooLargeError:
        before = max((tasks_of(batch) for batch in batches), default=0)
        return max(2, -(-found.reading.size_bytes // _TASK_BYTES), before)
    return 0 if engine.tries_this_process(runnable.pipeline) else 1


def _released(runnable: Runnable, batches: Sequence[Batch]) -> list[dict[str, Any]]:
    """The latest released batches, each with the critical rules that it broke and that judge the next batch, too."""
    path, suite = runnable.places.quality, {_rule_of(rule) for rule in rules(runnable.pipeline)}
    found = []
    for batch in [batch for batch in batches if batch.verdict == "released"][-_RELEASED:]:
        verdict = kept_verdict(path, batch.plan)
        unmet = [] if verdict is None else [rule for rule in verdict.unmet if rule.severity == "critical" and _rule_of(rule) in suite]
        broken = [f"{rule.type}({rule.column or ''})" for rule in unmet if rule.type not in (QUARANTINED_RATE, *OF_PAST)]
        if broken:
            found.append({"batch": batch.number, "rules": broken})
    return found


def _rule_of(rule: Rule) -> tuple[str, str | None, str]:
    return rule.type, rule.column, validations.json_of(rule.arguments)


def plan(
    spec: Spec,
    out: Annotated[Path | None, typer.Option("--out", help="Keep the plan in this file, for `windowmill apply`.")] = None,
    history: History = None,
    recompute: Recompute = False,
    as_json: AsJson = False,
) -> int:
    """Say what the spec means for the pipeline that runs: what is kept, filled or dropped, and why. Changes nothing.

    Exits with 0 if nothing is to do, with 4 if something is, and with 3 if a quality rule holds the batch that carried the change out.
    """
    pipeline = load_pipeline(spec)
    found = planned(pipeline, _instant(history, pipeline), str(spec), recompute=recompute)
    if out is not None:
        kept = {_KEPT: 1, "spec": str(spec.absolute()), "sha256": _digest(spec), "given_history": history or "all", "recompute": recompute}
        terminal.write_file(out, json.dumps(kept | found.data, indent=1) + "\n", "--out")
    show(found, as_json)
    return _CODES.get(found.data["status"], 0)


def apply(
    spec: Annotated[Path, typer.Argument(metavar="SPEC|PLAN", help="The pipeline's YAML file, or a plan that `windowmill plan` has kept.")],
    history: History = None,
    recompute: Recompute = False,
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
        if history is not None or recompute:
            option = "--recompute" if history is None else "--history"
            own = "" if history is None else f" ({kept['given_history']})"
            raise SpecError(f"{option}: the plan {spec} has its own{own}; leave it out, or make another plan")
        place, history, recompute = Path(kept["spec"]), kept["given_history"], kept.get("recompute", False)
        if _digest(place) != kept["sha256"]:
            raise OutOfTurnError(f"plan {spec}: the spec {place} has changed since; make another plan by `windowmill plan`")
        spec, expected = place, loop.Expected(kept["generation"], kept["batch"])
    pipeline = load_pipeline(spec)
    progress, instant = new_progress(), _instant(history, pipeline)
    done = loop.apply(pipeline, progress, history=instant, recompute=recompute, expected=expected, accept_changes=accept_changes, by=by)
    if done is not None:
        show(summary_of(pipeline, [done]), as_json)
        return 0
    nothing = Answer({"pipeline": pipeline.pipeline, "status": "nothing to do"}, f"{pipeline.pipeline}: nothing to do")
    found = held_change(pipeline, Ledger.open(pipeline), str(spec)) or nothing
    show(found, as_json)
    return _CODES.get(found.data["status"], 0)


def _kept(path: Path) -> dict[str, Any] | None:
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
    if text in (None, "all"):
        return AXIS_BEGIN
    return None if text == "none" else terminal.instant_of("--history", str(text), pipeline)


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
    lookup: Annotated[
        str | None, typer.Option("--lookup", metavar="NAME", help="Windows of rows that look up what has changed in this lookup's table.")
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
    ends = terminal.range_of(begin, end, pipeline, "recomputed")
    done = loop.restate(
        pipeline,
        new_progress(),
        changed=None if versions is None else _versions(versions),
        ends=ends,
        late=late,
        files=files or (),
        lookup=lookup,
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
    show(_purge_answer(pipeline, done, str(spec), dry_run=dry_run), as_json)


def _given(key: list[str], file: Path | None) -> list[dict[str, Any]]:
    if bool(key) == (file is not None):
        raise SpecError("purge: expected --key NAME=VALUE or --keys FILE; give one of them")
    if file is None:
        values = dict(terminal.named_values(key))
        if len(values) < len(key):
            raise SpecError("--key: got a column twice; several keys go into a file, which --keys names")
        return [dict(values)]
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


def _purge_answer(pipeline: Pipeline, done: Purged, spec: str, *, dry_run: bool) -> Answer:
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
    keys = counted(plan.keys, "key")
    if dry_run:
        lines = [f"{pipeline.pipeline}: {keys} to purge: rows {rows}"]
        lines += ["  unread rows from before the key was deleted are run first"] if done.waits else []
        lines += [f"  drops the savepoints {', '.join(left.savepoints)}"] if left.savepoints else []
        return Answer(data | {"runs_first": done.waits}, "\n".join([*lines, f"{pipeline.pipeline}: nothing has been changed"]))
    lines = [f"{pipeline.pipeline}: batch {plan.batch}: {keys} purged: rows {rows}"]
    lines += [f"  savepoints dropped: {', '.join(left.savepoints)}"] if left.savepoints else []
    pages = [f"{counted(left.pages, 'page')} of Data Docs"] if left.pages else []
    pages += ["the report (`windowmill report` writes it again)"] if left.report else []
    lines += [f"  removed: {', '.join(pages)}"] if pages else []
    lines.append(
        f"  old versions of the tables hold what was purged until `{tidy}` removes their files, from {until:%Y-%m-%d} on, and entries of "
        f"their logs, after 30 days; `{tidy} --now` removes both at once"
    )
    data |= {"pages_removed": left.pages, "report_removed": left.report, "files_kept_until": f"{until:%Y-%m-%dT%H:%M:%SZ}"}
    return Answer(data, "\n".join(lines))
