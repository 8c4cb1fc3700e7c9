"""``windowmill cost``, ``report``, ``views`` and ``suggest``: what batches cost, pages about pipelines, views of sinks, rules to adopt.

A rule that is suggested rests on what the pipeline has published, and says on which history. No JVM.
"""

from __future__ import annotations

import math
import statistics
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import pyarrow.types as kinds
import typer
import yaml
from deltalake import DeltaTable, QueryBuilder
from rich.console import Group
from rich.table import Table
from rich.text import Text

from windowmill.checkpoints.batches import Batch
from windowmill.checkpoints.delta_tables import newest
from windowmill.checkpoints.ledger import Ledger
from windowmill.checkpoints.quoting import quoted, sql_text
from windowmill.checkpoints.stores import is_table, located, use_options_of
from windowmill.expectations.rule import KEYS, VOLUME
from windowmill.jobs.batch.engine import describe_briefly
from windowmill.jobs.commands.summaries import titled
from windowmill.jobs.commands.terminal import Answer, AsJson, Last, Spec, as_written, counted, in_bytes, load_pipeline, show, wrapped
from windowmill.jobs.report import ChartSelection, write_report
from windowmill.jobs.report.cost import Month, figures_of, trend_of
from windowmill.jobs.report.page import PipelineRow, row_of, unreadable, write_overview
from windowmill.jobs.sink_views import view_statements
from windowmill.windowing.errors import SpecError, WindowmillError
from windowmill.windowing.paths import specs_in
from windowmill.windowing.redaction import redacted
from windowmill.windowing.settings import PRICE_PER_HOUR
from windowmill.windowing.spec import Pipeline

#: Columns of the table by their names in JSON.
_SECONDS = {"seconds": "seconds", "processor_seconds": "processor"}
_BYTES = {"bytes_read": "read", "bytes_written": "written", "state_bytes": "state"}
#: A rule about values rests on so many at least, one about batches on so many runs.
_MIN_VALUES, _MIN_RUNS = 30, 5
#: Latest runs that are looked at.
_RUNS = 200
#: Shares of values below and above the range that is widened.
_TAIL = 0.001
#: The range of values is widened by this share of its length on either side.
_MARGIN = 0.5
#: Windows get rules of their own if the range over all windows is longer than that of one by more than this factor.
_MUCH = 2
#: A column with more different values is no set of known ones.
_MAX_KNOWN = 50
#: Runs with which a run is compared.
_COMPARED = 5


def cost_of(pipeline: Pipeline, last: int, price_per_hour: float | None) -> Answer:
    batches = Ledger.open(pipeline).recent(last)
    month, trend = Month.of(pipeline, batches, price_per_hour), trend_of(batches)
    data = {
        "pipeline": pipeline.pipeline,
        "batches": [
            {"batch": batch.number, "action": batch.action, **figures_of(batch), "compute": batch.outcome.compute} for batch in batches
        ],
        "trend": trend or None,
        "month": None if month is None else month.as_json(),
    }
    unknown = "a month: not known; wait for a run after the first batch, which reads history, or without a schedule for three runs"
    elsewhere = "processor: – where a Connect server or a cluster computed the batch; see its own metrics"
    note = elsewhere if any("client_processor_seconds" in batch.outcome.used for batch in batches) else ""
    lines = [line for line in (trend, unknown if month is None else month.describe(), note) if line]
    return Answer(data, Group(_table(pipeline, batches), *lines))


def _table(pipeline: Pipeline, batches: Sequence[Batch]) -> Table:
    table = titled(f"cost of {pipeline.pipeline}'s batches", ("batch", *_SECONDS.values(), *_BYTES.values(), "tasks"))
    for batch in batches:
        figures = figures_of(batch)
        cells = ["–" if figures[name] is None else f"{figures[name]:.1f}" for name in _SECONDS]
        cells += ["–" if figures[name] is None else in_bytes(figures[name]) for name in _BYTES]
        table.add_row(str(batch.number), *cells, describe_briefly(batch.outcome.compute))
    return table


def overview_of(folder: Path, out: str | None) -> Answer:
    """Write the overview of the specs in ``folder``; a pipeline that cannot be read is a row that says why."""
    if not folder.is_dir():
        raise SpecError(f"report --all: {folder} is not a folder; name one that holds *.yaml files of pipelines")
    target = out or str(folder / "overview.html")
    rows = write_overview(redacted(str(folder)), [_row(spec, target) for spec in specs_in(folder)], target)
    page, counts = redacted(target), Counter(row.verdict for row in rows)
    listed = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    text = f"{page}: {counted(len(rows), 'pipeline')}{f' ({listed})' if listed else ''}"
    return Answer({"folder": str(folder), "report": page, "pipelines": [asdict(row) for row in rows]}, Text(text))


def _row(spec: Path, target: str) -> PipelineRow:
    name = spec.stem
    try:
        pipeline = load_pipeline(spec)
        name = pipeline.pipeline
        return row_of(pipeline, str(spec), target)
    except WindowmillError as err:
        return unreadable(name, str(spec), redacted(as_written(str(err))))


def cost(
    spec: Spec,
    last: Last = 20,
    price: Annotated[
        float | None,
        typer.Option("--price-per-hour", envvar=PRICE_PER_HOUR.name, min=0, help="Price of an hour of computing, in any currency."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show what the last batches cost, whether that grows, and what it comes to a month at the pipeline's schedule."""
    show(cost_of(load_pipeline(spec), last, price), as_json)


def report(
    spec: Annotated[Path | None, typer.Argument(metavar="[SPEC]", help="The pipeline's YAML file.", show_default=False)] = None,
    every: Annotated[
        Path | None, typer.Option("--all", metavar="FOLDER", help="One page over the pipelines of this folder's *.yaml files.")
    ] = None,
    out: Annotated[
        str | None, typer.Option("--out", help="Path or URI of the page; by default next to the pipeline's tables, or in the folder.")
    ] = None,
    aggregates: Annotated[
        list[str] | None,
        typer.Option("--aggregate", metavar="NAME", help="Draw this aggregate; give the option for each. By default up to three."),
    ] = None,
    keys: Annotated[
        list[str] | None,
        typer.Option(
            "--key", metavar="NAME=VALUE", help="Draw only keys with this value of a key column; any of several. NAME alone means null."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write the HTML report of a pipeline, or an overview of all pipelines of a folder."""
    if (spec is None) == (every is None):
        raise SpecError("report: expected a SPEC, or --all FOLDER; give one of them")
    if every is not None:
        if aggregates or keys:
            raise SpecError("report --all: the overview has no charts; give --aggregate and --key with a SPEC")
        show(overview_of(every, out), as_json)
    elif spec is not None:
        pipeline = load_pipeline(spec)
        choice = ChartSelection.of(pipeline, aggregates or (), keys or ())
        page = redacted(write_report(pipeline, out=out, spec=str(spec), choice=choice))
        show(Answer({"pipeline": pipeline.pipeline, "report": page}, Text(page)), as_json)


def views(
    spec: Spec,
    schema: Annotated[str | None, typer.Option("--schema", help="Schema of the views; by default the current one.")] = None,
    as_json: AsJson = False,
) -> None:
    """Print the statements of Spark's SQL that make views of the sink: all rows, and the newest revisions."""
    pipeline = load_pipeline(spec)
    statements = view_statements(pipeline, schema)
    text = Text("\n".join(f"{statement};" for statement in statements.values()))
    show(Answer({"pipeline": pipeline.pipeline, "views": statements}, text), as_json)


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A rule as a spec writes it, and on what it rests."""

    rule: dict[str, Any]
    why: str

    def as_yaml(self) -> str:
        """Its lines of a spec, a field each: they fit a terminal."""
        written = yaml.safe_dump([self.rule], sort_keys=False, width=10_000, allow_unicode=True)
        return f"{wrapped(self.why, '  # ', '  # ')}\n{textwrap.indent(written, '  ')}"


@dataclass(frozen=True, slots=True)
class _Range:
    """A suggested range of values, with the length of the range before it was widened and the number of values."""

    length: float
    count: int
    suggestion: Suggestion


def suggestions_of(pipeline: Pipeline) -> Answer:
    """Propose rules for ``pipeline``; raises ``SpecError`` if it has published nothing."""
    use_options_of(pipeline)
    sink = located(pipeline).sink
    path = sink.path if sink else None
    if path is None or not is_table(path):
        raise SpecError(f"pipeline {pipeline.pipeline}: there is no result table yet; run it first, then ask again")
    table = newest(path)
    ledger = Ledger.open(pipeline)
    computed = ledger.as_computed(pipeline) or pipeline
    runs = [batch for batch in ledger.recent(_RUNS) if batch.action == "run" and batch.status == "committed"]
    found = [*_of_values(computed, table), *_of_keys(computed, table), *_of_runs(computed, table, runs)]
    data = {"pipeline": pipeline.pipeline, "suggestions": [{"rule": each.rule, "why": each.why} for each in found]}
    few = f"# no rules: a rule needs {_MIN_VALUES} values of a column, or {_MIN_RUNS} runs"
    return Answer(data, Text("expectations:\n" + "".join(each.as_yaml() for each in found) if found else few))


def _of_values(pipeline: Pipeline, table: DeltaTable) -> Iterator[Suggestion]:
    types = {field.name: pa.field(field).type for field in pa.schema(table.schema().to_arrow())}
    for name, aggregate in pipeline.aggregates.items():
        if name not in types:
            continue
        column = quoted(name)
        is_number = kinds.is_integer(types[name]) or kinds.is_floating(types[name]) or kinds.is_decimal(types[name])
        [counted] = _query(table, f"SELECT count(*) AS n, count({column}) AS filled FROM sink WHERE {_shown(table)}")
        if counted["filled"] < _MIN_VALUES:
            continue
        if counted["filled"] == counted["n"] and aggregate.function != "count":
            rule = {"type": "expect_column_values_to_not_be_null", "column": name, "severity": "warning"}
            yield Suggestion(rule, f"all {counted['n']:,} rows have a {name}")
        if is_number:
            yield from _ranges(pipeline, table, name)


def _ranges(pipeline: Pipeline, table: DeltaTable, name: str) -> Iterator[Suggestion]:
    """A rule for all windows, or one for each window with enough values where their ranges differ much."""
    whole = _range(table, name, None)
    if whole is None:
        return
    several = pipeline.windows if len(pipeline.windows) > 1 else ()
    apart = [found for window in several if (found := _range(table, name, window.name)) is not None and found.count >= _MIN_VALUES]
    differ = apart and min(found.length for found in apart) * _MUCH < whole.length
    yield from (found.suggestion for found in (apart if differ else [whole]))


def _range(table: DeltaTable, name: str, window: str | None) -> _Range | None:
    """The range of most values, of one window or all, widened; null if the column has values that are no numbers."""
    value, shown = f"CAST({quoted(name)} AS DOUBLE)", _shown(table)
    if window is not None:
        shown = f"{shown} AND {quoted('window')} = {sql_text(window)}"
    [found] = _query(
        table,
        f"SELECT min({value}) AS least, approx_percentile_cont({value}, {_TAIL}) AS low, "
        f"approx_percentile_cont({value}, {1 - _TAIL}) AS high, count(*) AS n FROM sink "
        f"WHERE {shown} AND {quoted(name)} IS NOT NULL AND NOT isnan({value})",
    )
    least, low, high = (found[column] for column in ("least", "low", "high"))
    if None in (least, low, high) or not (math.isfinite(low) and math.isfinite(high)):
        return None
    margin = _MARGIN * (high - low) or max(abs(high), 1.0)
    bounds = _rounded(max(0.0, low - margin) if least >= 0 else low - margin, high + margin, margin)
    [outside] = _query(table, f"SELECT count(*) AS n FROM sink WHERE {shown} AND ({value} < {bounds[0]!r} OR {value} > {bounds[1]!r})")
    rule = {"type": "expect_column_values_to_be_between", "column": name, "min_value": bounds[0], "max_value": bounds[1]}
    if window is not None:
        rule["row_condition"] = f'col("window") == "{window}"'
    n_outside = f"{outside['n']:,} {'is' if outside['n'] == 1 else 'are'} outside of the rule"
    beyond = n_outside if outside["n"] else "all are within the rule"
    share = f"{1 - 2 * _TAIL:.1%}".replace("%", " %")
    of = "" if window is None else f" of {window}"
    why = f"{share} of {found['n']:,} values{of} are {low:.4g} to {high:.4g}; {beyond}"
    return _Range(high - low, found["n"], Suggestion(rule | {"severity": "warning"}, why))


def _of_keys(pipeline: Pipeline, table: DeltaTable) -> Iterator[Suggestion]:
    for name in pipeline.keys:
        column = quoted(name)
        counts = f"SELECT {column} AS value, count(*) AS n FROM sink WHERE {_shown(table)} GROUP BY {column} LIMIT {_MAX_KNOWN + 1}"
        rows = _query(table, counts)
        known, total = [row["value"] for row in rows], sum(row["n"] for row in rows)
        # Great Expectations takes in a set numbers, and texts that are not empty.
        fit = all(isinstance(value, str | int) and not isinstance(value, bool) and value != "" for value in known)
        if total >= _MIN_VALUES and len(known) <= _MAX_KNOWN and fit:
            rule = {"type": "expect_column_values_to_be_in_set", "column": name, "value_set": sorted(known), "severity": "warning"}
            yield Suggestion(rule, f"{len(known)} different values of {name} in {total:,} rows")


def _of_runs(pipeline: Pipeline, table: DeltaTable, runs: Sequence[Batch]) -> Iterator[Suggestion]:
    """The volume of a run, and whether keys come back in each."""
    read = [run.counts.rows_read for run in runs if run.counts.rows_read]
    if len(read) < _MIN_RUNS:
        return
    usual = statistics.median(read)
    least, most = _two_digits(min(read) / usual / 2, math.floor), _two_digits(max(read) / usual * 2, math.ceil)
    rule = {"type": VOLUME, "batches": min(10, len(read)), "min_share": least, "max_share": most, "severity": "warning"}
    yield Suggestion(rule, f"{len(read)} runs read {min(read):,} to {max(read):,} rows, {usual:,.0f} in the median")
    if pipeline.keys and (compared := _runs_with_all_keys(pipeline, table, runs)):
        rule = {"type": KEYS, "batches": _COMPARED, "severity": "warning"}
        yield Suggestion(rule, f"each of the latest {compared} runs had rows of every key of the {_COMPARED} before it")


def _runs_with_all_keys(pipeline: Pipeline, table: DeltaTable, runs: Sequence[Batch]) -> int:
    """How many of the latest runs could be compared and had rows of every key of those before; 0 if one had not."""
    numbers = [run.number for run in runs if run.counts.rows_published][-4 * _COMPARED :]
    if len(numbers) < 2 * _COMPARED:
        return 0
    columns = ", ".join(map(quoted, pipeline.keys))
    rows = _query(table, f"SELECT DISTINCT batch, {columns} FROM sink WHERE batch IN ({', '.join(map(str, numbers))})")
    keys: dict[int, set[tuple[str, ...]]] = {number: set() for number in numbers}
    for row in rows:
        keys[row["batch"]].add(tuple(str(row[name]) for name in pipeline.keys))
    compared = range(_COMPARED, len(numbers))
    before = {i: set().union(*(keys[number] for number in numbers[i - _COMPARED : i])) for i in compared}
    return len(compared) if all(before[i] <= keys[numbers[i]] for i in compared) else 0


def _shown(table: DeltaTable) -> str:
    return "retracted IS NOT TRUE" if any(field.name == "retracted" for field in table.schema().fields) else "TRUE"


def _query(table: DeltaTable, sql: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pa.table(QueryBuilder().register("sink", table).execute(sql).read_all()).to_pylist()
    return rows


def _rounded(low: float, high: float, margin: float) -> tuple[float, float]:
    """Bounds at least as wide, as multiples of a tenth of the magnitude of ``margin``."""
    digits = 1 - math.floor(math.log10(margin))
    scale = 10.0**digits
    bounds = math.floor(low * scale) / scale, math.ceil(high * scale) / scale
    return tuple(int(bound) if bound == int(bound) else bound for bound in bounds)  # type: ignore[return-value]


def _two_digits(share: float, cut: Any) -> float:
    """``share`` cut to two significant digits; ``cut`` is ``math.floor`` or ``math.ceil``."""
    scale = 10.0 ** (1 - math.floor(math.log10(share)))
    return float(f"{cut(share * scale) / scale:.2g}")


def suggest(spec: Spec, as_json: AsJson = False) -> None:
    """Propose rules of quality from what the pipeline has published, as YAML to paste, each with the history that it rests on."""
    show(suggestions_of(load_pipeline(spec)), as_json)
