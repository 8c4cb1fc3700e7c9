"""Notes of what an attempt at a batch has finished, so that the next attempt at the same batch does not compute it again.

The notes lie in a folder of their own, and name files that no record names yet. They hold for one plan, of which there is a note, too.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import TypeVar

from windowmill.checkpoints.ledger import stored
from windowmill.checkpoints.plans import Plan
from windowmill.checkpoints.stores import make_folder, remove_folder, store_of

#: Name of the note of the plan.
_PLAN = "plan"
#: Fields in which plans of two attempts at the same batch differ; a pipeline's first record makes its ledger.
_OF_ATTEMPT = ("attempt", "now_us", "generation")

P = TypeVar("P", bound=Plan)


class Notes:
    """The notes in the folder ``place``."""

    def __init__(self, place: str) -> None:
        self._place = place

    def resumed(self, plan: P) -> P:
        """``plan`` with the time of the attempt that left the notes, against which it judged event times, if it was one at ``plan``."""
        noted = self.read(_PLAN)
        if noted is None:
            return plan
        known = json.loads(noted)
        return replace(plan, now_us=known["now_us"]) if known["digest"] == _digest(plan) else plan

    def begin(self, plan: Plan) -> None:
        """Drop all notes, unless they are of an attempt at ``plan`` with the same time."""
        if self.read(_PLAN) != _note_of(plan):
            self.clear()
            self.write(_PLAN, _note_of(plan))

    def expire(self, batch: int) -> None:
        """Drop all notes, unless they are of an attempt at the batch of this number."""
        noted = self.read(_PLAN)
        if noted is None or json.loads(noted)["batch"] != batch:
            self.clear()

    def read(self, name: str) -> bytes | None:
        """The note ``name``; null if there is none, or it is torn."""
        try:
            with store_of(self._place).open_input_stream(f"{name}.json") as stream:
                digest, _, body = stream.read().partition(b"\n")
        except FileNotFoundError:
            return None
        return body if digest == _checksum(body) else None

    def write(self, name: str, body: bytes) -> None:
        make_folder(self._place)
        with store_of(self._place).open_output_stream(f"{name}.json") as stream:
            stream.write(_checksum(body) + b"\n" + body)

    def clear(self) -> None:
        remove_folder(self._place)


def _digest(plan: Plan) -> str:
    fields = {name: value for name, value in stored(plan).items() if name not in _OF_ATTEMPT}
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


def _note_of(plan: Plan) -> bytes:
    return json.dumps({"digest": _digest(plan), "batch": plan.batch, "now_us": plan.now_us}).encode()


def _checksum(body: bytes) -> bytes:
    return hashlib.sha256(body).hexdigest().encode()
