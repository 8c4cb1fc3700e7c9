"""Python workers of Spark: what they do beside the function that a pass gives them."""

from __future__ import annotations

import gc

import pyarrow as pa
import pytest

from windowmill.jobs.spark.access import map_in_arrow

pytestmark = pytest.mark.spark


def _frozen(batches):
    for batch in batches:
        yield pa.record_batch([pa.array([gc.get_freeze_count()] * batch.num_rows)], ["frozen"])


def test_the_modules_of_a_worker_are_exempt_from_collection_after_its_first_task(spark):
    # Twenty tasks are far more than workers, so workers get further tasks.
    rows = map_in_arrow(spark.range(0, 20, 1, 20), _frozen, pa.schema([("frozen", pa.int64())])).toArrow()
    assert max(rows.column("frozen").to_pylist()) > 10_000
    assert gc.get_freeze_count() == 0, "this process keeps nothing"
