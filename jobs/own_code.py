"""Which code of windowmill a process runs: processes that share imported modules must have the same. Imports nothing that takes time."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).parents[1]
#: Packages that runs import.
_PACKAGES = ("windowing", "checkpoints", "expectations", "jobs")


def code_in_use() -> str:
    """A text that differs for another release of windowmill, another place of it, and edited modules."""
    return f"windowmill {metadata.version('windowmill')} of {ROOT}, changed at {newest_change()}"


def newest_change() -> int:
    """When a module of windowmill was last changed, in nanoseconds since 1970."""
    return max(file.stat().st_mtime_ns for name in _PACKAGES for file in (ROOT / name).resolve().rglob("*.py"))
