"""``windowmill explain``: how a pipeline will be computed, from its spec alone. No JVM, no source.

The first page has a line for each window, in plain words. ``--verbose`` adds slices, engines and stored columns.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from windowmill.jobs.commands.terminal import (
    Answer,
    AsJson,
    Spec,
    as_written,
    counted,
    in_bytes,
    load_pipeline,
    show,
    wrapped,
)
from windowmill.jobs.conditions.truths import outside_by_field
from windowmill.jobs.runnables import runnable_of
from windowmill.jobs.sources.base import caveat_of
from windowmill.jobs.spec_checks import import_from_here, shifted_dates
from windowmill.windowing.axis import Duration
from windowmill.windowing.errors import SpecError, TableUnlocatedError
from windowmill.windowing.fields import Lookup
from windowmill.windowing.layouts import StateLayout
from windowmill.windowing.planner import PipelinePlan, WindowPlan, plan
from windowmill.windowing.redaction import redacted
from windowmill.windowing.spec import Pipeline

_LEAVES: Mapping[StateLayout, str] = {
    "slices": "slices",
    "sessions": "open sessions",
    "positions": "tuples by position, with FlatFAT's nodes",
    "live rows": "live rows, kept as an append-only log",
}
#: Fields of plans whose texts are windowmill's own words, by which more is looked up.
_OURS = {"command", "layouts", "layout", "engine", "assumed"}


def explanation_of(pipeline: Pipeline, *, verbose: bool = False) -> Answer:
    """The plan of ``pipeline``; a spec that lacks what ``run`` needs is planned for ``try``."""
    import_from_here()
    refusal = None
    try:
        runnable_of(pipeline)
    except TableUnlocatedError:
        pass  # the first run looks its tables up
    except SpecError as err:
        refusal = str(err)
    found = _as_spec_writes(plan(pipeline, refusal=refusal))
    lines = [WindowLine.of(window, keeps_state=found.command == "run") for window in found.windows]
    outside = {where: as_written(why) for where, why in outside_by_field(pipeline).items()}
    notes = {"source": caveat_of(pipeline.source), "dates": shifted_dates(pipeline, is_date=False)}
    data = asdict(found) | {"done_by": _done_by(found), "lines": [asdict(line) for line in lines]} | notes
    data |= {"only_by_spark": outside} if outside else {}
    notes["steps"] = "\n".join(as_written(step.describe()) for step in pipeline.row_steps) or None
    notes["lookups"] = "\n".join(map(_change_of, pipeline.lookups)) or None
    notes["dedup"] = _remembered(pipeline, outside) if pipeline.dedup is not None else None
    if pipeline.upstream is not None:
        data["chain"] = [as_written(level) for level in _levels(pipeline)]
        notes["chain"] = "\n".join(data["chain"])
    notes["conditions"] = "\n".join(f"{where}: {why}" for where, why in outside.items()) or None
    if pipeline.sink is not None and pipeline.sink.current is not None:
        data["current"] = redacted(as_written(pipeline.sink.current))
        notes["current"] = f"{data['current']} has the newest window of each key; a batch rewrites its files whose rows change"
    page = _first_page(found, lines, [as_written(key) for key in pipeline.keys], notes)
    more = _details(found) if verbose else [Text(_MORE, style="dim")]
    return Answer(data, Group(*page, *more))


def _levels(pipeline: Pipeline) -> Iterator[str]:
    """A line for each pipeline through which results reach this one, the first one first."""
    windows = ", ".join(window.name for window in pipeline.windows)
    if pipeline.upstream is None:
        yield f"{pipeline.pipeline}: {windows} of {pipeline.source.place if pipeline.source else 'no source'}"
        return
    yield from _levels(pipeline.upstream)
    read = ", ".join(window.name for window in pipeline.upstream_windows)
    yield f"→ {pipeline.pipeline}: {windows} of {read} of {pipeline.upstream.pipeline}"


def _change_of(lookup: Lookup) -> str:
    """What a change of a looked-up table does."""
    takes_up = f"`windowmill restate SPEC --lookup {lookup.name}`"
    if lookup.format != "delta":
        takes_up = "`windowmill restate SPEC --from … --to …`"
    if lookup.valid_from is None:
        return f"{lookup.name}: a change of the table counts for rows that are read after it; {takes_up} takes it up for those before"
    return (
        f"{lookup.name}: rows of the table that come late, or are corrected, count for rows that are read after; {takes_up} takes them up"
    )


def _remembered(pipeline: Pipeline, outside: Collection[str]) -> str:
    """What ``dedup`` remembers, and for how long; and whether restatements are refused, by the fields that only Spark evaluates."""
    assert pipeline.dedup is not None
    length = Duration(ticks=pipeline.remembers_for, plain=pipeline.time.integer_axis)
    until = f"until the watermark has passed its time by {length}" if pipeline.dedup.within is None else f"within {length} of its time"
    by = ", ".join(map(as_written, pipeline.dedup.by))
    refused = pipeline.own_filter is not None and "source.filter" in outside
    note = "; restatements are refused, as only Spark evaluates source.filter" if refused else ""
    return f"rows with the {by} of an applied row are left out {until}; about 20 bytes of each row are kept so long{note}"


def _as_spec_writes(value: Any) -> Any:
    """A part of the plan with its texts as the spec writes them."""
    if isinstance(value, str):
        return as_written(value)
    if isinstance(value, tuple):
        return tuple(map(_as_spec_writes, value))
    if not is_dataclass(value) or isinstance(value, type):
        return value
    return replace(value, **{field.name: _as_spec_writes(getattr(value, field.name)) for field in fields(value) if field.name not in _OURS})


def _done_by(found: PipelinePlan) -> str:
    by, place, together = "windowmill run, backfill", "a Delta table", "one Delta table"
    if found.command == "kernel":
        by, place, together = "windowmill try --engine kernel", "memory", "memory"
    if len(found.layouts) == 1:
        return f"{by}: leaves are {_LEAVES[found.layouts[0]]} in {place}"
    parts = (f"{_LEAVES[layout]} ({', '.join(names)})" for layout, names in _names_by_layout(found).items())
    return f"{by}: leaves are {'; '.join(parts)}; all in {together}"


def _names_by_layout(found: PipelinePlan) -> Mapping[StateLayout, Sequence[str]]:
    windows: dict[StateLayout, list[str]] = {layout: [] for layout in found.layouts}
    for window in found.windows:
        windows[window.layout].append(window.name)
    return windows


_MORE = "windowmill explain --verbose: slices, engines and costs, columns of the state"
#: (window, aggregate) pairs.
_Cells = set[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class WindowLine:
    """A window in plain words: what a run reads of the state and keeps of a key for it, and how much it combines.

    ``reads`` and ``keeps`` are empty where no state is kept, ``combines`` where the number depends on the data.
    """

    window: str
    what: str
    reads: str
    keeps: str
    engine: str
    combines: str

    @classmethod
    def of(cls, window: WindowPlan, *, keeps_state: bool) -> WindowLine:
        """The line of ``window``; without ``keeps_state`` nothing is read or kept between batches."""
        known = [choice.combines.value for choice in window.choices if choice.combines.value is not None]
        most = _number(max(known)) if len(known) == len(window.choices) else ""
        engine = ", ".join(dict.fromkeys(choice.engine for choice in window.choices))
        if not keeps_state:
            return cls(window.name, window.what, "", "", engine, most)
        rows, size = window.shape.state_rows, window.state_bytes
        kept = f"{rows:,} rows ({in_bytes(size)})" if rows is not None and size is not None else _KEEPS[window.layout]
        return cls(window.name, window.what, _reads(window), kept, engine, most)

    @property
    def sentence(self) -> str:
        no_number = {"": "as many combine steps as the data asks for", "0": "no combine step", "1": "1 combine step"}
        steps = no_number.get(self.combines, f"{self.combines} combine steps")
        state = f"a run reads {self.reads}; the state keeps {self.keeps} of a key; " if self.keeps else ""
        return f"{self.what}\n{state}a result takes {steps} ({self.engine})"


#: What a key keeps where its size depends on the data.
_KEEPS: Mapping[StateLayout, str] = {
    "slices": "a row for each slice that a window may still need",
    "sessions": "a row for each open session",
    "positions": "about 2 rows for each tuple that a window may still hold",
    "live rows": "the rows that a window may still hold",
}


def _reads(window: WindowPlan) -> str:
    n, nodes = window.shape.n, window.shape.nodes
    match window.layout:
        case "slices":
            slices = "its slices" if n is None else counted(round(n), "slice")
            return f"{slices if nodes is None else f'at most {nodes} nodes and slices'} of each key for a window that ends"
        case "sessions":
            return "the open sessions of all keys"
        case "positions":
            return f"{'nodes' if nodes is None else f'at most {nodes} nodes'} and the tuples that may leave, of keys with new rows"
        case "live rows":
            return "the kept rows of keys that have new rows or are due"


def _first_page(
    found: PipelinePlan, lines: Sequence[WindowLine], keys: Sequence[str], notes_by_name: Mapping[str, str | None]
) -> Iterator[RenderableType]:
    of = f" for each {', '.join(keys)}" if keys else ""
    headline = f"{found.pipeline}: {counted(len(lines), 'window')}, {counted(len(found.aggregates), 'aggregate')}{of}"
    yield Text(wrapped(headline), style="bold")
    yield _facts([(line.window, line.sentence) for line in lines])
    shared = {layout: names for layout, names in _names_by_layout(found).items() if len(names) > 1 and layout != "live rows"}
    notes = (
        [("shared", f"{', '.join(names)}: what they keep is stored once") for names in shared.values()] if found.command == "run" else []
    )
    notes += [(f"not by {command}", why) for command, why in found.refused]
    if found.why and found.command == "run":
        notes.append(("keeps rows", "\n".join(found.why)))
    notes += [(name, text) for name, text in notes_by_name.items() if text is not None]
    if notes:
        yield _facts(notes)


def _details(found: PipelinePlan) -> Iterator[RenderableType]:
    state = [(name, text) for name, text in (("reads", found.reads), ("adds", found.adds)) if text]
    yield _facts([("done by", _done_by(found)), *_states(found), *state])
    yield _windows(found)
    yield _facts(list(_engines(found)))
    yield _aggregates(found)
    accuracies = [f"{aggregate.name}: {aggregate.accuracy}" for aggregate in found.aggregates if aggregate.accuracy]
    if accuracies:
        yield _facts([("accuracy", "\n".join(accuracies))])


def _windows(found: PipelinePlan) -> Table:
    table = _table("window", "n leaves", "m new", "cut")
    cuts = list(dict.fromkeys(f"{window.shape.slicing}: {window.shape.why}" for window in found.windows))
    for window in found.windows:
        name = Text(window.name, style="bold").append(f"\n{window.what}", style="not bold")
        cut = f"{window.shape.slicing}: {window.shape.why}"
        seen = len(cuts) == 1 and window is not found.windows[0]
        table.add_row(
            name,
            window.shape.leaves,
            window.shape.new_leaves,
            "as above" if seen else cut,
        )
    return table


def _states(found: PipelinePlan) -> Iterator[tuple[str, str]]:
    for state in dict.fromkeys(window.shape.state for window in found.windows):
        of = [window for window in found.windows if window.shape.state == state]
        scope = "" if len(of) == len(found.windows) else f"{', '.join(window.name for window in of)}: "
        rows, size = of[0].shape.state_rows, of[0].state_bytes
        known = f", {rows:,} rows or {in_bytes(size)} a key" if rows is not None and size is not None else ""
        yield "state", f"{scope}{state}; {of[0].leaf_bytes} bytes a row{known}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"


def _engines(found: PipelinePlan) -> Iterator[tuple[str, str]]:
    """Each engine, and for which windows and aggregates it is taken, why, and how many combines it takes."""
    every = {(window.name, choice.aggregate) for window in found.windows for choice in window.choices}
    lines: dict[str, dict[str, _Cells]] = {}
    for window in found.windows:
        for choice in window.choices:
            combines = choice.combines
            count = "combines" if combines.value is None else f"{_number(combines.value)} combine{'' if combines.value == 1 else 's'}"
            for line in (choice.why, f"{count} a window: {combines.formula}"):
                lines.setdefault(choice.engine, {}).setdefault(line, set()).add((window.name, choice.aggregate))
    for engine, why in lines.items():
        yield engine, "\n".join(f"{_scope(cells, every)}{line}" for line, cells in why.items())


def _scope(cells: _Cells, every: _Cells) -> str:
    """For which windows or aggregates something holds; nothing if for all."""
    windows, aggregates = (list(dict.fromkeys(name for name in names)) for names in zip(*sorted(cells), strict=True))
    if cells == every:
        return ""
    if cells == {cell for cell in every if cell[0] in windows}:
        return f"{', '.join(windows)}: "
    if cells == {cell for cell in every if cell[1] in aggregates}:
        return f"{', '.join(aggregates)}: "
    return f"{', '.join(aggregates)} of {', '.join(windows)}: "


def _aggregates(found: PipelinePlan) -> Table:
    table = _table("aggregate", "function", "partial")
    for aggregate in found.aggregates:
        table.add_row(aggregate.name, aggregate.function, ", ".join(aggregate.partial) or Text("–", style="dim"))
    return table


def _facts(facts: Sequence[tuple[str, str]]) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(min_width=10, style="cyan")
    table.add_column()
    for name, text in facts:
        table.add_row(name, Text(text))
    return table


def _table(*columns: str) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for name in columns:
        table.add_column(name, overflow="fold")
    return table


def explain(
    spec: Spec,
    verbose: Annotated[bool, typer.Option("--verbose", help="Also show slices, engines with their costs, and what is stored.")] = False,
    as_json: AsJson = False,
) -> None:
    """Explain what a run reads, keeps and combines for each window; starts nothing."""
    show(explanation_of(load_pipeline(spec), verbose=verbose), as_json)
