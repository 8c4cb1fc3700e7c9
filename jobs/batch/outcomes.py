"""What a run is told to do with a held batch, and what it says of each batch that it committed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from windowmill.checkpoints.batches import Commit, Plan

#: Publish the held batch all the same, or commit it without its rows.
Ruling = Literal["release", "discard"]


@dataclass(frozen=True)
class Done:
    """A committed batch."""

    plan: Plan
    commit: Commit
