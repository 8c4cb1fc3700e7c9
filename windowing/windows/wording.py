"""Phrases that several types of windows use for ``explain``."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from windowmill.windowing.spec import Pipeline

#: Why the kernels take the windows of a type leaf by leaf.
ONCE = "windows do not overlap; each is combined once, row by row"

#: Why the kernels do so with sessions that are shown again.
VERSIONS = "windows do not overlap; each version is the one before it and what came since"


def kept_before(pipeline: Pipeline) -> str:
    """What disorder and lateness add to the state, to follow the rows that are kept; nothing if both are zero."""
    lengths = (("disorder", pipeline.time.disorder), ("lateness", pipeline.time.lateness))
    parts = [f"{name} of {length}" for name, length in lengths if not length.is_zero]
    return f", and {' and '.join(parts)} before" if parts else ""
