"""Specs of pipelines for tests: a window on a grid that counts rows, unless a test says otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

HOURS: dict[str, Any] = {"name": "w", "type": "tumbling", "size": "1 hour"}
TENS: dict[str, Any] = {"name": "w", "type": "tumbling", "size": 10}
#: The time of rows on an axis of integers, and in seconds.
TICKS: dict[str, Any] = {"column": "t", "unit": "none"}
SECONDS: dict[str, Any] = {"column": "t", "unit": "s"}


def a_spec(folder: Path | str | None = None, /, **fields: Any) -> dict[str, Any]:
    """A spec with these ``fields``, and with source and sink below ``folder`` if that is given."""
    places = {} if folder is None else {name: {"path": str(Path(folder) / name)} for name in ("source", "sink")}
    return {"pipeline": "p", "time": {"column": "t"}, "windows": [HOURS], "aggregates": {"n": {"count": "*"}}} | places | fields
