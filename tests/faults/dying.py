"""A process that ends at a failpoint: as one that is killed there, or as one whose store's answer is lost."""

from __future__ import annotations

from windowmill.checkpoints import failpoints


class DiedError(BaseException):
    """Stands for a process that is gone: nothing of the product catches it."""


def die() -> None:
    raise DiedError


def lose() -> None:
    raise failpoints.InjectedError("the response is lost")


def arm(place: str) -> None:
    """End at ``place``; where it is named ``….lost``, what was asked of a store has been done."""
    failpoints.arm(place, lose if place.endswith(".lost") else die)
