"""The ruling on a held batch, and the result of a run for each batch that it committed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from windowmill.checkpoints.batches import Commit, Plan

#: Publish the held batch anyway, or commit it without its rows.
Ruling = Literal["release", "discard"]


@dataclass(frozen=True)
class Done:
    """A committed batch."""

    plan: Plan
    commit: Commit
