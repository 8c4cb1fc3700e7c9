"""Checks of ``windowmill validate`` beyond the spec's schema, without Spark or Airflow: conditions, functions, schedule, features."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from windowmill.expectations.suites import check_rules, rules, sink_columns
from windowmill.jobs.conditions.truths import columns_of, conditions_by_field
from windowmill.jobs.sources.base import kind_problems
from windowmill.windowing.aggregates import adapt_own
from windowmill.windowing.bounds import check_lengths
from windowmill.windowing.errors import LimitExceededError, SpecError, first_line, no_column
from windowmill.windowing.fields import PUBLISHED
from windowmill.windowing.redaction import holds_credentials
from windowmill.windowing.registry import imported
from windowmill.windowing.spec import SCHEDULE_WORDS, Pipeline

Problem = tuple[str, str]


_CREDENTIALS = "holds credentials, which the table's history would keep; configure them for the storage instead"
#: Midnights of a winter and of a summer day.
_MIDNIGHTS = (datetime(2024, 1, 1, tzinfo=UTC), datetime(2024, 7, 1, tzinfo=UTC))


def import_from_here() -> None:
    """Have a user's own functions looked for where the command runs, last, so that its modules hide no others."""
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))


def problems_of(pipeline: Pipeline) -> list[Problem]:
    """Everything in ``pipeline`` that no run could execute, as pairs (path of the field, what is wrong and what to do)."""
    import_from_here()
    found = [
        *condition_problems(pipeline),
        *function_problems(pipeline),
        *_schedule_problems(pipeline),
        *rule_problems(pipeline),
        *chain_problems(pipeline),
    ]
    return [*found, *_length_problems(pipeline), *not_run(pipeline), *([] if found else _strict_problems(pipeline))]


def _strict_problems(pipeline: Pipeline) -> Iterator[Problem]:
    if not pipeline.strict:
        return
    # Loads the kernels, which validate otherwise does without.
    from windowmill.windowing.layouts import strict_problem, why_rows

    problem = strict_problem(why_rows(pipeline))
    if problem:
        yield "strict", problem


def _length_problems(pipeline: Pipeline) -> Iterator[Problem]:
    try:
        check_lengths(pipeline)
    except (SpecError, LimitExceededError) as err:
        where, _, text = str(err).removeprefix(f"pipeline {pipeline.pipeline}: ").partition(": ")
        yield where, text


def not_run(pipeline: Pipeline) -> Iterator[Problem]:
    """Features used by the spec that ``run`` and ``backfill`` do not support yet."""
    if pipeline.source is not None:
        yield from kind_problems(pipeline.source)
        if pipeline.source.changes == "restate" and pipeline.source.format not in ("delta", PUBLISHED):
            yield "source.changes", "got 'restate', but only a Delta table says which rows have changed; expected 'refuse' or 'ignore'"
    for name in ("source", "sink", "checkpoints"):
        table = getattr(pipeline, name)
        if table is not None and table.table is not None:
            yield from _catalog_problems(pipeline, name)
        # Delta records the location of a new table in its history, where a secret would stay.
        if name != "source" and table is not None and table.path is not None and holds_credentials(table.path):
            yield f"{name}.path", _CREDENTIALS
    if pipeline.sink is not None and pipeline.sink.current is not None and holds_credentials(pipeline.sink.current):
        yield "sink.current", _CREDENTIALS


def _catalog_problems(pipeline: Pipeline, name: str) -> Iterator[Problem]:
    if name == "checkpoints":
        yield "checkpoints.table", "tables of a catalog are not supported yet; give the table's checkpoints.path"
    elif name == "sink" and (pipeline.checkpoints is None or pipeline.checkpoints.path is None):
        yield "sink.table", "ledger and state need a place of their own; give checkpoints: {path: …} for a sink in a catalog"
    elif name == "source" and pipeline.source is not None and pipeline.source.format != "delta":
        yield "source.table", f"a table of a catalog is read as Delta; for {pipeline.source.format} give the path of the folder"


def chain_problems(pipeline: Pipeline) -> Iterator[Problem]:
    """Columns that the spec uses, and that neither the results of the pipeline that is its source have nor its steps make."""
    upstream = pipeline.upstream
    if upstream is None:
        return
    place = f"the sink of the pipeline {upstream.pipeline}"
    known = [name for name in sink_columns(upstream) if name not in ("revision", "batch")]
    for step in pipeline.row_steps:
        yield from _unknown(step.field, [name for text in step.texts for name in sorted(columns_of(text))], known, place)
        known += step.makes
    for where, name in pipeline.named_columns():
        if name not in known:
            yield where, no_column(place, name, known)
    for where, text in conditions_by_field(pipeline):
        yield from _unknown(where, sorted(columns_of(text)), known, place)


def _unknown(where: str, names: Iterable[str], known: Sequence[str], place: str) -> Iterator[Problem]:
    there = {name.lower() for name in known}
    yield from ((where, no_column(place, name, known)) for name in names if name.lower() not in there)


def refuse_first(pipeline: Pipeline, problems: Iterable[Problem]) -> None:
    """Raise ``SpecError`` for the first of ``problems``, which are found one by one, naming its field."""
    for where, problem in problems:
        raise SpecError(f"pipeline {pipeline.pipeline}: {where}: {problem}")


def condition_problems(pipeline: Pipeline) -> Iterator[Problem]:
    """Conditions, steps, and expressions over result rows, that the engines, or two attempts, might evaluate differently."""
    steps, own = pipeline.row_steps, any(aggregate.expr for aggregate in pipeline.aggregates.values())
    conditions = [*((step.field, text) for step in steps for text in step.filters), *conditions_by_field(pipeline)]
    if not (steps or conditions or own):
        return
    from windowmill.jobs.conditions.checks import condition_problem, expression_problem, name_problem  # loads the parser

    found: list[tuple[str, str | None]] = [(where, condition_problem(text)) for where, text in conditions]
    found += [(step.field, name_problem(name)) for step in steps for name in step.makes]
    found += [(step.field, expression_problem(text)) for step in steps for text in step.texts if text not in step.filters]
    known = [*pipeline.keys, *pipeline.over_rows().aggregates]
    for name, spec in pipeline.aggregates.items():
        if spec.expr is not None:
            found.append((f"aggregates.{name}.expr", expression_problem(spec.expr, known)))
            known.append(name)
    yield from ((where, problem) for where, problem in found if problem is not None)


def function_problems(pipeline: Pipeline) -> Iterator[Problem]:
    """Functions and aggregates of the user's that cannot be used."""
    for index, window in enumerate(pipeline.windows):
        for name, place in window.functions().items():
            found, problem = _try_import(place)
            if problem is None and not callable(found):
                problem = f"got {place!r}, which is {type(found).__name__}; expected a function of (state, columns)"
            if problem is not None:
                yield f"windows.{index}.{name}", problem
    for name, aggregate in pipeline.aggregates.items():
        if aggregate.use is not None:
            found, problem = _try_import(aggregate.use)
            if problem is None:
                problem = _aggregate_problem(found, aggregate.use, len(aggregate.columns))
            if problem is not None:
                yield f"aggregates.{name}.use", problem


def alert_problems(pipeline: Pipeline) -> Iterator[Problem]:
    """Functions of ``airflow`` whose modules are not found. They are not imported: they need what Airflow's tasks have."""
    for name in ("on_failure", "on_warning"):
        place = getattr(pipeline.airflow, name, None)
        if place is None:
            continue
        module = place.partition(":")[0]
        try:
            found = importlib.util.find_spec(module) is not None
        except Exception:  # noqa: BLE001 - the package above it is imported, and may raise anything
            found = False
        if not found:
            yield f"airflow.{name}", f"got {place!r}, but there is no module {module}; put its folder on PYTHONPATH, or correct the name"


def rule_problems(pipeline: Pipeline) -> Iterator[Problem]:
    """Expectations that no batch could be validated by."""
    if not pipeline.expectations:
        return
    for problem in check_rules(pipeline, sink_columns(pipeline)):
        where, _, text = problem.partition(": ")
        yield where, text
    for rule in rules(pipeline):
        if rule.origin == "spec" and {"row_condition", "unexpected_rows_query"} & rule.arguments.keys():
            from windowmill.jobs.conditions.checks import rule_sql_problems  # loads the parser

            yield from ((f"expectations.{rule.index}.{field}", text) for field, text in rule_sql_problems(rule.arguments))


def _try_import(place: str) -> tuple[Any, str | None]:
    """The object at ``module:name``, or why it cannot be imported."""
    try:
        return imported(place), None
    # A user module runs here and may raise anything.
    except (Exception, SystemExit) as err:  # noqa: BLE001
        reason = f"{type(err).__name__}: {first_line(err)}"
        return None, f"got {place!r}, which cannot be imported ({reason}); put its folder on PYTHONPATH, or correct the name or the module"


def _aggregate_problem(found: Any, use: str, arguments: int) -> str | None:
    try:
        adapt_own(found, use, arguments)
    except SpecError as err:
        return str(err).removeprefix("use: ")
    except Exception as err:  # noqa: BLE001 - the user's class is instantiated here
        return f"got {use!r}, which cannot be instantiated ({type(err).__name__}: {first_line(err)}); a class is called without arguments"
    return None


def _schedule_problems(pipeline: Pipeline) -> Iterator[Problem]:
    schedule = pipeline.schedule
    if not isinstance(schedule, str) or schedule in SCHEDULE_WORDS:
        return
    from croniter import croniter

    if len(schedule.split()) != 5 or len(schedule) > 200 or not croniter.is_valid(schedule):
        known = ", ".join(SCHEDULE_WORDS)
        yield "schedule", f"got {schedule[:200]!r}; expected five cron fields such as '*/30 * * * *', one of {known}, or {{asset: name}}"


def west_of_utc(pipeline: Pipeline) -> Iterator[tuple[str, str]]:
    """The fields of time zones whose clocks are behind UTC at least a part of the year, and the zones."""
    for index, window in enumerate(pipeline.windows):
        zone = window.zone
        if zone is not None and any(at.astimezone(ZoneInfo(zone)).utcoffset() < timedelta(0) for at in _MIDNIGHTS):  # type: ignore[operator]
            yield f"windows.{index}.timezone", zone


def shifted_dates(pipeline: Pipeline, *, is_date: bool) -> str | None:
    """What happens to dates in windows of such zones; null for nothing. Without ``is_date`` the type of the time column is not known."""
    found = next(west_of_utc(pipeline), None)
    if found is None or (not is_date and pipeline.time.unit is not None):
        return None
    column, (where, zone) = pipeline.time.column, found
    dates = f"{column} is a DATE, which counts" if is_date else f"if {column} is a DATE, it counts"
    return f"{dates} at 00:00 UTC: in {zone} ({where}) that is the day before; leave timezone out, or give the source timestamps"
