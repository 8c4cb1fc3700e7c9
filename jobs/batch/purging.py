"""Purges keys: a batch removes all their rows from the pipeline's tables, after these have been deleted from the source. No JVM.

Other keys keep their results and state. Old versions of the tables hold the keys until maintenance removes their files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from windowmill.checkpoints.batches import Changes, Outcome, Plan, PurgePlan, state_plans
from windowmill.checkpoints.committer import beyond_delta_rs
from windowmill.checkpoints.ledger import Ledger
from windowmill.checkpoints.places import Runnable
from windowmill.checkpoints.rewriting import ErasedFiles, ErasedKeys, KeysFile
from windowmill.checkpoints.savepoints import savepoint_names
from windowmill.checkpoints.state.inspection import key_value
from windowmill.checkpoints.stores import is_table, table_at
from windowmill.jobs import json_lines
from windowmill.jobs.batch import planning
from windowmill.jobs.batch.counted_rows import table_rows, uncounted_changes
from windowmill.jobs.batch.finishing import Forgotten, forget
from windowmill.jobs.batch.loop import Turn, leased, run_to_change
from windowmill.jobs.batch.progress import CommittedBatch, Progress
from windowmill.jobs.sources.columns import Columns
from windowmill.jobs.sources.delta_log import DeltaSource
from windowmill.jobs.sources.reading import VersionRange, next_change
from windowmill.jobs.sources.table_rows import TableRows, changed_rows
from windowmill.windowing.counts import Counts
from windowmill.windowing.errors import (
    NonAppendCommitError,
    OutOfTurnError,
    PurgeError,
    SourceRangeGoneError,
    SpecError,
    UnsupportedError,
    first_line,
)
from windowmill.windowing.spec import Pipeline

#: Keys as the user gives them: values of key columns by name, texts or values of JSON.
Given = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Purged:
    """What a purge has removed, or would remove."""

    plan: PurgePlan  #: Its plan.
    rows: Mapping[str, int]  #: By role of the table, the rows that go; of ``quality`` those that lose an observation or examples.
    #: Batches that had to be run first, over rows that were in the source before the keys were deleted.
    before: Sequence[CommittedBatch] = ()
    waits: bool = False  #: Whether such rows are unread; only a dry run leaves them so.
    forgotten: Forgotten = field(default_factory=Forgotten)


def purge(
    pipeline: Pipeline,
    progress: Progress,
    given: Given,
    *,
    dry_run: bool = False,
    accepted: planning.Acceptance = planning.NOTHING_ACCEPTED,
) -> Purged:
    """Remove all rows of the keys ``given`` from the pipeline's tables.

    Raises ``PurgeError`` if the source still has rows of them, or a table cannot lose rows; ``NonAppendCommitError`` if unread versions of
    the source have changed rows of other keys too; ``OutOfTurnError`` if no batch has been committed, or one is held.
    """
    if not pipeline.keys:
        raise UnsupportedError(
            f"pipeline {pipeline.pipeline}: has no keys, so rows of the source cannot be found in its results; delete them in the source, "
            "and `windowmill restate` it"
        )
    with leased(pipeline, progress, changes=accepted.changes) as turn:
        turn.catch_up()
        source = _source(turn.runnable, turn.ledger, accepted)
        keys = _typed(pipeline, source, given)
        with progress.step("check", f"that the source has no rows of {'the key' if len(keys.values) == 1 else 'the keys'}"):
            _refuse_present(pipeline.upstream, table_rows(pipeline, source, progress), keys)
        if dry_run:
            plan, _ = _planned(turn, source, keys)
            rows = {role: files.rows for role, files in _found(turn, plan, keys).items()}
            waits = planning.reads_before_change(turn.runnable, turn.ledger, source)
            return Purged(plan, rows, waits=waits, forgotten=Forgotten(savepoint_names(turn.runnable.places.savepoints)))
        return _carried_out(turn, source, keys, accepted)


def _carried_out(turn: Turn, source: DeltaSource, keys: ErasedKeys, accepted: planning.Acceptance) -> Purged:
    """Execute the purge, in one batch; in several if the source has deleted rows of the keys, appended rows, and deleted some again."""
    before, rows, forgotten = list[CommittedBatch](), Counter[str](), Forgotten()
    while True:
        before += run_to_change(turn, accepted)
        plan, ignored = _planned(turn, source, keys)
        turn.announce(plan)
        found = _found(turn, plan, keys)
        outcome = Outcome(plan.seen, plan.emitted, "passed", Counts(rows_ignored=ignored), watermark=plan.watermark, shown=plan.shown)
        n_files = sum(len(files.files) for files in found.values())
        turn.rewrite(plan, outcome, _changes(turn.ledger, plan, keys, found), f"{n_files:,} files")
        rows.update({role: files.rows for role, files in found.items()})
        with turn.progress.step("forget", "savepoints, pages and statistics of the ledger that name the keys"):
            forgotten = forgotten.and_then(forget(turn.runnable, turn.ledger))
        if next_change(source, plan.to_version) is None:
            return Purged(plan, dict(rows), before, forgotten=forgotten)


def _source(runnable: Runnable, ledger: Ledger, accepted: planning.Acceptance) -> DeltaSource:
    ledger.check_meaning(runnable.pipeline)
    planning.refuse_held(runnable, ledger, "purge")
    if ledger.last_commit is None:
        raise OutOfTurnError(f"pipeline {runnable.name}: has committed no batch, so there is nothing to purge")
    source = planning.source_of(runnable, ledger)
    if not isinstance(source, DeltaSource):
        raise UnsupportedError(
            f"source {source.path}: only Delta tables say which rows have gone; delete the key's rows, and backfill in a new sink"
        )
    planning.check_tables(runnable, ledger, accepted)
    return source


def _typed(pipeline: Pipeline, source: DeltaSource, given: Given) -> ErasedKeys:
    """The keys ``given`` with the types that the source has."""
    of_source, named = Columns.of_source(source), set(given[0])
    kinds = of_source.arrow
    wrong = next((each for each in given if not each or set(each) != named or not named <= set(pipeline.keys)), None)
    if wrong is not None:
        raise SpecError(
            f"purge: got a key of {', '.join(map(str, wrong)) or 'no column'}; expected some or all of the key columns "
            f"({', '.join(pipeline.keys)}), and the same ones in every key"
        )
    columns = {}
    for name in (name for name in pipeline.keys if name in named):
        kind = kinds[name]
        values = [_value(each[name], kind, name) for each in given]
        if name in of_source.fixed_lengths:
            values = [None if value is None else value.ljust(of_source.fixed_lengths[name]) for value in values]
        columns[name] = pa.array(values, pa.int64()).cast(kind) if pa.types.is_timestamp(kind) else pa.array(values, kind)
    if not json_lines.has_spark_json([kinds[name] for name in columns]):
        raise UnsupportedError(f"pipeline {pipeline.pipeline}: keys of nested types cannot be purged; backfill in a new sink instead")
    values = pa.table(columns).group_by(list(columns), use_threads=False).aggregate([])
    return ErasedKeys(values, tuple(json_lines.to_json(values)), pipeline.keys)


def _value(value: Any, kind: pa.DataType, name: str) -> Any:
    if isinstance(value, bool):
        value = str(value).lower()  # as JSON writes it
    return key_value(None if value is None else str(value), kind, name)


def _refuse_present(upstream: Pipeline | None, table: TableRows, keys: ErasedKeys) -> None:
    columns, source = keys.values.column_names, table.source
    rows = sum(int(keys.of("sink", rows, rows.column_names).sum()) for _, rows in table.at(source.version, columns))
    if rows:
        raise PurgeError(
            f"source {source.place}: {f'version {source.version}' if upstream is None else 'its latest view'} still has {rows:,} "
            f"row{'' if rows == 1 else 's'} of what is to be purged; a restatement or backfill would bring them back: "
            f"{'delete' if upstream is None else 'purge'} them there, and purge again"
        )


def _planned(turn: Turn, source: DeltaSource, keys: ErasedKeys) -> tuple[PurgePlan, int]:
    """The plan, and the number of changed rows that it skips because the spec ignores them."""
    runnable, ledger, last = turn.runnable, turn.ledger, turn.ledger.last_commit
    table = table_rows(runnable.pipeline, source, turn.progress)
    assert last is not None
    after, through, ignored = last.plan.to_version, last.plan.to_version, 0
    change = next_change(source, after)
    if change is not None:
        through = change[1]
        if runnable.source.changes == "ignore":
            ignored = sum(version.rows_changed for version in source.versions(after, through))
        else:
            _refuse_others(runnable, table, keys, change)
    plan = PurgePlan(
        **planning.pinned(runnable.pipeline, ledger, source, VersionRange(after, through)),
        seen=last.outcome.seen,
        columns=tuple(keys.values.column_names),
        keys=len(keys.values),
        ignores_others=_ignores_others(runnable, state_plans(ledger.batches()), table, keys, through),
    )
    planning.check_plan(runnable, ledger, source, plan)
    return plan, ignored


def _ignores_others(runnable: Runnable, building: Sequence[Plan], table: TableRows, keys: ErasedKeys, through: int) -> bool:
    """Whether uncounted versions up to ``through`` changed rows of other keys, too; true if the log is gone."""
    if runnable.source.changes != "ignore":
        return False
    try:
        versions = [each.version for each in uncounted_changes(building, table.source, through)]
        rows = [changed_rows(table, version, version, runnable.pipeline.keys) for version in versions]
    except SourceRangeGoneError:
        return True
    return not all(keys.of("sink", each, each.column_names).all() for each in rows)


def _refuse_others(runnable: Runnable, table: TableRows, keys: ErasedKeys, change: tuple[int, int]) -> None:
    """Refuse versions that have changed rows of other keys."""
    source, (first, last) = table.source, change
    versions = f"version{f's {first} to {last}' if first < last else f' {first}'}"
    try:
        rows = changed_rows(table, first, last, runnable.pipeline.keys)
    except SourceRangeGoneError as err:
        raise SourceRangeGoneError(
            f"source {source.place}: whether {versions} changed rows of other keys too is no longer known "
            f"({first_line(err).removeprefix(f'source {source.path}: ')}); set source.changes to ignore, which leaves results of other "
            "keys as they are, and purge again"
        ) from err
    if not keys.of("sink", rows, rows.column_names).all():
        raise NonAppendCommitError(
            f"source {source.place}: {versions} also changed rows of other keys; `windowmill restate` recomputes the windows that these "
            "touch: run it, then purge again"
        )


def _found(turn: Turn, plan: PurgePlan, keys: ErasedKeys) -> dict[str, ErasedFiles]:
    """By role, the files of the tables that name one of the ``keys``; refuses keys that none names."""
    runnable, places, found = turn.runnable, turn.runnable.places, dict[str, ErasedFiles]()
    tables = {name: getattr(places, name) for name in ("quality", "quarantine", "state", "held")}
    with turn.progress.step("search", "results, state, quarantine, held results and quality history"):
        for role, path in ({"sink": runnable.sink_path} | tables).items():
            if not is_table(path):
                continue
            snapshot = table_at(path)
            files = ErasedFiles.of(path, snapshot, role=role, keys=lambda: keys)
            reason = beyond_delta_rs(role, snapshot, Changes(removes=files.files)) if files.files else None
            if reason is not None:
                raise PurgeError(
                    f"{role} {path}: {reason}, so rows cannot be removed from it; drop the feature (ALTER TABLE … DROP FEATURE), and "
                    f"purge again; batch {plan.batch} has not begun"
                )
            found[role] = files
    _refuse_unknown(runnable, turn.ledger, plan, keys, found)
    return found


def _refuse_unknown(runnable: Runnable, ledger: Ledger, plan: PurgePlan, keys: ErasedKeys, found: Mapping[str, ErasedFiles]) -> None:
    """Refuse keys that no table names, such as mistyped ones; not right after a purge, which may have removed these very keys."""
    newest, passes_over = ledger.newest, plan.to_version > plan.from_version
    # The versions that it skips changed only rows of these keys, unless all changes are ignored.
    if any(files.rows for files in found.values()) or (passes_over and runnable.source.changes != "ignore"):
        return
    if newest is not None and newest.plan.purges:
        return
    first = keys.values.to_pylist()[0].items()
    shown = ", ".join(f"{name}={f'0x{value.hex()}' if isinstance(value, bytes) else value}" for name, value in first)
    others = f" or the other {len(keys.values) - 1:,} keys" if len(keys.values) > 1 else ""
    raise PurgeError(
        f"pipeline {runnable.name}: none of its tables has rows of {shown}{others}; give keys as the source has them (bytes as 0x00ff), "
        "nothing has been changed"
    )


def _changes(ledger: Ledger, plan: PurgePlan, keys: ErasedKeys, found: Mapping[str, ErasedFiles]) -> Iterator[tuple[str, Changes]]:
    file = KeysFile(ledger.path, plan.attempt)
    file.write(keys)
    try:
        for role, files in found.items():
            if files.files:
                yield role, Changes(kept=files.keep(batch=plan.batch, attempt=plan.attempt), removes=files.files)
    except BaseException:
        with suppress(OSError):  # the first error is reported; the next purge removes it
            file.remove()
        raise
