"""The process in which contestants of a race run: ``python -m benchmarks.contestant MODULE``, commands on stdin, replies on stdout.

``MODULE`` has a table ``WAYS``: name of a way -> function from the task (a dict) to a :class:`Way`. Only the standard library is imported
here, since every peer has an environment of its own.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
import traceback
from typing import Any, Protocol


class Way(Protocol):
    """One way to do a task, made ready: session started, input opened, nothing computed."""

    def run(self) -> dict[str, Any] | None:
        """Compute everything and keep nothing; facts to report, such as the number of rows."""

    def write(self, path: str) -> None:
        """Compute everything into Parquet at ``path``, with the columns of the task, for comparison."""


def main() -> None:
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever libraries and JVMs print goes to the log
    ways = importlib.import_module(sys.argv[1]).WAYS
    ready: dict[str, Way] = {}
    for line in sys.stdin:
        command = json.loads(line)
        name = command["entry"]
        try:
            begun = time.perf_counter()
            facts = None
            match command["do"]:
                case "prepare":
                    ready[name] = ways[command["way"]](command["task"])
                case "run":
                    facts = ready[name].run()
                case "write":
                    ready[name].write(command["path"])
            reply = {"seconds": time.perf_counter() - begun, "facts": facts or {}}
        except Exception as err:  # noqa: BLE001 - told to the parent, which goes on with the others
            traceback.print_exc()
            reply = {"error": f"{type(err).__name__}: {err}"}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


if __name__ == "__main__":
    main()
