"""The view of a state of several parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import RenderableType

from windowmill.checkpoints.ledger import Ledger
from windowmill.jobs.commands.state_views.base import View
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.ways import WayName, told_of

#: Facts about the whole table, which are the same in all views.
_SHARED = ("next_batch", "version", "files", "bytes", "entries", "keys", "emitted_through")


class MixedView(View):
    """State of several parts: what the view of each shows."""

    def __init__(self, pipeline: Pipeline, ledger: Ledger, limit: int, views: Mapping[WayName, View]) -> None:
        super().__init__(pipeline, ledger, limit)
        self._views = {way.replace(" ", "_"): view for way, view in views.items()}
        self._kind = told_of(list(views))
        self.inspection = next(iter(views.values())).inspection

    def summary(self) -> dict[str, Any]:
        told = {part: view.summary() for part, view in self._views.items()}
        first = next(iter(told.values()))
        own = {f"{part}_{name}": facts[name] for part, facts in told.items() for name in _own(facts)}
        shared = {name: first[name] for name in _SHARED}
        return {"kind": self._kind} | shared | own | {"largest_keys": first["largest_keys"]}

    def of_key(self, key: Mapping[str, Any]) -> dict[str, Any]:
        """What the view of each part tells about ``key``."""
        return {part: view.of_key(key) for part, view in self._views.items()}

    def show_key(self, name: str, data: Mapping[str, Any]) -> Iterator[RenderableType]:
        for part, view in self._views.items():
            own = {fact.removeprefix(f"{part}_"): value for fact, value in data["state"].items()}
            yield from view.show_key(name, {"state": own, **data[part]})


def _own(facts: Mapping[str, Any]) -> list[str]:
    return [name for name in facts if name not in (*_SHARED, "kind", "largest_keys")]
