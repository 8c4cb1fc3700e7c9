"""The gate between computing and publishing rows, and the quality table, which keeps a row per rule and validation."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Literal, get_args

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import TableNotFoundError

from windowmill.expectations import gx
from windowmill.expectations.rule import OF_PAST, QUARANTINED_RATE, Loss, Origin, Rule, compare, plain
from windowmill.expectations.suites import COLUMNS, identity_columns, is_sql, needs_spark, rules, windows_of
from windowmill.windowing.columnar.rows import without_empty_chunks
from windowmill.windowing.errors import first_line
from windowmill.windowing.fields import percentage

if TYPE_CHECKING:
    from windowmill.expectations.rule import Past
    from windowmill.windowing.spec import Pipeline

Outcome = Literal["passed", "failed", "broken"]
Status = Literal["passed", "warned", "held"]
#: Severities, the gravest first.
_GRAVEST = ("critical", "warning", "info")
_SEE_TABLE = "could not be evaluated; the error is in the quality table, column observed"
#: Greatest number of rows whose values are kept for a rule.
_MAX_VALUES = 20
SCHEMA = pa.schema(
    [
        pa.field("pipeline", pa.string(), nullable=False),
        pa.field("generation", pa.string(), nullable=False),
        pa.field("batch", pa.int64(), nullable=False),
        pa.field("attempt", pa.string(), nullable=False),
        pa.field("at", pa.timestamp("us", "UTC"), nullable=False),
        pa.field("status", pa.string(), nullable=False),
        pa.field("rule", pa.int32(), nullable=False),
        pa.field("origin", pa.string(), nullable=False),
        pa.field("type", pa.string(), nullable=False),
        pa.field("column", pa.string()),
        pa.field("arguments", pa.string(), nullable=False),
        pa.field("severity", pa.string(), nullable=False),
        pa.field("outcome", pa.string(), nullable=False),
        pa.field("observed", pa.string()),
        pa.field("elements", pa.int64()),
        pa.field("unexpected", pa.int64()),
        pa.field("message", pa.string(), nullable=False),
        pa.field("examples", pa.string(), nullable=False),
        pa.field("values", pa.string()),
    ]
)
#: Columns that hold JSON text.
JSON_COLUMNS = ("arguments", "observed", "examples", "values")
#: Columns whose values are attributes of a result.
_AS_THEY_ARE = ("origin", "type", "column", "severity", "outcome", "elements", "unexpected", "message")
#: Greatest length of a stored observation; a rule about distinct values observes all of them.
_OBSERVED_CHARACTERS = 10_000


@dataclass(frozen=True, kw_only=True)
class RuleResult(Rule):
    """A rule with its result."""

    #: ``broken`` if it could not be evaluated, which counts like ``failed``.
    outcome: Outcome
    #: The observation in JSON values: a statistic, a list of columns, or the error of a broken rule. It may contain values of the rows, so
    #: it is stored in the quality table and never logged.
    observed: Any
    #: Number of rows checked, and of those that break the rule; ``None`` for rules about a statistic.
    elements: int | None
    unexpected: int | None
    #: One line without values of the rows.
    message: str
    #: Identity columns of rows that break the rule.
    examples: tuple[Mapping[str, Any], ...] = ()
    #: The values of the rule's columns in the first of these rows; stored in the quality table and shown with the row's key.
    values: tuple[Mapping[str, Any], ...] = ()
    #: Whether Great Expectations evaluated the rule. It does not if every row is certain to keep the rule, or there is no row.
    evaluated: bool = field(default=False, compare=False)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows that break the rule: their identity, and of the first ones the values that break it."""
        pairs = zip_longest(self.examples, self.values)
        return [{**identity, **(values or {})} for identity, values in pairs]


@dataclass(frozen=True)
class Verdict:
    """The decision on a batch: ``held`` is not published, ``warned`` is published and flagged."""

    status: Status
    results: tuple[RuleResult, ...]

    @property
    def unmet(self) -> tuple[RuleResult, ...]:
        """Results that did not pass, whatever their severity."""
        return tuple(result for result in self.results if result.outcome != "passed")

    def describe(self) -> str:
        """One line for a log or an error, without values of the rows."""
        if not self.unmet:
            return f"{len(self.results)} rules passed"
        gravest = sorted(self.unmet, key=lambda result: _GRAVEST.index(result.severity))
        parts = [f"{r.type}({r.column or ''}) {r.outcome} [{r.severity}]: {r.message}" for r in gravest]
        more = f"; and {len(parts) - 3} more" if len(parts) > 3 else ""
        return f"{len(parts)} of {len(self.results)} rules not met: {'; '.join(parts[:3])}{more}"


def validate(
    rows: pa.Table | gx.SparkRows | Callable[[], Any],
    pipeline: Pipeline,
    *,
    columns: Sequence[str] | None = None,
    count: int | None = None,
    rows_read: int = 0,
    rows_quarantined: int = 0,
    loss: Callable[[], Loss] | None = None,
    spark: Callable[[], gx.SparkSession] | None = None,
    kept: Callable[[Sequence[Rule]], Collection[int]] | None = None,
    count_of: Callable[[Collection[str]], int] | None = None,
    past: Past | None = None,
) -> Verdict:
    """Evaluate every rule of the pipeline over the rows about to be published.

    Parameters
    ----------
    rows
        An Arrow table, if the rows fit the driver (no Spark job), or a cached Spark frame, which is read several times; or a function that
        gives one of them, which is called if Great Expectations has to evaluate a rule.
    columns
        The result's columns in order, by default :func:`windowmill.expectations.suites.sink_columns`.
    count
        Number of rows, if known, which saves a job on Spark; must be known of rows that a function gives.
    rows_read, rows_quarantined
        Numbers of rows that the batch read from its source, and that were quarantined.
    loss
        Summarizes the quarantined rows; called if they are more than a rule allows.
    spark
        Gives the session for rules over a table that only Spark evaluates; by default the active one, without which they are broken.
    kept, count_of
        Indexes of rules that every row is certain to keep, which are not evaluated, and the number of rows of windows that these name.
    past
        The batches before this one; null for a batch that is not compared with others.
    """
    suite = rules(pipeline, columns)
    results = _rates([rule for rule in suite if rule.type == QUARANTINED_RATE], rows_read, rows_quarantined, loss)
    results += [_compared(rule, past, rows_read) for rule in suite if rule.type in OF_PAST]
    over_rows = [rule for rule in suite if rule.type not in (QUARANTINED_RATE, *OF_PAST)]
    frame = rows if callable(rows) else lambda: rows
    count = rows.num_rows if isinstance(rows, pa.Table) else count
    if count == 0 or (count is None and frame().isEmpty()):
        results += [_unevaluated(rule, "passed", "no rows in this batch", elements=0) for rule in over_rows]
    else:
        identity = identity_columns(pipeline)
        certain = set(kept(over_rows)) if kept is not None else set()
        others = [rule for rule in over_rows if rule.index not in certain]
        findings = _findings(frame(), others, identity, spark) if others else {}
        results += [_kept(rule, count, count_of) for rule in over_rows if rule.index in certain]
        results += [_result(rule, findings.get(rule.index), identity) for rule in others]
    # An unmet critical rule holds the batch, an unmet warning flags it.
    unmet = {result.severity for result in results if result.outcome != "passed"}
    status: Status = "held" if "critical" in unmet else "warned" if "warning" in unmet else "passed"
    return Verdict(status, tuple(sorted(results, key=lambda result: result.index)))


def _compared(rule: Rule, past: Past | None, rows_read: int) -> RuleResult:
    if past is None:
        return _unevaluated(rule, "passed", "only runs are compared with earlier ones")
    try:
        found = compare(rule, past, rows_read)
    except Exception as err:  # noqa: BLE001 - delta-rs' queries raise errors of no class of their own
        return _unevaluated(rule, "broken", _SEE_TABLE, observed=first_line(err))
    outcome: Outcome = "passed" if found.kept else "failed"
    result = _unevaluated(rule, outcome, found.message, elements=found.elements, observed=found.observed)
    return replace(result, unexpected=found.unexpected, examples=found.examples)


def _rates(suite: Sequence[Rule], rows_read: int, rows_quarantined: int, loss: Callable[[], Loss] | None) -> list[RuleResult]:
    """Results of rules about the quarantined share; the gravest that failed has examples of these rows."""
    rate = rows_quarantined / rows_read if rows_read else 0.0
    failed = [rule for rule in suite if rate > rule.arguments["max_value"]]
    gravest = min(failed, key=lambda rule: (_GRAVEST.index(rule.severity), rule.index), default=None)
    lost = loss() if gravest is not None and loss is not None else None
    results = []
    for rule in suite:
        result = _unevaluated(rule, "passed", "passed", observed=rate)
        if rule in failed:
            limit = rule.arguments["max_value"]
            share = f"{_above(rate, limit)}), more than {percentage(limit)}"
            message = f"{rows_quarantined:,} of {rows_read:,} rows read were quarantined ({share}"
            result = replace(result, outcome="failed", message=message)
        if rule is gravest and lost is not None:
            # A held batch that adds no row to the quarantine table, as one that carries out a changed spec, has no rows to describe.
            result = replace(result, message=": ".join(filter(None, (result.message, lost.describe()))), examples=lost.examples)
        results.append(result)
    return results


def _above(rate: float, limit: float) -> str:
    """``rate`` in per cent, with as many decimals as show that it is above ``limit``; at least one.

    >>> _above(0.111, 0.1), _above(0.01004, 0.01)
    ('11.1%', '1.004%')
    """
    decimals = next((n for n in range(1, 15) if round(rate, n + 2) > limit), 15)
    return f"{rate:.{decimals}%}"


def _findings(
    rows: pa.Table | gx.SparkRows,
    suite: Sequence[Rule],
    identity: Sequence[str],
    spark: Callable[[], gx.SparkSession] | None,
) -> dict[int, gx.Finding]:
    if not isinstance(rows, pa.Table):
        return _findings_of_frame(rows, suite, identity)
    session_of = spark or gx.active_session
    remote = [rule for rule in suite if needs_spark(rule)]
    findings = _findings_of_table(rows, [rule for rule in suite if rule not in remote], identity)
    if not remote:
        return findings
    session = session_of()
    if session is None:
        return findings | {rule.index: gx.Finding(success=False, error="needs a running Spark session") for rule in remote}
    return findings | _findings_of_frame(session.createDataFrame(without_empty_chunks(rows)), remote, identity)


def _findings_of_table(rows: pa.Table, suite: Sequence[Rule], identity: Sequence[str]) -> dict[int, gx.Finding]:
    """Nulls within a row and between rows are judged as in a large batch, by Spark; and so is NaN (:func:`_findings_by_order`)."""
    findings: dict[int, gx.Finding] = {}
    whole: list[Rule] = []
    for rule in suite:
        apart = gx.across(rule.type, rule.arguments, rows)
        if apart is None:
            whole.append(rule)
        else:
            findings |= _findings_by_order(apart[0], [rule], identity, apart[1])
    return findings | (_findings_by_order(rows, whole, identity) if whole else {})


def _findings_by_order(
    rows: pa.Table, suite: Sequence[Rule], identity: Sequence[str], objects: Collection[str] = ()
) -> dict[int, gx.Finding]:
    """NaN is judged as in a large batch, by Spark: it is the greatest value, all NaN are equal, and a sum of one is NaN."""
    with_nan, kinds = gx.columns_with_nan(rows), gx.kinds_of_table(rows.schema)
    typed = [(rule, gx.typed(rule.type, rule.arguments, kinds, spark=False)) for rule in suite]
    if not with_nan:
        return gx.evaluate(gx.to_pandas(rows, objects), typed, identity, spark=False)
    plain = [(rule, arguments) for rule, arguments in typed if rule.type in gx.WITHOUT_ORDER]
    others = [(rule, gx.ordered_bounds(rule.type, arguments)) for rule, arguments in typed if rule.type not in gx.WITHOUT_ORDER]
    findings = gx.evaluate(gx.to_pandas(rows, objects), plain, identity, spark=False) if plain else {}
    of_order = gx.evaluate(gx.to_pandas(gx.ordered(rows, with_nan), objects), others, identity, spark=False) if others else {}
    alone = {name for name in with_nan if not pc.any(pc.equal(rows.column(name), math.inf)).as_py()}
    return findings | {index: replace(each, rows=[gx.unordered(row, alone) for row in each.rows]) for index, each in of_order.items()}


def _findings_of_frame(rows: gx.SparkRows, suite: Sequence[Rule], identity: Sequence[str]) -> dict[int, gx.Finding]:
    kinds = gx.kinds_of_frame(rows)
    typed = [(rule, gx.typed(rule.type, rule.arguments, kinds, spark=True)) for rule in suite]
    names = gx.spark_names(rows.columns)
    plain, known = (rows.toDF(*gx.renamed(rows.columns, names)), gx.renamed(identity, names)) if names else (rows, identity)
    # SQL text uses the original column names; all other arguments use the new ones.
    texts = [(rule, arguments) for rule, arguments in typed if rule.type == "unexpected_rows_expectation"]
    others = [(rule, _with_columns(arguments, names)) for rule, arguments in typed if rule.type != "unexpected_rows_expectation"]
    along = [(rule, arguments) for rule, arguments in others if rule.type in gx.ALONG and arguments["column"] in plain.columns]
    others = [pair for pair in others if pair not in along]
    findings = gx.evaluate(plain, others, known, spark=True) if others else {}
    findings |= gx.evaluate(rows, texts, identity, spark=True) if texts else {}
    for rule, arguments in along:
        compared = gx.along(plain, arguments["column"])
        found = gx.evaluate(compared, [(rule, arguments | {"column": gx.ALONG_OF})], [*known, arguments["column"]], spark=True)
        for index, finding in found.items():
            kept = [{name: value for name, value in row.items() if name != gx.ALONG_OF} for row in finding.rows]
            findings[index] = replace(finding, rows=kept)
    return {index: _as_it_was(finding, {new: old for old, new in names.items()}) for index, finding in findings.items()}


def _as_it_was(finding: gx.Finding, names: Mapping[str, str]) -> gx.Finding:
    """Restore the names and instants that Spark changed."""
    rows = [{names.get(name, name): gx.zoned(value) for name, value in row.items()} for row in finding.rows]
    return replace(finding, result=gx.zoned(_with_columns(finding.result, names)), rows=rows)


def _with_columns(mapping: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Rename columns in the parts of a rule's arguments or result that name columns."""
    about = ("column", "column_A", "column_B", "column_list", "column_set", "row_condition", "observed_value")
    return dict(mapping) | {name: gx.renamed(mapping[name], names) for name in about if name in mapping}


def _kept(rule: Rule, count: int | None, count_of: Callable[[Collection[str]], int] | None) -> RuleResult:
    if rule.type == COLUMNS:
        return _unevaluated(rule, "passed", "passed", observed=rule.arguments["column_list"])
    windows = windows_of(rule)
    elements = count if windows is None or count_of is None else count_of(windows)
    return replace(_unevaluated(rule, "passed", "passed", elements=elements), unexpected=0)


def _unevaluated(rule: Rule, outcome: Outcome, message: str, *, elements: int | None = None, observed: Any = None) -> RuleResult:
    return RuleResult(**vars(rule), outcome=outcome, observed=observed, elements=elements, unexpected=elements, message=message)


def _result(rule: Rule, finding: gx.Finding | None, identity: Sequence[str]) -> RuleResult:
    if finding is None:
        return _unevaluated(rule, "broken", "Great Expectations gave no result for this rule")
    if finding.error is not None:
        return _unevaluated(rule, "broken", _SEE_TABLE, observed=finding.error)
    result = finding.result
    observed, elements, unexpected = result.get("observed_value"), result.get("element_count"), result.get("unexpected_count")
    if rule.type == "unexpected_rows_expectation":
        unexpected = observed
    return RuleResult(
        **vars(rule),
        outcome="passed" if finding.success else "failed",
        observed=plain(observed),
        elements=elements,
        unexpected=unexpected,
        message=_message(rule, finding.success, elements, unexpected),
        examples=tuple(_picked(row, identity) for row in finding.rows),
        # Great Expectations adds the checked columns to each row that it names.
        values=tuple(_picked(row, [name for name in row if name not in identity]) for row in finding.rows[:_MAX_VALUES]),
        evaluated=True,
    )


def _picked(row: Mapping[str, Any], columns: Sequence[str]) -> dict[str, Any]:
    return {name: plain(row[name]) for name in columns if name in row}


def _message(rule: Rule, success: bool, elements: int | None, unexpected: int | None) -> str:
    if success:
        return "passed"
    if unexpected is not None:
        return f"{unexpected:,} of {elements:,} rows break the rule" if elements is not None else f"{unexpected:,} rows break the rule"
    wanted = {name: value for name, value in rule.arguments.items() if name not in ("column", "column_list")}
    return f"the batch as a whole is outside of {str(wanted)[:200]}" if wanted else "the batch as a whole breaks the rule"


def rows_of(verdict: Verdict, *, pipeline: str, generation: str, batch: int, attempt: str, at: datetime) -> pa.Table:
    """The rows of the quality table for a verdict of an ``attempt`` at a batch, validated ``at`` a time with a time zone."""
    shared = {"pipeline": pipeline, "generation": generation, "batch": batch, "attempt": attempt, "at": at, "status": verdict.status}
    rows = []
    for result in verdict.results:
        observed = None if result.observed is None else json_of(result.observed)
        if observed is not None and len(observed) > _OBSERVED_CHARACTERS:
            observed = json_of(observed[:_OBSERVED_CHARACTERS] + "…")
        texts = {"observed": observed} | {name: json_of(getattr(result, name)) for name in ("arguments", "examples", "values")}
        rows.append(shared | {"rule": result.index} | {name: getattr(result, name) for name in _AS_THEY_ARE} | texts)
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def read(
    path: str | os.PathLike[str], last: int | None = None, first_batch: int = 0, storage_options: Mapping[str, str] | None = None
) -> list[dict[str, Any]]:
    """Rule results of the ``last`` validations, or of all, oldest first, with decoded JSON columns; empty if there is no table.

    The log's statistics exclude files that hold only batches before ``first_batch``.
    """
    opened = _opened(os.fspath(path), storage_options)
    if opened is None:
        return []
    # Not `to_pyarrow_table`: it leaves threads behind that abort the interpreter at its exit (deltalake 1.6.6, exit code 134).
    # A table from before values were kept lacks their column until the next batch.
    there = {field.name for field in opened.schema().fields}
    columns = ", ".join(f'"{name}"' if name in there else f'CAST(NULL AS VARCHAR) AS "{name}"' for name in SCHEMA.names)
    reader = QueryBuilder().register("quality", opened).execute(f"SELECT {columns} FROM quality WHERE batch >= {first_batch:d}")
    table = pa.table(reader.read_all()).cast(SCHEMA)
    if last is not None:
        instants = sorted(set(table["at"].to_pylist()))[-last:] if last > 0 else []
        table = table.filter(pc.is_in(table["at"], pa.array(instants, table["at"].type)))
    rows = table.sort_by([("at", "ascending"), ("batch", "ascending"), ("rule", "ascending")]).to_pylist()
    return [row | {name: None if row[name] is None else json.loads(row[name]) for name in JSON_COLUMNS} for row in rows]


def last_verdict(path: str, generation: str, batch: int, storage_options: Mapping[str, str] | None = None) -> Verdict | None:
    found = read(path, first_batch=batch, storage_options=storage_options)
    rows = [row for row in found if (row["generation"], row["batch"]) == (generation, batch) and row["origin"] in get_args(Origin)]
    newest = [row for row in rows if row["at"] == rows[-1]["at"]]
    return Verdict(newest[0]["status"], tuple(map(_read_result, newest))) if newest else None


def holds_again(verdict: Verdict, suite: Sequence[Rule]) -> bool:
    """Whether the rules of ``suite`` would hold the rows again, because they are the rules that gave the ``verdict`` that was read.

    That is so if all could be evaluated, and one that holds the rows is not SQL, which may have read another table, or the clock.
    """
    evaluated = all(result.outcome != "broken" for result in verdict.results)
    held = any(result.severity == "critical" and result.outcome == "failed" and not is_sql(result) for result in verdict.results)
    return evaluated and held and list(map(_identity, verdict.results)) == list(map(_identity, suite))


def newest_batches(path: str | os.PathLike[str], count: int, storage_options: Mapping[str, str] | None = None) -> list[int]:
    """Numbers of the ``count`` newest validated batches, ascending; batches without rules have no rows."""
    opened = _opened(os.fspath(path), storage_options)
    if opened is None:
        return []
    builder = QueryBuilder().register("quality", opened)
    highest = pa.table(builder.execute("SELECT max(batch) AS batch FROM quality").read_all())["batch"][0].as_py()
    if highest is None:
        return []
    span = 2 * count
    while True:
        query = f"SELECT DISTINCT batch FROM quality WHERE batch > {highest - span:d} ORDER BY batch DESC LIMIT {count:d}"
        numbers = pa.table(builder.execute(query).read_all())["batch"].to_pylist()
        if len(numbers) == count or span > highest:
            return sorted(numbers)
        span *= 8


def _opened(place: str, storage_options: Mapping[str, str] | None) -> DeltaTable | None:
    try:
        return DeltaTable(place, storage_options=None if storage_options is None else dict(storage_options))
    except TableNotFoundError:
        return None


def _identity(rule: Rule) -> tuple[object, ...]:
    return rule.index, rule.origin, rule.type, rule.column, json_of(rule.arguments), rule.severity


def _read_result(row: Mapping[str, Any]) -> RuleResult:
    examples, values = tuple(row["examples"] or ()), tuple(row["values"] or ())
    same = {name: row[name] for name in (*_AS_THEY_ARE, "arguments", "observed")}
    return RuleResult(index=row["rule"], examples=examples, values=values, **same)


def json_of(value: Any) -> str:
    return json.dumps(plain(value), ensure_ascii=False)
