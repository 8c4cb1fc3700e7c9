"""What a pipeline reads of its source's columns."""

from __future__ import annotations

from windowmill.jobs.conditions.truths import columns_of, conditions_by_field
from windowmill.windowing.spec import Pipeline


def instants_of(pipeline: Pipeline) -> set[str]:
    """Names of the source columns that hold instants."""
    if pipeline.time.integer_axis:
        return set()
    uses = (use for window in pipeline.windows for use in window.columns().values())
    of_windows = {use.column for use in uses if use.required == "instant"}
    axis = {pipeline.time.column, *([pipeline.time.end] if pipeline.time.end else [])}
    return of_windows | axis if pipeline.time.unit is None else of_windows - axis


def in_conditions(pipeline: Pipeline) -> set[str]:
    """Names of the columns that conditions read."""
    return {name for _, condition in conditions_by_field(pipeline) for name in columns_of(condition)}


def columns_used(pipeline: Pipeline) -> tuple[dict[str, str], dict[str, str]]:
    """The columns that the pipeline reads, and the required type of each that has one: instant, integer, number or boolean.

    Each column comes with the path of the first field that names it.
    """
    uses: dict[str, str] = {}
    named = [("time.column", pipeline.time.column), *([("time.end", pipeline.time.end)] if pipeline.time.end else [])]
    axis = [name for _, name in named]
    named += [(f"keys.{index}", name) for index, name in enumerate(pipeline.keys)]
    named += [(f"time.tie_break.{index}", name) for index, name in enumerate(pipeline.time.tie_break)]
    for label, aggregate in pipeline.aggregates.items():
        named += [(f"aggregates.{label}", name) for name in aggregate.columns]
        if (takes := aggregate.declaration.takes) in ("number", "boolean"):
            uses |= dict.fromkeys(aggregate.columns, takes)
    for index, window in enumerate(pipeline.windows):
        for at, use in window.columns().items():
            named.append((f"windows.{index}.{at}", use.column))
            uses[use.column] = "number"  # or an instant, as below; an integer axis has none
    for where, condition in conditions_by_field(pipeline):
        named += [(where, name) for name in sorted(columns_of(condition))]
    uses |= dict.fromkeys(axis, "integer") | dict.fromkeys(instants_of(pipeline), "instant")
    fields: dict[str, str] = {}
    for where, name in named:
        fields.setdefault(name, where)
    return fields, uses
