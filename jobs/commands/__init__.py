"""The commands, a module for those of a kind. Each imports what it needs when it runs.

A command is a function as typer takes it: its docstring is its help, annotations say its arguments and options.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from windowmill.jobs.commands import batch_commands, change_commands, spec_commands, table_commands
from windowmill.windowing.registry import Registry

#: In the order in which ``windowmill --help`` lists them.
COMMANDS: Registry[Callable[..., Any]] = Registry(
    "command",
    {
        "tutorial": spec_commands.tutorial,
        "setup": spec_commands.setup,
        "init": spec_commands.init,
        "validate": spec_commands.validate,
        "explain": spec_commands.explain,
        "try": spec_commands.try_,
        "schema": spec_commands.schema,
        "run": batch_commands.run,
        "backfill": batch_commands.backfill,
        "plan": change_commands.plan,
        "apply": change_commands.apply,
        "restate": change_commands.restate,
        "purge": change_commands.purge,
        "release": batch_commands.release,
        "discard": batch_commands.discard,
        "abandon": batch_commands.abandon,
        "savepoint": batch_commands.savepoint,
        "status": table_commands.status,
        "history": table_commands.history,
        "cost": table_commands.cost,
        "quality": table_commands.quality,
        "suggest": table_commands.suggest,
        "state": table_commands.state,
        "report": table_commands.report,
        "views": table_commands.views,
        "verify": table_commands.verify,
        "maintain": table_commands.maintain,
        "serve": spec_commands.serve,
        "doctor": spec_commands.doctor,
    },
)
