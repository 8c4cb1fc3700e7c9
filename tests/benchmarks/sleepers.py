"""Ways that end at once, too late, or in an error."""

from __future__ import annotations

import time


class Sleeper:
    def __init__(self, seconds):
        self._seconds = seconds

    def run(self):
        time.sleep(self._seconds)

    def write(self, path):
        time.sleep(self._seconds)


def broken(task):
    raise ValueError("cannot do it")


WAYS = {"quick": lambda task: Sleeper(0), "slow": lambda task: Sleeper(60), "broken": broken}
