"""The view of a state of slices and sessions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import RenderableType

from windowmill.checkpoints.ledger import Ledger
from windowmill.jobs.commands.state_views.base import View
from windowmill.jobs.commands.state_views.sessions import SessionsView
from windowmill.jobs.commands.state_views.slices import SlicesView
from windowmill.windowing.spec import Pipeline

#: Facts about the whole table, which are the same in both views.
_SHARED = ("next_batch", "version", "files", "bytes", "entries", "keys", "emitted_through", "largest_keys")


class PartialsView(View):
    """State by slices and sessions: what the views of both show."""

    def __init__(self, pipeline: Pipeline, ledger: Ledger, path: str, limit: int) -> None:
        super().__init__(pipeline, ledger, limit)
        self._slices, self._sessions = SlicesView(pipeline, ledger, path, limit), SessionsView(pipeline, ledger, path, limit)
        self.inspection = self._slices.inspection

    def summary(self) -> dict[str, Any]:
        slices, sessions = self._slices.summary(), self._sessions.summary()
        shared = {name: slices[name] for name in _SHARED if name != "largest_keys"}
        own = {f"{part}_{name}": facts[name] for part, facts in (("slices", slices), ("sessions", sessions)) for name in _own(facts)}
        return {"kind": "slices and sessions"} | shared | own | {"largest_keys": slices["largest_keys"]}

    def of_key(self, key: Mapping[str, Any]) -> dict[str, Any]:
        """What the views of slices and of sessions tell about ``key``."""
        return {"slices": self._slices.of_key(key), "sessions": self._sessions.of_key(key)}

    def show_key(self, name: str, data: Mapping[str, Any]) -> Iterator[RenderableType]:
        for part, view in (("slices", self._slices), ("sessions", self._sessions)):
            yield from view.show_key(name, {"state": data["state"], **data[part]})


def _own(facts: Mapping[str, Any]) -> list[str]:
    return [name for name in facts if name not in (*_SHARED, "kind")]
