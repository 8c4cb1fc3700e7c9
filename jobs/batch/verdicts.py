"""What is told and kept of a verdict: lines for people, rows of the quality table, the page of the Data Docs."""

from __future__ import annotations

import json
from datetime import datetime

import pyarrow as pa

from windowmill.checkpoints.batches import Changes, Plan
from windowmill.checkpoints.data_files import FileWriter
from windowmill.checkpoints.runnable import Runnable
from windowmill.checkpoints.stores import remote_store_of
from windowmill.expectations import docs, history
from windowmill.expectations.gate import Verdict
from windowmill.expectations.pages import Folder
from windowmill.jobs.batch.progress import Progress
from windowmill.windowing.errors import HeldError, first_line


def tell(verdict: Verdict, progress: Progress) -> None:
    """Say the verdict, and examples of the rows that were quarantined, if these are too many."""
    progress.say(f"  {verdict.describe()}")
    for row in verdict.lost:
        progress.say(f"    quarantined, for example: {json.dumps(row, ensure_ascii=False)}")


def quality_changes(runnable: Runnable, plan: Plan, verdict: Verdict, attempt: str, at: datetime) -> Changes | None:
    """Write the results of the rules to a file of the quality table; null if there are no rules."""
    rows = history.rows_of(verdict, pipeline=runnable.name, generation=plan.generation, batch=plan.batch, attempt=attempt, at=at)
    if not rows.num_rows:
        return None
    with FileWriter(runnable.places.quality, history.SCHEMA, batch=plan.batch, attempt=plan.attempt, task=0) as writer:
        writer.write(rows)
    return Changes.of(history.SCHEMA, writer.close())


def write_docs(runnable: Runnable, plan: Plan, verdict: Verdict, at: datetime, progress: Progress) -> None:
    """Write the page of the batch, which only shows the contents of the quality table, so a batch must not fail because of it."""
    place = runnable.places.docs
    try:
        docs.write_docs(Folder(place, remote_store_of(place)), verdict, pipeline=runnable.name, batch=plan.batch, at=at)
    except (OSError, pa.ArrowException) as err:
        progress.say(f"  {place}: the page of this batch was not written ({first_line(err)})")


def held(runnable: Runnable, plan: Plan, verdict: Verdict) -> HeldError:
    """The error for a batch whose results must not be published."""
    return HeldError(
        f"pipeline {runnable.name}: batch {plan.batch} is held, nothing was published: {verdict.describe()}; see its rows in "
        f"{runnable.places.held}, then run again with other expectations or other limits of quarantine, or `windowmill release` or "
        "`windowmill discard` it"
    )
