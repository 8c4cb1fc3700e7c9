"""The answer of ``windowmill plan``: a tree in which each window and aggregate has its reason, and a last line to be read first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group
from rich.filesize import decimal
from rich.text import Text
from rich.tree import Tree

from windowmill.checkpoints.batches import Batch
from windowmill.checkpoints.ledger import Ledger
from windowmill.checkpoints.own_tables import own_tables
from windowmill.checkpoints.places import Places, Runnable
from windowmill.checkpoints.protocol import outstanding
from windowmill.expectations import history as validations
from windowmill.expectations.rule import Rule, is_of_past, is_rate
from windowmill.expectations.suites import rules
from windowmill.jobs.batch import engine
from windowmill.jobs.batch.applying import Application, next_apply
from windowmill.jobs.batch.window_history import rulings
from windowmill.jobs.commands.summaries import bound
from windowmill.jobs.commands.terminal import Answer, as_written, wrapped
from windowmill.jobs.kept_verdicts import kept_verdict
from windowmill.jobs.layouts import limits
from windowmill.jobs.layouts.carried import NotStoredError
from windowmill.jobs.report.cost import tasks_of
from windowmill.jobs.report.short_texts import elapsed
from windowmill.jobs.runnables import runnable_of
from windowmill.windowing.axis import AXIS_BEGIN
from windowmill.windowing.changes import Fate, SpecChange, SpecChanges
from windowmill.windowing.spec import Pipeline

#: What is read of the source where the state is carried over, and what windows and aggregates are filled from.
_NOTHING = "nothing of the source"
_ORIGINS = {"state": "state", "source": "the source"}
#: Bytes of files that one task of Spark reads.
_TASK_BYTES = 128 << 20
#: Released batches, the newest ones, whose broken rules are named.
_RELEASED = 5
#: Two estimates that differ by less than this are shown as one.
_ONE_ESTIMATE = 1.5


def planned(pipeline: Pipeline, history: int | None, spec: str) -> Answer:
    """What ``windowmill apply`` would do about ``pipeline``, the spec at the path ``spec``; raises what it would raise."""
    runnable, ledger = runnable_of(pipeline), Ledger.open(pipeline)
    if ledger.newest_kept is None:
        text = f"{pipeline.pipeline}: nothing runs yet; `windowmill run {spec}` begins"
        return Answer({"pipeline": pipeline.pipeline, "status": "nothing runs yet"}, text)
    outstanding(ledger, own_tables(runnable))  # notes the commits that are there
    found = next_apply(runnable, ledger, history=history)
    if found is None:
        text = f"{pipeline.pipeline}: nothing to do: the spec means the same as when batch {ledger.newest_kept.number} was computed"
        return held_change(pipeline, ledger, spec) or Answer({"pipeline": pipeline.pipeline, "status": "nothing to do"}, text)
    return _answer(runnable, ledger, found, spec)


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


def _answer(runnable: Runnable, ledger: Ledger, found: Application, spec: str) -> Answer:
    pipeline, changes, plan, reading = runnable.pipeline, found.changes, found.plan, found.reading
    batches = [batch for batch in ledger.batches() if batch.status == "committed"]
    rows = _RowCounts.of(batches, pipeline, changes, plan.history)
    published = [rows.of_window(each, plan.fills) for each in changes.windows if each.name in plan.fills]
    n_published = None if None in published else sum(count or 0 for count in published)
    counts = [file.rows for file in reading.files]
    n_rows = None if None in counts else sum(count or 0 for count in counts)
    versions = (plan.read_from + 1, plan.to_version, plan.arrival) if plan.carried is None else (None, None, None)
    read = {
        "files": len(reading.files),
        "bytes": reading.size_bytes,
        "rows": n_rows,
        **dict(zip(("from_version", "to_version", "order"), versions, strict=True)),
        "from_time": None if plan.needed_from is None else bound(plan.needed_from, not pipeline.time.integer_axis),
    }
    seconds, seconds_most = _seconds(batches, n_rows, n_published)
    data = {
        "pipeline": pipeline.pipeline,
        "status": "changed",
        "batch": plan.batch,
        "generation": plan.generation,
        "history": _history(plan.history, pipeline),
        "windows": [_shown(each, rows.of_window(each, plan.fills)) for each in changes.windows],
        "aggregates": [_shown(each, None) for each in changes.aggregates],
        "reads": read,
        "state": _state(found, pipeline),
        "released": _released(runnable, batches) if plan.fills else [],
        "seconds": seconds,
        "seconds_most": seconds_most,
        "tasks": _tasks(runnable, found, batches),
    }
    summary, does_it = _summary(found), f"`windowmill apply {spec}` does it"
    data["summary"] = f"{summary}; {does_it}"
    return Answer(data, Group(_tree(data, found), Text(f"{wrapped(summary)};\n{does_it}", style="bold")))


def _shown(change: SpecChange, rows: int | None) -> dict[str, Any]:
    return {"name": change.name, "fate": change.fate, "why": as_written(change.why), "rows": rows}


def _state(found: Application, pipeline: Pipeline) -> dict[str, Any]:
    """What becomes of the state: whether it is carried over, and since when its slices fill windows, or why the source is read."""
    if isinstance(found.state, NotStoredError):
        return {"from": "source", "why": str(found.state), "recut": False, "slices_since": None}
    since = None if found.state.since is None else bound(found.state.since, not pipeline.time.integer_axis)
    return {"from": "state", "why": None, "recut": found.state.recut, "slices_since": since}


def _history(history: int | None, pipeline: Pipeline) -> str | int | None:
    if history is None or history == AXIS_BEGIN:
        return "none" if history is None else "all"
    return bound(history, not pipeline.time.integer_axis)


def _tree(data: Mapping[str, Any], found: Application) -> Tree:
    tree = Tree(Text(f"{data['pipeline']}: the spec has changed since batch {data['batch'] - 1}", style="bold"), guide_style="dim")
    added = [each.name for each in found.changes.aggregates if each.fate == "filled"]
    for field in ("windows", "aggregates"):
        branch, changes = tree.add(field), data[field]
        width = max(len(each["name"]) for each in changes)
        for each in changes:
            branch.add(_line(f"{each['name']:<{width}}", _told(each, added if field == "windows" else (), data)))
    tree.add(_line("reads     ", _read(data["reads"])))
    tree.add(_line("state     ", _stated(data["state"])))
    for each in data["released"]:
        broken = f"batch {each['batch']} was released although it broke {', '.join(each['rules'])}"
        tree.add(_line("rules     ", f"{broken}; `apply` validates what it publishes by the same rules, and may be held"))
    tree.add(_line("takes     ", f"{_lasting(data['seconds'], data['seconds_most'])}, {_by_tasks(data['tasks'])}"))
    return tree


def _lasting(least: float | None, most: float | None) -> str:
    if least is None:
        return "unknown"
    if most is None:
        return f"about {least:,.0f} s or more: how many rows it publishes is not known"
    if most < least * _ONE_ESTIMATE:
        return f"about {least:,.0f} s"
    return f"about {elapsed(least)} to {elapsed(most)}, by what earlier batches took for each row read and for each row published"


def _by_tasks(tasks: int) -> str:
    return f"{'at least ' if tasks > 1 else ''}{tasks:,} Spark task{'s' if tasks != 1 else ''}"


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
        parts += [f"{n} {what}{'s' if n != 1 else ''} {said}" for fate, said in words.items() if (n := fates[fate])]
    reads = _files(len(found.reading.files), found.reading.size_bytes) if source else _NOTHING
    return f"{', '.join(parts)}: reads {reads}"


def _files(n: int, size: int) -> str:
    return f"{n:,} file{'s' if n != 1 else ''} ({decimal(size)})"


@dataclass(frozen=True, slots=True)
class _RowCounts:
    """Numbers of rows that batches have published, by window; and of windows on grids, how many rows a tick of their step has."""

    published: Mapping[str, int]
    steps: Mapping[str, int]
    kept: Collection[str]

    @classmethod
    def of(cls, batches: Sequence[Batch], pipeline: Pipeline, changes: SpecChanges, since: int | None) -> _RowCounts:
        """By committed ``batches``, oldest first, of windows that end after ``since``; null for all.

        The steps are those of kept windows: the rows of others had other steps.
        """
        published = Counter[str]()
        for batch in batches:
            share = _share_after(batch, since)
            windows = {name: round(n * share) for name, n in batch.counts.rows_of_windows().items()}
            if batch.plan.builds_state and batch.plan.rereads:  # publishes windows a second time
                published.update({name: max(0, n - published[name]) for name, n in windows.items()})
            elif batch.plan.builds_state:  # others replace rows
                published.update(windows)
        kept = {each.name for each in changes.windows if each.fate == "kept"}
        return cls(published, dict(_steps(pipeline)), kept)

    def of_window(self, change: SpecChange, fills: Sequence[str]) -> int | None:
        """About how many rows of a window the batch publishes; null if it publishes none, or this is not known."""
        if change.name not in fills:
            return None
        if change.fate == "kept":
            return self.published.get(change.name, 0)
        # As many keys, over as long a time, as the kept window on a grid of which most is known.
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


def _steps(pipeline: Pipeline) -> Iterator[tuple[str, int]]:
    for window in pipeline.windows:
        step = window.spacing().step
        if step is not None and not step.months and (length := step.elapsed()):
            yield window.name, length


def _seconds(batches: Sequence[Batch], read: int | None, published: int | None) -> tuple[float | None, float | None]:
    """Seconds that a batch takes that reads and publishes so many rows, at least and at most, by the batch that has read most.

    It took so long for its rows read, if all of its time went into these, and for its rows published, if all went into those.
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
    """How many tasks of Spark the batch takes at least: as many as any batch has taken, which has read no more than this one."""
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
        broken = [f"{rule.type}({rule.column or ''})" for rule in unmet if not is_rate(rule) and not is_of_past(rule)]
        if broken:
            found.append({"batch": batch.number, "rules": broken})
    return found


def _rule_of(rule: Rule) -> tuple[str, str | None, str]:
    return rule.type, rule.column, validations.json_of(rule.arguments)
