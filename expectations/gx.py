"""Runs Great Expectations. Only this module imports it, always inside a function, because the import takes about 1 s of CPU.

The import is made cheaper: modules that few rules use load at first use, and SQLAlchemy is not loaded.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from windowmill.expectations.rule import Rule

#: Greatest number of rows named per failed rule.
MAX_EXAMPLES = 1_000
#: Greatest number of characters of an error.
MAX_ERROR = 500
#: Counts only: with sampled values every rule, even a passing one, would cost another Spark job.
_COUNTS = {"result_format": "BASIC", "partial_unexpected_count": 0}
#: Modules that Great Expectations, or ``pyspark.ml`` behind it, import as a whole (``import altair``): 1 s of processor time together.
DEFERRED = frozenset({"altair", "jsonschema", "scipy.sparse", "scipy.stats"})
#: Great Expectations needs this package for databases alone, and does without it where it is not installed. Its import takes 0.3 s.
UNUSED = "sqlalchemy"


@dataclass(frozen=True, slots=True)
class Finding:
    """Great Expectations' result for one rule, in plain Python values.

    Attributes
    ----------
    success
        Whether the rule holds; ``False`` with an ``error`` if it could not be evaluated.
    error
        The exception in one line; may quote values of the rows.
    result
        Great Expectations' own result mapping.
    rows
        Identity columns, and the rule's own, of rows that break the rule; at most :data:`MAX_EXAMPLES`.
    """

    success: bool
    error: str | None = None
    result: Mapping[str, Any] = field(default_factory=dict)
    rows: Sequence[Mapping[str, Any]] = ()


def load() -> Any:
    """Import Great Expectations with its analytics disabled; later calls return the same module."""
    os.environ["GX_ANALYTICS_ENABLED"] = "false"
    with deferred_imports():
        return importlib.import_module("great_expectations")


def build(rule: Rule, arguments: Mapping[str, Any]) -> Any:
    """Build the expectation object of a rule; raises ``ValueError`` if Great Expectations refuses the arguments."""
    load()
    from great_expectations.expectations.metadata_types import FailureSeverity
    from great_expectations.expectations.registry import get_expectation_impl

    # Results are returned in another order (broken rules first), so each carries the index of its rule.
    severity = FailureSeverity(rule.severity)
    return get_expectation_impl(rule.type)(**arguments, severity=severity, meta={"rule": rule.index})


def evaluate(frame: Any, suite: Sequence[tuple[Rule, Mapping[str, Any]]], identity: Sequence[str], *, spark: bool) -> dict[int, Finding]:
    """Evaluate rules over a pandas or Spark frame in two passes: counts for all rules, then the rows that break failed ones.

    Parameters
    ----------
    frame
        A pandas DataFrame, or a Spark one that the caller has cached.
    suite
        Rules, each with its arguments for this frame.
    identity
        Columns that identify failing rows.

    Returns
    -------
    dict
        Findings by rule index; omits rules for which Great Expectations returns no result.
    """
    gx = load()
    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = {"globally": False}
    source = context.data_sources.add_spark("windowmill", persist=False) if spark else context.data_sources.add_pandas("windowmill")
    batch = source.add_dataframe_asset("rows").add_batch_definition_whole_dataframe("batch").get_batch({"dataframe": frame})

    findings: dict[int, Finding] = {}
    built: dict[int, Any] = {}
    for rule, arguments in suite:
        try:
            built[rule.index] = build(rule, arguments)
        except Exception as err:  # noqa: BLE001 - validators of expectations raise whatever they like
            findings[rule.index] = Finding(success=False, error=_one_line(str(err)))
    with _all_cached_rows(frame) if spark else contextlib.nullcontext():
        findings |= _run(gx, batch, built, _COUNTS)
        failed = {i: built[i] for i, finding in findings.items() if not finding.success and finding.result.get("unexpected_count")}
        for index, finding in _run(gx, batch, failed, _rows_of(identity)).items():
            findings[index] = replace(findings[index], rows=finding.rows)
    return findings


@contextlib.contextmanager
def _all_cached_rows(frame: Any) -> Iterator[None]:
    """Keep Spark from skipping cached rows by column statistics, which omit NaN (SPARK-58482): NaN > 3 would match no rows."""
    setting, configuration = "spark.sql.inMemoryColumnarStorage.partitionPruning", frame.sparkSession.conf
    before = configuration.get(setting)
    configuration.set(setting, "false")
    try:
        yield
    finally:
        configuration.set(setting, before)


def _rows_of(identity: Sequence[str]) -> dict[str, Any]:
    # Only SUMMARY limits the rows within Spark; COMPLETE would collect every failing row to the driver.
    return {"result_format": "SUMMARY", "partial_unexpected_count": MAX_EXAMPLES, "unexpected_index_column_names": list(identity)}


def _run(gx: Any, batch: Any, built: Mapping[int, Any], result_format: Mapping[str, Any]) -> dict[int, Finding]:
    if not built:
        return {}
    try:
        results = batch.validate(gx.ExpectationSuite("windowmill", expectations=list(built.values())), result_format=result_format).results
    except Exception as err:  # noqa: BLE001 - some types raise while metrics are collected, which no result is given for
        if len(built) == 1:
            return {index: Finding(success=False, error=_one_line(str(err))) for index in built}
        apart = (_run(gx, batch, {index: expectation}, result_format) for index, expectation in built.items())
        return {index: finding for each in apart for index, finding in each.items()}
    return {result.expectation_config.meta["rule"]: _finding(result) for result in results}


def _finding(result: Any) -> Finding:
    error = _raised(result.exception_info)
    rows = list(result.result.get("partial_unexpected_index_list") or ())[:MAX_EXAMPLES]
    return Finding(success=bool(result.success) and error is None, error=error, result=dict(result.result), rows=rows)


def _raised(info: Mapping[str, Any] | None) -> str | None:
    """The error in either form of ``exception_info``: flat, or one entry per metric that raised."""
    entries = [info or {}, *(part for part in (info or {}).values() if isinstance(part, Mapping))]
    messages = [str(entry.get("exception_message") or "unknown error") for entry in entries if entry.get("raised_exception")]
    return _one_line("; ".join(dict.fromkeys(messages))) if messages else None


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= MAX_ERROR else f"{line[: MAX_ERROR - 1]}…"


@contextmanager
def deferred_imports() -> Iterator[None]:
    """Within the context, what this thread imports finds the modules above deferred or absent, unless they are imported already.

    A deferred module is Python's own: a :class:`importlib.util.LazyLoader` executes it when an attribute of it is read. Python 3.11 does
    that without a lock. So only this thread gets such modules, and windowmill's threads use Great Expectations one at a time.
    """
    finder = _Finder(threading.get_ident())
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class _Finder(MetaPathFinder):
    def __init__(self, thread: int) -> None:
        self._thread = thread

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if threading.get_ident() != self._thread:
            return None
        if fullname == UNUSED:
            raise ModuleNotFoundError(f"not needed to check rules: {fullname}", name=fullname)
        if fullname not in DEFERRED:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = importlib.util.LazyLoader(spec.loader)
        return spec
