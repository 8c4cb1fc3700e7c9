"""The commands, a module for those of a kind. Each imports what it needs when it runs.

A command is a function as typer takes it: its docstring is its help, annotations say its arguments and options.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from windowmill.jobs.commands import batches, changes, machine, purge, restate, specs, tables
from windowmill.windowing.registry import Registry

#: In the order in which ``windowmill --help`` lists them.
COMMANDS: Registry[Callable[..., Any]] = Registry(
    "command",
    {
        "tutorial": machine.tutorial,
        "setup": machine.setup,
        "init": specs.init,
        "validate": specs.validate,
        "explain": specs.explain,
        "try": specs.try_,
        "schema": specs.schema,
        "run": batches.run,
        "backfill": batches.backfill,
        "plan": changes.plan,
        "apply": changes.apply,
        "restate": restate.restate,
        "purge": purge.purge,
        "release": batches.release,
        "discard": batches.discard,
        "abandon": batches.abandon,
        "savepoint": batches.savepoint,
        "status": tables.status,
        "history": tables.history,
        "cost": tables.cost,
        "quality": tables.quality,
        "suggest": tables.suggest,
        "state": tables.state,
        "report": tables.report,
        "views": tables.views,
        "verify": tables.verify,
        "maintain": tables.maintain,
        "serve": machine.serve,
        "doctor": machine.doctor,
    },
)
