"""Checks of ``windowmill validate`` beyond the spec's schema: conditions, user functions, the schedule, features that runs support.

They import neither Spark nor Airflow.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import unquote

from windowmill.checkpoints.places import Places, Runnable, absolute, escape_in, local_path
from windowmill.expectations.suites import check_rules, rules, sink_columns, type_problems
from windowmill.jobs.batch.engine import compute_of
from windowmill.jobs.conditions.truths import conditions_by_field
from windowmill.jobs.sources.kinds import is_located, kind_problems, open_source
from windowmill.windowing.aggregates.own import adapt
from windowmill.windowing.bounds import check_lengths
from windowmill.windowing.errors import LimitExceededError, SourceSchemaError, SpecError, TableUnlocatedError, UnsupportedError, first_line
from windowmill.windowing.imports import imported
from windowmill.windowing.redaction import holds_credentials
from windowmill.windowing.spec import SCHEDULE_WORDS, Pipeline, Source, Table

if TYPE_CHECKING:
    import pyarrow as pa

Problem = tuple[str, str]
#: The path of a field, with which messages about a spec begin.
_FIELD = re.compile(r"(?:source|keys|time|windows|aggregates|sink|checkpoints)(?:\..+)?")


def problems_of(pipeline: Pipeline) -> list[Problem]:
    """Everything in ``pipeline`` that no run could execute, as pairs (path of the field, what is wrong and what to do)."""
    # User functions are also looked up in the working directory; last on the path, so that its modules shadow no others.
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    found = [*_condition_problems(pipeline), *_function_problems(pipeline), *_schedule_problems(pipeline), *_rule_problems(pipeline)]
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
        if pipeline.source.changes == "restate" and pipeline.source.format != "delta":
            yield "source.changes", "got 'restate', but only a Delta table says which rows have changed; expected 'refuse' or 'ignore'"
    for name in ("source", "sink", "checkpoints"):
        table = getattr(pipeline, name)
        if table is not None and table.table is not None:
            yield from _catalog_problems(pipeline, name)
        # Delta records the location of a new table in its history, where a secret would stay.
        if name != "source" and table is not None and table.path is not None and holds_credentials(table.path):
            yield f"{name}.path", "holds credentials, which the table's history would keep; configure them for the storage instead"


def _catalog_problems(pipeline: Pipeline, name: str) -> Iterator[Problem]:
    if name == "checkpoints":
        yield "checkpoints.table", "tables of a catalog are not supported yet; give the table's checkpoints.path"
    elif name == "sink" and (pipeline.checkpoints is None or pipeline.checkpoints.path is None):
        yield "sink.table", "ledger and state need a place of their own; give checkpoints: {path: …} for a sink in a catalog"
    elif name == "source" and pipeline.source is not None and pipeline.source.format != "delta":
        yield "source.table", f"a table of a catalog is read as Delta; for {pipeline.source.format} give the path of the folder"


def runnable_of(pipeline: Pipeline) -> Runnable:
    """``pipeline`` with its tables; raises ``SpecError``, naming the field, for a spec that ``run`` and ``backfill`` do not support."""
    # These load deltalake, which `validate` does without.
    from windowmill.checkpoints.catalog_tables import located
    from windowmill.checkpoints.stores import use_options_of
    from windowmill.checkpoints.writers import check_scheme
    from windowmill.jobs.sources.reading import check_source

    name = f"pipeline {pipeline.pipeline}"
    use_options_of(pipeline)
    source, sink = pipeline.source, pipeline.sink
    if source is None or sink is None:
        missing = "source" if source is None else "sink"
        raise SpecError(f"{name}: {missing}: missing; give its path")
    problem = next(not_run(pipeline), None)
    if problem:
        raise UnsupportedError(f"{name}: {problem[0]}: {problem[1]}")
    pipeline = located(pipeline)
    source, sink = cast(Source, pipeline.source), cast(Table, pipeline.sink)
    for field, table in (("source", source), ("sink", sink)):
        if table.table is not None:
            raise TableUnlocatedError(
                f"{name}: {field}.table: where {table.table} lies is not recorded yet; `windowmill run` asks Spark's catalog"
            )
    compute_of(pipeline)
    check_lengths(pipeline)
    check_source(pipeline, source)
    # `not_run` has refused tables without a path.
    # Spark may run in another folder.
    places = Places.below(absolute(Places.of(pipeline).root))
    runnable = Runnable(pipeline, source, source.path or source.place, absolute(cast(str, sink.path)), places)
    for field, path in (("sink", runnable.sink_path), ("checkpoints", runnable.places.root)):
        escape = escape_in(path)
        if escape is not None:
            raise SpecError(
                f"{name}: {field}.path: {path} leads to {Path(path).resolve()}, which holds {escape!r}; writers of Delta tables take that "
                f"for {unquote(escape)!r}: rename the folder to which it leads"
            )
        check_scheme(path)
    _check_names(runnable)
    return runnable


def _check_names(runnable: Runnable) -> None:
    """Refuse names of columns that a sink in object storage cannot have: Delta stores them by column mapping, which only Spark writes."""
    pipeline = runnable.pipeline
    for field, names in (("keys", pipeline.keys), ("aggregates", pipeline.aggregates)):
        odd = next((name for name in names if set(name) & set(" ,;{}()\n\t=")), None)
        if odd is not None and local_path(runnable.sink_path) is None:
            raise UnsupportedError(
                f"pipeline {pipeline.pipeline}: {field}: {odd!r}: Delta stores this name by column mapping, which only Spark writes, and "
                "Spark never commits to object storage; rename the column in the source"
            )


def check_conditions(pipeline: Pipeline) -> None:
    """Raise ``SpecError``, naming the field, for a condition that the engines, or two attempts, might evaluate differently."""
    _refuse_first(pipeline, _condition_problems(pipeline))


def check_functions(pipeline: Pipeline) -> None:
    """Raise ``SpecError``, naming the field, for a function or an aggregate of the user's that cannot be used."""
    _refuse_first(pipeline, _function_problems(pipeline))


def check_expectations(pipeline: Pipeline) -> None:
    """Raise ``SpecError``, naming the field, for an expectation that no batch could be validated by."""
    _refuse_first(pipeline, _rule_problems(pipeline))


def check_rule_types(pipeline: Pipeline, schema: pa.Schema) -> None:
    """Raise ``SpecError``, naming the field, for an expectation over a column of a type that it does not take; of results by ``schema``."""
    _refuse_first(pipeline, iter(type_problems(pipeline, schema)))


def _refuse_first(pipeline: Pipeline, problems: Iterator[Problem]) -> None:
    problem = next(problems, None)
    if problem:
        raise SpecError(f"pipeline {pipeline.pipeline}: {problem[0]}: {problem[1]}")


def source_problems(pipeline: Pipeline) -> Iterator[Problem]:
    """Mismatches between the spec and the current columns of its source, read without a JVM.

    Raises
    ------
    SourceError
        If the source cannot be read.
    """
    try:
        yield from _misfits(pipeline)
    except (SourceSchemaError, SpecError) as err:
        field, colon, text = str(err).removeprefix(f"pipeline {pipeline.pipeline}: ").partition(": ")
        if not colon or not _FIELD.fullmatch(field):
            raise
        yield field, text


def _misfits(pipeline: Pipeline) -> Iterator[Problem]:
    from windowmill.checkpoints.catalog_tables import located
    from windowmill.jobs.sources.columns import Columns
    from windowmill.jobs.sources.own_results import refuse_own_results
    from windowmill.windowing.columnar.positions import PositionState
    from windowmill.windowing.columnar.results import result_schema
    from windowmill.windowing.columnar.state_log import StateLog
    from windowmill.windowing.layouts import check_strict, divide

    pipeline = located(pipeline)
    if not is_located(pipeline.source):
        yield _no_place(pipeline)
        return
    if pipeline.sink is not None:
        runnable_of(pipeline)
    source = open_source(pipeline)
    refuse_own_results(pipeline, source)
    columns = Columns.of(source.schema_json)
    columns.check(pipeline, "the source", source.unread, source.untyped)
    schema = result_schema(pipeline, columns.arrow)
    yield from type_problems(pipeline, schema)
    check_strict(pipeline)
    parts = divide(pipeline, columns.arrow)
    if parts.positions is not None:
        PositionState(parts.positions.pipeline, columns.arrow, parts.positions.layout)
    if parts.rows is not None:
        StateLog(parts.rows.pipeline, columns.arrow, parts.rows.pipeline.conditions(), shared=parts.rows.shared)


def _no_place(pipeline: Pipeline) -> Problem:
    if pipeline.source is None:
        return "source", "missing; --source compares the spec with it"
    return "source.table", f"where {pipeline.source.place} lies is not recorded yet; `windowmill run` asks Spark's catalog"


def _condition_problems(pipeline: Pipeline) -> Iterator[Problem]:
    for field, text in conditions_by_field(pipeline):
        from windowmill.jobs.conditions.checks import condition_problem  # loads the parser

        problem = condition_problem(text)
        if problem is not None:
            yield field, problem


def _function_problems(pipeline: Pipeline) -> Iterator[Problem]:
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


def _rule_problems(pipeline: Pipeline) -> Iterator[Problem]:
    if not pipeline.expectations:
        return

    for problem in check_rules(pipeline, sink_columns(pipeline)):
        where, _, text = problem.partition(": ")
        yield where, text
    for rule in rules(pipeline):
        if rule.origin == "spec" and {"row_condition", "unexpected_rows_query"} & rule.arguments.keys():
            from windowmill.jobs.conditions.rule_sql import rule_sql_problems  # loads the parser

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
        adapt(found, use, arguments)
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
