"""Failpoints: named places in the protocol at which a test can make a run fail. They do nothing unless armed.

``WINDOWMILL_FAILPOINT=sink.after:kill`` kills the process when it reaches ``sink.after``, and ``:raise`` raises :class:`InjectedError`.
``:pause`` creates the file named by ``WINDOWMILL_FAILPOINT_RESUME`` with the suffix ``.reached``, and sleeps until the file without
the suffix exists. ``sink.after#2`` acts the second time it is reached. A test in the same process calls :func:`arm`.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

#: Each record and each commit has three failpoints: ``before`` it; ``lost``, when it was made but its response is lost; ``after`` it is
#: confirmed.
_WRITES = ("batch", "ruling", "quality", "sink", "current", "quarantine", "seen", "state", "held")
STEPS = ("compute", "validate", "record", "publish")
#: Every failpoint that pipelines over any source reach.
FAILPOINTS = (
    *(f"{step}.begin" for step in STEPS),
    *(f"{write}.{moment}" for write in _WRITES for moment in ("before", "lost", "after")),
    *("compact.before", "compact.after"),
)
#: Those that only pipelines over another one's results reach, when they bring their input up to date.
OF_INPUT = ("input.before", "input.corrected", "input.after")


class InjectedError(Exception):
    """Raised by a failpoint armed with ``raise``; simulates a storage or network error."""


_armed: dict[str, Callable[[], None]] = {}


def reach(name: str) -> None:
    """Act if the failpoint ``name`` is armed."""
    if _armed and name in _armed:
        _armed[name]()


def arm(name: str, action: Callable[[], None], *, nth: int = 1) -> None:
    """Call ``action`` the ``nth`` time that ``name`` is reached, once."""
    if name not in FAILPOINTS + OF_INPUT:
        raise ValueError(f"no failpoint {name!r}; they are {', '.join(FAILPOINTS + OF_INPUT)}")
    left = nth

    def act() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            action()

    _armed[name] = act


def disarm() -> None:
    _armed.clear()


def _raise() -> None:
    raise InjectedError("failpoint")


def _pause() -> None:
    resume = Path(os.environ["WINDOWMILL_FAILPOINT_RESUME"])
    resume.with_name(f"{resume.name}.reached").touch()
    while not resume.exists():
        time.sleep(0.05)


if _text := os.environ.get("WINDOWMILL_FAILPOINT"):
    _place, _, _action = _text.partition(":")
    _name, _, _nth = _place.partition("#")
    arm(_name, {"kill": lambda: os.kill(os.getpid(), signal.SIGKILL), "raise": _raise, "pause": _pause}[_action], nth=int(_nth or 1))
