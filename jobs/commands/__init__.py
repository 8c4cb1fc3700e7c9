"""The commands. Each is imported when it is run, with what it uses: the modules of commands are the only border of that kind.

A command is a function as typer takes it: its docstring is its help, annotations say its arguments and options.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from windowmill.windowing.registry import Registry, imported

#: Module and function of each of windowmill's own, and the line by which ``windowmill --help`` lists it, in its order.
_OWN = {
    "tutorial": ("tutorial:tutorial", "Show windows, late rows and a held batch on a small shop's orders, in seconds; no JVM."),
    "setup": (
        "doctor:setup",
        "Get what Spark and the kernels need and this machine lacks: Delta's jars, an archive of classes, compiled code. Minutes, once.",
    ),
    "init": ("init_command:init_command", "Look at a source, ask at most three questions, and write a spec that runs as it is."),
    "validate": ("validation:validate", "Check specs, with their conditions, functions and expectations; starts nothing."),
    "explain": ("explain:explain", "Explain what a run reads, keeps and combines for each window; starts nothing."),
    "try": ("try_command:try_", "Run the spec on JSON lines and print its rows as JSON lines. No Airflow, no tables."),
    "schema": ("validation:schema", "Print the JSON schema of a spec, by which editors complete fields and mark mistakes."),
    "run": ("batch_commands:run", "Advance pipelines over their sources' new rows, all in one process and Spark session."),
    "backfill": (
        "batch_commands:backfill",
        "Recompute the windows that end in (from, to] from the rows that the source holds now, as one batch.",
    ),
    "plan": (
        "change_commands:plan",
        "Say what the spec means for the pipeline that runs: what is kept, filled or dropped, and why. Changes nothing.",
    ),
    "apply": ("change_commands:apply", "Carry out a changed spec in one batch, which runs wait for."),
    "restate": ("change_commands:restate", "Recompute windows after rows of the source were corrected, and publish those that differ."),
    "purge": ("change_commands:purge", "Remove all that is known of keys whose rows have been deleted from the source."),
    "release": ("batch_commands:release", "Publish the held batch although a critical expectation failed."),
    "discard": ("batch_commands:discard", "Commit the held batch without publishing its rows; later windows still count its events."),
    "abandon": ("batch_commands:abandon", "Drop the held batch, of which nothing has been published; the next run makes a new plan."),
    "savepoint": (
        "maintenance_command:savepoint",
        "Make, list or drop a named state of the pipeline, or go back to one: the next run reads what came after it.",
    ),
    "status": ("summaries:status", "Show the pipeline's progress and open batch."),
    "history": ("summaries:history", "List the pipeline's batches."),
    "cost": (
        "report_commands:cost",
        "Show what the last batches cost, whether that grows, and what it comes to a month at the pipeline's schedule.",
    ),
    "quality": ("summaries:quality", "Show the validation results of the last batches."),
    "suggest": (
        "report_commands:suggest",
        "Propose rules of quality from what the pipeline has published, as YAML to paste, each with the history that it rests on.",
    ),
    "state": ("state:state", "Summarize the stored state by layout; for a key, show its entries, and which of them later runs may need."),
    "report": ("report_commands:report", "Write the HTML report of a pipeline, or an overview of all pipelines of a folder."),
    "views": (
        "report_commands:views",
        "Print the statements of Spark's SQL that make views of the sink: all rows, and the newest revisions.",
    ),
    "verify": (
        "verify:verify_command",
        "Recompute random published rows from the source as it is now, by Spark SQL, and compare; exit code 1 if one differs.",
    ),
    "maintain": ("maintenance_command:maintain_command", "Drop expired slices, compact and vacuum the pipeline's own tables."),
    "serve": (
        "doctor:serve",
        "Keep Spark warm on this machine, and print the address for SPARK_REMOTE; ends on SIGTERM and Ctrl-C.",
    ),
    "doctor": (
        "doctor:doctor",
        "Check this machine: Java, jars, worker Python, versions, warehouse, disk, ports, the server that SPARK_REMOTE names.",
    ),
}
#: Those of plugins are functions, windowmill's own their names: :func:`command_of` has the function.
COMMANDS: Registry[Callable[..., Any] | str] = Registry(
    "command", {name: f"windowmill.jobs.commands.{function}" for name, (function, _) in _OWN.items()}
)


def command_of(name: str) -> Callable[..., Any]:
    """The function of a command; its module is imported now."""
    found = COMMANDS[name]
    function: Callable[..., Any] = imported(found) if isinstance(found, str) else found
    return function


def summary_of(name: str) -> str:
    """What ``windowmill --help`` says of a command; none of windowmill's own is imported."""
    return _OWN[name][1] if name in _OWN else (command_of(name).__doc__ or "").strip().partition("\n\n")[0]
