"""Validates a batch's result rows over the files that hold them: few rows in this process, many on Spark.

A verdict becomes lines for people, rows of the quality table, and a page of the Data Docs.

Great Expectations need not read the rows for rules that every row keeps. The columns are known, and the files' statistics show nulls and
ranges. For unique columns and ordered pairs, these columns are read by Arrow: of few rows in this process, of many by tasks.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property, partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windowmill.checkpoints.batches import Changes, Plan
from windowmill.checkpoints.data_files import DataFile, read_files, write_files
from windowmill.checkpoints.ledger import Ledger
from windowmill.checkpoints.places import Runnable
from windowmill.checkpoints.quoting import backquoted
from windowmill.checkpoints.stores import Options, is_local, options_of, remote_store_of, use_options
from windowmill.expectations import docs, gate
from windowmill.expectations.docs import Folder
from windowmill.expectations.gate import Verdict, validate
from windowmill.expectations.rule import OF_PAST, QUARANTINED_RATE, Loss, Past, Rule
from windowmill.expectations.suites import COLUMNS, windows_of
from windowmill.jobs.batch.progress import Progress
from windowmill.jobs.batch.window_history import rulings
from windowmill.jobs.layouts.limits import MAX_VALIDATED_IN_PANDAS
from windowmill.jobs.layouts.output import RETURNED, collect_results, encode_result
from windowmill.jobs.spark.access import DataFrame, SparkSession, access_to, map_in_arrow, parquet_rows
from windowmill.jobs.spark.spark_settings import literal_path
from windowmill.windowing.columnar.hashes import row_checksums
from windowmill.windowing.errors import HeldError, first_line
from windowmill.windowing.spec import Pipeline

_UNIQUE, _ORDERED = "expect_compound_columns_to_be_unique", "expect_column_pair_values_a_to_be_greater_than_b"
_NOT_NULL, _BETWEEN = "expect_column_values_to_not_be_null", "expect_column_values_to_be_between"
#: What a task counts for a rule: whether a row breaks it, or hashes of unique columns that belong to one share of all.
_COUNTED = pa.schema([("share", pa.int32()), ("rule", pa.int32()), ("hashes", pa.binary()), ("broken", pa.bool_())])
#: Hashes of a block: Spark sends a worker as many as 10,000 values at once, however long, but not 2 GiB.
_BLOCK_HASHES = 12_500
#: Result rows that this process reads for the rules: 0.15 µs a row, and 24 bytes while they are sorted.
MAX_CHECKED = 5_000_000
#: Result rows whose columns pandas compares: slower for each row, but a process that commits what tasks computed loads no kernels.
MAX_COMPARED = 100_000
#: Greatest number of rows that break a rule and that a log names.
_MAX_TOLD = 3


@dataclass(frozen=True)
class ResultFiles:
    """Result rows: the ``files`` in the folder of ``table``, with the columns of ``schema``."""

    table: str
    files: Sequence[DataFile]
    schema: pa.Schema

    @property
    def n_rows(self) -> int:
        return sum(file.rows for file in self.files)

    def count_of(self, windows: Collection[str]) -> int:
        return sum(self._rows_of_windows[name] for name in windows)

    @cached_property
    def _rows_of_windows(self) -> Counter[str]:
        found = Counter[str]()
        for rows in read_files(self.table, self.files, ["window"]):
            for window in rows.column("window").value_counts().to_pylist():
                found[window["values"]] += window["counts"]
        return found

    def here(self, columns: Sequence[str] | None = None) -> pa.Table:
        schema = self.schema if columns is None else pa.schema([self.schema.field(name) for name in columns])
        return pa.Table.from_batches([rows.cast(schema) for rows in read_files(self.table, self.files, schema.names)], schema)

    def on_spark(self, spark: SparkSession) -> DataFrame:
        if is_local(self.table):
            rows = parquet_rows(spark, [literal_path(self.table, file.path) for file in self.files], self.schema)
            return rows.select(*map(backquoted, self.schema.names))
        # Spark itself may lack what it needs to read object storage.
        numbers = spark.range(0, len(self.files), 1, len(self.files))
        return map_in_arrow(numbers, partial(_read, self, {self.table: options_of(self.table) or {}}), self.schema)


def validate_files(
    rows: ResultFiles,
    pipeline: Pipeline,
    rows_read: int,
    rows_quarantined: int,
    loss: Callable[[], Loss],
    spark: Callable[[], SparkSession],
    past: Past | None = None,
) -> Verdict:
    """The verdict on the result ``rows``.

    - ``rows_read``, ``rows_quarantined``: numbers of rows that the batch read from its source, and that were quarantined.
    - ``loss``: summarizes the quarantined rows; called if they are more than a rule allows.
    - ``spark``: gives the session, which may have to be started.
    - ``past``: the batches before this one; null for a batch that is not compared with others.
    """
    few = rows.n_rows <= MAX_VALIDATED_IN_PANDAS
    return validate(
        rows.here if few else lambda: rows.on_spark(spark()),
        pipeline,
        columns=rows.schema.names,
        count=rows.n_rows,
        rows_read=rows_read,
        rows_quarantined=rows_quarantined,
        loss=loss,
        spark=spark,
        kept=lambda suite: kept_rules(rows, suite, spark),
        count_of=rows.count_of,
        past=past,
    )


def report(verdict: Verdict, progress: Progress) -> None:
    """Say the verdict, with rows that break a rule, and examples of the rows that were quarantined, if these are too many."""
    progress.say(f"  {verdict.describe()}")
    for result in verdict.unmet:
        if result.type != QUARANTINED_RATE:
            for row in result.rows[:_MAX_TOLD]:
                progress.say(f"    breaks {result.type}: {json.dumps(row, ensure_ascii=False)}")
    for result in verdict.unmet:
        if result.type == QUARANTINED_RATE:
            for lost in result.examples:
                progress.say(f"    quarantined, for example: {json.dumps(lost, ensure_ascii=False)}")


def quality_changes(runnable: Runnable, plan: Plan, verdict: Verdict, attempt: str, at: datetime) -> Changes | None:
    """Write the results of the rules to a file of the quality table; null if there are no rules."""
    rows = gate.rows_of(verdict, pipeline=runnable.name, generation=plan.generation, batch=plan.batch, attempt=attempt, at=at)
    if not rows.num_rows:
        return None
    return Changes.of(gate.SCHEMA, write_files(runnable.places.quality, gate.SCHEMA, [rows], batch=plan.batch, attempt=plan.attempt))


def write_docs(runnable: Runnable, plan: Plan, verdict: Verdict, at: datetime, progress: Progress) -> None:
    """Write the page of the batch, which only shows the contents of the quality table, so a batch must not fail because of it."""
    place = runnable.places.docs
    try:
        docs.write_docs(Folder(place, remote_store_of(place)), verdict, pipeline=runnable.name, batch=plan.batch, at=at)
    except (OSError, pa.ArrowException) as err:
        progress.say(f"  {place}: the page of this batch was not written ({first_line(err)})")


def held_error(runnable: Runnable, ledger: Ledger, plan: Plan, verdict: Verdict) -> HeldError:
    """The error for a batch whose results must not be published."""
    one, other = rulings(ledger, plan)
    return HeldError(
        f"pipeline {runnable.name}: batch {plan.batch} is held, nothing was published: {verdict.describe()}; see its rows in "
        f"{runnable.places.held}, then run again with other expectations or other limits of quarantine, or `windowmill {one}` or "
        f"`windowmill {other}` it"
    )


def _read(files: ResultFiles, options: Mapping[str, Options], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Runs in an executor."""
    use_options(options)
    for batch in batches:
        for rows in read_files(files.table, [files.files[number] for number in batch.column(0).to_pylist()], files.schema.names):
            yield rows.cast(files.schema)


def kept_rules(files: ResultFiles, suite: Sequence[Rule], spark: Callable[[], SparkSession]) -> set[int]:
    """The indexes of those rules of ``suite`` that every row is certain to keep."""
    statistics = [json.loads(file.stats) for file in files.files]
    names = files.schema.names
    kept = {rule.index for rule in suite if rule.type == COLUMNS and rule.arguments == {"column_list": names}}
    kept |= {rule.index for rule in suite if _shown_by(statistics, rule, files.schema)}
    read = [rule for rule in suite if rule.index not in kept and _is_read(rule) and set(_columns(rule)) <= set(names)]
    if not read:
        return kept
    if files.n_rows <= MAX_COMPARED:
        rows = files.here()
        broken = {rule.index for rule in read if _breaks(rule, rows)}
    elif files.n_rows <= MAX_CHECKED:
        numbers = pa.record_batch({"id": pa.array(range(len(files.files)))})
        broken = _broken(_count(files, read, 1, {}, iter([numbers])))
    else:
        broken = _broken_by_spark(files, read, spark())
    return kept | ({rule.index for rule in read} - broken)


def may_need_evaluation(suite: Sequence[Rule]) -> bool:
    """Whether ``suite`` has a rule that Great Expectations evaluates even if every row keeps it."""
    others = [rule for rule in suite if rule.type != COLUMNS or rule.arguments.keys() != {"column_list"}]
    return not all(rule.type in (QUARANTINED_RATE, *OF_PAST) or _is_shown(rule) or _is_read(rule) for rule in others)


def _broken_by_spark(files: ResultFiles, suite: Sequence[Rule], session: SparkSession) -> set[int]:
    n, cores = len(files.files), access_to(session).cores()
    options = {} if is_local(files.table) else {files.table: options_of(files.table) or {}}
    counted = map_in_arrow(session.range(0, n, 1, min(n, cores)), partial(_count, files, suite, cores, options), _COUNTED)
    return set[int]().union(*collect_results(map_in_arrow(counted.repartitionById(cores, "share"), _share_broken, RETURNED)))


def _bare(rule: Rule) -> Mapping[str, Any]:
    """The rule's arguments without a condition that names windows: if all rows meet it, so do those of some windows."""
    return {name: value for name, value in rule.arguments.items() if name != "row_condition" or windows_of(rule) is None}


def _is_shown(rule: Rule) -> bool:
    given = _bare(rule)
    if rule.type == _NOT_NULL:
        return given.keys() == {"column"}
    bounds = [given.get(name) for name in ("min_value", "max_value")]
    plain = rule.type == _BETWEEN and given.keys() <= {"column", "min_value", "max_value"}
    return plain and bounds != [None, None] and all(bound is None or isinstance(bound, int | float) for bound in bounds)


def _shown_by(statistics: Sequence[Mapping[str, Any]], rule: Rule, schema: pa.Schema) -> bool:
    given = rule.arguments
    if not _is_shown(rule) or given["column"] not in schema.names:
        return False
    if rule.type == _NOT_NULL:
        return all(file["nullCount"].get(given["column"]) == 0 for file in statistics)
    # Great Expectations refuses a numeric bound on a column of another type, even if it has only nulls.
    kind = schema.field(given["column"]).type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
        return False
    least, greatest = (given.get(name) for name in ("min_value", "max_value"))
    for file in statistics:
        if file["nullCount"].get(given["column"]) == file["numRecords"]:
            continue
        low, high = (file[name].get(given["column"]) for name in ("minValues", "maxValues"))
        if not all(isinstance(bound, int | float) for bound in (low, high)):
            return False
        if (least is not None and low < least) or (greatest is not None and high > greatest):
            return False
    return True


def _is_read(rule: Rule) -> bool:
    given = _bare(rule)
    if rule.type == _UNIQUE:
        return rule.arguments.keys() == {"column_list"}
    if rule.type == _BETWEEN:  # statistics do not distinguish windows
        return _is_shown(rule) and windows_of(rule) is not None
    ordered = rule.type == _ORDERED and given.keys() == {"column_A", "column_B", "or_equal", "ignore_row_if"}
    return ordered and given["ignore_row_if"] == "either_value_is_missing"


def _count(
    files: ResultFiles, suite: Sequence[Rule], n_shares: int, options: Mapping[str, Options], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Runs in this process or an executor, over numbers of files."""
    use_options(options)
    chosen = [files.files[number] for batch in batches for number in batch.column(0).to_pylist()]
    columns = sorted({name for rule in suite for name in _columns(rule)})
    for rows in read_files(files.table, chosen, columns):
        for rule in suite:
            if rule.type == _UNIQUE:
                yield from _hashed(rule, pa.Table.from_batches([rows]), n_shares)
            elif _breaks(rule, rows):
                yield _counted(0, rule, b"", broken=True)


def _columns(rule: Rule) -> Sequence[str]:
    """The columns that the rule compares, and that of its condition."""
    given = rule.arguments
    own = given["column_list"] if rule.type == _UNIQUE else [given[name] for name in ("column", "column_A", "column_B") if name in given]
    return (*own, "window") if windows_of(rule) is not None else tuple(own)


def _breaks(rule: Rule, rows: pa.RecordBatch | pa.Table) -> bool:
    windows, given = windows_of(rule), rule.arguments
    if rule.type == _UNIQUE:
        try:
            return bool(rows.select(_columns(rule)).to_pandas().duplicated().any())
        except (TypeError, ValueError, pa.ArrowException):  # lists and structs, and what is beyond pandas' types
            return True
    if windows is not None:
        rows = rows.filter(pc.is_in(rows.column("window"), pa.array(sorted(windows), pa.string())))
    if rule.type == _BETWEEN:
        return not _is_between(rows.column(given["column"]), given.get("min_value"), given.get("max_value"))
    first, second = (rows.column(given[name]) for name in ("column_A", "column_B"))
    try:
        kept = pc.greater_equal(first, second) if given["or_equal"] else pc.greater(first, second)
    except pa.ArrowException:  # types that Arrow does not compare, or values that it does not compare exactly
        return True
    return not pc.all(kept.fill_null(True), min_count=0).as_py()


def _is_between(values: pa.Array | pa.ChunkedArray, least: float | None, greatest: float | None) -> bool:
    """Whether ``values`` other than null are whole numbers within these bounds."""
    if not pa.types.is_integer(values.type):
        return False
    span = pc.min_max(values).as_py()
    return span["min"] is None or ((least is None or span["min"] >= least) and (greatest is None or span["max"] <= greatest))


def _hashed(rule: Rule, rows: pa.Table, n_shares: int) -> Iterator[pa.RecordBatch]:
    """The hashes of the rule's columns, in blocks for each share; equal rows have equal hashes."""
    hashes = row_checksums(rows.select(_columns(rule))).to_numpy().view(np.uint64)
    shares = hashes % np.uint64(n_shares)
    for share in range(n_shares):
        own = hashes[shares == share]
        for begin in range(0, len(own), _BLOCK_HASHES):
            yield _counted(share, rule, own[begin : begin + _BLOCK_HASHES].tobytes(), broken=False)


def _counted(share: int, rule: Rule, hashes: bytes, *, broken: bool) -> pa.RecordBatch:
    cells = [pa.array([share], pa.int32()), pa.array([rule.index], pa.int32()), pa.array([hashes], pa.binary()), pa.array([broken])]
    return pa.record_batch(cells, schema=_COUNTED)


def _share_broken(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Runs in an executor over shares of the hashes."""
    yield from encode_result(_broken(batches))


def _broken(batches: Iterator[pa.RecordBatch]) -> set[int]:
    """The indexes of rules that rows break, or may break; ``batches`` have the columns that :func:`_count` gives."""
    hashes: dict[int, list[bytes]] = {}
    found: set[int] = set()
    for batch in batches:
        for rule, block, broken in zip(*(batch.column(name).to_pylist() for name in ("rule", "hashes", "broken")), strict=True):
            hashes.setdefault(rule, []).append(block)
            found |= {rule} if broken else set()
    for rule, blocks in hashes.items():
        ordered = np.sort(np.frombuffer(b"".join(blocks), np.uint64))
        found |= {rule} if (ordered[1:] == ordered[:-1]).any() else set()
    return found
