"""``windowmill state``: a summary of the stored state and, for one key, what the next run would restore for which windows. No JVM."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable, Schema
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from windowmill.checkpoints.inspection import LogInspection, SlicesInspection, key_value
from windowmill.checkpoints.ledger import Ledger
from windowmill.checkpoints.opening import reporting_damage
from windowmill.checkpoints.places import Places
from windowmill.checkpoints.state.log import is_log
from windowmill.jobs.commands.answers import Answer, bound, titled
from windowmill.jobs.conditions.duckdb import conditions_of
from windowmill.jobs.json_lines.read import plain
from windowmill.windowing.axis import WindowGrid
from windowmill.windowing.columnar.checksums import REMEDY
from windowmill.windowing.columnar.log import StateLog
from windowmill.windowing.columnar.partial_bytes import decode
from windowmill.windowing.errors import SpecError, StateError, StateMissingError
from windowmill.windowing.grids import Grids
from windowmill.windowing.kernels.combine import Ints
from windowmill.windowing.kernels.grid_ranges import grid_windows
from windowmill.windowing.kernels.rows import Rows
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.watermark import AFTER, BEFORE
from windowmill.windowing.ways import slices_of

#: Number of characters of a stored value that a table shows.
_SHOWN = 40


def state_of(pipeline: Pipeline, key: Sequence[str], limit: int) -> Answer:
    """Summarize the stored state; show one key in detail if ``key`` is given or the pipeline has no keys.

    Parameters
    ----------
    key
        ``NAME=VALUE`` for each key column; ``NAME`` alone stands for null.
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
        if not DeltaTable.is_deltatable(path):
            if "state" in ledger.written():
                raise StateMissingError(f"state {path}: there is no table, but committed batches have written to it; {REMEDY}")
            return Answer({"pipeline": pipeline.pipeline, "state": None}, f"{pipeline.pipeline}: no state yet; the first run makes it")
        view = (_LiveRows if is_log(path) else _Slices)(pipeline, ledger, path, limit)
        return _answer(view, key)


def _answer(view: _View, key: Sequence[str]) -> Answer:
    pipeline = view.pipeline
    data: dict[str, Any] = {"pipeline": pipeline.pipeline, "state": view.summary()}
    parts: list[RenderableType] = [] if key else list(view.show_summary(data["state"]))
    if key or not pipeline.keys:
        wanted = _key(pipeline, key, view.inspection.schema)
        data["key"] = {name: _value(value) for name, value in _as_stored(wanted, view.inspection.schema).items()}
        data |= view.of_key(wanted)
        parts += view.show_key(", ".join(f"{name}={value}" for name, value in data["key"].items()), data)
    return Answer(data, Group(*parts))


class _View(ABC):
    """What both kinds of state share: the number of the next batch, the form of instants, and the limit of lines."""

    inspection: SlicesInspection | LogInspection

    def __init__(self, pipeline: Pipeline, ledger: Ledger, limit: int) -> None:
        self.pipeline, self.limit = pipeline, limit
        last = ledger.last_commit
        self.emitted = last.outcome.emitted if last and last.outcome else None
        self.next_batch = ledger.next_commit

    @abstractmethod
    def summary(self) -> dict[str, Any]: ...

    @abstractmethod
    def of_key(self, key: Mapping[str, Any]) -> dict[str, Any]: ...

    @abstractmethod
    def show_key(self, name: str, data: Mapping[str, Any]) -> Iterator[RenderableType]: ...

    def _largest(self) -> list[dict[str, Any]]:
        if not self.pipeline.keys:
            return []
        return [{name: _value(value) for name, value in row.items()} for row in self.inspection.largest_keys(self.limit)]

    def instant(self, t: int | None) -> str | int | None:
        """``t`` in the form of the other commands; null for an instant that never comes."""
        return None if t is None or t in (BEFORE, AFTER) else bound(t, self.pipeline.time.unit is None)

    def show_summary(self, data: Mapping[str, Any]) -> Iterator[RenderableType]:
        facts = Table(show_header=False, box=None, pad_edge=False)
        for name, value in data.items():
            if name != "largest_keys":
                facts.add_row(name.replace("_", " "), _cell(value))
        yield facts
        if data["largest_keys"]:
            yield from self._list("keys with the most entries", data["largest_keys"], data["keys"])

    def _list(self, title: str, rows: Sequence[Mapping[str, Any]], total: int, which: str = "") -> Iterator[RenderableType]:
        # As a line of its own: a table would break its title at its own width.
        yield Text(f"\n{title}: {total:,}" if len(rows) == total else f"\n{title}: {len(rows):,} of {total:,}{which}", style="bold")
        if not rows:
            return
        names, table = list(rows[0]), titled("", ())
        for name in names:
            table.add_column(name.replace("_", " "), justify="right" if isinstance(rows[0][name], int) else "left", overflow="fold")
        for row in rows:
            table.add_row(*(_cell(row[name]) for name in names))
        yield table


def _source_types(ledger: Ledger, path: str) -> dict[str, pa.DataType]:
    """Types of the source's columns, as the last plan read them."""
    newest = ledger.newest
    if newest is None:
        raise StateError(f"state {path}: there is no ledger beside it; restore the folder from a copy")
    return {field.name: field.type for field in pa.schema(Schema.from_json(newest.plan.source_schema).to_arrow())}


class _Slices(_View):
    """State by slices."""

    def __init__(self, pipeline: Pipeline, ledger: Ledger, path: str, limit: int) -> None:
        super().__init__(pipeline, ledger, limit)
        self._grids = Grids.of(pipeline)
        self._needed_from = None if self.emitted is None else self._grids.first_slice_after(self.emitted)
        slices = slices_of(pipeline, _source_types(ledger, path))
        self._objects = {held.name for held in slices.layout.objects} if slices is not None else set()
        self.inspection: SlicesInspection = SlicesInspection(path, pipeline.keys, self.next_batch, self._needed_from)

    def summary(self) -> dict[str, Any]:
        facts = self.inspection.summary()
        spans = {"oldest_slice": self.instant(facts.pop("oldest")), "newest_slice": self.instant(facts.pop("newest"))}
        facts |= spans | {"emitted_through": self.instant(self.emitted), "needed_from": self.instant(self._needed_from)}
        return {"kind": "slices", "next_batch": self.next_batch} | self.inspection.files() | facts | {"largest_keys": self._largest()}

    def of_key(self, key: Mapping[str, Any]) -> dict[str, Any]:
        """The entries that the next run would restore, and the windows still to come that contain them."""
        starts, n_rows, entries = self.inspection.slices_of(key)
        listed = self.inspection.entries_of(key, self.limit)
        for entry in listed:
            entry |= {"slice": self.instant(entry["slice"]), "closed": self.instant(entry["closed"])}
            partials = {name: decode(value) if name in self._objects else value for name, value in entry["partials"].items()}
            entry["partials"] = {name: _value(value) for name, value in partials.items()}
        windows = list(self._windows(starts, n_rows))
        return {
            "restored": {"slices": len(starts), "entries": entries, "rows": int(n_rows.sum())},
            "windows": sorted(windows, key=lambda window: window.pop("order"))[: self.limit],
            "windows_in_all": sum(len(self._to_come(grid, starts)[0]) for _, grid in self._grids.named),
            "entries": listed,
        }

    def _windows(self, starts: Ints, n_rows: Ints) -> Iterator[dict[str, Any]]:
        """For each window of the spec, the first windows that are still to come and contain a slice; at most ``limit`` each."""
        rows_before = np.append(0, np.cumsum(n_rows))
        for name, grid in self._grids.named:
            bounds = (bound[: self.limit].tolist() for bound in self._to_come(grid, starts))
            for start, end in zip(*bounds, strict=True):
                first, stop = np.searchsorted(starts, (start, end)).tolist()
                yield {
                    "order": (end, name),
                    "window": name,
                    "window_start": self.instant(start),
                    "window_end": self.instant(end),
                    "slices": stop - first,
                    "first_slice": self.instant(int(starts[first])),
                    "last_slice": self.instant(int(starts[stop - 1])),
                    "rows": int(rows_before[stop] - rows_before[first]),
                }

    def _to_come(self, grid: WindowGrid, starts: Ints) -> tuple[Ints, Ints]:
        """Starts and ends of the windows that contain a slice and have not been emitted, in order of their ends."""
        if not len(starts):
            return starts, starts
        after = int(starts[0]) if self.emitted is None else max(self.emitted, int(starts[0]))
        numbering, n = grid.numbered(starts, starts + 1), len(starts)
        # As points at their starts: between slices that lie far apart there may be very many windows.
        points = Rows(np.array([0, n]), starts, starts + 1, np.arange(n))
        found = grid_windows(numbering.grid, points, False, np.ones(n, np.bool_), starts, after, AFTER)
        return numbering.bounds(found[1])

    def show_key(self, name: str, data: Mapping[str, Any]) -> Iterator[RenderableType]:
        restored = data["restored"]
        instead = "; nodes that hold the same are read in their place" if "entries_of_nodes" in data["state"] else ""
        yield escape(
            f"{name or self.pipeline.pipeline}: batch {self.next_batch} would restore {restored['slices']:,} slices "
            f"({restored['entries']:,} entries) of {restored['rows']:,} rows{instead}"
        )
        yield from self._list("windows to come that hold them", data["windows"], data["windows_in_all"], ", the next to end")
        entries = [{name: entry[name] for name in ("slice", "closed", "batch", "rows")} for entry in data["entries"]]
        yield from self._list("entries", entries, restored["entries"], ", the latest slices (--json has their partials)")


class _LiveRows(_View):
    """State by live rows."""

    def __init__(self, pipeline: Pipeline, ledger: Ledger, path: str, limit: int) -> None:
        super().__init__(pipeline, ledger, limit)
        log = StateLog(pipeline, _source_types(ledger, path), conditions_of(pipeline))
        self.inspection: LogInspection = LogInspection(path, list(log.keys.values()), self.next_batch, log.tables)
        self._labels = log.keys

    def summary(self) -> dict[str, Any]:
        facts = self.inspection.summary()
        spans = {"oldest_row": self.instant(facts.pop("oldest")), "newest_row": self.instant(facts.pop("newest"))}
        facts |= spans | {"emitted_through": self.instant(self.emitted)}
        return {"kind": "live rows", "next_batch": self.next_batch} | self.inspection.files() | facts | {"largest_keys": self._largest()}

    def of_key(self, key: Mapping[str, Any]) -> dict[str, Any]:
        """The live rows that the next run would restore, and each window's stored numbers."""
        key = {self._labels[name]: value for name, value in key.items()}
        restored = self.inspection.key(key)
        if restored is None:
            return {"restored": {"live_rows": 0, "entries": 0, "due": None}, "windows": [], "rows": []}
        rows = self.inspection.rows_of(key, self.limit)
        for row in rows:
            row |= {"time": self.instant(row["time"]), "watermark": self.instant(row["watermark"])}
        windows = self.inspection.windows_of(key)
        for window in windows:
            window["scalars"] = {name: self._remembered(value) for name, value in window["scalars"].items()}
            for span in window["holds"].values():
                span |= {"oldest": self.instant(span["oldest"]), "newest": self.instant(span["newest"])}
        return {"restored": restored | {"due": self.instant(restored["due"])}, "windows": windows, "rows": rows}

    def _remembered(self, value: Any) -> Any:
        """``value`` for output; a list is given as its length and last items."""
        if isinstance(value, list):
            return {"items": len(value), "last": [_value(item) for item in value[-self.limit :]]}
        return None if isinstance(value, int) and value in (BEFORE, AFTER) else _value(value)

    def show_key(self, name: str, data: Mapping[str, Any]) -> Iterator[RenderableType]:
        restored = data["restored"]
        due = "never" if restored["due"] is None else f"when the watermark is at {restored['due']}"
        yield escape(
            f"{name or self.pipeline.pipeline}: batch {self.next_batch} would restore {restored['live_rows']:,} live rows "
            f"({restored['entries']:,} entries) if a row of the key arrives; without one: {due}"
        )
        table = titled("", ())
        for column in ("window", "remembers", "holds"):
            table.add_column(column, overflow="fold")
        for window in data["windows"]:
            scalars = "\n".join(f"{name} {_cell(value)}" for name, value in window["scalars"].items())
            holds = "\n".join(f"{name}: {_span(span)}" for name, span in window["holds"].items())
            table.add_row(escape(window["window"]), scalars, escape(holds))
        yield table
        yield from self._list("live rows", data["rows"], restored["live_rows"], ", the latest to arrive")


def _key(pipeline: Pipeline, given: Sequence[str], schema: pa.Schema) -> dict[str, Any]:
    parts = [text.partition("=") for text in given]
    texts = {name: value if equals else None for name, equals, value in parts}
    if sorted(name for name, _, _ in parts) != sorted(pipeline.keys):
        wanted = " ".join(f"--key {name}=…" for name in pipeline.keys) or "no --key: the pipeline has no keys"
        raise SpecError(f"--key: got {', '.join(given) or 'none'}; expected {wanted}")
    return {name: key_value(texts[name], schema.field(name).type, name) for name in pipeline.keys}


def _as_stored(key: Mapping[str, Any], schema: pa.Schema) -> dict[str, Any]:
    return {name: pa.scalar(value, schema.field(name).type).as_py() for name, value in key.items()}


def _value(value: Any) -> Any:
    """Convert ``value`` to its JSON form."""
    if isinstance(value, datetime | date):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, set | frozenset):
        return sorted(map(_value, value), key=str)
    return _nested(value, _value) if isinstance(value, list | tuple | dict) else plain(value, False)


def _nested(value: Sequence[Any] | dict[str, Any], each: Callable[[Any], Any]) -> Any:
    if isinstance(value, dict):
        # A user's partial may have keys that JSON has not.
        return {name if isinstance(name, str) else str(each(name)): each(item) for name, item in value.items()}
    return [each(item) for item in value]


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return escape(", ".join(value))
    text = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
    return escape(text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…")


def _span(span: Mapping[str, Any]) -> str:
    return f"{span['rows']:,} rows" + (f", {span['oldest']} to {span['newest']}" if span["rows"] else "")
