"""``windowmill state``: a summary of the stored state and, for one key, what the next run would restore for which windows. No JVM."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import pyarrow as pa
import typer
from rich.console import Group, RenderableType

from windowmill.checkpoints.data_files import missing
from windowmill.checkpoints.ledger import Ledger
from windowmill.checkpoints.places import Places
from windowmill.checkpoints.state.inspection import key_value
from windowmill.checkpoints.state.reading import reporting_damage
from windowmill.checkpoints.stores import is_table
from windowmill.jobs.commands.state_views.entries import LiveRowsView, PositionsView
from windowmill.jobs.commands.state_views.partial_views import SessionsView, SlicesView
from windowmill.jobs.commands.state_views.view import View, source_types, value_of
from windowmill.jobs.commands.terminal import Answer, AsJson, Spec, load_pipeline, show
from windowmill.windowing.columnar.checksums import REMEDY
from windowmill.windowing.errors import SpecError, StateMissingError
from windowmill.windowing.layouts import StateLayout, describe_layouts, divide
from windowmill.windowing.spec import Pipeline

#: Facts about the whole table, which are the same in all views.
_SHARED = ("next_batch", "version", "files", "bytes", "entries", "keys", "emitted_through")


def state_of(pipeline: Pipeline, key: Sequence[str], limit: int) -> Answer:
    """Summarize the stored state; show one key in detail if ``key`` is given or the pipeline has no keys.

    Parameters
    ----------
    key
        ``NAME=VALUE`` for each key column; ``NAME`` alone means null.
    limit
        Greatest number of lines of each list.

    Raises
    ------
    SpecError
        If ``key`` is not a value for each key column.
    SpecChangedError
        If the spec is not the one that built the state.
    StateError
        If the state is gone or cannot be read.
    """
    ledger, path = Ledger.open(pipeline), Places.of(pipeline).state
    ledger.check_meaning(pipeline)
    with reporting_damage(path):
        if not is_table(path):
            return Answer({"pipeline": pipeline.pipeline, "state": None}, f"{pipeline.pipeline}: no state yet; {_made_by(ledger, path)}")
        return _answer(_view(pipeline, ledger, path, limit), key)


def _made_by(ledger: Ledger, path: str) -> str:
    """What makes the state that is not there yet; raises ``StateMissingError`` if batches have made it."""
    lost = StateMissingError(f"state {path}: there is no table, but committed batches have written to it; {REMEDY}")
    if "state" in ledger.written():
        raise lost
    newest = ledger.newest
    recorded = ledger.changes_of(newest).get("state") if newest and newest.status != "abandoned" else None
    if newest is None or recorded is None:
        return "the first run makes it"
    if newest.status == "held":
        return f"batch {newest.number} is held"
    if missing(path, recorded.files):
        raise lost
    return f"the next run makes the commits of batch {newest.number}, which is recorded"


def _view(pipeline: Pipeline, ledger: Ledger, path: str, limit: int) -> View:
    parts, views = divide(pipeline, source_types(ledger, path)), dict[StateLayout, View]()
    if parts.slices is not None:
        views["slices"] = SlicesView(parts.slices.pipeline, ledger, path, limit)
    if parts.sessions is not None:
        views["sessions"] = SessionsView(parts.sessions.pipeline, ledger, path, limit)
    if parts.positions is not None:
        views["positions"] = PositionsView(parts.positions.pipeline, ledger, path, limit)
    if parts.rows is not None:
        views["live rows"] = LiveRowsView(parts.rows.pipeline, ledger, path, limit, parts.names)
    return next(iter(views.values())) if len(views) == 1 else MixedView(pipeline, ledger, limit, views)


def _answer(view: View, key: Sequence[str]) -> Answer:
    pipeline = view.pipeline
    data: dict[str, Any] = {"pipeline": pipeline.pipeline, "state": view.summary()}
    parts: list[RenderableType] = [] if key else list(view.show_summary(data["state"]))
    if key or not pipeline.keys:
        wanted = _key(pipeline, key, view.inspection.schema)
        data["key"] = {name: value_of(value) for name, value in _as_stored(wanted, view.inspection.schema).items()}
        data |= view.of_key(wanted)
        parts += view.show_key(", ".join(f"{name}={value}" for name, value in data["key"].items()), data)
    return Answer(data, Group(*parts))


def _key(pipeline: Pipeline, given: Sequence[str], schema: pa.Schema) -> dict[str, Any]:
    parts = [text.partition("=") for text in given]
    texts = {name: value if equals else None for name, equals, value in parts}
    if sorted(name for name, _, _ in parts) != sorted(pipeline.keys):
        wanted = " ".join(f"--key {name}=…" for name in pipeline.keys) or "no --key: the pipeline has no keys"
        raise SpecError(f"--key: got {', '.join(given) or 'none'}; expected {wanted}")
    return {name: key_value(texts[name], schema.field(name).type, name) for name in pipeline.keys}


def _as_stored(key: Mapping[str, Any], schema: pa.Schema) -> dict[str, Any]:
    return {name: pa.scalar(value, schema.field(name).type).as_py() for name, value in key.items()}


class MixedView(View):
    """State of several parts: what the view of each shows."""

    def __init__(self, pipeline: Pipeline, ledger: Ledger, limit: int, views: Mapping[StateLayout, View]) -> None:
        super().__init__(pipeline, ledger, limit)
        self._views = {layout.replace(" ", "_"): view for layout, view in views.items()}
        self._kind = describe_layouts(list(views))
        self.inspection = next(iter(views.values())).inspection

    def summary(self) -> dict[str, Any]:
        summaries = {part: view.summary() for part, view in self._views.items()}
        first = next(iter(summaries.values()))
        own = {f"{part}_{name}": facts[name] for part, facts in summaries.items() for name in _own(facts)}
        shared = {name: first[name] for name in _SHARED}
        return {"kind": self._kind} | shared | own | {"largest_keys": first["largest_keys"]}

    def of_key(self, key: Mapping[str, Any]) -> dict[str, Any]:
        """What the view of each part shows of ``key``."""
        return {part: view.of_key(key) for part, view in self._views.items()}

    def show_key(self, name: str, data: Mapping[str, Any]) -> Iterator[RenderableType]:
        for part, view in self._views.items():
            own = {fact.removeprefix(f"{part}_"): value for fact, value in data["state"].items()}
            yield from view.show_key(name, {"state": own, **data[part]})


def _own(facts: Mapping[str, Any]) -> list[str]:
    return [name for name in facts if name not in (*_SHARED, "kind", "largest_keys")]


def state(
    spec: Spec,
    key: Annotated[
        list[str] | None,
        typer.Option("--key", metavar="NAME=VALUE", help="A key; give the option once per key column. NAME alone means null."),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Maximum number of lines of each list.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Show the stored state; for a key, what the next run would restore, and for which windows."""
    show(state_of(load_pipeline(spec), key or [], limit), as_json)
